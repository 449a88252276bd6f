"""Slower or missing links make no collective faster.

The library's choice and trine's software costs depend on the kind of link. Without ``gpu0->nvswitch`` NCCL uses PCIe,
and a step over PCIe has lower software costs than one over NVLink. With a slower NVLink NCCL may switch to a protocol
that its model underrates. But a sound machine can run every algorithm of a degraded one at least as fast. So no time is
below the time of the machine with one fault less.
"""

from __future__ import annotations

from dataclasses import replace

from trine.cluster.cluster import Cluster
from trine.collectives.options import CollectiveTime, TimePart
from trine.common.units import format_time


def clusters_before(cluster: Cluster) -> list[Cluster]:
    """Return the clusters with one slow or missing link less, with the routing of ``cluster``."""
    found = [make() for make in cluster.degraded_from]
    return [before.routed(cluster.routing, cluster.routing_why) for before in found]


def not_faster(own: CollectiveTime, before: CollectiveTime, media: tuple[str, str] = ("", "")) -> CollectiveTime:
    """Return ``own``, the answer of a degraded machine, with at least the time of ``before``, from a better machine.

    media: the kind of links of each.
    """
    if own.time_ps >= before.time_ps:
        return own
    now, then = (
        f"{answer.algorithm}/{answer.protocol}{f' over {medium}' if medium else ''}"
        for answer, medium in zip((own, before), media, strict=True)
    )
    switch = f"switches from {then} to {now}" if now != then else f"runs {now}"
    note = (
        f"with these links {own.op} {switch}, which would take {format_time(own.time_ps)}; slower or missing links "
        f"make nothing faster, so it takes as long as with better links: {format_time(before.time_ps)}"
    )
    part = TimePart(name="fault", time_ps=before.time_ps - own.time_ps, why="no faster than with better links")
    return replace(
        own,
        time_ps=before.time_ps,
        low_ps=max(own.low_ps, before.low_ps),
        high_ps=max(own.high_ps, before.high_ps),
        parts=(*own.parts, part),
        notes=(*own.notes, note),
    )
