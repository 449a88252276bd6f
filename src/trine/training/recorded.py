"""Choice between a trace's recorded operator times and predicted ones, for the GPUs of a cluster.

Recorded times hold for the GPU that they were recorded on. If the cluster names its GPUs, trine uses the recorded times
on the GPU that the trace names. For a different GPU the user must choose between a prediction and the recorded times.
If the cluster mixes GPU models and the trace was recorded on one of them, trine predicts the times of the others. A
trace without a GPU name is usable only on a cluster without GPU names. From a CPU trace trine uses only the shapes.

The module also lists the GPU models under the ranks of a job, and the operator times on each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster import load_gpu
from trine.common.arrays import Int64
from trine.compute import uses_recorded_times
from trine.compute.origin import known_gpu, model_name, no_gpu_times, short_name
from trine.compute.spread import WrappedModel
from trine.errors import InputError
from trine.graph.workload import SYNTHESISED, Workload
from trine.parallel.rank_kinds import MixedGpus

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.compute import ComputeModel, Duration, Split
    from trine.graph.workload import Operator


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """GPU that the operator times of a run belong to.

    gpu: trine's name of the GPU, None if unknown. predicted_for: the GPU that the times are predicted for, None if the
    workload's times are used. is_recorded: whether the times were recorded on the trace's GPU, at any sizes. gpu_names:
    GPU models under the ranks, see :func:`gpus_under`. is_each: whether every rank uses times of the GPU model it runs
    on; then ``gpu`` and ``predicted_for`` describe the workload. moved_to: GPU models that recorded times are converted
    to, if ranks run on several models.
    """

    gpu: str | None
    predicted_for: str | None
    is_recorded: bool
    gpu_names: tuple[str | None, ...]
    is_each: bool = False
    moved_to: tuple[str, ...] = ()

    @property
    def named_gpus(self) -> tuple[str, ...]:
        """Names of the GPUs under the ranks, without unnamed GPUs."""
        return tuple(name for name in self.gpu_names if name is not None)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the times belong to a GPU that differs from all named GPUs of the cluster."""
        if self.gpu is None or not self.named_gpus:
            return False
        return self.gpu not in self.named_gpus and model_name(self.gpu) not in self.named_gpus

    def of_one_gpu(self) -> Timing:
        """Return a copy in which all ranks use the times of one GPU, even if the cluster mixes models."""
        return replace(self, is_each=False, moved_to=(), is_recorded=self.is_recorded or bool(self.moved_to))

    def warnings(self, origin: str) -> list[str]:
        """Return warnings about ranks on GPUs without times. ``origin``: a word for who chose the GPU."""
        notes = []
        if self.moved_to:
            notes.append(
                f"the trace has times of the {self.gpu} alone: times of the {_joined(self.moved_to)} are predicted"
            )
        if len(self.named_gpus) > 1 and not self.is_each:
            notes.append(
                f"the cluster mixes {', '.join(self.named_gpus)}: every rank uses the operator times of one GPU"
            )
        if self.is_elsewhere:
            target = first_known(self.gpu_names)
            notes.append(
                f"operator times are from the {self.gpu} {origin}, but the cluster's GPUs are {self.named_gpus[0]}"
                + ("" if target is None else f": --gpu {target} predicts for them")
            )
        return notes


def gpus_under(machine: Cluster | None, places: Int64) -> tuple[str | None, ...]:
    """Return the distinct GPU models at these places of the cluster, with None for GPUs without a name."""
    if machine is None:
        return ()
    table = machine.device_table
    kinds, first = np.unique(table.kind[np.asarray(machine.gpus, np.int64)[places]], return_index=True)
    names = (table.kinds[kind].gpu for kind in kinds[np.argsort(first)])
    short_names = dict.fromkeys(None if name is None else short_name(name) for name in names)
    return tuple(short_names)


def first_known(names: Sequence[str | None]) -> str | None:
    """Return the first of these GPUs with a data sheet in trine."""
    return next((name for name in names if known_gpu(name) is not None), None)


def timing(workload: Workload, compute: str, gpu: str | None, gpus: tuple[str | None, ...]) -> Timing:
    """Decide which GPU the operator times belong to, and whether they are recorded or predicted.

    compute: name of the compute model. gpu: the GPU that the user chose. gpus: the cluster's GPUs, see
    :func:`gpus_under`. Raises InputError for an unknown GPU, and if the trace's GPU is not in the cluster and the user
    did not choose one. Compute models reject options they do not support themselves.
    """
    gpu = None if gpu is None else load_gpu(gpu).name
    is_recorded = uses_recorded_times(compute) and workload.format != SYNTHESISED
    if is_recorded and not workload.has_gpu_times:
        raise InputError(no_gpu_times(workload, gpu if gpu is not None else first_known(gpus)))
    if not workload.has_gpu_times and not any(op.inputs or op.outputs for op in workload.operators):
        raise InputError(
            f"the trace {workload.name[:60]!r} was recorded on {workload.recorded_on} without tensor shapes, so "
            "its operators have no time on a GPU: record it with record_shapes=True"
        )
    trace_gpu = None if workload.gpu is None else short_name(workload.gpu)
    if gpu is None and is_recorded:
        _check_same(workload, trace_gpu, gpus)
    target = gpu
    if gpu is None and not uses_recorded_times(compute) and workload.format != SYNTHESISED:
        target = _gpu_of_shapes(gpus)
    owner = trace_gpu if target is None else target
    names = [name for name in gpus if name is not None]
    is_each = gpu is None and len(names) > 1 and owner in names
    if is_each and is_recorded:
        moved = tuple(name for name in names if name != trace_gpu)
    else:
        moved = ()
    if moved:
        _check_moved(workload, moved)
    is_recorded = is_recorded and owner == trace_gpu and not moved
    return Timing(
        gpu=owner, predicted_for=target, is_recorded=is_recorded, gpu_names=gpus, is_each=is_each, moved_to=moved
    )


def _check_moved(workload: Workload, targets: Sequence[str]) -> None:
    """Raise InputError if the trace's GPU, or a GPU to convert its times to, has no data sheet."""
    for name in (str(workload.gpu), *targets):
        if known_gpu(name) is None:
            raise InputError(
                f"the trace {workload.name[:60]!r} has times of the {str(workload.gpu)[:60]} alone, and ranks run on "
                f"the {_joined(targets)[:120]} too: they cannot be predicted, as trine has no data sheet of the "
                f"{name[:60]}; --placement FILE puts all ranks on one GPU model"
            )


def _joined(names: Sequence[str]) -> str:
    return " and ".join(names)


def _check_same(workload: Workload, trace_gpu: str | None, gpu_models: tuple[str | None, ...]) -> None:
    """Raise InputError if the cluster names its GPUs and the trace was recorded on a different one."""
    names = [name for name in gpu_models if name is not None]
    if not names or trace_gpu in names:
        return
    gpus = _joined(names)[:120]
    if trace_gpu is None:
        raise InputError(
            f"the trace {workload.name[:60]!r} names no GPU, and the cluster's GPUs are "
            f"{gpus}: add --trace-gpu NAME, or --compute roofline predicts from the shapes alone"
        )
    target, is_known = first_known(names), known_gpu(trace_gpu) is not None
    ways = [f"--gpu {target} predicts for them"] if target is not None and is_known else []
    ways.append(
        f"--gpu {trace_gpu} keeps the recorded times"
        if is_known
        else "trine has no data sheet of the trace's GPU, and --trace-gpu NAME takes a known one in its place"
    )
    raise InputError(
        f"the trace {workload.name[:60]!r} was recorded on {_shown(workload.gpu)}, and the cluster's GPUs are "
        f"{gpus}: {', '.join(ways)}"
    )


def _shown(gpu: object) -> str:
    """Return a trace's GPU for a message; some profilers leave the name of the device empty."""
    return str(gpu).strip()[:60] or "a GPU whose name is empty"


def _gpu_of_shapes(gpu_models: tuple[str | None, ...]) -> str | None:
    """Return the cluster's GPU to use for the roofline; None if the cluster names no GPU."""
    target = first_known(gpu_models)
    first_named = next((name for name in gpu_models if name is not None), None)
    if target is None and first_named is not None:
        raise InputError(
            f"trine has no data sheet of the cluster's {first_named}, and so no roofline: --gpu NAME takes another"
        )
    return target


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankGpus:
    """Distinct GPU models under the ranks, in the order of the ranks.

    names: trine's names, None for a GPU without a name. of_rank: int64[ranks], the index of each rank's model.
    workloads, models: for each GPU model, the workload with its times there and its compute model.
    """

    names: tuple[str | None, ...]
    of_rank: Int64
    workloads: tuple[Workload, ...]
    models: tuple[ComputeModel, ...]

    @property
    def mixed(self) -> MixedGpus | None:
        """GPU models in the form that rank programs need; None if all ranks run on one GPU model."""
        if len(self.names) == 1:
            return None
        names = tuple(name or "unnamed GPU" for name in self.names)
        return MixedGpus(names=names, models=self.models, of_rank=self.of_rank)

    def counted(self) -> list[tuple[str | None, int]]:
        """Return each GPU model with the number of ranks on it."""
        return list(zip(self.names, np.bincount(self.of_rank, minlength=len(self.names)).tolist(), strict=True))


def models_under(machine: Cluster, places: Int64, default: str | None) -> tuple[tuple[str | None, ...], Int64]:
    """Return the distinct GPU models at these places of the cluster, in order, and the model index of each place.

    default: the model assumed for GPUs without a name.
    """
    table = machine.device_table
    specs = [known_gpu(kind.gpu or default) for kind in table.kinds]
    models = []
    for row, spec in zip(table.kinds, specs, strict=True):
        models.append(spec.name if spec is not None else row.gpu or default)
    kind = table.kind[np.asarray(machine.gpus, np.int64)[places]]
    present, first = np.unique(kind, return_index=True)
    names = tuple(dict.fromkeys(models[number] for number in present[np.argsort(first)]))
    name_index = []
    for name in models:
        name_index.append(names.index(name) if name in names else -1)
    index = np.array(name_index, np.int64)
    return names, index[kind]


def times_on(
    workload: Workload, gpu: str | None, make: Callable[[Workload, str | None], ComputeModel]
) -> tuple[Workload, ComputeModel]:
    """Return the workload with its times on ``gpu``, and its compute model there.

    A synthesised workload is written again for each GPU; recorded times are converted. make: returns the compute model
    for a workload and the GPU to convert its times to, or None to keep them.
    """
    if gpu is None or short_name(gpu) == short_name(workload.gpu or ""):
        return workload, make(workload, None)
    rewritten = None if workload.recipe is None else workload.recipe.on(workload, gpu)
    if rewritten is None:
        return workload, make(workload, gpu)
    return rewritten, _OfWorkload(make(rewritten, None), rewritten)


class _OfWorkload(WrappedModel):
    """Compute model that looks operators up by id in another workload, which differs only in operator times."""

    def __init__(self, model: ComputeModel, workload: Workload) -> None:
        super().__init__(model)
        self._operators = {op.id: op for op in workload.operators}

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the time of the operator with the same id in the other workload."""
        return self._model.duration(self._operators[operator.id], split)
