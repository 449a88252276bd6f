"""Does the roofline count the work of the step, in the time that the step takes for it?"""

from __future__ import annotations

import gc
import weakref

import pytest

from trine.graph.workload import FORWARD
from trine.parallel.plan import Plan
from trine.report.blocks import Points, Table
from trine.report.roofline import roofline
from trine.training import kept_programs, simulate
from trine.training.options import SimulateOptions
from trine.training.setup import Setup
from trine.workload.synthesis.model import synthesize

HOW = SimulateOptions(cluster="dgx-h100", compare=False, cpu=False, fold="off")
LAYERS, SEQUENCE, HIDDEN, BATCH = 2, 128, 768, 4


@pytest.fixture(scope="module")
def model():
    return synthesize("gpt-2", layers=LAYERS, sequence=SEQUENCE)


def step(model, **plan):
    return simulate(model, Plan(batch=BATCH, **plan), options=HOW)


@pytest.mark.parametrize(
    "plan", [{}, {"micro_batch": 1}, {"micro_batch": 1, "recompute": "full"}], ids=["whole", "micro", "recompute"]
)
def test_times_of_operators_add_up_to_the_step_of_one_gpu(model, plan):
    result = step(model, **plan)
    assert result.operator_work().time_ps == result.rank_times.compute[0]


@pytest.mark.parametrize("tp", [1, 4])
def test_flops_of_a_product_are_those_of_its_shapes(model, tp):
    work = step(model, tp=tp, micro_batch=1).operator_work()
    (up,) = [use for use in work.operators if use.layer.endswith("mlp.up") and use.phase == FORWARD and use.flops]
    assert up.flops == 2 * BATCH * SEQUENCE * HIDDEN * (4 * HIDDEN // tp) * LAYERS
    assert up.count == LAYERS * BATCH


def test_flops_are_those_of_the_headline(model):
    result = step(model)
    forward = 0.0
    for use in result.operator_work().operators:
        if use.phase == FORWARD and ("linear" in use.name or "addmm" in use.name or use.name.endswith("mm")):
            forward += use.flops
        elif use.phase == FORWARD and "attention" in use.name:
            forward += 2 * use.flops  # the headline counts masked products too
    assert 3 * forward == pytest.approx(result.work.model_flops, rel=1e-9)


def test_no_product_is_faster_than_its_roof(model):
    work = step(model).operator_work()
    for use in work.operators:
        if use.precision in work.peaks:
            assert use.flop_per_s <= work.peaks[use.precision]


def test_the_page_has_a_chart_with_roofs_and_a_table(model):
    work = step(model, micro_batch=1).operator_work()
    chart, table = (block for _, block in roofline(work).options)
    assert isinstance(chart, Points)
    assert isinstance(table, Table)
    slope = chart.lines[0].points
    for x, y in slope:
        assert y == pytest.approx(min(x * work.memory_bytes_per_s, max(work.peaks.values())), rel=1e-9)
    by_time = [row[3] for row in table.rows]
    assert by_time == sorted(by_time, reverse=True)
    assert sum(row[4] for row in table.rows) == pytest.approx(1)
    assert {name for name, _ in chart.legend} <= {"forward", "backward", "optimizer"}


def test_a_gpu_without_a_data_sheet_has_no_roofline():
    assert roofline(None) is None


def test_a_result_does_not_keep_the_job_that_its_work_is_computed_from(model, monkeypatch):
    jobs = []
    build = Setup.job_context

    def watched(setup, simulated):
        job = build(setup, simulated)
        jobs.append(weakref.ref(job))
        return job

    monkeypatch.setattr(Setup, "job_context", watched)
    monkeypatch.setattr(kept_programs, "_kept", {})
    result = step(model, micro_batch=1)
    kept_programs._kept.clear()
    gc.collect()
    assert [job() for job in jobs] == [None]
    assert result.operator_work().operators
    gc.collect()
    assert [job() for job in jobs] == [None, None]
