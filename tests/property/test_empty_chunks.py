"""Random lists of blocks for pipeline chunks, many of them empty: do activations pass on, and are layers conserved?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import trine
from trine.cluster import build_topology
from trine.graph.program import Recv, Send
from trine.parallel.build import build_job
from trine.training.memory import NoTimes
from trine.workload.synthesis.model import synthesize

LAYERS = 4
MODEL = synthesize("llama-3-8b", layers=LAYERS, sequence=256)


@st.composite
def plans(draw) -> trine.Plan:
    pp, virtual = draw(st.sampled_from([(2, 1), (3, 1), (4, 1), (2, 3), (4, 2)]))
    parts = [0] * (pp * virtual)
    for _ in range(LAYERS):
        parts[draw(st.integers(0, len(parts) - 1))] += 1
    schedules = ["interleaved"] if virtual > 1 else ["1f1b", "gpipe", "zb-h1"]
    schedule = draw(st.sampled_from(schedules))
    fields: dict[str, object] = {
        "dp": draw(st.sampled_from([1, 2])),
        "recompute": draw(st.sampled_from(["none", "full"])),
    }
    if fields["dp"] == 2:
        fields["sharding"] = draw(st.sampled_from(["none", "zero1", "fsdp"]))
    if schedule != "zb-h1" and fields.get("sharding") != "fsdp":
        fields["defer_head_gradient"] = draw(st.sampled_from([None, 0, 2]))
    return trine.Plan(
        pp=pp,
        virtual_stages=virtual,
        stage_layers=tuple(parts),
        schedule=schedule,
        batch=2 * pp,
        micro_batch=1,
        **fields,
    )


def simulate(plan: trine.Plan, **options):
    cluster = build_topology("full", "100 GB/s", "1 us", plan.num_ranks)
    return trine.simulate(MODEL, plan, cluster=cluster, software="none", compare=False, **options)


@settings(max_examples=25, deadline=None)
@given(plans())
def test_every_message_goes_to_the_next_chunk_and_all_work_is_done(plan: trine.Plan) -> None:
    job, _ = build_job(MODEL, plan.filled(), NoTimes())
    chunks, messages = plan.pp * plan.virtual_stages, 2 * plan.pp
    for kind in (Send, Recv):
        pairs: dict[tuple[object, ...], int] = {}
        for program in job.programs:
            for step in program.steps:
                if isinstance(step, kind) and step.tag[0] == "pp":
                    pairs[step.tag[1:4]] = pairs.get(step.tag[1:4], 0) + 1
        hops = {(source, target) for _, source, target in pairs}
        assert hops == {(chunk, chunk + 1) for chunk in range(chunks - 1)}
        assert set(pairs.values()) == {messages}
    folded, whole = simulate(plan), simulate(plan, fold="off")
    assert folded.step_time_ps == whole.step_time_ps
    graph, records = whole.graph, whole.records
    after = np.repeat(np.arange(len(graph.kind)), np.diff(graph.predecessor_ptr))
    assert (records.end_ps[graph.predecessor_idx] <= records.start_ps[after]).all()


@settings(max_examples=15, deadline=None)
@given(plans())
def test_the_sum_of_compute_does_not_depend_on_the_cuts(plan: trine.Plan) -> None:
    assume(plan.dp == 1 and plan.recompute == "none")
    even = trine.Plan(pp=2, batch=plan.batch, micro_batch=1, schedule="gpipe")
    total = int(np.sum(simulate(plan).rank_times.compute))
    assert total == pytest.approx(int(np.sum(simulate(even).rank_times.compute)), rel=1e-2)
