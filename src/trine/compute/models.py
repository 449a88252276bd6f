"""How long an operator takes: as recorded, or predicted at other sizes, or on another GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from trine.cluster.presets import GpuSpec, load_gpu
from trine.compute.calibration import Calibration
from trine.compute.cost import Sizing
from trine.compute.law import FitReport
from trine.compute.linear import LinearTimes
from trine.compute.origin import no_gpu_times
from trine.compute.resize import Split
from trine.compute.roofline import ROOFLINE, TABLES, Duration, Roofline
from trine.errors import InputError, PlanError, nearest
from trine.evidence import ASSUMED, MEASURED
from trine.graph.workload import SYNTHESISED, Operator, Workload
from trine.plugins import Registry

if TYPE_CHECKING:
    from trine.compute.transfer import Transfer


class ComputeModel(Protocol):
    """What every compute model offers; made for one workload by :func:`make_compute`."""

    @property
    def name(self) -> str:
        """Name under which :func:`make_compute` knows it."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what was assumed so far, for the result's warnings."""
        ...

    def duration(self, operator: Operator, split: Split) -> Duration:
        """How long ``operator``, one of the workload's, takes under ``split``. Deterministic; raises PlanError."""
        ...

    def fit_report(self) -> FitReport | None:
        """How well its laws fit, kind by kind; None if it has none."""
        ...


def is_synthesised(workload: Workload) -> bool:
    """Whether the times of ``workload`` were predicted and not recorded."""
    return workload.format == SYNTHESISED


class Recorded:
    """The recorded time, and nothing else: sizes that are not the trace's are refused."""

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
            raise PlanError(
                f"operator {operator.id} ({operator.name}) would run at other sizes than recorded "
                f"(the trace's batch is {self._workload.batch}); use --compute auto or linear",
                field="compute",
            )
        if self._transfer is None:
            return Duration(operator.gpu_time_ps, ASSUMED if is_synthesised(self._workload) else MEASURED)
        sizes, work = self._sizing.sizes(operator, split), self._sizing.work(operator, split)
        return Duration(*self._transfer.time(sizes, work, operator.gpu_time_ps, 0.0))


class Linear:
    """The recorded time where the sizes are the trace's, else Li's model anchored at the recorded time.

    See :mod:`trine.compute.linear`. Laws are fitted when they are first needed. Times are kept by (operator, split).
    """

    def __init__(
        self,
        workload: Workload,
        transfer: Transfer | None = None,
        calibration: Calibration | None = None,
        *,
        name: str = "linear",
    ) -> None:
        self.name = name
        self._synthesised = is_synthesised(workload)
        self._sizing = Sizing(workload)
        self._times = LinearTimes(workload, self._sizing, calibration)
        self._transfer = transfer
        self._known: dict[tuple[int, Split], Duration] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        return self._sizing.notes + (() if self._transfer is None else self._transfer.notes)

    def fit_report(self) -> FitReport | None:
        return self._times.fit_report()

    def duration(self, operator: Operator, split: Split) -> Duration:
        key = operator.id, split
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._duration(operator, split)
        return found

    def _duration(self, operator: Operator, split: Split) -> Duration:
        as_recorded = self._sizing.is_as_recorded(operator, split)
        ps, evidence = (operator.gpu_time_ps, MEASURED) if as_recorded else self._times.time(operator, split)
        if self._transfer is None:
            return Duration(ps, ASSUMED if self._synthesised else evidence)
        sizes, work = self._sizing.sizes(operator, split), self._sizing.work(operator, split)
        return Duration(*self._transfer.time(sizes, work, ps, self._times.fixed_ps(operator)))


#: workload, scaling to another GPU or None, fits on more traces or None -> model. Raises InputError for what it has no
#: use for.
ComputeMaker: TypeAlias = "Callable[[Workload, Transfer | None, Calibration | None], ComputeModel]"


def make_auto(workload: Workload, transfer: Transfer | None, calibration: Calibration | None) -> ComputeModel:
    """The recorded time where sizes are the trace's, and the linear model elsewhere; of times that came from a data
    sheet or tables, theirs at all sizes.
    """
    times = workload.metadata.get("times", "")
    if is_synthesised(workload) and times in FROM_SHAPES:
        return from_shapes(times, workload, None if transfer is None else transfer.target, calibration)
    return Linear(workload, transfer, calibration, name="auto")


def make_recorded(workload: Workload, transfer: Transfer | None, calibration: Calibration | None) -> ComputeModel:
    """The recorded time only; raises InputError for a calibration."""
    if calibration is not None:
        raise InputError("the model 'recorded' uses no calibration; use 'auto' or 'linear'", field="compute")
    return Recorded(workload, transfer)


def make_roofline(workload: Workload, transfer: Transfer | None, calibration: Calibration | None) -> ComputeModel:
    """The roofline of the GPU that is asked for; raises as :func:`from_shapes`."""
    return from_shapes(ROOFLINE, workload, None if transfer is None else transfer.target, calibration)


def make_tables(workload: Workload, transfer: Transfer | None, calibration: Calibration | None) -> ComputeModel:
    """The tables of the GPU that is asked for; raises as :func:`from_shapes`."""
    return from_shapes(TABLES, workload, None if transfer is None else transfer.target, calibration)


#: Models that predict from shapes and a data sheet or tables, and look at no recorded time.
FROM_SHAPES = frozenset({ROOFLINE, TABLES})


def from_shapes(
    name: str, workload: Workload, target: GpuSpec | None, calibration: Calibration | None = None
) -> ComputeModel:
    """The model ``name`` of :data:`FROM_SHAPES` of the GPU that is asked for, else of the trace's.

    Raises InputError for a calibration, which it has no use for, and where neither GPU is known.
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
    """Whether the compute model of this name rests on a trace's recorded times."""
    return name not in FROM_SHAPES


def meant(name: str, workload: Workload, gpu: str | None) -> str:
    """The compute model that a name means for ``workload``: 'auto' is 'tables' of a trace without a GPU's times.

    gpu: the one that times can be predicted for, None where there is none: then 'auto' refuses such a trace.
    """
    without = workload.format != SYNTHESISED and not workload.has_gpu_times
    return TABLES if name == "auto" and without and gpu is not None else name


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
    name: str,
    workload: Workload,
    *,
    target: GpuSpec | None = None,
    source: GpuSpec | None = None,
    calibration: Calibration | None = None,
) -> ComputeModel:
    """Make the compute model ``name`` for ``workload``.

    ``name``: 'recorded', 'linear', 'roofline', 'tables', 'auto' or a plug-in's.

    ``target``: predict for this GPU instead of the trace's own, ``source``. ``calibration``: more traces to fit on.
    'auto' is the recorded time where sizes are the trace's and 'linear' elsewhere; 'roofline' and 'tables' need no
    source. Raises InputError for an unknown name, for a target without a source, for a calibration that would not be
    used, and for a trace without GPU times where the model rests on them.
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
        transfer = _transfer(workload, source, target) if source.name != target.name else None
    return COMPUTE_MODELS.get(name)(workload, transfer, calibration)


def _transfer(workload: Workload, source: GpuSpec, target: GpuSpec) -> Transfer:
    from trine.compute.transfer import Transfer

    return Transfer(source, target, workload)
