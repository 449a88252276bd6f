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
from trine.compute.origin import known_gpu, no_gpu_times, short_name
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
    workload's times are used. is_recorded: whether the times were recorded on the trace's GPU, at any sizes. here: GPU
    models under the ranks, see :func:`gpus_under`. is_each: whether every rank uses times of the GPU model it runs on;
    then ``gpu`` and ``predicted_for`` describe the workload. moved_to: GPU models that recorded times are converted to,
    if ranks run on several models.
    """

    gpu: str | None
    predicted_for: str | None
    is_recorded: bool
    here: tuple[str | None, ...]
    is_each: bool = False
    moved_to: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """Names of the GPUs under the ranks, without unnamed GPUs."""
        return tuple(name for name in self.here if name is not None)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the times belong to a GPU that differs from all named GPUs of the cluster."""
        return self.gpu is not None and bool(self.named) and self.gpu not in self.named

    def of_one_gpu(self) -> Timing:
        """Return a copy in which all ranks use the times of one GPU, even if the cluster mixes models."""
        return replace(self, is_each=False, moved_to=(), is_recorded=self.is_recorded or bool(self.moved_to))

    def warnings(self, whose: str) -> list[str]:
        """Return warnings about ranks on GPUs without times. ``whose``: a word for who chose the GPU."""
        found = []
        if self.moved_to:
            found.append(
                f"the trace has times of the {self.gpu} alone: times of the {_all_of(self.moved_to)} are predicted"
            )
        if len(self.named) > 1 and not self.is_each:
            found.append(f"the cluster mixes {', '.join(self.named)}: every rank uses the operator times of one GPU")
        if self.is_elsewhere:
            known = first_known(self.here)
            found.append(
                f"operator times are from the {self.gpu} {whose}, but the cluster's GPUs are {self.named[0]}"
                + ("" if known is None else f": --gpu {known} predicts for them")
            )
        return found


def gpus_under(machine: Cluster | None, places: Int64) -> tuple[str | None, ...]:
    """Return the distinct GPU models at these places of the cluster, with None for GPUs without a name."""
    if machine is None:
        return ()
    table = machine.device_table
    kinds, first = np.unique(table.kind[np.asarray(machine.gpus, np.int64)[places]], return_index=True)
    names = (table.kinds[kind].gpu for kind in kinds[np.argsort(first)])
    return tuple(dict.fromkeys(None if name is None else short_name(name) for name in names))


def first_known(here: Sequence[str | None]) -> str | None:
    """Return the first of these GPUs with a data sheet in trine."""
    return next((name for name in here if known_gpu(name) is not None), None)


def timing(workload: Workload, compute: str, gpu: str | None, here: tuple[str | None, ...]) -> Timing:
    """Decide which GPU the operator times belong to, and whether they are recorded or predicted.

    compute: name of the compute model. gpu: the GPU that the user chose. here: the cluster's GPUs, see
    :func:`gpus_under`. Raises InputError for an unknown GPU, and if the trace's GPU is not in the cluster and the user
    did not choose one. Compute models reject options they do not support themselves.
    """
    gpu = None if gpu is None else load_gpu(gpu).name
    is_recorded = uses_recorded_times(compute) and workload.format != SYNTHESISED
    if is_recorded and not workload.has_gpu_times:
        raise InputError(no_gpu_times(workload, gpu if gpu is not None else first_known(here)))
    if not workload.has_gpu_times and not any(op.inputs or op.outputs for op in workload.operators):
        raise InputError(
            f"the trace {workload.name[:60]!r} was recorded on {workload.recorded_on} without tensor shapes, so "
            "its operators have no time on a GPU: record it with record_shapes=True"
        )
    own = None if workload.gpu is None else short_name(workload.gpu)
    if gpu is None and is_recorded:
        _check_same(workload, own, here)
    predicted = gpu
    if gpu is None and not uses_recorded_times(compute) and workload.format != SYNTHESISED:
        predicted = _gpu_of_shapes(here)
    of = own if predicted is None else predicted
    named = [name for name in here if name is not None]
    is_each = gpu is None and len(named) > 1 and of in named
    moved = tuple(name for name in named if name != own) if is_each and is_recorded else ()
    if moved:
        _check_moved(workload, moved)
    is_recorded = is_recorded and of == own and not moved
    return Timing(gpu=of, predicted_for=predicted, is_recorded=is_recorded, here=here, is_each=is_each, moved_to=moved)


def _check_moved(workload: Workload, moved: Sequence[str]) -> None:
    """Raise InputError if the trace's GPU, or a GPU to convert its times to, has no data sheet."""
    for name in (str(workload.gpu), *moved):
        if known_gpu(name) is None:
            raise InputError(
                f"the trace {workload.name[:60]!r} has times of the {str(workload.gpu)[:60]} alone, and ranks run on "
                f"the {_all_of(moved)[:120]} too: they cannot be predicted, as trine has no data sheet of the "
                f"{name[:60]}; "
                "--placement FILE puts all ranks on one GPU model"
            )


def _all_of(names: Sequence[str]) -> str:
    return " and ".join(names)


def _check_same(workload: Workload, own: str | None, here: tuple[str | None, ...]) -> None:
    """Raise InputError if the cluster names its GPUs and the trace was recorded on a different one."""
    named = [name for name in here if name is not None]
    if not named or own in named:
        return
    gpus = _all_of(named)[:120]
    if own is None:
        raise InputError(
            f"the trace {workload.name[:60]!r} names no GPU, and the cluster's GPUs are "
            f"{gpus}: add --trace-gpu NAME, or --compute roofline predicts from the shapes alone"
        )
    there, is_known = first_known(named), known_gpu(own) is not None
    ways = [f"--gpu {there} predicts for them"] if there is not None and is_known else []
    ways.append(
        f"--gpu {own} keeps the recorded times"
        if is_known
        else "trine has no data sheet of the trace's GPU, and --trace-gpu NAME takes a known one in its place"
    )
    raise InputError(
        f"the trace {workload.name[:60]!r} was recorded on {str(workload.gpu)[:60]}, and the cluster's GPUs are "
        f"{gpus}: {', '.join(ways)}"
    )


def _gpu_of_shapes(here: tuple[str | None, ...]) -> str | None:
    """Return the cluster's GPU to use for the roofline; None if the cluster names no GPU."""
    known = first_known(here)
    named = next((name for name in here if name is not None), None)
    if known is None and named is not None:
        raise InputError(
            f"trine has no data sheet of the cluster's {named}, and so no roofline: --gpu NAME takes another"
        )
    return known


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
    known = [known_gpu(kind.gpu or default) for kind in table.kinds]
    each = [
        spec.name if spec is not None else kind.gpu or default for kind, spec in zip(table.kinds, known, strict=True)
    ]
    kind = table.kind[np.asarray(machine.gpus, np.int64)[places]]
    used, first = np.unique(kind, return_index=True)
    names = tuple(dict.fromkeys(each[number] for number in used[np.argsort(first)]))
    index = np.array([names.index(name) if name in names else -1 for name in each], np.int64)
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
    there = None if workload.recipe is None else workload.recipe.on(workload, gpu)
    if there is None:
        return workload, make(workload, gpu)
    return there, _OfWorkload(make(there, None), there)


class _OfWorkload(WrappedModel):
    """Compute model that looks operators up by id in another workload, which differs only in operator times."""

    def __init__(self, model: ComputeModel, workload: Workload) -> None:
        super().__init__(model)
        self._operators = {op.id: op for op in workload.operators}

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the time of the operator with the same id in the other workload."""
        return self._model.duration(self._operators[operator.id], split)
