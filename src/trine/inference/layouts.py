"""The layouts of a serving plan: those of one copy that an engine can launch, and the copies on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trine.cluster import Cluster
from trine.inference.job import ServingLayout
from trine.inference.launch_commands import LaunchRules
from trine.inference.precision_choice import has_experts
from trine.workload.architecture.model import Architecture

#: GPUs of the largest copy across nodes.
MAX_COPY_GPUS = 128


def node_sizes(cluster: Cluster) -> list[int]:
    """Return the number of GPUs in each node of a cluster."""
    counts: dict[int, int] = {}
    for node in cluster.node_of[list(cluster.gpus)].tolist():
        counts[node] = counts.get(node, 0) + 1
    return list(counts.values())


def copies_of(nodes: Sequence[int], copy_gpus: int) -> int:
    """Return how many copies of ``copy_gpus`` GPUs fit on nodes with these numbers of GPUs.

    A copy stays within a node, or takes whole nodes of equal size.
    """
    largest = max(nodes)
    if copy_gpus <= largest:
        return sum(gpus // copy_gpus for gpus in nodes)
    if copy_gpus % largest:
        return 0
    return nodes.count(largest) // (copy_gpus // largest)


def copy_sizes(cluster: Cluster, leaves_idle: bool) -> list[int]:
    """Return the numbers of GPUs of one copy that fill the cluster, or with ``leaves_idle`` those that do not."""
    nodes, total = node_sizes(cluster), len(cluster.gpus)
    sizes = []
    for size in range(1, min(total, MAX_COPY_GPUS) + 1):
        used = copies_of(nodes, size) * size
        if used and (used < total) == leaves_idle:
            sizes.append(size)
    return sizes


def layouts_of(model: Architecture, copy_gpus: int, rules: LaunchRules) -> Iterator[ServingLayout]:
    """Yield the layouts of one copy on ``copy_gpus`` GPUs that the engine has options for.

    Attention replicas of a model without experts share nothing: they are copies, and not yielded.
    """
    experts = has_experts(model)
    for pp in _divisors(copy_gpus):
        stage = copy_gpus // pp
        for tp in _divisors(stage):
            attention_dp = stage // tp
            if attention_dp > 1 and not experts:
                continue
            for ep in _divisors(stage) if experts else [1]:
                layout = ServingLayout(tp=tp, pp=pp, ep=ep, attention_dp=attention_dp)
                if rules.can_launch(layout):
                    yield layout


def _divisors(number: int) -> list[int]:
    return [ways for ways in range(1, number + 1) if number % ways == 0]
