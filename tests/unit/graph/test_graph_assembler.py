"""Does the assembler store its input, and does a new column of a task graph need only its declaration?"""

from dataclasses import fields

import numpy as np
import pytest

from trine.graph.assembler import LABEL_COLUMNS, TASK_COLUMNS, GraphAssembler, GraphLinks, take
from trine.graph.taskgraph import Labels, TaskGraph

LINKS = GraphLinks(np.array([10, 20]), np.array([1, 2]), ("up", "down"))
#: The fields of a task graph that are not columns of its tasks.
TABLES = {
    "predecessor_ptr", "predecessor_idx", "route_ptr", "route_links", "route_latency_ps", "route_counts",
    "route_cap_bytes_per_s",
    "link_bytes_per_s", "link_latency_ps", "link_names", "stream_names", "stream_ranks", "rank_names", "labels",
    "operator_names", "layer_names", "collectives", "task_names",
}  # fmt: skip


def column(graph: TaskGraph, name: str) -> np.ndarray:
    return getattr(graph.labels if name in LABEL_COLUMNS else graph, name)


def test_every_field_is_a_column_or_a_table():
    assert {field.name for field in fields(TaskGraph)} == TASK_COLUMNS.keys() | TABLES
    assert {field.name for field in fields(Labels)} == LABEL_COLUMNS.keys()


def test_every_column_is_appended_by_its_declaration():
    """No column is named here: a column added to TaskGraph or Labels is stored, filled, typed and taken."""
    columns = TASK_COLUMNS | LABEL_COLUMNS
    for name, declared in columns.items():
        assembler = GraphAssembler(LINKS)
        assert assembler.tasks(2) == 0
        assert assembler.tasks(3, **{name: [1, 2, 3]}) == 2
        assert assembler.tasks(1, **{name: 7}) == 5
        graph = assembler.build(rank_names=())
        unsaid = 0 if name == "num_required" else declared.fill
        assert column(graph, name).tolist() == [unsaid, unsaid, 1, 2, 3, 7], name
        assert column(graph, name).dtype == declared.dtype
        for other in columns.keys() - {name, "num_required"}:
            values = column(graph, other)
            assert (values is None) == columns[other].optional
            assert values is None or values.tolist() == [columns[other].fill] * 6
        kept = TaskGraph(**{f.name: getattr(graph, f.name) for f in fields(graph)} | take(graph, np.array([3, 5])))
        assert column(kept, name).tolist() == [2, 7]


def test_unknown_columns_are_refused():
    with pytest.raises(TypeError, match="colour"):
        GraphAssembler(LINKS).tasks(1, colour=3)


def test_edges_keep_their_order():
    assembler = GraphAssembler(LINKS)
    assembler.tasks(4, num_required=[-1, -1, 1, -1])
    assembler.connect([2, 3], [1, 2])
    assembler.connect([2, 1], [0, 0])
    graph = assembler.build(rank_names=("a",))
    assert graph.predecessor_ptr.tolist() == [0, 0, 1, 3, 4]
    assert graph.predecessor_idx.tolist() == [0, 1, 0, 2]
    assert graph.num_required.tolist() == [0, 1, 1, 1]


def test_routes_are_numbered_when_they_are_first_asked_for():
    assembler = GraphAssembler(LINKS)
    assert [assembler.route((0, 1), 3), assembler.route((), 0), assembler.route((0, 1), 3)] == [0, 1, 0]
    assert assembler.route((0, 1), 4) == 2
    graph = assembler.build(rank_names=())
    assert graph.route_ptr.tolist() == [0, 2, 2, 4]
    assert graph.route_latency_ps.tolist() == [3, 0, 4]
    assert graph.route_counts is None
    assert assembler.route((1,), 2, counts=(5,)) == 3
    assert assembler.build(rank_names=()).route_counts.tolist() == [1, 1, 1, 1, 5]
    assert graph.route_cap_bytes_per_s is None
    assert assembler.route((1,), 2, counts=(5,), cap=7) == 4
    assert assembler.build(rank_names=()).route_cap_bytes_per_s.tolist() == [0, 0, 0, 0, 7]


def test_streams_of_all_ranks_or_one_by_one():
    assembler = GraphAssembler(LINKS)
    assembler.repeat_streams(("compute", "cpu"), 2)
    graph = assembler.build(rank_names=("a", "b"))
    assert graph.stream_names == ("compute", "cpu", "compute", "cpu")
    assert graph.stream_ranks == (0, 0, 1, 1)
    assembler = GraphAssembler(LINKS)
    assert [assembler.stream(1, "x"), assembler.stream(0, "x"), assembler.stream(1, "x")] == [0, 1, 0]
    assert assembler.build(rank_names=("a", "b")).stream_ranks == (1, 0)
