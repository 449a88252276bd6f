"""Does every pipeline end, run each operator as often as it should, and send what crosses its cuts, both ways?"""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from small_transformers import B, Transformer

import trine
from trine.cluster import build_topology
from trine.compute import make_compute
from trine.graph.program import Compute, Phase, Recv, Send
from trine.parallel.build import build_job


@st.composite
def plans(draw):
    """Plans of up to 4 ranks in the pipeline that their schedules accept."""
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe"]))
    ranks = 2 * draw(st.integers(1, 2)) if schedule == "dualpipe" else draw(st.integers(2, 4))
    ways = draw(st.integers(2, 3)) if schedule == "interleaved" else 1
    count = ranks * draw(st.integers(1, 2)) if schedule == "interleaved" else draw(st.integers(1, 6))
    count = 2 * ranks + 2 * (count // 2) if schedule == "dualpipe" else count
    return trine.Plan(
        pp=ranks,
        virtual_stages=ways,
        schedule=schedule,
        tp=draw(st.sampled_from([1, 2])),
        dp=draw(st.sampled_from([1, 2])),
        tp_style="megatron",
        batch=count * B,
        micro_batch=B,
        balance=draw(st.sampled_from(["time", "layers"])),
        recompute=draw(st.sampled_from(["none", "full", "selective"])),
        steps=draw(st.integers(1, 2)),
    )


@settings(max_examples=60, deadline=None)
@given(plans(), st.integers(11, 14))
def test_operators_messages_and_the_end(plan, layers):
    workload = Transformer(layers).workload()
    job, report = build_job(workload, plan.filled(), make_compute("auto", workload))
    count = len(report.micro_batches) * plan.steps
    times = Counter()
    sent, received = Counter(), Counter()
    for rank, program in enumerate(job.programs):
        halves = Counter()
        for step in program.steps:
            if isinstance(step, Compute) and step.label.phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE):
                key = (step.label.operator, step.label.phase, step.label.microbatch, step.label.step)
                halves[key] += 1
            elif isinstance(step, Send):
                sent[rank, step.peer.position, step.tag] += 1
            elif isinstance(step, Recv):
                received[step.peer.position, rank, step.tag] += 1
        assert set(halves.values()) <= {1, 2}
        times.update(key[:2] for key in halves)
    assert sent == received
    assert set(sent.values()) <= {1}
    names = {i: op.phase for i, op in enumerate(workload.operators)}
    assert times == Counter(
        {(i, {"forward": 0, "backward": 1}[phase]): count for i, phase in names.items()}
        | {key: count for key in times if key[1] == Phase.RECOMPUTE}
    )


@settings(max_examples=20, deadline=None)
@given(plans(), st.integers(11, 12))
def test_the_step_lies_between_the_busiest_rank_and_the_sum_of_all(plan, layers):
    workload = Transformer(layers).workload()
    cluster = build_topology("full", "100 GB/s", "1 us", plan.num_ranks)
    result = trine.simulate(workload, plan, cluster=cluster, fold="off")
    times = result.rank_times
    assert max(times.compute.tolist()) <= result.step_time_ps
    assert (times.compute + times.exposed + times.bubble + times.idle == result.step_time_ps).all()
    assert all(peak.total_bytes > 0 for peak in result.memory_peaks)
