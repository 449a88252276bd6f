"""Which packets of a plan are lines with flags, and which need semaphores around them.

A flagged line is taken by the one load that polls it. MSCCL++'s packets can be polled by several thread blocks, or be
written by a proxy (RDMA), whose transfer is not line by line. Those are *gated*: the reader takes a semaphore that all
who write into its range give; their stores and loads are plain. Packets that nobody polls are plain too.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trine.arrays import Bool
from trine.collectives.kernels.lower_memory import Step, data_range
from trine.collectives.kernels.lower_order import Semaphores, Take, Turn
from trine.collectives.mscclpp.layout import Layout
from trine.collectives.mscclpp.plan import PORT, KernelPlan, Operand
from trine.errors import InputError

Ints = npt.NDArray[np.int64]
#: a turn, and the number of the operand among its sources (reads) or targets (writes)
Key = tuple[Turn, int]


@dataclass(slots=True)
class _Ranges:
    """Ranges of packets of one rank, with who touches them; ``loose``: cannot be flagged."""

    keys: list[Key] = field(default_factory=list)
    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    loose: list[bool] = field(default_factory=list)

    def add(self, key: Key, low: int, length: int, loose: bool) -> None:
        if length:
            self.keys.append(key)
            self.lows.append(low)
            self.highs.append(low + length)
            self.loose.append(loose)


class Packets:
    """``flagged``: reads and writes that are flagged lines. ``takes[read]``, ``gives[write]``: gated ones."""

    def __init__(self, plan: KernelPlan, layout: Layout, blocks: list[list[Step]], semaphores: Semaphores) -> None:
        self.plan, self.layout, self.blocks = plan, layout, blocks
        self.flagged_reads: set[Key] = set()
        self.flagged_writes: set[Key] = set()
        self.takes: dict[Key, Take] = {}
        self.gives: dict[Key, list[int]] = defaultdict(list)
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

    def _collect(self, turn: Turn, step: Step, reads: list[_Ranges], writes: list[_Ranges]) -> None:
        for number, operand in enumerate(step.op.sources):
            if operand.packet and operand.polls:
                reads[operand.rank].add((turn, number), *self._range(step, operand), False)
        for number, operand in enumerate(step.op.targets):
            if operand.packet:
                writes[operand.rank].add((turn, number), *self._range(step, operand), operand.via == PORT)

    def _range(self, step: Step, operand: Operand) -> tuple[int, int]:
        return data_range(self.plan, self.layout, step, operand)[1:]

    def _decide(self, rank: int, reads: _Ranges, writes: _Ranges, semaphores: Semaphores) -> None:
        if not reads.keys:
            return
        cuts = np.unique(np.array(reads.lows + reads.highs + writes.lows + writes.highs, dtype=np.int64))
        read_ends, write_ends = _ends(reads, cuts), _ends(writes, cuts)
        polled, written = _covered(read_ends, len(cuts)), _covered(write_ends, len(cuts))
        self._check_written(rank, reads, _touches(read_ends, written == 0))
        waited = _touches(write_ends, polled > 0)
        loose_reads = np.array(reads.loose, dtype=np.bool_)
        loose_writes = np.array(writes.loose, dtype=np.bool_) | (waited & _touches(write_ends, polled == 0))
        found = -1
        while found != (found := int(loose_reads.sum() + loose_writes.sum())):
            near = _covered(read_ends[loose_reads], len(cuts)) + _covered(write_ends[loose_writes], len(cuts))
            bad = (polled > 0) & ((polled > 1) | (written > 1) | (near > 0))
            loose_reads |= _touches(read_ends, bad)
            loose_writes |= _touches(write_ends, bad)
        self.flagged_reads.update(key for key, loose in zip(reads.keys, loose_reads, strict=True) if not loose)
        flagged = waited & ~loose_writes
        self.flagged_writes.update(key for key, flag in zip(writes.keys, flagged, strict=True) if flag)
        self._gate(rank, reads, writes, loose_reads, semaphores)

    def _check_written(self, rank: int, reads: _Ranges, lost: Bool) -> None:
        if lost.any():
            turn, _ = reads.keys[int(lost.argmax())]
            raise InputError(
                f"thread block {self.blocks[turn.block][turn.step].block.id} of GPU {rank} polls packets that nobody "
                f"writes, in {self.blocks[turn.block][turn.step].label!r}",
                file=self.plan.file,
            )

    def _gate(self, rank: int, reads: _Ranges, writes: _Ranges, loose: Bool, semaphores: Semaphores) -> None:
        """Each loose read gets a semaphore that everybody gives who writes into its range."""
        lows, highs = np.array(writes.lows, dtype=np.int64), np.array(writes.highs, dtype=np.int64)
        for number in np.flatnonzero(loose).tolist():
            writers = np.flatnonzero((lows < reads.highs[number]) & (highs > reads.lows[number])).tolist()
            semaphore = semaphores.new(rank)
            self.takes[reads.keys[number]] = Take(semaphore, len(writers))
            for writer in writers:
                self.gives[writes.keys[writer]].append(semaphore)


def _ends(ranges: _Ranges, cuts: Ints) -> Ints:
    """int64[n, 2]: the first segment of each range, and the one behind its last; segments lie between cuts."""
    return np.stack([np.searchsorted(cuts, ranges.lows), np.searchsorted(cuts, ranges.highs)], axis=1)


def _covered(ends: Ints, num_cuts: int) -> Ints:
    """How many ranges each segment lies in."""
    change = np.zeros(num_cuts + 1, dtype=np.int64)
    np.add.at(change, ends[:, 0], 1)
    np.add.at(change, ends[:, 1], -1)
    return np.cumsum(change)[: num_cuts - 1]


def _touches(ends: Ints, segments: Bool) -> Bool:
    """Which ranges have one of these segments."""
    before = np.concatenate([[0], np.cumsum(segments)])
    return np.asarray(before[ends[:, 1]] > before[ends[:, 0]])
