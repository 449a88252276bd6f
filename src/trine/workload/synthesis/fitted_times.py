"""Times of the operators of a synthesised workload from recorded traces: of the same shapes, or by fitted laws."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from trine.cluster.presets import GpuSpec, load_gpu
from trine.compute.calibration import Calibration, Point, calibrate, signatures
from trine.compute.cost import Sizing, Work
from trine.compute.kinds import kind_of
from trine.compute.law import fit_laws
from trine.compute.linear import anchored
from trine.compute.resize import Split
from trine.compute.transfer import Transfer
from trine.errors import InputError
from trine.graph.workload import Operator, Workload
from trine.workload.readers import load_bundled
from trine.workload.synthesis.times import FITTED, with_times

#: Bundled traces that times are fitted on; both were recorded on one GPU at batch 128 in float32.
FITTED_ON = ("vgg13-h100-b128", "resnet50-h100-b128")
_SHEETS = "the data sheets'"


def with_fitted_times(workload: Workload, gpu: GpuSpec, calibration: Calibration | None) -> Workload:
    """Return ``workload`` with the times of ``calibration``, by default of the bundled traces.

    An operator that was recorded at the same shapes, or at another batch, starts from that time, as a trace's own
    would; all others have the law of their kind. On another GPU than the traces', times are scaled by the data sheets.
    """
    traced = _bundled() if calibration is None else _Traced(calibration)
    if traced.gpu is None:
        raise InputError("names no GPU: add --trace-gpu NAME to trine calibrate", field="calibration")
    source = load_gpu(traced.gpu)
    transfer = Transfer(source, gpu, workload) if source.name != gpu.name else None
    sizing, split, names = Sizing(workload), Split(workload.batch), signatures(workload)
    timed, measured_ps, total_ps = [], 0, 0
    for op in workload.operators:
        amount = sizing.work(op, split)
        ps, is_measured = traced.time_ps(op, names[op.id], workload.batch, amount)
        total_ps, measured_ps = total_ps + ps, measured_ps + (ps if is_measured else 0)
        if transfer is not None:
            ps, _ = transfer.time(sizing.sizes(op, split), amount, ps, traced.laws.law(kind_of(op)).fixed_ps)
        timed.append(replace(op, gpu_time_ps=ps))
    text = (
        f"operator times come from operators of {', '.join(traced.sources)} ({source.name}): same shapes for "
        f"{measured_ps / max(total_ps, 1):.0%} of the time, otherwise a fit over their FLOPs and bytes"
    )
    if transfer is not None:
        text += f"; scaled to the {gpu.name} by the ratio of {transfer.basis.replace('their', _SHEETS)}"
    return with_times(workload, tuple(timed), FITTED, text, {}, gpu)


class _Traced:
    """Measured times by shape, and the laws fitted on all of them."""

    def __init__(self, calibration: Calibration) -> None:
        self.gpu, self.sources = calibration.gpu, calibration.sources
        self.laws = fit_laws(calibration.samples(), calibration.resolution_ps)
        self._points: dict[str, list[Point]] = {}
        for point in calibration.points:
            self._points.setdefault(_shapes(point.operator), []).append(point)

    def time_ps(self, operator: Operator, signature: str, batch: int, amount: Work) -> tuple[int, bool]:
        """Return the time of ``operator`` in ps, and whether one of its shapes was measured."""
        law = self.laws.law(kind_of(operator))
        points = self._points.get(_shapes(signature))
        if not points:
            return (math.ceil(law.time_ps(amount)) if amount.flops or amount.bytes else 0), False
        batches = [p.batch for p in points]
        nearest_batch = min(batches, key=lambda b: (abs(math.log(b / batch)), b))
        points_of_batch = [p for p in points if p.batch == nearest_batch]
        nearest_points = sorted(points_of_batch, key=lambda p: p.time_ps)
        anchor = nearest_points[(len(nearest_points) - 1) // 2]
        return anchored(law, Work(anchor.flops, anchor.bytes), anchor.time_ps, amount), True


def _shapes(signature: str) -> str:
    """Return a signature without the number that distinguishes operators of equal shapes."""
    return signature.rpartition(" #")[0]


@cache
def _bundled() -> _Traced:
    return _Traced(calibrate([load_bundled(name, None) for name in FITTED_ON]))
