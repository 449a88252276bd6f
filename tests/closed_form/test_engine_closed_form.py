"""Does the engine match the formula to the picosecond?"""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uncontended import uncontended

from trine.collectives.run import link_bytes
from trine.common.units import transfer_ps
from trine.engine.run import run
from trine.errors import InputError
from trine.graph.builder import TaskGraphBuilder

both_engines = pytest.mark.parametrize("engine", ["compiled", "reference"])
both_networks = pytest.mark.parametrize("network", ["fair", "equal"])


def ends(builder, **options):
    return run(builder.build(), **options).end_ps.tolist()


@both_engines
@given(
    size=st.integers(1, 2**50),
    bandwidths=st.lists(st.integers(10**9, 10**15), min_size=1, max_size=4),
    latency=st.integers(0, 10**9),
)
@settings(max_examples=200, deadline=None)
def test_a_transfer_alone_is_exact(engine, size, bandwidths, latency):
    builder = TaskGraphBuilder(bandwidths, [latency] * len(bandwidths))
    builder.transfer(0, 1, range(len(bandwidths)), size)
    assert ends(builder, engine=engine) == [latency * len(bandwidths) + transfer_ps(size, min(bandwidths))]


@both_engines
@both_networks
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 24, 49, 1000])
@pytest.mark.parametrize("size", [1, 1000, 10**9 + 7])
def test_equal_flows_from_the_same_instant(count, size, network, engine):
    builder = TaskGraphBuilder([50 * 10**9], [1000])
    for _ in range(count):
        builder.transfer(0, 1, [0], size)
    assert set(ends(builder, network=network, engine=engine)) == {1000 + transfer_ps(count * size, 50 * 10**9)}


@both_engines
@both_networks
def test_two_flows_share_until_the_first_is_through(network, engine):
    """1 GB/s; 3000 B start at 0, 1000 B at 1 us: the first flow is alone for 1 us, shares for 2 us, then is alone."""
    builder = TaskGraphBuilder([10**9], [0])
    wait = builder.compute(0, "s", 10**6)
    builder.transfer(0, 1, [0], 3000)
    builder.transfer(0, 1, [0], 1000, [wait])
    assert ends(builder, network=network, engine=engine) == [10**6, 4 * 10**6, 3 * 10**6]


@both_engines
def test_parking_lot(engine):
    """Links of 10, 4 and 6 GB/s in series; one flow over all three, one over each: max-min gives 2, 8, 2, 4 GB/s."""
    builder = TaskGraphBuilder([10 * 10**9, 4 * 10**9, 6 * 10**9], [0, 0, 0])
    size = 8000
    builder.transfer(0, 3, [0, 1, 2], size)
    for link in range(3):
        builder.transfer(link, link + 1, [link], size)
    long, first, second, third = ends(builder, network="fair", engine=engine)
    assert first == 8000 * 1000 // 8
    # The third flow ends at 2 us; the long flow keeps 2 GB/s until it ends, together with the equally large second.
    assert third == 8000 * 1000 // 4
    assert long == second == 8000 * 1000 // 2


@both_engines
def test_equal_split_wastes_what_fair_gives_away(engine):
    """Two flows share link 0; link 1 limits one to 1 GB/s. Fair gives the other 9 of 10 GB/s, equal gives 5."""
    builder = TaskGraphBuilder([10 * 10**9, 10**9], [0, 0])
    builder.transfer(0, 1, [0], 9000)
    builder.transfer(0, 2, [0, 1], 9000)
    assert ends(builder, network="fair", engine=engine) == [10**6, 9 * 10**6]
    assert ends(builder, network="equal", engine=engine) == [1_800_000, 9 * 10**6]


@both_networks
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 84])
@pytest.mark.parametrize("size", [532_191_392, 1000])
def test_ring_all_reduce(ranks, size, network):
    """2 (N - 1) (ceil(chunk / bandwidth) + latency), chunk = ceil(size / N)."""
    bandwidth, latency = 65 * 10**9, 1_234_567
    chunk = -(-size // ranks)
    builder = TaskGraphBuilder([bandwidth] * ranks, [latency] * ranks)
    last = [()] * ranks
    for _ in range(2 * (ranks - 1)):
        last = [(builder.transfer(i, (i + 1) % ranks, [i], chunk, (*{*last[i], *last[i - 1]},)),) for i in range(ranks)]
    graph = builder.build()
    expected = 2 * (ranks - 1) * (transfer_ps(chunk, bandwidth) + latency)
    assert run(graph, network=network).end_ps.max() == expected
    assert uncontended(graph).max() == expected
    assert link_bytes(graph).tolist() == [2 * (ranks - 1) * chunk] * ranks


@both_engines
def test_streams_joins_and_latency_only(engine):
    builder = TaskGraphBuilder([10**9], [700])
    a = builder.compute(0, "s", 100)
    b = builder.compute(0, "s", 50)  # in order behind a
    c = builder.compute(0, "t", 30)  # another stream
    empty = builder.transfer(0, 1, [0], 0, [a])  # no bytes: latency only
    local = builder.transfer(0, 0, [], 10**6, [a])  # no links: no time
    first = builder.join([a, b, c], need=2)
    none = builder.join([a], need=0)
    late = builder.compute(0, "t", 5, [first])
    records = run(builder.build(), engine=engine)
    assert records.end_ps[[a, b, c, empty, local, first, none, late]].tolist() == [100, 150, 30, 800, 100, 100, 0, 105]
    assert records.ready_ps[[b, late]].tolist() == [0, 100]
    assert records.start_ps[[b, late]].tolist() == [100, 100]


def test_a_slow_peer_is_left_behind_by_a_k_of_n_join():
    builder = TaskGraphBuilder([1], [0])
    fast = [builder.compute(rank, "s", 10 + rank) for rank in range(3)]
    slow = builder.compute(3, "s", 10**6)
    join = builder.join([*fast, slow], need=3)
    records = run(builder.build())
    assert records.end_ps[join] == 12
    assert records.end_ps[slow] == 10**6


def test_critical_path_ignores_contention_only():
    builder = TaskGraphBuilder([10**9], [10])
    first = builder.transfer(0, 1, [0], 1000)
    builder.transfer(0, 1, [0], 1000)
    builder.compute(1, "s", 7, [first])
    graph = builder.build()
    assert uncontended(graph).max() == 10 + 10**6 + 7
    assert run(graph).end_ps.max() == 10 + 2 * 10**6 + 7


def test_a_link_crossed_twice_counts_twice():
    builder = TaskGraphBuilder([10**9], [5])
    builder.transfer(0, 0, [0, 0], 1000)
    graph = builder.build()
    assert run(graph).end_ps.tolist() == run(graph, engine="reference").end_ps.tolist() == [10 + 2 * 10**6]
    assert uncontended(graph).max() == 10 + 2 * 10**6
    assert link_bytes(graph).tolist() == [2000]


def test_shares_of_a_third_are_not_rounded_into_the_next_picosecond():
    """Three flows at 10**10 / 3 bytes/s, which float64 cannot represent: 3 x 10**7 bytes take exactly 3 ms."""
    builder = TaskGraphBuilder([10**10], [0])
    for _ in range(3):
        builder.transfer(0, 1, [0], 10**7)
    assert Fraction(3 * 10**7, 10**10) == Fraction(3, 1000)
    assert ends(builder) == [3 * 10**9] * 3


def water_level(capacity, caps):
    """Return the exact level at which sum of min(cap, level) = capacity, or None if the caps sum to less."""
    left, waiting = Fraction(capacity), sorted(caps)
    for place, cap in enumerate(waiting):
        share = left / (len(waiting) - place)
        if cap >= share:
            return share
        left -= cap
    return None


@given(
    capacity=st.integers(10**6, 10**12),
    caps=st.lists(st.integers(1, 10**12), min_size=1, max_size=12),
    engine=st.sampled_from(["compiled", "reference"]),
)
@settings(max_examples=80, deadline=None)
def test_flows_with_limits_get_the_smaller_of_limit_and_share(capacity, caps, engine):
    """One link: rates are min(cap, level). Each flow's size is the bytes of one ms, so all end together."""
    level = water_level(capacity, caps)
    rates = [Fraction(cap) if level is None else min(Fraction(cap), level) for cap in caps]
    sizes = [math.ceil(rate / 1000) + 1 for rate in rates]
    builder = TaskGraphBuilder([capacity], [0])
    for size in sizes:
        builder.transfer(0, 1, [0], size)
    graph = builder.build()
    count = len(caps)
    graph = replace(
        graph, route=np.arange(count, dtype=np.int32), route_ptr=np.arange(count + 1),
        route_links=np.zeros(count, np.int32), route_latency_ps=np.zeros(count, np.int64),
        route_cap_bytes_per_s=np.array(caps, np.int64),
    )  # fmt: skip
    first = run(graph, engine=engine).end_ps.min()
    expected = min(size * 10**12 / rate for size, rate in zip(sizes, rates, strict=True))
    assert first == pytest.approx(float(expected), abs=1.5, rel=1e-12)


@pytest.mark.parametrize("network", ["fair", "equal"])
def test_what_a_limited_flow_leaves_is_given_to_others_by_fair_only(network):
    """A link of 1 GB/s, a flow limited to 0.2 GB/s and an unlimited one, 100 MB each."""
    builder = TaskGraphBuilder([10**9], [0])
    builder.transfer(0, 1, [0], 10**8)
    builder.transfer(0, 1, [0], 10**8)
    graph = replace(
        builder.build(), route=np.array([0, 1], np.int32), route_ptr=np.arange(3), route_links=np.zeros(2, np.int32),
        route_latency_ps=np.zeros(2, np.int64), route_cap_bytes_per_s=np.array([2 * 10**8, 0]),
    )  # fmt: skip
    ends = run(graph, network=network).end_ps.tolist()
    assert ends == [5 * 10**11, 125 * 10**9 if network == "fair" else 2 * 10**11]


def test_a_limit_counts_in_what_a_transfer_takes_at_least():
    builder = TaskGraphBuilder([10**9], [7])
    builder.transfer(0, 1, [0], 10**8)
    graph = replace(builder.build(), route_cap_bytes_per_s=np.array([2 * 10**8]))
    assert uncontended(graph).max() == run(graph).end_ps.max() == 7 + 5 * 10**11
    with pytest.raises(InputError, match="cannot limit the rate"):
        run(graph, network="fifo")
