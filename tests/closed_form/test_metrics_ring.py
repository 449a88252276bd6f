"""A ring all-reduce beside backward takes 2(N-1) x (chunk / bandwidth + latency); its tail is exposed."""

import pytest
from results_graphs import labelled, result

from trine.engine.run import run
from trine.graph.builder import TaskGraphBuilder
from trine.graph.taskgraph import CollectiveLabel


def two_layers(ranks, chunk_bytes, latency_ps, first_ps, second_ps):
    """Build backward of two layers on each rank; a ring reduces the gradients of the first during the second."""
    builder = TaskGraphBuilder([10**12] * ranks, [latency_ps] * ranks)
    early = [builder.compute(rank, "compute", first_ps) for rank in range(ranks)]
    held = early
    for rank in range(ranks):
        builder.compute(rank, "compute", second_ps)
    for step in range(2 * (ranks - 1)):
        after = [[held[rank]] if step else [early[rank], early[(rank + 1) % ranks]] for rank in range(ranks)]
        sent = [builder.transfer(r, (r + 1) % ranks, [r], chunk_bytes, after[r]) for r in range(ranks)]
        held = [sent[rank - 1] for rank in range(ranks)]
    graph = builder.build()
    label = CollectiveLabel(
        kind="all_reduce", algorithm="ring", size_bytes=ranks * chunk_bytes, ranks=tuple(range(ranks)), axis="dp"
    )
    in_collective = [0 if kind == 1 else -1 for kind in graph.kind]
    return labelled(graph, collective=in_collective, collectives=(label,))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("second_ps", [0, 1000, 10**6])
def test_communication_and_its_exposed_tail(ranks, second_ps):
    graph = two_layers(ranks, 500, 7, 300, second_ps)
    found = result(graph, run(graph, engine="reference"))
    communication = 2 * (ranks - 1) * (500 + 7)
    assert found.rank_times.communication.tolist() == [communication] * ranks
    assert found.rank_times.exposed.tolist() == [max(0, communication - second_ps)] * ranks
    assert found.step_time_ps == 300 + max(second_ps, communication)
    (use,) = found.collectives
    assert (use.kind, use.size_bytes, use.count, use.group_size) == ("all_reduce", 500 * ranks, 1, ranks)
    assert use.time_ps == communication
    assert [link.size_bytes for link in found.links] == [2 * (ranks - 1) * 500] * ranks
