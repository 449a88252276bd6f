"""Times of one kind of operators in float32 on one GPU over shape: a roofline, and what measurements add to it.

    time = launch + max(FLOPs / rate, bytes / bandwidth) x exp(what the measurements around the shape say)

``rate`` is what the fastest measurements reach. NeuSight's clock starts before the launch, so that 0.03 to 0.1 ms of
every time are the host's. Of products and convolutions it is taken to be the time of the smallest products, whose
kernel itself takes next to nothing; of operators that move memory it is where the line of elementwise operators' time
over bytes begins. :meth:`Fp32Surface.kernel_us` is without it.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from trine.arrays import Float64, Int64
from trine.cluster.presets import GpuSpec, load_gpu
from trine.compute.tables.fp32_rows import NEUSIGHT, folds, measured
from trine.compute.tables.fp32_shapes import Asked, asked
from trine.compute.tables.kriging import Nearby

#: Part of the bandwidth of a data sheet that large operators reach; of measured rates, which one counts as the highest.
_BANDWIDTH, _FASTEST, _SHORTEST = 0.8, 0.98, 0.002
#: Weight of the logarithm of the roofline among the variables.
_BASE = 0.5
#: The table whose shortest time is the launch, by table; others are launched as elementwise operators.
_LAUNCH = {"bmm": "bmm", "linear": "linear", "conv": "linear"}
#: What every kernel takes, microseconds: as ``Shares.fixed_us`` of compute/roofline.py.
KERNEL_US = 3.0


class Fp32Surface:
    """Made by :func:`surface`. Times are microseconds."""

    def __init__(self, gpu: GpuSpec, table: str, shapes: Int64, times_us: Float64, launch_us: float) -> None:
        self.gpu, self.table, self.launch_us = gpu, table, launch_us
        self._rate = self._fastest(asked(table, shapes, gpu.num_compute_units), times_us)
        variables, base = self._of(shapes)
        self._known = {tuple(shape): us for shape, us in zip(shapes.tolist(), times_us.tolist(), strict=True)}
        self._nearby = Nearby(variables, np.log(times_us) - base)

    def us(self, shapes: Int64) -> tuple[Float64, Float64]:
        """Times of ``shapes`` (n x columns) in microseconds, launch included, and how far each is from a measurement.

        A measured shape has its measured time.
        """
        variables, base = self._of(shapes)
        more, distance = self._nearby.at(variables)
        found = np.exp(base + more)
        for row, shape in enumerate(shapes.tolist()):
            own = self._known.get(tuple(shape))
            if own is not None:
                found[row] = own
        return found, distance

    def kernel_us(self, shapes: Int64) -> tuple[Float64, Float64]:
        """The same without the launch: ``KERNEL_US`` and at least the roofline of the data sheet's bandwidth."""
        found, distance = self.us(shapes)
        ask = asked(self.table, shapes, self.gpu.num_compute_units)
        least = np.maximum(ask.flops / self._rate, ask.bytes * 1e6 / self.gpu.memory_bytes_per_s)
        return np.maximum(found - self.launch_us, least) + KERNEL_US, distance

    def _fastest(self, ask: Asked, times_us: Float64) -> float:
        """FLOPs a microsecond; of operators that only move memory any number."""
        return max(1.0, float(np.quantile(ask.flops / times_us, _FASTEST)))

    def _of(self, shapes: Int64) -> tuple[Float64, Float64]:
        """Variables, and the logarithm of the roofline."""
        ask = asked(self.table, shapes, self.gpu.num_compute_units)
        bytes_per_us = self.gpu.memory_bytes_per_s * _BANDWIDTH / 1e6
        base = np.log(self.launch_us + np.maximum(ask.flops / self._rate, ask.bytes / bytes_per_us))
        return np.column_stack([ask.variables, _BASE * base]), base


@cache
def surface(gpu: str, table: str, *, without: int | None = None) -> Fp32Surface:
    """The surface of a GPU that has this table. ``without``: of the shapes in other folds only."""
    rows = measured(NEUSIGHT, table)
    times = rows.times_us[gpu]
    chosen = np.isfinite(times)
    if without is not None:
        chosen &= folds(NEUSIGHT, table) != without
    return Fp32Surface(load_gpu(gpu), table, rows.shapes[chosen], times[chosen], _launch_us(gpu, table))


@cache
def _launch_us(gpu: str, table: str) -> float:
    """Microseconds of every time of this table that are not the kernel's."""
    like = _LAUNCH.get(table, "elementwise")
    rows = measured(NEUSIGHT, like)
    times = rows.times_us[gpu]
    if like != "elementwise":
        return float(np.nanquantile(times, _SHORTEST))
    chosen = np.isfinite(times)
    num_bytes = asked(like, rows.shapes[chosen], 1).bytes
    return max(0.0, float(np.polyfit(num_bytes, times[chosen], 1)[1]))
