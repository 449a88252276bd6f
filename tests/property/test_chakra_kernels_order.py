"""Random traces: tasks start after their predecessors, streams and queues keep their order, both engines agree."""

from __future__ import annotations

import numpy as np
import pytest
from chakra_loadstore_cases import random_ranks, run

from trine.graph.taskgraph import TRANSFER


def assert_causal(result):
    graph, records = result.graph, result.records
    assert (records.ready_ps >= 0).all()
    assert (records.start_ps >= records.ready_ps).all()
    assert (records.end_ps >= records.start_ps).all()
    owner = np.repeat(np.arange(graph.num_tasks), np.diff(graph.predecessor_ptr))
    assert (records.ready_ps[owner] >= records.end_ps[graph.predecessor_idx]).all()
    for stream in range(len(graph.stream_names)):
        tasks = np.flatnonzero(result.drawn.stream == stream)
        assert (records.start_ps[tasks[1:]] >= records.end_ps[tasks[:-1]]).all()


def assert_messages_arrive(result):
    """Check that no collective ends on a rank before all ranks start, and that messages arrive after they are sent."""
    graph, records = result.graph, result.records
    for number in range(len(graph.collectives)):
        members = np.flatnonzero((graph.labels.collective == number) & (graph.size_bytes > 0))
        assert records.end_ps[members].min() > records.start_ps[members].max()
    sends = np.flatnonzero((graph.kind == TRANSFER) & (graph.peer != graph.rank))
    for task in sends.tolist():
        assert records.end_ps[task] > records.start_ps[task]


@pytest.mark.parametrize("seed", range(25))
def test_order_is_kept(tmp_path, seed):
    result = run(tmp_path, random_ranks(seed, 2 + seed % 3))
    assert_causal(result)
    assert_messages_arrive(result)
    times = result.rank_times
    assert (times.compute + times.exposed + times.bubble + times.idle == result.end_time_ps).all()


@pytest.mark.parametrize("seed", range(100, 106))
def test_the_twin_says_the_same(tmp_path, seed):
    ranks = random_ranks(seed, 2)
    fast, slow = (run(tmp_path, ranks, engine=engine) for engine in ("compiled", "reference"))
    for name in ("ready_ps", "start_ps", "end_ps"):
        assert (getattr(fast.records, name) == getattr(slow.records, name)).all()
    for name in (
        "workgroup_cu",
        "workgroup_end_ps",
        "op_start_ps",
        "op_end_ps",
        "state_ps",
        "resource_busy_ps",
        "loads",
    ):
        assert (getattr(fast.gpu.records, name) == getattr(slow.gpu.records, name)).all()
