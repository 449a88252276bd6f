"""Do the forms of overlap by userbuffers expose what they must, move the same bytes, and take few SMs?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import trine
from trine.errors import PlanError
from trine.graph.program import Collective, Compute, Job, Step
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
from trine.parallel.userbuffers import STREAMS
from trine.training.options import SimulateOptions
from trine.training.setup import setup_of

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
    """Return the bytes that a rank sends on the tp axis: the payload of shifts, (tp - 1) / tp of it for the others."""
    sent, kinds = 0, ("all_gather", "reduce_scatter", "shift")
    for step in job.programs[0].steps:
        if isinstance(step, Collective) and step.axis == "tp" and step.kind in kinds:
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
    """Without contention: of a pipeline the last of 4 transfers is exposed, of a ring what outlasts its pieces.

    At the clock of this step pieces of qkv and of proj's gradient are shorter than their transfers; so is qkv's
    backward pass beside bulk transfers. Whole all-gathers and reduce-scatters of the same layers are exposed in full,
    except those beside backward GEMMs of column splits, which are the bulk transfers.
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
    gather_ps, scatter_ps = (transfer_ps(whole, kind) for kind in ("all_gather", "reduce_scatter"))
    reduced_ps = sum(use.time_ps for use in whole.collectives if use.kind == "all_reduce")
    bulk_ps, pieces_ps = exposed_bulk_ps(steps, result), exposed_pieces_ps(steps, result)
    # Forward all-gathers of qkv, fc1, head; backward of proj, fc2, embedding. Reduce-scatters of embedding, proj, fc2.
    whole_ps = 2 * (2 * layers + 1) * gather_ps + (2 * layers + 1) * scatter_ps + reduced_ps + bulk_ps
    # All-gathers of the head and of the embedding backward, reduce-scatters of the embedding and of proj stay whole.
    cut_ps = 2 * gather_ps + (layers + 1) * scatter_ps + reduced_ps + bulk_ps + pieces_ps
    assert whole.exposed_communication_s * 1e12 == pytest.approx(whole_ps, rel=1e-3)
    assert result.exposed_communication_s * 1e12 == pytest.approx(cut_ps, rel=1e-3)
    saved_ps = whole_ps - cut_ps
    assert 0 < whole.step_time_ps - result.step_time_ps < saved_ps  # pieces together are slower than whole GEMMs


def transfer_ps(result: trine.Result, kind: str) -> float:
    """Return the time of one of the largest collectives of a kind."""
    use = max((use for use in result.collectives if use.kind == kind), key=lambda use: use.size_bytes)
    return use.time_ps / use.count


def exposed_pieces_ps(steps: Sequence[Step], result: trine.Result) -> float:
    """Return what rings and pipelines expose, by the closed forms."""
    queues = {s.label.operator: s.queue for s in steps if isinstance(s, Collective) and s.queue in (RING, PIPELINE)}
    quarter_ps = {use.kind: use.time_ps / use.count for use in result.collectives if use.size_bytes == 2**24}
    total_ps = 0.0
    for operator, queue in queues.items():
        gemms = [s for s in steps if isinstance(s, Compute) and s.stream == "compute"]
        pieces = [s.duration_ps for s in gemms if s.label.operator == operator]
        assert len(pieces) == 4
        if queue == RING:
            end_ps = gathered_end_ps(pieces[0], [round(i * quarter_ps["shift"]) for i in range(4)])
        else:
            end_ps = scattered_end_ps(pieces[0], round(quarter_ps["reduce_scatter"]), 4)
        total_ps += end_ps - sum(pieces)
    return total_ps


def exposed_bulk_ps(steps: Sequence[Step], result: trine.Result) -> float:
    """Return what bulk transfers expose: each runs beside the next GEMM."""
    total_ps = 0.0
    for i, step in enumerate(steps):
        if isinstance(step, Collective) and step.queue == BULK:
            beside = next(s for s in steps[i:] if isinstance(s, Compute) and s.stream == "compute")
            total_ps += max(0.0, transfer_ps(result, step.kind) - beside.duration_ps)
    return total_ps


# -- bytes and shapes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_same_bytes_move(workload: Workload, recompute: str) -> None:
    plan = replace(PROGRAM_PLAN, recompute=recompute)
    whole, _ = jobs_of(workload, plan)
    cut, _ = jobs_of(workload, replace(plan, userbuffers=True))
    assert sent_bytes(cut, 4) == sent_bytes(whole, 4)


def test_pieces_are_gemms_with_shapes_of_their_own(workload: Workload) -> None:
    """Of 4 pieces on 3 streams, one takes a third of the table's time for 3/4 of the tokens, not 1/4 of the whole time.

    A step of fewer tokens runs at another clock, so its GEMMs are scaled to the clock of the whole step.
    """
    three = trine.synthesize("llama-3-8b", gpu="h100-sxm", layers=2, sequence=6144, software="megatron-core")
    ideal = replace(PROGRAM_PLAN, overlap="ideal")
    options = SimulateOptions(cluster=trine.load_cluster("dgx-h100", gpus=4), software="megatron-core")
    (fast,), (slow,) = (setup_of(each, ideal, options).clocks for each in (three, workload))
    slower = fast.gemm_clock / slow.gemm_clock
    alone, _ = jobs_of(three, ideal)
    cut, _ = jobs_of(workload, replace(ideal, userbuffers=True))
    whole, _ = jobs_of(workload, ideal)

    def times(job: Job) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for step in job.programs[0].steps:
            if isinstance(step, Compute) and step.stream == "compute":
                found.setdefault(step.label.operator, set()).add(step.duration_ps)
        return found

    pieces, thirds, wholes = times(cut), times(alone), times(whole)
    changed = [operator for operator in pieces if pieces[operator] != wholes[operator]]
    assert len(changed) == 2 * 5  # qkv, fc1 and fc2 forward, gradients of the inputs of proj and fc2
    for operator in changed:
        expected = [slower * one / STREAMS for one in thirds[operator]]
        assert all(min(abs(piece - one) for one in expected) <= 2 for piece in pieces[operator])  # ps
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
