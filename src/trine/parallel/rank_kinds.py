"""Ranks of one stage that differ: in the GPU model they run on, or in the batch of their data-parallel replica.

Also which GPU each rank sits on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64, spans
from trine.common.inputs import exists, read_text
from trine.common.units import whole_number
from trine.errors import InputError, PlanError, nearest
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


def balanced_batches(samples: int, unit: int, sample_ps: Sequence[float]) -> tuple[int, ...]:
    """Divide ``samples`` into one batch per replica, multiples of ``unit``, so that the slowest replica ends early.

    sample_ps: time of one sample on each replica. Each unit goes to the replica that ends first with it, which
    minimises the longest time. Raises PlanError if there are fewer units than replicas, or samples are left over.
    """
    units, extra = divmod(samples, unit)
    if extra:
        raise PlanError(f"replica_batches 'time' deals whole micro-batches of {unit}: {samples} samples leave {extra}")
    if units < len(sample_ps):
        raise PlanError(
            f"replica_batches 'time' gives each of {len(sample_ps)} replicas at least {unit} samples: {samples} in all "
            "are too few"
        )
    counts = [1] * len(sample_ps)
    queue = [(2 * time_ps, number) for number, time_ps in enumerate(sample_ps)]
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
        low, high = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        mode = f"sharding {plan.sharding!r}" if plan.sync != "each" else "sync 'each'"
        raise PlanError(
            f"with {mode} replicas communicate in each micro-batch, so all need equally many: a batch of {low} has "
            f"{counts[low]}, one of {high} has {counts[high]}; leave micro_batch out to run each batch whole"
        )


WORDS = ("packed", "round-robin", "random")
MAX_FILE_BYTES = 16 * 2**20


def places(
    placement: str | os.PathLike[str] | Sequence[int] | None,
    num_ranks: int,
    num_gpus: int,
    nodes: Sequence[int] | npt.NDArray[np.int32],
) -> Int64:
    """Return the position of each rank's GPU among the cluster's GPUs: int64[ranks].

    placement: None or ``packed`` (rank i on GPU i), ``round-robin`` (over the nodes), ``random:SEED``, a list of
    positions, or a file with one position a line. nodes: the node of each GPU (-1: none).

    Raises InputError for another word, or a list that names a GPU twice, none, or one that does not exist.
    """
    if placement is None or placement == "packed":
        return np.arange(num_ranks, dtype=np.int64)
    if placement == "round-robin":
        return _round_robin(nodes)[:num_ranks]
    if isinstance(placement, str) and placement.startswith("random"):
        return np.random.default_rng(_seed(placement)).permutation(num_gpus)[:num_ranks].astype(np.int64)
    if isinstance(placement, str | os.PathLike):
        return _checked(_read_places(os.fspath(placement)), num_ranks, num_gpus, os.fspath(placement))
    return _checked(list(placement), num_ranks, num_gpus)


def _round_robin(nodes: Sequence[int] | npt.NDArray[np.int32]) -> Int64:
    node_of = np.asarray(nodes, np.int64)
    turn = np.zeros(len(node_of), np.int64)  # number of each GPU within its node
    order = np.argsort(node_of, kind="stable")
    counts = np.unique(node_of, return_counts=True)[1]
    turn[order] = spans(0, counts)
    return np.lexsort((np.arange(len(node_of)), turn)).astype(np.int64)


def _seed(word: str) -> int:
    _, _, seed = word.partition(":")
    number = whole_number(seed, most=2**128 - 1)
    if number is None:
        raise InputError(f"a random placement needs a seed, as in random:7; got {word!r}", field="placement")
    return number


def _read_places(path: str) -> list[int]:
    if not exists(path):
        hint = nearest(path, WORDS)
        raise InputError(
            f"is neither packed, round-robin, random:SEED nor a file that exists: {path!r}{hint}", field="placement"
        )
    positions = []
    for number, line in enumerate(read_text(path, MAX_FILE_BYTES, InputError).splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if text:
            place = whole_number(text)
            if place is None:
                raise InputError(f"line {number} is no position of a GPU: {text!r}", file=path, field="placement")
            positions.append(place)
    return positions


def _checked(positions: Sequence[object], num_ranks: int, num_gpus: int, file: str | None = None) -> Int64:
    for position in positions:
        if isinstance(position, bool) or not isinstance(position, int | np.integer) or not 0 <= position < num_gpus:
            raise InputError(
                f"the cluster has GPUs 0 to {num_gpus - 1}, got {position!r}", file=file, field="placement"
            )
    if len(positions) != num_ranks:
        raise InputError(f"needs one GPU a rank, {num_ranks}; got {len(positions)}", file=file, field="placement")
    array = np.array(positions, np.int64)
    if len(np.unique(array)) < len(array):
        twice = next(position for position in array.tolist() if (array == position).sum() > 1)
        raise InputError(f"two ranks are on GPU {twice}", file=file, field="placement")
    return array
