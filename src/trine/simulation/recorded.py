"""Whose times a trace's are: on which machine they may stand, and for which GPU others are predicted.

Recorded times hold for the GPU that they were recorded on. On a machine whose GPUs are named they are used where the
trace names the same GPU; for another one the user says what is meant, a prediction or the recorded times. On a machine
of several GPU models, one of which is the trace's, times are predicted for the others. A trace that names no GPU is
believed only where the machine names none either. Times of a CPU are no GPU's: only the shapes count.

Also the GPU models under the ranks of a job, and the operator times on each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trine.arrays import Int64
from trine.cluster import load_gpu
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
    """Of which GPU the operator times of a run are.

    gpu: by trine's name, None where nobody knows. predicted_for: the GPU that they are predicted for, None where the
    workload's own stand. is_recorded: whether they are recorded times, on the GPU of the trace, at whatever sizes.
    here: GPU models under the ranks, see :func:`gpus_under`. is_each: whether each rank has the times of its own GPU
    model; ``gpu`` and ``predicted_for`` are then those of the workload. moved_to: GPU models that recorded times are
    moved to, where ranks sit on several.
    """

    gpu: str | None
    predicted_for: str | None
    is_recorded: bool
    here: tuple[str | None, ...]
    is_each: bool = False
    moved_to: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """The GPUs under the ranks that have a name."""
        return tuple(name for name in self.here if name is not None)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the machine names its GPUs, and the times are of none of them."""
        return self.gpu is not None and bool(self.named) and self.gpu not in self.named

    def of_one_gpu(self) -> Timing:
        """Return the same where all ranks have the times of one GPU, whatever they sit on."""
        return replace(self, is_each=False, moved_to=(), is_recorded=self.is_recorded or bool(self.moved_to))

    def warnings(self, whose: str) -> list[str]:
        """Sentences where ranks sit on GPUs that the times are not of. ``whose``: a word for who chose the GPU."""
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
    """The GPU models that ranks at these places of the cluster run on, each once; None for GPUs without a name."""
    if machine is None:
        return ()
    table = machine.device_table
    kinds, first = np.unique(table.kind[np.asarray(machine.gpus, np.int64)[places]], return_index=True)
    names = (table.kinds[kind].gpu for kind in kinds[np.argsort(first)])
    return tuple(dict.fromkeys(None if name is None else short_name(name) for name in names))


def first_known(here: Sequence[str | None]) -> str | None:
    """The first of these GPUs that trine has a data sheet of."""
    return next((name for name in here if known_gpu(name) is not None), None)


def timing(workload: Workload, compute: str, gpu: str | None, here: tuple[str | None, ...]) -> Timing:
    """Of which GPU operator times are, and whether they are predicted for it.

    compute: name of the compute model. gpu: the GPU that the user asks for. here: those of the machine, see
    :func:`gpus_under`. Raises InputError for an unknown GPU, and where the trace's times are not those of the machine's
    GPUs and nobody said what is meant. What a compute model has no use for, it refuses itself.
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
    """Refuse to move recorded times from or to a GPU without a data sheet."""
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
    """Refuse recorded times on a machine whose GPUs are named, and are not the trace's."""
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
    """The machine's GPU that a roofline is of; None where the machine names none."""
    known = first_known(here)
    named = next((name for name in here if name is not None), None)
    if known is None and named is not None:
        raise InputError(
            f"trine has no data sheet of the cluster's {named}, and so no roofline: --gpu NAME takes another"
        )
    return known


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankGpus:
    """GPU models under the ranks, each once, in the order of the ranks.

    names: by trine's name, None for a GPU without one. of_rank: int64[ranks], the index of each rank's model.
    workloads, models: the workload with its times on each model, and the compute model of it.
    """

    names: tuple[str | None, ...]
    of_rank: Int64
    workloads: tuple[Workload, ...]
    models: tuple[ComputeModel, ...]

    @property
    def mixed(self) -> MixedGpus | None:
        """The same for the programs of the ranks; None if all ranks run on one GPU model."""
        if len(self.names) == 1:
            return None
        names = tuple(name or "unnamed GPU" for name in self.names)
        return MixedGpus(names=names, models=self.models, of_rank=self.of_rank)

    def counted(self) -> list[tuple[str | None, int]]:
        """Each GPU model with the number of ranks on it."""
        return list(zip(self.names, np.bincount(self.of_rank, minlength=len(self.names)).tolist(), strict=True))


def models_under(machine: Cluster, places: Int64, default: str | None) -> tuple[tuple[str | None, ...], Int64]:
    """Return the GPU models at these places of the cluster in order, each once, and the index of each place's.

    default: the model of GPUs without a name.
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

    A synthesised workload is written for each GPU; recorded times are moved to another one. make: the compute model of
    a workload, None or the GPU to move it to.
    """
    if gpu is None or short_name(gpu) == short_name(workload.gpu or ""):
        return workload, make(workload, None)
    there = None if workload.recipe is None else workload.recipe.on(workload, gpu)
    if there is None:
        return workload, make(workload, gpu)
    return there, _OfWorkload(make(there, None), there)


class _OfWorkload(WrappedModel):
    """A compute model that answers for the operators of another workload, which differ in their times alone."""

    def __init__(self, model: ComputeModel, workload: Workload) -> None:
        super().__init__(model)
        self._operators = {op.id: op for op in workload.operators}

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the time of the operator of the same id."""
        return self._model.duration(self._operators[operator.id], split)
