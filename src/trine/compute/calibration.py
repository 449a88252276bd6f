"""Measured times of operators from several traces of one GPU, kept in a file.

A calibration widens what the laws are fitted on, and where the same operator was measured at two batch sizes, times
between them are interpolated. It holds the measurements, not the laws: laws fitted again are the same bits.

File: JSON ``{"format": "trine-calibration", "version": 1, "gpu": str or null, "resolution_ps": int, "sources": [str],
"points": [{"operator": str, "kind": str, "batch": int, "flops": int, "bytes": int, "time_ps": int}]}``. Unknown,
missing or ill-typed entries are errors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from trine.compute.cost import Work, work_of
from trine.compute.fit import fit_laws
from trine.compute.kinds import kind_of
from trine.compute.law import Sample
from trine.compute.origin import one_gpu, recorded_on
from trine.compute.report import FitReport, report
from trine.compute.resize import Split, resized
from trine.errors import InputError
from trine.graph.workload import SYNTHESISED, Operator, Tensor, Workload


@dataclass(frozen=True, slots=True)
class Point:
    """One operator of one trace. ``operator``: what it is, apart from the batch (see :func:`signatures`)."""

    operator: str
    kind: str
    batch: int
    flops: int
    bytes: int
    time_ps: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Operators of several traces of one GPU, in the order of the traces.

    ``gpu``: their GPU, None where no trace names one. ``resolution_ps``: the coarsest time step among them.
    ``sources``: where they were read from.
    """

    gpu: str | None
    resolution_ps: int
    sources: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def report(self) -> FitReport:
        """How well laws fitted on these points describe them."""
        return report(fit_laws(self.samples(), self.resolution_ps))

    def samples(self) -> list[tuple[str, Sample]]:
        """The points as a fit takes them: kind and sample."""
        return [(p.kind, Sample(Work(p.flops, p.bytes), p.time_ps)) for p in self.points]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to ``path``, as JSON: the same calibration gives the same bytes."""
        from trine.compute.calibration_file import write

        write(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Calibration:
        """Read a file that ``save`` wrote. Raises SpecError, naming file and field, for anything else."""
        from trine.compute.calibration_file import read

        return read(path)


def calibrate(workloads: Sequence[Workload], trace_gpu: str | None = None) -> Calibration:
    """Collect the operators of ``workloads``. ``trace_gpu``: the GPU of those that do not name theirs.

    Raises InputError if there are none, if they ran on different GPUs or some do not say on which, and for times that
    are predicted or a CPU's.
    """
    if not workloads:
        raise InputError("a calibration needs at least one trace")
    for workload in workloads:
        if workload.format == SYNTHESISED:
            raise InputError(f"{workload.source} holds predicted times; a calibration needs recorded ones")
        if not workload.has_gpu_times:
            raise InputError("holds times of a CPU; a calibration needs those of a GPU", file=workload.source)
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
    """The largest step of which all recorded times are multiples: how coarsely the trace tells time."""
    return math.gcd(*(op.gpu_time_ps for op in operators)) or 1


def signatures(workload: Workload) -> dict[int, str]:
    """For each operator id: name, phase, shapes with the batch as B, and which of those that look alike it is.

    For example ``aten::conv2d forward (B,3,224,224) (64,3,3,3) -> (B,64,224,224) #1``. Two traces of one model at
    different batch sizes give the same signatures. A gradient has the shapes of the operator that it belongs to,
    because formats differ in which of its own they list.
    """
    by_id = {op.id: op for op in workload.operators}
    seen: dict[str, int] = {}
    names = {}
    for op in workload.operators:
        source = op if op.forward_id is None else by_id.get(op.forward_id, op)
        inputs, outputs = (
            " ".join(_shape(workload.tensors[i], workload.batch) for i in ids if i in workload.tensors)
            for ids in (source.inputs, source.outputs)
        )
        base = f"{op.name} {op.phase} {inputs} -> {outputs}"
        seen[base] = seen.get(base, 0) + 1
        names[op.id] = f"{base} #{seen[base]}"
    return names


def _shape(tensor: Tensor, batch: int) -> str:
    dims = [_in_batches(size, batch) if i in tensor.batch_dims else str(size) for i, size in enumerate(tensor.shape)]
    return f"({','.join(dims)})"


def _in_batches(size: int, batch: int) -> str:
    ratio = Fraction(size, batch)
    return "B" if ratio == 1 else f"{ratio}B"


def measured_times(calibration: Calibration) -> dict[str, dict[int, Point]]:
    """Per signature and batch the measured point; of several the one with the median time, the lower of two."""
    found: dict[str, dict[int, list[Point]]] = {}
    for point in calibration.points:
        found.setdefault(point.operator, {}).setdefault(point.batch, []).append(point)
    return {
        name: {
            batch: sorted(points, key=lambda p: p.time_ps)[(len(points) - 1) // 2] for batch, points in by_batch.items()
        }
        for name, by_batch in found.items()
    }
