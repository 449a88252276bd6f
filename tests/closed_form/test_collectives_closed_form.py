"""Do the simulated schedules take exactly the time of their closed forms, on a network without contention?"""

from __future__ import annotations

import pytest

from trine.cluster import Cluster, build_topology
from trine.collectives import expand, make_schedule
from trine.collectives.closed_forms import num_rounds, uncontended_ps
from trine.collectives.ring import MAX_CHAIN_CHUNKS, chain_chunks
from trine.engine import run
from trine.errors import InputError
from trine.model.builder import TaskGraphBuilder
from trine.model.schedule import Schedule
from trine.units import transfer_ps

BYTES_PER_S = 65 * 10**9
LATENCY_PS = 1_000_001


def simulate(schedule: Schedule, cluster: Cluster, entry_ps: list[int] | None = None) -> tuple[list[int], list[int]]:
    """Run one collective, rank p on GPU p; returns when each rank's part ends and when each transfer starts."""
    builder = TaskGraphBuilder(cluster.link_bytes_per_s.tolist(), cluster.link_latency_ps.tolist())
    entered = [
        builder.compute(p, "entry", (entry_ps or [0] * schedule.num_ranks)[p]) for p in range(schedule.num_ranks)
    ]
    expanded = expand(schedule)
    first = builder.num_tasks
    for i in range(expanded.num_transfers):
        src, dst = int(expanded.src[i]), int(expanded.dst[i])
        after = [
            first + int(j)
            for j in expanded.predecessor_idx[expanded.predecessor_ptr[i] : expanded.predecessor_ptr[i + 1]]
        ]
        after += [entered[src]] if expanded.entry_src[i] else []
        after += [entered[dst]] if expanded.entry_dst[i] else []
        builder.transfer(src, dst, cluster.route(src, dst), int(expanded.size_bytes[i]), after)
    ptr, idx = expanded.completion_ptr, expanded.completion_idx
    ended = [
        builder.join([entered[p], *(first + int(j) for j in idx[ptr[p] : ptr[p + 1]])])
        for p in range(schedule.num_ranks)
    ]
    records = run(builder.build(), engine="reference")
    return [int(records.end_ps[task]) for task in ended], records.start_ps[
        first : first + expanded.num_transfers
    ].tolist()


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8, 13, 24])
@pytest.mark.parametrize("size_bytes", [0, 1, 1_000_003, 532_191_392])
def test_ring_takes_its_rounds(kind: str, num_ranks: int, size_bytes: int) -> None:
    rounds = {"all_reduce": 2 * (num_ranks - 1)}.get(kind, num_ranks - 1)
    chunk = -(-size_bytes // num_ranks)
    schedule = make_schedule(kind, num_ranks, size_bytes)
    ends, _ = simulate(schedule, build_topology("ring", BYTES_PER_S, LATENCY_PS, num_ranks))
    assert ends == [rounds * (transfer_ps(chunk, BYTES_PER_S) + LATENCY_PS)] * num_ranks
    assert uncontended_ps(schedule, BYTES_PER_S, LATENCY_PS) == ends[0]


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size_bytes", [0, 5, 3 * 2**20 + 1])
def test_chain_takes_its_rounds(kind: str, num_ranks: int, size_bytes: int) -> None:
    root = num_ranks // 2
    schedule = make_schedule(kind, num_ranks, size_bytes, root=root)
    chunks = chain_chunks(size_bytes)
    one = transfer_ps(-(-size_bytes // chunks), BYTES_PER_S) + LATENCY_PS
    ends, _ = simulate(schedule, build_topology("ring", BYTES_PER_S, LATENCY_PS, num_ranks))
    assert max(ends) == uncontended_ps(schedule, BYTES_PER_S, LATENCY_PS)
    assert max(ends) == (0 if num_ranks == 1 else (num_ranks - 2 + chunks) * one)
    if kind == "broadcast" and num_ranks > 2:
        assert ends[root] == chunks * one  # the root is done when it has sent everything
        assert ends[(root + 1) % num_ranks] == (1 + chunks) * one


@pytest.mark.parametrize(("kind", "num_ranks"), [("gather", 6), ("scatter", 6), ("send_recv", 2)])
def test_direct_takes_one_round(kind: str, num_ranks: int) -> None:
    schedule = make_schedule(kind, num_ranks, 1_000_001, root=1)
    ends, _ = simulate(schedule, build_topology("full", BYTES_PER_S, LATENCY_PS, num_ranks))
    assert max(ends) == uncontended_ps(schedule, BYTES_PER_S, LATENCY_PS)
    assert max(ends) == LATENCY_PS + transfer_ps(-(-1_000_001 // (1 if kind == "send_recv" else 6)), BYTES_PER_S)


def test_gather_through_a_switch_is_bound_by_the_link_of_the_root() -> None:
    schedule = make_schedule("gather", 5, 5 * 10**6, root=0)
    ends, _ = simulate(schedule, build_topology("switch", 10**9, 0, 5))
    assert max(ends) == transfer_ps(4 * 10**6, 10**9)


def test_a_late_rank_holds_up_both_neighbours_and_then_all() -> None:
    """Rank 2 of 4 enters a second late: nothing to or from it starts before, and the whole ring ends so much later."""
    late = 10**12
    schedule = make_schedule("all_reduce", 4, 4000)
    cluster = build_topology("ring", BYTES_PER_S, LATENCY_PS, 4)
    on_time, _ = simulate(schedule, cluster)
    ends, starts = simulate(schedule, cluster, [0, 0, late, 0])
    expanded = expand(schedule)
    touched = [i for i in range(expanded.num_transfers) if 2 in (expanded.src[i], expanded.dst[i])]
    assert min(starts[i] for i in touched) == late
    assert min(starts) == 0
    # Three of the chunk sums pass through rank 2, the last of them in full: as late as if all had entered late.
    assert max(ends) == late + max(on_time)


def test_chunks_of_a_chain_are_bounded() -> None:
    assert chain_chunks(0) == chain_chunks(1) == chain_chunks(512 * 1024) == 1
    assert chain_chunks(512 * 1024 + 1) == 2
    assert chain_chunks(10**12) == MAX_CHAIN_CHUNKS


def test_no_closed_form_for_an_unknown_algorithm() -> None:
    schedule = Schedule(
        kind="all_reduce", algorithm="rign", num_ranks=2, num_chunks=2, chunk_bytes=1, size_bytes=2,
        sends_of=make_schedule("all_reduce", 2, 2).sends_of,
    )  # fmt: skip
    with pytest.raises(InputError, match="no closed form for 'all_reduce rign'; did you mean 'all_reduce ring'"):
        num_rounds(schedule)
