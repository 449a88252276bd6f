"""Measured times of operators from several traces of one GPU, kept in a file.

A calibration adds measurements to the fit of the laws. If an operator was measured at two batch sizes, trine
interpolates between them. The file holds the measurements, not the laws; refitting gives bit-identical laws.

File: JSON ``{"format": "trine-calibration", "version": 1, "gpu": str or null, "resolution_ps": int, "sources": [str],
"points": [{"operator": str, "kind": str, "batch": int, "flops": int, "bytes": int, "time_ps": int}]}``. Unknown,
missing or ill-typed entries are errors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Annotated

from trine.common.arguments import named_arguments
from trine.common.inputs import read_text
from trine.common.outputs import write_text
from trine.common.schema import AfterValidator, Field, show
from trine.common.shown import OneLine
from trine.common.spec import check, parse_json
from trine.compute.cost import Work, work_of
from trine.compute.kinds import BACKWARD_SUFFIX, FAMILIES, family_of, kind_of
from trine.compute.law import FitReport, Sample, fit_laws, report
from trine.compute.origin import one_gpu, recorded_on
from trine.compute.resize import Split, resized
from trine.errors import InputError, SpecError, nearest
from trine.graph.workload import SYNTHESISED, Operator, Tensor, Workload


def _known(kind: str) -> str:
    if family_of(kind) not in FAMILIES:
        known = [*FAMILIES, *(family + BACKWARD_SUFFIX for family in FAMILIES)]
        raise ValueError(f"unknown kind {kind[:80]!r}{nearest(kind[:80], known)}")
    return kind


_Positive = Annotated[int, Field(ge=1)]
_Amount = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Point:
    """One operator of one trace. ``operator``: its signature, independent of the batch (see :func:`signatures`)."""

    operator: str
    kind: Annotated[str, AfterValidator(_known)]
    batch: _Positive
    flops: _Amount
    bytes: _Amount
    time_ps: _Positive


@dataclass(frozen=True, slots=True)
class Calibration(OneLine):
    """Operators of several traces of one GPU, in the order of the traces.

    ``gpu``: their GPU, None if no trace names one. ``resolution_ps``: the coarsest time step among the traces.
    ``sources``: the traces' files.
    """

    gpu: str | None
    resolution_ps: _Positive
    sources: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def report(self) -> FitReport:
        """Quality of the laws fitted on these points."""
        return report(fit_laws(self.samples(), self.resolution_ps))

    def samples(self) -> list[tuple[str, Sample]]:
        """Return the points as input of a fit: kind and sample."""
        return [(p.kind, Sample(Work(p.flops, p.bytes), p.time_ps)) for p in self.points]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to ``path`` as JSON. Equal calibrations give identical bytes."""
        data = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Calibration:
        """Read a file that ``save`` wrote. Raises SpecError with file and field for any other content."""
        return _calibration(parse_json(read_text(path, _MAX_BYTES), os.fspath(path)), path)


@named_arguments
def calibrate(workloads: Sequence[Workload], trace_gpu: str | None = None) -> Calibration:
    """Collect the operators of ``workloads``. ``trace_gpu``: the GPU of workloads that do not name one.

    Raises InputError for an empty list, for different GPUs or GPUs that only some name, and for predicted or CPU
    times.
    """
    if not workloads:
        raise InputError("a calibration needs at least one trace")
    for workload in workloads:
        if workload.format == SYNTHESISED:
            raise InputError(f"{workload.source} holds predicted times; a calibration needs recorded ones")
        if not workload.has_gpu_times:
            raise InputError("holds CPU times; a calibration needs GPU times", file=workload.source)
    if trace_gpu is not None:
        workloads = [recorded_on(workload, trace_gpu) for workload in workloads]
    gpu = one_gpu(workloads)
    points = [point for workload in workloads for point in _points(workload)]
    if not points:
        raise InputError("no operator of these traces took any time")
    resolution = max(time_step_ps(workload.operators) for workload in workloads)
    return Calibration(gpu, resolution, tuple(w.source for w in workloads), tuple(points))


def _points(workload: Workload) -> list[Point]:
    names, by_id = signatures(workload), {op.id: op for op in workload.operators}
    points = []
    for op in workload.operators:
        if op.gpu_time_ps <= 0:
            continue
        forward = None if op.forward_id is None else by_id.get(op.forward_id)
        amount = work_of(resized(op, workload, Split(workload.batch), forward))
        points.append(Point(names[op.id], kind_of(op), workload.batch, amount.flops, amount.bytes, op.gpu_time_ps))
    return points


def time_step_ps(operators: Iterable[Operator]) -> int:
    """Return the trace's time resolution: the greatest common divisor of all recorded times."""
    return math.gcd(*(op.gpu_time_ps for op in operators)) or 1


def signatures(workload: Workload) -> dict[int, str]:
    """Return the signature of each operator id: name, phase, shapes with batch B, and a number among equal ones.

    For example ``aten::conv2d forward (B,3,224,224) (64,3,3,3) -> (B,64,224,224) #1``. Two traces of one model at
    different batch sizes give the same signatures. A gradient has the shapes of its forward operator, because trace
    formats list different shapes for gradients.
    """
    by_id = {op.id: op for op in workload.operators}
    counts: dict[str, int] = {}
    names = {}
    for op in workload.operators:
        source = op if op.forward_id is None else by_id.get(op.forward_id, op)
        inputs, outputs = (
            " ".join(_shape(workload.tensors[i], workload.batch) for i in ids if i in workload.tensors)
            for ids in (source.inputs, source.outputs)
        )
        base = f"{op.name} {op.phase} {inputs} -> {outputs}"
        counts[base] = counts.get(base, 0) + 1
        names[op.id] = f"{base} #{counts[base]}"
    return names


def _shape(tensor: Tensor, batch: int) -> str:
    dims = []
    for i, size in enumerate(tensor.shape):
        dims.append(_in_batches(size, batch) if i in tensor.batch_dims else str(size))
    return f"({','.join(dims)})"


def _in_batches(size: int, batch: int) -> str:
    ratio = Fraction(size, batch)
    return "B" if ratio == 1 else f"{ratio}B"


def measured_times(calibration: Calibration) -> dict[str, dict[int, Point]]:
    """Return the measured point per signature and batch: of several the one with the (lower) median time."""
    by_operator: dict[str, dict[int, list[Point]]] = {}
    for point in calibration.points:
        by_operator.setdefault(point.operator, {}).setdefault(point.batch, []).append(point)
    medians = {}
    for name, by_batch in by_operator.items():
        medians[name] = {
            batch: sorted(points, key=lambda p: p.time_ps)[(len(points) - 1) // 2] for batch, points in by_batch.items()
        }
    return medians


_FORMAT, _VERSION = "trine-calibration", 1
_MAX_BYTES = 256 * 2**20


def _calibration(data: object, path: object) -> Calibration:
    if not isinstance(data, Mapping):
        raise SpecError(f"must be a mapping, got {show(data)}", file=path)
    content = dict(data)
    format, version = content.pop("format", None), content.pop("version", None)
    if format != _FORMAT:
        raise SpecError(f"must be {_FORMAT!r}, got {show(format)}", file=path, field="format")
    if version != _VERSION or isinstance(version, bool):
        text = f"version {show(version)} is not known; this trine reads {_VERSION}"
        raise SpecError(text, file=path, field="version")
    return check(Calibration, content, path)
