"""A replay of PyTorch's caching allocator: the bytes that blocks occupy, and the bytes reserved for them.

After c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.x, native backend, no expandable segments, no limit on splits). Each
stream reuses the blocks that it allocated; a block's number encodes its stream (:func:`trine.graph.memory.stream_of`).
Blocks are multiples of 512 B. Blocks of at most 1 MiB come from 2 MiB segments, larger ones below 10 MiB from 20 MiB
segments; each larger block gets a segment rounded up to 2 MiB. Allocation is best fit: it takes the smallest free block
that is large enough, and splits it if the remainder is large enough. Adjacent free blocks are merged. Segments are
never released: PyTorch's cache flush after a failed allocation is not modelled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trine.graph.memory import stream_of

MIB = 2**20
ROUNDING = 512
SMALL_SIZE, SMALL_SEGMENT = MIB, 2 * MIB
LARGE_SIZE, LARGE_SEGMENT, LARGE_ROUNDING = 10 * MIB, 20 * MIB, 2 * MIB
_BASE = 0x7F0000000000
#: Block numbers from here on belong to blocks that live for the whole program.
RESIDENT = 2**60


@dataclass(slots=True, eq=False)
class Piece:
    """Consecutive bytes of a segment: address, size, segment number, and the block that occupies them (-1: free).

    free: size, address and piece of each free piece that its block's stream may reuse, sorted.
    """

    address: int
    size: int
    segment: int
    free: list[tuple[Any, ...]]
    block: int = -1
    before: Piece | None = None
    after: Piece | None = None


@dataclass(slots=True)
class Segment:
    """Memory from one driver allocation. first: its first piece; pool: encodes its stream and small or large blocks."""

    address: int
    size: int
    pool: int
    first: Piece

    @property
    def is_small(self) -> bool:
        return self.pool % 2 == 1

    @property
    def stream(self) -> int:
        return self.pool // 2


@dataclass(slots=True)
class CachingAllocator:
    """State of the allocator. allocated, reserved: current bytes; peak_allocated: running maximum."""

    rounding: int = ROUNDING
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    segments: list[Segment] = field(default_factory=list)
    pieces: dict[int, Piece] = field(default_factory=dict)  # by block
    _free: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)  # by pool
    held_blocks: list[tuple[int, int]] = field(default_factory=list)  # time and block

    def take(self, block: int, size: int) -> Segment | None:
        """Allocate ``size`` bytes as ``block``. Returns the newly reserved segment, or None if none was needed."""
        rounding, reserved = self.rounding, None
        size = -(-size // rounding) * rounding or rounding
        is_small = size <= SMALL_SIZE
        pool = 2 * stream_of(block) + is_small
        free = self._free.get(pool)
        if free is None:
            free = self._free[pool] = []
        index = bisect_left(free, (size,))
        if index < len(free):
            piece = free.pop(index)[2]
        else:
            reserved = self._reserve(size, pool)
            piece = reserved.first
        remaining = piece.size - size
        if (remaining >= rounding) if is_small else (remaining > SMALL_SIZE):
            after = piece.after
            remainder = Piece(piece.address + size, remaining, piece.segment, free, -1, piece, after)
            if after is not None:
                after.before = remainder
            piece.after, piece.size = remainder, size
            insort(free, (remaining, remainder.address, remainder))
        piece.block = block
        self.pieces[block] = piece
        self.allocated += piece.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return reserved

    def give(self, block: int) -> Piece:
        """Free ``block``, and return the piece that it occupied."""
        piece = self.pieces[block]
        freed = Piece(piece.address, piece.size, piece.segment, piece.free)
        self.drop(block)
        return freed

    def hold(self, block: int, until: int) -> None:
        """Free ``block``, in use by a collective until ``until``: not allocated any more, but not yet reusable."""
        self.allocated -= self.pieces[block].size
        insort(self.held_blocks, (until, block))

    def advance(self, now: int) -> None:
        """Free the blocks whose collectives have ended."""
        while self.held_blocks and self.held_blocks[0][0] <= now:
            _, block = self.held_blocks.pop(0)
            self.allocated += self.pieces[block].size
            self.drop(block)

    def drop(self, block: int) -> None:
        """Free ``block``."""
        piece = self.pieces.pop(block)
        self.allocated -= piece.size
        piece.block = -1
        free, before, after = piece.free, piece.before, piece.after
        if after is not None and after.block < 0:
            del free[bisect_left(free, (after.size, after.address))]
            _merge(piece, after)
        if before is not None and before.block < 0:
            del free[bisect_left(free, (before.size, before.address))]
            _merge(before, piece)
            piece = before
        insort(free, (piece.size, piece.address, piece))

    def _reserve(self, size: int, pool: int) -> Segment:
        segment_size = SMALL_SEGMENT if pool % 2 else LARGE_SEGMENT
        if size >= LARGE_SIZE:
            segment_size = -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        last = self.segments[-1] if self.segments else None
        address = _BASE if last is None else last.address + last.size
        segment = Segment(
            address, segment_size, pool, Piece(address, segment_size, len(self.segments), self._free[pool])
        )
        self.segments.append(segment)
        self.reserved += segment_size
        return segment

    def blocks_of(self, segment: Segment) -> Iterator[Piece]:
        """Yield the pieces of a segment, by address."""
        piece: Piece | None = segment.first
        while piece is not None:
            yield piece
            piece = piece.after


def _merge(piece: Piece, after: Piece) -> None:
    """Add the next piece of the segment to ``piece``."""
    piece.size += after.size
    piece.after = after.after
    if after.after is not None:
        after.after.before = piece


@dataclass(frozen=True, slots=True)
class ReplayedPeak:
    """Peak memory of the blocks. held: bytes by category at the peak, as requested. index: the change that reached it
    (-1: the resident blocks alone)."""

    allocated_bytes: int
    reserved_bytes: int
    held: tuple[int, ...]
    index: int


@dataclass(frozen=True, slots=True)
class LateBlocks:
    """Resident bytes of a category that are allocated only after the first step, in ``count`` blocks."""

    category: int
    size_bytes: int
    count: int


def peak_of(
    changes: Iterable[tuple[int, int, int]], resident: Sequence[int], rounding: int = ROUNDING,
    late: LateBlocks | None = None, times: Sequence[int] = (),
) -> ReplayedPeak:  # fmt: skip
    """Replay ``changes`` (bytes, negative when freed; category; block number) in program order.

    resident: bytes of each category that are allocated first and stay. late: the part of them that is allocated after a
    first step, from the blocks free by then; the step is then replayed once more. Bytes outside any block (-1, such as
    offloaded activations) add to the allocated bytes; reserved then equals allocated.
    times: one per change, if collectives hold blocks: the time of an allocation, or the end of the hold of a freed
    block.
    """
    rows, allocator = list(changes), CachingAllocator(rounding=rounding)
    for i, size in enumerate(resident):
        first = size - late.size_bytes if late is not None and late.category == i else size
        if first > 0:
            allocator.take(RESIDENT + i, first)
    if late is not None and late.size_bytes and late.count:
        _replay(allocator, rows, [0] * len(resident), times)
        allocator.advance(max(times, default=0))
        block_size = -(-late.size_bytes // late.count)
        for number in range(late.count):
            allocator.take(RESIDENT + len(resident) + number, block_size)
    return _replay(allocator, rows, list(resident), times)


def _replay(
    allocator: CachingAllocator, rows: Sequence[tuple[int, int, int]], live_bytes: list[int], times: Sequence[int]
) -> ReplayedPeak:
    peak, peak_live, index, loose, has_all_blocks = allocator.allocated, tuple(live_bytes), -1, 0, True
    take, drop, held = allocator.take, allocator.drop, allocator.held_blocks
    for i, (size, category, block) in enumerate(rows):
        live_bytes[category] += size
        if block < 0:
            loose, has_all_blocks = loose + size, False
        elif size > 0:
            if held and held[0][0] <= times[i]:
                allocator.advance(times[i])
            take(block, size)
        else:
            if times and times[i] > 0:
                allocator.hold(block, times[i])
            else:
                drop(block)
            continue
        if allocator.allocated + loose > peak:
            peak, peak_live, index = allocator.allocated + loose, tuple(live_bytes), i
    return ReplayedPeak(peak, allocator.reserved if has_all_blocks else peak, peak_live, index)
