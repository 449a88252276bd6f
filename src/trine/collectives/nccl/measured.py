"""Bandwidths per collective of a cluster file, as factors on the time of a collective's bytes.

The file gives the bus bandwidth over all GPUs of some nodes. The factor is the one at which the library's choice on
these GPUs takes the measured time; the software costs stay. It then holds for each group on as many nodes: a group with
one GPU per node has one NIC per node, and loses the same share of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from trine.cluster.cluster import Cluster
from trine.collectives.bus_bandwidth import bus_factor, sent_bytes
from trine.collectives.degraded import clusters_before
from trine.collectives.nccl.topology import CommTopology, domains_of
from trine.common.kept import keep
from trine.common.units import format_bandwidth, format_bytes, format_time
from trine.errors import InputError

#: Range of factors on the time of the bytes, and bisections within it.
_LEAST, _MOST, _HALVINGS = 1e-3, 1e4, 60


class LinkPredictor(Protocol):
    """A predictor of all GPUs of some nodes, by the links alone."""

    topology: CommTopology

    def scaled_us(self, op: str, size_bytes: int, factor: float) -> float:
        """Return the time of a collective whose bytes take ``factor`` times as long."""


#: Builds the predictor of a group of ranks, without bandwidths per collective.
Predictor = Callable[[Cluster, Sequence[int]], LinkPredictor]


def bytes_factors(cluster: Cluster, topology: CommTopology, predictor: Predictor) -> dict[str, float]:
    """Return the factor of each collective that the file gives for a group's number of nodes.

    topology: of the group. predictor: builds the reference, all GPUs of the first nodes of the machine without faults.

    Raises InputError for a bandwidth that the software costs alone do not allow.
    """
    given, nodes = cluster.collective_bandwidth, topology.num_domains
    if given is None:
        rates = {}
    else:
        rates = {op: given.at(op, nodes) for op, _ in given.curves}
    if given is None or not any(rates.values()):
        return {}
    reference = _reference(_without_faults(cluster), nodes, predictor)
    part = 1.0
    if nodes > 1:  # fewer GPUs of each node use fewer of its NICs
        part = min(1.0, reference.topology.min_per_domain / given.gpus_per_node)
    return {op: _factor(reference, op, rate * part, given.size_bytes) for op, rate in rates.items() if rate}


def _without_faults(cluster: Cluster) -> Cluster:
    """Return the machine without slow or missing links: the bandwidths were measured on it."""
    for better in clusters_before(cluster):
        if better.collective_bandwidth == cluster.collective_bandwidth:
            return _without_faults(better)
    return cluster


@keep
def _reference(cluster: Cluster, nodes: int, predictor: Predictor) -> LinkPredictor:
    """Return the predictor of all GPUs of the first ``nodes`` nodes; kept for further groups of the same cluster."""
    rank_of = {gpu: rank for rank, gpu in enumerate(cluster.gpus)}
    domains = domains_of(cluster, sorted(rank_of))[:nodes]
    return predictor(cluster, [rank_of[gpu] for domain in domains for gpu in domain])


def _factor(reference: LinkPredictor, op: str, rate: float, size_bytes: int) -> float:
    """Return the factor on the bytes' time at which ``op`` has this bus bandwidth in bytes/s."""
    ranks = reference.topology.num_ranks
    sent = sent_bytes(op, size_bytes, ranks)
    target_us = size_bytes * bus_factor(op, ranks) / rate * 1e6
    low, high = math.log(_LEAST), math.log(_MOST)
    least_us = reference.scaled_us(op, sent, _LEAST)
    if least_us > target_us:
        raise InputError(
            f"{format_bandwidth(rate)} on {reference.topology.num_domains} nodes moves {format_bytes(size_bytes)} in "
            f"{format_time(round(target_us * 1e6))}, less than the {format_time(round(least_us * 1e6))} of launches "
            "and latency: give less bandwidth, or a larger 'size'",
            field=f"collective_bandwidth.{op}",
        )
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if reference.scaled_us(op, sent, math.exp(middle)) < target_us else (low, middle)
    return math.exp(high)
