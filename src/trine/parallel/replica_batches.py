"""Batches of data-parallel replicas on different GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from trine.errors import PlanError
from trine.parallel.plan import PARAMETERS_SHARDED, Plan, micro_batches

if TYPE_CHECKING:
    pass


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
