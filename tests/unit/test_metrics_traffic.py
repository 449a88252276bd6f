from results_graphs import labelled, overlap, records, result

from trine.model.builder import TaskGraphBuilder
from trine.model.taskgraph import CollectiveLabel


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
