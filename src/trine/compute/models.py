"""Operator times: as recorded, or predicted at other sizes or on another GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from trine.cluster.presets import GpuSpec, load_gpu
from trine.common.evidence import ASSUMED, MEASURED
from trine.common.plugins import Registry
from trine.compute.cost import Sizing
from trine.compute.origin import no_gpu_times
from trine.compute.resize import Split
from trine.compute.roofline import (
    ROOFLINE,
    TABLES,
    Duration,
    Roofline,
)
from trine.errors import InputError, PlanError, nearest
from trine.graph.workload import SYNTHESISED, Operator, Workload

if TYPE_CHECKING:
    from trine.compute.calibration import Calibration
    from trine.compute.law import FitReport
    from trine.compute.linear import LinearTimes
    from trine.compute.transfer import Transfer


class ComputeModel(Protocol):
    """Interface of compute models; :func:`make_compute` makes one for a workload."""

    @property
    def name(self) -> str:
        """Name in :func:`make_compute`."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions made so far, as sentences for the result's warnings."""
        ...

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the time of ``operator``, one of the workload's, under ``split``. Deterministic; raises PlanError."""
        ...

    def fit_report(self) -> FitReport | None:
        """Return the quality of the fitted laws by operator kind, or None for a model without laws."""
        ...


def is_synthesised(workload: Workload) -> bool:
    """Return whether the times of ``workload`` were predicted rather than recorded."""
    return workload.format == SYNTHESISED


class Recorded:
    """Compute model of recorded times only; sizes that differ from the trace's raise PlanError."""

    name = "recorded"

    def __init__(self, workload: Workload, transfer: Transfer | None = None) -> None:
        self._workload = workload
        self._sizing = Sizing(workload)
        self._transfer = transfer

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self._transfer is None else self._transfer.notes

    def fit_report(self) -> FitReport | None:
        return None

    def duration(self, operator: Operator, split: Split) -> Duration:
        if not self._sizing.is_as_recorded(operator, split):
            how = f"at other sizes than recorded (the trace's batch is {self._workload.batch})"
            name = f"operator {operator.id} ({operator.name})"
            raise PlanError(f"{name} would run {how}; use --compute auto or linear", field="compute")
        if self._transfer is None:
            return Duration(operator.gpu_time_ps, ASSUMED if is_synthesised(self._workload) else MEASURED)
        sizes, work = self._sizing.sizes(operator, split), self._sizing.work(operator, split)
        return Duration(*self._transfer.time(sizes, work, operator.gpu_time_ps, 0.0))


class Linear:
    """Compute model of recorded times at the trace's sizes, and of Li's model, anchored at them, at other sizes.

    See :mod:`trine.compute.linear`. Laws are fitted on first use. Times are cached by (operator, split).
    """

    def __init__(
        self, workload: Workload, transfer: Transfer | None = None, calibration: Calibration | None = None, *,
        name: str = "linear",
    ) -> None:  # fmt: skip
        self.name = name
        self._synthesised = is_synthesised(workload)
        self._batch = workload.batch
        self._sizing = Sizing(workload)
        self._transfer = transfer
        self._known: dict[tuple[int, Split], Duration] = {}
        self._workload, self._calibration = workload, calibration
        if calibration is not None:
            _ = self._times  # a calibration of another GPU is refused before the first operator

    @cached_property
    def _times(self) -> LinearTimes:
        """Li's model; most traces run at their own sizes and never fit its laws."""
        from trine.compute.linear import LinearTimes

        return LinearTimes(self._workload, self._sizing, self._calibration)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._sizing.notes + (() if self._transfer is None else self._transfer.notes)

    def fit_report(self) -> FitReport | None:
        return self._times.fit_report()

    def duration(self, operator: Operator, split: Split) -> Duration:
        key = operator.id, split
        duration = self._known.get(key)
        if duration is None:
            duration = self._known[key] = self._duration(operator, split)
        return duration

    def _duration(self, operator: Operator, split: Split) -> Duration:
        as_recorded = self._sizing.is_as_recorded(operator, split)
        if as_recorded and split.batch != self._batch:
            from trine.compute.linear import copies_unknown_activations

            as_recorded = not copies_unknown_activations(operator)
        ps, evidence = (operator.gpu_time_ps, MEASURED) if as_recorded else self._times.time(operator, split)
        if self._transfer is None:
            return Duration(ps, ASSUMED if self._synthesised else evidence)
        sizes, work = self._sizing.sizes(operator, split), self._sizing.work(operator, split)
        return Duration(*self._transfer.time(sizes, work, ps, self._times.fixed_ps(operator)))


#: workload, scaling to another GPU or None, fits on more traces or None -> model. Raises InputError for an argument
#: that the model cannot use.
ComputeMaker: TypeAlias = "Callable[[Workload, Transfer | None, Calibration | None], ComputeModel]"


def make_auto(workload: Workload, transfer: Transfer | None, calibration: Calibration | None) -> ComputeModel:
    """Make the model 'auto': recorded times at the trace's sizes, the linear model at other sizes. Times from a data
    sheet or tables use that model at all sizes.
    """
    times = workload.metadata.get("times", "")
    if is_synthesised(workload) and times in FROM_SHAPES:
        return _of_target(times, workload, transfer, calibration)
    return Linear(workload, transfer, calibration, name="auto")


def make_recorded(workload: Workload, transfer: Transfer | None, calibration: Calibration | None) -> ComputeModel:
    """Make the model of recorded times only; raises InputError for a calibration."""
    if calibration is not None:
        raise InputError("the model 'recorded' uses no calibration; use 'auto' or 'linear'", field="compute")
    return Recorded(workload, transfer)


def _of_target(
    name: str, workload: Workload, transfer: Transfer | None, calibration: Calibration | None
) -> ComputeModel:
    """Make a model of :data:`FROM_SHAPES` for the target GPU; raises as :func:`from_shapes`."""
    return from_shapes(name, workload, None if transfer is None else transfer.target, calibration)


make_roofline, make_tables = partial(_of_target, ROOFLINE), partial(_of_target, TABLES)


#: Models that predict from shapes and a data sheet or tables, without recorded times.
FROM_SHAPES = frozenset({ROOFLINE, TABLES})


def from_shapes(
    name: str, workload: Workload, target: GpuSpec | None, calibration: Calibration | None = None
) -> ComputeModel:
    """Make the model ``name`` of :data:`FROM_SHAPES` for the GPU ``target``, by default the trace's.

    Raises InputError for a calibration, which these models cannot use, and if neither GPU is known.
    """
    if calibration is not None:
        raise InputError(f"the model {name!r} uses no calibration; use 'auto' or 'linear'", field="compute")
    if target is None and workload.gpu is None:
        raise InputError(f"{name} needs a GPU, and the trace names no GPU: add --gpu NAME", field="gpu")
    gpu = target if target is not None else load_gpu(workload.gpu or "")
    if name == ROOFLINE:
        return Roofline(workload, gpu)
    from trine.compute.tables.times import TableTimes

    return TableTimes(workload, gpu)


def uses_recorded_times(name: str) -> bool:
    """Return whether the compute model ``name`` rests on a trace's recorded times."""
    return name not in FROM_SHAPES


def meant(name: str, workload: Workload, gpu: str | None) -> str:
    """Return the name of the compute model for ``workload``: 'auto' becomes 'tables' for a trace without GPU times.

    gpu: the GPU to predict times for. With None, 'auto' stays, which raises InputError for such a trace.
    """
    lacks_times = workload.format != SYNTHESISED and not workload.has_gpu_times
    return TABLES if name == "auto" and lacks_times and gpu is not None else name


COMPUTE_MODELS: Registry[ComputeMaker] = Registry(
    "compute model",
    "trine.compute",
    {
        "auto": "trine.compute.models:make_auto",
        "linear": "trine.compute.models:Linear",
        "recorded": "trine.compute.models:make_recorded",
        "roofline": "trine.compute.models:make_roofline",
        "tables": "trine.compute.models:make_tables",
    },
)


def make_compute(
    name: str, workload: Workload, *, target: GpuSpec | None = None, source: GpuSpec | None = None,
    calibration: Calibration | None = None,
) -> ComputeModel:  # fmt: skip
    """Make the compute model ``name`` for ``workload``.

    ``name``: 'recorded', 'linear', 'roofline', 'tables', 'auto' or a plug-in's.

    ``target``: predict for this GPU instead of the trace's own, ``source``. ``calibration``: more traces to fit on.
    'auto' uses recorded times at the trace's sizes and 'linear' at others; 'roofline' and 'tables' need no source.
    Raises InputError for an unknown name, a target without a source, an unused calibration, and a trace without GPU
    times if the model rests on them.
    """
    if name not in COMPUTE_MODELS:
        raise InputError(f"unknown compute model {name!r}{nearest(name, COMPUTE_MODELS.names())}", field="compute")
    if name in FROM_SHAPES:
        return from_shapes(name, workload, target, calibration)
    if not workload.has_gpu_times:
        raise InputError(no_gpu_times(workload), field="compute")
    transfer = None
    if target is not None:
        if source is None:
            raise InputError("the GPU that the trace was recorded on must be known to predict for another", field="gpu")
        from trine.compute.transfer import Transfer

        transfer = Transfer(source, target, workload) if source.name != target.name else None
    return COMPUTE_MODELS.get(name)(workload, transfer, calibration)
