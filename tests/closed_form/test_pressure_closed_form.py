"""Are compute tasks under pressure slowed down as computed by hand?"""

from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uncontended import uncontended

from trine.engine import run
from trine.errors import SimulationError
from trine.graph.builder import TaskGraphBuilder

MS = 10**9
ENGINES = ("compiled", "reference")


def pressing(builder, *rows):
    """Return the graph with pressure: for each row (task, stream, ppm), the task slows the stream when it ends."""
    graph = builder.build()
    stream = np.full(graph.num_tasks, -1, np.int32)
    ppm = np.zeros(graph.num_tasks, np.int32)
    for task, number, taken in rows:
        stream[task], ppm[task] = number, taken
    return replace(graph, pressure_ppm=ppm, pressure_stream=stream)


def timed(builder, *instants_ps):
    """Add tasks that end at these instants, each on a separate stream."""
    return [builder.compute(0, f"clock {builder.num_tasks}", at) for at in instants_ps]


@pytest.mark.parametrize("engine", ENGINES)
def test_thirty_per_cent_for_four_milliseconds(engine):
    """10 ms of work, 30 % slower from 1 to 5 ms: 1.2 ms of work is left over."""
    builder = TaskGraphBuilder([], [])
    work = builder.compute(0, "main", 10 * MS)
    on, off = timed(builder, 1 * MS, 5 * MS)
    records = run(pressing(builder, (on, 0, 300_000), (off, 0, -300_000)), engine=engine)
    assert records.end_ps[work] == 11 * MS + MS // 5
    assert uncontended(pressing(builder, (on, 0, 300_000))).max() == 10 * MS


@pytest.mark.parametrize("engine", ENGINES)
def test_slow_to_the_end_rounds_up(engine):
    """1 ps of work runs at full speed; the other 9 ps at 700 000 millionths take 12.86 ps."""
    builder = TaskGraphBuilder([], [])
    work = builder.compute(0, "main", 10)
    (on,) = timed(builder, 1)
    assert run(pressing(builder, (on, 0, 300_000)), engine=engine).end_ps[work] == 1 + 13


@pytest.mark.parametrize("engine", ENGINES)
def test_the_next_task_of_the_stream_is_slow_from_its_start(engine):
    builder = TaskGraphBuilder([], [])
    first, nothing, second = (builder.compute(0, "main", ps) for ps in (MS, 0, MS))
    other = builder.compute(1, "main", MS)
    (on,) = timed(builder, 0)
    records = run(pressing(builder, (on, 0, 500_000)), engine=engine)
    assert records.end_ps[[first, nothing, second, other]].tolist() == [2 * MS, 2 * MS, 4 * MS, MS]


@pytest.mark.parametrize("engine", ENGINES)
def test_never_slower_than_a_hundredth_and_pressures_add_up(engine):
    builder = TaskGraphBuilder([], [])
    work = builder.compute(0, "main", MS)
    a, b, c = timed(builder, 0, 0, 10 * MS)
    graph = pressing(builder, (a, 0, 1_000_000), (b, 0, 600_000), (c, 0, -1_000_000))
    # 10 ms at 1 % do 0.1 ms of work; the other 0.9 ms run at 40 %.
    assert run(graph, engine=engine).end_ps[work] == 10 * MS + 2 * MS + MS // 4


@pytest.mark.parametrize("engine", ENGINES)
def test_changes_of_one_instant_count_together(engine):
    """Speed given and taken at the same instant leaves no trace, not even by rounding."""
    builder = TaskGraphBuilder([], [])
    work = builder.compute(0, "main", 1_000_003)
    on, first, second, third = timed(builder, 0, 1_001, 1_001, 1_001)
    graph = pressing(builder, (on, 0, 300_000), (first, 0, -300_000), (second, 0, 700_000), (third, 0, -400_000))
    undisturbed = pressing(builder, (on, 0, 300_000))
    expected = ceil(Fraction(1_000_003 * 10, 7))
    assert [run(g, engine=engine).end_ps[work] for g in (graph, undisturbed)] == [expected, expected]


@pytest.mark.parametrize("engine", ENGINES)
def test_more_given_back_than_was_taken(engine):
    builder = TaskGraphBuilder([], [])
    builder.compute(3, "main", MS)
    (off,) = timed(builder, 5)
    with pytest.raises(SimulationError, match=r"stream 0 \(main, rank 3\) .* more speed than it had lost, at 5 ps"):
        run(pressing(builder, (off, 0, -1)), engine=engine)


changes = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 300_000)), min_size=1, max_size=12)


@given(work=st.integers(1, 4000), changes=changes)
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_changes(work, changes):
    """Integrating the speed over time in fractions, instant by instant, gives the same end."""
    builder = TaskGraphBuilder([], [])
    builder.compute(0, "main", work)
    clocks = timed(builder, *(at for at, _ in changes))
    graph = pressing(builder, *((clock, 0, ppm) for clock, (_, ppm) in zip(clocks, changes, strict=True)))
    now, speed, left = Fraction(0), Fraction(1), Fraction(work)
    taken = 0
    for at, ppm in sorted(changes):
        if left <= speed * (at - now):
            break
        left -= speed * (at - now)
        now, taken = Fraction(at), taken + ppm
        speed = max(Fraction(1, 100), 1 - Fraction(taken, 10**6))
    for engine in ENGINES:
        assert run(graph, engine=engine).end_ps[0] == ceil(now + left / speed)


@given(changes=changes, where=st.integers(0, 11), more=st.integers(1, 300_000))
@settings(max_examples=60, deadline=None)
def test_more_pressure_never_ends_a_chain_earlier(changes, where, more):
    def end_ps(rows):
        builder = TaskGraphBuilder([], [])
        for duration_ps in (500, 0, 700, 1000):
            last = builder.compute(0, "main", duration_ps)
        clocks = timed(builder, *(at for at, _ in rows))
        graph = pressing(builder, *((clock, 0, ppm) for clock, (_, ppm) in zip(clocks, rows, strict=True)))
        return run(graph).end_ps[last]

    at, ppm = changes[where % len(changes)]
    heavier = [*changes]
    heavier[where % len(changes)] = at, ppm + more
    assert end_ps([(at, 0) for at, _ in changes]) == 2200
    assert 2200 <= end_ps(changes) <= end_ps(heavier)
