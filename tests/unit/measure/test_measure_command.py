"""The command trine measure: options, answer and errors on a replayed device; the CPU through PyTorch if installed."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import json_keys
import pytest
import yaml
from click.testing import CliRunner
from measured_gpus import ReplayedDevice, facts_of

from trine.cli.main import app
from trine.cluster import load_gpu
from trine.cluster.measured_gpu import SHAPES, measured_gpu
from trine.measure import torch_device
from trine.measure.kernels import Kernel, cpu_kernels
from trine.measure.timing import KernelUnavailable


class CommandDevice(ReplayedDevice):
    """A made-up GPU in place of PyTorch's: 100 TFLOP/s and 700 GB/s, with a launch of 3 us; no FP8 on it."""

    attention_kernel = "flash-2"
    interrupt_after = 10**9
    prepared = 0

    def __init__(self, torch, device):
        super().__init__({})
        self.facts = facts_of("Some GPU", "sm_86")
        self.device = device

    def clocks(self):
        return {"sm_clock": "1800 MHz", "driver": "580.1"}

    def prepare(self, kernel):
        self.prepared += 1
        if self.prepared > self.interrupt_after:
            raise KeyboardInterrupt
        if kernel.shape == (65536, 8192):
            raise KernelUnavailable("out of memory")
        seconds = 3e-6 + max(kernel.flops / 100e12, kernel.num_bytes / 700e9)
        return lambda: seconds


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """Replace PyTorch and the device; work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trine.measure.timing.MAX_REPEATS", 6)
    monkeypatch.setattr("trine.measure.timing.WARM_UP_S", 0.0)
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)
    monkeypatch.setattr(torch_device, "import_torch", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(torch_device, "TorchDevice", CommandDevice)
    return tmp_path


def run(*words):
    done = CliRunner().invoke(app, ["measure", *(str(word) for word in words)])
    return done.exit_code, done.output


def test_the_file_and_the_answer(gpu):
    code, output = run("-o", "my-gpu.yaml", "--json", "answer.json")
    assert code == 0, output
    words = " ".join(output.split())
    assert "my-gpu.yaml: 165 kernels of Some GPU in" in words
    assert "left out 1 kernels: out of memory (1)" in words
    assert "launch 3.0 us per kernel launch (--launch-cost takes it)" in words
    assert "next trine train model:llama-3-8b --gpu my-gpu.yaml --gpus 1" in words
    content = yaml.safe_load((gpu / "my-gpu.yaml").read_text())
    assert content["clocks"] == {
        "sm_clock_before": "1800 MHz", "driver_before": "580.1", "sm_clock": "1800 MHz", "driver": "580.1"
    }  # fmt: skip
    assert content["versions"] == {"torch": "2.14.1", "cuda": "13.0"}
    assert content["left_out"][0]["shape"] == [65536, 8192]
    assert len(content["date"]) >= 19
    assert load_gpu("my-gpu.yaml").flop_per_s["bfloat16"] == pytest.approx(125e12, rel=0.01)


def test_json_keys_are_documented(gpu):
    run("-o", "my-gpu.yaml", "--json", "answer.json")
    content = json.loads((gpu / "answer.json").read_text())
    assert content["schema"] == "trine/measure/1"
    assert content["command"] == "measure"
    for key in ("schema", "version", "command"):
        del content[key]
    assert json_keys.problems("measure", [content]) == []
    assert content["launch_us"] == pytest.approx(3.0)
    assert {row["kind"] for row in content["kinds"]} >= {"gemm", "attention", "norm", "launch"}


def test_the_options_matter(gpu):
    """--precision chooses the GEMMs, --seconds the number of kernels, --device the device, --overwrite the old file."""
    assert run("-o", "a.yaml", "--precision", "fp32")[0] == 0
    kernels = measured_gpu("a.yaml").content.kernels
    assert {row.dtype for row in kernels if row.kind == "gemm"} == {"float32"}
    assert run("-o", "b.yaml", "--precision", "bf16, fp32")[0] == 0
    assert {row.dtype for row in measured_gpu("b.yaml").content.kernels} == {"bfloat16", "float32"}
    assert run("-o", "c.yaml", "--device", "cuda:0")[0] == 0
    assert run("-o", "d.yaml", "--device", "cuda:1")[0] == 2
    assert run("-o", "a.yaml")[0] == 2
    assert run("-o", "a.yaml", "--overwrite")[0] == 0
    assert {row.dtype for row in measured_gpu("a.yaml").content.kernels} == {"bfloat16", "float32"}


def test_the_time_limit(gpu, monkeypatch):
    """A clock of half a second a reading leaves room for some kernels in 20 s."""
    readings = iter(range(10**9))
    monkeypatch.setattr("trine.measure.timing.time.monotonic", lambda: 0.5 * next(readings))
    from trine.measure import timing

    original = timing.measure_kernels
    monkeypatch.setattr(
        timing, "measure_kernels",
        lambda *args, **options: original(*args, now=timing.time.monotonic, **options),
    )  # fmt: skip
    code, output = run("-o", "short.yaml", "--seconds", "20")
    assert code == 0, output
    content = measured_gpu("short.yaml").content
    assert 0 < len(content.kernels) < 20
    assert content.left_out[-1].reason == "the time limit came first"


def test_ctrl_c_writes_the_rows_and_ends_with_130(gpu, monkeypatch):
    monkeypatch.setattr(CommandDevice, "interrupt_after", 10)
    code, output = run("-o", "part.yaml")
    assert code == 130, output
    assert len(measured_gpu("part.yaml").content.kernels) == 10
    assert "left out 156 kernels: interrupted (156)" in " ".join(output.split())


def test_ctrl_c_before_the_first_kernel_writes_nothing(gpu, monkeypatch):
    monkeypatch.setattr(CommandDevice, "interrupt_after", 0)
    code, output = run("-o", "part.yaml")
    assert code == 2
    assert "no kernel was measured" in output
    assert not (gpu / "part.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "my.txt"), "the name of a GPU file ends in .yaml"),
        (("-o", "my.yaml", "--precision", "bf61"), "--precision: unknown precision 'bf61'; did you mean 'bf16'"),
        (("-o", "my.yaml", "--precision", "fp8"), "--precision: cuda:0 does not run float8: it runs bf16, fp32"),
        (("-o", "my.yaml", "--precision", "bf16,"), "--precision: unknown precision ''"),
        (("-o", "my.yaml", "--device", "tpu"), "--device: unknown device 'tpu': give auto, cuda, cuda:N or cpu"),
        (("-o", "my.yaml", "--device", "cuda:7"), "--device: PyTorch sees 1 GPU here, so there is no 'cuda:7'"),
        (("-o", "my.yaml", "--device", "cuda:x"), "--device: unknown device 'cuda:x'"),
        (("-o", "my.yaml", "--seconds", "0"), "--seconds: must be 1 to 86400, got 0"),
        ((), "--output"),
    ],
)
def test_wrong_options_are_refused_in_one_line(gpu, words, message):
    code, output = run(*words)
    assert code == 2
    assert message in " ".join(output.split())
    assert not (gpu / "my.yaml").exists()


def test_an_existing_file_is_kept(gpu):
    (gpu / "my.yaml").write_text("mine")
    code, output = run("-o", "my.yaml")
    assert code == 2
    assert "my.yaml: exists already; --overwrite replaces it" in output
    assert (gpu / "my.yaml").read_text() == "mine"


def test_without_torch_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, output = run("-o", tmp_path / "my.yaml")
    assert code == 2
    assert "measuring a GPU needs torch: pip install 'trine[capture]'" in output


def test_help_and_other_commands_do_not_import_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, output = run("--help")
    assert code == 0
    assert "--precision" in output


# PyTorch itself -------------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_the_cpu_is_measured_and_a_step_runs_on_its_file(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="trine measure runs kernels through PyTorch")
    monkeypatch.chdir(tmp_path)
    code, output = run("-o", "cpu.yaml", "--device", "cpu", "--seconds", "5")
    assert code == 0, output
    content = measured_gpu("cpu.yaml").content
    assert content.architecture == "cpu"
    assert len(content.kernels) + len(content.left_out) == len(cpu_kernels(("float32", "bfloat16")))
    assert {row.kind for row in content.kernels} >= {"gemm", "attention", "elementwise", "norm"}
    done = CliRunner().invoke(app, ["train", "model:gpt-2,layers=1", "--gpu", "cpu.yaml", "--gpus", "1"])
    assert done.exit_code == 0, done.output
    assert "kernels of cpu.yaml" in " ".join(done.output.split())


@pytest.mark.torch
def test_a_kernel_that_pytorch_refuses_is_unavailable():
    """A kernel that PyTorch refuses becomes a reason of one line."""
    torch = pytest.importorskip("torch", reason="trine measure runs kernels through PyTorch")
    device = torch_device.TorchDevice(torch, "cpu")
    with pytest.raises(KernelUnavailable) as refused:
        device.prepare(Kernel("norm", "float32", (1 << 20, 1 << 40)))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) <= 120


@pytest.mark.torch
def test_every_kind_of_kernel_runs_on_the_cpu():
    torch = pytest.importorskip("torch", reason="trine measure runs kernels through PyTorch")
    device = torch_device.TorchDevice(torch, "cpu")
    first_of_kind = {kernel.kind: kernel for kernel in reversed(cpu_kernels(("float32", "bfloat16")))}
    assert set(first_of_kind) == set(SHAPES)
    for kernel in first_of_kind.values():
        assert device.prepare(kernel)() > 0
