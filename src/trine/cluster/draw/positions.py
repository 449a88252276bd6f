"""Positions of a picture's devices: hosts in frames, their fabric above, meshes as grids, rings as circles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from trine.cluster.cluster import Cluster
from trine.cluster.draw.hosts import MAX_CIRCLE, MAX_SIDE, DrawnLink, Mark, Picture, fabric_levels, lay_out_hosts, short
from trine.cluster.parts import GPU, HOST, SWITCH, Link


def lay_out(cluster: Cluster) -> Picture:
    """Choose the layout that fits the cluster's structure, and place its devices."""
    picture = Picture()
    non_gpus = [i for i, device in enumerate(cluster.devices) if device.kind != GPU]
    bend: dict[tuple[int, int], float] = {}
    if len(cluster.grid) in (2, 3):
        bend = _grid(cluster, picture)
    elif not non_gpus and len(cluster.gpus) <= MAX_CIRCLE:
        _circle(cluster, picture, cluster.gpus)
    elif _is_flat(cluster):
        _hubs(cluster, picture)
    else:
        lay_out_hosts(cluster, picture)
    picture.lines = _lines(cluster, picture, bend)
    return picture


def _lines(cluster: Cluster, picture: Picture, bend: Mapping[tuple[int, int], float]) -> list[DrawnLink]:
    """Return one line for all links between two marks: both directions and parallel links together."""
    groups: dict[tuple[int, int], list[Link]] = {}
    for link in cluster.links:
        if link.source in picture.of_device and link.target in picture.of_device:
            key = (min(link.source, link.target), max(link.source, link.target))
            groups.setdefault(key, []).append(link)
    lines = []
    for (a, b), links in groups.items():
        forth = sum(link.source == a for link in links)
        fastest = max(links, key=lambda link: link.bytes_per_s)
        one_way = forth in (0, len(links))
        ends = (picture.of_device[fastest.source], picture.of_device[fastest.target])
        lines.append(DrawnLink(*ends, fastest, max(forth, len(links) - forth), one_way, bend.get((a, b), 0.0)))
    return lines + [DrawnLink(a, b, link) for a, b, link in picture.extra]


def _grid(cluster: Cluster, picture: Picture) -> dict[tuple[int, int], float]:
    """Place the GPUs of a mesh or torus in rows and columns, the third dimension as layers; return the bends."""
    sizes = cluster.grid
    limits = []
    for length in sizes:
        limits.append(min(length, MAX_SIDE if len(sizes) == 2 else 4))
    places: dict[int, tuple[int, ...]] = {}
    for rank, device in enumerate(cluster.gpus):
        coordinates, remainder = [], rank
        for size in reversed(sizes):
            coordinates.append(remainder % size)
            remainder //= size
        place = tuple(reversed(coordinates))
        if all(p < limit for p, limit in zip(place, limits, strict=True)):
            places[device] = place
            row, column = place[-2], place[-1]
            if len(sizes) == 3:
                x, y = column * 3.4 + place[0] * 0.62, place[0] * 0.52 - row * 2.6
            else:
                x, y = column * 1.5, -row * 1.3
            picture.add(cluster, device, x, y)
    if len(places) < len(cluster.gpus):
        words = " x ".join(map(str, limits)), " x ".join(map(str, sizes))
        picture.notes.append(f"{words[0]} of {words[1]} GPUs drawn")
    bends = {}
    for link in cluster.links:
        if link.source in places and link.target in places:
            a, b = sorted((link.source, link.target))
            steps = [abs(p - q) for p, q in zip(places[a], places[b], strict=True)]
            bends[a, b] = 0.18 if max(steps) > 1 else 0.0
    return bends


def _circle(cluster: Cluster, picture: Picture, devices: Sequence[int]) -> None:
    radius = max(1.6, 1.15 * len(devices) / (2 * math.pi))
    for number, device in enumerate(devices):
        angle = math.pi / 2 - 2 * math.pi * number / len(devices)
        picture.add(cluster, device, radius * math.cos(angle) * 1.15, radius * math.sin(angle))


def _is_flat(cluster: Cluster) -> bool:
    """Return whether switches between hosts link mostly to switches of their level, as in a dragonfly."""
    level = fabric_levels(cluster)
    pairs = [(level[k.source], level[k.target]) for k in cluster.links if k.source in level and k.target in level]
    num_level = sum(a == b for a, b in pairs)
    return len(pairs) > 4 and 2 * num_level > len(pairs)


def _hubs(cluster: Cluster, picture: Picture) -> None:
    """Place switches on a circle, grouped, and their GPUs and hosts outside it, one mark per host."""
    level = fabric_levels(cluster)
    hubs = sorted(level)[:MAX_CIRCLE]
    if len(hubs) < len(level):
        picture.notes.append(f"{len(hubs)} of {len(level)} switches drawn")
    served = _served(cluster, hubs)
    radius = max(2.2, 1.25 * sum(max(1, len(names)) for names in served.values()) / (2 * math.pi) - 1.4)
    total, offset = sum(max(1, len(names)) for names in served.values()), 0.0
    for hub in hubs:
        names = served[hub]
        width = max(1, len(names))
        angle = math.pi / 2 - 2 * math.pi * (offset + width / 2) / total
        picture.add(cluster, hub, radius * math.cos(angle), radius * math.sin(angle))
        for number, (label, (kind, link)) in enumerate(names.items()):
            turn = math.pi / 2 - 2 * math.pi * (offset + number + 0.5) / total
            far = radius + 1.5
            picture.marks.append(Mark(far * math.cos(turn), far * math.sin(turn), kind, short(label)))
            picture.extra.append((picture.of_device[hub], len(picture.marks) - 1, link))
        offset += width


def _served(cluster: Cluster, hubs: Iterable[int]) -> dict[int, dict[str, tuple[str, Link]]]:
    """Return for each switch its hosts or GPUs by name, with their kind and one of their links."""
    served: dict[int, dict[str, tuple[str, Link]]] = {}
    for hub in hubs:
        attached = served.setdefault(hub, {})
        for link in cluster.links_from(hub):
            device = cluster.devices[link.target]
            if device.kind != SWITCH or device.node is not None:
                kind = device.kind if device.node is None else HOST
                attached.setdefault(device.node or device.name, (kind, link))
    return served
