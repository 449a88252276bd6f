"""``trine.size_serving``: the fewest GPUs that answer a rate of requests within latency limits."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trine.cluster import Cluster, load_cluster
from trine.common.arguments import check_whole, takes
from trine.common.units import MAX_GPUS
from trine.errors import InputError, PlanError, SpecError, nearest
from trine.inference.communication import gpu_of
from trine.inference.layouts import MAX_COPY_GPUS, node_sizes
from trine.inference.plan_serving import raise_unmet, serving_space
from trine.inference.point_search import PointSearch
from trine.inference.served_machine import ServedMachine
from trine.inference.serving_goal import ServingGoal
from trine.inference.serving_points import ServedCopy, ServingPoint
from trine.inference.size_answer import ServingSize
from trine.workload.architecture.model import Architecture

#: Share of the closed-loop throughput that arrivals may use.
UTILISATION = 0.8
DEFAULT_MAX_GPUS = 16_384
_MAX_RATE = 1e9
_MAX_PRICE = 10_000.0


@takes(ServingGoal)
def size_serving(
    model: Architecture | str,
    clusters: str | os.PathLike[str] | Sequence[str],
    requests_per_second: float,
    utilisation: float = UTILISATION,
    max_gpus: int = DEFAULT_MAX_GPUS,
    dollars_per_gpu_hour: float | Mapping[str, float] | None = None,
    *,
    options: ServingGoal,
) -> ServingSize:
    """Return the fewest GPUs of each machine type that answer ``requests_per_second`` within limits of TTFT and TPOT.

    Copies of the model in one layout share the requests. Their throughput in a closed loop, at a number of requests in
    flight that meets the limits, is at least the rate divided by ``utilisation``. Waiting of arrivals is not modelled.

    Parameters
    ----------
    model: name of a bundled model, path of a config.json, or an architecture.
    clusters: presets or files of machine types.
    utilisation: share of the throughput that arrivals may use, above 0 and at most 1.
    max_gpus: most GPUs to try.
    dollars_per_gpu_hour: a price, or prices by trine's name of the GPU; the cheapest machine type then comes first.
    options: fields of :class:`ServingGoal` as keywords, or one instance of it.

    Raises
    ------
    InputError for wrong options; PlanError if no machine has an answer. The result names the reason of machines without
    an answer.
    """
    _check_number(requests_per_second, "requests_per_second", _MAX_RATE)
    _check_number(utilisation, "utilisation", 1.0)
    check_whole("max_gpus", max_gpus, 1, MAX_GPUS)
    names = [clusters] if isinstance(clusters, str | os.PathLike) else list(dict.fromkeys(clusters))
    if not names:
        raise InputError("sizing needs a machine: a preset such as hgx-h200, or a file", field="cluster")
    needed = _Need(requests_per_second / utilisation, options.output_tokens, max_gpus)
    prices = [_price_of(gpu_of(load_cluster(name)).name, dollars_per_gpu_hour) for name in names]
    machines, errors = [], []
    for name, price in zip(names, prices, strict=True):
        try:
            point = _smallest(model, name, options, needed)
            tokens_per_s = requests_per_second * options.output_tokens
            machines.append(ServedMachine(str(name), point, tokens_per_s=tokens_per_s, dollars_per_gpu_hour=price))
        except PlanError as error:
            errors.append(error)
            machines.append(ServedMachine(str(name), None, str(error)))
    if len(errors) == len(names):
        raise errors[0]
    machines.sort(key=lambda each: (each.point is None, each.dollars_per_hour or 0.0, each.num_gpus))
    return ServingSize(goal=options, limits=options.limits(), requests_per_second=float(requests_per_second),
                       utilisation=float(utilisation), machines=tuple(machines))  # fmt: skip


def _price_of(gpu: str, prices: float | Mapping[str, float] | None) -> float | None:
    """Return the dollars of an hour of a GPU, None without prices. Raises InputError for a GPU without a price."""
    if prices is None:
        return None
    if isinstance(prices, Mapping):
        if gpu not in prices:
            raise InputError(f"no price for {gpu}{nearest(gpu, prices)}", field="price")
        prices = prices[gpu]
    _check_number(prices, "price", _MAX_PRICE)
    return float(prices)


def _check_number(value: object, field: str, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise InputError(f"must be a number above 0 and at most {most:g}, got {value!r:.40}", field=field)


@dataclass(frozen=True, slots=True)
class _Need:
    """Requests per second that copies must reach in a closed loop. output_tokens: of each request."""

    requests_per_s: float
    output_tokens: int
    max_gpus: int

    def copies(self, copy_tokens_per_s: float) -> int:
        """Return how many copies reach the rate."""
        return math.ceil(self.requests_per_s * self.output_tokens / copy_tokens_per_s)

    def cost(self, copy: ServedCopy, per_gpu: float) -> tuple[float, float]:
        """Return the GPUs that a copy's rate needs; among equal numbers, higher rates come first."""
        rate = per_gpu * copy.total_gpus / copy.copies
        return self.copies(rate) * copy.job.layout.gpus, -per_gpu


def _smallest(
    model: Architecture | str, name: str | os.PathLike[str], goal: ServingGoal, needed: _Need
) -> ServingPoint:
    """Return the copies with the fewest GPUs of one machine type. Raises PlanError if none meets the limits."""
    search = _fitting_search(model, name, goal, needed.max_gpus)
    best = search.best(1, needed.cost)
    if not best:
        raise_unmet(search)
    answer = best[0].answer
    copies = needed.copies(answer.output_tokens_per_s.value)
    if copies * answer.gpus > needed.max_gpus:
        raise PlanError(f"{copies * answer.gpus:,} GPUs are needed, more than {needed.max_gpus:,}", field="max_gpus")
    return replace(best[0], copies=copies, total_gpus=copies * answer.gpus)


def _fitting_search(
    model: Architecture | str, name: str | os.PathLike[str], goal: ServingGoal, max_gpus: int
) -> PointSearch:
    """Return the points of copies on up to two nodes, or on more if none fits there. Raises PlanError if none fits."""
    node = max(node_sizes(load_cluster(name)))
    gpus = 2 * node
    while True:
        machine = _machine_of(name, min(gpus, max_gpus), node)
        sizes = [size for size in range(1, len(machine.gpus) + 1) if node % size == 0 or size % node == 0]
        try:
            return PointSearch(serving_space(model, machine, goal, sizes).copies, goal.limits())
        except PlanError:
            if len(machine.gpus) < gpus or gpus >= MAX_COPY_GPUS:
                raise
            gpus *= 2


def _machine_of(name: str | os.PathLike[str], gpus: int, node: int) -> Cluster:
    """Return the machine with ``gpus`` GPUs, or one node of a machine without a fabric."""
    try:
        return load_cluster(name, gpus=gpus)
    except SpecError:
        return load_cluster(name, gpus=min(gpus, node))
