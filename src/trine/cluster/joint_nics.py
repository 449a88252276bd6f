"""Several NICs of one GPU as one: a GPU spreads what it sends over all NICs that are its own (NCCL: a channel each)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from trine.cluster.cluster import Cluster
from trine.cluster.data import SHORTEST
from trine.cluster.parts import NIC, Fabric, Link
from trine.cluster.routing.router import Router


def with_joint_nics(node: Cluster, fabric: Fabric | None) -> tuple[Cluster, Fabric | None]:
    """Return a whole node and its fabric with the NICs of each GPU as one NIC of as many lanes.

    Unchanged if GPUs have no NICs of their own, or not equally many, or NICs with different links.
    """
    heads = _heads(node)
    if fabric is None or not heads:
        return node, fabric
    sums: dict[tuple[int, int], Link] = {}
    rates: dict[tuple[int, int], int] = defaultdict(int)
    for link in node.links:
        ends = heads.get(link.source, link.source), heads.get(link.target, link.target)
        is_joint = link.source in heads or link.target in heads
        key = ends if is_joint else (-1 - len(sums), len(sums))
        sums.setdefault(key, link)
        rates[key] += 1
    kept = [i for i in range(len(node.devices)) if heads.get(i, i) == i]
    place = {old: new for new, old in enumerate(kept)}
    links = tuple(
        replace(
            link, source=place[link.source], target=place[link.target], bytes_per_s=link.bytes_per_s * rates[key],
            peak_bytes_per_s=link.peak_bytes_per_s and link.peak_bytes_per_s * rates[key],
        )
        for key, link in sums.items()
    )  # fmt: skip
    lanes = len(heads) // len(set(heads.values()))
    devices = tuple(node.devices[i] for i in kept)
    notes = f"{node.notes} Each NIC stands for the {lanes} NICs of its GPU.".strip()
    return replace(node, devices=devices, links=links, notes=notes), replace(fabric, lanes=fabric.lanes * lanes)


def _heads(node: Cluster) -> dict[int, int]:
    """For each NIC the first NIC of the same GPU; nothing unless all GPUs have several NICs, alike."""
    nics, router = np.flatnonzero(node.device_table.where(NIC)).tolist(), Router(node, SHORTEST)
    if len(nics) < 2 * len(node.gpus):
        return {}
    sharing: dict[tuple[int, ...], int] = defaultdict(int)
    for gpu in node.gpus:
        sharing[router.node.all_nearest(gpu, nics)] += 1
    links = {nic: {(link.target, link.bare) for link in node.links_from(nic)} for nic in nics}
    heads = {nic: near[i % gpus] for near, gpus in sharing.items() for i, nic in enumerate(near)}
    sizes = np.unique(list(heads.values()), return_counts=True)[1]
    is_even = sorted(heads) == nics and sum(map(len, sharing)) == len(nics) and len(set(sizes.tolist())) == 1
    return heads if is_even and all(links[nic] == links[head] for nic, head in heads.items()) else {}
