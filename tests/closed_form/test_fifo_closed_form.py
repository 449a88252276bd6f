"""Is store-and-forward equal to the formula, to the picosecond?"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.common.units import transfer_ps
from trine.engine.run import run
from trine.graph.builder import TaskGraphBuilder

both_engines = pytest.mark.parametrize("engine", ["compiled", "reference"])


def records(builder, engine="compiled"):
    return run(builder.build(), network="fifo", engine=engine)


@both_engines
@given(
    size=st.integers(1, 2**50),
    links=st.lists(st.tuples(st.integers(10**9, 10**15), st.integers(0, 10**9)), min_size=1, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_a_message_alone_pays_each_link(engine, size, links):
    builder = TaskGraphBuilder([bandwidth for bandwidth, _ in links], [latency for _, latency in links])
    builder.transfer(0, 1, range(len(links)), size)
    expected = sum(latency + transfer_ps(size, bandwidth) for bandwidth, latency in links)
    assert records(builder, engine).end_ps.tolist() == [expected]


@both_engines
@pytest.mark.parametrize("sizes", [[7], [1, 1, 1], [5000, 1, 10**6, 4096], [2] * 100])
def test_messages_of_one_instant_go_in_the_order_of_their_numbers(sizes, engine):
    builder = TaskGraphBuilder([10**9], [300])
    for size in sizes:
        builder.transfer(0, 1, [0], size)
    found = records(builder, engine)
    done = 0
    for start, end, size in zip(found.start_ps, found.end_ps, sizes, strict=True):
        assert (start, end) == (done, done + size * 1000 + 300)  # the latency is on the way, not on the link
        done += size * 1000


@both_engines
@pytest.mark.parametrize(("hops", "count"), [(1, 4), (2, 3), (5, 7)])
def test_messages_follow_each_other_through_a_chain(hops, count, engine):
    """(hops + count - 1) times of service and hops latencies, as in any pipeline."""
    builder = TaskGraphBuilder([10**9] * hops, [700] * hops)
    for _ in range(count):
        builder.transfer(0, 1, range(hops), 1000)
    assert records(builder, engine).end_ps.max() == (hops + count - 1) * 10**6 + hops * 700


@both_engines
def test_who_comes_first_is_served_first_whatever_its_number(engine):
    builder = TaskGraphBuilder([10**9], [0])
    wait = builder.compute(0, "s", 1)
    late = builder.transfer(0, 1, [0], 10, [wait])
    early = builder.transfer(0, 1, [0], 100)
    found = records(builder, engine)
    assert found.end_ps[[late, early]].tolist() == [110_000, 100_000]
    assert found.ready_ps[late] == 1
    assert found.start_ps[late] == 100_000  # it has queued


@both_engines
def test_empty_messages_and_those_without_links_take_their_latency_and_do_not_queue(engine):
    builder = TaskGraphBuilder([10**9, 10**9], [5, 7])
    builder.transfer(0, 1, [0, 1], 1000)
    empty = builder.transfer(0, 1, [0, 1], 0)
    local = builder.transfer(0, 0, [], 10**6)
    assert records(builder, engine).end_ps[[empty, local]].tolist() == [12, 0]


@both_engines
def test_a_link_crossed_twice_carries_the_bytes_twice(engine):
    builder = TaskGraphBuilder([10**9], [5])
    builder.transfer(0, 0, [0, 0], 1000)
    assert records(builder, engine).end_ps.tolist() == [2 * (10**6 + 5)]


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_ring_all_reduce_on_a_switch(ranks):
    """2 (N - 1) steps of two links each: the bytes take their time on both."""
    chunk, latency = 12_345, 400_000
    builder = TaskGraphBuilder([50 * 10**9] * (2 * ranks), [latency] * (2 * ranks))
    last = [()] * ranks
    for _ in range(2 * (ranks - 1)):
        sent = [
            builder.transfer(i, (i + 1) % ranks, [i, ranks + (i + 1) % ranks], chunk, (*{*last[i], *last[i - 1]},))
            for i in range(ranks)
        ]
        last = [(task,) for task in sent]
    assert records(builder).end_ps.max() == 2 * (ranks - 1) * 2 * (transfer_ps(chunk, 50 * 10**9) + latency)


@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_an_incast_is_served_one_after_the_other(ranks):
    """All send to one through a switch: one comes through at once, the others queue for the last link."""
    size = 10_000
    builder = TaskGraphBuilder([10**9] * (ranks + 1), [250] * (ranks + 1))
    for rank in range(ranks):
        builder.transfer(rank, ranks, [rank, ranks], size)
    expected = [(2 + place) * size * 1000 + 500 for place in range(ranks)]
    assert records(builder).end_ps.tolist() == expected
