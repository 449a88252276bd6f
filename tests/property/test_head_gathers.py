"""More tensor-parallel ranks than heads of keys and values: folded = unfolded, and links carry what programs say."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from forms_of_parallelism import build, collectives, sent_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

import trine
from trine.cluster import build_topology
from trine.graph.taskgraph import TRANSFER
from trine.graph.workload import Workload
from trine.parallel.plan import Plan

MODEL = "{family: transformer, layers: 2, hidden: 64, heads: 8, kv_heads: %d, ffn: 96, vocab: 500, sequence: 32}"


@cache
def few_heads(kv_heads: int) -> Workload:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "few.yaml"
        path.write_text(MODEL % kv_heads)
        return trine.synthesize(path, gpu="h100-sxm", batch=2, software="none")


@st.composite
def plans(draw: Any) -> tuple[int, Plan]:
    kv_heads = draw(st.sampled_from([1, 2]), label="kv_heads")
    tp = draw(st.sampled_from([n for n in (2, 4, 8) if n > kv_heads]), label="tp")
    ways = {name: draw(st.sampled_from([1, 2]), label=name) for name in ("dp", "pp", "cp")}
    fields: dict[str, Any] = {"micro_batch": draw(st.sampled_from([1, 2]), label="micro_batch"), "batch": 2}
    fields["sequence_parallel"] = draw(st.booleans(), label="sequence_parallel")
    fields["recompute"] = draw(st.sampled_from(["none", "full", "selective"]), label="recompute")
    if ways["pp"] > 1:
        fields["schedule"] = draw(st.sampled_from(["gpipe", "1f1b", "zb-h1"]), label="schedule")
    if ways["cp"] > 1:
        fields["cp_style"] = draw(st.sampled_from(["ring", "all-gather"]), label="cp_style")
    if ways["dp"] * ways["cp"] > 1:
        fields["sharding"] = draw(st.sampled_from(["none", "zero2", "fsdp"]), label="sharding")
    return kv_heads, Plan(tp=tp, **ways, **fields)


@settings(max_examples=8, deadline=None)
@given(plans())
def test_every_plan_folds_and_moves_what_its_programs_say(case: tuple[int, Plan]) -> None:
    kv_heads, plan = case
    workload = few_heads(kv_heads)
    job, _ = build(workload, plan)
    cluster = build_topology("switch", "100 GB/s", "1 us", plan.num_ranks)
    result = trine.simulate(workload, plan, cluster=cluster, fold="verify")
    graph = trine.simulate(workload, plan, cluster=cluster, fold="off").graph
    moved = int(graph.size_bytes[graph.kind == TRANSFER].sum())
    programs = {number: sent_bytes(job, program) for number, program in enumerate(job.programs)}
    assert moved == pytest.approx(sum(programs[number] for number in job.program_of), rel=1e-3)
    assert result.step_time_ps > 0
    heads = [step for program in job.programs for step in collectives(program, axis="tp") if step.key[1] == "heads"]
    gathers = sum(step.size_bytes for step in heads if step.kind == "all_gather")
    again = 2 if plan.recompute == "full" else 1
    assert gathers == again * sum(step.size_bytes for step in heads if step.kind == "reduce_scatter") > 0
