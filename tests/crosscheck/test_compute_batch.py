"""Does a trace of one batch size predict the measured time at another? vgg13 on H100, batch 128 and 512.

Reference: the kernel sums of the two traces that TrioSim's authors publish, 94.038 ms and 346.366 ms. Plain scaling, as
their code does, is off by +8.6 % and -7.9 %.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trine.compute import Split, make_compute
from trine.workload import load

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from batch_prediction import RAW_VGG13, TOTAL, predict  # noqa: E402


@pytest.fixture(scope="module")
def traces():  # type: ignore[no-untyped-def]
    return {128: load("vgg13-h100-b128"), 512: load(RAW_VGG13)}


@pytest.mark.parametrize(("source", "target", "plain"), [(128, 512, 0.086), (512, 128, -0.079)])
def test_total_within_three_percent(traces, source: int, target: int, plain: float) -> None:  # type: ignore[no-untyped-def]
    rows = predict(traces[source], traces[target])
    assert abs(rows[TOTAL].error) <= 0.03
    assert rows[TOTAL].plain_error == pytest.approx(plain, abs=0.001)


@pytest.mark.parametrize(("source", "target"), [(128, 512), (512, 128)])
def test_kinds_with_a_tenth_of_the_time_within_six_percent(traces, source: int, target: int) -> None:  # type: ignore[no-untyped-def]
    rows = predict(traces[source], traces[target])
    large = {kind: row for kind, row in rows.items() if row.recorded_ps >= 0.1 * rows[TOTAL].recorded_ps}
    assert "conv" in large
    assert {kind: row.error for kind, row in large.items() if abs(row.error) > 0.06} == {}


def test_own_batch_is_exact(traces) -> None:  # type: ignore[no-untyped-def]
    for batch, total in ((128, 94_038_000_000), (512, 346_366_000_000)):
        model = make_compute("auto", traces[batch])
        assert sum(model.duration(op, Split(batch)).ps for op in traces[batch].operators) == total


def test_two_traces_interpolate_between_them(traces) -> None:  # type: ignore[no-untyped-def]
    from trine.compute import calibrate

    model = make_compute("auto", traces[128], calibration=calibrate([traces[512]]))
    found = [model.duration(op, Split(512)) for op in traces[128].operators]
    assert sum(d.ps for d in found) == pytest.approx(346_366_000_000, rel=0.001)
    middle = [model.duration(op, Split(320)) for op in traces[128].operators]
    assert {d.evidence for d in middle} <= {"interpolated", "measured"}


@pytest.mark.parametrize(("source", "target"), [(128, 512), (512, 128)])
def test_another_models_trace_does_no_harm(traces, source: int, target: int) -> None:  # type: ignore[no-untyped-def]
    from trine.compute import calibrate

    model = make_compute("auto", traces[source], calibration=calibrate([load("resnet50-h100-b128")]))
    predicted = sum(model.duration(op, Split(target)).ps for op in traces[source].operators)
    assert predicted == pytest.approx(sum(op.gpu_time_ps for op in traces[target].operators), rel=0.03)
