"""Does the replayed allocator match a slow one that keeps a plain list of each segment's pieces?"""

from __future__ import annotations

import random

import numpy as np
import pytest

import trine.results.peaks
from trine.graph.memory import BLOCKS_PER_STREAM
from trine.results._replay import FIRST_PIECES
from trine.results.allocator import RESIDENT, CachingAllocator, LateBlocks, peak_of
from trine.results.peaks import peak_of_columns

KIB, MIB = 2**10, 2**20
#: Sizes around each limit of the allocator.
SIZES = [
    *(1, 511, 512, 513, 100 * KIB, MIB - 1, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB - 513, 10 * MIB - 512),
    *(10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 18 * MIB, 19 * MIB, 19 * MIB + 512, 20 * MIB, 20 * MIB + 1, 41 * MIB),
]


class Twin:
    """Slow allocator; ``segments`` in order of reservation: (pool, [[size, block or None], ...])."""

    def __init__(self, rounding: int) -> None:
        self.rounding, self.segments = rounding, list[tuple[tuple[int, bool], list[list[int | None]]]]()
        self.held: list[tuple[int, int]] = []

    def take(self, block: int, size: int) -> None:
        size = max(self.rounding, (size + self.rounding - 1) // self.rounding * self.rounding)
        is_small = size <= MIB
        pool = 0 if block >= RESIDENT else block // BLOCKS_PER_STREAM, is_small
        free = [
            (piece[0], number, place)
            for number, (of, pieces) in enumerate(self.segments)
            for place, piece in enumerate(pieces)
            if of == pool and piece[1] is None and piece[0] >= size
        ]
        if free:
            whole, number, place = min(free)
        else:
            whole = (
                2 * MIB if is_small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            )
            self.segments.append((pool, [[whole, None]]))
            number, place = len(self.segments) - 1, 0
        left = whole - size
        is_split = left >= self.rounding if is_small else left > MIB
        self.segments[number][1][place : place + 1] = [[size, block], [left, None]] if is_split else [[whole, block]]

    def drop(self, block: int) -> None:
        for number, (pool, pieces) in enumerate(self.segments):
            joined = list[list[int | None]]()
            for size, owner in pieces:
                owner = None if owner == block else owner
                if joined and owner is None and joined[-1][1] is None:
                    joined[-1][0] += size
                else:
                    joined.append([size, owner])
            self.segments[number] = pool, joined

    def advance(self, now: int) -> None:
        for until, block in sorted(self.held):
            if until <= now:
                self.held.remove((until, block))
                self.drop(block)

    @property
    def pieces(self) -> list[list[tuple[int, int]]]:
        return [[(size, -1 if block is None else block) for size, block in pieces] for _, pieces in self.segments]

    @property
    def allocated(self) -> int:
        waiting = {block for _, block in self.held}
        return sum(size for own in self.pieces for size, block in own if block >= 0 and block not in waiting)

    @property
    def reserved(self) -> int:
        return sum(size for own in self.pieces for size, _ in own)


@pytest.mark.parametrize("rounding", [512, 2 * MIB])
@pytest.mark.parametrize("seed", range(8))
def test_every_block_is_where_the_slow_one_puts_it(seed: int, rounding: int) -> None:
    draw, allocator, twin = random.Random(seed), CachingAllocator(rounding=rounding), Twin(rounding)
    alive, number, peak = list[int](), 0, 0
    for now in range(90):
        allocator.advance(now)
        twin.advance(now)
        if alive and draw.random() < 0.48:
            block = alive.pop(draw.randrange(len(alive)))
            if draw.random() < 0.3:
                until = now + draw.randrange(1, 20)
                allocator.hold(block, until)
                twin.held.append((until, block))
            else:
                gone = allocator.give(block)
                assert gone.size in {size for own in twin.pieces for size, owner in own if owner == block}
                twin.drop(block)
        else:
            number += 1
            block = number + draw.choice((0, 0, 0, 1)) * BLOCKS_PER_STREAM
            size = draw.choice(SIZES)
            before = len(twin.segments)
            made = allocator.take(block, size)
            twin.take(block, size)
            assert (made is not None) == (len(twin.segments) > before)
            alive.append(block)
        peak = max(peak, twin.allocated)
        found = [[(piece.size, piece.block) for piece in allocator.blocks_of(one)] for one in allocator.segments]
        assert found == twin.pieces
        assert (allocator.allocated, allocator.reserved) == (twin.allocated, twin.reserved)
        assert allocator.peak_allocated == peak
    assert [(one.stream, one.is_small) for one in allocator.segments] == [pool for pool, _ in twin.segments]
    ends = [one.address + one.size for one in allocator.segments]
    assert [one.address for one in allocator.segments[1:]] == ends[:-1]


def replayed(rows, resident, late, times):
    """Return the result of :func:`peak_of` from the twin, which is inspected in full after each change."""
    twin = Twin(512)
    for number, size in enumerate(resident):
        first = size - (late.size_bytes if late is not None and late.category == number else 0)
        if first:
            twin.take(RESIDENT + number, first)
    rounds = [rows]
    if late is not None:
        rounds.insert(0, [*rows, None])
    for part in rounds:
        held, peak = list(resident), (twin.allocated, tuple(resident), -1)
        for i, row in enumerate(part):
            if row is None:
                twin.advance(max(times, default=0))
                for number in range(late.count):
                    twin.take(RESIDENT + 10 + number, -(-late.size_bytes // late.count))
                continue
            size, category, block = row
            held[category] += size
            if size > 0:
                twin.advance(times[i] if times else 0)
                twin.take(block, size)
            elif times and times[i]:
                twin.held.append((times[i], block))
            else:
                twin.drop(block)
            if twin.allocated > peak[0]:
                peak = twin.allocated, tuple(held), i
    return peak[0], twin.reserved, peak[1], peak[2]


@pytest.mark.parametrize("has_late", [False, True])
@pytest.mark.parametrize("has_times", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_peak_is_that_of_the_slow_one(
    seed: int, has_times: bool, has_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    rows, times, alive = list[tuple[int, int, int]](), list[int](), list[tuple[int, int, int]]()
    for number in range(60):
        if alive and draw.random() < 0.5:
            size, category, block = alive.pop(draw.randrange(len(alive)))
            rows.append((-size, category, block))
            times.append(draw.choice((0, number + draw.randrange(9))))
        else:
            rows.append((draw.choice(SIZES), draw.randrange(3), number))
            alive.append(rows[-1])
            times.append(number)
    rows += [(-size, category, block) for size, category, block in alive]
    times += [0] * len(alive)
    late = LateBlocks(1, 50 * MIB + 3, 4) if has_late else None
    resident, when = (30 * MIB, 80 * MIB, 0), times if has_times else ()
    found = peak_of(rows, resident, late=late, times=when)
    expected = replayed(rows, resident, late, when)
    assert (found.allocated_bytes, found.reserved_bytes, found.held, found.index) == expected
    columns = tuple(np.array(column, np.int64) for column in zip(*rows, strict=True))
    monkeypatch.setattr(trine.results.peaks, "MANY", 0)
    assert peak_of_columns(columns, resident, 512, late, np.array(when, np.int64) if has_times else None) == found


def test_many_changes_have_the_same_peak_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """More pieces at once than the compiled replay begins with, on two streams, with holds and bytes of no block."""
    draw, rows, times, alive = random.Random(5), [], [], []
    for number in range(12_000):
        if alive and draw.random() < 0.2:
            size, category, block = alive.pop(draw.randrange(len(alive)))
            rows.append((-size, category, block))
            times.append(draw.choice((0, 0, number + draw.randrange(50))))
        else:
            block = number + draw.choice((0, 0, BLOCKS_PER_STREAM)) if draw.random() < 0.99 else -1
            rows.append((draw.choice(SIZES) + draw.randrange(3) * MIB, draw.randrange(3), block))
            times.append(number)
            alive += [rows[-1]] if block >= 0 else []
    columns = tuple(np.array(column, np.int64) for column in zip(*rows, strict=True))
    expected = peak_of(rows, (3 * MIB, 0, 7), times=times)
    assert len(alive) > FIRST_PIECES
    assert peak_of_columns(columns, (3 * MIB, 0, 7), times=np.array(times, np.int64)) == expected
    monkeypatch.setattr(trine.results.peaks, "MANY", 10**9)
    assert peak_of_columns(columns, (3 * MIB, 0, 7), times=np.array(times, np.int64)) == expected


def test_bytes_of_no_block_are_allocated_beside_the_blocks_and_reserve_nothing() -> None:
    rows = [(4 * MIB, 0, 1), (8 * MIB, 1, -1), (4 * MIB, 0, 2), (-8 * MIB, 1, -1), (7 * MIB, 1, -1)]
    found = peak_of(rows, (0, 0))
    assert (found.allocated_bytes, found.reserved_bytes) == (16 * MIB, 16 * MIB)
    assert (found.held, found.index) == ((8 * MIB, 8 * MIB), 2)
