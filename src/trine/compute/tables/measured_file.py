"""Operator tables of a GPU file (:mod:`trine.cluster.measured_gpu`), in the form of the bundled tables.

GEMMs and attention are interpolated as in the bundled tables. Memory-bound kernels give one point each: the achieved
share of the memory bandwidth over the bytes moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from trine.cluster.measured_gpu import MeasuredGpu, MeasuredKernel, measured_gpu
from trine.common.arrays import Float64
from trine.common.precision import BY_WORD, HALVES, PRECISIONS
from trine.compute.tables.attention import AttentionTable
from trine.compute.tables.gemm import GemmTable, ScatteredGemms
from trine.compute.tables.machine import Machine

#: Passes over (rows, width) of a memory-bound kernel: an addition reads two tensors and writes one.
PASSES = {"elementwise": 3, "copy": 2, "norm": 2, "softmax": 2}
ITEM_BYTES = {precision.name: int(precision.bytes) for precision in BY_WORD.values()}
#: Memory curve -> kinds of kernels with its points.
_CURVE_KINDS = {"elementwise": ("elementwise", "copy"), "norm": ("norm",), "softmax": ("softmax",)}
#: Beyond this multiple of the largest measured size, the closed form decides more than the measurements.
MAX_REACH = 4
_POINTS_AN_OCTAVE = 2
_SIXTEEN_BITS = tuple(precision.name for precision in PRECISIONS if precision.name in HALVES)


@dataclass(frozen=True, eq=False)
class FileTables:
    """Tables of one GPU file."""

    gpu: MeasuredGpu
    _largest: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict, repr=False)

    def _rows(self, kinds: Iterable[str], dtype: str | None = None) -> list[MeasuredKernel]:
        """Return the measured kernels of these kinds; 16-bit types stand in for each other, bfloat16 first."""
        rows = [kernel for kernel in self.gpu.content.kernels if kernel.kind in kinds]
        if dtype is None:
            return rows
        choices = _SIXTEEN_BITS if dtype in _SIXTEEN_BITS else (dtype,)
        for choice in choices:
            chosen = [kernel for kernel in rows if kernel.dtype == choice]
            if chosen:
                return chosen
        return []

    def reaches(self, kind: str, dtype: str, shape: tuple[int, ...]) -> bool:
        """Return whether no size of ``shape`` is more than MAX_REACH times the largest one measured."""
        largest = self._largest.get((kind, dtype))
        if largest is None:
            rows = [row.shape for row in self._rows((kind,), dtype)]
            largest = self._largest[kind, dtype] = tuple(max(sizes) for sizes in zip(*rows, strict=True))
        return all(size <= MAX_REACH * limit for size, limit in zip(shape, largest, strict=True))

    def gemm(self, dtype: str, machine: Machine) -> GemmTable | None:
        """Return the GEMMs in ``dtype``, or None if none was measured."""
        rows = self._rows(("gemm",), dtype)
        if not rows:
            return None
        return ScatteredGemms(np.array([row.shape for row in rows], dtype=np.int64), _logs(rows), machine, dtype)

    def attention(self, machine: Machine, kind: str = "attention") -> AttentionTable | None:
        """Return causal attention in 16 bits, or None. kind: ``attention`` or ``attention_backward``."""
        rows = self._rows((kind,), "bfloat16")
        if not rows:
            return None
        shapes = []
        for row in rows:
            batch, heads, kv_heads, length, size = row.shape
            shapes.append((size, 0, heads, kv_heads, batch, length))
        shortest_us = min(row.us for row in rows)
        return AttentionTable(np.array(shapes, dtype=np.int64), _logs(rows), machine, shortest_us)

    def memory_curve(self, name: str) -> tuple[Float64, Float64] | None:
        """Return log2 of the megabytes moved, ascending, and the share of the memory bandwidth there; None if unknown.

        Kernels that move equally many bytes count with their median. Between two sizes the time is linear in the bytes,
        as a launch and a transfer. Below the smallest size its share applies: the time falls with the bytes, down to
        the shortest kernel.
        """
        times_us: dict[int, list[float]] = {}
        for row in self._rows(_CURVE_KINDS[name]):
            times_us.setdefault(moved_bytes(row.kind, row.dtype, row.shape), []).append(row.us)
        if not times_us:
            return None
        sizes = np.array(sorted(times_us), dtype=float)
        medians = np.array([float(np.median(times_us[int(size)])) for size in sizes])
        steps = max(1, math.ceil(math.log2(sizes[-1] / sizes[0]) * _POINTS_AN_OCTAVE))
        points = np.unique(np.concatenate([sizes, np.geomspace(sizes[0], sizes[-1], steps)]))
        shares = points / (np.interp(points, sizes, medians) * 1e-6) / self.gpu.spec.memory_bytes_per_s
        octaves = np.log2(np.concatenate([[1.0], points]) / 1e6)
        return octaves, np.concatenate([shares[:1], shares])


def moved_bytes(kind: str, dtype: str, shape: Iterable[int]) -> int:
    """Return the bytes that a memory-bound kernel reads and writes."""
    rows, width = shape
    return PASSES[kind] * rows * width * ITEM_BYTES[dtype]


def _logs(rows: list[MeasuredKernel]) -> Float64:
    logs: Float64 = np.log(np.array([row.us for row in rows], dtype=float))
    return logs


def file_tables(gpu: str) -> FileTables | None:
    """Return the tables of a GPU file, or None if ``gpu`` names a bundled GPU. Raises SpecError for a wrong file."""
    measured = measured_gpu(gpu)
    return None if measured is None else _tables_of(measured)


@lru_cache(maxsize=16)
def _tables_of(measured: MeasuredGpu) -> FileTables:
    return FileTables(measured)
