"""The allocator of ``allocator.py`` for many changes: the same decisions, on arrays.

Pieces are columns of ``pieces``; the free pieces of a pool are a row of ``free``, sorted by size and address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common._jit import Int, inlined, kernel
from trine.common.arrays import Int64
from trine.graph.memory import stream_of
from trine.results.allocator import LARGE_ROUNDING, LARGE_SEGMENT, LARGE_SIZE, SMALL_SEGMENT, SMALL_SIZE

#: Rows of ``pieces``. BLOCK: -1 for a free piece. BEFORE, AFTER: neighbours in the segment, -1 at its ends. SPARE
#: pieces are a list, linked by AFTER.
ADDRESS, SIZE, BEFORE, AFTER, BLOCK, POOL = range(6)
#: Numbers of ``counts``. BLOCKS_HELD: entries of ``held``. NEXT: address behind the last segment.
ALLOCATED, RESERVED, NEXT, PIECES, SPARE, BLOCKS_HELD, PEAK, INDEX = range(8)


class Changes(NamedTuple):
    """Memory changes, in order: int64[n].

    size: bytes, negative if freed. block, stream: numbers from 0; block -1 for none. time: of an allocation, or the end
    of the hold of a freed block (0: none).
    """

    size: Int64
    block: Int64
    stream: Int64
    time: Int64


class State(NamedTuple):
    """The allocator. pieces: int64[6, capacity]; of_block: piece of each block; free: int64[pools, capacity], and the
    number of each row; held: int64[2, changes], end and block; counts: int64[8]."""

    pieces: Int64
    of_block: Int64
    free: Int64
    num_free: Int64
    held: Int64
    counts: Int64


class SegmentSizes(NamedTuple):
    """SegmentSizes of ``allocator.py`` in bytes."""

    rounding: Int
    small: Int
    small_segment: Int
    large: Int
    large_segment: Int
    large_rounding: Int


@inlined
def _position(state: State, pool: Int, size: Int, address: Int) -> Int:
    """Return the position of the first free piece with this size and address, or behind it."""
    low: Int = 0
    high: Int = state.num_free[pool]
    while low < high:
        middle = (low + high) // 2
        piece = state.free[pool, middle]
        found = state.pieces[SIZE, piece]
        if found < size or (found == size and state.pieces[ADDRESS, piece] < address):
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _remove(state: State, pool: Int, position: Int) -> None:
    state.num_free[pool] -= 1
    for i in range(position, state.num_free[pool]):
        state.free[pool, i] = state.free[pool, i + 1]


@inlined
def _insert(state: State, pool: Int, piece: Int) -> None:
    position = _position(state, pool, state.pieces[SIZE, piece], state.pieces[ADDRESS, piece])
    for i in range(state.num_free[pool], position, -1):
        state.free[pool, i] = state.free[pool, i - 1]
    state.free[pool, position] = piece
    state.num_free[pool] += 1
    state.pieces[BLOCK, piece] = -1


@inlined
def _new_piece(state: State, address: Int, size: Int, pool: Int) -> Int:
    """Return a piece without neighbours."""
    piece = state.counts[SPARE]
    if piece >= 0:
        state.counts[SPARE] = state.pieces[AFTER, piece]
    else:
        piece = state.counts[PIECES]
        state.counts[PIECES] += 1
    state.pieces[ADDRESS, piece] = address
    state.pieces[SIZE, piece] = size
    state.pieces[POOL, piece] = pool
    state.pieces[BEFORE, piece] = -1
    state.pieces[AFTER, piece] = -1
    return piece


@inlined
def _merge(state: State, piece: Int, after: Int) -> None:
    """Add the next piece of the segment to ``piece``."""
    behind = state.pieces[AFTER, after]
    state.pieces[SIZE, piece] += state.pieces[SIZE, after]
    state.pieces[AFTER, piece] = behind
    if behind >= 0:
        state.pieces[BEFORE, behind] = piece
    state.pieces[AFTER, after] = state.counts[SPARE]
    state.counts[SPARE] = after


@inlined
def _drop(state: State, piece: Int) -> None:
    """Free a piece, and merge it with free neighbours."""
    pool, after = state.pieces[POOL, piece], state.pieces[AFTER, piece]
    before = state.pieces[BEFORE, piece]
    if after >= 0 and state.pieces[BLOCK, after] < 0:
        _remove(state, pool, _position(state, pool, state.pieces[SIZE, after], state.pieces[ADDRESS, after]))
        _merge(state, piece, after)
    if before >= 0 and state.pieces[BLOCK, before] < 0:
        _remove(state, pool, _position(state, pool, state.pieces[SIZE, before], state.pieces[ADDRESS, before]))
        _merge(state, before, piece)
        piece = before
    _insert(state, pool, piece)


@inlined
def _reserve(state: State, sizes: SegmentSizes, size: Int, pool: Int) -> Int:
    """Return the piece of a new segment."""
    segment = sizes.small_segment if pool % 2 else sizes.large_segment
    if size >= sizes.large:
        segment = (size + sizes.large_rounding - 1) // sizes.large_rounding * sizes.large_rounding
    piece = _new_piece(state, state.counts[NEXT], segment, pool)
    state.counts[NEXT] += segment
    state.counts[RESERVED] += segment
    return piece


@inlined
def _take(state: State, sizes: SegmentSizes, block: Int, size: Int, stream: Int) -> None:
    size = max((size + sizes.rounding - 1) // sizes.rounding, 1) * sizes.rounding
    is_small = size <= sizes.small
    pool = 2 * stream + (1 if is_small else 0)
    position = _position(state, pool, size, 0)
    if position < state.num_free[pool]:
        piece = state.free[pool, position]
        _remove(state, pool, position)
    else:
        piece = _reserve(state, sizes, size, pool)
    remaining = state.pieces[SIZE, piece] - size
    if remaining >= sizes.rounding if is_small else remaining > sizes.small:
        rest = _new_piece(state, state.pieces[ADDRESS, piece] + size, remaining, pool)
        after = state.pieces[AFTER, piece]
        state.pieces[BEFORE, rest], state.pieces[AFTER, rest] = piece, after
        if after >= 0:
            state.pieces[BEFORE, after] = rest
        state.pieces[AFTER, piece], state.pieces[SIZE, piece] = rest, size
        _insert(state, pool, rest)
    state.pieces[BLOCK, piece] = block
    state.of_block[block] = piece
    state.counts[ALLOCATED] += state.pieces[SIZE, piece]


@inlined
def _hold(state: State, block: Int, until: Int) -> None:
    """Keep a freed block until a time; blocks are in order of the time."""
    place = state.counts[BLOCKS_HELD]
    while place > 0 and state.held[0, place - 1] > until:
        state.held[0, place], state.held[1, place] = state.held[0, place - 1], state.held[1, place - 1]
        place -= 1
    state.held[0, place], state.held[1, place] = until, block
    state.counts[BLOCKS_HELD] += 1


@inlined
def _advance(state: State, now: Int) -> None:
    """Drop the blocks whose hold has ended."""
    ended = 0
    while ended < state.counts[BLOCKS_HELD] and state.held[0, ended] <= now:
        _drop(state, state.of_block[state.held[1, ended]])
        ended += 1
    if ended:
        state.counts[BLOCKS_HELD] -= ended
        for i in range(state.counts[BLOCKS_HELD]):
            state.held[0, i], state.held[1, i] = state.held[0, i + ended], state.held[1, i + ended]


@kernel
def replay(changes: Changes, state: State, sizes: SegmentSizes) -> Int:
    """Apply all changes, and note the peak and its index; return whether the pieces were enough.

    Bytes of no block add to the peak.
    """
    counts, loose = state.counts, 0
    counts[PEAK], counts[INDEX] = counts[ALLOCATED], -1
    for i in range(len(changes.size)):
        size, block = changes.size[i], changes.block[i]
        if block < 0:
            loose += size
        elif size > 0:
            _advance(state, changes.time[i])
            if counts[PIECES] + 2 > state.pieces.shape[1]:
                return False
            _take(state, sizes, block, size, changes.stream[i])
        else:
            counts[ALLOCATED] -= state.pieces[SIZE, state.of_block[block]]
            if changes.time[i] > 0:
                _hold(state, block, changes.time[i])
            else:
                _drop(state, state.of_block[block])
            continue
        if counts[ALLOCATED] + loose > counts[PEAK]:
            counts[PEAK], counts[INDEX] = counts[ALLOCATED] + loose, i
    return True


#: Pieces of the first attempt; a replay that needs more begins again with twice the number.
FIRST_PIECES = 4096


def changes_of(
    size: npt.NDArray[np.integer], block: npt.NDArray[np.integer], times: Int64 | None
) -> tuple[Changes, int]:
    """Return the changes of a program, with its blocks numbered from 0, and the number of blocks."""
    numbers, dense = np.unique(np.append(block, -1), return_inverse=True)  # the first number is -1: of no block
    number = dense.ravel()[:-1].astype(np.int64) - 1
    streams = np.append(stream_of(numbers[1:]), 0)
    stream = np.unique(streams, return_inverse=True)[1].ravel().astype(np.int64)
    when = np.zeros(len(size), np.int64) if times is None else times
    return Changes(np.ascontiguousarray(size, np.int64), number, stream[number], when), len(numbers) - 1


def allocations(sizes: Sequence[int], first: int, time: int = 0) -> Changes:
    """Return the allocation of blocks on the first stream at a time; first: the number of the first block."""
    zeros = np.zeros(len(sizes), np.int64)
    return Changes(np.array(sizes, np.int64), first + np.arange(len(sizes)), zeros, zeros + time)


class Replayed(NamedTuple):
    """The end of a replay, in bytes. place: of the change in the last list at which the peak is reached."""

    peak: int
    reserved: int
    place: int


def replayed(parts: Sequence[Changes], rounding: int) -> Replayed:
    """Replay lists of changes, one after the other. rounding: of sizes, in bytes."""
    num_blocks = 1 + max(int(part.block.max(initial=0)) for part in parts)
    num_pools = 2 * (1 + max(int(part.stream.max(initial=0)) for part in parts))
    num_held = 1 + max(int(np.count_nonzero((part.size < 0) & (part.time > 0))) for part in parts)
    sizes = SegmentSizes(rounding, SMALL_SIZE, SMALL_SEGMENT, LARGE_SIZE, LARGE_SEGMENT, LARGE_ROUNDING)
    capacity, is_done = FIRST_PIECES, False
    while not is_done:
        counts = np.zeros(8, np.int64)
        counts[SPARE] = -1
        state = State(
            np.zeros((6, capacity), np.int64), np.full(num_blocks, -1, np.int64),
            np.zeros((num_pools, capacity), np.int64), np.zeros(num_pools, np.int64),
            np.zeros((2, num_held), np.int64), counts,
        )  # fmt: skip
        is_done = all(replay(part, state, sizes) for part in parts)
        capacity *= 2
    return Replayed(int(counts[PEAK]), int(counts[RESERVED]), int(counts[INDEX]))
