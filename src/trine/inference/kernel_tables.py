"""Measured kernels of inference engines (presets/operators/serving), loaded on first use.

A GPU without a file uses its nearest sibling's. Memory-bound kernels are read at the size that the sibling moves in the
same time, compute-bound ones at the FLOPs that it multiplies in the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from trine.cluster import load_gpu
from trine.cluster.presets import GpuSpec
from trine.common.arrays import Float64
from trine.common.evidence import ASSUMED, INTERPOLATED, TRANSFERRED
from trine.compute.tables.files import FOLDER, log_us
from trine.compute.tables.machine import is_foreign, peak_of, siblings_of

_FOLDER = FOLDER / "serving"
#: Engines whose kernels stand in for an engine's own, nearest first.
_STAND_INS = {
    "vllm": ("vllm", "sglang", "trtllm"), "sglang": ("sglang", "vllm", "trtllm"),
    "trtllm": ("trtllm", "vllm", "sglang"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A measured array: its name in the file of ``gpu``, and the evidence for another GPU's times."""

    gpu: GpuSpec
    name: str
    evidence: str


@cache
def measured_gpus() -> frozenset[str]:
    """Return the names of the GPUs with measured kernels."""
    return frozenset(path.stem for path in _FOLDER.glob("*.npz"))


@cache
def kernel_arrays(gpu: str) -> Mapping[str, NDArray[np.generic]]:
    """Load the arrays of one GPU; each is unpacked on first access, without pickle."""
    return np.load(_FOLDER / f"{gpu}.npz", allow_pickle=False)  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def log_times(gpu: str, name: str) -> Float64:
    """Return the natural logarithm of microseconds of one array; NaN marks missing measurements."""
    return log_us(kernel_arrays(gpu)[name])


@lru_cache(maxsize=1024)
def kernel_source(gpu: str, kind: str, engine: str, rest: str) -> KernelSource | None:
    """Return the array ``kind/ENGINE/rest`` that is nearest to a GPU and an engine, or None.

    The GPU's own kernels of another engine come before a sibling's of the engine.
    """
    for name in (gpu, *siblings_of(gpu)):
        if name not in measured_gpus():
            continue
        for maker in _STAND_INS[engine]:
            array = f"{kind}/{maker}/{rest}"
            if array not in kernel_arrays(name):
                continue
            evidence = ASSUMED if is_foreign(gpu) else INTERPOLATED if name == gpu else TRANSFERRED
            return KernelSource(load_gpu(name), array, evidence)
    return None


def bandwidth_ratio(source: GpuSpec, gpu: GpuSpec) -> float:
    """Return the ratio of memory bandwidths, ``source`` over ``gpu``."""
    return source.memory_bytes_per_s / gpu.memory_bytes_per_s


def peak_ratio(source: GpuSpec, gpu: GpuSpec, dtype: str) -> float:
    """Return the ratio of peak FLOP/s, ``source`` over ``gpu``; in 16 bits if one of them lacks the dtype."""
    peaks = peak_of(source, dtype), peak_of(gpu, dtype)
    if min(peaks) <= 0:
        peaks = peak_of(source, "bfloat16"), peak_of(gpu, "bfloat16")
    return peaks[0] / peaks[1]
