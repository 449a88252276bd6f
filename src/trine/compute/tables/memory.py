"""Time of operators that only move memory: measured shares of the memory bandwidth over the bytes moved.

Curves are medians of an octave of bytes (memory.npz). On a GPU without a curve, the nearest one's is read at the bytes
that its memory moves in the same time. A share above the one of the largest sizes means that the cache held what was
read: in a step it mostly does not, and that share is a cap.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from trine.arrays import Float64
from trine.cluster.presets import GpuSpec
from trine.compute.tables.files import read_arrays
from trine.compute.tables.machine import generation_of

ELEMENTWISE = "elementwise"
#: Family of operators (trine.compute.kinds) -> curve. All others move memory as elementwise operators do.
_CURVES = {"layer_norm": "norm", "group_norm": "norm", "softmax": "softmax", "loss": "softmax"}
#: Generation -> GPUs whose curves are used, nearest first. An A100 PCIe has no others than NeuSight's.
_SOURCES = {
    "ampere": ("a100-80gb", "a100-pcie-40gb"), "hopper": ("h100-sxm", "a100-pcie-40gb"),
    "blackwell": ("h100-sxm", "a100-pcie-40gb"), "volta": ("v100-pcie",), "pascal": ("p100-pcie",), "turing": ("t4",),
    "ampere-gddr": ("a40", "a100-pcie-40gb"), "ada": ("a40", "a100-pcie-40gb"),
    "blackwell-gddr": ("a40", "a100-pcie-40gb"),
}  # fmt: skip
_DEFAULT = ("a100-80gb", "a100-pcie-40gb")
#: SimuMax, b200_bf16_ceperm.json: share of 8 TB/s that memory-bound operators reach inside steps on B200.
_IN_STEP = {"blackwell": 0.666}
#: Nothing is faster than this, microseconds: the shortest kernel in the measurements.
FLOOR_US = 2.0
#: No curve counts for more: beyond it the cache had the data (HBM reaches about 0.92 of its peak in copies).
_CAP = 0.92


def curve_of(family: str) -> str:
    """Name of the curve for a family of operators."""
    return _CURVES.get(family, ELEMENTWISE)


def memory_sources(gpu: str, curve: str) -> tuple[str, ...]:
    """GPUs that have the curve, nearest to ``gpu`` first."""
    wanted = (gpu, *_SOURCES.get(generation_of(gpu), ()), *_DEFAULT)
    return tuple(name for name in wanted if f"{name}/{curve}" in read_arrays("memory"))


class MemoryTable:
    """Shares of the bandwidth of one GPU."""

    def __init__(self, gpu: GpuSpec) -> None:
        self._gpu = gpu
        self._curves: dict[str, tuple[str, Float64, Float64, float]] = {}

    def source(self, family: str) -> str:
        """The GPU whose curve is used for a family of operators."""
        return self._curve(curve_of(family))[0]

    def time_us(self, num_bytes: float, family: str) -> float:
        """Microseconds to move ``num_bytes``."""
        if num_bytes <= 0:
            return 0.0
        curve = curve_of(family)
        _, octaves, shares, bandwidth = self._curve(curve)
        rate = float(self._gpu.memory_bytes_per_s)
        first = 2.0 ** float(octaves[0]) * 1e6 * rate / bandwidth
        if num_bytes < first and curve != ELEMENTWISE:  # below the curve: as elementwise operators go on
            grown = self.time_us(num_bytes, ELEMENTWISE) / self.time_us(first, ELEMENTWISE)
            return max(FLOOR_US, grown * self.time_us(first, family))
        alike = math.log2(max(num_bytes, first) * bandwidth / rate / 1e6)
        share = float(np.interp(alike, octaves, shares))
        return max(FLOOR_US, float(max(num_bytes, first) * 1e6 / (rate * share)))

    def _curve(self, name: str) -> tuple[str, Float64, Float64, float]:
        found = self._curves.get(name)
        if found is None:
            found = self._curves[name] = self._load(name)
        return found

    def _load(self, name: str) -> tuple[str, Float64, Float64, float]:
        source, octaves, shares, bandwidth = _read_curve(memory_sources(self._gpu.name, name)[0], name)
        limit = _IN_STEP.get(generation_of(self._gpu.name), _CAP)
        return source, octaves, np.minimum(shares, min(float(shares[-1]), limit)), bandwidth


@lru_cache(maxsize=64)
def _read_curve(gpu: str, name: str) -> tuple[str, Float64, Float64, float]:
    from trine.cluster import load_gpu

    rows = np.asarray(read_arrays("memory")[f"{gpu}/{name}"], dtype=float)
    return gpu, rows[:, 0], rows[:, 1], float(load_gpu(gpu).memory_bytes_per_s)
