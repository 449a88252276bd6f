"""Plots of replays (extra ``plot``): waiting wavefronts and arriving writes over time, and the results of sweeps.

:func:`with_writes` adds the peers' writes to the target's timeline for https://ui.perfetto.dev, next to the tracks of
its workgroups. Each peer has a track, with an instant and its address for each write of data or of a flag. Counter
tracks above them accumulate bytes of data and flags. The packets contain the names themselves, since the target's
names are numbered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.gpu.peers import LOAD, MODELLED, STORE, Arrivals, PeerWrites
from trine.results import packets as pb
from trine.results.axes import heading, tidy, write_in_full
from trine.results.axes import title as write_title
from trine.results.packets import descriptor, integer, message, packet, text
from trine.results.picture import COLOURS, matplotlib, subplots
from trine.results.report import Row, Timeline

Spans = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_STYLES = {"spin": "o-", "mwait": "s--", "sleep": "^:"}
_COLUMNS = 5  # of the legend
_PANELS = (("time_s", "kernel time (µs)", 1e6), ("flag_reads", "flag reads", 1), ("non_flag_reads", "other reads", 1))


def draw_waiting(title: str, acquires_ps: Spans, landed_ps: Int64, now_ps: int) -> Any:
    """Draw waiting wavefronts and landed writes over time; return the figure.

    acquires_ps: int64[wavefronts, 2], start and end of each wait; -1: never. landed_ps: int64[writes].
    """
    figure, axes = subplots(figsize=(7, 3.5))
    spans = acquires_ps[acquires_ps[:, 0] >= 0]
    ends = np.where(spans[:, 1] < 0, now_ps, spans[:, 1])
    _steps(axes, spans[:, 0], ends, now_ps)
    axes.set_xlabel("time (µs)")
    axes.set_ylabel("wavefronts that wait", color=COLOURS[0])
    _counts_from_0(axes)
    write_axes = axes.twinx()
    landed = np.sort(landed_ps) / 1e6
    write_axes.step(np.append(0, landed), np.arange(len(landed) + 1), where="post", color=COLOURS[3], lw=1)
    write_axes.set_ylabel("writes of peers that have landed", color=COLOURS[3])
    _counts_from_0(write_axes)
    axes.set_xlim(0, max(1.03 * now_ps / 1e6, 1e-9))
    write_in_full(axes.xaxis)
    write_in_full(write_axes.yaxis)
    write_title(axes, title)
    axes.spines["top"].set_visible(False)
    write_axes.spines["top"].set_visible(False)
    return figure


def _counts_from_0(axes: Any) -> None:
    """Start the y axis at 0 and show integers only, even without data."""
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.yaxis.get_major_locator().set_params(integer=True)


def _steps(axes: Any, starts: Any, ends: Any, now_ps: int) -> None:
    times = np.concatenate([starts, ends, [0, now_ps]])
    change = np.concatenate([np.ones(len(starts)), -np.ones(len(ends)), [0, 0]])
    order = np.argsort(times, kind="stable")
    axes.fill_between(times[order] / 1e6, np.cumsum(change[order]), step="post", color=COLOURS[0], alpha=0.3)
    axes.step(times[order] / 1e6, np.cumsum(change[order]), where="post", color=COLOURS[0], lw=1)


def draw_grid(curves: Mapping[str, list[Row]], axis: str, label: str, scale: float, title: str) -> Any:
    """Draw the kernel's time, flag reads and other reads against the option with most values; return the figure.

    curves: rows by name, in the order of ``axis``, the rows' key for the x axis. x is its value times ``scale``.
    """
    legend_rows = -(-len(curves) // _COLUMNS) if len(curves) > 1 else 0
    figure, panels = subplots(1, len(_PANELS), figsize=(11, 3.4 + 0.17 * legend_rows))
    colours = _colours(list(curves))
    for (key, panel, unit), axes in zip(_PANELS, panels, strict=True):
        for name, rows in curves.items():
            x = [float(row[axis]) * scale for row in rows]  # type: ignore[arg-type]
            style = _STYLES[str(rows[0]["sync"])]
            y = [float(row[key]) * unit for row in rows]  # type: ignore[arg-type]
            axes.plot(x, y, style, ms=3, color=colours[name], label=name)
        axes.set_xlabel(label)
        write_title(axes, panel)
        axes.set_ylim(bottom=0)
        write_in_full(axes.yaxis)
        tidy(axes, "both")
    heading(figure, title)
    if legend_rows:
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=_COLUMNS, fontsize=7, frameon=False)
    return figure


def _colours(names: list[str]) -> dict[str, Any]:
    """Return a colour per workload (line styles show the way of waiting), or per curve for a single workload."""
    workloads = list(dict.fromkeys(name.rpartition(", ")[0] for name in names))
    if len(workloads) == 1:
        return dict(zip(names, COLOURS, strict=False))
    colour = matplotlib().colormaps["viridis"]
    palette: Sequence[Any] = COLOURS
    if len(workloads) > len(COLOURS):
        palette = [colour(i / len(workloads)) for i in range(len(workloads))]
    by_workload = dict(zip(workloads, palette, strict=False))
    return {name: by_workload[name.rpartition(", ")[0]] for name in names}


#: Most instants in one timeline, in addition to the target's slices.
MAX_WRITES = 200_000
#: First track number, above all of the target's track numbers.
_FIRST = 1 << 40
_NOTHING = message(pb.COUNTER, b"")


class Writes(NamedTuple):
    """Writes that arrived while kernels ran, sorted by time. value: the flag's value, 0 for data."""

    time_ps: Int64
    peer: Int64
    address: Int64
    size_bytes: Int64
    value: Int64


def with_writes(timeline: Timeline, outside: PeerWrites | Arrivals, line_bytes: int, end_ps: int) -> Timeline:
    """Return the target's timeline with tracks of its peers' writes up to ``end_ps``."""
    writes = _writes(outside, line_bytes, end_ps)
    moment = "as the port delivers them"
    if isinstance(outside, PeerWrites):
        moment = "as they set out" if outside.fabric == MODELLED else "as they land"
    notes = timeline.notes
    if len(writes.time_ps) > MAX_WRITES:
        notes = (*notes, f"the last {len(writes.time_ps) - MAX_WRITES:,} writes of peers are counted, but not drawn")
    return Timeline(_packets(timeline.packets, writes, moment), notes)


def _writes(outside: PeerWrites | Arrivals, line_bytes: int, end_ps: int) -> Writes:
    flags = outside.semaphore >= 0
    if isinstance(outside, Arrivals):
        mask = (outside.kind != LOAD) & (outside.time_ps <= end_ps)
        peer, value, size = outside.rank, np.where(flags, outside.amount, 0), line_bytes * (outside.kind == STORE)
    else:
        mask = outside.time_ps <= end_ps
        peer, value, size = outside.peer, np.where(flags, outside.value, 0), outside.size_bytes * ~flags
    columns = (column[mask].astype(np.int64) for column in (outside.time_ps, peer, outside.address, size, value))
    writes = Writes(*columns)
    order = np.lexsort((writes.address, writes.peer, writes.time_ps))
    return Writes(*(column[order] for column in writes))


def _packets(target_packets: Iterator[bytes], writes: Writes, moment: str) -> Iterator[bytes]:
    yield from target_packets
    yield descriptor(_FIRST, f"writes of peers, {moment}", 0, 1)
    flags = writes.value > 0
    for uuid, name, extra, increments in (
        (_FIRST + 1, "data so far", message(pb.COUNTER, integer(pb.UNIT, pb.UNIT_BYTES)), writes.size_bytes),
        (_FIRST + 2, "flags so far", _NOTHING, flags.astype(np.int64)),
    ):
        yield descriptor(uuid, name, _FIRST, uuid - _FIRST, extra)
        yield from _counter(uuid, writes.time_ps, increments)
    for peer in np.unique(writes.peer).tolist():
        yield descriptor(_FIRST + 3 + peer, f"rank {peer}", _FIRST, 3 + peer)
    rows = zip(*(column[:MAX_WRITES].tolist() for column in writes), strict=True)
    for time_ps, peer, address, size_bytes, value in rows:
        yield _instant(_FIRST + 3 + peer, time_ps, address, size_bytes, value)


def _counter(uuid: int, time_ps: Int64, increments: Int64) -> Iterator[bytes]:
    """Yield the packets of a running sum, one per instant at which it changes."""
    changes = increments > 0
    times, last_rows = np.unique(time_ps[changes][::-1], return_index=True)
    totals = np.cumsum(increments[changes])[::-1][last_rows]
    head = integer(pb.TYPE, pb.COUNT) + integer(pb.TRACK, uuid)
    for at_ps, total in zip(times.tolist(), totals.tolist(), strict=True):
        event = message(pb.TRACK_EVENT, head + integer(pb.COUNTER_VALUE, total))
        yield packet(integer(pb.TIMESTAMP, at_ps // pb.PS_PER_NS) + event + pb.SUFFIX)


def _instant(uuid: int, time_ps: int, address: int, size_bytes: int, value: int) -> bytes:
    annotations = {"address": address, "time_ps": time_ps}
    if size_bytes:
        annotations["bytes"] = size_bytes
    if value:
        annotations["value"] = value
    content = [integer(pb.TYPE, pb.INSTANT), integer(pb.TRACK, uuid), text(pb.EVENT_NAME, "flag" if value else "data")]
    content += [
        message(pb.ANNOTATION, text(pb.KEY_NAME, key) + integer(pb.UINT, number)) for key, number in annotations.items()
    ]
    event = message(pb.TRACK_EVENT, b"".join(content))
    return packet(integer(pb.TIMESTAMP, time_ps // pb.PS_PER_NS) + event + pb.SUFFIX)
