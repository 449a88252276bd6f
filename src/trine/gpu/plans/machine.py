"""Execution of a plan: thread blocks run one operation at a time and wait for signals, barriers and packets.

The machine itself has no time and no data; a :class:`Watcher` adds these. :mod:`.proof` tracks the contents of each
buffer and whether they are safe to read; :mod:`.transfers` tracks the wire traffic and its dependencies.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Protocol

from trine.errors import DeadlockError, InputError
from trine.gpu.plans import plan as ir
from trine.gpu.plans.cells import PACKETS, ChunkLayout, PlanMemory
from trine.gpu.plans.plan import KernelGpu, KernelOp, KernelOperand, KernelPlan

#: cells of one operand: one range for each rank that owns some
Cells = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One execution of an operation by one thread block; ``pipeline``: the enclosing loop, None outside of one."""

    op: KernelOp
    place: str
    number: int
    iteration: int = 0
    pipeline: KernelOp | None = None


@dataclass(slots=True)
class RunningBlock:
    """A thread block and its progress."""

    actor: int
    gpu: KernelGpu
    id: int
    steps: list[PlanStep]
    next: int = 0
    arrived: bool = False
    passed: bool = False

    @property
    def done(self) -> bool:
        return self.next == len(self.steps)

    @property
    def step(self) -> PlanStep:
        return self.steps[self.next]

    def name(self, step: PlanStep | None = None) -> str:
        step = step or self.step
        turn = f" (round {step.iteration})" if step.pipeline else ""
        return f"GPU {self.gpu.rank} thread block {self.id} {step.place} {step.op.name!r}{turn}"


@dataclass(slots=True)
class DataMove:
    """Cells that one data operation reads and writes; ``received``: FIFO payloads in the order of the sources."""

    sources: list[Cells]
    targets: list[Cells]
    received: list[object] = field(default_factory=list)


class Watcher(Protocol):
    """Callbacks for the events of a run, in one valid order; acquire gets the token of the matching release."""

    def release(self, block: RunningBlock, step: PlanStep, connection: int | None) -> object:
        """Record a signal through a connection, or to other thread blocks of the GPU if None; return a token."""

    def acquire(self, block: RunningBlock, step: PlanStep, token: object) -> None:
        """Record that a wait has ended."""

    def sync(self, block: RunningBlock) -> None:
        """Record that all threads of the block have synchronised."""

    def barrier(self, blocks: list[RunningBlock]) -> None:
        """Record that these thread blocks have met at a barrier."""

    def flush(self, block: RunningBlock, connections: tuple[int, ...]) -> None:
        """Record that all earlier puts through these ports have left."""

    def move(self, block: RunningBlock, step: PlanStep, move: DataMove) -> object:
        """Record a data operation; return the payload for FIFOs."""


class PlanMachine:
    """One execution of ``plan``.

    Parameters
    ----------
    layout: ranges in cells. timing: layout that sets the number of rounds of pipelines, ``layout`` if None; if given,
        all rounds access the cells of the first one.
    order: None runs each thread block as far as possible, in turn; otherwise blocks advance in random order.
    """

    def __init__(
        self,
        plan: KernelPlan,
        layout: ChunkLayout,
        watcher: Watcher,
        timing: ChunkLayout | None,
        order: random.Random | None,
    ) -> None:
        self.plan, self.layout, self.timing = plan, layout, timing or layout
        self.first_round_only = timing is not None
        self.watcher, self.order = watcher, order
        self.memory = PlanMemory(plan, layout)
        self.blocks = self._blocks()
        self.signals: dict[tuple[int, str, int, int], deque[object]] = defaultdict(deque)
        self.fifos: dict[tuple[int, int, int], deque[tuple[int, object]]] = defaultdict(deque)
        self.semaphores: dict[tuple[int, int], deque[object]] = {
            (gpu.rank, number): deque([None] * initial)
            for gpu in plan.gpus
            for number, initial in enumerate(gpu.semaphores)
        }
        self.arrivals: dict[tuple[int, int], list[RunningBlock]] = defaultdict(list)
        self.packets: set[int] = set()
        self.end_tokens: dict[tuple[int, int, int], object] = {}
        self.awaited_steps = {
            (block.gpu.rank, *dependency)
            for block in self.blocks
            for step in block.steps
            for dependency in step.op.dependencies
        }

    def _blocks(self) -> list[RunningBlock]:
        blocks: list[RunningBlock] = []
        for gpu in self.plan.gpus:
            for block in gpu.blocks:
                steps = [s for number, op in enumerate(block.operations) for s in self._steps(op, number)]
                blocks.append(RunningBlock(len(blocks), gpu, block.id, steps))
        return blocks

    def _steps(self, op: KernelOp, number: int) -> list[PlanStep]:
        if op.action != ir.PIPELINE:
            return [PlanStep(op, f"op {number}", number)]
        return [
            PlanStep(body, f"op {number}.{inner}", number, turn, op)
            for turn in range(self.timing.iterations(op))
            for inner, body in enumerate(op.operations)
        ]

    def run(self) -> None:
        """Run to the end.

        Raises
        ------
        DeadlockError: thread blocks wait for each other, or for data or signals that are never sent; names each wait.
        InputError: unmatched state at the end: a signal without its wait, data in a FIFO, or a semaphore that has not
            returned to its initial value.
        """
        waiting = [block for block in self.blocks if not block.done]
        while waiting:
            if self.order is not None:
                self.order.shuffle(waiting)
            advanced = False
            for block in waiting:
                limit = len(block.steps) if self.order is None else self.order.randint(1, 4)
                while not block.done and limit and self._advance(block):
                    advanced, limit = True, limit - 1
            waiting = [block for block in waiting if not block.done]
            if waiting and not advanced:
                raise self._deadlock(waiting)
        if self.plan.is_proven:
            self._check_left_over()

    # -- one step ------------------------------------------------------------------------------------------------

    def _advance(self, block: RunningBlock) -> bool:
        """Run the next step of a block, unless it must wait."""
        step = block.step
        tokens = self._tokens_awaited(block, step)
        if tokens is None:
            return False
        for queue in tokens:
            self.watcher.acquire(block, step, queue.popleft())
        for dependency in step.op.dependencies:
            if dependency[0] != block.id:
                self.watcher.acquire(block, step, self.end_tokens[block.gpu.rank, *dependency])
        self._perform(block, step)
        key = (block.gpu.rank, block.id, step.number)
        if key in self.awaited_steps:
            self.end_tokens[key] = self.watcher.release(block, step, None)
        block.next += 1
        block.arrived = block.passed = False
        return True

    def _tokens_awaited(self, block: RunningBlock, step: PlanStep) -> list[deque[object]] | None:
        """Return the queues that supply a step with one token each, or None if it has to wait."""
        op = step.op
        if any((block.gpu.rank, *d) not in self.end_tokens for d in op.dependencies if d[0] != block.id):
            return None
        queues: list[deque[object]] = []
        if op.action == ir.WAIT:
            queues = [self.signals[self._inbox(block, c)] for c in op.connections]
        elif op.action == ir.ACQUIRE:
            queues = [self.semaphores[block.gpu.rank, number] for number in op.semaphores]
        elif not self._may_continue(block, step):
            return None
        num_tokens = Counter(map(id, queues))  # a step may name a connection twice, and then takes two tokens
        have_tokens = all(len(queue) >= num_tokens[id(queue)] for queue in queues)
        return queues if have_tokens else None

    def _may_continue(self, block: RunningBlock, step: PlanStep) -> bool:
        if step.op.action == ir.BARRIER:
            return self._pass_barrier(block, step.op)
        return step.op.action not in (ir.PAIRS, ir.REDUCE) or self._has_data(block, step)

    def _inbox(self, block: RunningBlock, connection: int) -> tuple[int, str, int, int]:
        end = block.gpu.connections[connection]
        return block.gpu.rank, end.kind, end.peer, end.pair

    def _pass_barrier(self, block: RunningBlock, op: KernelOp) -> bool:
        if not block.arrived:
            block.arrived = True
            group = self.arrivals[block.gpu.rank, op.barrier]
            group.append(block)
            if len(group) == op.num_blocks:
                self.watcher.barrier(list(group))
                for member in group:
                    member.passed = True
                group.clear()
        return block.passed

    def _has_data(self, block: RunningBlock, step: PlanStep) -> bool:
        for operand in step.op.sources:
            if operand.buffer == ir.FIFO:
                if not self.fifos[self._fifo(operand.rank, block.gpu.rank, block, operand)]:
                    return False
            elif operand.polls and not all(cell in self.packets for r in self.cells(step, operand) for cell in r):
                return False
        return True

    def _fifo(self, source: int, target: int, block: RunningBlock, operand: KernelOperand) -> tuple[int, int, int]:
        assert operand.connection is not None
        return source, target, block.gpu.connections[operand.connection].pair

    def _perform(self, block: RunningBlock, step: PlanStep) -> None:
        op = step.op
        if op.action == ir.SYNC:
            self.watcher.sync(block)
        elif op.action == ir.SIGNAL:
            self._signal(block, step)
        elif op.action == ir.RELEASE:
            for number in op.semaphores:
                self.semaphores[block.gpu.rank, number].append(self.watcher.release(block, step, None))
        elif op.action == ir.FLUSH:
            self.watcher.flush(block, op.connections)
        elif op.action in (ir.PAIRS, ir.REDUCE):
            self._move(block, step)

    def _signal(self, block: RunningBlock, step: PlanStep) -> None:
        for connection in step.op.connections:
            end = block.gpu.connections[connection]
            inbox = (end.peer, end.kind, block.gpu.rank, end.pair)
            self.signals[inbox].append(self.watcher.release(block, step, connection))

    def _move(self, block: RunningBlock, step: PlanStep) -> None:
        op = step.op
        read_cells = [self.cells(step, o) for o in op.sources]
        written_cells = [self.cells(step, o) for o in op.targets]
        move = DataMove(read_cells, written_cells)
        for operand in op.sources:
            if operand.buffer == ir.FIFO:
                count, payload = self.fifos[self._fifo(operand.rank, block.gpu.rank, block, operand)].popleft()
                if count != operand.count:
                    raise self.plan.fault(
                        f"{block.name()} receives {operand.count} chunks, rank {operand.rank} sent {count}"
                    )
                move.received.append(payload)
        payload = self.watcher.move(block, step, move)
        for operand, cells in zip(op.targets, move.targets, strict=True):
            if operand.buffer == ir.FIFO:
                key = self._fifo(block.gpu.rank, operand.rank, block, operand)
                self.fifos[key].append((operand.count, payload))
            elif operand.packet:
                self.packets.update(cell for r in cells for cell in r)
        if op.signals:
            self._signal(block, step)
        if op.flushes:
            self.watcher.flush(block, op.connections)

    def cells(self, step: PlanStep, operand: KernelOperand) -> Cells:
        """Return the cells of an operand in this round, one range per owning rank; empty for a FIFO."""
        if operand.buffer == ir.FIFO:
            return ()
        offset, unit = 0, None
        if step.pipeline is not None and not self.first_round_only:
            unit = self.layout.unit(step.pipeline)
            offset = step.iteration * unit
        start, length = self.layout.span(step.op, operand, offset, unit)
        buffer = PACKETS if operand.packet else operand.buffer
        ranks = (operand.rank,) if operand.group is None else self.plan.groups[operand.group].ranks
        return tuple(self.memory.cells(rank, buffer, start, length) for rank in ranks)

    # -- the end -------------------------------------------------------------------------------------------------

    def _deadlock(self, waiting: list[RunningBlock]) -> DeadlockError:
        reasons = [f"{block.name()} waits for {self._reason(block)}" for block in waiting[:8]]
        more = f"; and {len(waiting) - 8} more" if len(waiting) > 8 else ""
        return DeadlockError(f"{self.plan.file}: thread blocks wait for ever: " + "; ".join(reasons) + more)

    def _reason(self, block: RunningBlock) -> str:
        op, rank = block.step.op, block.gpu.rank
        if op.action == ir.WAIT:
            pending = [c for c in op.connections if not self.signals[self._inbox(block, c)]]
            ends = [block.gpu.connections[c] for c in pending]
            return "a signal of " + ", ".join(f"rank {end.peer} ({end.kind} {end.pair})" for end in ends)
        if op.action == ir.ACQUIRE:
            pending = [n for n in op.semaphores if not self.semaphores[rank, n]]
            return "a release of semaphore " + ", ".join(map(str, pending))
        if op.action == ir.BARRIER:
            num_arrived = len(self.arrivals[rank, op.barrier])
            return f"thread blocks at barrier {op.barrier}: {num_arrived} of {op.num_blocks} are there"
        for dependency in op.dependencies:
            if dependency[0] != block.id and (rank, *dependency) not in self.end_tokens:
                return f"op {dependency[1]} of thread block {dependency[0]}"
        for operand in op.sources:
            if operand.buffer == ir.FIFO:
                if not self.fifos[self._fifo(operand.rank, rank, block, operand)]:
                    return f"data of rank {operand.rank}"
            elif operand.polls:
                missing = [cell for r in self.cells(block.step, operand) for cell in r if cell not in self.packets]
                if missing:
                    return f"{self.memory.describe(missing[0])}, which nobody writes"
        raise AssertionError("a block that waits has a reason")

    def _check_left_over(self) -> None:
        for (rank, kind, peer, pair), tokens in self.signals.items():
            if tokens:
                raise self._left_over(
                    f"rank {rank} leaves {len(tokens)} signal(s) of rank {peer} ({kind} {pair}) without a wait; the "
                    "next run would take them for its own"
                )
        for (source, target, channel), data in self.fifos.items():
            if data:
                raise self._left_over(
                    f"rank {target} never receives {len(data)} message(s) of rank {source}, channel {channel}"
                )
        for gpu in self.plan.gpus:
            for number, initial in enumerate(gpu.semaphores):
                if len(self.semaphores[gpu.rank, number]) != initial:
                    end = len(self.semaphores[gpu.rank, number])
                    raise self._left_over(f"semaphore {number} of GPU {gpu.rank} begins at {initial} and ends at {end}")

    def _left_over(self, message: str) -> InputError:
        return self.plan.fault(message)
