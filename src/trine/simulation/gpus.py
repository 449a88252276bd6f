"""The GPU models under the ranks of a job, and the operator times on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trine.arrays import Int64
from trine.compute.origin import known_gpu, short_name
from trine.compute.spread import WrappedModel
from trine.graph.workload import Workload
from trine.parallel.rank_kinds import MixedGpus

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.compute import ComputeModel, Duration, Split
    from trine.graph.workload import Operator


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
