"""A picture of the utilisation of a GPU's NoC (extra ``plot``): a mesh as a map, a crossbar as bars."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from trine.common.arrays import Float64
from trine.common.units import format_time
from trine.gpu.model import MESH, GpuModel
from trine.gpu.results.resources import ResourceUses, port_busy
from trine.results.axes import heading
from trine.results.picture import matplotlib, subplots

#: Light to dark, distinguishable for colour-blind readers and in grey.
_COLOURS = "magma_r"
#: Ends of the colour scale. The first that is at least the highest utilisation counts, so that small ones differ too.
_SCALE_ENDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_HALF = 0.27  # half the side of a router; routers are 1 apart
_UNKNOWN = "#DDDDDD"
_BAR_COLOUR = "#0072B2"  # Okabe and Ito, 2008


class _Paint(NamedTuple):
    """Drawing tools for utilisations: axes, matplotlib, and the map from utilisation to colour."""

    axes: Any
    mpl: Any
    scale: Any

    def box(self, x: float, y: float, width: float, height: float, value: float | None) -> None:
        """Draw a rectangle centred on (x, y), grey if the value is unknown."""
        colour = _UNKNOWN if value is None else self.scale.to_rgba(value)
        corner = (x - width / 2, y - height / 2)
        self.axes.add_patch(
            self.mpl.patches.Rectangle(corner, width, height, facecolor=colour, edgecolor="#444444", lw=0.5)
        )


def noc(result: ResourceUses, *, rank: int | None = None) -> Any:
    """Draw the utilisation of the NoC, the memory channels and the ports of a rank's GPU; return the figure.

    rank: None means the first simulated rank. Raises InputError for an unknown or a replayed rank.
    """
    gpu = 0 if rank is None else result.gpu_of(rank)
    busy = result.records.resource_busy_ps[gpu] / max(1, result.time_ps)
    draw = _mesh if result.model.noc.kind == MESH else _crossbar
    figure = draw(result, gpu, busy)
    heading(figure, _title(result, gpu))
    return figure


def _title(result: ResourceUses, gpu: int) -> str:
    use = result.gpus[gpu]
    suffix = f" (and {use.stands_for - 1} alike)" if use.stands_for > 1 else ""
    suffix += f" ({result.left_out})" if result.left_out else ""
    partial = "" if result.finished else ", stopped"
    name = result.program.name
    return f"{name}: inside rank {use.rank}{suffix}, {result.model.name}, {format_time(result.time_ps)}{partial}"


# Mesh


def _mesh(result: ResourceUses, gpu: int, busy: Float64) -> Any:
    noc, mpl = result.model.noc, matplotlib()
    figure, axes = subplots(figsize=(3.6 + noc.cols, 2.2 + noc.rows))
    ports = port_busy(result, gpu)
    highest = max(float(busy.max(initial=0.0)), *(value for port in ports for value in port if value is not None), 0.0)
    top = next((step for step in _SCALE_ENDS if highest <= step), 1.0)
    scale = mpl.cm.ScalarMappable(mpl.colors.Normalize(0, top), mpl.colormaps[_COLOURS])
    paint = _Paint(axes, mpl, scale)
    _routers(paint, result.model)
    _draw_links(paint, result, busy)
    _draw_cus(paint, result, busy)
    _draw_channels(paint, result, busy)
    _draw_ports(paint, result.model, ports)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_xlim(-1.0, noc.cols)
    axes.set_ylim(-noc.rows, 1.0)
    bar = figure.colorbar(scale, ax=axes, shrink=0.7, format=lambda x, _: f"{100 * x:g} %")
    bar.set_label("utilisation")
    _key(axes, result)
    return figure


def _at(model: GpuModel, router: int) -> tuple[float, float]:
    row, column = divmod(router, model.noc.cols)
    return float(column), -float(row)


def _routers(paint: _Paint, model: GpuModel) -> None:
    for router in range(model.noc.rows * model.noc.cols):
        x, y = _at(model, router)
        corner = (x - _HALF, y - _HALF)
        paint.axes.add_patch(
            paint.mpl.patches.Rectangle(corner, 2 * _HALF, 2 * _HALF, facecolor="white", edgecolor="#777777")
        )


def _draw_links(paint: _Paint, result: ResourceUses, busy: Float64) -> None:
    """Draw each link as an arrow; a pair of links side by side, each to the right of its direction."""
    names = result.records.resources
    for number, (source, target) in enumerate(zip(names.source, names.target, strict=True)):
        if source < 0:
            continue
        (x, y), (x2, y2) = _at(result.model, source), _at(result.model, target)
        dx, dy = x2 - x, y2 - y
        aside = 0.11
        paint.axes.arrow(
            x + dx * _HALF + dy * aside, y + dy * _HALF - dx * aside, dx * (1 - 2 * _HALF), dy * (1 - 2 * _HALF),
            width=0.09, head_width=0.17, head_length=0.1, length_includes_head=True,
            facecolor=paint.scale.to_rgba(busy[number]), edgecolor="#444444", linewidth=0.4,
        )  # fmt: skip


def _draw_cus(paint: _Paint, result: ResourceUses, busy: Float64) -> None:
    """Draw the CUs of each router as small squares in it, coloured by the busier of their two links."""
    model = result.model
    utilisation = _numbered(result, "cu", busy)
    routers = model.noc.rows * model.noc.cols
    side = int(np.ceil(np.sqrt(-(-model.num_cus // routers))))
    step = 2 * _HALF / (side + 0.5)
    for cu in range(model.num_cus):
        x, y = _at(model, cu % routers)
        row, column = divmod(cu // routers, side)
        middle = (side - 1) / 2
        value = max(utilisation["out"][cu], utilisation["in"][cu])
        paint.box(x + (column - middle) * step, y - (row - middle) * step, 0.8 * step, 0.8 * step, value)


def _draw_channels(paint: _Paint, result: ResourceUses, busy: Float64) -> None:
    """Draw memory channels above the top row and below the bottom row, with L2 slices next to the routers."""
    model = result.model
    kinds = np.array(result.records.resources.kinds)
    memory, slices = busy[kinds == "memory"], busy[kinds == "l2"]
    places = channel_routers(model)
    channels_per_router = -(-model.memory.num_channels // len(places))
    width = 0.86 / channels_per_router
    for channel in range(model.memory.num_channels):
        x, y = _at(model, places[channel % len(places)])
        outward = 1.0 if y == 0 else -1.0
        x += (channel // len(places) - (channels_per_router - 1) / 2) * width
        if len(slices):
            paint.box(x, y + outward * 0.47, width * 0.85, 0.16, float(slices[channel]))
        paint.box(x, y + outward * 0.75, width * 0.85, 0.3, float(memory[channel]))


def _draw_ports(paint: _Paint, model: GpuModel, ports: list[tuple[float | None, float | None]]) -> None:
    """Draw I/O ports beside the left and right columns: the outer half is outgoing, the inner half incoming."""
    places = port_routers(model)
    ports_per_router = -(-model.ports.count // len(places))
    height = 0.86 / ports_per_router
    for port, (out, into) in enumerate(ports):
        x, y = _at(model, places[port % len(places)])
        is_left = x == 0
        y -= (port // len(places) - (ports_per_router - 1) / 2) * height
        for distance, value in ((0.56, into), (0.78, out)):
            paint.box(x + (-distance if is_left else distance), y, 0.2, height * 0.85, value)


def _key(axes: Any, result: ResourceUses) -> None:
    model = result.model
    above = "L2 slices, then memory channels" if model.l2 is not None else "memory channels"
    beside = "I/O ports (inner: in, outer: out; grey: no traffic)"
    text = f"large squares: routers with their CUs; above and below: {above};\nbeside: {beside}"
    axes.text(0.0, 0.0, text, transform=axes.transAxes, fontsize=7, va="top", color="#444444")


def channel_routers(model: GpuModel) -> list[int]:
    """Return the routers that receive memory channels in turn: the top row, then the bottom row."""
    rows, cols = model.noc.rows, model.noc.cols
    return [*range(cols), *(range((rows - 1) * cols, rows * cols) if rows > 1 else ())]


def port_routers(model: GpuModel) -> list[int]:
    """Return the routers that receive I/O ports in turn: the left column, then the right column."""
    rows, cols = model.noc.rows, model.noc.cols
    return [*range(0, rows * cols, cols), *(range(cols - 1, rows * cols, cols) if cols > 1 else ())]


# Crossbar


def _crossbar(result: ResourceUses, gpu: int, busy: Float64) -> Any:
    panels = list(_panels(result, gpu, busy))
    rows = -(-len(panels) // 2)
    figure, grid = subplots(rows, 2, figsize=(10, 0.5 + 1.5 * rows), sharey=True, squeeze=False)
    for axes, (name, values) in zip(grid.flat, panels, strict=False):
        axes.bar(np.arange(len(values)), 100 * values, width=1.0 if len(values) > 60 else 0.8, color=_BAR_COLOUR)
        axes.set_xlim(-0.6, len(values) - 0.4)
        axes.set_title(f"{name}: mean {100 * values.mean():.1f} %, most {100 * values.max():.1f} %", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in list(grid.flat)[len(panels) :]:
        axes.axis("off")
    top = 100 * max(float(values.max()) for _, values in panels)
    grid[0, 0].set_ylim(0, max(5.0, 1.1 * top))
    figure.supylabel("busy of the time (%)", fontsize=9)
    return figure


def _panels(result: ResourceUses, gpu: int, busy: Float64) -> Iterator[tuple[str, Float64]]:
    """Yield the bar charts: the crossbar's links by their other end, memory, L2, lanes of ports."""
    for kind, words in (("cu", "CUs"), ("channel", "memory channels"), ("port", "I/O ports")):
        utilisation = _numbered(result, kind, busy)
        yield f"{words} into the crossbar", utilisation["out"]
        yield f"crossbar into {words}", utilisation["in"]
    ports = port_busy(result, gpu)
    yield "lanes out of ports", np.array([out or 0.0 for out, _ in ports])
    yield "lanes into ports", np.array([into or 0.0 for _, into in ports])
    kinds = np.array(result.records.resources.kinds)
    yield "memory channels", busy[kinds == "memory"]
    if result.model.l2 is not None:
        yield "L2 slices", busy[kinds == "l2"]


def _numbered(result: ResourceUses, kind: str, busy: Float64) -> dict[str, Float64]:
    """Return the utilisation of the NoC links of CUs, channels or ports, in and out, by number."""
    count = {"cu": result.model.num_cus, "channel": result.model.memory.num_channels, "port": result.model.ports.count}[
        kind
    ]
    utilisation = {"out": np.zeros(count), "in": np.zeros(count)}
    pattern = re.compile(rf"{kind}(\d+)\.(out|in)")
    for name, value in zip(result.records.resources.names, busy.tolist(), strict=True):
        match = pattern.fullmatch(name)
        if match:
            utilisation[match[2]][int(match[1])] = value
    return utilisation
