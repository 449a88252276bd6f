"""Are times that jobs share the times that each would compute alone, and are notes those of one job?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import trine
from trine.cluster import load_cluster, load_gpu
from trine.compute.resize import Split
from trine.compute.tables import kept_estimates
from trine.compute.tables.gemm import load_gemm
from trine.compute.tables.machine import Machine
from trine.compute.tables.times import TableTimes
from trine.parallel.job import JobContext, RankWork
from trine.parallel.token_partition import WHOLE
from trine.training.options import SimulateOptions
from trine.training.setup import setup_of

H100 = load_gpu("h100-sxm")


def test_a_kept_estimate_is_the_estimate_of_its_shape_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine.of(H100, "bfloat16")
    slower = replace(machine, flop_per_s=machine.flop_per_s / 2)
    table = load_gemm("h100-sxm", "bfloat16", machine).without(np.zeros(1, bool))
    questions = [(np.array([[m, 4096.0, k]]), target) for m in (512.0, 700.0) for k in (64.0, 8192.0)
                 for target in (None, slower)]  # fmt: skip
    kept = [table.estimate_us(shapes, target) for _ in range(2) for shapes, target in questions]
    monkeypatch.setattr(kept_estimates, "MAX_SHAPES", 0)
    alone = [table.estimate_us(shapes, target) for _ in range(2) for shapes, target in questions]
    np.testing.assert_array_equal(kept, alone)
    assert len({float(us[0]) for us in kept}) > 4
    with pytest.raises(ValueError, match="read-only"):
        kept[0][0] = 0.0


def test_few_estimates_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_estimates, "MAX_KEPT", 3)
    kept, machine = kept_estimates.KeptEstimates(), Machine.of(H100, "bfloat16")
    for number in (*range(8), *range(8)):
        answer = kept.of(np.array([[float(number)]]), machine, lambda number=number: np.array([2.0 * number]))
        assert answer.tolist() == [2.0 * number]
        assert len(kept._known) <= 3


def test_jobs_of_a_workload_share_times_and_have_their_own_notes() -> None:
    workload = trine.synthesize("gpt-2", layers=2, gpu="h100-sxm")
    one_of_three = Split(batch=1, tokens=Fraction(1, 3))
    other = trine.synthesize("gpt-2", layers=2, gpu="h100-sxm")
    first, second, alone = TableTimes(workload, H100), TableTimes(workload, H100), TableTimes(other, H100)
    plain = TableTimes(other, H100)
    for op in workload.operators:
        first.duration(op, one_of_three)
    ours = [op for op in workload.operators if op.phase == "forward"]
    for op in ours:
        assert second.duration(op, Split(batch=2)) == alone.duration(op, Split(batch=2))
    assert second.notes == alone.notes != first.notes
    for op in workload.operators:
        assert second.duration(op, one_of_three) == plain.duration(op, one_of_three)
        alone.duration(op, one_of_three)
    assert second.notes == alone.notes
    assert plain.notes == first.notes


@pytest.mark.parametrize(
    "fields",
    [
        {"tp": 2, "sequence_parallel": True},
        {"tp": 4, "pp": 2, "schedule": "zb-h1", "software": "pytorch-eager"},
        {"cp": 2},
        {"ep": 4, "dp": 4},
    ],
    ids=["tp", "halves", "cp", "ep"],
)
def test_operators_with_equal_shapes_take_the_time_of_each(fields: dict[str, object]) -> None:
    model = "mixtral-8x7b" if "ep" in fields else "llama-3.2-1b"
    workload = trine.synthesize(model, layers=3, sequence=256, gpu="h100-sxm")
    layout = {"dp": 1, "batch": 4, "micro_batch": 1, **fields}
    software = layout.pop("software", None)
    options = SimulateOptions(cluster=load_cluster("dgx-h100"), software=software)  # type: ignore[arg-type]
    setup = setup_of(workload, trine.Plan(**layout), options)  # type: ignore[arg-type]
    work = JobContext(setup.workload, setup.plan, setup.model, setup.launch, setup.software.profile).work
    shares = [WHOLE, Fraction(1, 3)]
    for op in setup.workload.operators:
        for batch in (1, 3):
            for share in shares if op.phase == "optimizer" else shares[:1]:
                alone = RankWork(work._facts, work.compute)  # has no times of other operators
                of_op = alone._duration_in(work.compute, op, batch, share, "", WHOLE, work._facts.split_of(op))
                assert work.duration(op, batch, share) == of_op
    assert len(work._of_alike) < len(work._durations)
