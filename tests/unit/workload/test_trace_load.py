"""Does one entry point find every trace, and do registered readers take part?"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trine.common.plugins import Registry
from trine.errors import InputError, TraceError
from trine.graph.workload import Workload
from trine.workload import READERS, TraceReader, bundled, compare, describe, load, save

PRESETS = Path(sys.modules["trine"].__file__ or "").parent / "presets" / "traces"
RAW = Path(__file__).parents[2] / "data" / "vgg13-raw-b512"


def test_bundled_names() -> None:
    assert bundled() == ("resnet50-h100-b128", "vgg13-h100-b128")


def test_every_way_to_name_a_csv_pair_is_the_same() -> None:
    folder = PRESETS / "vgg13-h100-b128"
    expected = load(folder)
    assert load(folder / "trace.csv") == load(folder / "tensor.csv") == load(str(folder)) == expected
    assert expected.name == "vgg13-h100-b128"
    assert expected.format == "triosim"


def test_a_bundled_trace_knows_its_gpu_and_is_the_same_otherwise() -> None:
    bundle, files = load("vgg13-h100-b128"), load(PRESETS / "vgg13-h100-b128")
    assert (bundle.gpu, bundle.source) == ("NVIDIA H100 80GB HBM3", "bundled:vgg13-h100-b128")
    assert set(files.missing) - set(bundle.missing) == {"the GPU's name"}
    assert replace(bundle, gpu=None, source=files.source, missing=files.missing) == files


def test_the_tracers_folders_are_followed() -> None:
    expected = load(RAW)
    assert load(RAW / "profiler" / "profiler_vgg13-iter41.json.gz") == expected
    assert load(RAW / "graph" / "graph_vgg13-iter41.json.gz") == expected


def test_uncompressed_and_renamed_native_files(tmp_path: Path) -> None:
    workload = load("vgg13-h100-b128")
    save(workload, tmp_path / "a.trine.json")
    save(workload, tmp_path / "a.trine.json.gz")
    assert load(tmp_path / "a.trine.json") == load(tmp_path / "a.trine.json.gz") == workload
    shutil.copy(tmp_path / "a.trine.json", tmp_path / "b.json")
    assert load(tmp_path / "b.json") == workload
    with pytest.raises(TraceError, match="name one"):
        load(tmp_path)


def test_a_reader_is_one_object_with_a_name(tmp_path: Path) -> None:
    registry: Registry[TraceReader] = Registry(
        "trace reader", "trine.no.such.group", {"native": "trine.workload.native_reader:READER"}
    )
    registry.register("mine", TraceReader("mine", "x", lambda path: None, lambda files, batch: load("vgg13-h100-b128")))
    assert registry.names() == ("native", "mine")
    assert registry.get("mine").looks_for == "x"
    with pytest.raises(InputError, match="did you mean 'native'"):
        registry.get("nativ")
    with pytest.raises(InputError, match="exists already"):
        registry.register("native", registry.get("mine"))
    assert READERS.names()[:3] == ("native", "triosim", "pytorch")


def test_description_of_vgg13() -> None:
    summary = describe(load("vgg13-h100-b128"))
    assert (summary.batch, summary.num_operators, summary.gpu_time_ps) == (128, 77, 94_038_000_000)
    assert [(p.name, p.count) for p in summary.phases] == [("forward", 35), ("backward", 35), ("optimizer", 7)]
    assert sum(p.gpu_time_ps for p in summary.phases) == summary.gpu_time_ps
    assert sum(o.gpu_time_ps for o in summary.operators) == summary.gpu_time_ps
    assert sum(o.share for o in summary.operators) == pytest.approx(1)
    assert summary.operators[0].name.endswith("ConvolutionBackward0")
    assert summary.gradient_bytes == summary.parameter_bytes == 532_191_392
    roles = {role.role: role for role in summary.roles}
    assert roles["weight"].size_bytes == 532_191_392
    assert roles["optimizer_state"].size_bytes == 3 * 532_191_392  # two moments and the step's denominator
    assert roles["weight"].scaling == roles["gradient"].scaling == 0
    assert summary.launches == 0
    assert "CPU launch times" in summary.missing
    assert any("the batch is 128" in text for text in summary.assumptions)
    assert dict(summary.scaling)["[B, 64, 224, 224]"] > 0


def test_compare_sees_a_change() -> None:
    import dataclasses

    workload = load("vgg13-h100-b128")
    assert compare(workload, workload) == ()
    first = workload.operators[0]
    changed = dataclasses.replace(workload, operators=(dataclasses.replace(first, outputs=()), *workload.operators[1:]))
    (difference,) = compare(workload, changed)
    assert (difference.operator, difference.what) == (0, "outputs")
    assert [d.what for d in compare(workload, dataclasses.replace(workload, operators=workload.operators[:-1]))] == [
        "count"
    ]


def test_reading_is_deterministic() -> None:
    def content(workload: Workload) -> str:
        return repr(workload)

    assert content(load("resnet50-h100-b128")) == content(load("resnet50-h100-b128"))
    assert content(load(RAW)) == content(load(RAW))


def test_reading_needs_no_heavy_module() -> None:
    import subprocess

    code = (
        "import sys; from trine.workload import load; load('vgg13-h100-b128');"
        "print([m for m in ('numba', 'torch', 'yaml', 'click') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_documented_example_is_a_trace(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "formats" / "trace.md").read_text()
    example = text.split("```json\n")[1].split("```")[0]
    (tmp_path / "a.trine.json").write_text(example)
    workload = load(tmp_path / "a.trine.json")
    assert [workload.tensors[i].shape for i in workload.operators[0].inputs] == [(8, 4), (6, 4)]
    save(workload, tmp_path / "b.trine.json")
    assert (tmp_path / "b.trine.json").read_text() == example
