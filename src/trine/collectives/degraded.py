"""Slower or missing links make no collective faster.

A library's choices and trine's costs follow the kind of the links that are used: without ``gpu0->nvswitch`` NCCL goes
over PCIe, whose software costs less per step than that of NVLink, and with a slower NVLink it may change to a protocol
that its own model underrates. Anything that a degraded machine can do the whole one can do at least as fast, so the
answer is never below that of the machine with one fault less.
"""

from __future__ import annotations

from dataclasses import replace

from trine.cluster.cluster import Cluster
from trine.collectives.options import CollectiveTime, TimePart
from trine.units import format_time


def clusters_before(cluster: Cluster) -> list[Cluster]:
    """Return the clusters with one slow or missing link less, with the routing of ``cluster``."""
    found = [make() for make in cluster.degraded_from]
    return [before.routed(cluster.routing, cluster.routing_why) for before in found]


def not_faster(own: CollectiveTime, before: CollectiveTime, media: tuple[str, str] = ("", "")) -> CollectiveTime:
    """Return ``own``, the answer of a degraded machine, with no time below ``before``, that of a better machine.

    media: the kinds of links that both use.
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
