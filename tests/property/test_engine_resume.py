"""Does a run that stops and goes on, perhaps for other tasks, give the picoseconds of one that never stopped?"""

from dataclasses import fields, replace

import numpy as np
import pytest
from engine_cases import graphs, random_graph, with_caps
from engine_lifts import random_lift, without_ended
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.engine import advance, carry_over, compiled, run
from trine.graph.taskgraph import Snapshot

INSTANTS = ("ready_ps", "start_ps", "end_ps")
seeds = st.integers(0, 2**32)


def pressed(graph, rng):
    """``graph`` with tasks that take speed from streams, half of them."""
    if not graph.stream_names or rng.random() < 0.5:
        return graph
    stream = rng.integers(-1, len(graph.stream_names), graph.num_tasks).astype(np.int32)
    ppm = np.where(stream >= 0, rng.choice([0, 100_000, 250_000, 400_000], graph.num_tasks), 0).astype(np.int32)
    return replace(graph, pressure_ppm=ppm, pressure_stream=stream)


def assert_equal(one, other, names):
    for name in names:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def some(rng, graph):
    """A random set of tasks to hold."""
    return rng.random(graph.num_tasks) < rng.choice([0.03, 0.1, 0.5])


def in_pieces(graph, rng, *, network, engine="compiled", stops=20):
    """Stop at random tasks up to ``stops`` times, never twice for the same, then run to the end."""
    snapshot, num_stops = None, 0
    for _ in range(stops):
        hold = some(rng, graph)
        if snapshot is not None:
            hold &= snapshot.ready_ps < 0
        snapshot = advance(graph, hold=hold, resume=snapshot, network=network, engine=engine)
        if snapshot.is_finished:
            return snapshot, num_stops
        assert (snapshot.ready_ps[hold] == snapshot.now_ps).any()
        assert (snapshot.start_ps[hold] < 0).all()
        num_stops += 1
    return advance(graph, resume=snapshot, network=network, engine=engine), num_stops


@pytest.mark.parametrize("network", ["fair", "equal"])
@given(graph=graphs(max_tasks=60), seed=seeds)
@settings(max_examples=80, deadline=None)
def test_stopping_changes_nothing(network, graph, seed):
    rng = np.random.default_rng(seed)
    graph = pressed(graph, rng)
    whole = run(graph, network=network)
    snapshot, _ = in_pieces(graph, rng, network=network)
    assert snapshot.is_finished
    assert snapshot.num_events == whole.num_events
    assert_equal(whole, snapshot, INSTANTS)


@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_in_plain_python_too(seed):
    rng = np.random.default_rng(seed)
    graph = pressed(random_graph(rng, 40, 4), rng)
    snapshot, _ = in_pieces(graph, rng, network="fair", engine="reference", stops=5)
    assert_equal(run(graph, engine="reference"), snapshot, INSTANTS)


@pytest.mark.parametrize("seed", range(4))
def test_small_arrays_that_grow(seed, monkeypatch):
    monkeypatch.setattr(compiled, "FIRST_SLOTS", 1)
    monkeypatch.setattr(compiled, "FIRST_HEAP", 2)
    monkeypatch.setattr(compiled, "BUDGET", 1)
    rng = np.random.default_rng(seed)
    graph = with_caps(pressed(random_graph(rng, 300, 8, window=50), rng), rng)
    snapshot, num_stops = in_pieces(graph, rng, network="fair")
    assert num_stops > 3
    assert_equal(run(graph, network="fair"), snapshot, INSTANTS)


@pytest.mark.parametrize("network", ["fair", "equal"])
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_both_engines_stop_in_the_same_state(network, seed):
    rng = np.random.default_rng(seed)
    graph = pressed(random_graph(rng, 50, 5), rng)
    graph = with_caps(graph, rng) if seed % 2 else graph
    snapshots: list[Snapshot | None] = [None, None]
    for _ in range(6):
        hold = some(rng, graph)
        snapshots = [
            advance(graph, hold=hold, resume=snapshot, network=network, engine=engine)
            for snapshot, engine in zip(snapshots, ("compiled", "reference"), strict=True)
        ]
        assert_equal(*snapshots, [field.name for field in fields(Snapshot)])


@pytest.mark.parametrize("network", ["fair", "equal"])
@given(seed=seeds, slows=st.booleans(), capped=st.booleans())
@settings(max_examples=60, deadline=None)
def test_folded_until_a_stop_and_unfolded_from_there(network, seed, slows, capped):
    rng = np.random.default_rng(seed)
    lift = random_lift(rng, 40, 5, pressed=slows, capped=capped)
    whole = run(lift.unfolded, network=network)
    snapshot = advance(lift.folded, hold=some(rng, lift.folded), network=network)
    snapshot = advance(
        lift.folded, hold=some(rng, lift.folded) & (snapshot.ready_ps < 0), resume=snapshot, network=network
    )
    resume = carry_over(snapshot, lift.task_class, lift.stream_class)
    assert_equal(whole, advance(lift.unfolded, resume=resume, network=network), INSTANTS)


@pytest.mark.parametrize("network", ["fair", "equal"])
@given(graph=graphs(max_tasks=60), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_without_the_tasks_that_have_ended(network, graph, seed):
    rng = np.random.default_rng(seed)
    graph = pressed(graph, rng)
    whole = run(graph, network=network)
    snapshot = advance(graph, hold=some(rng, graph), network=network)
    rest, kept = without_ended(graph, snapshot)
    resume = carry_over(snapshot, kept, np.arange(len(graph.stream_names)))
    last = advance(rest, resume=resume, network=network)
    for name in INSTANTS:
        np.testing.assert_array_equal(getattr(whole, name)[kept], getattr(last, name), err_msg=name)
    assert last.num_events == whole.num_events
