"""Does the roofline count the work of the step, in the time that the step takes for it?"""

from __future__ import annotations

import gc
import weakref

import pytest

from trine.graph.workload import FORWARD
from trine.parallel.plan import Plan
from trine.report.blocks import Points, Table
from trine.report.roofline import limit_of, of_roof, roofline
from trine.results.operator_work import OperatorUse, OperatorWork
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


def test_layers_of_one_shape_add_up():
    """An operator of a layer counts, computes and moves twice as much in twice as many layers."""
    uses = []
    for layers in (2, 4):
        work = step(synthesize("gpt-2", layers=layers, sequence=SEQUENCE), micro_batch=2).operator_work()
        uses.append({(use.name, use.layer): use for use in work.operators if use.phase == FORWARD})
    in_layers = [key for key in uses[0] if "*" in key[1]]
    assert in_layers
    for key in in_layers:
        few, many = uses[0][key], uses[1][key]
        assert (many.count, many.size_bytes, many.flops) == (2 * few.count, 2 * few.size_bytes, 2 * few.flops)
        assert many.time_ps == 2 * few.time_ps


def test_bytes_of_a_product_are_its_tensors(model):
    work = step(model, micro_batch=1).operator_work()
    (up,) = [use for use in work.operators if use.layer.endswith("mlp.up") and use.phase == FORWARD and use.flops]
    tokens = SEQUENCE
    elements = tokens * HIDDEN + HIDDEN * 4 * HIDDEN + tokens * 4 * HIDDEN
    runs = LAYERS * BATCH
    assert 2 * elements * runs <= up.size_bytes <= 2 * (elements + 4 * HIDDEN) * runs  # with a bias


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


# -- hand-made operators on a GPU of 1 TB/s and 100 TFLOP/s in bf16 ----------------------------------------------------

BANDWIDTH, PEAK = 10**12, 10**14
RIDGE = PEAK / BANDWIDTH


def use(name: str, flops: float, size_bytes: int, time_us: float, precision: str = "bf16") -> OperatorUse:
    return OperatorUse(
        name=name, phase=FORWARD, layer="layers.*.mlp.up", precision=precision, count=3, flops=flops,
        size_bytes=size_bytes, time_ps=round(time_us * 1e6),
    )  # fmt: skip


def made(*uses: OperatorUse) -> OperatorWork:
    by_time = sorted(uses, key=lambda each: -each.time_ps)
    return OperatorWork(gpu="g", memory_bytes_per_s=BANDWIDTH, peaks={"bf16": PEAK}, operators=tuple(by_time))


def chart_of(work: OperatorWork) -> Points:
    choice = roofline(work)
    assert choice is not None
    (_, chart), _ = choice.options
    assert isinstance(chart, Points)
    return chart


#: 1e10 FLOPs take 100 us at the peak; 1e8 bytes take 100 us at the bandwidth.
PRODUCT = use("product", 1e10, 10**7, 125.0)
NORM = use("norm", 1e8, 10**8, 200.0)
COPY = use("copy", 0.0, 10**8, 125.0)


def test_the_share_of_the_roof_is_the_longer_of_both_least_times():
    work = made(PRODUCT, NORM, COPY)
    assert of_roof(work, PRODUCT) == pytest.approx(100 / 125)
    assert of_roof(work, NORM) == pytest.approx(100 / 200)
    assert of_roof(work, COPY) == pytest.approx(100 / 125)
    assert of_roof(work, use("odd", 1e10, 10**7, 125.0, precision="fp64")) is None
    assert of_roof(work, use("nothing", 0.0, 0, 5.0)) is None


def test_the_limit_is_the_roof_that_is_lower_at_the_intensity():
    work = made(PRODUCT, NORM)
    assert (limit_of(work, PRODUCT), limit_of(work, NORM)) == ("bf16 peak", "memory")


def test_a_point_states_its_share_of_the_time_and_of_its_roof():
    points = {point.name: point for point in chart_of(made(PRODUCT, NORM, COPY)).points}
    product = points["product of layers.*.mlp.up, forward"]
    assert product.detail == "27.8 % of the operators' time, 3 runs in bf16, 80 % of its roof (bf16 peak)"
    assert (product.x, product.y) == (1000.0, pytest.approx(1e10 / 125e-6))
    assert len(points) == 2  # a copy has no FLOPs


@pytest.mark.parametrize("share", [0.19, 0.2, 0.5])
def test_a_peak_is_drawn_from_a_fifth_of_its_intensity_on(share: float):
    near = use("near", share * RIDGE * 10**7, 10**7, 100.0)
    names = [line.name for line in chart_of(made(NORM, near)).lines]
    assert names == (["memory"] if share < 0.2 else ["", "peak in bf16"])


def test_a_precision_without_a_peak_has_no_roof():
    odd = use("odd", 1e10, 10**7, 125.0, precision="fp64")
    assert [line.name for line in chart_of(made(NORM, odd)).lines] == ["memory"]


def test_roofs_reach_three_times_beyond_the_outermost_points():
    slope, peak = chart_of(made(PRODUCT, NORM)).lines
    assert slope.points[0] == (pytest.approx(1 / 3), pytest.approx(BANDWIDTH / 3))
    assert slope.points[1] == (RIDGE, PEAK)
    assert peak.points == ((RIDGE, PEAK), (3 * 1000.0, PEAK))
    below = use("below", 0.5 * RIDGE * 10**7, 10**7, 100.0)  # left of the ridge
    assert chart_of(made(NORM, below)).lines[1].points[1] == (3 * RIDGE, PEAK)


def test_the_note_tells_the_time_of_operators_without_arithmetic():
    moving = "% of the time is of operators that only move data"
    assert f"28 {moving}" in chart_of(made(PRODUCT, NORM, COPY)).note
    short = use("copy", 0.0, 10**8, 1.0)
    assert moving not in chart_of(made(PRODUCT, NORM, short)).note


def test_products_of_a_recorded_step_in_tf32_have_its_roof():
    """The trace of VGG-13 was recorded on an H100 with TF32 products: its times are shorter than float32 allows."""
    work = simulate("vgg13-h100-b128", Plan(dp=2), options=HOW).operator_work()
    by_precision = {use.precision for use in work.operators}
    assert by_precision == {"float32", "tfloat32"}
    fast = [each for each in work.operators if each.precision == "tfloat32"]
    assert any(each.flop_per_s > work.peaks["float32"] for each in fast)
    assert all(each.flop_per_s <= work.peaks["tfloat32"] for each in fast)
