"""Pictures of clusters (extra ``plot``): connections between devices, their speed and their kind of link."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trine.cluster.cluster import Cluster
from trine.cluster.draw.hosts import (
    MAX_CIRCLE,
    MAX_SIDE,
    MORE,
    DrawnLink,
    Mark,
    Picture,
    fabric_levels,
    lay_out_hosts,
    short,
)
from trine.cluster.parts import GPU, HOST, HOST_LINK, NIC, SCALE_OUT, SCALE_UP, SWITCH, Link
from trine.common.outputs import save_figure
from trine.common.units import format_bandwidth, format_time
from trine.errors import MissingExtraError

#: Colours that colour-blind readers can tell apart, also in grey (Okabe and Ito, 2008).
_LINK_COLOURS = {SCALE_UP: "#0072B2", HOST_LINK: "#999999", SCALE_OUT: "#D55E00"}
_FILLS = {GPU: "#CDE7F7", HOST: "#E8E8E8", NIC: "#FBE3C5", SWITCH: "#FFFFFF", MORE: "#FFFFFF"}
_NAMES = {GPU: "GPU", HOST: "host (processor, memory)", NIC: "NIC", SWITCH: "switch"}
_WIDTH, _HEIGHT = 0.96, 0.46
_MAX_LEGEND = 8
_INCHES = 0.62


def draw_cluster(cluster: Cluster, path: str | Path, *, title: str | None = None) -> None:
    """Draw a cluster and write it to ``path`` (PNG, SVG or PDF by its ending).

    The width of a line grows with the square root of the link's bandwidth; its colour shows the class. Among many
    identical hosts, and many switches in a row, only some are drawn; the rest are counted.

    Raises MissingExtraError: matplotlib is not installed. InputError: matplotlib does not know the file ending, or the
    file cannot be written.
    """
    figures = _matplotlib()
    picture = lay_out(cluster)
    left, right, bottom, top = _extent(picture)
    wide = min(30.0, max(6.0, (right - left) * _INCHES))
    size = wide, min(24.0, wide * (top - bottom) / (right - left) + 1.1)
    with figures["rc_context"]({"font.size": 8}):
        figure = figures["Figure"](figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlim(left, right)
        axes.set_ylim(bottom, top)
        axes.set_aspect("equal")
        axes.axis("off")
        _draw(axes, picture, figures)
        zoom = max(1.0, wide / 16)  # large pictures are displayed at a smaller scale
        axes.set_title(title or _title(cluster), fontsize=10 * zoom, loc="left")
        _legend(figure, figures, picture, zoom)
        save_figure(figure, path, dpi=140, bbox_inches="tight", pad_inches=0.1)


def _matplotlib() -> dict[str, Any]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
    except ImportError:
        raise MissingExtraError("drawing", "plot", "matplotlib") from None
    return {
        "rc_context": mpl.rc_context,
        "Figure": Figure,
        "Line2D": Line2D,
        "Arrow": FancyArrowPatch,
        "Box": FancyBboxPatch,
        "Patch": Patch,
    }


def _title(cluster: Cluster) -> str:
    hosts = {cluster.devices[i].node for i in cluster.gpus} - {None}
    where = f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    return f"{cluster.name}: {len(cluster.gpus)} GPUs{where}"


def _extent(picture: Picture) -> tuple[float, float, float, float]:
    xs = [mark.x for mark in picture.marks] + [edge for f in picture.frames for edge in (f.left, f.right)]
    ys = [mark.y for mark in picture.marks] + [edge for f in picture.frames for edge in (f.bottom, f.top)]
    bent = [line.bend * _length(picture.marks, line) / 2 for line in picture.lines]
    spare = max(bent, default=0.0)
    return min(xs) - 0.9, max(xs) + 0.9 + spare, min(ys) - 0.7, max(ys) + 0.6 + spare


def _length(marks: Sequence[Mark], line: DrawnLink) -> float:
    return math.dist((marks[line.a].x, marks[line.a].y), (marks[line.b].x, marks[line.b].y))


def _draw(axes: Any, picture: Picture, figures: dict[str, Any]) -> None:
    for frame in picture.frames:
        width, height = frame.right - frame.left, frame.top - frame.bottom
        style = "round,pad=0,rounding_size=0.15"
        box = figures["Box"](
            (frame.left, frame.bottom), width, height, boxstyle=style, fc="#F7F7F4", ec="#777777", lw=0.8, zorder=0
        )
        axes.add_patch(box)
        axes.text(
            frame.left + 0.15, frame.bottom + 0.12, frame.label, fontsize=7.5, va="bottom", color="#444444", zorder=4
        )
    width_of = _widths(picture)
    for line in picture.lines:
        _draw_line(axes, picture.marks, line, width_of(line.link), figures)
    for a, b in picture.hints:
        first, second = picture.marks[a], picture.marks[b]
        axes.plot([first.x, second.x], [first.y, second.y], color="#BBBBBB", lw=0.6, ls=(0, (3, 3)), zorder=1)
    for mark in picture.marks:
        _draw_mark(axes, mark, figures)


def _widths(picture: Picture) -> Callable[[Link], float]:
    """Return a function link -> line width in points; crowded classes get thinner lines to avoid overlap."""
    fastest = max((line.link.bytes_per_s for line in picture.lines), default=1)
    count = Counter(line.link.link_class for line in picture.lines)

    def width(link: Link) -> float:
        room = min(1.0, (40 / count[link.link_class]) ** 0.5)
        return float(0.4 + 4.0 * room * (link.bytes_per_s / fastest) ** 0.5)

    return width


def _draw_line(axes: Any, marks: Sequence[Mark], line: DrawnLink, width: float, figures: dict[str, Any]) -> None:
    a, b = marks[line.a], marks[line.b]
    arrow = figures["Arrow"](
        (a.x, a.y), (b.x, b.y), connectionstyle=f"arc3,rad={line.bend or _detour(marks, line)}",
        arrowstyle="-|>" if line.one_way else "-", mutation_scale=9, shrinkA=0, shrinkB=14 if line.one_way else 0,
        color=_LINK_COLOURS[line.link.link_class], lw=width, alpha=0.85, zorder=1,
    )  # fmt: skip
    axes.add_patch(arrow)
    if line.count > 1:
        middle = (a.x + b.x) / 2, (a.y + b.y) / 2
        axes.text(*middle, f"x{line.count}", fontsize=6, ha="center", va="center", zorder=2, color="#333333")


def _detour(marks: Sequence[Mark], line: DrawnLink) -> float:
    """Return the bend of a horizontal line that would otherwise pass through marks between its ends."""
    a, b = marks[line.a], marks[line.b]
    if abs(a.y - b.y) > 0.05:
        return 0.0
    low, high = sorted((a.x, b.x))
    between = any(low < m.x < high and abs(m.y - a.y) < 0.05 for m in marks)
    return (0.28 if a.x < b.x else -0.28) if between else 0.0


def _draw_mark(axes: Any, mark: Mark, figures: dict[str, Any]) -> None:
    tall = _HEIGHT * (1.8 if "\n" in mark.label else 1.0)
    style = "round,pad=0,rounding_size=0.2" if mark.kind in (SWITCH, MORE) else "round,pad=0,rounding_size=0.06"
    corner = (mark.x - _WIDTH / 2, mark.y - tall / 2)
    dashed = (0, (3, 2)) if mark.kind == MORE else "-"
    box = figures["Box"](
        corner, _WIDTH, tall, boxstyle=style, fc=_FILLS[mark.kind], ec="#333333", lw=0.8, ls=dashed, zorder=3
    )
    axes.add_patch(box)
    size = 7.5 if len(mark.label) <= 7 else 5.8 if len(mark.label) <= 10 else 5.0
    axes.text(mark.x, mark.y, mark.label, fontsize=size, ha="center", va="center", zorder=4)


def _legend(figure: Any, figures: dict[str, Any], picture: Picture, zoom: float) -> None:
    """Add the legend: kinds of devices, and kinds of links with bandwidth (one direction) and latency."""
    kinds = [kind for kind in _NAMES if any(mark.kind == kind for mark in picture.marks)]
    handles = [figures["Patch"](fc=_FILLS[kind], ec="#333333", label=_NAMES[kind]) for kind in kinds]
    kinds_of_links: dict[tuple[object, ...], Link] = {}
    for line in sorted(picture.lines, key=lambda line: -line.link.bytes_per_s):
        link = line.link
        kinds_of_links.setdefault((link.link_class, link.medium, link.bytes_per_s, link.latency_ps), link)
    width_of = _widths(picture)
    for link in list(kinds_of_links.values())[:_MAX_LEGEND]:
        label = (
            f"{link.medium or link.link_class}: {format_bandwidth(link.bytes_per_s)}, {format_time(link.latency_ps)}"
        )
        colour = _LINK_COLOURS[link.link_class]
        handles.append(figures["Line2D"]([], [], color=colour, lw=width_of(link), label=label))
    classes = ", ".join(dict.fromkeys(link.link_class for link in kinds_of_links.values()))
    notes = [*picture.notes, f"bandwidth of each direction; classes: {classes}"]
    if len(kinds_of_links) > _MAX_LEGEND:
        notes.append(f"{len(kinds_of_links) - _MAX_LEGEND} more kinds of links")
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=7.5 * zoom,
        title="; ".join(notes), title_fontsize=7 * zoom,
    )  # fmt: skip


# Layouts: hosts in frames, their fabric above, meshes as grids, rings as circles.


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
    limits = [min(size, MAX_SIDE if len(sizes) == 2 else 4) for size in sizes]
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
