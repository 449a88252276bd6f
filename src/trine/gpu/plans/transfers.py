"""Conversion of an MSCCL++ plan to transfers and their dependencies, which the engine times like any schedule.

Costs of operations (docs/formats/mscclpp.md has the reasons):

- A put is one transfer, and the thread block continues at once. A signal after a put travels with the data and waits
  for all puts of the block; a signal without data is a transfer of 0 bytes.
- A remote read is a 0-byte request to the owner, then the data; the thread block waits for the data.
- Packets (LL) contain flags, so their size doubles. A polling block waits for the transfer that wrote the packet.
- Work inside a GPU (copies, sums, barriers) takes no time here.
- An operation that reads from one peer and writes to another does both at once. Its transfers are cut into pieces: the
  write follows the read by 1 / HEAD of the bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from trine.collectives.schedule import ExpandedSchedule
from trine.gpu.plans.cells import ChunkLayout, message_layout, parts_grid, pipelines
from trine.gpu.plans.machine import DataMove, PlanMachine, PlanStep, RunningBlock
from trine.gpu.plans.plan import FIFO, MEMORY, PORT, SWITCH, KernelOp, KernelOperand, KernelPlan
from trine.graph.assembler import csr

#: The first 1 / HEAD of the bytes of a fused operation must arrive before the next hop can start.
HEAD = 16
#: bytes on the wire of an MSCCL protocol, as a fraction of the data: LL 4 of 8 bytes are flags, LL128 8 of 128
WIRE = {"Simple": (1, 1), "LL": (2, 1), "LL128": (16, 15)}

WHOLE, EMPTY, FIRST, REST, MIDDLE, LAST = range(6)
#: Pieces of the first hop of a fused operation, and of a later hop.
START, FOLLOW = (FIRST, REST), (FIRST, MIDDLE, LAST)
Ids = frozenset[int]
NONE: Ids = frozenset()


@dataclass(slots=True)
class HopStage:
    """Transfers of one hop of an operation; ``head``: those that must end before the next hop can start."""

    head: set[int] = field(default_factory=set)
    all: set[int] = field(default_factory=set)


def plan_schedule(plan: KernelPlan, size_bytes: int) -> ExpandedSchedule:
    """Return the transfers of a plan for a message of ``size_bytes``, as nccl-tests counts it.

    Positions ``num_ranks`` and above are switches that reduce and multicast, one for each of :func:`plan_switches`.

    Raises InputError if the plan does not allow this size, and DeadlockError if the plan deadlocks.
    """
    layout = message_layout(plan, size_bytes)
    rounds = tuple(layout.iterations(loop) for loop in pipelines(plan))
    structure = _structure(plan, layout if rounds else None)
    return structure.sized(layout)


def plan_switches(plan: KernelPlan) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each switch; groups with the same ranks share a switch."""
    return tuple(dict.fromkeys(group.ranks for group in plan.groups))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlanStructure:
    """Transfers of a plan without their sizes in bytes."""

    plan: KernelPlan
    sizes_of: tuple[tuple[PlanStep, KernelOperand | None, int], ...]
    schedule: ExpandedSchedule

    def sized(self, layout: ChunkLayout) -> ExpandedSchedule:
        sizes = np.array([self._bytes(layout, *entry) for entry in self.sizes_of], dtype=np.int64)
        return dataclasses.replace(self.schedule, size_bytes=sizes)

    def _bytes(self, layout: ChunkLayout, step: PlanStep, operand: KernelOperand | None, piece: int) -> int:
        if operand is None or piece == EMPTY:
            return 0
        unit = layout.unit(step.pipeline) if step.pipeline else None
        size = layout.span(step.op, operand, step.iteration * (unit or 0), unit)[1]
        if operand.buffer == FIFO:
            numerator, denominator = WIRE[self.plan.protocol]
        else:
            numerator, denominator = (2 if operand.packet else 1, 1)
        size = -(-size * numerator // denominator)
        head = -(-size // HEAD)
        return {
            WHOLE: size,
            FIRST: head,
            REST: size - head,
            MIDDLE: max(0, size - 2 * head),
            LAST: min(head, size - head),
        }[piece]


@lru_cache(maxsize=16)
def _structure(plan: KernelPlan, timing: ChunkLayout | None) -> PlanStructure:
    """Return the transfers of a plan; ``timing`` matters only for plans with pipelines."""
    return TransferRecorder(plan, timing).record()


class TransferRecorder:
    """Observer of one run of a plan that records the transfers and those each thread block waits for."""

    def __init__(self, plan: KernelPlan, timing: ChunkLayout | None) -> None:
        self.plan = plan
        self.reducing_switches = {ranks: plan.num_ranks + number for number, ranks in enumerate(plan_switches(plan))}
        grid = ChunkLayout(group_chunks=1, group_units=parts_grid(plan))
        self.machine = PlanMachine(plan, grid, self, timing, None)
        blocks = range(len(self.machine.blocks))
        self.waits: list[Ids] = [NONE for _ in blocks]
        self.under_way: list[Ids] = [NONE for _ in blocks]
        self.sent_to: list[set[int]] = [set() for _ in blocks]
        self.on_port: dict[tuple[int, int], Ids] = {}
        self.unsignalled: dict[tuple[int, int], Ids] = {}
        self.last_signal: dict[tuple[int, int], int] = {}
        self.last_acquired: list[dict[object, Ids]] = [{} for _ in blocks]
        self.last_of_fifo: dict[tuple[int, int], int] = {}
        self.packets: dict[int, Ids] = {}
        self.rows: list[tuple[int, int, int, int, bool, bool, bool]] = []
        self.predecessors: list[Ids] = []
        self.starter: list[int] = []
        self.entered: list[bool] = []
        self.sizes_of: list[tuple[PlanStep, KernelOperand | None, int]] = []
        self.reduces: set[int] = set()

    def record(self) -> PlanStructure:
        self.machine.run()
        columns = list(zip(*self.rows, strict=True)) or [()] * 7
        predecessor_ptr, predecessor_idx = csr([sorted(ids) for ids in self.predecessors])
        completion_ptr, completion_idx = csr(self._completion())
        count = len(self.rows)
        schedule = ExpandedSchedule(
            src=np.array(columns[0], dtype=np.int32), dst=np.array(columns[1], dtype=np.int32),
            step=np.array(columns[2], dtype=np.int32), chunk=np.array(columns[3], dtype=np.int32),
            size_bytes=np.zeros(count, dtype=np.int64),
            reduce=np.array([number in self.reduces for number in range(count)], dtype=np.bool_),
            entry_src=np.array(columns[5], dtype=np.bool_), entry_dst=np.array(columns[6], dtype=np.bool_),
            predecessor_ptr=predecessor_ptr, predecessor_idx=predecessor_idx, completion_ptr=completion_ptr,
            completion_idx=completion_idx, num_switches=len(self.reducing_switches),
        )  # fmt: skip
        return PlanStructure(plan=self.plan, sizes_of=tuple(self.sizes_of), schedule=schedule)

    def _completion(self) -> list[list[int]]:
        """Return each rank's last transfers: those its blocks wait for or have sent, and arrivals not yet awaited."""
        last_transfers: list[set[int]] = [set() for _ in range(self.plan.num_ranks)]
        for block in self.machine.blocks:
            last_transfers[block.gpu.rank] |= self.waits[block.actor] | self.under_way[block.actor]
        for (rank, _), ids in self.on_port.items():
            last_transfers[rank] |= ids
        for (rank, _), number in self.last_of_fifo.items():
            last_transfers[rank].add(number)
        awaited = {number for ids in self.predecessors for number in ids}
        for number, row in enumerate(self.rows):
            if number not in awaited and row[1] < self.plan.num_ranks and self.sizes_of[number][1] is not None:
                last_transfers[row[1]].add(number)
        return [sorted(ids) for ids in last_transfers]

    # -- transfers -----------------------------------------------------------------------------------------------

    def _transfer(
        self,
        block: RunningBlock,
        step: PlanStep,
        ends: tuple[int, int],
        predecessors: Iterable[int],
        operand: KernelOperand | None,
        piece: int,
    ) -> int:
        """Add a transfer from ends[0] to ends[1]; it waits for its starter's entry unless a predecessor implies it."""
        ids, starter, number = frozenset(predecessors), block.gpu.rank, len(self.rows)
        entry_implied = any(self.starter[i] == starter for i in ids)
        depth = 1 + max((self.rows[i][2] for i in ids), default=-1)
        chunk = operand.index if operand is not None else -1
        opens = False
        if operand is not None and operand.buffer == FIFO and operand.connection is not None:
            opens = (starter, operand.connection) not in self.last_of_fifo  # rendezvous: the receiver must have entered
        row = (
            *ends,
            depth,
            chunk,
            False,
            not entry_implied and ends[0] == starter,
            opens or (not entry_implied and ends[1] == starter),
        )
        self.rows.append(row)
        self.predecessors.append(ids)
        self.starter.append(starter)
        self.sizes_of.append((step, operand, piece))
        return number

    def _stage(
        self,
        block: RunningBlock,
        step: PlanStep,
        ends: tuple[int, int],
        previous: HopStage,
        operand: KernelOperand,
        pieces: tuple[int, ...],
    ) -> HopStage:
        """Add one hop of a fused operation in pieces; LAST waits for all of the previous hop, others for its head."""
        stage = HopStage()
        for piece in pieces:
            predecessors = previous.all if piece == LAST else previous.head
            number = self._transfer(block, step, ends, predecessors, operand, piece)
            stage.all.add(number)
            if piece in (FIRST, WHOLE):
                stage.head.add(number)
        return stage

    def _merge(self, ids: Ids, new_ids: Iterable[int]) -> Ids:
        """Return the union of ``ids`` and ``new_ids``, without the direct predecessors of ``new_ids``."""
        added = frozenset(new_ids)
        return ids.difference(*(self.predecessors[number] for number in added)) | added

    # -- callbacks from the machine ------------------------------------------------------------------------------

    def release(self, block: RunningBlock, step: PlanStep, connection: int | None) -> object:
        """Return the receiver's token: origin and transfers to wait for. It implies earlier tokens of the origin."""
        origin = (block.actor, connection)
        if connection is None:
            return origin, self._fence(block.actor)
        return origin, frozenset(self._signal(block, step, connection))

    def _signal(self, block: RunningBlock, step: PlanStep, connection: int) -> set[int]:
        """Send a signal with preceding data, or as a 0-byte transfer after the previous signal."""
        actor, end, key = block.actor, block.gpu.connections[connection], (block.gpu.rank, connection)
        previous = {self.last_signal[key]} if key in self.last_signal else set()
        if end.kind == PORT and key in self.unsignalled:
            return previous | self.unsignalled.pop(key)
        if end.kind == MEMORY and end.peer in self.sent_to[actor]:
            self.sent_to[actor].discard(end.peer)
            return previous | self._fence(actor)
        ends = (block.gpu.rank, end.peer)
        self.last_signal[key] = number = self._transfer(block, step, ends, previous | self.waits[actor], None, EMPTY)
        return {number}

    def _fence(self, actor: int) -> Ids:
        """Make the block wait for all its stores, like a fence before a release."""
        self.waits[actor], self.under_way[actor] = self._all_of(actor), NONE
        return self.waits[actor]

    def _all_of(self, actor: int) -> Ids:
        return self._merge(self.waits[actor], self.under_way[actor])

    def acquire(self, block: RunningBlock, step: PlanStep, token: object) -> None:
        if token is None:
            return
        assert isinstance(token, tuple)
        origin, ids = token
        actor = block.actor
        implied = self.last_acquired[actor].get(origin, NONE)
        self.waits[actor] = self._merge(self.waits[actor] - implied, ids)
        self.last_acquired[actor][origin] = ids
        if not step.op.dependencies:
            self.sent_to[actor].clear()

    def sync(self, block: RunningBlock) -> None:
        """Do nothing: a thread-block sync takes no time."""

    def barrier(self, blocks: list[RunningBlock]) -> None:
        merged = NONE
        for block in blocks:
            merged = self._merge(merged, self._all_of(block.actor))
        for block in blocks:
            self.waits[block.actor], self.under_way[block.actor] = merged, NONE

    def flush(self, block: RunningBlock, connections: tuple[int, ...]) -> None:
        for connection in connections:
            ids = self.on_port.get((block.gpu.rank, connection), NONE)
            self.waits[block.actor] = self._merge(self.waits[block.actor], ids)

    def move(self, block: RunningBlock, step: PlanStep, move: DataMove) -> object:
        op, actor = step.op, block.actor
        self._await_arrivals(actor, op, move)
        previous = HopStage(head=set(self.waits[actor]), all=set(self.waits[actor]))
        is_remote_source = any(o.via in (MEMORY, SWITCH) for o in op.sources)
        fused = is_remote_source and any(o.via != "local" for o in op.targets)
        read = self._reads(block, step, previous, fused)
        if read is not None:
            self.waits[actor] = frozenset(read.all)
        transfers = self._writes(block, step, read or previous, fused and read is not None)
        for operand, ranges in zip(op.targets, move.targets, strict=True):
            if operand.packet:
                ids = frozenset(transfers) or self.waits[actor]
                self.packets.update((cell, ids) for cells in ranges for cell in cells)
        return frozenset(transfers)

    def _await_arrivals(self, actor: int, op: KernelOp, move: DataMove) -> None:
        """Make the block wait for the packets it polled and the messages it received."""
        for operand, ranges in zip(op.sources, move.sources, strict=True):
            if operand.polls and operand.buffer != FIFO:
                for ids in {self.packets[cell] for cells in ranges for cell in cells}:
                    self.waits[actor] = self._merge(self.waits[actor], ids)
        for message in move.received:
            assert isinstance(message, frozenset)
            self.waits[actor] = self._merge(self.waits[actor], message)
            if op.reduce_op is not None:
                self.reduces |= message

    def _reads(self, block: RunningBlock, step: PlanStep, previous: HopStage, fused: bool) -> HopStage | None:
        """Read all remote sources at once; return None if the operation has no remote sources."""
        result, rank = None, block.gpu.rank
        for operand in step.op.sources:
            if operand.via not in (MEMORY, SWITCH) or operand.buffer == FIFO:
                continue
            result = result or HopStage()
            if operand.via == SWITCH:
                stage = self._load_reduce(block, step, operand, previous, fused)
            else:
                request = self._transfer(block, step, (rank, operand.rank), previous.all, None, EMPTY)
                hop = HopStage(head={request}, all={request})
                stage = self._stage(block, step, (operand.rank, rank), hop, operand, START if fused else (WHOLE,))
            if step.op.reduce_op is not None:
                self.reduces |= stage.all
            result.head |= stage.head
            result.all |= stage.all
        return result

    def _load_reduce(
        self, block: RunningBlock, step: PlanStep, operand: KernelOperand, previous: HopStage, fused: bool
    ) -> HopStage:
        """Load through a switch that requests the data of all members, sums it and returns the sum."""
        rank, members, switch = block.gpu.rank, *self._group(operand)
        request = self._transfer(block, step, (rank, switch), previous.all, None, EMPTY)
        gathered = HopStage()
        for member in members:
            member_request = self._transfer(block, step, (switch, member), {request}, None, EMPTY)
            pieces = HopStage(head={member_request}, all={member_request})
            stage = self._stage(block, step, (member, switch), pieces, operand, START)
            self.reduces |= stage.all
            gathered.head |= stage.head
            gathered.all |= stage.all
        return self._stage(block, step, (switch, rank), gathered, operand, FOLLOW)

    def _group(self, operand: KernelOperand) -> tuple[tuple[int, ...], int]:
        assert operand.group is not None
        ranks = self.plan.groups[operand.group].ranks
        return ranks, self.reducing_switches[ranks]

    def _writes(self, block: RunningBlock, step: PlanStep, previous: HopStage, fused: bool) -> set[int]:
        """Write to remote targets and return the transfers; the thread block does not wait for them."""
        op, rank, transfers = step.op, block.gpu.rank, set()
        pieces = FOLLOW if fused else (WHOLE,)
        for number, operand in enumerate(op.targets):
            if operand.via == SWITCH:
                transfers |= self._multicast(block, step, operand, previous, fused)
            elif operand.buffer == FIFO:
                transfers.add(self._send(block, step, operand, previous))
            elif operand.via == PORT:
                transfers |= self._through_port(block, step, operand, previous, op.connections[number])
            elif operand.via == MEMORY:
                stage = self._stage(block, step, (rank, operand.rank), previous, operand, pieces).all
                self.under_way[block.actor] |= stage
                self.sent_to[block.actor].add(operand.rank)
                transfers |= stage
        return transfers

    def _multicast(
        self, block: RunningBlock, step: PlanStep, operand: KernelOperand, previous: HopStage, fused: bool
    ) -> set[int]:
        rank, members, switch = block.gpu.rank, *self._group(operand)
        up = self._stage(block, step, (rank, switch), previous, operand, FOLLOW if fused else START)
        down: set[int] = set()
        for member in members:
            down |= self._stage(block, step, (switch, member), up, operand, FOLLOW).all
            self.sent_to[block.actor].add(member)
        self.under_way[block.actor] |= down
        return down

    def _send(self, block: RunningBlock, step: PlanStep, operand: KernelOperand, previous: HopStage) -> int:
        """Send one message; sends on the same connection are sequential."""
        assert operand.connection is not None
        key = (block.gpu.rank, operand.connection)
        predecessors = previous.all | ({self.last_of_fifo[key]} if key in self.last_of_fifo else set())
        ends = (block.gpu.rank, operand.rank)
        self.last_of_fifo[key] = number = self._transfer(block, step, ends, predecessors, operand, WHOLE)
        return number

    def _through_port(
        self, block: RunningBlock, step: PlanStep, operand: KernelOperand, previous: HopStage, connection: int
    ) -> set[int]:
        """Put data through a port, which handles its puts in order while the thread block continues."""
        key = (block.gpu.rank, connection)
        predecessors = previous.all | self.on_port.get(key, NONE)
        transfer = self._transfer(block, step, (block.gpu.rank, operand.rank), predecessors, operand, WHOLE)
        self.on_port[key] = self.unsignalled[key] = frozenset({transfer})
        return {transfer}
