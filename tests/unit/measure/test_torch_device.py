"""The device behind PyTorch, with a stand-in for the module torch: facts, order of a timed run, clocks, errors."""

from __future__ import annotations

import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from trine.cluster.measured_gpu import DEFAULT_KERNEL, FLASH_KERNEL
from trine.errors import InputError
from trine.measure import torch_device
from trine.measure.kernels import Kernel
from trine.measure.timing import NO_MEMORY, KernelUnavailable
from trine.measure.torch_device import TorchDevice, choose_device


class OutOfMemoryError(RuntimeError):
    """The stand-in's error."""


class Tensor:
    """A tensor that notes what happens to it. shape: as asked."""

    dtype = "a dtype"

    def __init__(self, torch, *shape):
        self.torch, self.shape = torch, shape

    def zero_(self):
        self.torch.log.append("flush")

    def t(self):
        return self

    def add_(self, other):
        self.torch.log.append("add")


class Event:
    def __init__(self, torch):
        self.torch = torch

    def record(self):
        self.torch.log.append("event")

    def elapsed_time(self, last):
        return 0.25  # milliseconds


class Torch:
    """The part of torch that a device uses. fails: error of every kernel; flash: whether FlashAttention exists."""

    def __init__(self, fails=None, flash=True, hip=None, **properties):
        self.log, self.fails, self.has_flash, self.chosen = [], fails, flash, ""
        self.__version__, self.version = "2.14.1", SimpleNamespace(hip=hip, cuda=None if hip else "13.0")
        self.int8, self.bfloat16, self.float32, self.float16 = "int8", "bfloat16", "float32", "float16"
        self.float8_e4m3fn = "float8_e4m3fn"
        facts = {"name": "Some GPU", "major": 8, "minor": 6, "total_memory": 48 << 30, "multi_processor_count": 84}
        self.properties = SimpleNamespace(**{**facts, **properties})
        self.cuda = SimpleNamespace(
            is_available=lambda: True, device_count=lambda: 2, set_device=lambda device: None,
            get_device_properties=lambda device: self.properties, OutOfMemoryError=OutOfMemoryError,
            Event=lambda enable_timing: Event(self), synchronize=lambda: self.log.append("synchronize"),
            empty_cache=lambda: self.log.append("empty cache"),
        )  # fmt: skip
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=None)))
        attention = SimpleNamespace(sdpa_kernel=self._sdpa_kernel, SDPBackend=SimpleNamespace(FLASH_ATTENTION="flash"))
        self.nn = SimpleNamespace(
            attention=attention, functional=SimpleNamespace(scaled_dot_product_attention=self._attention)
        )

    def _scaled_mm(self, *args, **options):
        self.log.append("scaled_mm")

    def _sdpa_kernel(self, backend):
        self.chosen = backend
        return nullcontext()

    def _attention(self, query, key, value, **options):
        chosen, self.chosen = self.chosen, ""
        if chosen == "flash" and not self.has_flash:
            raise RuntimeError("No available kernel. Aborting execution.")
        self.log.append(f"attention {chosen}".strip())
        return Tensor(self)

    def manual_seed(self, seed):
        pass

    def empty(self, shape, **options):
        return Tensor(self, shape)

    def randn(self, shape, **options):
        if self.fails:
            raise self.fails
        return Tensor(self, *shape)

    def zeros(self, *shape, **options):
        return Tensor(self, *shape)

    def mm(self, a, b, out):
        self.log.append("mm")


def test_facts_of_an_a6000():
    """GDDR6 at 8,001 MHz on 384 bits: two transfers a clock, 768 GB/s."""
    facts = TorchDevice(Torch(memory_clock_rate=8_001_000, memory_bus_width=384), "cuda:0").facts
    assert facts.memory_bytes_per_s == 768_096_000_000
    assert (facts.architecture, facts.compute_units, facts.memory_bytes) == ("sm_86", 84, 48 << 30)
    assert facts.dtypes == ("float32", "float16", "bfloat16", "tfloat32")
    assert facts.versions == {"torch": "2.14.1", "cuda": "13.0"}


@pytest.mark.parametrize(
    ("capability", "dtypes"),
    [
        ((7, 5), ("float32", "float16")),
        ((8, 0), ("float32", "float16", "bfloat16", "tfloat32")),
        ((8, 9), ("float32", "float16", "bfloat16", "tfloat32", "float8")),
        ((12, 0), ("float32", "float16", "bfloat16", "tfloat32", "float8")),
    ],
)
def test_precisions_by_capability(capability, dtypes):
    facts = TorchDevice(Torch(major=capability[0], minor=capability[1]), "cuda:0").facts
    assert facts.dtypes == dtypes
    assert facts.architecture == f"sm_{capability[0]}{capability[1]}"
    assert facts.memory_bytes_per_s is None


def test_facts_of_an_amd_gpu():
    facts = TorchDevice(Torch(hip="6.4", gcnArchName="gfx942:sramecc+:xnack-", memory_clock_rate=1), "cuda:0").facts
    assert facts.architecture == "gfx942"
    assert facts.versions == {"torch": "2.14.1", "hip": "6.4"}
    assert facts.dtypes == ("float32", "float16", "bfloat16")
    assert facts.memory_bytes_per_s is None


def test_a_timed_run_flushes_the_caches_first_and_waits_last():
    torch = Torch()
    run = TorchDevice(torch, "cuda:0").prepare(Kernel("gemm", "bfloat16", (16, 16, 16)))
    assert run() == pytest.approx(0.25e-3)
    assert torch.log == [*["flush"] * 4, "event", "mm", "event", "synchronize"]


@pytest.mark.parametrize(("dtype", "is_allowed"), [("tfloat32", True), ("float32", False), ("bfloat16", False)])
def test_tf32_is_on_for_its_gemms_alone(dtype, is_allowed):
    torch = Torch()
    TorchDevice(torch, "cuda:0").prepare(Kernel("gemm", dtype, (16, 16, 16)))
    assert torch.backends.cuda.matmul.allow_tf32 is is_allowed


def test_launches_are_timed_in_a_row_between_two_waits():
    torch = Torch()
    assert TorchDevice(torch, "cuda:0").prepare(Kernel("launch", "float32", ()))() > 0
    assert torch.log == ["synchronize", *["add"] * 1000, "synchronize"]


@pytest.mark.parametrize(("flash", "kernel", "call"), [(True, FLASH_KERNEL, "flash"), (False, DEFAULT_KERNEL, "")])
def test_attention_runs_flash_where_it_exists(flash, kernel, call):
    torch = Torch(flash=flash)
    device = TorchDevice(torch, "cuda:0")
    assert device.attention_kernel == DEFAULT_KERNEL
    device.prepare(Kernel("attention", "bfloat16", (1, 8, 2, 64, 64)))()
    assert device.attention_kernel == kernel
    assert f"attention {call}".strip() in torch.log


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), NO_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), NO_MEMORY),
        (MemoryError(), NO_MEMORY),
        (RuntimeError("not implemented for 'Half'\nand a second line"), "not implemented for 'Half'"),
        (NotImplementedError(), "NotImplementedError"),
        (RuntimeError("x" * 500), "x" * 120),
    ],
)
def test_errors_become_reasons_of_one_line(error, reason):
    device = TorchDevice(Torch(fails=error), "cuda:0")
    with pytest.raises(KernelUnavailable) as refused:
        device.prepare(Kernel("gemm", "bfloat16", (16, 16, 16)))
    assert str(refused.value) == reason
    device.release()


def test_clocks_come_from_nvidia_smi(monkeypatch):
    calls = []

    def query(command, **options):
        calls.append(command)
        return SimpleNamespace(stdout="1800 MHz, 8001 MHz, 300.00 W, 45, 580.95.05\n")

    monkeypatch.setattr(torch_device.subprocess, "run", query)
    device = TorchDevice(Torch(uuid="1234-56"), "cuda:1")
    assert device.clocks() == {
        "sm_clock": "1800 MHz", "memory_clock": "8001 MHz", "power_limit": "300.00 W", "temperature": "45",
        "driver": "580.95.05",
    }  # fmt: skip
    assert calls[0][-2:] == ["-i", "GPU-1234-56"]


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 10)])
def test_without_nvidia_smi_there_are_no_clocks(error, monkeypatch):
    def fail(command, **options):
        raise error

    monkeypatch.setattr(torch_device.subprocess, "run", fail)
    assert TorchDevice(Torch(), "cuda:0").clocks() == {}


@pytest.mark.parametrize(
    ("name", "device"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")]
)
def test_devices_by_name(name, device):
    assert choose_device(Torch(), name) == device


def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused():
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    assert choose_device(torch, "auto") == "cpu"
    with pytest.raises(InputError, match=r"PyTorch sees no CUDA or ROCm GPU here, so there is no 'cuda'"):
        choose_device(torch, "cuda")
