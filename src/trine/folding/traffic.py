"""What a job moves in all, over all ranks, from the sketches alone: bytes on links, numbers of collectives."""

from __future__ import annotations

import numpy as np

from trine.arrays import Int64
from trine.cluster.cluster import Cluster
from trine.folding.sight import RouteTable
from trine.folding.sketch import HOSTS, Sketch
from trine.folding.sketching import JobSketch
from trine.graph.placement import Placement
from trine.graph.taskgraph import TRANSFER
from trine.results.traffic import LinkUse
from trine.units import PS_PER_S


def link_bytes(job: JobSketch, placement: Placement, table: RouteTable, step: int | None) -> Int64:
    """What each link of the cluster carries in a step (None: in all): int64[links], bytes."""
    carried = np.zeros(len(placement.link_bytes_per_s), np.int64)
    for sketch in job.sketches:
        for role, size in _bytes_by_role(sketch, step).items():
            _, links = table.of_role(sketch, role)
            np.add.at(carried, links, size)
    return carried


def link_uses(carried: Int64, placement: Placement, step_ps: int) -> tuple[LinkUse, ...]:
    """One row for all links of one rate and tier that carry the same; ``carried``: :func:`link_bytes`."""
    used = np.flatnonzero(carried)
    rates = placement.link_bytes_per_s[used]
    tiers = placement.cluster.link_tiers if isinstance(placement.cluster, Cluster) else None
    tier = np.zeros(len(used), np.int64) if tiers is None else tiers.tier[used].astype(np.int64)
    key = tier
    for column in (carried[used], rates):
        values, number = np.unique(column, return_inverse=True)
        key = np.unique(key * len(values) + number.ravel(), return_inverse=True)[1].ravel().astype(np.int64)
    _, first, counts = np.unique(key, return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    names = ("",) if tiers is None else tiers.names
    links, sizes, rates = used[first[order]], carried[used[first[order]]], rates[first[order]]
    return tuple(
        LinkUse(
            link=link,
            name=placement.link_name(link),
            size_bytes=size,
            bytes_per_s=rate,
            utilisation=size * PS_PER_S / (rate * step_ps) if step_ps else 0.0,
            count=count,
            tier=names[which],
        )
        for link, size, rate, count, which in zip(
            links.tolist(),
            sizes.tolist(),
            rates.tolist(),
            counts[order].tolist(),
            tier[first[order]].tolist(),
            strict=True,
        )
    )


def _bytes_by_role(sketch: Sketch, step: int | None) -> dict[int, int]:
    chosen = (sketch.kind == TRANSFER) & ((sketch.role >= 0) | np.isin(sketch.role, HOSTS))
    if step is not None:
        chosen &= sketch.labels[5] == step
    roles = sketch.role[chosen].astype(np.int64) - min(HOSTS)
    exact = np.zeros(int(roles.max(initial=-1)) + 1, np.int64)
    np.add.at(exact, roles, sketch.size_bytes[chosen])
    return {int(role) + min(HOSTS): int(exact[role]) for role in np.flatnonzero(exact)}


def collective_totals(job: JobSketch, step: int | None) -> dict[tuple[str, int, int], int]:
    """How many collectives of each (kind, bytes, group size) the system runs in a step (None: in all)."""
    members: dict[tuple[str, int, int], int] = {}
    for sketch in job.sketches:
        named = job.templates[sketch.program].collectives
        for key in sketch.algorithm_of:
            axis, name = job.keys[key]
            one = named[name][1]
            if step is None or one.label.step == step:
                kind = (one.kind, one.size_bytes, job.grid.size(axis))
                members[kind] = members.get(kind, 0) + len(sketch.ranks)
    totals = {kind: count // kind[2] for kind, count in members.items()}
    for sketch in job.sketches:
        for _, send in job.templates[sketch.program].sends:
            if step is None or send.label.step == step:
                kind = ("send_recv", send.size_bytes, 2)
                totals[kind] = totals.get(kind, 0) + len(sketch.ranks)
    return totals
