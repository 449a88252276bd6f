import numpy as np
from results_graphs import labelled, overlap, records, result

from trine.graph.builder import TaskGraphBuilder
from trine.graph.taskgraph import CollectiveLabel
from trine.results.only_ranks import only_ranks
from trine.results.waits import through_joins


def test_links_carry_what_their_routes_carry():
    builder = TaskGraphBuilder([10**12, 10**12, 10**12], [0, 0, 0], link_names=["a", "b", "unused"])
    builder.transfer(0, 1, [0, 1], 30)
    builder.transfer(0, 1, [0], 20)
    builder.transfer(1, 0, [0, 1], 10)
    found = result(builder.build(), records((0, 0, 30), (0, 0, 50), (50, 50, 100)))
    assert [(use.name, use.size_bytes, use.utilisation) for use in found.links] == [
        ("a", 60, 0.6), ("b", 40, 0.4), ("unused", 0, 0.0),
    ]  # fmt: skip


def test_collectives_are_counted_as_one_rank_sees_them():
    builder = TaskGraphBuilder([1], [0])
    for start in (0, 1, 2, 3):
        builder.transfer(start, (start + 1) % 4, [0], 1)
    pair = {"kind": "all_reduce", "algorithm": "ring", "size_bytes": 8, "axis": "tp"}
    collectives = (
        CollectiveLabel(ranks=(0, 1), **pair),
        CollectiveLabel(ranks=(0, 1), **pair),
        CollectiveLabel(ranks=(2, 3), **pair),
        CollectiveLabel(kind="broadcast", algorithm="direct", size_bytes=4, ranks=(0, 1, 2, 3), axis="dp"),
    )
    graph = labelled(builder.build(), collective=[0, 1, 2, 3], collectives=collectives)
    found = result(graph, records((0, 0, 10), (0, 10, 30), (0, 0, 15), (0, 30, 35)))
    assert [(u.kind, u.size_bytes, u.group_size, u.count, u.total, u.time_ps) for u in found.collectives] == [
        ("all_reduce", 8, 2, 2, 3, 30),
        ("broadcast", 4, 4, 1, 1, 5),
    ]


def test_only_collectives_of_the_last_step_count():
    builder = TaskGraphBuilder([1], [0])
    builder.transfer(0, 1, [0], 1)
    builder.transfer(0, 1, [0], 1)
    label = overlap()[0].collectives[0]
    later = CollectiveLabel(kind=label.kind, algorithm="direct", size_bytes=40, ranks=(0, 1), axis="dp", step=1)
    graph = labelled(builder.build(), collective=[0, 1], step=[0, 1], collectives=(label, later))
    found = result(graph, records((0, 0, 10), (10, 10, 17)))
    assert [(use.count, use.total, use.time_ps) for use in found.collectives] == [(1, 1, 7)]


def messages_of_three():
    """Rank 0 sends 30 B to rank 1 twice and to itself, rank 1 sends 30 B to rank 2, and 7 B to rank 0."""
    builder = TaskGraphBuilder([1, 1], [0, 0], rank_names=["a", "b", "c"])
    for source, target, size in ((0, 1, 30), (0, 1, 30), (0, 0, 30), (1, 2, 30), (1, 0, 7)):
        builder.transfer(source, target, [0], size)
    return builder.build(), records((0, 0, 10), (0, 10, 30), (0, 0, 500), (0, 5, 8), (0, 1, 2))


def test_messages_are_counted_at_the_rank_that_has_most_of_them():
    found = result(*messages_of_three())
    assert [(use.size_bytes, use.count, use.total, use.time_ps) for use in found.collectives] == [
        (30, 3, 3, 33), (7, 1, 1, 1),
    ]  # fmt: skip


def test_a_part_keeps_which_of_its_ranks_take_part_in_a_collective():
    builder = TaskGraphBuilder([1], [0], rank_names=["a", "b", "c"])
    for start in (0, 1, 2):
        builder.transfer(start, (start + 1) % 3, [0], 1)
    label = CollectiveLabel(kind="all_reduce", algorithm="ring", size_bytes=8, ranks=(0, 1, 2), axis="dp")
    graph = labelled(builder.build(), collective=[0, 0, 0], collectives=(label,))
    part = only_ranks(result(graph, records((0, 0, 10), (0, 10, 30), (0, 0, 15))), [2, 1])
    assert [(one.ranks, one.num_ranks) for one in part.graph.collectives] == [((1, 0), 3)]
    assert part.graph.rank_names == ("c", "b")
    # from a, which is not shown, to b; from b to c; from c to a
    assert sorted(zip(part.graph.rank.tolist(), part.graph.peer.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1)]


def test_what_released_a_task_behind_joins_is_the_work_before_them():
    builder = TaskGraphBuilder([1], [0])
    start = builder.join([])
    first = builder.compute(0, "compute", 5)
    both = builder.join([first, start])
    behind = builder.compute(0, "compute", 5, [builder.join([both])])
    alone = builder.compute(0, "other", 5, [start])
    graph = builder.build()
    direct = np.array([-1, -1, first, both, both + 1, start])
    found = through_joins(graph, direct).tolist()
    assert (found[behind], found[alone]) == (first, -1)
