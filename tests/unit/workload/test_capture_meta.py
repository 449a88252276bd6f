"""meta.json of a capture: lossless, strict, and applied to the workload."""

import dataclasses
import json

import pytest

from trine.errors import TraceError
from trine.graph.workload import Workload
from trine.workload.tracing.files import CaptureMeta, read_meta, with_meta, with_meta_beside, write_meta

META = CaptureMeta(
    name="toy",
    device="cuda",
    device_name="NVIDIA H100",
    captured_at="2026-11-21T00:00:00Z",
    warmup_steps=3,
    unprofiled_steps_ps=(12_000, 10_000, 11_000, 90_000),
    traced_step_ps=20_000,
    versions={"torch": "2.13.0"},
    host={"system": "Linux"},
    settings={"default_dtype": "float32"},
)


def written(tmp_path, **changes):
    path = tmp_path / "meta.json"
    write_meta(META, path)
    document = json.loads(path.read_text())
    document.update(changes)
    path.write_text(json.dumps({key: value for key, value in document.items() if value != "REMOVE"}))
    return path


def test_read_gives_what_was_written(tmp_path):
    assert read_meta(written(tmp_path)) == META


def test_the_median_is_the_lower_middle_step(tmp_path):
    assert META.unprofiled_step_ps == 11_000
    assert json.loads(written(tmp_path).read_text())["unprofiled_step_median_ps"] == 11_000


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"version": 2}, "format, version", "got"),
        ({"format": "REMOVE"}, "format, version", "None"),
        ({"devise": "cuda"}, None, "did you mean 'device'"),
        ({"device_name": "REMOVE"}, "device_name", "missing"),
        ({"device": "tpu"}, "device", "'tpu'"),
        ({"name": "x" * 2000}, "name", "1000 characters"),
        ({"warmup_steps": True}, "warmup_steps", "valid integer"),
        ({"traced_step_ps": -1}, "traced_step_ps", "greater than or equal to 0"),
        ({"traced_step_ps": 2**63}, "traced_step_ps", "at most"),
        ({"unprofiled_steps_ps": []}, "unprofiled_steps_ps", "at least 1 item"),
        ({"unprofiled_steps_ps": [1.5]}, "unprofiled_steps_ps[0]", "valid integer"),
        ({"unprofiled_steps_ps": [0]}, "unprofiled_steps_ps[0]", "greater than or equal to 1"),
        ({"versions": {"torch": 2}}, "versions.torch", "valid string"),
        ({"host": []}, "host", "valid dictionary"),
        ({"unprofiled_step_median_ps": 12_000}, "unprofiled_step_median_ps", "median"),
        ({"unprofiled_step_median_ps": "REMOVE"}, "unprofiled_step_median_ps", "median"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, changes, field, says):
    path = written(tmp_path, **changes)
    with pytest.raises(TraceError) as caught:
        read_meta(path)
    assert caught.value.field == field
    assert caught.value.file == str(path)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff", b"NaN", b'{"name": 1, "name": 2}', b"[" * 100_000, b" " * (1 << 20) + b"{}"],
    ids=["empty", "list", "truncated", "not-utf8", "nan", "repeated-key", "deep", "large"],
)
def test_what_is_not_a_meta_file_is_one_error(tmp_path, content):
    path = tmp_path / "meta.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"meta\.json"):
        read_meta(path)


def test_a_missing_file_is_one_error(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_meta(tmp_path / "meta.json")


def bare_workload(**changes):
    workload = Workload(
        name="kineto", source="x", format="pytorch", gpu=None, batch=4, operators=(), tensors={}, parameters=(),
        metadata={"kept": "yes", "host_name": ""},
    )  # fmt: skip
    return dataclasses.replace(workload, **changes)


def test_a_workload_gets_name_time_device_and_machine():
    workload = with_meta(bare_workload(), META)
    assert (workload.name, workload.gpu, workload.unprofiled_step_ps) == ("toy", "NVIDIA H100", 11_000)
    assert "host_name" not in workload.metadata
    expected = {"kept": "yes", "device": "cuda", "versions.torch": "2.13.0", "timed_steps": "4"}
    assert expected.items() <= workload.metadata.items()


def test_the_gpu_of_the_trace_wins_and_a_cpu_is_no_gpu():
    assert with_meta(bare_workload(gpu="H100 of Kineto"), META).gpu == "H100 of Kineto"
    assert with_meta(bare_workload(), dataclasses.replace(META, device="cpu")).gpu is None


def test_meta_beside_a_capture_counts_and_any_other_meta_does_not(tmp_path):
    path = written(tmp_path)
    assert with_meta_beside(bare_workload(), tmp_path / "kineto.json.gz").name == "toy"
    assert with_meta_beside(bare_workload(), tmp_path / "other.json.gz") == bare_workload()
    path.write_text("{}")
    with pytest.raises(TraceError, match=r"meta\.json"):
        with_meta_beside(bare_workload(), tmp_path / "kineto.json.gz")
    path.unlink()
    assert with_meta_beside(bare_workload(), tmp_path / "kineto.json.gz") == bare_workload()
