"""How long the operators of a synthesised workload take: by the data sheet, or by laws fitted on recorded traces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from trine.cluster import load_gpu
from trine.cluster.presets import GpuSpec
from trine.compute import Calibration, Roofline, Shares, Work, calibrate, kind_of
from trine.compute.calibration import Point, signatures
from trine.compute.cost import Sizing
from trine.compute.law import fit_laws
from trine.compute.linear import anchored
from trine.compute.resize import Split
from trine.compute.roofline import ROOFLINE, TABLES
from trine.compute.tables.times import TableTimes
from trine.compute.transfer import Transfer
from trine.errors import InputError
from trine.graph.workload import Operator, Workload
from trine.workload.readers import load_bundled

FITTED = "fitted"
SHEETS = "the data sheets'"
TIMES = (TABLES, ROOFLINE, FITTED)
#: Bundled traces that times are fitted on; both were recorded on one GPU at batch 128 in float32.
FITTED_ON = ("vgg13-h100-b128", "resnet50-h100-b128")


def with_roofline_times(workload: Workload, gpu: GpuSpec, shares: Shares) -> Workload:
    """Return ``workload`` with the times of the roofline of ``gpu``."""
    model, split = Roofline(workload, gpu, shares), Split(workload.batch)
    timed = tuple(replace(op, gpu_time_ps=model.duration(op, split).ps) for op in workload.operators)
    text = f"operator times are a roofline of the {gpu.name}: {shares.text} (trine help roofline has its errors)"
    return _with_times(workload, timed, ROOFLINE, text, shares.to_metadata(), gpu)


def with_table_times(workload: Workload, gpu: GpuSpec) -> Workload:
    """Return ``workload`` with times from measured operators of ``gpu``, or of its nearest sibling."""
    model, split = TableTimes(workload, gpu), Split(workload.batch)
    timed = tuple(replace(op, gpu_time_ps=model.duration(op, split).ps) for op in workload.operators)
    return _with_times(workload, timed, TABLES, f"{model.notes[0]} (trine help operator-time)", {}, gpu)


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
    timed, known_ps, total_ps = [], 0, 0
    for op in workload.operators:
        amount = sizing.work(op, split)
        ps, known = traced.time_ps(op, names[op.id], workload.batch, amount)
        total_ps, known_ps = total_ps + ps, known_ps + (ps if known else 0)
        if transfer is not None:
            ps, _ = transfer.time(sizing.sizes(op, split), amount, ps, traced.laws.law(kind_of(op)).fixed_ps)
        timed.append(replace(op, gpu_time_ps=ps))
    text = (
        f"operator times come from operators of {', '.join(traced.sources)} ({source.name}): same shapes for "
        f"{known_ps / max(total_ps, 1):.0%} of the time, otherwise a fit over their FLOPs and bytes"
    )
    if transfer is not None:
        text += f"; scaled to the {gpu.name} by the ratio of {transfer.by.replace('their', SHEETS)}"
    return _with_times(workload, tuple(timed), FITTED, text, {}, gpu)


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
        nearest_batch = min((p.batch for p in points), key=lambda b: (abs(math.log(b / batch)), b))
        alike = sorted((p for p in points if p.batch == nearest_batch), key=lambda p: p.time_ps)
        anchor = alike[(len(alike) - 1) // 2]
        return anchored(law, Work(anchor.flops, anchor.bytes), anchor.time_ps, amount), True


def _shapes(signature: str) -> str:
    """Return a signature without the number that distinguishes operators of equal shapes."""
    return signature.rpartition(" #")[0]


@cache
def _bundled() -> _Traced:
    return _Traced(calibrate([load_bundled(name, None) for name in FITTED_ON]))


def _with_times(
    workload: Workload,
    operators: tuple[Operator, ...],
    times: str,
    text: str,
    metadata: Mapping[str, str],
    gpu: GpuSpec,
) -> Workload:
    return replace(
        workload,
        gpu=gpu.name,
        operators=operators,
        assumptions=(text, *workload.assumptions),
        metadata={**workload.metadata, "times": times, **metadata},
    )
