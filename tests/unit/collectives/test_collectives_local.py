"""Are false symmetries found, is the cost independent of the group size, and are invalid requests rejected?"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from cpu_time import computes_for_less_than

from trine.collectives import local_structures, make_schedule, rank_sends
from trine.collectives.expand import expand
from trine.collectives.schedule import Schedule, Sends, moved, opposite, symmetry_of
from trine.collectives.sends import SendList
from trine.errors import InputError
from trine.testing.schedule_proof import check_local, check_schedule


def counted(schedule: Schedule) -> tuple[Schedule, list[int]]:
    """Return the schedule and a list that records every position whose sends are requested."""
    asked: list[int] = []

    def sends_of(position: int, *shape: int) -> Sends:
        asked.append(position)
        return schedule.sends_of(position, *shape)

    return dataclasses.replace(schedule, sends_of=sends_of), asked


def with_sends(schedule: Schedule, change: Callable[[Sends, int], Sends]) -> Schedule:
    def sends_of(position: int, *shape: int) -> Sends:
        return change(schedule.sends_of(position, *shape), position)

    return dataclasses.replace(schedule, sends_of=sends_of)


# -- a ring, by hand ---------------------------------------------------------------------------------------------------


def test_a_ring_of_three() -> None:
    """Reduce-scatter in 2 steps: send 1 forwards the data from the previous rank's send 0."""
    one = rank_sends(make_schedule("reduce_scatter", 3, 30), 1)
    assert one.peers.tolist() == [2, 0]
    assert one.receiver.tolist() == [0, 0]
    assert one.step.tolist() == [0, 1]
    assert one.size_bytes.tolist() == [10, 10]
    assert one.entry_src.tolist() == [True, False]
    assert one.entry_dst.tolist() == [True, False]
    assert one.predecessor_ptr.tolist() == [0, 0, 2]
    assert list(zip(one.predecessor_who, one.predecessor_number, strict=True)) == [(-1, 0), (1, 0)]
    assert list(zip(one.completion_who, one.completion_number, strict=True)) == [(-1, 1), (1, 1)]


def test_arrays_are_shared_between_positions_and_sizes() -> None:
    one, other = (
        rank_sends(make_schedule("all_reduce", 64, 10**6), 3),
        rank_sends(make_schedule("all_reduce", 64, 64), 9),
    )
    assert one.predecessor_who is other.predecessor_who
    assert one.structure_key != other.structure_key
    assert one.structure_key == rank_sends(make_schedule("all_reduce", 64, 10**6), 9).structure_key


def test_a_switch_sends_too() -> None:
    schedule = make_schedule("all_reduce", 4, 4096, "nvls:1")
    switch = rank_sends(schedule, 4)
    assert sorted(switch.peers.tolist()) == [0, 1, 2, 3]
    assert not switch.entry_src.any()
    assert not len(switch.completion_who)
    assert 4 in rank_sends(schedule, 0).peers


# -- cost --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "algorithm", "asked"),
    [
        ("all_reduce", "ring", {0}),
        ("all_reduce", "direct", {0}),
        ("all_to_all", "direct", {0}),
        ("all_reduce", "halving-doubling", {0, 1, 2, 4, 8, 16, 32}),
        # Seven other members of its group, and its predecessor on the ring between groups.
        ("all_reduce", "hierarchical:8x8", {0, 1, 2, 3, 4, 5, 6, 7, 56}),
        # Rounds of distance 1, 2, ..., 16; data from the last one is not forwarded.
        ("all_to_all", "bruck", {0, 63, 62, 60, 56, 48}),
    ],
)
def test_only_senders_to_position_0_are_asked(kind: str, algorithm: str, asked: set[int]) -> None:
    schedule, seen = counted(make_schedule(kind, 64, 10**6, algorithm))
    local_structures(schedule)
    assert set(seen) == asked
    assert len(seen) == len(asked)
    rank_sends(schedule, 63)
    local_structures(dataclasses.replace(schedule, chunk_bytes=7, size_bytes=448))
    assert len(seen) == len(asked)


@pytest.mark.parametrize(("algorithm", "num_sends"), [("ring", 65_534), ("hierarchical:4096x8", 8_204)])
def test_many_ranks(algorithm: str, num_sends: int) -> None:
    """0.08 and 0.05 s on the author's machine; all positions of the ring would have 2 billion sends."""
    schedule = make_schedule("all_reduce", 32_768, 2**30, algorithm)
    with computes_for_less_than(2):
        structures = local_structures(schedule)
    assert [one.num_sends for one in structures.structures] == [num_sends]
    peers = structures.peers_of(range(32_768))
    assert (peers[7] == rank_sends(schedule, 7).peers).all()
    # In each role, every rank is the peer of exactly one rank.
    assert all(len(set(role.tolist())) == 32_768 for role in peers.T)


# -- false symmetries --------------------------------------------------------------------------------------------------


def test_a_tree_is_not_symmetric() -> None:
    schedule = dataclasses.replace(make_schedule("all_reduce", 8, 800, "tree"), symmetry=(8,))
    with pytest.raises(InputError, match="symmetry"):
        check_schedule(schedule)


@pytest.mark.parametrize(
    ("kind", "algorithm", "symmetry"),
    [
        ("all_reduce", "halving-doubling", (8,)),
        ("all_reduce", "halving-doubling", (4, 2)),
        ("all_reduce", "hierarchical:4x2", (8,)),
        ("all_reduce", "hierarchical:4x2", (4, 2)),
        ("all_reduce", "hierarchical:2x4:inner=halving-doubling", (4, 2)),
        ("all_reduce", "hierarchical:2x4", (2, 2, 2)),
        ("all_to_all", "hierarchical:4x2", (4, 2)),
        ("all_to_all", "direct", (4, 2)),
        ("all_to_all", "bruck", (2, 2, 2)),
    ],
)
def test_other_digits_are_found(kind: str, algorithm: str, symmetry: tuple[int, ...]) -> None:
    good = make_schedule(kind, 8, 800, algorithm)
    check_schedule(good)
    with pytest.raises(InputError, match=re.escape(str(symmetry))):
        check_schedule(dataclasses.replace(good, symmetry=symmetry))


def test_one_other_rank_is_found() -> None:
    """Rank 3 sends in another order: the data stays right, but other ranks wait for different sends of rank 3."""

    def change(sends: Sends, position: int) -> Sends:
        if position != 3:
            return sends
        columns = {field.name: getattr(sends, field.name) for field in dataclasses.fields(Sends)}
        return Sends(**{name: None if column is None else column[::-1] for name, column in columns.items()})

    broken = with_sends(make_schedule("all_to_all", 5, 100), change)
    check_schedule(dataclasses.replace(broken, symmetry=None))
    with pytest.raises(
        InputError, match=r"direct all_to_all of 5 ranks: with symmetry \(5,\), the completion of rank 0"
    ):
        check_schedule(broken)


def test_chunks_that_do_not_follow_are_found() -> None:
    """All ranks' sends have the same shape, but their chunks do not follow the symmetry."""

    def sends_of(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        sends = SendList()
        sends.add_all([0, 1], (position + 1) % num_ranks, [position, (position - (position % 2)) % num_ranks])
        return sends.build()

    ring = make_schedule("all_gather", 4, 40)
    claimed = dataclasses.replace(ring, sends_of=sends_of, shift_symmetric=False, symmetry=(4,))
    with pytest.raises(InputError, match=r"with symmetry \(4,\), the (number of )?predecessors of rank"):
        check_local(claimed, expand(dataclasses.replace(claimed, symmetry=None)))


def test_authors_of_algorithms_are_told() -> None:
    from trine.testing import check_collective

    def claims_too_much(num_ranks: int, size_bytes: int, root: int) -> Schedule:
        good = make_schedule("all_reduce", num_ranks, size_bytes, "halving-doubling")
        return dataclasses.replace(good, symmetry=(num_ranks,))

    with pytest.raises(AssertionError, match=r"of 3 ranks, 0 bytes: .* symmetry \(3,\)"):
        check_collective("all_reduce", claims_too_much)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"symmetry": (3, 2)}, r"symmetry: the digits \(3, 2\) are 6 positions, not 8 ranks"),
        ({"symmetry": (-8, -1)}, "fewer than 1 value"),
        ({"shift_symmetric": True}, "states both symmetry and shift_symmetric"),
        ({"num_switches": 1}, "this schedule has switches"),
    ],
)
def test_contradictions_are_refused(change: dict[str, object], message: str) -> None:
    schedule = dataclasses.replace(make_schedule("all_to_all", 8, 800), **change)
    with pytest.raises(InputError, match=message):
        local_structures(schedule)


def test_wrong_questions_are_refused() -> None:
    schedule = make_schedule("broadcast", 5, 100, "tree", 0)
    with pytest.raises(InputError, match="positions are from 0 to 4, got 5"):
        rank_sends(schedule, 5)
    with pytest.raises(InputError, match="positions are from 0 to 4, got -1"):
        rank_sends(schedule, -1)
    structures = local_structures(schedule)
    with pytest.raises(InputError, match="of one structure only"):
        structures.peers_of([0, 4])
    with pytest.raises(InputError, match="positions are from 0 to 4, got 3 to 5"):
        structures.peers_of([3, 5])
    assert structures.peers_of([]).shape[0] == 0


def test_more_chunks_than_can_be_numbered_are_refused() -> None:
    """An all_to_all has one chunk per pair of ranks, numbered in 32 bits."""
    assert len(local_structures(make_schedule("all_to_all", 46_340, 46_340)).structures) == 1
    with pytest.raises(InputError, match="cannot have 2,147,488,281 chunks: take fewer ranks"):
        local_structures(make_schedule("all_to_all", 46_341, 46_341))


# -- digits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", [(), (7,), (2, 2, 2), (3, 4), (4, 1, 3)], ids=str)
def test_digits_are_a_group(symmetry: tuple[int, ...]) -> None:
    everyone = np.arange(int(np.prod(symmetry, dtype=np.int64)))
    table = moved(everyone[:, None], everyone, symmetry)
    assert all(sorted(row) == everyone.tolist() for row in table.tolist())
    assert (table == table.T).all()
    assert (table[0] == everyone).all()
    assert (moved(everyone, opposite(everyone, symmetry), symmetry) == 0).all()
    digits = np.array(np.unravel_index(everyone, symmetry[::-1]))[::-1] if symmetry else np.zeros((0, 1), np.int64)
    for i, values in enumerate(symmetry):
        assert (digits[i][table] == (digits[i][:, None] + digits[i]) % values).all()


def test_one_rank_is_symmetric() -> None:
    assert symmetry_of(make_schedule("all_reduce", 1, 100, "tree")) == (1,)
    assert rank_sends(make_schedule("all_reduce", 1, 100), 0).num_sends == 0
