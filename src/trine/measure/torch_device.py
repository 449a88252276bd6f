"""A GPU or the CPU through PyTorch: its facts, and its kernels with cold caches.

A GPU's kernel is timed by CUDA events. Before each run, a buffer larger than the L2 is overwritten several times. The
CPU uses this time to queue the events and the kernel, so that the launch is not timed. On the CPU, trine reads a wall
clock around the call.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trine.cluster.measured_gpu import DEFAULT_KERNEL, FLASH_KERNEL
from trine.common.precision import BY_NAME
from trine.errors import InputError, MissingExtraError
from trine.measure.kernels import Kernel
from trine.measure.timing import NO_MEMORY, KernelUnavailable

_FLUSH_BYTES, _CPU_FLUSH_BYTES = 256 << 20, 64 << 20
#: Passes over the buffer: at 8 TB/s four take 130 us, and autograd queues a backward pass in less.
_FLUSHES = 4
_LAUNCHES = 1000
_CLOCK_QUERY = "clocks.sm,clocks.mem,power.limit,temperature.gpu,driver_version"
_SMI_TIMEOUT_S = 10
#: Characters of PyTorch's message that the file keeps as the reason.
_REASON_LENGTH = 120


def import_torch() -> Any:
    """Return the module torch. Raises MissingExtraError, which names the extra to install."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("measuring a GPU", "capture", "torch") from error
    return torch


def choose_device(torch: Any, name: str) -> str:
    """Return ``cuda:N`` or ``cpu`` for ``auto``, ``cuda``, ``cuda:N`` or ``cpu``. Raises InputError if it is absent."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return "cpu"
    kind, _, number = name.partition(":")
    if name not in ("auto", "cuda") and not (kind == "cuda" and number.isascii() and number.isdigit()):
        raise InputError(f"unknown device {name!r:.40}: give auto, cuda, cuda:N or cpu", field="device")
    index = int(number or 0)
    if index >= count:
        seen = f"{count} GPU{'s' if count != 1 else ''}" if count else "no CUDA or ROCm GPU"
        raise InputError(f"PyTorch sees {seen} here, so there is no {name!r:.40}; 'cpu' always works", field="device")
    return f"cuda:{index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFacts:
    """Facts of a device as PyTorch states them. memory_bytes_per_s: None if PyTorch does not know the clocks."""

    name: str
    device: str
    architecture: str
    memory_bytes: int
    compute_units: int
    memory_bytes_per_s: int | None
    dtypes: tuple[str, ...]
    versions: dict[str, str] = field(default_factory=dict)


class TorchDevice:
    """Runs kernels on one device."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        self._out_of_memory = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
        self._is_gpu = device != "cpu"
        self.facts = _gpu_facts(torch, device) if self._is_gpu else _cpu_facts(torch)
        self._flash_runs, self._other_runs = 0, 0
        if self._is_gpu:
            torch.cuda.set_device(device)
        flush_bytes = _FLUSH_BYTES if self._is_gpu else _CPU_FLUSH_BYTES
        self._flush = torch.empty(flush_bytes, dtype=torch.int8, device=device)
        torch.manual_seed(0)

    @property
    def memory_bytes(self) -> int:
        """Capacity of the memory."""
        return self.facts.memory_bytes

    @property
    def attention_kernel(self) -> str:
        """Kernel of the attentions that ran; ``default`` unless all of them were FlashAttention-2."""
        return FLASH_KERNEL if self._flash_runs and not self._other_runs else DEFAULT_KERNEL

    def clocks(self) -> dict[str, str]:
        """Return clocks, power limit and temperature from nvidia-smi as texts; empty if it gives none."""
        if not self._is_gpu or self._torch.version.hip is not None:
            return {}
        uuid = getattr(self._torch.cuda.get_device_properties(self._device), "uuid", None)
        chosen = f"GPU-{uuid}" if uuid is not None else self._device.partition(":")[2]
        command = ["nvidia-smi", f"--query-gpu={_CLOCK_QUERY}", "--format=csv,noheader", "-i", chosen]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return {}
        values = [value.strip()[:40] for value in done.stdout.splitlines()[0].split(",")] if done.stdout else []
        names = ("sm_clock", "memory_clock", "power_limit", "temperature", "driver")
        return dict(zip(names, values, strict=False))

    def release(self) -> None:
        """Free the tensors of the last kernel."""
        if self._is_gpu:
            self._torch.cuda.empty_cache()

    def prepare(self, kernel: Kernel) -> Callable[[], float]:
        """Return a function that runs the kernel once and returns its seconds. Raises KernelUnavailable."""
        if kernel.kind == "launch":
            return self._guarded(self._launch_s)
        run = self._guarded(self._made(kernel))()
        return self._guarded(lambda: self._timed(run))

    def _guarded(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Return ``call`` with PyTorch's errors as KernelUnavailable."""

        def guarded() -> Any:
            try:
                return call()
            except (RuntimeError, NotImplementedError, TypeError, AttributeError, MemoryError) as error:
                raise KernelUnavailable(self._reason(error)) from None

        return guarded

    def _reason(self, error: Exception) -> str:
        text = str(error)
        if isinstance(error, (MemoryError, self._out_of_memory)) or "can't allocate memory" in text:
            return NO_MEMORY
        return (text.splitlines() or [type(error).__name__])[0][:_REASON_LENGTH]

    def _timed(self, run: Callable[[], object]) -> float:
        torch = self._torch
        if not self._is_gpu:
            self._flush.add_(1)
            began = time.perf_counter()
            run()
            return time.perf_counter() - began
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(_FLUSHES):
            self._flush.zero_()
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) * 1e-3

    def _launch_s(self) -> float:
        """Return the seconds per launch of a kernel on one element, in a row of launches."""
        one = self._torch.zeros(1, device=self._device)
        self._wait()
        began = time.perf_counter()
        for _ in range(_LAUNCHES):
            one.add_(1)
        self._wait()
        return (time.perf_counter() - began) / _LAUNCHES

    def _wait(self) -> None:
        if self._is_gpu:
            self._torch.cuda.synchronize()

    # Kernels ----------------------------------------------------------------------------------------------------

    def _made(self, kernel: Kernel) -> Callable[[], Callable[[], object]]:
        """Return a function that makes the tensors of a kernel and returns the call that runs it."""
        makers = {
            "gemm": self._gemm, "attention": self._attention, "attention_backward": self._attention_backward,
            "elementwise": self._elementwise, "copy": self._copy, "norm": self._norm, "softmax": self._softmax,
        }  # fmt: skip
        return lambda: makers[kernel.kind](kernel)

    def _random(self, dtype: str, *shape: int) -> Any:
        """Return a tensor of random numbers: with zeros a GPU needs less power and clocks higher."""
        kind = getattr(self._torch, BY_NAME[dtype].tensor_type)
        if dtype == "float8":
            return self._torch.randn(shape, device=self._device, dtype=self._torch.bfloat16).to(kind)
        return self._torch.randn(shape, device=self._device, dtype=kind)

    def _gemm(self, kernel: Kernel) -> Callable[[], object]:
        torch, (m, n, k) = self._torch, kernel.shape
        x, weight = self._random(kernel.dtype, m, k), self._random(kernel.dtype, n, k)
        if kernel.dtype == "float8":
            one = torch.ones((), device=self._device)
            return lambda: torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        out = torch.empty((m, n), device=self._device, dtype=x.dtype)
        if self._is_gpu:
            torch.backends.cuda.matmul.allow_tf32 = kernel.dtype == "tfloat32"
        return lambda: torch.mm(x, weight.t(), out=out)

    def _attention_inputs(self, kernel: Kernel) -> list[Any]:
        batch, heads, kv_heads, length, size = kernel.shape
        shapes = [(batch, count, length, size) for count in (heads, kv_heads, kv_heads)]
        return [self._random(kernel.dtype, *shape) for shape in shapes]

    def _attend(self, kernel: Kernel, inputs: list[Any]) -> Any:
        """Return causal attention, by FlashAttention where PyTorch has it for this GPU."""
        torch = self._torch
        options = {"is_causal": True, "enable_gqa": True} if kernel.shape[1] != kernel.shape[2] else {"is_causal": True}
        call = torch.nn.functional.scaled_dot_product_attention
        if not self._is_gpu or torch.version.hip is not None:
            return call(*inputs, **options)
        try:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                result = call(*inputs, **options)
        except self._out_of_memory:
            raise
        except RuntimeError:
            self._other_runs += 1
            return call(*inputs, **options)
        self._flash_runs += 1
        return result

    def _attention(self, kernel: Kernel) -> Callable[[], object]:
        inputs = self._attention_inputs(kernel)
        return lambda: self._attend(kernel, inputs)

    def _attention_backward(self, kernel: Kernel) -> Callable[[], object]:
        inputs = [tensor.requires_grad_() for tensor in self._attention_inputs(kernel)]
        out = self._attend(kernel, inputs)
        gradient = self._torch.randn_like(out)
        return lambda: self._torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    def _elementwise(self, kernel: Kernel) -> Callable[[], object]:
        first, second = self._random(kernel.dtype, *kernel.shape), self._random(kernel.dtype, *kernel.shape)
        out = self._torch.empty_like(first)
        return lambda: self._torch.add(first, second, out=out)

    def _copy(self, kernel: Kernel) -> Callable[[], object]:
        source = self._random(kernel.dtype, *kernel.shape)
        target = self._torch.empty_like(source)
        return lambda: target.copy_(source)

    def _norm(self, kernel: Kernel) -> Callable[[], object]:
        x, width = self._random(kernel.dtype, *kernel.shape), kernel.shape[1]
        weight, bias = self._random(kernel.dtype, width), self._random(kernel.dtype, width)
        return lambda: self._torch.nn.functional.layer_norm(x, (width,), weight, bias)

    def _softmax(self, kernel: Kernel) -> Callable[[], object]:
        x = self._random(kernel.dtype, *kernel.shape)
        return lambda: self._torch.softmax(x, -1)


def _gpu_facts(torch: Any, device: str) -> DeviceFacts:
    properties = torch.cuda.get_device_properties(device)
    is_amd = torch.version.hip is not None
    capability = (properties.major, properties.minor)
    architecture = f"sm_{capability[0]}{capability[1]}"
    if is_amd:
        architecture = str(properties.gcnArchName).partition(":")[0]
    clock_khz = getattr(properties, "memory_clock_rate", None)
    bus_bits = getattr(properties, "memory_bus_width", None)
    rate = 2 * clock_khz * 1000 * bus_bits // 8 if clock_khz and bus_bits and not is_amd else None
    dtypes = ["float32", "float16"]
    if is_amd or capability >= (8, 0):
        dtypes.append("bfloat16")
    if not is_amd and capability >= (8, 0):
        dtypes.append("tfloat32")
    if hasattr(torch, "_scaled_mm") and not is_amd and capability >= (8, 9):
        dtypes.append("float8")
    runtime = {"hip": str(torch.version.hip)} if is_amd else {"cuda": str(torch.version.cuda)}
    return DeviceFacts(
        name=str(properties.name), device=device, architecture=architecture,
        memory_bytes=int(properties.total_memory), compute_units=int(properties.multi_processor_count),
        memory_bytes_per_s=rate, dtypes=tuple(dtypes), versions={"torch": str(torch.__version__), **runtime},
    )  # fmt: skip


def _cpu_facts(torch: Any) -> DeviceFacts:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    return DeviceFacts(
        name="CPU", device="cpu", architecture="cpu", memory_bytes=memory_bytes,
        compute_units=int(torch.get_num_threads()), memory_bytes_per_s=None, dtypes=("float32", "bfloat16"),
        versions={"torch": str(torch.__version__)},
    )  # fmt: skip
