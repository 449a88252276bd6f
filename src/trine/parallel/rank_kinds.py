"""Ranks of one stage that differ: in the GPU model they run on, or in the batch of their data-parallel replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np

from trine.arrays import Int64
from trine.errors import PlanError
from trine.graph.grid import RankGrid
from trine.parallel.plan import PARAMETERS_SHARDED, Plan, micro_batches

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
    """int64[ranks]: the data-parallel replica of each rank."""
    grid = RankGrid(plan.axes)
    ranks = np.arange(grid.num_ranks, dtype=np.int64)
    return grid.coordinates(ranks, plan.groups.replicas) if plan.groups.replicas else np.zeros_like(ranks)


def gpus_of_stages(plan: Plan, mixed: MixedGpus | None) -> list[list[int]]:
    """Indices of the GPU models that run each pipeline stage, sorted."""
    if mixed is None:
        return [[0]] * plan.pp
    grid = RankGrid(plan.axes)
    stage = grid.coordinates(np.arange(grid.num_ranks, dtype=np.int64), "pp")
    return [np.unique(mixed.of_rank[stage == number]).tolist() for number in range(plan.pp)]


def balanced_batches(samples: int, unit: int, sample_ps: Sequence[float]) -> tuple[int, ...]:
    """Divide ``samples`` into one batch per replica, multiples of ``unit``, so that the slowest replica ends early.

    sample_ps: time of one sample on each replica. Each unit goes to the replica that ends first with it, which
    minimises the longest time. Raises PlanError if there are fewer units than replicas, or samples are left over.
    """
    units, rest = divmod(samples, unit)
    if rest:
        raise PlanError(f"replica_batches 'time' deals whole micro-batches of {unit}: {samples} samples leave {rest}")
    if units < len(sample_ps):
        raise PlanError(
            f"replica_batches 'time' gives each of {len(sample_ps)} replicas at least {unit} samples: {samples} in all "
            "are too few"
        )
    counts = [1] * len(sample_ps)
    queue = [(2 * each, number) for number, each in enumerate(sample_ps)]
    heapify(queue)
    for _ in range(units - len(counts)):
        number = queue[0][1]
        counts[number] += 1
        heapreplace(queue, ((counts[number] + 1) * sample_ps[number], number))
    return tuple(count * unit for count in counts)


def check_counts(plan: Plan, batches: Sequence[int]) -> None:
    """Raise PlanError if replicas exchange after each micro-batch, and have different numbers of them."""
    counts = {batch: len(micro_batches(batch, plan.micro_batch)) for batch in dict.fromkeys(batches)}
    exchanges = plan.reduces_each or plan.sharding in PARAMETERS_SHARDED
    if exchanges and len(set(counts.values())) > 1:
        few, many = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        why = f"sharding {plan.sharding!r}" if plan.sync != "each" else "sync 'each'"
        raise PlanError(
            f"with {why} replicas communicate in each micro-batch, so all need equally many: a batch of {few} has "
            f"{counts[few]}, one of {many} has {counts[many]}; leave micro_batch out to run each batch whole"
        )
