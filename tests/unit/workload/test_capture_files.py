"""Capture files: rejected traces, private fields, and overwriting an earlier capture."""

import gzip

import pytest

from trine.errors import InputError, TraceError
from trine.workload.tracing import files as files
from trine.workload.tracing.files import CAPTURE_FILES


def kineto(*events):
    return {"traceEvents": [{"cat": "cpu_op", "name": "aten::mm"}, *events]}


def kernel(device=0):
    return {"cat": "kernel", "name": "gemm", "args": {"device": device}}


def test_a_plain_step_passes():
    files.check_kineto(kineto(), "cpu")
    files.check_kineto(kineto(kernel(), kernel()), "cuda")


@pytest.mark.parametrize(
    ("document", "device", "says"),
    [
        ({"traceEvents": []}, "cpu", "no PyTorch operator"),
        (kineto(), "cuda", "no GPU kernel"),
        (kineto(kernel(0), kernel(1)), "cuda", r"several GPUs \(0, 1\)"),
        (kineto({"cat": "cpu_op", "name": "Torch-Compiled Region: 0/0"}), "cpu", r"torch\.compile"),
        (kineto({"cat": "cpu_op", "name": "CompiledFunctionBackward"}), "cpu", r"torch\.compile"),
        (kineto(kernel(), {"cat": "cuda_runtime", "name": "cudaGraphLaunch"}), "cuda", "CUDA graph"),
        (kineto({"cat": "cpu_op", "name": "c10d::allreduce_"}), "cpu", "one process on one GPU"),
        (kineto({"cat": "user_annotation", "name": "nccl:all_reduce"}), "cpu", "one process on one GPU"),
    ],
)
def test_what_trine_would_misread_is_refused(document, device, says):
    with pytest.raises(InputError, match=says):
        files.check_kineto(document, device)


GPU_TENSOR = [4, 5, 0, 12, 4, "cuda:0"]


@pytest.mark.parametrize("node", [{"inputs": {"values": [GPU_TENSOR]}}, {"inputs": [1], "outputs": [GPU_TENSOR]}])
def test_gpu_tensors_in_a_cpu_capture_are_refused(node):
    files.check_devices({"nodes": [node]}, "cuda")
    with pytest.raises(InputError, match="device='cuda'"):
        files.check_devices({"nodes": [node]}, "cpu")


def test_cpu_tensors_in_a_cpu_capture_pass():
    files.check_devices({"nodes": [{"inputs": {"values": [[4, 5, 0, 12, 4, "cpu"], [], "cuda"]}}]}, "cpu")


def test_the_machine_and_its_paths_are_left_out_and_nothing_else_changes():
    text = rb'{"ts": 4368677003082.3490, "host_name" :  "my \" machine", "traceName": "/home/me/x.json"}'
    assert files.without_private(text) == rb'{"ts": 4368677003082.3490, "host_name": "", "traceName": ""}'


def test_the_same_content_gives_the_same_bytes(tmp_path):
    for name in ("one.gz", "two.gz"):
        files.write_gzip(b"content", tmp_path / name)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()
    assert gzip.decompress((tmp_path / "one.gz").read_bytes()) == b"content"


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe"])
def test_what_the_profiler_left_unfinished_is_one_error(tmp_path, content):
    (tmp_path / "kineto.json").write_bytes(content)
    with pytest.raises(TraceError, match=r"kineto\.json"):
        files.read_json(tmp_path / "kineto.json")


def former_capture(path):
    path.mkdir()
    for name in CAPTURE_FILES:
        (path / name).write_text("former")
    return path


def test_a_free_or_empty_path_is_taken(tmp_path):
    files.check_target(tmp_path / "new" / "capture", overwrite=False)
    files.check_target(tmp_path, overwrite=False)


def test_a_former_capture_needs_overwrite(tmp_path):
    path = former_capture(tmp_path / "capture")
    with pytest.raises(InputError, match="overwrite"):
        files.check_target(path, overwrite=False)
    files.check_target(path, overwrite=True)


def test_anything_else_is_never_replaced(tmp_path):
    path = former_capture(tmp_path / "capture")
    (path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        files.check_target(path, overwrite=True)
    link = tmp_path / "link"
    link.symlink_to(former_capture(tmp_path / "other"))
    for taken in (link, path / "thesis.tex"):
        with pytest.raises(InputError, match="not a directory"):
            files.check_target(taken, overwrite=True)
    with pytest.raises(InputError, match="name of the directory"):
        files.check_target(tmp_path / "..", overwrite=True)


def test_a_former_capture_is_replaced_whole(tmp_path):
    path = former_capture(tmp_path / "capture")
    made = tmp_path / ".capture.partial"
    made.mkdir()
    (made / "meta.json").write_text("new")
    files.put_in_place(made, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["capture"]
    assert [entry.name for entry in path.iterdir()] == ["meta.json"]
    assert (path / "meta.json").read_text() == "new"


def test_a_former_capture_stays_where_the_new_one_cannot_take_its_place(tmp_path):
    path = former_capture(tmp_path / "capture")
    before = {entry.name: entry.read_bytes() for entry in path.iterdir()}
    with pytest.raises(FileNotFoundError):
        files.put_in_place(tmp_path / ".capture.partial", path)
    assert {entry.name: entry.read_bytes() for entry in path.iterdir()} == before
