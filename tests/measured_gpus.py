"""Devices of tests that replay measured kernels with a fake clock, and the GPU files of such measurements."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from trine.cluster.measured_gpu import measured_gpu
from trine.cluster.presets import load_gpu
from trine.compute.tables.attention import load_attention
from trine.compute.tables.fp32_files import NEUSIGHT, measured
from trine.compute.tables.gemm import load_gemm
from trine.compute.tables.machine import Machine
from trine.compute.tables.measured_file import moved_bytes
from trine.compute.tables.operators import AttentionShape, OperatorTables
from trine.measure.gpu_file import file_text, write_gpu_file
from trine.measure.kernels import Kernel, gpu_kernels
from trine.measure.timing import KernelUnavailable, Measurement, measure_kernels
from trine.measure.torch_device import DeviceFacts

FOLDER = Path(__file__).parent / "data" / "measured_gpus"
#: Times of kernels in microseconds.
Times = Mapping[Kernel, float]
#: Relative deviations of repeats, in turn.
_NOISE = (0.01, -0.01, 0.0, 0.02, -0.02)


class ReplayedDevice:
    """A device whose kernels take the times of a table, with 2 % of noise. now: its clock, in seconds."""

    memory_bytes = 48 << 30

    def __init__(self, times: Times, *, overhead_s: float = 0.0) -> None:
        self._times, self._overhead_s = times, overhead_s
        self.seconds, self.runs = 0.0, 0

    def now(self) -> float:
        return self.seconds

    def prepare(self, kernel: Kernel) -> Callable[[], float]:
        if kernel not in self._times:
            raise KernelUnavailable("not in the table")

        def run() -> float:
            self.runs += 1
            seconds = self._times[kernel] * 1e-6 * (1 + _NOISE[self.runs % len(_NOISE)])
            self.seconds += seconds + self._overhead_s
            return seconds

        return run

    def release(self) -> None:
        """Nothing to free."""


def read_times(name: str) -> dict[Kernel, float]:
    """Return the 16-bit kernels of a file in tests/data/measured_gpus."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        Kernel(row["kind"], "bfloat16", tuple(int(size) for size in row["shape"].split("x"))): float(row["us"])
        for row in rows
    }


def bundled_times(gpu: str) -> dict[Kernel, float]:
    """Return the GEMMs with sides from 512 and the attentions from 512 tokens of a bundled table."""
    times: dict[Kernel, float] = {}
    for dtype in ("bfloat16", "float8"):
        table = load_gemm(gpu, dtype, Machine.of(load_gpu(gpu), dtype))
        if table is None:
            continue
        for cell in np.argwhere(~np.isnan(table.times)):
            shape = tuple(int(axis[i]) for axis, i in zip(table.axes, cell, strict=True))
            if min(shape[1:]) >= 512:
                times[Kernel("gemm", dtype, shape)] = float(np.exp(table.times[tuple(cell)]))
    attention = load_attention(gpu, Machine.of(load_gpu(gpu), "bfloat16"))
    if attention is not None:
        for row, log in zip(attention.shapes.tolist(), attention.times.tolist(), strict=True):
            size, window, heads, kv_heads, batch, length = row
            if window == 0 and kv_heads <= heads and length >= 512 and batch * length <= 1 << 17 and size <= 128:
                times[Kernel("attention", "bfloat16", (batch, heads, kv_heads, length, size))] = float(np.exp(log))
    return times


def float32_times(gpu: str) -> dict[Kernel, float]:
    """Return NeuSight's products, norms and softmaxes of a GPU in float32."""
    times: dict[Kernel, float] = {}
    for table, kind in (("linear", "gemm"), ("layer_norm", "norm"), ("softmax", "softmax")):
        rows = measured(NEUSIGHT, table)
        for shape, us in zip(rows.shapes.tolist(), rows.times_us[gpu].tolist(), strict=True):
            if us > 0 and (kind != "gemm" or (shape[0] >= 64 and min(shape[1:]) >= 512)):
                times[Kernel(kind, "float32", tuple(shape))] = us
    return times


def nearest_kernels(times: Times, dtypes: Iterable[str]) -> list[Kernel]:
    """Return, for each kernel that trine measures in ``dtypes``, the kernel of the table with the nearest shape."""
    shapes: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for kernel in times:
        shapes.setdefault((kernel.kind, kernel.dtype), []).append(kernel.shape)
    chosen = {}
    for kernel in gpu_kernels(set(dtypes)):
        rows = shapes.get((kernel.kind, kernel.dtype))
        if rows:
            octaves = np.abs(np.log2(np.array(rows, float)) - np.log2(np.array(kernel.shape, float))).sum(1)
            chosen[Kernel(kernel.kind, kernel.dtype, rows[int(np.argmin(octaves))])] = None
    return list(chosen)


def facts_of(name: str, architecture: str) -> DeviceFacts:
    """Return the facts of a device whose clocks PyTorch does not state."""
    return DeviceFacts(
        name=name, device="cuda:0", architecture=architecture, memory_bytes=48 << 30, compute_units=84,
        memory_bytes_per_s=None, dtypes=("float32", "bfloat16"), versions={"torch": "2.14.1", "cuda": "13.0"},
    )  # fmt: skip


def write_file(path: Path, facts: DeviceFacts, measurement: Measurement) -> str:
    """Write a GPU file; return its path."""
    text = file_text(facts, measurement, date="2026-11-29T12:00:00+00:00", attention_kernel="flash-2", clocks={})
    write_gpu_file(str(path), text)
    return str(path)


def measured_file(
    path: Path, times: Times, dtypes: Iterable[str], name: str, architecture: str, *, every: int = 1
) -> tuple[str, Counter[tuple[str, str]]]:
    """Measure the replayed GPU within 300 s of its clock, and write its file.

    every: measure only each n-th kernel. Returns the path, and the number of kernels by kind and dtype.
    """
    device = ReplayedDevice(times)
    measurement = measure_kernels(device, nearest_kernels(times, dtypes)[::every], budget_s=300, now=device.now)
    assert not measurement.left_out
    counts = Counter((row.kind, row.dtype) for row in measurement.kernels)
    return write_file(path, facts_of(name, architecture), measurement), counts


def predicted_us(tables: OperatorTables, kernel: Kernel) -> float:
    """Return the time of a kernel alone."""
    if kernel.kind == "gemm":
        m, n, k = kernel.shape
        time = tables.gemm(m, n, k, kernel.dtype)
    elif kernel.kind == "attention":
        batch, heads, kv_heads, length, size = kernel.shape
        shape = AttentionShape(batch=batch, heads=heads, kv_heads=kv_heads, length=length, size=size)
        time = tables.attention(shape)
    else:
        family = {"elementwise": "activation", "norm": "layer_norm", "softmax": "softmax"}[kernel.kind]
        time = tables.memory(moved_bytes(kernel.kind, kernel.dtype, kernel.shape), family)
    assert time is not None
    assert time.source == tables.gpu.name
    return time.us


def left_out_errors(path: str, times: Times, every: int = 1) -> dict[tuple[str, str], np.ndarray]:
    """Return |predicted / measured - 1| of the kernels that are not in the file, by kind and dtype; each n-th."""
    gpu = load_gpu(path)
    tables = OperatorTables(gpu)
    file = measured_gpu(path)
    assert file is not None
    known = {Kernel(row.kind, row.dtype, tuple(row.shape)) for row in file.content.kernels}
    left_out: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in times:
        if kernel not in known:
            left_out.setdefault((kernel.kind, kernel.dtype), []).append(kernel)
    return {
        group: np.array([abs(predicted_us(tables, kernel) / times[kernel] - 1) for kernel in kernels[::every]])
        for group, kernels in left_out.items()
    }
