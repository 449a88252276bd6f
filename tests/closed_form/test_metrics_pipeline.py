"""The bubble of a pipeline is (P-1)/(M+P-1) of the step, on every stage."""

import numpy as np
import pytest
from results_graphs import labelled, result

from trine.engine.run import run
from trine.graph.builder import TaskGraphBuilder


def gpipe(stages, micro_batches, forward_ps, backward_ps, latency_ps=0):
    """All forwards, then all backwards; stage s and s+1 are joined by a link of the given latency each way."""
    builder = TaskGraphBuilder([10**12] * (2 * stages), [latency_ps] * (2 * stages))
    stage_of, done = [], {}

    def add(task, stage):
        stage_of.append(stage)
        return task

    for micro_batch in range(micro_batches):
        arrived = []
        for stage in range(stages):
            task = add(builder.compute(stage, "compute", forward_ps, arrived), stage)
            if stage + 1 < stages:
                arrived = [add(builder.transfer(stage, stage + 1, [stage], 0, [task]), stage)]
            done[micro_batch] = task
    for micro_batch in range(micro_batches):
        arrived = [done[micro_batch]]
        for stage in reversed(range(stages)):
            task = add(builder.compute(stage, "compute", backward_ps, arrived), stage)
            if stage:
                arrived = [add(builder.transfer(stage, stage - 1, [stages + stage], 0, [task]), stage)]
    return labelled(builder.build(), stage=stage_of)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 4), (4, 4), (3, 8)])
def test_bubble_is_the_share_that_theory_gives(stages, micro_batches):
    graph = gpipe(stages, micro_batches, 70, 140)
    times = (found := result(graph, run(graph, engine="reference"))).rank_times
    assert found.step_time_ps == (micro_batches + stages - 1) * 210
    assert times.bubble.tolist() == [(stages - 1) * 210] * stages
    assert times.compute.tolist() == [micro_batches * 210] * stages
    assert not times.idle.any()
    assert not times.exposed.any()


def test_one_stage_has_no_bubble():
    graph = gpipe(1, 3, 5, 7)
    times = result(graph, run(graph, engine="reference")).rank_times
    assert (times.bubble.tolist(), times.compute.tolist()) == ([0], [36])


def test_time_on_the_wire_is_exposed_communication_not_bubble():
    graph = gpipe(2, 1, 100, 200, latency_ps=10)
    times = result(graph, run(graph, engine="reference")).rank_times
    assert times.exposed.tolist() == [20, 20]
    assert times.bubble.tolist() == [300, 300]
    assert np.array_equal(times.communication, times.exposed)
