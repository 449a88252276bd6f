"""Proof that an execution plan computes its collective: symbolic runs in several orders.

A run tracks the value of each cell, and checks that each read comes after the write it needs. It tracks order with
vector clocks, like data race detectors (Flanagan and Freund, "FastTrack", PLDI 2009). Each thread block and each port
is an actor that counts its data operations, and a signal carries its sender's clock. Threads of a block are
independent: other threads see an operation's writes only after the block synchronises (``nop``, ``barrier``), and a
signal publishes only earlier writes. Two operations of a block on the same range, element by element, need no
synchronisation. Packets are tracked per operation, not per flag.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.errors import InputError
from trine.gpu.plans.cells import (
    ChunkLayout,
    PlanGoal,
    Value,
    add,
    describe,
    goals,
    input_range,
    parts_grid,
    pipelines,
    reused_chunk_bytes,
    single,
)
from trine.gpu.plans.machine import Cells, DataMove, PlanMachine, PlanStep, RunningBlock
from trine.gpu.plans.plan import FIFO, PAIRS, PORT, RELEASE, KernelPlan

MAX_ROUNDS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanProof:
    """Proof that all ranks end with the right data and that nothing is read too early.

    It covers ``num_runs`` orders of ``num_operations`` operations on ``num_cells`` cells. ``open_ends``: ranks that can
    end before another rank has written their result, so that the next kernel may read old data. ``notes``: further
    assumptions. A plan is ``complete`` if no rank has an open end.
    """

    plan: str
    collective: str
    num_ranks: int
    num_operations: int
    num_cells: int
    num_runs: int
    open_ends: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.open_ends


def check_plan(plan: KernelPlan, orders: int = 2) -> PlanProof:
    """Prove that every rank gets the right data in any order of thread blocks.

    Parameters
    ----------
    orders: number of random but reproducible orders to run besides the first; they matter only if several thread
        blocks release one semaphore or use one connection.

    Raises
    ------
    DeadlockError: thread blocks wait forever; the message names them and their waits.
    InputError: a signal without a wait, a race, a read of unwritten data, or a rank with wrong data at the end; the
        message names the participants. Also for plans that cannot be proven: custom collectives, too large plans.
    """
    layout, notes = proof_layout(plan)
    all_notes, open_ends = dict.fromkeys((*plan.notes, *notes)), dict[int, str]()
    for seed in range(orders + 1):
        watch = SymbolicRun(plan, layout, relaxed_counts=True, order=random.Random(seed) if seed else None)
        watch.run()
        all_notes |= dict.fromkeys(watch.notes)
        open_ends = watch.open_ends | open_ends
    strict = SymbolicRun(plan, layout, relaxed_counts=False, order=None)
    strict.run()
    all_notes |= dict.fromkeys(strict.notes)
    all_notes |= dict.fromkeys(_relaxed_ends(strict.open_ends, open_ends))
    num_operations = sum(len(block.steps) for block in strict.machine.blocks)
    open_ends_text = tuple(f"rank {rank} can end before {place} has written" for rank, place in open_ends.items())
    return PlanProof(
        plan=plan.name, collective=plan.collective, num_ranks=plan.num_ranks, num_operations=num_operations,
        num_cells=strict.machine.memory.num_cells, num_runs=orders + 2, open_ends=open_ends_text,
        notes=tuple(all_notes),
    )  # fmt: skip


def _relaxed_ends(strict: dict[int, str], open_ends: dict[int, str]) -> list[str]:
    """Return a note if some rank learns only from relaxed signals that its result has arrived."""
    pair = next(((rank, place) for rank, place in strict.items() if rank not in open_ends), None)
    return [] if pair is None else [f"only relaxed signals tell rank {pair[0]} at its end that {pair[1]} has written"]


def proof_layout(plan: KernelPlan) -> tuple[ChunkLayout, list[str]]:
    """Return a layout that resolves every part of every range, with few rounds per pipeline but some scratch reuse."""
    parts, loops = parts_grid(plan), pipelines(plan)
    if plan.chunks_of_size == 0:
        raise plan.fault("its buffers have no chunks")
    if not loops:
        return ChunkLayout(group_chunks=1, group_units=parts), []
    window, largest = reused_chunk_bytes(plan), max(loop.unit_bytes for loop in loops)
    measure = math.gcd(*(loop.unit_bytes for loop in loops), window or 0)
    chunk, notes = 3 * largest, []
    if window is not None and window % largest:
        raise plan.fault(
            f"rounds of {largest} bytes run over the end of the {window} bytes of scratch that a chunk reuses"
        )
    if window is not None and window // largest <= MAX_ROUNDS:
        chunk = window + 2 * largest
    elif window is not None:
        notes.append(f"the proof stops before scratch is used again, after {window // largest} rounds")
    cells = -(-chunk // measure)
    return ChunkLayout(
        group_chunks=1,
        group_units=cells * parts,
        window=None if window is None else window // measure * parts,
        unit_scale=(parts, measure),
    ), notes


Clock = npt.NDArray[np.int32]
_RELAXED = "relaxed signals or packets alone order some data, and they do not publish memory: {example}"


@dataclass(frozen=True, slots=True)
class CellAccess:
    """One read or write: its actor, its number at that actor, and the whole range of the operation."""

    actor: int
    event: int
    start: int
    length: int


class SymbolicRun:
    """Values and clocks in one run of a plan."""

    def __init__(
        self, plan: KernelPlan, layout: ChunkLayout, relaxed_counts: bool, order: random.Random | None
    ) -> None:
        self.plan, self.relaxed_counts = plan, relaxed_counts
        self.machine = PlanMachine(plan, layout, self, None, order)
        memory = self.machine.memory
        self.notes: list[str] = []
        self.open_ends: dict[int, str] = {}
        self.ports = self._number_ports()
        self.entries = len(self.machine.blocks) + len(self.ports)
        actors = self.entries + plan.num_ranks
        blocks = range(len(self.machine.blocks))
        self.now = [0] * actors
        self.clocks = [np.zeros(actors, np.int32) for _ in blocks]
        self.pending_clocks: list[Clock | None] = [None for _ in blocks]
        self.port_clocks = {port: np.zeros(actors, np.int32) for port in self.ports.values()}
        self.values: list[Value | None] = [None] * memory.num_cells
        self.writes: list[CellAccess | None] = [None] * memory.num_cells
        self.reads: list[list[CellAccess]] = [[] for _ in range(memory.num_cells)]
        self.packet_clocks: dict[int, Clock] = {}
        self.places: dict[tuple[int, int], str] = {}
        for rank in range(plan.num_ranks):
            self._enter(rank)

    def _enter(self, rank: int) -> None:
        """Write the rank's input when it enters: an event of a separate actor that precedes all of its blocks."""
        actor, cells = self.entries + rank, input_range(self.plan, self.machine.memory, rank)
        self.places[actor, 1] = f"rank {rank} has entered and"
        for block in self.machine.blocks:
            if block.gpu.rank == rank:
                self.clocks[block.actor][actor] = 1
        for unit, cell in enumerate(cells):
            self.values[cell] = single(rank, unit)
            self.writes[cell] = CellAccess(actor, 1, cells.start, len(cells))

    def _number_ports(self) -> dict[tuple[int, int], int]:
        """Return the actor of each port: (rank, connection) -> actor."""
        ports = [
            (gpu.rank, number)
            for gpu in self.plan.gpus
            for number, connection in enumerate(gpu.connections)
            if connection.kind == PORT
        ]
        return {port: len(self.machine.blocks) + number for number, port in enumerate(ports)}

    def run(self) -> None:
        plan_goals = goals(self.plan, self.machine.memory)
        self.machine.run()
        if self.plan.collective == "broadcast":
            plan_goals = goals(self.plan, self.machine.memory, self._root(plan_goals))
        for goal in plan_goals:
            self._check_goal(goal)
        self._check_ends(plan_goals)

    def _root(self, plan_goals: list[PlanGoal]) -> int:
        """Return the root of a broadcast: the rank whose data rank 0 ends with."""
        value = self.values[plan_goals[0].cells[0]]
        return 0 if value is None else max(0, (value[1].bit_length() - 1) // 16)

    # -- order ---------------------------------------------------------------------------------------------------

    def release(self, block: RunningBlock, step: PlanStep, connection: int | None) -> object:
        if step.op.relaxed and not self.relaxed_counts:
            return None
        port = self.ports.get((block.gpu.rank, connection)) if connection is not None else None
        if port is None:
            clock = self.clocks[block.actor].copy()
            if connection is None and step.op.action != RELEASE:  # another block depends on the end of this operation
                clock[block.actor] = self.now[block.actor]
            return clock
        # A port sends earlier data before the signal.
        np.maximum(self.port_clocks[port], self.clocks[block.actor], out=self.port_clocks[port])
        self.port_clocks[port][port] = self.now[port]
        return self.port_clocks[port].copy()

    def acquire(self, block: RunningBlock, step: PlanStep, token: object) -> None:
        if token is None or (step.op.relaxed and not self.relaxed_counts):
            return
        assert isinstance(token, np.ndarray)
        if step.op.dependencies:
            self.clocks[block.actor] = np.maximum(self.clocks[block.actor], token)
            self._note_dependency()
        else:
            self._receive_clock(block, token)

    def _note_dependency(self) -> None:
        if self.plan.format != "msccl":
            note = "the order of thread blocks rests on the dependencies of nop, which MSCCL++ runs as __syncthreads"
            if note not in self.notes:
                self.notes.append(note)

    def _receive_clock(self, block: RunningBlock, token: Clock) -> None:
        """Record a clock that one thread of the block received; the others get it when the block synchronises."""
        pending = self.pending_clocks[block.actor]
        self.pending_clocks[block.actor] = token if pending is None else np.maximum(pending, token)

    def sync(self, block: RunningBlock) -> None:
        actor = block.actor
        pending = self.pending_clocks[actor]
        if pending is not None:
            self.clocks[actor] = np.maximum(self.clocks[actor], pending)
            self.pending_clocks[actor] = None
        self.clocks[actor][actor] = self.now[actor]

    def barrier(self, blocks: list[RunningBlock]) -> None:
        for block in blocks:
            self.sync(block)
        joint_clock = np.maximum.reduce([self.clocks[block.actor] for block in blocks])
        for block in blocks:
            self.clocks[block.actor] = joint_clock.copy()

    def flush(self, block: RunningBlock, connections: tuple[int, ...]) -> None:
        for connection in connections:
            port = self.ports[block.gpu.rank, connection]
            clock = self.port_clocks[port].copy()
            clock[port] = self.now[port]
            self._receive_clock(block, clock)

    # -- data ----------------------------------------------------------------------------------------------------

    def move(self, block: RunningBlock, step: PlanStep, move: DataMove) -> object:
        op = step.op
        values = self._sources(block, step, move)
        results = values if op.action == PAIRS else [self._sum(block, values)] * len(move.targets)
        all_operands = range(len(move.sources)), range(len(move.targets))
        if any(operand.via == PORT for operand in op.targets):
            for number in all_operands[1]:
                actor = self.ports[block.gpu.rank, op.connections[number]]
                view = self.port_clocks[actor]
                np.maximum(view, self.clocks[block.actor], out=view)
                view[actor] = self.now[actor]
                reads = range(number, number + 1) if op.action == PAIRS else all_operands[0]
                self._touch(block, step, move, (actor, view), (reads, range(number, number + 1)), results)
        else:
            access = block.actor, self._view(block, step, move)
            self._touch(block, step, move, access, all_operands, results)
        clock = self.clocks[block.actor].copy()
        clock[block.actor] = self.now[block.actor]
        if self.plan.format == "msccl":  # an MSCCL step ends with a block synchronisation
            self.sync(block)
        return results[0], clock

    def _touch(
        self,
        block: RunningBlock,
        step: PlanStep,
        move: DataMove,
        actor_view: tuple[int, Clock],
        parts: tuple[range, range],
        results: list[list[Value]],
    ) -> None:
        """Perform one event of one actor: read these sources, then write these targets."""
        op, (actor, view) = step.op, actor_view
        self.now[actor] += 1
        self.places[actor, self.now[actor]] = block.name()
        for index in parts[0]:
            for cells in move.sources[index]:
                self._read(cells, actor, view, polled=op.sources[index].polls)
        for index in parts[1]:
            for cells in move.targets[index]:
                self._write(cells, actor, view, results[index], packet=op.targets[index].packet)
            if op.targets[index].packet:
                self._publish(move.targets[index], actor, view)

    def _view(self, block: RunningBlock, step: PlanStep, move: DataMove) -> Clock:
        """Return the threads' clock: from their last synchronisation and this operation's packets and messages."""
        view = self.clocks[block.actor]
        if self.relaxed_counts:
            for operand, ranges in zip(step.op.sources, move.sources, strict=True):
                if operand.polls:
                    clocks = {id(c): c for cells in ranges for c in map(self.packet_clocks.__getitem__, cells)}
                    view = np.maximum.reduce([view, *clocks.values()])
        for payload in move.received:
            assert isinstance(payload, tuple)
            view = np.maximum(view, payload[1])
        if move.received:
            self.clocks[block.actor] = view.copy()
        return view

    def _publish(self, cells: Cells, actor: int, view: Clock) -> None:
        clock = view.copy()
        clock[actor] = self.now[actor]
        for owner_cells in cells:
            for cell in owner_cells:
                self.packet_clocks[cell] = clock

    def _sources(self, block: RunningBlock, step: PlanStep, move: DataMove) -> list[list[Value]]:
        """Return the values of each source; multicast sources are summed."""
        received = iter(move.received)
        result = []
        for operand, ranges in zip(step.op.sources, move.sources, strict=True):
            if operand.buffer == FIFO:
                payload = next(received)
                assert isinstance(payload, tuple)
                result.append(payload[0])
                continue
            members = []
            for cells in ranges:
                members.append([self._value(block, cell) for cell in cells])
            result.append([add(list(column)) for column in zip(*members, strict=True)])
        return result

    def _value(self, block: RunningBlock, cell: int) -> Value:
        value = self.values[cell]
        if value is None:
            where = self.machine.memory.describe(cell)
            raise self._wrong(f"{block.name()} reads {where} before it is written")
        return value

    def _sum(self, block: RunningBlock, sources: list[list[Value]]) -> list[Value]:
        if len({len(source) for source in sources}) > 1:
            raise self._wrong(f"{block.name()} adds ranges of different sizes")
        return [add(list(column)) for column in zip(*sources, strict=True)]

    def _read(self, cells: range, actor: int, view: Clock, polled: bool) -> None:
        access = CellAccess(actor, self.now[actor], cells.start, len(cells))
        for cell in cells:
            write = self.writes[cell]
            if write is not None and not polled and not self._ordered(write, access, view):
                self._race(cell, write, access, "reads", "has written", read_after_write=True)
            self.reads[cell].append(access)

    def _write(self, cells: range, actor: int, view: Clock, values: list[Value], packet: bool) -> None:
        if len(cells) != len(values):
            raise self._wrong(f"{self.places[actor, self.now[actor]]} writes {len(values)} units into {len(cells)}")
        access = CellAccess(actor, self.now[actor], cells.start, len(cells))
        for cell, value in zip(cells, values, strict=True):
            write = self.writes[cell]
            if write is not None and packet:
                where = self.machine.memory.describe(cell)
                raise self._wrong(
                    f"{self.places[actor, self.now[actor]]} writes {where} a second time in one run: its reader could "
                    "take either for the other"
                )
            if write is not None and not self._ordered(write, access, view):
                self._race(cell, write, access, "writes", "has written")
            for read in self.reads[cell]:
                if not self._ordered(read, access, view):
                    self._race(cell, read, access, "writes", "has read")
            self.reads[cell].clear()
            self.writes[cell], self.values[cell] = access, value

    def _ordered(self, earlier: CellAccess, later: CellAccess, view: Clock) -> bool:
        if earlier.event <= view[earlier.actor]:
            return True
        same_threads = (earlier.start, earlier.length) == (later.start, later.length) or earlier.event == later.event
        return earlier.actor == later.actor and same_threads

    def _race(
        self, cell: int, earlier: CellAccess, later: CellAccess, verb: str, past: str, read_after_write: bool = False
    ) -> None:
        where = self.machine.memory.describe(cell)
        first, second = self.places[earlier.actor, earlier.event], self.places[later.actor, later.event]
        if self.relaxed_counts:
            raise self._wrong(f"race: {second} {verb} {where} without waiting until {first} {past} it")
        if read_after_write and earlier.actor < self.entries and not self.notes:
            self.notes.append(_RELAXED.format(example=f"{second} {verb} {where} after {first}"))

    # -- the end -------------------------------------------------------------------------------------------------

    def _check_goal(self, goal: PlanGoal) -> None:
        for cell, expected in zip(goal.cells, goal.expected, strict=True):
            if self.values[cell] != expected:
                raise self._wrong(
                    f"rank {goal.rank} ends with {describe(self.values[cell], self.plan)} in "
                    f"{self.machine.memory.describe(cell)}, not with {describe(expected, self.plan)}"
                )

    def _check_ends(self, plan_goals: list[PlanGoal]) -> None:
        """Record the ranks that can end before they know that their result has arrived."""
        for goal in plan_goals:
            view = self._end_view(goal.rank)
            for cell in goal.cells:
                write = self.writes[cell]
                if write is not None and write.event > view[write.actor]:
                    self.open_ends.setdefault(goal.rank, self.places[write.actor, write.event])

    def _end_view(self, rank: int) -> Clock:
        clocks = []
        for block in self.machine.blocks:
            if block.gpu.rank == rank:
                pending = self.pending_clocks[block.actor]
                clock = self.clocks[block.actor] if pending is None else np.maximum(pending, self.clocks[block.actor])
                clock = clock.copy()
                clock[block.actor] = self.now[block.actor]
                clocks.append(clock)
        if not clocks:
            return np.zeros(len(self.now), np.int32)
        return np.asarray(np.maximum.reduce(clocks))

    def _wrong(self, message: str) -> InputError:
        return self.plan.fault(message)
