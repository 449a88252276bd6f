"""The compute model ``tables``: each operator of a workload is looked up in the tables of a GPU.

Covers GEMMs, forward and both gradients, grouped GEMMs of experts, fused attention and its backward, and memory-bound
operators; float32 GEMMs and convolutions use :mod:`trine.compute.tables.fp32`. Operators in no table take the roofline
time, with evidence 'assumed'.
"""

from __future__ import annotations

import math

from trine.cluster.presets import GpuSpec
from trine.compute.cost import uneven_notes
from trine.compute.law import FitReport
from trine.compute.resize import Split, resized
from trine.compute.roofline import TABLES, Alike, Duration, Roofline, Shares
from trine.compute.tables.machine import generation_of, left_out_error
from trine.compute.tables.sized import SizedTimes
from trine.graph.workload import Operator, Workload

_PS_PER_US = 1e6


class TableTimes:
    """Times of one workload's operators on one GPU, cached by (operator, split)."""

    name = TABLES

    def __init__(self, workload: Workload, gpu: GpuSpec) -> None:
        self._workload = workload
        self._gpu = gpu
        apart = any(op.attributes.get("cost") == "accumulation" for op in workload.operators)
        self._times = SizedTimes(gpu, fused=not apart)
        self._roofline = Roofline(workload, gpu, Shares())
        self._alike = Alike(workload)
        self._known: dict[tuple[int, Split], Duration] = {}
        self._sources: dict[str, None] = {}
        self._uneven: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        whose = " and ".join(self._sources) or "no table"
        text = f"kernel times on the {self._gpu.name}: benchmarks of {whose}"
        products = self._times.tables.product_source()
        error = left_out_error(self._gpu.name, products) if products in self._sources else None
        if error is not None:
            text += f"; GEMMs from {products}, {error:.0%} off on a held-out GPU"
        if self._gpu.step_slowdown > 1:
            text += f"; x {self._gpu.step_slowdown:g} for its sustained clock"
        basis = "measured on" if generation_of(self._gpu.name) == "hopper" else "assumed from"
        slow = [
            f"GEMMs with rows of {side} elements, not {-(-side // 64) * 64}, take up to {factor:.1f}x the time "
            f"({basis} an H100)"
            for side, factor in sorted(self._times.slow_rows.items())
        ]
        return (text, *slow, *uneven_notes(self._uneven))

    def fit_report(self) -> FitReport | None:
        return None

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return picoseconds, rounded up, inside a step. Raises InputError if the GPU has no peak for the dtype."""
        key = self._alike.first(operator), split
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._duration(operator, split)
        return found

    def _duration(self, operator: Operator, split: Split) -> Duration:
        sizes = resized(operator, self._workload, split, self._alike.forward_of(operator))
        if sizes.uneven:
            self._uneven[operator.layer or operator.name] = None
        found = self._times.time(sizes)
        if found is None:
            return self._roofline.duration(operator, split)
        if found.us:
            self._sources[found.source] = None
        return Duration(math.ceil(found.us * self._gpu.step_slowdown * _PS_PER_US), found.evidence)
