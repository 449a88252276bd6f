"""Does a run stop and hold tasks as requested, and refuse snapshots from which it cannot resume?"""

from dataclasses import replace

import numpy as np
import pytest

from trine.engine import advance, carry_over, run
from trine.engine.models import FairSharing
from trine.errors import DeadlockError, InputError
from trine.graph.builder import TaskGraphBuilder

ENGINES = ("compiled", "reference")
both = pytest.mark.parametrize("engine", ENGINES)


def chain():
    """Return a graph: compute 5 ps, two transfers of 1000 bytes over one link of 1 byte/ps, a join, compute 7 ps."""
    builder = TaskGraphBuilder([10**12], [0])
    first = builder.compute(0, "main", 5)
    sends = [builder.transfer(0, 1, [0], 1000, [first]) for _ in range(2)]
    join = builder.join(sends)
    builder.compute(0, "main", 7, [join])
    return builder.build()


def only(graph, *tasks):
    hold = np.zeros(graph.num_tasks, np.bool_)
    hold[list(tasks)] = True
    return hold


@both
def test_stops_before_the_network_shares(engine):
    graph = chain()
    snapshot = advance(graph, hold=only(graph, 2), engine=engine)
    assert snapshot.now_ps == 5
    assert snapshot.ready_ps.tolist() == [0, 5, 5, -1, -1]
    assert snapshot.start_ps.tolist() == [0, 5, -1, -1, -1]
    assert snapshot.end_ps.tolist() == [5, -1, -1, -1, -1]
    assert snapshot.active.tolist() == [1]
    state = [getattr(snapshot, name).tolist() for name in ("due_ps", "since_ps", "remaining_bytes", "bytes_per_s")]
    assert state == [[-1], [5], [1000.0], [0.0]]
    assert (snapshot.flow_end_ps.tolist(), snapshot.num_events, snapshot.is_finished) == ([-1], 2, False)


@both
def test_a_task_that_is_held_again_begins_when_it_is_let_go(engine):
    """The first transfer gets the whole link while the second one waits."""
    graph = chain()
    snapshot = advance(graph, hold=only(graph, 2), engine=engine)
    snapshot = advance(graph, hold=only(graph, 2, 3), resume=snapshot, engine=engine)
    assert (snapshot.now_ps, snapshot.end_ps[1]) == (1005, 1005)
    assert snapshot.start_ps[2] == -1
    snapshot = advance(graph, resume=snapshot, engine=engine)
    assert snapshot.is_finished
    assert snapshot.ready_ps.tolist() == [0, 5, 5, 2005, 2005]
    assert snapshot.start_ps.tolist() == [0, 5, 1005, 2005, 2005]
    assert snapshot.end_ps.tolist() == [5, 1005, 2005, 2005, 2012]


@both
def test_what_follows_at_once_has_happened(engine):
    builder = TaskGraphBuilder([], [])
    join = builder.join([])
    after = builder.compute(0, "main", 0, [join])
    held = builder.join([join])
    last = builder.join([after])
    graph = builder.build()
    snapshot = advance(graph, hold=only(graph, held), engine=engine)
    assert snapshot.end_ps[[join, after, held, last]].tolist() == [0, 0, -1, 0]


@both
def test_a_held_task_keeps_its_place_in_the_stream(engine):
    builder = TaskGraphBuilder([], [])
    first = builder.compute(0, "main", 5)
    held = builder.compute(0, "main", 5)
    builder.compute(0, "main", 5)
    graph = builder.build()
    snapshot = advance(graph, hold=only(graph, held), engine=engine)
    assert (snapshot.now_ps, snapshot.due_ps.tolist(), snapshot.active.tolist()) == (0, [5], [first])
    snapshot = advance(graph, hold=only(graph, held), resume=snapshot, engine=engine)
    assert snapshot.now_ps == 5
    assert not snapshot.is_finished
    assert advance(graph, resume=snapshot, engine=engine).end_ps.tolist() == [5, 10, 15]


@both
def test_a_started_task_is_not_held(engine):
    graph = chain()
    snapshot = advance(graph, hold=only(graph, 2), engine=engine)
    snapshot = advance(graph, hold=only(graph, 0, 1), resume=snapshot, engine=engine)
    np.testing.assert_array_equal(snapshot.end_ps, run(graph).end_ps)


@both
def test_deadlock(engine):
    builder = TaskGraphBuilder([], [])
    builder.join([1])
    builder.join([0])
    builder.compute(0, "main", 5)
    graph = builder.build()
    with pytest.raises(DeadlockError, match="wait for each other"):
        advance(graph, hold=only(graph, 0), engine=engine)
    snapshot = advance(graph, hold=only(graph, 2), engine=engine)
    assert not advance(graph, hold=only(graph, 2), resume=snapshot, engine=engine).is_finished
    with pytest.raises(DeadlockError, match="wait for each other"):
        advance(graph, resume=snapshot, engine=engine)


def test_networks_without_flows_do_not_stop():
    with pytest.raises(InputError, match="'fifo' cannot stop and go on"):
        advance(chain(), network="fifo")


def test_hold_of_another_shape():
    with pytest.raises(InputError, match=r"must be bool\[5\], is int64\[5\]"):
        advance(chain(), hold=np.zeros(5, np.int64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"end_ps": np.full(4, -1)}, r"end_ps: has 4 entries, must have 5"),
        ({"due_ps": np.full(2, -1)}, r"due_ps: has 2 entries, must have 1"),
        ({"start_ps": np.array([0, 4, -1, -1, -1])}, r"transfer task 1 .* in no such order"),
        ({"now_ps": 4}, r"in no such order, or after 4 ps"),
        ({"active": np.array([2], np.int32)}, "active: must name the tasks"),
        ({"since_ps": np.array([-1])}, "due_ps: transfer task 1 .* nor in flight"),
        ({"due_ps": np.array([9])}, "due_ps: transfer task 1 .* nor in flight"),
        ({"flow_end_ps": np.array([5])}, "due_ps: transfer task 1 .* nor in flight"),
        ({"speed_ppm": np.zeros(1, np.int64)}, "speed_ppm: is needed exactly if the graph has pressure"),
    ],
)
def test_snapshots_of_no_run(change, message):
    graph = chain()
    snapshot = advance(graph, hold=only(graph, 2))
    with pytest.raises(InputError, match=message):
        advance(graph, resume=replace(snapshot, **change))


@both
def test_a_task_with_nothing_to_wait_for_that_is_not_ready(engine):
    graph = chain()
    snapshot = advance(graph, hold=only(graph, 2))
    ready_ps = np.array([0, 5, -1, -1, -1])
    with pytest.raises(InputError, match=r"task 2 .* is not ready although"):
        advance(graph, resume=replace(snapshot, ready_ps=ready_ps), engine=engine)


def test_two_tasks_of_one_stream_cannot_run():
    builder = TaskGraphBuilder([], [])
    builder.compute(0, "a", 5)
    builder.compute(0, "b", 5)
    builder.join([])
    graph = builder.build()
    snapshot = advance(graph, hold=only(graph, 2))
    with pytest.raises(InputError, match="two tasks run on one stream"):
        advance(replace(graph, stream=np.array([0, 0, -1], np.int32)), resume=snapshot)


def test_streams_must_be_named_where_they_have_speeds():
    builder = TaskGraphBuilder([], [])
    builder.compute(0, "a", 5)
    builder.join([])
    graph = builder.build()
    column = np.array([0, 0], np.int32)
    graph = replace(graph, pressure_ppm=column, pressure_stream=column)
    snapshot = advance(graph, hold=only(graph, 1))
    assert (snapshot.speed_ppm.tolist(), snapshot.stream_left_as.tolist()) == ([10**6], [5 * 10**6])
    with pytest.raises(InputError, match="which stream"):
        carry_over(snapshot, np.arange(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"route_counts": np.ones(3, np.int32)}, "route_counts: has 3 entries for 1 links"),
        ({"route_counts": np.zeros(1, np.int32)}, "route 0 crosses link 0 0 times"),
        ({"pressure_ppm": np.zeros(5, np.int32)}, "pressure_stream: is missing"),
        ({"pressure_stream": np.zeros(5, np.int32)}, "pressure_ppm: is missing"),
        ({"pressure_ppm": np.zeros(4, np.int32), "pressure_stream": np.zeros(5, np.int32)}, "has 4 entries"),
        ({"pressure_ppm": np.zeros(5, np.int32), "pressure_stream": np.full(5, 1, np.int32)}, "out of 0..0: 1"),
        ({"pressure_ppm": np.ones(5, np.int32), "pressure_stream": np.full(5, -1, np.int32)}, "on no stream: 1"),
        ({"pressure_ppm": np.full(5, 1_000_001, np.int32), "pressure_stream": np.zeros(5, np.int32)}, "more than full"),
        (
            {
                "duration_ps": np.array([10**13, 0, 0, 0, 7]),
                "pressure_ppm": np.ones(5, np.int32),
                "pressure_stream": np.zeros(5, np.int32),
            },
            "is longer than 9000000000000 ps",
        ),
    ],
)
def test_columns_that_cannot_be(change, message):
    with pytest.raises(InputError, match=message):
        run(replace(chain(), **change))


class OneByOne:
    """Max-min fairness without ``weighted_rates``."""

    name = "one by one"

    def rates(self, routes, capacity):
        return FairSharing().rates(routes, capacity)


class Shrunk(FairSharing):
    """Changed ``rates`` of single flows, with the base class's ``weighted_rates`` of equivalent flows."""

    name = "shrunk"

    def rates(self, routes, capacity):
        return super().rates(routes, [c // 2 for c in capacity])


class Counting(Shrunk):
    name = "counting"

    def weighted_rates(self, routes, counts, capacity):
        return super().weighted_rates(routes, counts, capacity)


def test_who_cannot_count():
    graph = replace(chain(), route_counts=np.full(1, 2, np.int32))
    with pytest.raises(InputError, match="stand for many flows each, but equivalent messages"):
        run(graph, network="fifo")
    for model in (OneByOne(), Shrunk()):
        with pytest.raises(InputError, match=r"stand for many flows each, but .* has no weighted_rates"):
            run(graph, network=model, engine="reference")
    assert run(graph, network=Counting(), engine="reference").end_ps.max() > 0
    once = replace(graph, route_counts=np.ones(1, np.int32))
    np.testing.assert_array_equal(run(once, network="fifo").end_ps, run(chain(), network="fifo").end_ps)


@both
def test_crossing_a_link_twice(engine):
    """Two entries of a link, or one that counts for two: 1000 bytes at a third of the link on each crossing."""
    builder = TaskGraphBuilder([3 * 10**12], [0])
    builder.transfer(0, 1, [0, 0], 1000)
    builder.transfer(0, 1, [0], 1000)
    graph = builder.build()
    counted = replace(
        graph,
        route_ptr=np.array([0, 1, 2]),
        route_links=np.zeros(2, np.int32),
        route_counts=np.array([2, 1], np.int32),
    )
    for network in ("fair", "equal"):
        for form in (graph, counted):
            assert run(form, network=network, engine=engine).end_ps.tolist() == [1000, 1000]
