"""Times of the products of a layer's tokens with a weight, and of passes over memory, on one GPU.

An 8-bit product moves and multiplies the bytes of a 16-bit product with half the inner size, a 4-bit product those of a
quarter. The measured 16-bit GEMM of that size gives its time. Where 8-bit or 4-bit GEMMs were measured, the time is at
least the measured one without the quantisation of its input: the tables contain it, and engines run it apart. Weights
that are multiplied in 16 bits have the times of :mod:`trine.inference.weight_only`.
"""

from __future__ import annotations

import numpy as np

from trine.cluster.presets import GpuSpec
from trine.common.arrays import Float64
from trine.common.evidence import ASSUMED, INTERPOLATED, TRANSFERRED
from trine.compute.tables.machine import generation_of, is_foreign, runs
from trine.compute.tables.operators import QUANTISED, QUANTISED_SHARE, QUANTISED_START_US, OperatorTables
from trine.inference.weight_only import WeightOnlyProduct

#: Numbers of tokens at which step times are computed; between them they are interpolated.
TOKENS: Float64 = np.array(
    [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560,
     3072, 4096, 6144, 8192, 12288, 16384, 32768, 65536], dtype=float
)  # fmt: skip
#: Kernels before the quantised GEMM in the tables' calls: one finds the maximum, one casts.
_QUANTISING_KERNELS = 2
#: Bytes of a weight in 16 bits.
_HALF = 2.0


class GpuTimes:
    """Times of products and memory passes on one GPU; curves are kept.

    engine: whose kernels multiply weights in fewer bits than the arithmetic.
    """

    def __init__(self, gpu: GpuSpec, engine: str) -> None:
        self.gpu = gpu
        self.engine = engine
        self._tables = OperatorTables(gpu)
        self._curves: dict[tuple[int, int, str, float], Float64] = {}

    @property
    def evidence(self) -> str:
        """Evidence of the products."""
        if is_foreign(self.gpu.name):
            return ASSUMED
        return INTERPOLATED if self._tables.product_source() == self.gpu.name else TRANSFERRED

    def product_us(self, outputs: int, inputs: int, dtype: str, weight_bytes: float) -> Float64:
        """Return microseconds of a GEMM with a weight of ``outputs`` x ``inputs``, at each of :data:`TOKENS`.

        dtype: of the arithmetic. weight_bytes: of an element of the weight. Weights in fewer bits than the arithmetic
        are read in their size and multiplied in 16 bits.
        """
        key = outputs, inputs, dtype, weight_bytes
        if key not in self._curves:
            self._curves[key] = self._product_us(outputs, inputs, dtype, weight_bytes)
        return self._curves[key]

    def moved_us(self, num_bytes: float) -> float:
        """Return microseconds of a memory-bound kernel that moves ``num_bytes``."""
        return self._tables.memory_table.time_us(max(num_bytes, 1.0), "elementwise")

    def _product_us(self, outputs: int, inputs: int, dtype: str, weight_bytes: float) -> Float64:
        folded = max(1.0, inputs * weight_bytes / _HALF)
        times = self._tables.products_us(_shapes(outputs, folded))
        if dtype == "bfloat16" or not runs(self.gpu, dtype):
            if weight_bytes >= _HALF:
                return times
            half_us = self._tables.products_us(_shapes(outputs, inputs))
            product = WeightOnlyProduct(times, half_us, 2 * TOKENS * outputs * inputs, 8 * weight_bytes)
            return product.us(generation_of(self.gpu.name), self.engine)
        if not self._tables.has_products(dtype):
            return times
        measured = self._tables.products_us(_shapes(outputs, inputs), dtype)
        passes_us = QUANTISED[dtype] * TOKENS * inputs / (QUANTISED_SHARE * self.gpu.memory_bytes_per_s) * 1e6
        return np.maximum(times, measured - passes_us - _QUANTISING_KERNELS * QUANTISED_START_US)


def _shapes(outputs: int, inputs: float) -> Float64:
    """Return the rows (m, n, k) of a product at each of :data:`TOKENS`."""
    return np.stack([TOKENS, np.full(TOKENS.shape, float(outputs)), np.full(TOKENS.shape, float(inputs))], axis=1)


def at_tokens(tokens: float, curve: Float64) -> float:
    """Return the time at a number of tokens, from a curve over :data:`TOKENS`; beyond its end in proportion."""
    return float(np.interp(tokens, TOKENS, curve)) * max(1.0, tokens / float(TOKENS[-1]))


_kept: dict[tuple[object, ...], GpuTimes] = {}


def gpu_times(gpu: GpuSpec, engine: str) -> GpuTimes:
    """Return the times of a GPU with the kernels of an engine, which further answers share."""
    rates = tuple(sorted(gpu.flop_per_s.items()))
    key = gpu.name, engine, gpu.memory_bytes_per_s, gpu.num_compute_units, gpu.power_w, rates
    if key not in _kept:
        _kept[key] = GpuTimes(gpu, engine)
    return _kept[key]
