"""Are the terms of a step the times worked out by hand, and do they add up to the breakdown of the rank?"""

from __future__ import annotations

import pytest
import results_graphs

from trine.graph.builder import TaskGraphBuilder
from trine.graph.program import Phase
from trine.graph.taskgraph import CollectiveLabel
from trine.results.terms import step_terms


def test_terms_of_a_rank_with_overlapped_and_exposed_transfers() -> None:
    result = results_graphs.result(*results_graphs.overlap())
    compute, exposed, idle = step_terms(result.graph, result.records, result.window, result.wait_reasons, 0)
    assert compute == {"forward": 30, "backward": 30, "optimizer": 10}
    assert exposed == {"dp": 20}  # 50 to 90, less the backward pass until 70
    assert idle == {"input_copy": 10}  # 0 to 10: the first operator waits for the copy of the inputs


def test_an_instant_of_two_axes_counts_for_the_first() -> None:
    """Two ranks: tp transfer 0-30, dp transfer 20-60, compute 60-70."""
    builder = TaskGraphBuilder([10**12] * 2, [0, 0], link_names=["a", "b"], rank_names=["a", "b"])
    first = builder.transfer(0, 1, [0], 30)
    second = builder.transfer(0, 1, [1], 40)
    builder.compute(0, "compute", 10, [first, second])
    names = {"dp": 1, "tp": 0}
    labels = tuple(
        CollectiveLabel(kind="all_reduce", algorithm="ring", size_bytes=1, ranks=(0, 1), axis=axis)
        for axis in sorted(names, key=names.__getitem__)
    )
    graph = results_graphs.labelled(
        builder.build(), collective=[0, 1, -1], phase=[Phase.FORWARD] * 3, step=[0] * 3, collectives=labels
    )
    run = results_graphs.records((0, 0, 30), (20, 20, 60), (60, 60, 70))
    result = results_graphs.result(graph, run)
    assert step_terms(graph, run, result.window, result.wait_reasons, 0).exposed == {"tp": 30, "dp": 30}


GPT = "model:gpt-2,layers=2,sequence=128"


@pytest.mark.parametrize(
    ("workload", "plan"),
    [
        (GPT, {"dp": 2, "tp": 2, "batch": 2}),
        (GPT, {"pp": 2, "batch": 4, "micro_batch": 1, "recompute": "full"}),
        (GPT, {"dp": 4, "sharding": "fsdp"}),
        (GPT, {"dp": 2, "offload": "optimizer", "steps": 2}),
        ("model:mixtral-8x7b,layers=2,sequence=128", {"dp": 4, "ep": 4}),
        ("vgg13-h100-b128", {"dp": 2, "data": "dp"}),
    ],
    ids=["dp-tp", "pp", "fsdp", "offload", "experts", "data-parallel"],
)
def test_terms_add_up_to_the_breakdown_of_the_rank(workload: str, plan: dict[str, object]) -> None:
    from trine import Plan, simulate

    result = simulate(workload, Plan(**plan), cluster="dgx-h100", compare=False)
    times, row = result.rank_times, result.slowest_row
    compute, exposed, idle = (sum(part.values()) for part in result.terms)
    assert compute == int(times.compute[row])
    assert exposed == int(times.exposed[row])
    assert idle == int(times.bubble[row] + times.idle[row])
    assert result.terms.idle.get("bubble", 0) == int(times.bubble[row])
    assert compute + exposed + idle == result.step_time_ps


@pytest.mark.parametrize("plan", [{"pp": 2, "batch": 64, "schedule": "1f1b"}, {"dp": 2, "batch": 64}], ids=["pp", "dp"])
def test_terms_of_repeated_micro_batches_are_those_of_all(plan: dict[str, object]) -> None:
    from trine import Plan, simulate

    layout = Plan(micro_batch=1, **plan)
    folded, whole = (simulate(GPT, layout, cluster="dgx-h100", compare=False, fold=fold) for fold in ("on", "off"))
    assert folded.repeats is not None
    assert folded.terms == whole.terms
