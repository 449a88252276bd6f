"""Clusters by name: rings, meshes, switches, fat trees and more, from a word and a few sizes.

Bandwidth and latency are those of every link in each direction. Where a path has several links (GPU - switch - GPU, or
through other GPUs), it costs the latency of each.
"""

from __future__ import annotations

from dataclasses import replace

from trine.arguments import named_arguments
from trine.cluster.blueprints import BLUEPRINTS, known_texts, shape_of
from trine.cluster.cluster import Cluster
from trine.cluster.parts import HOST, HOST_LINK, SWITCH, Device, Link
from trine.cluster.tables import LinkTable
from trine.errors import SpecError
from trine.units import format_bandwidth, format_time, parse_bandwidth, parse_time

MAX_GPUS = 1 << 20


def known_topologies() -> tuple[str, ...]:
    """The names that :func:`build_topology` takes."""
    return known_texts()


@named_arguments
def build_topology(
    text: str,
    bandwidth: int | str,
    latency: int | str,
    num_gpus: int,
    gpu: str | None = None,
    *,
    medium: str | None = None,
) -> Cluster:
    """Build a cluster of ``num_gpus`` GPUs.

    Parameters
    ----------
    text: a name that :func:`known_topologies` lists, with its sizes: ``ring`` (each GPU joined to the next, the last to
        the first), ``switch`` (all on one switch; a path has two links), ``full`` (every pair joined), ``mesh:2x4`` and
        ``torus:4x4x4`` (a torus also joins the ends of each line), ``tree:4`` (switches of that arity over the GPUs),
        ``fat-tree:8:2`` (8 GPUs a leaf, oversubscribed 2 to 1), ... ; docs/formats/cluster.md lists all.
    bandwidth: of each link and direction, as text with its unit or in whole bytes per second.
    latency: of each link, as text with its unit or in whole picoseconds.
    gpu: name of the GPU model, for its memory size and compute rate.
    medium: name of the links in the link catalogue, where they are of one kind.

    Raises
    ------
    SpecError: an unknown name, or sizes that do not match ``num_gpus``.
    UnitError: a quantity that cannot be read.
    """
    if not isinstance(text, str):
        raise SpecError(f"must be the name of a topology, got {text!r:.80}", field="topology")
    bytes_per_s = parse_bandwidth(bandwidth, "the bandwidth", base=isinstance(bandwidth, int))
    latency_ps = latency if isinstance(latency, int) else parse_time(latency, "the latency")
    if not 1 <= num_gpus <= MAX_GPUS:
        raise SpecError(f"topology {text!r} needs 1 to {MAX_GPUS} GPUs, got {num_gpus}")
    shape = shape_of(text, num_gpus, Link(bytes_per_s=bytes_per_s, latency_ps=latency_ps, medium=medium))
    devices = tuple(replace(device, gpu=gpu) for device in shape.devices[:num_gpus]) + tuple(shape.devices[num_gpus:])
    return Cluster(
        name=f"{text} of {num_gpus} GPUs",
        devices=devices,
        links=LinkTable.joined(tuple(device.name for device in devices), shape.rows),
        sources={
            "links": f"given: {format_bandwidth(bytes_per_s)} and {format_time(latency_ps)} per link and direction"
        },
        grid=shape.grid,
        routing=shape.routing,
        routing_reason=(shape.routing, f"usual for {text.partition(':')[0]}"),
    )


def implied_gpus(text: str) -> int | None:
    """How many GPUs the sizes in ``text`` make, None where they leave it open."""
    kind, _, sizes = text.partition(":")
    return BLUEPRINTS[kind].implied(sizes) if kind in BLUEPRINTS else None


def add_host(cluster: Cluster, bandwidth: int, latency_ps: int, gpus_per_link: int = 1) -> Cluster:
    """Add one host memory, with links of ``bandwidth`` bytes/s both ways to each GPU.

    ``gpus_per_link`` > 1 puts that many GPUs, in order, behind a PCIe switch whose one link to the host they share;
    every link then has this bandwidth, and each of the two links half of ``latency_ps`` (the upper one rounded up).
    """
    devices = [*cluster.devices, Device(name="host", kind=HOST)]
    host = len(devices) - 1
    rows = [(link.source, link.target, link.bare) for link in cluster.links]

    def join(a: int, b: int, latency_ps: int) -> None:
        link = Link(bytes_per_s=bandwidth, latency_ps=latency_ps, link_class=HOST_LINK)
        rows.extend(((a, b, link), (b, a, link)))

    gpus = cluster.gpus
    for first in range(0, len(gpus), gpus_per_link):
        upstream, rest_ps = host, latency_ps
        if gpus_per_link > 1:
            upstream, rest_ps = len(devices), latency_ps // 2
            devices.append(Device(name=f"pcie{first // gpus_per_link}", kind=SWITCH, forwards=True))
            join(upstream, host, latency_ps - rest_ps)
        for gpu in gpus[first : first + gpus_per_link]:
            join(gpu, upstream, rest_ps)
    links = LinkTable.joined(tuple(device.name for device in devices), rows)
    return replace(cluster, devices=tuple(devices), links=links)
