"""Does the builder store its arguments, and refuse invalid ones?"""

import pytest

from trine.engine.describe import describe_task
from trine.errors import InputError
from trine.graph.builder import TaskGraphBuilder
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER


def builder(**options):
    return TaskGraphBuilder([10, 20], [1, 2], link_names=["up", "down"], **options)


def test_columns():
    b = builder(rank_names=["x", "y"])
    assert b.transfer(0, 1, [0, 1], 64, after=[2], name="t") == 0
    assert b.transfer(1, 0, [1], 8) == 1
    assert b.transfer(0, 1, [0, 1], 65) == 2
    assert b.compute(1, "s", 7, after=[0, 1]) == 3
    assert b.compute(0, "s", 8) == 4
    assert b.compute(1, "s", 9) == 5
    assert b.join([3, 4], need=1, rank=1) == 6
    graph = b.build()
    assert graph.kind.tolist() == [TRANSFER] * 3 + [COMPUTE] * 3 + [JOIN]
    assert graph.rank.tolist() == [0, 1, 0, 1, 0, 1, 1]
    assert graph.peer.tolist() == [1, 0, 1, -1, -1, -1, -1]
    assert graph.stream.tolist() == [-1, -1, -1, 0, 1, 0, -1]
    assert (graph.stream_names, graph.stream_ranks) == (("s", "s"), (1, 0))
    assert graph.duration_ps.tolist() == [0, 0, 0, 7, 8, 9, 0]
    assert graph.size_bytes.tolist() == [64, 8, 65, 0, 0, 0, 0]
    assert graph.route.tolist() == [0, 1, 0, -1, -1, -1, -1]
    assert graph.route_ptr.tolist() == [0, 2, 3]
    assert graph.route_links.tolist() == [0, 1, 1]
    assert graph.route_latency_ps.tolist() == [3, 2]
    assert graph.num_required.tolist() == [1, 0, 0, 2, 0, 0, 1]
    assert graph.predecessor_ptr.tolist() == [0, 1, 1, 1, 3, 3, 3, 5]
    assert graph.predecessor_idx.tolist() == [2, 0, 1, 3, 4]
    assert graph.task_names[0] == "t"
    assert set(graph.labels.phase.tolist()) == {-1}
    assert describe_task(graph, 0) == "transfer 't' (task 0, x to y)"
    assert describe_task(graph, 3) == "compute task 3 (y, stream s)"
    assert describe_task(graph, 6) == "join task 6 (y)"


def test_ranks_are_named_by_number_where_they_have_no_names():
    b = builder()
    b.compute(2, "s", 1)
    assert b.build().rank_names == ("rank 0", "rank 1", "rank 2")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.compute(0, "s", -1, name="op"), "'op': a duration must not be negative"),
        (lambda b: b.compute(2, "s", 1), "task 0: there is no rank 2, there are 2"),
        (lambda b: b.compute(-1, "s", 1), "there is no rank -1"),
        (lambda b: b.transfer(0, 1, [2], 1), "there is no link 2, there are 2"),
        (lambda b: b.transfer(0, 1, [-1], 1), "there is no link -1"),
        (lambda b: b.transfer(0, 1, [0], -1), "a size must not be negative"),
        (lambda b: b.transfer(0, 5, [0], 1), "there is no rank 5"),
        (lambda b: b.join([0], need=2), "needs 2 of 1 tasks"),
        (lambda b: b.join([0, 0]), "waits for the same task twice"),
        (lambda b: (b.join([7], name="j"), b.build()), "'j': waits for task 7, but there are 1 tasks"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(InputError, match=message):
        build(builder(rank_names=["x", "y"]))


def test_links_need_all_their_columns():
    with pytest.raises(InputError, match="one bandwidth, one latency"):
        TaskGraphBuilder([1, 2], [1])
