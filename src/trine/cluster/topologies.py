"""Clusters by name: ring, switch, full, mesh:RxC, torus:RxC, tree.

Bandwidth and latency are those of every link in each direction. Where a path has several links (GPU - switch - GPU, or
through other GPUs), it costs the latency of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trine.cluster.cluster import GPU, HOST, SWITCH, Cluster, Device, make_links
from trine.errors import SpecError, nearest
from trine.units import format_bandwidth, format_time, parse_bandwidth, parse_time

#: devices besides the GPUs, pairs of devices joined both ways, whether GPUs carry others' traffic
_Shape = tuple[list[Device], list[tuple[int, int]], bool]

_SIZES = re.compile(r"(\d{1,6})x(\d{1,6})")
MAX_GPUS = 1 << 20


def known_topologies() -> tuple[str, ...]:
    """The names that :func:`build_topology` takes."""
    return ("ring", "switch", "full", "mesh:RxC", "torus:RxC", "tree", "tree:ARITY")


def build_topology(
    text: str,
    bandwidth: int | str,
    latency: int | str,
    num_gpus: int,
    gpu: str | None = None,
) -> Cluster:
    """Build a cluster of ``num_gpus`` GPUs.

    Parameters
    ----------
    text: ``ring`` (each GPU joined to the next, the last to the first), ``switch`` (all on one switch; a path has two
        links), ``full`` (every pair joined), ``mesh:2x4`` and ``torus:2x4`` (rows x columns; a torus also joins the
        ends of each row and column), ``tree`` (a binary tree of switches over the GPUs) or ``tree:4`` (another arity).
    bandwidth: of each link and direction, as text with its unit or in whole bytes per second.
    latency: of each link, as text with its unit or in whole picoseconds.
    gpu: name of the GPU model, for its memory size and compute rate.

    Raises
    ------
    SpecError: an unknown name, or sizes that do not match ``num_gpus``.
    UnitError: a quantity that cannot be read.
    """
    bytes_per_s = parse_bandwidth(bandwidth, "the bandwidth", base=isinstance(bandwidth, int))
    latency_ps = latency if isinstance(latency, int) else parse_time(latency, "the latency")
    if not 1 <= num_gpus <= MAX_GPUS:
        raise SpecError(f"topology {text!r} needs 1 to {MAX_GPUS} GPUs, got {num_gpus}")
    others, pairs, forwards = _shape(text, num_gpus)
    gpus = [Device(name=f"gpu{i}", kind=GPU, gpu=gpu, forwards=forwards) for i in range(num_gpus)]
    devices = (*gpus, *others)
    wires = [(a, b, bytes_per_s, latency_ps) for pair in pairs for a, b in (pair, pair[::-1])]
    return Cluster(
        name=f"{text} of {num_gpus} GPUs",
        devices=devices,
        links=make_links(devices, wires),
        sources={
            "links": f"given: {format_bandwidth(bytes_per_s)} and {format_time(latency_ps)} per link and direction"
        },
    )


def add_host(cluster: Cluster, bandwidth: int, latency_ps: int, gpus_per_link: int = 1) -> Cluster:
    """Add one host memory, with links of ``bandwidth`` bytes/s both ways to each GPU.

    ``gpus_per_link`` > 1 puts that many GPUs, in order, behind a PCIe switch whose one link to the host they share;
    every link then has this bandwidth, and each of the two links half of ``latency_ps`` (the upper one rounded up).
    """
    devices = [*cluster.devices, Device(name="host", kind=HOST)]
    host = len(devices) - 1
    wires = [(link.source, link.target, link.bytes_per_s, link.latency_ps) for link in cluster.links]

    def join(a: int, b: int, latency_ps: int) -> None:
        wires.extend(((a, b, bandwidth, latency_ps), (b, a, bandwidth, latency_ps)))

    gpus = cluster.gpus
    for first in range(0, len(gpus), gpus_per_link):
        upstream, rest_ps = host, latency_ps
        if gpus_per_link > 1:
            upstream, rest_ps = len(devices), latency_ps // 2
            devices.append(Device(name=f"pcie{first // gpus_per_link}", kind=SWITCH, forwards=True))
            join(upstream, host, latency_ps - rest_ps)
        for gpu in gpus[first : first + gpus_per_link]:
            join(gpu, upstream, rest_ps)
    return Cluster(
        name=cluster.name,
        devices=tuple(devices),
        links=make_links(tuple(devices), wires),
        evidence=cluster.evidence,
        sources=cluster.sources,
        notes=cluster.notes,
    )


def _shape(text: str, num_gpus: int) -> _Shape:
    kind, _, sizes = text.partition(":")
    plain: dict[str, Callable[[int], _Shape]] = {"ring": _ring, "switch": _switch, "full": _full}
    if kind in plain and not sizes:
        return plain[kind](num_gpus)
    if kind in ("mesh", "torus"):
        match = _SIZES.fullmatch(sizes)
        if match is None:
            raise SpecError(f"topology {text!r} needs its rows and columns, such as '{kind}:2x4'")
        rows, columns = int(match[1]), int(match[2])
        if rows * columns != num_gpus:
            raise SpecError(f"topology {text!r} has {rows * columns} GPUs, but {num_gpus} are asked for")
        return _grid(rows, columns, wrap=kind == "torus")
    if kind == "tree":
        if sizes and not (sizes.isascii() and sizes.isdigit() and 2 <= int(sizes) <= MAX_GPUS):
            raise SpecError(f"topology {text!r}: the arity of a tree is a whole number from 2")
        return _tree(num_gpus, int(sizes or 2))
    raise SpecError(f"unknown topology {text!r}{nearest(kind if sizes else text, known_topologies())}")


def _ring(num_gpus: int) -> _Shape:
    pairs = [(i, i + 1) for i in range(num_gpus - 1)]
    return [], pairs + ([(num_gpus - 1, 0)] if num_gpus > 2 else []), True


def _switch(num_gpus: int) -> _Shape:
    return [Device(name="switch", kind=SWITCH, forwards=True)], [(i, num_gpus) for i in range(num_gpus)], False


def _full(num_gpus: int) -> _Shape:
    return [], [(a, b) for a in range(num_gpus) for b in range(a + 1, num_gpus)], False


def _grid(rows: int, columns: int, wrap: bool) -> _Shape:
    """GPU (r, c) has index r * columns + c. A ring of two has one pair of links, not two."""
    pairs = []
    for row in range(rows):
        for column in range(columns):
            here = row * columns + column
            if column + 1 < columns or (wrap and columns > 2):
                pairs.append((here, row * columns + (column + 1) % columns))
            if row + 1 < rows or (wrap and rows > 2):
                pairs.append((here, (row + 1) % rows * columns + column))
    return [], pairs, True


def _tree(num_gpus: int, arity: int) -> _Shape:
    """Each level groups ``arity`` devices of the level below under a switch; one that is left over moves up a level."""
    switches: list[Device] = []
    pairs: list[tuple[int, int]] = []
    level = list(range(num_gpus))
    while len(level) > 1:
        above = []
        for first in range(0, len(level), arity):
            members = level[first : first + arity]
            if len(members) == 1:
                above.append(members[0])
                continue
            switch = num_gpus + len(switches)
            switches.append(Device(name=f"switch{len(switches)}", kind=SWITCH, forwards=True))
            pairs.extend((member, switch) for member in members)
            above.append(switch)
        level = above
    return switches, pairs, False
