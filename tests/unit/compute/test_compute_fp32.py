"""Do the float32 tables reproduce their measurements, interpolate within bounds, and name their evidence?"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compute_cases import BATCH, US, conv, linear, relus

from trine.cluster import load_gpu
from trine.compute import Split, kind_of, make_compute
from trine.compute.resize import resized
from trine.compute.tables.convolutions import (
    FORWARD,
    INPUT,
    WEIGHT,
    Convolution,
    bench,
    bench_rows,
    convolution,
    moving,
    on_rows,
    product,
    table_of,
)
from trine.compute.tables.fp32 import surface
from trine.compute.tables.fp32_files import DEEPBENCH, NEUSIGHT, decoded, folds, measured, whole
from trine.compute.tables.fp32_times import convolution_of
from trine.compute.tables.kriging import Nearby
from trine.compute.tables.traffic import traffic
from trine.errors import InputError, SpecError
from trine.workload.readers import load_bundled

GPUS = ("v100-pcie", "p100-pcie", "t4", "a100-pcie-40gb")
TABLES = ("bmm", "linear", "conv", "elementwise", "layer_norm", "softmax")
V100, A100, H100 = load_gpu("v100-pcie"), load_gpu("a100-pcie-40gb"), load_gpu("h100-sxm")
RESNET = Convolution(batch=32, channels=256, out=256, size=(14, 14), filter=(3, 3), padding=(1, 1))


def test_numbers_survive_their_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    coding = importlib.import_module("fp32_coding")
    numbers = np.array([[0, 1, 255, 256, 65535]], np.uint16)
    assert (whole(coding.planes(numbers)) == numbers).all()
    times = np.array([1.5, 30.0, 1e4, 1e7])
    assert decoded(coding.coded(times)) == pytest.approx(times, rel=3e-4)
    assert np.isnan(decoded(coding.coded(np.array([0.0]))))[0]


def test_a_file_that_is_no_table_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "operators.npz"
    path.write_bytes(b"PK nothing")
    with pytest.raises(SpecError, match=r"operators\.npz.*not a table"):
        measured(path, "bmm")
    with pytest.raises(SpecError, match="not a table"):
        measured(NEUSIGHT, "attention")


def test_published_rows_are_there() -> None:
    """Three rows of nv_train_*.csv with their printed times in ms; its N is the inner size of a product."""
    found = measured(NEUSIGHT, "bmm")
    row = found.shapes.tolist().index([13, 27, 29, 15])
    assert found.times_us["p100-pcie"][row] == pytest.approx(53.589, rel=3e-4)
    assert found.times_us["v100-pcie"][row] == pytest.approx(41.259, rel=3e-4)
    found = measured(NEUSIGHT, "conv")
    row = found.shapes.tolist().index([38, 893, 326, 3, 5, 1, 1])
    assert found.times_us["a100-pcie-40gb"][row] == pytest.approx(966.997, rel=3e-4)


@pytest.mark.parametrize("table", TABLES)
def test_a_measured_shape_gives_back_its_time(table: str) -> None:
    found = measured(NEUSIGHT, table)
    some = np.flatnonzero(np.isfinite(found.times_us["t4"]))[:: max(1, len(found.shapes) // 40)]
    times, _ = surface("t4", table).us(found.shapes[some])
    assert times == pytest.approx(found.times_us["t4"][some], rel=1e-12)


def test_folds_are_the_hash_of_the_shapes_text() -> None:
    found = measured(NEUSIGHT, "bmm")
    text = "bmm " + "x".join(str(n) for n in found.shapes[7])
    assert folds(NEUSIGHT, "bmm")[7] == int(hashlib.sha256(text.encode()).hexdigest(), 16) % 5
    assert np.bincount(folds(NEUSIGHT, "bmm")).min() > 0.19 * len(found.shapes)


def test_kriging_is_exact_without_noise_and_keeps_a_constant() -> None:
    grid = np.array([[x, y] for x in range(5) for y in range(5)], float)
    values = grid[:, 0] + 0.5 * grid[:, 1]
    found, distance = Nearby(grid, values, nearest=9, nugget=0.0).at(grid)
    assert found == pytest.approx(values, abs=1e-9)
    assert (distance == 0).all()
    flat, _ = Nearby(grid, np.full(25, 3.0)).at(np.array([[1.2, 3.4], [100.0, -7.0]]))
    assert flat == pytest.approx([3.0, 3.0])
    between, _ = Nearby(grid, values).at(np.array([[1.5, 1.5]]))
    assert between[0] == pytest.approx(2.25, abs=0.1)


@pytest.mark.parametrize("gpu", GPUS)
def test_more_work_takes_longer(gpu: str) -> None:
    """Sizes differ by factors of eight because the kernel choice may reorder close sizes."""
    spec = load_gpu(gpu)
    for shapes in (
        [(64 * 8**i, 512, 512) for i in range(4)],
        [(512, 64 * 8**i, 512) for i in range(4)],
        [(512, 512, 64 * 8**i) for i in range(4)],
    ):
        times = [product(spec, *shape).us for shape in shapes]  # type: ignore[union-attr]
        assert times == sorted(times)
    times = [moving(spec, 1000 * 10**i).us for i in range(7)]  # type: ignore[union-attr]
    assert times == sorted(times)
    assert on_rows(spec, "softmax", 40000, 512).us > 2 * on_rows(spec, "softmax", 5000, 512).us  # type: ignore[union-attr]


@pytest.mark.parametrize("gpu", GPUS)
def test_times_respect_the_data_sheet(gpu: str) -> None:
    spec = load_gpu(gpu)
    assert product(spec, 4096, 4096, 4096).us * 1e-6 * spec.flop_per_s["float32"] > 0.95 * 2 * 4096**3  # type: ignore[union-attr]
    large = 400_000_000
    rate = large / moving(spec, large).us * 1e6  # type: ignore[union-attr]
    assert 0.6 * spec.memory_bytes_per_s < rate < 1.0 * spec.memory_bytes_per_s


def test_evidence_says_whose_times_they_are() -> None:
    shape = measured(NEUSIGHT, "linear").shapes[1000].tolist()
    assert product(V100, *shape).evidence == "measured"  # type: ignore[union-attr]
    assert product(V100, 3001, 777, 1234).evidence == "interpolated"  # type: ignore[union-attr]
    assert product(load_gpu("v100"), 3001, 777, 1234).evidence == "transferred"  # type: ignore[union-attr]
    assert product(H100, 3001, 777, 1234).evidence == "transferred"  # type: ignore[union-attr]


def test_a_sibling_is_faster_by_what_the_data_sheets_say() -> None:
    sxm, pcie = product(load_gpu("v100"), 8192, 4096, 4096), product(V100, 8192, 4096, 4096)
    assert sxm is not None
    assert pcie is not None
    assert (pcie.us - 3) / (sxm.us - 3) == pytest.approx(15.7 / 14)


def test_convolutions_of_deepbench_come_back() -> None:
    """The smoothed surface passes close to its own points."""
    layers, times = bench_rows("v100", "float16", FORWARD)
    assert len(layers) == 90
    own = bench("v100", "float16", FORWARD).us(layers)
    assert np.median(np.abs(own / times - 1)) < 0.08
    row = next(i for i, x in enumerate(layers) if x == Convolution(
        batch=8, channels=512, out=512, size=(7, 7), filter=(3, 3), padding=(1, 1)))  # fmt: skip
    assert times[row] == pytest.approx(47.0, rel=3e-4)  # DeepBench_NV_V100.xlsx: 0.047 ms


def test_convolutions_in_lower_precision_and_on_newer_gpus_are_faster() -> None:
    v100, a100 = load_gpu("v100"), load_gpu("a100-80gb")
    for direction in (FORWARD, INPUT, WEIGHT):
        slow, half = convolution(v100, RESNET, "float32", direction), convolution(v100, RESNET, "float16", direction)
        tf32, amp = convolution(a100, RESNET, "tfloat32", direction), convolution(a100, RESNET, "bfloat16", direction)
        assert slow.us > half.us > amp.us
        assert convolution(a100, RESNET, "float32", direction).us > tf32.us > amp.us
        assert (slow.evidence, tf32.evidence) == ("interpolated", "transferred")
    assert convolution(v100, RESNET, "tfloat32").us == convolution(v100, RESNET, "float32").us
    assert convolution(load_gpu("p100"), RESNET, "float32").us > convolution(v100, RESNET, "float32").us


def test_convolutions_of_the_bundled_traces_come_back_on_their_gpu() -> None:
    """TF32 on an H100, inside a step: VGG-13's second layer took 5.892 ms forward and 13.727 ms backward."""
    layer = Convolution(batch=128, channels=64, out=64, size=(224, 224), filter=(3, 3), padding=(1, 1))
    times = [convolution(H100, layer, "tfloat32", direction).us for direction in (FORWARD, INPUT, WEIGHT)]
    assert times[0] == pytest.approx(5892, rel=0.1)
    assert times[1] + times[2] == pytest.approx(13727, rel=0.1)
    assert convolution(H100, layer, "tfloat32").evidence == "interpolated"
    assert convolution(load_gpu("h200"), layer, "tfloat32").evidence == "transferred"


def test_wrong_questions_are_named() -> None:
    with pytest.raises(InputError, match="at least 1"):
        product(V100, 0, 8, 8)
    with pytest.raises(InputError, match="layer_norm"):
        on_rows(V100, "layer_nrm", 8, 8)
    with pytest.raises(InputError, match="filter is larger"):
        Convolution(batch=1, channels=1, out=1, size=(2, 2), filter=(3, 3))
    with pytest.raises(InputError, match="multiples of the groups"):
        Convolution(batch=1, channels=3, out=4, size=(8, 8), filter=(3, 3), groups=2)
    with pytest.raises(InputError, match="no peak for float8"):
        convolution(V100, RESNET, "float8")
    with pytest.raises(InputError, match="direction"):
        convolution(V100, RESNET, "float32", 3)


def test_gpus_without_a_table_or_sibling_have_no_time() -> None:
    assert table_of(load_gpu("astra3-generic")) is None
    assert product(load_gpu("astra3-generic"), 8, 8, 8) is None
    assert moving(load_gpu("astra3-generic"), 1000) is None


def test_convolution_of_an_operator_is_read_from_its_shapes() -> None:
    made, forward, _ = conv((64, 512, 32, 32), (512, 512, 3, 3), (64, 512, 30, 30))
    found = convolution_of(resized(forward, made.workload(), Split(64)))
    assert found == Convolution(batch=64, channels=512, out=512, size=(32, 32), filter=(3, 3))
    made, forward, _ = conv((8, 3, 224, 224), (64, 3, 7, 7), (8, 64, 112, 112))
    found = convolution_of(resized(forward, made.workload(), Split(8)))
    assert found is not None
    assert (found.stride, found.padding, found.across) == ((2, 2), (3, 3), (112, 112))


def moved(made, operator, source, target):  # type: ignore[no-untyped-def]
    model = make_compute("auto", made.workload(), source=source, target=target)
    return model.duration(operator, Split(made.batch))


def test_a_recorded_operator_moves_by_the_ratio_of_the_tables() -> None:
    made = relus([(1000, 300 * US)])
    op = made.operators[0]
    num_bytes = 2 * 4 * 1000 * BATCH
    ratio = moving(A100, num_bytes).us / moving(V100, num_bytes).us  # type: ignore[union-attr]
    found = moved(made, op, V100, A100)
    assert found.ps == pytest.approx(op.gpu_time_ps * ratio, rel=0.01)
    assert found.evidence == "modelled"
    made, forward, _ = linear(4096, (4096, 4096))
    slow = made.operators[0].__class__(**{**_fields(forward), "gpu_time_ps": 10**10})
    made.operators[:] = [slow]
    ratio = product(A100, 4096, 4096, 4096).us / product(V100, 4096, 4096, 4096).us  # type: ignore[union-attr]
    assert moved(made, slow, V100, A100).ps == pytest.approx(10**10 * ratio, rel=0.01)


def test_gpus_of_one_table_move_by_data_sheets() -> None:
    made = relus([(1000, 300 * US)])
    found = moved(made, made.operators[0], load_gpu("a100-80gb"), H100)
    assert (found.ps, found.evidence) == (-(-300 * US * 2039 // 3352), "assumed")


def _fields(operator):  # type: ignore[no-untyped-def]
    return {name: getattr(operator, name) for name in operator.__dataclass_fields__}


def test_tables_hold_what_their_sources_have() -> None:
    assert NEUSIGHT.stat().st_size + DEEPBENCH.stat().st_size < 900_000
    for folder in (NEUSIGHT.parent, DEEPBENCH.parent):
        assert (folder / "LICENSE").is_file()
        assert (folder / "SOURCE.md").is_file()


@pytest.mark.parametrize(("name", "least"), [("vgg13-h100-b128", 0.9), ("resnet50-h100-b128", 0.88)])
def test_tables_come_near_the_recorded_steps(name: str, least: float) -> None:
    """The traces' convolutions are in the tables; the other operators are counted or come from other GPUs."""
    workload = load_bundled(name, None)
    model = make_compute("tables", workload, target=H100)
    total = sum(model.duration(op, Split(workload.batch)).ps for op in workload.operators)
    assert least < total / sum(op.gpu_time_ps for op in workload.operators) < 1.05


def test_batch_norm_and_pooling_move_more_than_their_tensors() -> None:
    sizes = {kind: _sizes_of("resnet50-h100-b128", kind) for kind in ("batch_norm", "batch_norm backward", "max_pool")}
    wide = sizes["batch_norm"][-1]  # 2048 channels
    assert traffic(wide, "batch_norm", 1, 132) == 1.5
    assert traffic(sizes["batch_norm backward"][0], "batch_norm", 1, 132) == pytest.approx(5 / 3)
    narrow = sizes["batch_norm"][0]  # 64 channels
    assert traffic(narrow, "batch_norm", 1, 132) == pytest.approx(1.5 * 1.2 * 132 / 64)
    pool = sizes["max_pool"][0]
    y = pool.outputs[0].size_bytes
    assert traffic(pool, "max_pool", 5 * y, 132) == pytest.approx(1.4)
    assert traffic(wide, "elementwise", 1, 132) == 1.0


def _sizes_of(name: str, kind: str):  # type: ignore[no-untyped-def]
    workload = load_bundled(name, None)
    return [resized(op, workload, Split(workload.batch)) for op in workload.operators if kind_of(op) == kind]


def test_float32_convolutions_of_a_gpu_measured_in_tf32_only_are_transferred() -> None:
    layer = Convolution(batch=8, channels=64, out=64, size=(56, 56), filter=(3, 3), stride=(1, 1), padding=(1, 1))
    found = convolution(load_gpu("h100-sxm"), layer, "float32")
    assert found.evidence == "transferred"
    faster = convolution(load_gpu("h100-sxm"), layer, "tfloat32").us
    assert faster <= found.us < convolution(load_gpu("v100"), layer, "float32").us


@pytest.mark.parametrize(
    "changes",
    [{"batch": 0}, {"size": (14, 0)}, {"stride": (0, 1)}, {"padding": (1, -1)}, {"filter": (3, 17)},
     {"filter": (17, 3)}, {"channels": 255, "groups": 2}, {"out": 255, "groups": 2}],
    ids=str,
)  # fmt: skip
def test_a_convolution_without_an_output_is_refused(changes):
    with pytest.raises(InputError):
        replace(RESNET, **changes)
