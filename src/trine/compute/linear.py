"""Li's model, extended to training and anchored at the trace.

Li et al. ("Path forward beyond simulators: fast and accurate GPU execution time prediction for DNN workloads", MICRO
2023) regress the time of a kind of layer on its size; TrioSim (section 4.4) uses this to scale a trace to other batch
sizes. Here each kind of operator, forward, backward or optimizer, has a law (FLOPs, bytes, intercept; law.py). An
operator's prediction starts from its own recorded time, which it reproduces exactly at the recorded size.

With m0 and m the law at the recorded and at the new size, x = m / m0, and r = recorded - m0 the operator's excess over
its law:

- r <= 0: recorded x. The operator is more efficient than its kind, and stays so.
- r > 0: (recorded - e) x + e sqrt(x), with e = min(r, max(m0 / 4, f)). An operator can exceed its law for two reasons.
    Its shape may suit the GPU badly, an effect that scales. Or the recorded size had a fixed cost, or an algorithm that
    the library need not choose at another size; this does not scale. An excess of up to e may be of the second sort.
    Its factor is the geometric mean of "scales" and "does not". The fixed cost f is at most 3 us for each recorded
    kernel, or 30 us if the trace does not list an operator's kernels. Memory-bound operators with known kernels have no
    choice of algorithm: e = min(r, f).

If the data sheet has the L2, the law's bytes at both sizes are those that reach memory (cache.py). 16-bit products and
attention scale with the GPU's measured tables instead (trine.compute.tables), if the GPU has them and only the batch
changes: tables know how tiles fill the GPU at both sizes, and FLOPs and bytes overlap in them.

Both are at most proportional to the law, increase with the work, and never become more efficient with less work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from trine.cluster.presets import GpuSpec
from trine.common.evidence import ASSUMED
from trine.common.precision import HALVES
from trine.compute.cache import CachedTraffic
from trine.compute.calibration import Calibration, measured_times, signatures, time_step_ps
from trine.compute.cost import Sizing, Work
from trine.compute.kinds import BACKWARD_SUFFIX, family_of, is_compute_bound, kind_of
from trine.compute.law import FIXED_SPREAD_PS, KERNEL_SPREAD_PS, FitReport, Law, Laws, Sample, fit_laws, report
from trine.compute.origin import known_gpu, short_name
from trine.compute.resize import Split
from trine.compute.roofline import dtype_of
from trine.compute.tables.times import SizedTimes
from trine.errors import InputError
from trine.graph.workload import OPTIMIZER, Operator, Workload

#: Maximum loss to the choice of algorithm, relative to the law; 12 % and 31 % were observed
#: (docs/background/operator-time.md, with the results of other shares).
_ALGORITHM_SHARE = 0.25
#: Families with tables for 16-bit types.
_IN_HALF = ("linear", "matmul", "attention")


def anchored(
    law: Law, before: Work, recorded_ps: int, after: Work, *, kernels: int = 0, has_algorithms: bool = True
) -> int:
    """Return ps, rounded up, for the work ``after`` of an operator that took ``recorded_ps`` for ``before``.

    kernels: number of recorded kernels, 0 if unknown. has_algorithms: the library may choose another algorithm.
    """
    m0, m = law.time_ps(before), law.time_ps(after)
    if m0 <= 0.0:
        return recorded_ps
    ratio = m / m0
    fixed = kernels * KERNEL_SPREAD_PS if kernels else FIXED_SPREAD_PS
    unscaled = max(_ALGORITHM_SHARE * m0, fixed) if has_algorithms or not kernels else fixed
    excess = min(max(recorded_ps - m0, 0.0), unscaled)
    time = (recorded_ps - excess) * ratio + excess * math.sqrt(ratio)
    # The doubles' rounding error must not be rounded up to a picosecond.
    return math.ceil(time * (1.0 - 2.0**-50))


def copies_unknown_activations(operator: Operator) -> bool:
    """Return whether the operator is a view's gradient that runs kernels on tensors which the trace does not list.

    Such kernels make a gradient contiguous. trine assumes that it is an activation's, which grows with the batch.
    """
    is_view = kind_of(operator) == "view" + BACKWARD_SUFFIX
    return is_view and operator.gpu_time_ps > 0 and not (operator.inputs or operator.outputs)


class LinearTimes:
    """Times of a workload's operators at other sizes; laws are fitted on first use."""

    def __init__(self, workload: Workload, sizing: Sizing, calibration: Calibration | None) -> None:
        if calibration is not None:
            _check_gpu(calibration.gpu, workload.gpu)
        self._workload = workload
        self._sizing = sizing
        self._calibration = calibration
        self._laws: Laws | None = None
        self._measured = {} if calibration is None else measured_times(calibration)
        self._signatures = {} if calibration is None else signatures(workload)
        self._gpu = known_gpu(workload.gpu)
        self._traffic = CachedTraffic(workload, sizing, self._gpu)
        self._tables: SizedTimes | None = None

    @property
    def laws(self) -> Laws:
        """The laws, fitted on the trace and, if given, on the calibration's traces."""
        if self._laws is None:
            operators, calibration = self._workload.operators, self._calibration
            samples = [
                (kind_of(op), Sample(self._sizing.recorded(op), op.gpu_time_ps, len(op.kernel_times_ps)))
                for op in operators
            ]
            resolution = time_step_ps(operators)
            if calibration is not None:
                samples += calibration.samples()
                resolution = max(resolution, calibration.resolution_ps)
            self._laws = fit_laws(samples, resolution)
        return self._laws

    def fit_report(self) -> FitReport:
        """Return the fit quality of the laws."""
        return report(self.laws)

    def fixed_ps(self, operator: Operator) -> float:
        """Return the part of an operator's time that its law does not attribute to work."""
        return self.laws.law(kind_of(operator)).fixed_ps

    def time(self, operator: Operator, split: Split) -> tuple[int, str]:
        """Return picoseconds and evidence at sizes other than the trace's."""
        if operator.gpu_time_ps == 0:
            return 0, "modelled"
        if copies_unknown_activations(operator):
            fixed_ps = min(float(operator.gpu_time_ps), self.laws.memory.fixed_ps)
            growth = split.batch / self._workload.batch
            return math.ceil(fixed_ps + (operator.gpu_time_ps - fixed_ps) * growth), ASSUMED
        anchor_work, anchor_ps = self._sizing.recorded(operator), operator.gpu_time_ps
        after = self._sizing.work(operator, split)
        if operator.phase != OPTIMIZER and split.is_whole:
            points = self._points(operator)
            duration = _interpolate(points, split.batch)
            if duration is not None:
                return duration
            # Outside the measured range the nearest measurement is the anchor.
            anchor_batch, anchor_ps, anchor_work = points[0] if split.batch < points[0][0] else points[-1]
            ratio = self._table_ratio(operator, Split(anchor_batch), split)
            if ratio is not None:
                return math.ceil(anchor_ps * ratio), "modelled"
            anchor_work = self._traffic.work(operator, anchor_batch, anchor_work)
            after = self._traffic.work(operator, split.batch, after)
        kind = kind_of(operator)
        ps = anchored(
            self.laws.law(kind), anchor_work, anchor_ps, after,
            kernels=len(operator.kernel_times_ps), has_algorithms=is_compute_bound(kind),
        )  # fmt: skip
        return ps, "modelled"

    def _table_ratio(self, operator: Operator, before: Split, after: Split) -> float | None:
        """Return the ratio of the tables' times of a 16-bit product or attention; None without a table."""
        is_covered = self._gpu is not None and family_of(kind_of(operator)) in _IN_HALF
        if not is_covered or dtype_of(operator, self._workload.tensors) not in HALVES:
            return None
        if self._tables is None:
            self._tables = SizedTimes(cast("GpuSpec", self._gpu))
        times = [self._tables.time(self._sizing.sizes(operator, split)) for split in (before, after)]
        if times[0] is None or times[1] is None or times[0].us <= 0.0:
            return None
        return times[1].us / times[0].us

    def _points(self, operator: Operator) -> list[tuple[int, int, Work]]:
        """Return batch, time and work of the operator's measurements, its recorded one included, in order of batch."""
        known = self._measured.get(self._signatures.get(operator.id, ""), {})
        points = {batch: (batch, p.time_ps, Work(p.flops, p.bytes)) for batch, p in known.items()}
        trace_batch = self._workload.batch
        points[trace_batch] = trace_batch, operator.gpu_time_ps, self._sizing.recorded(operator)
        return [points[batch] for batch in sorted(points)]


def _check_gpu(calibrated: str | None, traced: str | None) -> None:
    """Raise InputError if the laws' GPU differs from the trace's, or if only one of the two is known."""
    own_gpu = None if calibrated is None else short_name(calibrated)
    traced_gpu = None if traced is None else short_name(traced)
    if own_gpu == traced_gpu:
        return
    unknown = "a GPU that is not named"
    if calibrated and traced:
        hint = ""
    else:
        hint = f": {'' if calibrated else 'trine calibrate '}add --trace-gpu NAME"
    raise InputError(f"is of {calibrated or unknown}, the trace of {traced or unknown}{hint}", field="calibration")


def _interpolate(points: Sequence[tuple[int, int, Work]], batch: int) -> tuple[int, str] | None:
    """Return the time measured at ``batch`` or interpolated linearly, rounded up; None outside the measured range."""
    for (low, low_ps, _), (high, high_ps, _) in pairwise(points):
        if low < batch < high:
            return low_ps - (low_ps - high_ps) * (batch - low) // (high - low), "interpolated"
    return next(((ps, "measured") for point_batch, ps, _ in points if point_batch == batch), None)
