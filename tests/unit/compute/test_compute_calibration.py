"""Do several traces serve as one calibration, and is its file read strictly?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from compute_cases import BATCH, US, relus

from trine.compute import Calibration, Duration, Split, calibrate, make_compute
from trine.errors import InputError, SpecError

SIZES = [(1000, 100 * US), (3000, 300 * US), (7000, 700 * US)]


def slower_at_16() -> list[tuple[int, int]]:
    return [(width, time * 3) for width, time in SIZES]


def both() -> Calibration:
    return calibrate([relus(SIZES).workload(), relus(slower_at_16(), batch=16).workload()])


def test_between_two_batches_times_are_interpolated() -> None:
    made = relus(SIZES)
    model = make_compute("auto", made.workload(), calibration=both())
    op = made.operators[1]
    assert model.duration(op, Split(BATCH)) == Duration(300 * US, "measured")
    assert model.duration(op, Split(16)) == Duration(900 * US, "measured")
    assert model.duration(op, Split(10)) == Duration(450 * US, "interpolated")
    assert model.duration(op, Split(9)) == Duration(375 * US, "interpolated")


def test_beyond_them_the_nearest_is_the_anchor() -> None:
    made = relus(SIZES)
    model = make_compute("auto", made.workload(), calibration=both())
    far, near = model.duration(made.operators[1], Split(32)), model.duration(made.operators[1], Split(4))
    assert far.evidence == near.evidence == "modelled"
    assert 900 * US < far.ps <= 1800 * US
    assert 150 * US <= near.ps < 300 * US


def test_the_traces_own_time_wins() -> None:
    other = relus([(width, time + 5 * US) for width, time in SIZES])
    model = make_compute("auto", relus(SIZES).workload(), calibration=calibrate([other.workload()]))
    assert model.duration(relus(SIZES).operators[0], Split(BATCH)).ps == 100 * US


def test_traces_of_different_gpus_do_not_mix() -> None:
    workload = relus(SIZES).workload()
    with pytest.raises(InputError, match="A100, H100"):
        calibrate([replace(workload, gpu="H100"), replace(workload, gpu="A100")])
    with pytest.raises(InputError, match="at least one"):
        calibrate([])
    with pytest.raises(InputError, match="A100"):
        make_compute("auto", replace(workload, gpu="H100"), calibration=calibrate([replace(workload, gpu="A100")]))
    with pytest.raises(InputError, match="uses no calibration"):
        make_compute("recorded", workload, calibration=calibrate([workload]))


def test_file_is_lossless_and_reproducible(tmp_path: Path) -> None:
    both().save(tmp_path / "a.json")
    both().save(tmp_path / "b.json")
    assert Calibration.load(tmp_path / "a.json") == both()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert Calibration.load(tmp_path / "a.json").report == both().report


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.update(extra=1), "unknown key 'extra'"),
        (lambda d: d.update(gpus=None), "did you mean 'gpu'"),
        (lambda d: d.pop("points"), "points: is missing"),
        (lambda d: d.update(format="x"), "format: must be 'trine-calibration'"),
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d.update(resolution_ps=0), "resolution_ps: should be greater than or equal to 1"),
        (lambda d: d.update(points={}), "points: should be a valid list"),
        (lambda d: d["points"][1].update(time_ps=-1), r"points\[1\].time_ps"),
        (lambda d: d["points"][1].update(flops=1.5), r"points\[1\].flops"),
        (lambda d: d["points"][0].update(kind="elementwize"), r"points\[0\].kind: .*did you mean 'elementwise'"),
        (lambda d: d["points"][0].pop("batch"), r"points\[0\].batch: is missing"),
        (lambda d: d.update(sources=[3]), r"sources\[0\]: should be a valid string"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, change, text: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "c.json"
    both().save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(SpecError, match=text) as caught:
        Calibration.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"[]", b"null"])
def test_files_that_are_no_calibration(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(SpecError):
        Calibration.load(path)
    with pytest.raises(SpecError, match="cannot be read"):
        Calibration.load(tmp_path / "absent.json")
