"""Do simulated schedules take exactly the time of their closed forms, on a network without contention?

Each closed form is also compared to a formula from the literature, written here in exact fractions: alpha is the time
of an empty message, beta the time per byte.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, log2

import numpy as np
import pytest
from schedule_runs import end_ps

from trine.cluster import Cluster, build_topology
from trine.collectives import known_algorithms, known_kinds, make_schedule
from trine.collectives.closed_forms import critical_rounds, has_closed_form, uncontended_ps
from trine.collectives.expand import expand
from trine.collectives.schedule import ROOTED, Schedule
from trine.collectives.schedules.tree import two_trees
from trine.collectives.sends import LATENCY_BYTES, MAX_PIPELINE_CHUNKS, pipeline_chunks
from trine.common.units import transfer_ps
from trine.engine import run
from trine.errors import InputError
from trine.graph.builder import TaskGraphBuilder

BYTES_PER_S = 65 * 10**9
LATENCY_PS = 1_000_001
CASES = [(kind, name) for kind in known_kinds() for name in known_algorithms(kind)] + [
    ("all_reduce", "ring:2"),
    ("all_reduce", "ring:5"),
    ("all_gather", "ring:4"),
    ("all_reduce", "tree:7"),
    ("all_reduce", "double-binary-tree:9"),
    ("all_reduce", "nvls:2"),
    ("all_reduce", "nvls:5"),
    ("all_reduce", "sharp:3:chunks=6"),
    ("all_reduce", "hierarchical:outer=tree"),
    ("all_reduce", "hierarchical:outer=halving-doubling:inner=ring"),
    ("reduce_scatter", "hierarchical:outer=halving-doubling"),
    ("all_gather", "hierarchical:outer=pat:inner=pat"),
]


def schedule_of(kind: str, algorithm: str, num_ranks: int, size_bytes: int) -> Schedule:
    return make_schedule(kind, num_ranks, size_bytes, algorithm, num_ranks // 2 if kind in ROOTED else -1)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_simulated_schedule_takes_its_closed_form(kind: str, algorithm: str) -> None:
    every = range(1, 65) if ":" not in algorithm else (*range(1, 18), 23, 30, 36, 47, 64)
    for num_ranks in [2] if kind == "send_recv" else every:
        size_bytes = 1_000_003 if num_ranks % 3 else 1000
        schedule = schedule_of(kind, algorithm, num_ranks, size_bytes)
        found = end_ps(schedule, BYTES_PER_S, LATENCY_PS)
        assert found == uncontended_ps(schedule, BYTES_PER_S, LATENCY_PS), num_ranks


# -- formulas of the literature ----------------------------------------------------------------------------------------


def _rounds(n: int) -> int:
    return ceil(log2(n))


def _unequal_halving(n: int, alpha: Fraction, part: Fraction) -> Fraction:
    """Return the time of a reduce-scatter with r ranks beyond the core of P; an exchange ends with both messages."""
    core = 2 ** int(log2(n))
    extra = n - core
    times = {rank: alpha + n * part if rank < extra else Fraction(0) for rank in range(core)}
    blocks = {rank: list(range(core)) for rank in range(core)}
    width = core
    while width > 1:
        width //= 2
        cost = {}
        for rank in range(core):
            theirs = [p for p in blocks[rank] if p // width == (rank ^ width) // width]
            cost[rank] = alpha + part * sum(1 + (p < extra) for p in theirs)
        blocks = {rank: [p for p in blocks[rank] if p // width == rank // width] for rank in range(core)}
        times = {r: max(times[r] + cost[r], times[r ^ width] + cost[r ^ width]) for r in range(core)}
    return max(times[rank] + (alpha + part if rank < extra else 0) for rank in range(core))


#: (number of ranks, alpha, time of the payload, number of pipeline chunks or 0) -> time
LITERATURE: dict[tuple[str, str], Callable[[int, Fraction, Fraction, int], Fraction]] = {
    # Patarasuk and Yuan 2009
    ("all_reduce", "ring"): lambda n, a, s, m: 2 * (n - 1) * (a + s / n),
    ("reduce_scatter", "ring"): lambda n, a, s, m: (n - 1) * (a + s / n),
    ("all_gather", "ring"): lambda n, a, s, m: (n - 1) * (a + s / n),
    # Chan, Heimlich, Purkayastha and van de Geijn 2007: pipelined chains and trees
    ("broadcast", "ring"): lambda n, a, s, m: (n - 2 + m) * (a + s / m),
    ("reduce", "ring"): lambda n, a, s, m: (n - 2 + m) * (a + s / m),
    ("broadcast", "tree"): lambda n, a, s, m: (int(log2(n)) - 1 + m) * (a + s / m),
    ("reduce", "tree"): lambda n, a, s, m: (int(log2(n)) - 1 + m) * (a + s / m),
    ("all_reduce", "tree"): lambda n, a, s, m: (2 * int(log2(n)) - 1 + m) * (a + s / m),
    # Sanders, Speck and Träff 2009, on links that can all be used at once
    ("all_reduce", "double-binary-tree"): lambda n, a, s, m: (
        (2 * _rounds(n) - 1 + m) * (a + s / m / (2 if n > 6 else 1))
    ),
    # Thakur, Rabenseifner and Gropp 2005
    ("all_reduce", "halving-doubling"): lambda n, a, s, m: (
        2 * int(log2(n)) * a + 2 * (1 - Fraction(1, 2 ** int(log2(n)))) * s + (n & (n - 1) > 0) * 2 * (a + s)
    ),
    ("reduce_scatter", "halving-doubling"): lambda n, a, s, m: _unequal_halving(n, a, s / n),
    # Bruck et al. 1997; N - 1 parts in ceil(log2 N) rounds
    ("all_gather", "bruck"): lambda n, a, s, m: _rounds(n) * a + (n - 1) * s / n,
    ("all_to_all", "bruck"): lambda n, a, s, m: (
        _rounds(n) * a + sum(bin(way).count("1") for way in range(n)) * s / n
    ),
    ("all_gather", "pat"): lambda n, a, s, m: _rounds(n) * a + (n - 1) * s / n,
    ("reduce_scatter", "pat"): lambda n, a, s, m: _rounds(n) * a + (n - 1) * s / n,
    ("all_reduce", "one-shot"): lambda n, a, s, m: a + s,
    ("all_reduce", "direct"): lambda n, a, s, m: 2 * (a + s / n),
    ("reduce_scatter", "direct"): lambda n, a, s, m: a + s / n,
    ("all_gather", "direct"): lambda n, a, s, m: a + s / n,
    ("all_to_all", "direct"): lambda n, a, s, m: a + s / n,
    ("barrier", "dissemination"): lambda n, a, s, m: _rounds(n) * (a + s),
    ("all_reduce", "sharp"): lambda n, a, s, m: (m + 1) * (a + s / m),
    ("reduce_scatter", "nvls"): lambda n, a, s, m: (m + 1) * a + s + s / m / n,
    ("all_gather", "nvls"): lambda n, a, s, m: (m + 1) * a + s + s / m / n,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "algorithm"), LITERATURE)
@pytest.mark.parametrize("per_rank", [1, 64 * 2**10])
def test_closed_forms_are_those_of_the_literature(kind: str, algorithm: str, per_rank: int) -> None:
    for num_ranks in range(2, 65):
        # The payload divides into equal chunks, and the bandwidth gives whole picoseconds per byte.
        schedule = schedule_of(kind, algorithm, num_ranks, num_ranks * per_rank)
        chunks = dict(schedule.parameters).get("chunks", 0)
        assert isinstance(chunks, int)
        size = num_ranks * 64 * max(1, chunks) * per_rank
        schedule = schedule_of(kind, f"{algorithm}:chunks={chunks}" if chunks else algorithm, num_ranks, size)
        wanted = LITERATURE[kind, algorithm](num_ranks, Fraction(LATENCY_PS), Fraction(size * 20), chunks)
        assert uncontended_ps(schedule, 50 * 10**9, LATENCY_PS) == wanted, num_ranks


def test_hierarchical_is_its_levels_one_after_the_other() -> None:
    size, (groups, each), byte_ps = 2 * 8 * 10**6, (2, 8), 20
    hierarchical = make_schedule("all_reduce", 16, size, "hierarchical:2x8:inner=ring")
    within = (each - 1) * (LATENCY_PS + size // each * byte_ps)
    across = 2 * (groups - 1) * (LATENCY_PS + size // (each * groups) * byte_ps)
    assert uncontended_ps(hierarchical, 50 * 10**9, LATENCY_PS) == 2 * within + across
    torus = make_schedule("all_reduce", 16, size, "torus:2x8")
    assert uncontended_ps(torus, 50 * 10**9, LATENCY_PS) == 2 * within + across
    blocks = make_schedule("all_to_all", 16, size, "hierarchical:2x8")
    assert uncontended_ps(blocks, 50 * 10**9, LATENCY_PS) == 2 * LATENCY_PS + (2 + 8) * size // 16 * byte_ps


def test_nvls_by_hand() -> None:
    """One chunk: read from all, sum to its owner, write, multicast to all. Many chunks: S (1 + 1/N) per direction."""
    ranks, size, byte_ps = 8, 8 * 10**6, 20
    one = uncontended_ps(make_schedule("all_reduce", ranks, size, "nvls:1"), 50 * 10**9, LATENCY_PS)
    assert one == 4 * LATENCY_PS + 2 * (size + size // ranks) * byte_ps
    many = uncontended_ps(make_schedule("all_reduce", ranks, size, "nvls:1000"), 50 * 10**9, 0)
    assert many == pytest.approx(size * (1 + 1 / ranks) * byte_ps, rel=0.004)


# -- particular networks -----------------------------------------------------------------------------------------------


def simulate(schedule: Schedule, cluster: Cluster, entry_ps: list[int] | None = None) -> tuple[list[int], list[int]]:
    """Run one collective, rank p on GPU p; return the end of each rank's part and the start of each transfer."""
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
@pytest.mark.parametrize("num_ranks", [1, 2, 5, 24])
@pytest.mark.parametrize("size_bytes", [0, 1, 532_191_392])
def test_ring_takes_its_rounds_on_a_ring(kind: str, num_ranks: int, size_bytes: int) -> None:
    rounds = {"all_reduce": 2 * (num_ranks - 1)}.get(kind, num_ranks - 1)
    chunk = -(-size_bytes // num_ranks)
    schedule = make_schedule(kind, num_ranks, size_bytes)
    ends, _ = simulate(schedule, build_topology("ring", BYTES_PER_S, LATENCY_PS, num_ranks))
    assert ends == [rounds * (transfer_ps(chunk, BYTES_PER_S) + LATENCY_PS)] * num_ranks
    assert uncontended_ps(schedule, BYTES_PER_S, LATENCY_PS) == ends[0]


@pytest.mark.parametrize("algorithm", ["ring:2", "ring:4"])
def test_two_directions_of_a_ring_take_half_the_time(algorithm: str) -> None:
    cluster = build_topology("ring", BYTES_PER_S, 0, 6)
    one, _ = simulate(make_schedule("all_reduce", 6, 48 * 10**6), cluster)
    both, _ = simulate(make_schedule("all_reduce", 6, 48 * 10**6, algorithm), cluster)
    assert 2 * max(both) == pytest.approx(max(one), rel=1e-6)


def test_torus_all_reduce_on_a_torus() -> None:
    schedule = make_schedule("all_reduce", 12, 12 * 10**6, "torus:3x4")
    ends, _ = simulate(schedule, build_topology("torus:3x4", BYTES_PER_S, LATENCY_PS, 12))
    assert max(ends) == uncontended_ps(schedule, BYTES_PER_S, LATENCY_PS)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize("num_ranks", [1, 2, 5, 8])
@pytest.mark.parametrize("size_bytes", [0, 5, 3 * 2**20 + 1])
def test_chain_takes_its_rounds_on_a_ring(kind: str, num_ranks: int, size_bytes: int) -> None:
    root = num_ranks // 2
    schedule = make_schedule(kind, num_ranks, size_bytes, root=root)
    chunks = pipeline_chunks(size_bytes, num_ranks, num_ranks - 1)
    one = transfer_ps(-(-size_bytes // chunks), BYTES_PER_S) + LATENCY_PS
    ends, _ = simulate(schedule, build_topology("ring", BYTES_PER_S, LATENCY_PS, num_ranks))
    assert max(ends) == uncontended_ps(schedule, BYTES_PER_S, LATENCY_PS)
    assert max(ends) == (0 if num_ranks == 1 else (num_ranks - 2 + chunks) * one)
    if kind == "broadcast" and num_ranks > 2:
        assert ends[root] == chunks * one  # the root ends once it has sent everything
        assert ends[(root + 1) % num_ranks] == (1 + chunks) * one


def test_gather_through_a_switch_is_bound_by_the_link_of_the_root() -> None:
    schedule = make_schedule("gather", 5, 5 * 10**6, root=0)
    ends, _ = simulate(schedule, build_topology("switch", 10**9, 0, 5))
    assert max(ends) == transfer_ps(4 * 10**6, 10**9)


def test_a_late_rank_holds_up_both_neighbours_and_then_all() -> None:
    """Rank 2 of 4 enters a second late: its transfers start after that, and the whole ring ends a second later."""
    late = 10**12
    schedule = make_schedule("all_reduce", 4, 4000)
    cluster = build_topology("ring", BYTES_PER_S, LATENCY_PS, 4)
    on_time, _ = simulate(schedule, cluster)
    ends, starts = simulate(schedule, cluster, [0, 0, late, 0])
    expanded = expand(schedule)
    touched = [i for i in range(expanded.num_transfers) if 2 in (expanded.src[i], expanded.dst[i])]
    assert min(starts[i] for i in touched) == late
    assert min(starts) == 0
    # Three of the chunk sums pass through rank 2, the last of them in full: as if all ranks had entered late.
    assert max(ends) == late + max(on_time)


def test_all_to_all_v_takes_its_largest_block() -> None:
    matrix = np.arange(25).reshape(5, 5) * 1000
    schedule = make_schedule("all_to_all_v", 5, int(matrix.sum(axis=1).max()), matrix=matrix)
    assert uncontended_ps(schedule, BYTES_PER_S, LATENCY_PS) == LATENCY_PS + transfer_ps(23_000, BYTES_PER_S)
    assert end_ps(schedule, BYTES_PER_S, LATENCY_PS) == LATENCY_PS + transfer_ps(23_000, BYTES_PER_S)
    own = make_schedule("all_to_all_v", 2, 7, matrix=np.array([[7, 0], [0, 3]]))
    assert uncontended_ps(own, BYTES_PER_S, LATENCY_PS) == end_ps(own, BYTES_PER_S, LATENCY_PS) == 0


# -- the numbers of chunks and trees -----------------------------------------------------------------------------------


def test_chunks_of_a_pipeline() -> None:
    assert pipeline_chunks(0, 8, 7) == pipeline_chunks(1, 8, 7) == pipeline_chunks(10**9, 2, 1) == 1
    assert pipeline_chunks(256 * 1024, 8, 7) == 5  # sqrt(6 x 4): finer than one chunk below 512 KiB
    assert pipeline_chunks(10**12, 8, 7) == MAX_PIPELINE_CHUNKS
    assert pipeline_chunks(10**9, 8, 14, chunks=3) == 3


@pytest.mark.parametrize("stages", [2, 7, 30])
@pytest.mark.parametrize("size_bytes", [2**16, 3 * 2**20, 2**26])
def test_that_number_of_chunks_is_the_fastest(stages: int, size_bytes: int) -> None:
    def time(chunks: int) -> Fraction:
        return (stages - 1 + chunks) * (LATENCY_BYTES + Fraction(size_bytes, chunks))

    chosen = pipeline_chunks(size_bytes, 8, stages)
    assert time(chosen) == min(time(chunks) for chunks in range(1, 2000))


def test_the_two_trees_share_no_link_and_no_inner_rank() -> None:
    for num_ranks in range(7, 200):
        trees = two_trees(num_ranks)
        edges = [{frozenset((r, p)) for r, p in enumerate(tree.parent) if p >= 0} for tree in trees]
        assert not edges[0] & edges[1]
        inner = [{p for p in tree.parent if p >= 0} for tree in trees]
        assert len(inner[0] & inner[1]) <= num_ranks % 2  # rank 0, the root of the first tree, if the number is odd
        assert trees[0].height == trees[1].height == _rounds(num_ranks)
        assert all(len(children) <= 2 for tree in trees for children in tree.children)


def test_no_closed_form_for_an_unknown_algorithm() -> None:
    schedule = Schedule(
        kind="all_reduce", algorithm="rign", num_ranks=2, num_chunks=2, chunk_bytes=1, size_bytes=2,
        sends_of=make_schedule("all_reduce", 2, 2).sends_of,
    )  # fmt: skip
    assert not has_closed_form(schedule)
    with pytest.raises(InputError, match="no closed form for 'all_reduce rign'; did you mean 'all_reduce ring'"):
        critical_rounds(schedule, 1, 0)
    assert all(has_closed_form(schedule_of(kind, name, 2, 10)) for kind, name in CASES)
