"""Metrics of random graphs equal a count of picoseconds, one by one, and obey their laws."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from results_graphs import labelled, memory, records, result

from trine.engine.run import run
from trine.graph.builder import TaskGraphBuilder
from trine.graph.memory import MEMORY_CATEGORIES, SELDOM
from trine.results.memory import memory_peak, memory_timeline
from trine.results.records import COLUMNS

RANKS = 3


@st.composite
def runs(draw):
    """A random graph of up to 14 tasks on three ranks, simulated, with small times."""
    builder = TaskGraphBuilder([10**12, 3 * 10**11], [0, 2], rank_names=["a", "b", "c"])
    for task in range(draw(st.integers(1, 14))):
        after = draw(st.lists(st.integers(0, task - 1), max_size=3, unique=True)) if task else []
        rank = draw(st.integers(0, RANKS - 1))
        kind = draw(st.sampled_from("cctlj"))
        if kind == "t":
            peer = draw(st.integers(0, RANKS - 1))
            builder.transfer(rank, peer, draw(st.sampled_from([[0], [1], [0, 1]])), draw(st.integers(0, 9)), after)
        elif kind == "j":
            builder.join(after, draw(st.integers(0, len(after))))
        else:
            builder.compute(rank, "cpu" if kind == "l" else "compute", draw(st.integers(0, 9)), after)
    graph = builder.build()
    n = graph.num_tasks
    steps = np.sort(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
    stages = draw(st.lists(st.integers(-1, 1), min_size=n, max_size=n))
    phases = draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n))
    graph = labelled(graph, step=steps, stage=stages, phase=phases)
    return result(graph, run(graph, engine="reference"))


def counted(found, rank):
    """Compute, communication and exposed time of a rank, by looking at every picosecond of the window."""
    graph, times = found.graph, found.records
    compute = communication = exposed = 0
    for now in range(found.window.start_ps, found.window.end_ps):
        computes = communicates = False
        for task in np.flatnonzero((times.start_ps <= now) & (now < times.end_ps)).tolist():
            if graph.kind[task] == 0 and graph.rank[task] == rank:
                computes |= not graph.stream_names[graph.stream[task]].startswith("cpu")
            elif graph.kind[task] == 1 and rank in (graph.rank[task], graph.peer[task]):
                communicates |= graph.labels.phase[task] != 3
        compute += computes
        communication += communicates
        exposed += communicates and not computes
    return [compute, communication, exposed]


@given(runs())
def test_times_equal_a_count_of_picoseconds(found):
    times = found.rank_times
    for rank in range(RANKS):
        assert [times.compute[rank], times.communication[rank], times.exposed[rank]] == counted(found, rank)


@given(runs())
def test_parts_sum_to_the_step_on_every_rank(found):
    times, step = found.rank_times, found.step_time_ps
    assert (times.compute + times.exposed + times.bubble + times.idle == step).all()
    assert (times.compute + times.waits.sum(axis=1) == step).all()
    assert (times.exposed <= times.communication).all()
    assert all((part >= 0).all() for part in (times.exposed, times.bubble, times.idle, times.waits))
    if found.graph.labels.stage.max() < 1:
        assert not times.bubble.any()


@given(runs())
def test_the_critical_path_has_no_holes_and_covers_the_run(found):
    path, times = found.critical_path[::-1], found.records
    assert times.start_ps[path[0]] == 0
    for before, after in pairwise(path):
        assert times.end_ps[before] == times.start_ps[after]
    assert sum(found.critical_path_times.values()) == found.step_time_ps
    assert found.critical_path_times["wait"] == 0


@given(runs())
def test_every_form_of_a_result_can_be_made(found):
    assert f"{len(found.graph.rank_names)} ranks" in found.details()
    assert found.to_json()["step_time_s"] == found.step_time_ps / 10**12
    table = found.record_table
    assert tuple(table.columns) == COLUMNS
    assert {len(column) for column in table.columns.values()} == {found.graph.num_tasks}


events = st.tuples(
    st.integers(0, 3), st.integers(0, 1), st.integers(0, 1), st.integers(-50, 50), st.sampled_from(MEMORY_CATEGORIES)
)


@given(st.lists(events, max_size=12), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=4, max_size=4))
def test_memory_equals_adding_up_change_by_change(changes, spans):
    times = records(*((start, start, start + length) for start, length in spans))
    resident = [[10, 0, 5, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 2]]
    timeline = memory_timeline(memory(changes, resident), times)
    for rank in (0, 1):
        moments = []
        for number, (task, at_end, owner, delta, category) in enumerate(changes):
            start, length = spans[task]
            instant = start + length if at_end else start
            first = at_end and length > 0
            if owner == rank:
                moments.append((instant, not first, task, at_end, number, delta, category))
        held = dict(zip(MEMORY_CATEGORIES, resident[rank], strict=True))
        best = (sum(held.values()), 0, dict(held))
        for instant, *_, delta, category in sorted(moments):
            held[category] += delta
            if sum(held.values()) > best[0]:
                best = (sum(held.values()), instant, dict(held))
        shown = {name: size for name, size in best[2].items() if size or name not in SELDOM}
        assert memory_peak(timeline, rank) == (best[1], best[0], shown)
