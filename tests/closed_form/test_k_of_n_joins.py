"""Does a join that needs k of n tasks end with the k-th, in both engines, independent of the others?"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.engine import run
from trine.errors import DeadlockError, InputError
from trine.graph.assembler import csr
from trine.graph.builder import TaskGraphBuilder

ENGINES = ("compiled", "reference")
both = pytest.mark.parametrize("engine", ENGINES)


def repeated(graph, task, predecessors, need):
    """Return the graph with other predecessors of one task, which the builder would refuse."""
    rows = [graph.predecessors(i).tolist() for i in range(graph.num_tasks)]
    rows[task] = predecessors
    ptr, idx = csr(rows)
    needs = graph.num_required.copy()
    needs[task] = need
    return replace(graph, predecessor_ptr=ptr, predecessor_idx=idx, num_required=needs)


@both
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_kth_smallest_end(engine, data):
    """Durations have few distinct values: many tasks end at one instant."""
    durations = data.draw(st.lists(st.sampled_from([0, 1, 1, 500, 10**6]), min_size=1, max_size=9))
    need = data.draw(st.integers(0, len(durations)))
    builder = TaskGraphBuilder([], [])
    tasks = [builder.compute(0, str(i), duration) for i, duration in enumerate(durations)]
    join = builder.join(tasks, need)
    after = builder.compute(0, "after", 7, [join])
    records = run(builder.build(), engine=engine)
    expected = sorted(durations)[need - 1] if need else 0
    assert records.ready_ps[join] == records.end_ps[join] == expected
    assert records.end_ps[after] == expected + 7
    assert records.end_ps[: len(tasks)].tolist() == durations  # the late ones still end


@both
@pytest.mark.parametrize("need", range(5))
def test_transfers_that_share_a_link(engine, need):
    """Four transfers of 1, 2, 3 and 4 kB share 1 GB/s: each ends after the smaller ones."""
    builder = TaskGraphBuilder([10**9], [0])
    sizes = [3000, 1000, 4000, 2000]
    tasks = [builder.transfer(0, 1, [0], size) for size in sizes]
    join = builder.join(tasks, need)
    records = run(builder.build(), engine=engine)
    # 4 flows until 1 kB each is through (4 us), then 3 (3 us more), then 2 (2 us), then 1 (1 us)
    assert records.end_ps[join] == [0, 4, 7, 9, 10][need] * 10**6
    assert int(records.end_ps.max()) == 10**7


@both
def test_a_late_predecessor_may_itself_wait_for_the_join(engine):
    """1 of 2: the second starts only after the join ends. This is a cycle for k = 2, but not for k = 1."""
    builder = TaskGraphBuilder([], [])
    first = builder.compute(0, "a", 100)
    join = builder.join([first, 2], 1)
    late = builder.compute(0, "b", 50, [join])
    records = run(builder.build(), engine=engine)
    assert (records.end_ps[join], records.end_ps[late]) == (100, 150)
    with pytest.raises(DeadlockError, match="cycle"):
        run(repeated(builder.build(), join, [first, late], 2), engine=engine)


@both
def test_the_message_of_a_deadlock_says_how_many_are_needed(engine):
    builder = TaskGraphBuilder([], [])
    first = builder.compute(0, "a", 100)
    builder.join([first, 2, 3], 2)
    builder.join([1])
    builder.join([1])
    with pytest.raises(DeadlockError, match="2 of 3 needed"):
        run(builder.build(), engine=engine)


@both
def test_none_needed_begins_at_once(engine):
    builder = TaskGraphBuilder([], [])
    slow = builder.compute(0, "a", 10**9)
    join = builder.join([slow], 0)
    empty = builder.join([])
    after = builder.compute(0, "b", 5, [join, empty])
    records = run(builder.build(), engine=engine)
    assert (records.end_ps[join], records.end_ps[empty], records.end_ps[after]) == (0, 0, 5)


@both
@pytest.mark.parametrize(("need", "expected"), [(0, 0), (1, 10), (2, 10), (3, 70), (4, 70), (5, 70)])
def test_a_predecessor_named_twice_counts_twice(engine, need, expected):
    """Files and the builder refuse duplicates, but arrays may hold them: both engines count entries, not tasks."""
    builder = TaskGraphBuilder([], [])
    early, late = builder.compute(0, "a", 10), builder.compute(0, "b", 70)
    join = builder.join([early, late])
    graph = repeated(builder.build(), join, [early, late, early, late, late], need)
    assert run(graph, engine=engine).end_ps[join] == expected
    with pytest.raises(InputError, match="twice"):
        builder.join([early, early])


@both
def test_more_than_there_are_is_refused(engine):
    builder = TaskGraphBuilder([], [])
    task = builder.compute(0, "a", 10)
    with pytest.raises(InputError, match="needs 2 of 1"):
        builder.join([task], 2)
    join = builder.join([task])
    with pytest.raises(InputError, match="more predecessors than it has"):
        run(repeated(builder.build(), join, [task], 2), engine=engine)


@both
def test_streams_keep_their_order(engine):
    """A task that a join releases early still waits for the task before it in its stream, and holds up the next one."""
    builder = TaskGraphBuilder([], [])
    blocker = builder.compute(0, "main", 300)
    fast, slow = builder.compute(1, "a", 10), builder.compute(1, "b", 1000)
    join = builder.join([fast, slow], 1)
    released = builder.compute(0, "main", 50, [join])
    both_of = builder.join([fast, slow], 2)
    held = builder.compute(0, "main", 1, [both_of])
    behind = builder.compute(0, "main", 1)
    records = run(builder.build(), engine=engine)
    assert records.ready_ps[released] == 10
    assert (records.start_ps[released], records.end_ps[released]) == (300, 350)
    assert records.start_ps[held] == 1000
    assert (records.ready_ps[behind], records.start_ps[behind]) == (0, 1001)
    assert records.end_ps[blocker] == 300


@both
def test_nested_joins_are_order_statistics_of_order_statistics(engine):
    rng = np.random.default_rng(5)
    builder = TaskGraphBuilder([], [])
    inner, expected = [], []
    for _ in range(12):
        durations = rng.integers(0, 50, 6).tolist()
        need = int(rng.integers(0, 7))
        tasks = [builder.compute(0, f"{builder.num_tasks}", d) for d in durations]
        inner.append(builder.join(tasks, need))
        expected.append(sorted(durations)[need - 1] if need else 0)
    outer = [builder.join(inner, need) for need in range(13)]
    records = run(builder.build(), engine=engine)
    assert records.end_ps[outer].tolist() == [0, *sorted(expected)]


@pytest.mark.parametrize(("engine", "network"), list(product(ENGINES, ("fair", "equal", "fifo"))))
def test_messages_of_one_instant(engine, network):
    """Eight equal messages on separate links: the join of any k ends when all do."""
    builder = TaskGraphBuilder([10**9] * 8, [1000] * 8)
    tasks = [builder.transfer(0, 1, [link], 10**6) for link in range(8)]
    joins = [builder.join(tasks, need) for need in range(1, 9)]
    records = run(builder.build(), engine=engine, network=network)
    assert set(records.end_ps[joins].tolist()) == {10**9 + 1000}
