"""Do the sends and waits derived for one position alone match the full expansion of the schedule?"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_runs import CASES, WITH_PARAMETERS, schedule_of

from trine.collectives import make_schedule
from trine.collectives.algorithm import Algorithm
from trine.collectives.expand import expand
from trine.collectives.library_flows import FlowPlan, FlowShape, ListedFlows, RegularFlows, ShiftFlows, StarFlows
from trine.collectives.local import local_structures, rank_sends
from trine.collectives.registry import ALGORITHMS
from trine.collectives.schedule import ROOTED, ExpandedSchedule, RankSends, Schedule, symmetry_of
from trine.collectives.schedules.direct import to_the_next
from trine.collectives.transfers import caps_of

SHAPES = [(2, 2), (2, 4), (4, 2), (3, 4), (4, 4), (1, 6), (6, 1), (2, 8), (3, 3)]
INNER = ("ring", "direct", "halving-doubling", "pat")
#: Algorithms whose ranks behave differently, for all or for some numbers of ranks.


def said(one: RankSends, position: int, all_of: list[np.ndarray]) -> dict[str, object]:
    """Return the sends of ``one`` with global transfer numbers; ``all_of[position]`` lists a position's transfers."""
    whose = [*one.peers.tolist(), position]

    def transfers(who: np.ndarray, number: np.ndarray) -> set[int]:
        found = [int(all_of[whose[w]][k]) for w, k in zip(who, number, strict=True)]
        assert len(set(found)) == len(found)
        return set(found)

    ptr = one.predecessor_ptr
    rows = [slice(ptr[k], ptr[k + 1]) for k in range(one.num_sends)]
    return {
        "receiver": [whose[r] for r in one.receiver],
        "step": one.step.tolist(),
        "size_bytes": one.size_bytes.tolist(),
        "entry_src": one.entry_src.tolist(),
        "entry_dst": one.entry_dst.tolist(),
        "predecessors": [transfers(one.predecessor_who[r], one.predecessor_number[r]) for r in rows],
        "completion": transfers(one.completion_who, one.completion_number),
    }


def expanded_says(whole: ExpandedSchedule, position: int, num_ranks: int) -> dict[str, object]:
    """Return the same sends, read from the full expansion."""
    mine = np.flatnonzero(whole.src == position)
    ptr, idx = whole.predecessor_ptr, whole.predecessor_idx
    ended = whole.completion_ptr[position : position + 2] if position < num_ranks else (0, 0)
    return {
        "receiver": whole.dst[mine].tolist(),
        "step": whole.step[mine].tolist(),
        "size_bytes": whole.size_bytes[mine].tolist(),
        "entry_src": whole.entry_src[mine].tolist(),
        "entry_dst": whole.entry_dst[mine].tolist(),
        "predecessors": [set(idx[ptr[t] : ptr[t + 1]].tolist()) for t in mine],
        "completion": set(whole.completion_idx[ended[0] : ended[1]].tolist()),
    }


def first_uses(one: RankSends) -> list[int]:
    """Return indices into peers in the order of first use, without -1."""
    uses: list[int] = []
    for k in range(one.num_sends):
        uses += [int(one.receiver[k]), *one.predecessor_who[one.predecessor_ptr[k] : one.predecessor_ptr[k + 1]]]
    return list(dict.fromkeys(int(who) for who in [*uses, *one.completion_who] if who >= 0))


def same_arrays(one: RankSends, other: RankSends) -> bool:
    names = (field.name for field in dataclasses.fields(RankSends) if field.name != "peers")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def check_positions(schedule: Schedule) -> None:
    """Check that every position and switch equals the expansion, is canonical, and matches its structure."""
    # Expand without using symmetry.
    whole = expand(dataclasses.replace(schedule, shift_symmetric=False, symmetry=None))
    positions = schedule.num_ranks + schedule.num_switches
    all_of = [np.flatnonzero(whole.src == position) for position in range(positions)]
    structures = local_structures(schedule)
    assert len(structures.structure_of) == positions
    assert len({one.structure_key for one in structures.structures}) == len(structures.structures)
    for position in range(positions):
        one = rank_sends(schedule, position)
        assert said(one, position, all_of) == expanded_says(whole, position, schedule.num_ranks)
        assert first_uses(one) == list(range(len(one.peers)))
        assert len(set(one.peers.tolist())) == len(one.peers)
        shared = structures.structures[structures.structure_of[position]]
        assert same_arrays(one, shared)
        if schedule.chunk_caps is not None:
            assert one.caps.tolist() == caps_of(schedule, whole.chunk[all_of[position]]).tolist()
    for number, shared in enumerate(structures.structures):
        members = np.flatnonzero(structures.structure_of == number)
        table = structures.peers_of(members)
        assert table.dtype == np.int32
        assert table.shape == (len(members), len(shared.peers))
        assert np.array_equal(table[0], shared.peers)
        assert all(
            np.array_equal(row, rank_sends(schedule, int(p)).peers) for p, row in zip(members, table, strict=True)
        )


@pytest.mark.parametrize("case", WITH_PARAMETERS, ids="/".join)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_every_position_of_every_algorithm(case: tuple[str, str], data: st.DataObject) -> None:
    num_ranks = 2 if case[0] == "send_recv" else data.draw(st.integers(1, 17))
    root = data.draw(st.integers(0, num_ranks - 1))
    size_bytes = data.draw(st.sampled_from([0, 1, 1000, 2**18]))
    check_positions(schedule_of(case, num_ranks, size_bytes, root))


@st.composite
def flow_shapes(draw: st.DrawFn) -> tuple[FlowShape, int]:
    """Draw the shape of a library's flows and its number of ranks."""
    kind, rooted = (
        draw(st.sampled_from(["regular", "listed", "shift", "star"])),
        draw(st.sampled_from(["", "from", "to"])),
    )
    if kind == "regular":
        groups, size = draw(st.integers(1, 5)), draw(st.integers(1, 5))
        inner = draw(st.sampled_from(["ring", "direct"]))
        return RegularFlows(groups, size, inner, draw(st.booleans()), rooted), groups * size
    num_ranks = draw(st.integers(2, 12))
    if kind == "shift":
        return ShiftFlows(num_ranks, draw(st.integers(1, num_ranks - 1))), num_ranks
    if kind == "star":
        return StarFlows(rooted or "from"), num_ranks
    rows = [
        tuple((peer, draw(st.integers(1, 2))) for peer in range(num_ranks) if peer != rank and draw(st.booleans()))
        for rank in range(num_ranks)
    ]
    order = tuple(draw(st.permutations(range(num_ranks))))
    return ListedFlows(tuple(rows), order, draw(st.booleans()), rooted), num_ranks


@settings(max_examples=100, deadline=None)
@given(shape=flow_shapes(), root=st.integers(0, 24), size_bytes=st.sampled_from([0, 1000]))
def test_every_position_of_a_librarys_flows(shape: tuple[FlowShape, int], root: int, size_bytes: int) -> None:
    flows, num_ranks = shape
    sizes = (0, size_bytes, 2 * size_bytes)
    plan = FlowPlan("ring/simple", flows, sizes, tuple(10**9 * size for size in sizes))
    check_positions(plan.schedule("all_reduce", num_ranks, size_bytes, root % num_ranks))


@pytest.mark.parametrize(
    ("name", "symmetry"),
    [
        ("all_reduce/ring", (12,)), ("all_gather/bruck", (12,)), ("all_reduce/hierarchical", (4, 3)),
        ("all_reduce/halving-doubling", None), ("all_reduce/tree", None), ("all_reduce/nvls", None),
        ("broadcast/ring", None),
    ],
)  # fmt: skip
def test_symmetries_of_twelve_ranks(name: str, symmetry: tuple[int, ...] | None) -> None:
    algorithm = ALGORITHMS.get(name)
    assert isinstance(algorithm, Algorithm)
    assert algorithm.symmetry(12) == symmetry


@pytest.mark.parametrize("case", CASES, ids="/".join)
@pytest.mark.parametrize("num_ranks", [2, 8, 12])
def test_algorithms_are_as_symmetric_as_their_records(case: tuple[str, str], num_ranks: int) -> None:
    kind, algorithm = case
    schedule = schedule_of(case, 2 if kind == "send_recv" else num_ranks)
    symmetry = symmetry_of(schedule)
    algorithm_record = ALGORITHMS.get(f"{kind}/{algorithm}")
    assert isinstance(algorithm_record, Algorithm)
    assert symmetry == algorithm_record.symmetry(num_ranks)
    if symmetry is not None:
        assert len(local_structures(schedule).structures) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_shapes_of_two_levels(kind: str, shape: tuple[int, int]) -> None:
    groups, size = shape
    text = f"hierarchical:{groups}x{size}"
    for inner in (None,) if kind == "all_to_all" else INNER:
        if inner == "halving-doubling" and size & (size - 1):
            continue
        schedule = schedule_of((kind, text if inner is None else f"{text}:inner={inner}"), groups * size)
        assert symmetry_of(schedule) is not None
        check_positions(schedule)


def test_send_recv_to_the_next() -> None:
    for num_ranks in (2, 3, 8):
        check_positions(to_the_next(num_ranks, 77))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.data())
def test_uneven_blocks(num_ranks: int, data: st.DataObject) -> None:
    rows = st.lists(st.sampled_from([0, 1, 5, 10**9]), min_size=num_ranks, max_size=num_ranks)
    matrix = np.array([data.draw(rows) for _ in range(num_ranks)], dtype=np.int64)
    check_positions(make_schedule("all_to_all_v", num_ranks, int(matrix.sum(axis=1).max()), matrix=matrix))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 7), st.data())
def test_blocks_that_are_present_alike(num_ranks: int, data: st.DataObject) -> None:
    """The senders and receivers are symmetric, the sizes are not: one structure per distinct row of sizes."""
    present = data.draw(st.lists(st.booleans(), min_size=num_ranks, max_size=num_ranks))
    sizes = st.lists(st.integers(1, 2), min_size=num_ranks, max_size=num_ranks)
    matrix = np.zeros((num_ranks, num_ranks), dtype=np.int64)
    for p in range(num_ranks):
        matrix[p, (p + np.arange(num_ranks)) % num_ranks] = np.array(data.draw(sizes)) * present
    schedule = make_schedule("all_to_all_v", num_ranks, int(matrix.sum(axis=1).max()), matrix=matrix)
    assert symmetry_of(schedule) == (num_ranks,)
    check_positions(schedule)
    rolled = {tuple(np.roll(matrix[p], -p)[1:][np.array(present[1:], dtype=bool)]) for p in range(num_ranks)}
    assert len(local_structures(schedule).structures) == len(rolled)


@pytest.mark.parametrize("case", [c for c in WITH_PARAMETERS if c[0] not in ("send_recv",)], ids="/".join)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_symmetric_schedules_with_sizes_of_their_own(case: tuple[str, str], data: st.DataObject) -> None:
    schedule = schedule_of(case, data.draw(st.integers(2, 9)))
    if schedule.num_chunks > 10**4:
        return
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=schedule.num_chunks, max_size=schedule.num_chunks))
    check_positions(dataclasses.replace(schedule, chunk_sizes=tuple(sizes)))


@pytest.mark.parametrize("case", CASES, ids="/".join)
@pytest.mark.parametrize("num_ranks", [4, 12])
def test_both_ways_give_the_same_arrays(case: tuple[str, str], num_ranks: int) -> None:
    """Structures derived from position 0 alone and by comparing all positions match, so groups can share them."""
    schedule = schedule_of(case, 2 if case[0] == "send_recv" else num_ranks)
    if symmetry_of(schedule) is None:
        return
    one = local_structures(schedule)
    other = local_structures(dataclasses.replace(schedule, shift_symmetric=False, symmetry=None))
    assert len(one.structures) == len(other.structures) == 1
    assert same_arrays(one.structures[0], other.structures[0])
    assert np.array_equal(one.peers_of(range(num_ranks)), other.peers_of(range(num_ranks)))


@pytest.mark.parametrize(("kind", "number"), [("broadcast", 7), ("reduce", 4), ("all_reduce", 7)])
def test_the_root_does_not_change_how_many_structures_a_tree_has(kind: str, number: int) -> None:
    """A tree of 15 ranks has the root and three levels; a rank is its parent's first or second child.

    Both children add to the same send; they appear in send order.
    """
    for root in range(15):
        schedule = make_schedule(kind, 15, 10**6, "tree", root if kind in ROOTED else -1)
        structures = local_structures(dataclasses.replace(schedule, root=root))
        assert len(structures.structures) == number
