"""Assignment of semaphores to the signals, waits, barriers and dependencies of a plan.

In MSCCL++ one thread per connection of a wait polls, all at once; here a wavefront acquires one semaphore after the
other. So a wait for several connections gets a separate semaphore that counts all its signals. This requires that one
thread block signals through each connection and one waits for it: then the n-th signal is for the n-th wait.
Otherwise each connection has one semaphore, and waits acquire them in turn.

Packets: a flagged line is consumed by the one load that polls it. In MSCCL++ several thread blocks can poll a packet,
or a proxy (RDMA) writes it, whose transfer is not line by line. Such packets are *gated*: the reader acquires a
semaphore that every writer to its range releases, and their stores and loads are plain. Packets without polls are
plain too.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Bool, Int64, pointers
from trine.gpu.kernels.lower.memory import LoweredStep, data_range
from trine.gpu.plans.cells import ChunkLayout
from trine.gpu.plans.plan import BARRIER, PORT, SIGNAL, WAIT, KernelGpu, KernelOperand, KernelPlan

#: rank, kind, peer, pair: the receiving end of a connection's signals
Inbox = tuple[int, str, int, int]


class Turn(NamedTuple):
    """One step of one thread block: index of the block among all blocks, and of the step in the block."""

    block: int
    step: int


#: a turn, and the number of the operand among its sources (reads) or targets (writes)
OperandKey = tuple[Turn, int]


class Take(NamedTuple):
    """The semaphore and the amount of an acquire."""

    semaphore: int
    amount: int


class Semaphores:
    """Allocator of each rank's semaphore numbers."""

    def __init__(self, num_ranks: int) -> None:
        self.initial: list[list[int]] = [[] for _ in range(num_ranks)]

    def new(self, rank: int, initial: int = 0) -> int:
        self.initial[rank].append(initial)
        return len(self.initial[rank]) - 1


class Signals:
    """``takes[turn]``: a wait's acquires. ``gives[turn, n]``: the peer's semaphore for a signal's n-th connection."""

    def __init__(self, blocks: list[list[LoweredStep]], semaphores: Semaphores) -> None:
        self.semaphores = semaphores
        self.takes: dict[Turn, list[Take]] = {}
        self.gives: dict[tuple[Turn, int], int] = {}
        self._of_connection: dict[Inbox, int] = {}
        self._senders: dict[Inbox, list[tuple[Turn, int]]] = defaultdict(list)
        self._waiters: dict[Inbox, set[int]] = defaultdict(set)
        self._matched: dict[Inbox, int] = defaultdict(int)
        turns = [(Turn(b, s), step) for b, steps in enumerate(blocks) for s, step in enumerate(steps)]
        for turn, step in turns:
            self._collect(turn, step)
        for turn, step in turns:
            if step.op.action == WAIT:
                self.takes[turn] = self._takes(step)
        for inbox, senders in self._senders.items():
            for sender in senders:
                if sender not in self.gives:
                    self.gives[sender] = self._connection(inbox)

    def _collect(self, turn: Turn, step: LoweredStep) -> None:
        rank = step.gpu.rank
        if step.op.action == SIGNAL or step.op.signals:
            for number, connection in enumerate(step.op.connections):
                end = step.gpu.connections[connection]
                self._senders[end.peer, end.kind, rank, end.pair].append((turn, number))
        elif step.op.action == WAIT:
            for inbox in inboxes(step.gpu, step.op.connections):
                self._waiters[inbox].add(turn.block)

    def _takes(self, step: LoweredStep) -> list[Take]:
        incoming = inboxes(step.gpu, step.op.connections)
        if len(incoming) > 1 and all(self._is_ordered(inbox) for inbox in incoming):
            semaphore = self.semaphores.new(step.gpu.rank)
            for inbox in incoming:
                self._match(inbox, semaphore)
            return [Take(semaphore, len(incoming))]
        for inbox in incoming:
            self._match(inbox, self._connection(inbox))
        return [Take(self._connection(inbox), 1) for inbox in incoming]

    def _is_ordered(self, inbox: Inbox) -> bool:
        return len({turn.block for turn, _ in self._senders[inbox]}) <= 1 and len(self._waiters[inbox]) == 1

    def _match(self, inbox: Inbox, semaphore: int) -> None:
        """Match this wait with the next signal of the connection."""
        number, senders = self._matched[inbox], self._senders[inbox]
        self._matched[inbox] += 1
        if number < len(senders):
            self.gives[senders[number]] = semaphore

    def _connection(self, inbox: Inbox) -> int:
        if inbox not in self._of_connection:
            self._of_connection[inbox] = self.semaphores.new(inbox[0])
        return self._of_connection[inbox]


def inboxes(gpu: KernelGpu, connections: tuple[int, ...]) -> list[Inbox]:
    """Return the inboxes of a GPU's connections."""
    ends = [gpu.connections[number] for number in connections]
    return [(gpu.rank, end.kind, end.peer, end.pair) for end in ends]


class Barriers:
    """``semaphores[rank, barrier][block]``: two alternating semaphores for each thread block.

    MSCCL++ counts arrivals in device memory, and all blocks poll the count until it is complete (DeviceSyncer,
    include/mscclpp/concurrency_device.hpp @0526df5: alternating counters). Here each block signals all others.
    """

    def __init__(self, plan: KernelPlan, semaphores: Semaphores) -> None:
        self.semaphores: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        for gpu in plan.gpus:
            for number, (blocks, sizes) in self._members(gpu).items():
                if sizes != {len(blocks)}:
                    raise plan.fault(
                        f"thread blocks {sorted(blocks)} meet at barrier {number}, which is for "
                        f"{' or '.join(map(str, sorted(sizes)))}: each barrier must always have the same blocks",
                        f"gpus[{gpu.rank}]",
                    )
                if len(blocks) > 1:
                    pairs = {block: (semaphores.new(gpu.rank), semaphores.new(gpu.rank)) for block in sorted(blocks)}
                    self.semaphores[gpu.rank, number] = pairs

    def _members(self, gpu: KernelGpu) -> dict[int, tuple[set[int], set[int]]]:
        """Return barrier -> (its thread blocks, the block counts that its operations state)."""
        members: dict[int, tuple[set[int], set[int]]] = {}
        for block in gpu.blocks:
            for op in block.operations:
                for body in (op, *op.operations):
                    if body.action == BARRIER:
                        blocks, sizes = members.setdefault(body.barrier, (set(), set()))
                        blocks.add(block.id)
                        sizes.add(body.num_blocks)
        return members


class Dependencies:
    """``takes[turn]``: a step's first acquire. ``gives[rank, block, number]``: semaphores of the dependent steps."""

    def __init__(self, blocks: list[list[LoweredStep]], semaphores: Semaphores) -> None:
        self.takes: dict[Turn, Take] = {}
        self.gives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for b, steps in enumerate(blocks):
            for s, step in enumerate(steps):
                dependencies = [d for d in step.op.dependencies if d[0] != step.block.id]
                if dependencies:
                    semaphore = semaphores.new(step.gpu.rank)
                    self.takes[Turn(b, s)] = Take(semaphore, len(dependencies))
                    for dependency in dependencies:
                        self.gives[step.gpu.rank, *dependency].append(semaphore)


@dataclass(slots=True)
class _Ranges:
    """Packet ranges of one rank, with the operands that access them; ``loose``: cannot be flagged."""

    keys: list[OperandKey] = field(default_factory=list)
    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    loose: list[bool] = field(default_factory=list)

    def add(self, key: OperandKey, low: int, length: int, loose: bool) -> None:
        if length:
            self.keys.append(key)
            self.lows.append(low)
            self.highs.append(low + length)
            self.loose.append(loose)


class Packets:
    """``flagged_*``: reads and writes of flagged lines. ``takes[read]``, ``gives[write]``: semaphores of gated ones."""

    def __init__(
        self, plan: KernelPlan, layout: ChunkLayout, blocks: list[list[LoweredStep]], semaphores: Semaphores
    ) -> None:
        self.plan, self.layout, self.blocks = plan, layout, blocks
        self.flagged_reads: set[OperandKey] = set()
        self.flagged_writes: set[OperandKey] = set()
        self.takes: dict[OperandKey, Take] = {}
        self.gives: dict[OperandKey, list[int]] = defaultdict(list)
        reads = [_Ranges() for _ in plan.gpus]
        writes = [_Ranges() for _ in plan.gpus]
        for b, steps in enumerate(blocks):
            for s, step in enumerate(steps):
                self._collect(Turn(b, s), step, reads, writes)
        for rank in range(plan.num_ranks):
            self._decide(rank, reads[rank], writes[rank], semaphores)

    @property
    def gated(self) -> bool:
        return bool(self.takes)

    def _collect(self, turn: Turn, step: LoweredStep, reads: list[_Ranges], writes: list[_Ranges]) -> None:
        for number, operand in enumerate(step.op.sources):
            if operand.packet and operand.polls:
                reads[operand.rank].add((turn, number), *self._range(step, operand), False)
        for number, operand in enumerate(step.op.targets):
            if operand.packet:
                writes[operand.rank].add((turn, number), *self._range(step, operand), operand.via == PORT)

    def _range(self, step: LoweredStep, operand: KernelOperand) -> tuple[int, int]:
        return data_range(self.plan, self.layout, step, operand)[1:]

    def _decide(self, rank: int, reads: _Ranges, writes: _Ranges, semaphores: Semaphores) -> None:
        if not reads.keys:
            return
        cuts = np.unique(np.array(reads.lows + reads.highs + writes.lows + writes.highs, dtype=np.int64))
        read_ends, write_ends = _ends(reads, cuts), _ends(writes, cuts)
        num_reads, num_writes = _covered(read_ends, len(cuts)), _covered(write_ends, len(cuts))
        self._check_written(rank, reads, _touches(read_ends, num_writes == 0))
        is_polled = _touches(write_ends, num_reads > 0)
        loose_reads = np.array(reads.loose, dtype=np.bool_)
        loose_writes = np.array(writes.loose, dtype=np.bool_) | (is_polled & _touches(write_ends, num_reads == 0))
        num_loose = -1
        while num_loose != (num_loose := int(loose_reads.sum() + loose_writes.sum())):
            loose_coverage = _covered(read_ends[loose_reads], len(cuts)) + _covered(write_ends[loose_writes], len(cuts))
            bad = (num_reads > 0) & ((num_reads > 1) | (num_writes > 1) | (loose_coverage > 0))
            loose_reads |= _touches(read_ends, bad)
            loose_writes |= _touches(write_ends, bad)
        self.flagged_reads.update(key for key, loose in zip(reads.keys, loose_reads, strict=True) if not loose)
        is_flagged = is_polled & ~loose_writes
        self.flagged_writes.update(key for key, flag in zip(writes.keys, is_flagged, strict=True) if flag)
        self._gate(rank, reads, writes, loose_reads, semaphores)

    def _check_written(self, rank: int, reads: _Ranges, is_unwritten: Bool) -> None:
        if is_unwritten.any():
            turn, _ = reads.keys[int(is_unwritten.argmax())]
            raise self.plan.fault(
                f"thread block {self.blocks[turn.block][turn.step].block.id} of GPU {rank} polls packets that nobody "
                f"writes, in {self.blocks[turn.block][turn.step].label!r}"
            )

    def _gate(self, rank: int, reads: _Ranges, writes: _Ranges, loose: Bool, semaphores: Semaphores) -> None:
        """Give each loose read a semaphore that every writer to its range releases."""
        lows, highs = np.array(writes.lows, dtype=np.int64), np.array(writes.highs, dtype=np.int64)
        for number in np.flatnonzero(loose).tolist():
            writers = np.flatnonzero((lows < reads.highs[number]) & (highs > reads.lows[number])).tolist()
            semaphore = semaphores.new(rank)
            self.takes[reads.keys[number]] = Take(semaphore, len(writers))
            for writer in writers:
                self.gives[writes.keys[writer]].append(semaphore)


def _ends(ranges: _Ranges, cuts: Int64) -> Int64:
    """Return int64[n, 2]: first and end (exclusive) segment of each range; segments lie between cuts."""
    return np.stack([np.searchsorted(cuts, ranges.lows), np.searchsorted(cuts, ranges.highs)], axis=1)


def _covered(ends: Int64, num_cuts: int) -> Int64:
    """Return the number of ranges that cover each segment."""
    change = np.zeros(num_cuts + 1, dtype=np.int64)
    np.add.at(change, ends[:, 0], 1)
    np.add.at(change, ends[:, 1], -1)
    return np.cumsum(change)[: num_cuts - 1]


def _touches(ends: Int64, segments: Bool) -> Bool:
    """Return whether each range contains one of these segments."""
    counts = pointers(segments)
    return np.asarray(counts[ends[:, 1]] > counts[ends[:, 0]])
