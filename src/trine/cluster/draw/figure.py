"""Pictures of clusters (extra ``plot``): connections between devices, their speed and their kind of link."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trine.cluster.cluster import Cluster
from trine.cluster.draw.hosts import MORE, DrawnLink, Mark, Picture
from trine.cluster.draw.positions import lay_out
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


class _Extent(NamedTuple):
    """Edges of the drawn area."""

    left: float
    right: float
    bottom: float
    top: float


def _extent(picture: Picture) -> _Extent:
    mark_xs = [mark.x for mark in picture.marks]
    edge_xs = [edge for f in picture.frames for edge in (f.left, f.right)]
    xs = mark_xs + edge_xs
    mark_ys = [mark.y for mark in picture.marks]
    edge_ys = [edge for f in picture.frames for edge in (f.bottom, f.top)]
    ys = mark_ys + edge_ys
    bent = [line.bend * _length(picture.marks, line) / 2 for line in picture.lines]
    spare = max(bent, default=0.0)
    return _Extent(min(xs) - 0.9, max(xs) + 0.9 + spare, min(ys) - 0.7, max(ys) + 0.6 + spare)


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
            frame.left + 0.15, frame.bottom + 0.12, frame.label, fontsize=7.5, va="bottom", color="#444444", zorder=4,
            bbox={"facecolor": "#F7F7F4", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
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
    style = "-|>" if line.one_way else "-"
    shrink = 14 if line.one_way else 0
    arrow = figures["Arrow"](
        (a.x, a.y), (b.x, b.y), connectionstyle=f"arc3,rad={line.bend or _detour(marks, line)}", arrowstyle=style,
        mutation_scale=9, shrinkA=0, shrinkB=shrink, color=_LINK_COLOURS[line.link.link_class], lw=width, alpha=0.85,
        zorder=1,
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
    if between:
        return 0.28 if a.x < b.x else -0.28
    return 0.0


def _draw_mark(axes: Any, mark: Mark, figures: dict[str, Any]) -> None:
    tall = _HEIGHT * (1.8 if "\n" in mark.label else 1.0)
    style = "round,pad=0,rounding_size=0.2" if mark.kind in (SWITCH, MORE) else "round,pad=0,rounding_size=0.06"
    corner = (mark.x - _WIDTH / 2, mark.y - tall / 2)
    dashed = (0, (3, 2)) if mark.kind == MORE else "-"
    box = figures["Box"](
        corner, _WIDTH, tall, boxstyle=style, fc=_FILLS[mark.kind], ec="#333333", lw=0.8, ls=dashed, zorder=3
    )
    axes.add_patch(box)
    if len(mark.label) <= 7:
        size = 7.5
    elif len(mark.label) <= 10:
        size = 5.8
    else:
        size = 5.0
    axes.text(mark.x, mark.y, mark.label, fontsize=size, ha="center", va="center", zorder=4)


def _legend(figure: Any, figures: dict[str, Any], picture: Picture, zoom: float) -> None:
    """Add the legend: kinds of devices, and kinds of links with bandwidth (one direction) and latency."""
    kinds = []
    for kind in _NAMES:
        if any(mark.kind == kind for mark in picture.marks):
            kinds.append(kind)
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
