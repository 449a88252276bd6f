"""Ranks of one stage that differ: in the GPU model they run on, or in the batch of their data-parallel replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trine.common.arrays import Int64
from trine.graph.grid import RankGrid
from trine.parallel.plan import Plan

if TYPE_CHECKING:
    from trine.compute import ComputeModel


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MixedGpus:
    """The GPU models under the ranks of a job, each once.

    names: of the models. models: operator times on each. of_rank: int64[ranks], the index of each rank's GPU model.
    """

    names: tuple[str, ...]
    models: tuple[ComputeModel, ...]
    of_rank: Int64


def replica_of(plan: Plan) -> Int64:
    """Return the data-parallel replica of each rank: int64[ranks]."""
    grid = RankGrid(plan.axes)
    ranks = np.arange(grid.num_ranks, dtype=np.int64)
    return grid.coordinates(ranks, plan.groups.replicas) if plan.groups.replicas else np.zeros_like(ranks)


def gpus_of_stages(plan: Plan, mixed: MixedGpus | None) -> list[list[int]]:
    """Return the sorted indices of the GPU models that run each pipeline stage."""
    if mixed is None:
        return [[0]] * plan.pp
    grid = RankGrid(plan.axes)
    stage = grid.coordinates(np.arange(grid.num_ranks, dtype=np.int64), "pp")
    return [np.unique(mixed.of_rank[stage == number]).tolist() for number in range(plan.pp)]
