"""Does every combination of forms of parallelism run, and move the bytes that its programs say?"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from forms_of_parallelism import build, collectives, model, sent_bytes
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trine.cluster import build_topology
from trine.compute import make_compute
from trine.graph.program import Send
from trine.graph.taskgraph import TRANSFER
from trine.parallel.job import JobContext
from trine.parallel.plan import Plan
from trine.training import simulate

ORDERS = ("tp-cp-ep-dp-pp", "pp-dp-ep-cp-tp", "ep-tp-dp-cp-pp", "cp-pp-tp-dp-ep")


def chosen(draw: Any, name: str, *values: object) -> Any:
    return draw(st.sampled_from(values), label=name)


@st.composite
def plans(draw: Any) -> tuple[bool, Plan]:
    """A model with experts or without, and a plan that may suit it."""
    moe = draw(st.booleans(), label="moe")
    ways = {name: chosen(draw, name, 1, 2) for name in ("dp", "tp", "cp", "pp")}
    ways["dp"] *= chosen(draw, "more", 1, 2)
    fields: dict[str, Any] = {"batch": 2, "micro_batch": chosen(draw, "micro_batch", 1, 2), "steps": 1}
    if moe and ways["dp"] > 1:
        fields["ep"] = chosen(draw, "ep", *(e for e in (1, 2, 4) if ways["dp"] % e == 0))
    if fields.get("ep", 1) > 1:
        fields["expert_imbalance"] = chosen(draw, "imbalance", "balanced", "zipf:0.8")
    if ways["dp"] * ways["cp"] > 1:
        fields |= _of_replicas(draw, ways, fields.get("ep", 1))
    if ways["tp"] > 1:
        fields["tp_style"] = chosen(draw, "tp_style", "column", "megatron")
        if fields["tp_style"] == "megatron" and draw(st.booleans(), label="sequence_parallel"):
            fields |= {"sequence_parallel": True, "tp_overlap": chosen(draw, "tp_overlap", 1, 3)}
            fields["userbuffers"] = fields["tp_overlap"] == 1 and draw(st.booleans(), label="userbuffers")
    if ways["cp"] > 1:
        fields["cp_style"] = chosen(draw, "cp_style", "ring", "all-gather", "ulysses")
    if ways["pp"] > 1:
        fields["schedule"] = chosen(draw, "schedule", "gpipe", "1f1b", "zb-h1")
    fields["recompute"] = chosen(draw, "recompute", "none", "full", "selective")
    if sum(n > 1 for n in ways.values()) > 1:
        fields["order"] = chosen(draw, "order", *ORDERS)
    return moe, Plan(**ways, **fields)


def _of_replicas(draw: Any, ways: dict[str, int], ep: int) -> dict[str, Any]:
    sharding = chosen(draw, "sharding", "none", "zero1", "zero2", "zero3", "fsdp")
    fields: dict[str, Any] = {"sharding": sharding, "dp_overlap": draw(st.booleans(), label="dp_overlap")}
    if sharding != "none":
        fields["prefetch"] = chosen(draw, "prefetch", None, 0, 1)
        if ways["dp"] == 4 and 2 % ep == 0:
            fields["shard_ways"] = chosen(draw, "shard_ways", None, 2)
    if sharding == "fsdp":
        fields["reshard"] = draw(st.booleans(), label="reshard")
    return fields


@settings(max_examples=25, deadline=None)
@given(plans())
def test_every_plan_runs_and_moves_what_its_programs_say(case: tuple[bool, Plan]) -> None:
    moe, plan = case
    workload = model("mixtral-8x7b" if moe else "llama-3-8b", layers=2, sequence=64)
    job, _ = build(workload, plan)
    if plan.num_ranks == 1:
        return
    cluster = build_topology("switch", "100 GB/s", "1 us", plan.num_ranks)
    result = simulate(workload, plan, cluster=cluster, fold="off")
    graph = result.graph
    moved = int(graph.size_bytes[graph.kind == TRANSFER].sum())
    programs = {number: sent_bytes(job, program) for number, program in enumerate(job.programs)}
    assert moved == pytest.approx(sum(programs[number] for number in job.program_of), rel=1e-4)
    assert int(result.records.end_ps.min()) >= 0
    folded = simulate(workload, plan, cluster=cluster)
    assert folded.step_time_ps == result.step_time_ps


@settings(max_examples=40, deadline=None)
@given(plans())
def test_gradients_are_reduced_once_a_step_or_once_a_micro_batch(case: tuple[bool, Plan]) -> None:
    moe, plan = case
    assume(plan.dp * plan.cp > 1)
    workload = model("mixtral-8x7b" if moe else "llama-3-8b", layers=2, sequence=64)
    job, report = build(workload, plan)
    context = JobContext(workload, plan.filled(), make_compute("auto", workload), None)
    experts, groups = context.token_partition.expert_weights, plan.groups
    times = len(report.micro_batches) if plan.reduces_each else 1
    positions = len(job.programs) // plan.pp
    for stage, weights in enumerate(context.weights):
        sizes = [0, 0]
        for owned in weights:
            sizes[owned.weight in experts] += context.local_bytes[owned.weight]
        steps = collectives(job.programs[stage * positions])
        found = {word: Counter[str]() for word in ("bucket", "copies")}
        for step in steps:
            if step.key[0] in found:
                found[str(step.key[0])][step.axis] += step.size_bytes
                is_scattered = plan.sharding != "none" and step.key[0] == "bucket"
                assert step.kind == ("reduce_scatter" if is_scattered else "all_reduce")
        wanted = Counter({groups.shard: sizes[0] * times})
        wanted[groups.expert_shard] += sizes[1] * times
        wanted.pop("", None)
        assert +wanted == found["bucket"]
        if groups.copies:
            ways = groups.size(groups.shard), groups.size(groups.expert_shard)
            parts = sum(size / n for size, n in zip(sizes, ways, strict=True)) * times
            assert found["copies"][groups.copies] == pytest.approx(parts, rel=1e-4)


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_messages_between_stages_are_the_parts_that_ranks_hold(cp: int, sequence_parallel: bool) -> None:
    """Between two layers the activations of a micro-batch cross the cut, 64 x 4096 in bfloat16 a sample."""
    plan = Plan(
        pp=2, tp=2, cp=cp, tp_style="megatron", sequence_parallel=sequence_parallel, cuts=("layers.1.attention.norm",),
        batch=2, micro_batch=1,
    )  # fmt: skip
    job, _ = build(model(layers=2, sequence=64), plan)
    sizes = [s.size_bytes for s in job.programs[0].steps if isinstance(s, Send)]
    assert sizes == [64 * 4096 * 2 // cp // (2 if sequence_parallel else 1)] * 2
