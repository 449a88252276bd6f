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
    clusters = [make() for make in cluster.degraded_from]
    return [better.routed(cluster.routing, cluster.routing_why) for better in clusters]


def not_faster(worse: CollectiveTime, better: CollectiveTime, media: tuple[str, str] = ("", "")) -> CollectiveTime:
    """Return ``worse``, a degraded machine's time, raised to at least ``better``, the time on a better machine.

    media: the kind of links of each machine.
    """
    if worse.time_ps >= better.time_ps:
        return worse
    choice, better_choice = (
        f"{answer.algorithm}/{answer.protocol}{f' over {medium}' if medium else ''}"
        for answer, medium in zip((worse, better), media, strict=True)
    )
    switch = f"switches from {better_choice} to {choice}" if choice != better_choice else f"runs {choice}"
    note = (
        f"with these links {worse.op} {switch}, which would take {format_time(worse.time_ps)}; slower or missing links "
        f"make nothing faster, so it takes as long as with better links: {format_time(better.time_ps)}"
    )
    part = TimePart(name="fault", time_ps=better.time_ps - worse.time_ps, why="no faster than with better links")
    return replace(
        worse, time_ps=better.time_ps, low_ps=max(worse.low_ps, better.low_ps),
        high_ps=max(worse.high_ps, better.high_ps), parts=(*worse.parts, part), notes=(*worse.notes, note),
    )  # fmt: skip
