"""Do the forms of overlap by userbuffers expose what they must, move the same bytes, and take few SMs?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import trine
from trine.errors import PlanError
from trine.graph.program import Collective, Compute, Job
from trine.graph.workload import Workload
from trine.parallel.contention import (
    BULK,
    PIPELINE,
    RING,
    Bound,
    ChannelUse,
    CommunicationKernels,
    kernels_of,
    pressure_ppm,
    userbuffer_channels,
)
from trine.parallel.tensor_times import gathered_end_ps, scattered_end_ps

PLAN = trine.Plan(tp=4, dp=2, batch=2, micro_batch=1, sequence_parallel=True, overlap="modelled")
PROGRAM_PLAN = replace(PLAN, dp=1)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return trine.synthesize("llama-3-8b", gpu="h100-sxm", layers=2, sequence=8192, software="megatron-core")


def jobs_of(workload: Workload, plan: trine.Plan, nodes: int = 1, **options: object) -> tuple[Job, trine.Result]:
    """Return the programs that a simulation writes, and its result."""
    jobs: list[Job] = []
    result = trine.simulate(
        workload, plan, cluster=trine.load_cluster("dgx-h100", nodes=nodes, gpus=plan.num_ranks),
        software="megatron-core", compare=False, on_job=jobs.append, **options,
    )  # fmt: skip
    return jobs[0], result


def sent_bytes(job: Job, tp: int) -> int:
    """Return the bytes a rank sends for tensor parallelism; shifts send their payload, others (tp - 1) / tp."""
    sent = 0
    for step in job.programs[0].steps:
        if (
            isinstance(step, Collective)
            and step.kind in ("all_gather", "reduce_scatter", "shift")
            and step.axis == "tp"
        ):
            sent += step.size_bytes * tp if step.kind == "shift" else step.size_bytes * (tp - 1)
    return sent // tp


# -- exposure ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_ring_exposes_nothing_if_a_piece_lasts_as_long_as_its_transfer(tp: int) -> None:
    arrivals = [i * 100 for i in range(tp)]
    assert gathered_end_ps(100, arrivals) == tp * 100
    assert gathered_end_ps(150, arrivals) == tp * 150
    assert gathered_end_ps(40, arrivals) == (tp - 1) * 100 + 40  # else all transfers, and the last piece


@pytest.mark.parametrize("pieces", [2, 4])
def test_a_pipeline_exposes_its_last_transfer(pieces: int) -> None:
    assert scattered_end_ps(100, 100, pieces) == (pieces + 1) * 100
    assert scattered_end_ps(100, 30, pieces) == pieces * 100 + 30
    assert scattered_end_ps(30, 100, pieces) == 30 + pieces * 100


def test_exposure_in_a_simulated_step(workload: Workload) -> None:
    """Forward pass without contention: of each pipeline the last of 4 transfers is exposed, of each ring nothing.

    Whole all-gathers and reduce-scatters of the same layers are exposed in full.
    """
    plan = replace(PROGRAM_PLAN, overlap="ideal", batch=1)
    job, result = jobs_of(workload, replace(plan, userbuffers=True))
    whole_job, whole = jobs_of(workload, plan)
    steps = job.programs[0].steps
    forward = Counter(s.queue for s in steps if isinstance(s, Collective) and s.label.phase == 0 and s.axis == "tp")
    layers = 2
    assert forward[PIPELINE] == layers * 4  # fc2; proj is too short beside its reduce-scatter for pieces to pay
    assert forward[RING] == layers * 2 * 3  # qkv and fc1
    backward = Counter(s.queue for s in steps if isinstance(s, Collective) and s.label.phase == 1 and s.axis == "tp")
    assert backward[BULK] > 0
    assert backward[RING] == layers * 2 * 3  # gradients of the inputs of proj and fc2
    assert PIPELINE not in backward
    assert not any(s.queue for s in whole_job.programs[0].steps if isinstance(s, Collective) and s.axis == "tp")
    assert result.exposed_communication_s < whole.exposed_communication_s / 2
    assert result.step_time_ps < whole.step_time_ps


# -- bytes and shapes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_same_bytes_move(workload: Workload, recompute: str) -> None:
    plan = replace(PROGRAM_PLAN, recompute=recompute)
    whole, _ = jobs_of(workload, plan)
    cut, _ = jobs_of(workload, replace(plan, userbuffers=True))
    assert sent_bytes(cut, 4) == sent_bytes(whole, 4)


def test_pieces_are_gemms_with_shapes_of_their_own(workload: Workload) -> None:
    """A piece takes as long as the tables say for a quarter of the tokens, not a quarter of the whole GEMM's time."""
    quarter = trine.synthesize("llama-3-8b", gpu="h100-sxm", layers=2, sequence=2048, software="megatron-core")
    alone, _ = jobs_of(quarter, replace(PROGRAM_PLAN, overlap="ideal"))
    cut, _ = jobs_of(workload, replace(PROGRAM_PLAN, overlap="ideal", userbuffers=True))
    whole, _ = jobs_of(workload, replace(PROGRAM_PLAN, overlap="ideal"))

    def times(job: Job) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for step in job.programs[0].steps:
            if isinstance(step, Compute) and step.stream == "compute":
                found.setdefault(step.label.operator, set()).add(step.duration_ps)
        return found

    pieces, quarters, wholes = times(cut), times(alone), times(whole)
    changed = [operator for operator in pieces if pieces[operator] != wholes[operator]]
    assert len(changed) == 2 * 5  # qkv, fc1 and fc2 forward, gradients of the inputs of proj and fc2
    for operator in changed:
        assert pieces[operator] <= quarters[operator]
        assert all(4 * piece != one for piece in pieces[operator] for one in wholes[operator])


# -- SMs ---------------------------------------------------------------------------------------------------------------


def test_userbuffers_take_few_sms(workload: Workload) -> None:
    """Ring: 1 SM. Bulk: 4. Pipelines take 16, which GEMMs leave free, so that no block waits for a second wave."""
    h100, cluster = trine.load_gpu("h100-sxm"), trine.load_cluster("dgx-h100")
    kernels: CommunicationKernels = kernels_of(h100, workload, cluster, np.arange(8), None)
    use, bound = ChannelUse(24, 1e11, 10**9), kernels.bound
    assert [userbuffer_channels(queue) for queue in (RING, PIPELINE, BULK)] == [1, 16, 4]
    for queue in (RING, BULK):
        fewer = use._replace(channels=userbuffer_channels(queue))
        assert kernels.ppm([use], 10**9, queue) == pressure_ppm(h100, fewer, bound, 10**9)
        assert kernels.ppm([use], 10**9, queue) < kernels.ppm([use], 10**9)
    shares = pressure_ppm(h100, use._replace(channels=16), Bound(memory=bound.memory))
    assert kernels.ppm([use], 10**9, PIPELINE) == kernels.ppm([use], 0, PIPELINE) == shares


# -- conditions --------------------------------------------------------------------------------------------------------


def test_folding_equals_the_unfolded_run(workload: Workload) -> None:
    plan = replace(PLAN, userbuffers=True, pp=1)
    folded = trine.simulate(
        workload, plan, cluster="dgx-h100", software="megatron-core", compare=False, fold="verify"
    )  # fmt: skip
    whole = trine.simulate(workload, plan, cluster="dgx-h100", software="megatron-core", compare=False, fold="off")
    assert folded.step_time_ps == whole.step_time_ps


def test_a_profile_turns_them_on_where_groups_lie_within_a_domain(workload: Workload) -> None:
    plan = replace(PLAN, dp=1, batch=1)
    for wide, expected in ((4, True), (16, False)):
        cluster = trine.load_cluster("dgx-h100", nodes=-(-wide // 8), gpus=wide)
        small = trine.synthesize("llama-2-7b", gpu="h100-sxm", layers=1, sequence=2048, software="nemo-25")
        result = trine.simulate(small, replace(plan, tp=wide), cluster=cluster, software="nemo-25", compare=False)
        assert bool(result.plan.get("userbuffers")) is expected
        assert any("userbuffers are ignored" in text for text in result.warnings) is not expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tp": 4, "sequence_parallel": True, "tp_overlap": 2}, "contradict each other"),
        ({"tp": 4, "sequence_parallel": False}, "set tp and sequence_parallel"),
        ({"tp": 1, "dp": 4}, "set tp and sequence_parallel"),
    ],
)
def test_contradictions_are_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        trine.Plan(userbuffers=True, **fields)  # type: ignore[arg-type]
