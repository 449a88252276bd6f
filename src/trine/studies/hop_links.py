"""Links for studies of decentralised training: one for each edge of the graph, and slowed at random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trine.cluster import Cluster
from trine.cluster.parts import SCALE_UP, Device, Wire, make_links
from trine.cluster.select import slow_down
from trine.errors import InputError
from trine.parallel.draws import uniform
from trine.parallel.hop import WorkerGraph


def edge_cluster(
    graph: WorkerGraph, bandwidth: int, latency_ps: int, gpu: str | None = None, name: str | None = None
) -> Cluster:
    """A cluster with one link of ``bandwidth`` bytes/s for each edge of the graph; workers do not forward."""
    devices = tuple(Device(name=f"gpu{i}", gpu=gpu) for i in range(graph.num_workers))
    wires = [Wire(a, b, bandwidth, latency_ps, SCALE_UP) for a, b in graph.edges]
    return Cluster(
        name=name or f"{graph.name} of {graph.num_workers} GPUs",
        devices=devices,
        links=make_links(devices, wires),
        sources={"links": "given: one link an edge of the communication graph and direction"},
    )


def slowed_links(cluster: Cluster, factors: tuple[float, float], seed: int, per: str = "link") -> Cluster:
    """The cluster with each bandwidth divided by a random factor, uniform between the two.

    ``per``: ``link`` draws for each pair of devices that links join, both directions alike; ``gpu`` for each GPU, and a
    link is slowed by the larger factor of its two ends.

    Raises InputError for factors below 1 or in the wrong order, or another ``per``.
    """
    low, high = factors
    if not 1 <= low <= high < 1e6:
        raise InputError(f"factors are at least 1, the smaller first; got {low:g}:{high:g}", field="slow_by")
    if per not in ("link", "gpu"):
        raise InputError(f"factors are per link or per gpu, got {per!r}", field="slow_per")

    def factor(a: int, b: int) -> float:
        return low + (high - low) * float(uniform(seed, np.array([a]), np.array([b]))[0])

    gpus, slow = set(cluster.gpus), []
    for link in cluster.links:
        if per == "link":
            slow.append((link.name, 1 / factor(min(link.source, link.target), max(link.source, link.target))))
        elif ends := {link.source, link.target} & gpus:
            slow.append((link.name, 1 / max(factor(end, end) for end in ends)))
    what = f"slowed by {low:g} to {high:g} per {per}, seed {seed}"
    slower = slow_down(cluster, slow)
    return replace(slower, name=f"{cluster.name}, {what}", sources={**cluster.sources, "slow-down": f"assumed: {what}"})
