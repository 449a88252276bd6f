"""Replay of PyTorch's caching allocator: hand-computed rules, and invariants for random requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trine.results.allocator import CachingAllocator, LateBlocks, peak_of

MIB = 2**20


def test_small_blocks_share_segments_of_2_mib() -> None:
    allocator = CachingAllocator()
    for block in range(4):
        allocator.take(block, 512 * 1024)
    assert [segment.size for segment in allocator.segments] == [2 * MIB]
    assert allocator.allocated == 2 * MIB
    allocator.take(4, 1)
    assert allocator.allocated == 2 * MIB + 512
    assert allocator.reserved == 4 * MIB


def test_blocks_below_10_mib_come_from_segments_of_20_mib() -> None:
    allocator = CachingAllocator()
    allocator.take(0, 3 * MIB)
    allocator.take(1, 9 * MIB)
    assert allocator.reserved == 20 * MIB
    allocator.take(2, 9 * MIB)
    assert allocator.reserved == 40 * MIB


def test_large_blocks_have_segments_of_whole_2_mib() -> None:
    allocator = CachingAllocator()
    allocator.take(0, 10 * MIB)
    allocator.take(1, 33 * MIB)
    assert [segment.size for segment in allocator.segments] == [10 * MIB, 34 * MIB]


def test_what_is_freed_serves_the_next_of_its_size_and_neighbours_join() -> None:
    allocator = CachingAllocator()
    allocator.take(0, 64 * MIB)
    allocator.give(0)
    allocator.take(1, 40 * MIB)
    allocator.take(2, 24 * MIB)
    assert allocator.reserved == 64 * MIB
    allocator.give(1)
    allocator.give(2)
    allocator.take(3, 64 * MIB)
    assert allocator.reserved == 64 * MIB


def test_a_remainder_of_at_most_1_mib_is_not_split_off() -> None:
    allocator = CachingAllocator()
    allocator.take(0, 64 * MIB)
    allocator.give(0)
    allocator.take(1, 63 * MIB)
    assert allocator.allocated == 64 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    for block, size in enumerate((128, 64, 32)):
        allocator.take(block, size * MIB)
    for block in range(3):
        allocator.give(block)
    allocator.take(3, 60 * MIB)
    assert allocator.segments[allocator.pieces[3].segment].size == 64 * MIB


def test_peak_names_what_is_held_and_where() -> None:
    peak = peak_of([(10 * MIB, 1, 1), (20 * MIB, 0, 2), (-10 * MIB, 1, 1), (5 * MIB, 1, 3)], (40 * MIB, 0))
    assert peak.allocated_bytes == 70 * MIB
    assert peak.held == (60 * MIB, 10 * MIB)
    assert peak.index == 1
    assert peak_of([], (512, 0)).index == -1


def test_states_that_come_late_take_blocks_that_activations_had() -> None:
    """Two 64 MiB activations: optimizer moments of 96 MiB split their blocks, so the next step reserves new ones."""
    changes = [(64 * MIB, 1, 1), (64 * MIB, 1, 2), (-64 * MIB, 1, 2), (-64 * MIB, 1, 1)]
    before = peak_of(changes, (96 * MIB, 0))
    late = peak_of(changes, (96 * MIB, 0), late=LateBlocks(0, 96 * MIB, 3))
    assert before.reserved_bytes == before.allocated_bytes == 224 * MIB
    assert late.allocated_bytes == 224 * MIB
    assert late.held == before.held
    # Three moments of 32 MiB fill one block and half of the other; two new blocks of 64 MiB follow.
    assert late.reserved_bytes == 256 * MIB


@given(st.lists(st.tuples(st.integers(1, 80 * MIB), st.integers(0, 5)), max_size=40))
def test_pieces_tile_their_segments(asked: list[tuple[int, int]]) -> None:
    """Pieces of a segment are contiguous, free neighbours are merged, and bytes add up."""
    allocator, alive = CachingAllocator(), list[int]()
    for block, (size, victim) in enumerate(asked):
        allocator.take(block, size)
        alive.append(block)
        if victim < 3 and len(alive) > victim:
            allocator.give(alive.pop(victim))
    for segment in allocator.segments:
        at, before_free = segment.address, False
        for piece in allocator.blocks_of(segment):
            assert piece.address == at
            is_free = piece.block < 0
            assert not (is_free and before_free)
            at, before_free = at + piece.size, is_free
        assert at == segment.address + segment.size
    assert allocator.allocated == sum(piece.size for piece in allocator.pieces.values())
    assert set(allocator.pieces) == set(alive)
    assert allocator.reserved >= allocator.peak_allocated >= allocator.allocated
