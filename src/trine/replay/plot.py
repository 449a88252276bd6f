"""Pictures of replays (extra ``plot``): how many wavefronts wait and when writes land; what sweeps found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trine.arrays import Int64
from trine.results.picture import COLOURS, matplotlib, subplots
from trine.results.report import Row

Spans = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_STYLES = {"spin": "o-", "mwait": "s--", "sleep": "^:"}
_COLUMNS = 5  # of the legend
_PANELS = (("time_s", "kernel time (us)", 1e6), ("flag_reads", "flag reads", 1), ("non_flag_reads", "other reads", 1))


def draw_waiting(title: str, acquires_ps: Spans, landed_ps: Int64, now_ps: int) -> Any:
    """Draw waiting wavefronts, and writes that have landed, against time; return the figure.

    acquires_ps: int64[wavefronts, 2], when each began to wait and ended; -1: never. landed_ps: int64[writes].
    """
    figure, axes = subplots(figsize=(7, 3.5))
    spans = acquires_ps[acquires_ps[:, 0] >= 0]
    ends = np.where(spans[:, 1] < 0, now_ps, spans[:, 1])
    _steps(axes, spans[:, 0], ends, now_ps)
    axes.set_xlabel("time, us")
    axes.set_ylabel("wavefronts that wait", color=COLOURS[0])
    _counts_from_0(axes)
    other = axes.twinx()
    landed = np.sort(landed_ps) / 1e6
    other.step(np.append(0, landed), np.arange(len(landed) + 1), where="post", color=COLOURS[3], lw=1)
    other.set_ylabel("writes of peers that have landed", color=COLOURS[3])
    _counts_from_0(other)
    axes.set_title(title, fontsize=9)
    return figure


def _counts_from_0(axes: Any) -> None:
    """Whole numbers, also where there are none."""
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.yaxis.get_major_locator().set_params(integer=True)


def _steps(axes: Any, starts: Any, ends: Any, now_ps: int) -> None:
    at = np.concatenate([starts, ends, [0, now_ps]])
    change = np.concatenate([np.ones(len(starts)), -np.ones(len(ends)), [0, 0]])
    order = np.argsort(at, kind="stable")
    axes.fill_between(at[order] / 1e6, np.cumsum(change[order]), step="post", color=COLOURS[0], alpha=0.3)
    axes.step(at[order] / 1e6, np.cumsum(change[order]), where="post", color=COLOURS[0], lw=1)


def draw_grid(curves: Mapping[str, list[Row]], axis: str, label: str, scale: float, title: str) -> Any:
    """Draw the kernel's time, flag reads and other reads against the option with most values; return the figure.

    curves: rows by name, in the order of ``axis``, a key of rows whose values times ``scale`` are called ``label``.
    """
    below = -(-len(curves) // _COLUMNS) if len(curves) > 1 else 0
    figure, panels = subplots(1, len(_PANELS), figsize=(11, 3.4 + 0.17 * below))
    colours = _colours(list(curves))
    for (key, panel, unit), axes in zip(_PANELS, panels, strict=True):
        for name, rows in curves.items():
            x = [float(row[axis]) * scale for row in rows]  # type: ignore[arg-type]
            style = _STYLES[str(rows[0]["sync"])]
            y = [float(row[key]) * unit for row in rows]  # type: ignore[arg-type]
            axes.plot(x, y, style, ms=3, color=colours[name], label=name)
        axes.set_xlabel(label)
        axes.set_title(panel, fontsize=9)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=10)
    if below:
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=_COLUMNS, fontsize=7, frameon=False)
    return figure


def _colours(names: list[str]) -> dict[str, Any]:
    """One for each workload, whichever way it waits: that is the style; one way to wait each where nothing else is."""
    workloads = list(dict.fromkeys(name.rpartition(", ")[0] for name in names))
    if len(workloads) == 1:
        return dict(zip(names, COLOURS, strict=False))
    many = matplotlib().colormaps["viridis"]
    shown = COLOURS if len(workloads) <= len(COLOURS) else [many(i / len(workloads)) for i in range(len(workloads))]
    found = dict(zip(workloads, shown, strict=False))
    return {name: found[name.rpartition(", ")[0]] for name in names}
