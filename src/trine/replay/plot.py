"""Pictures of replays (extra ``plot``): how many wavefronts wait and when writes land; what sweeps found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trine.errors import InputError
from trine.results.picture import COLOURS, check_ending, pyplot, save
from trine.units import format_time

if TYPE_CHECKING:
    from trine.replay.result import EidolonResult
    from trine.replay.sweep import Sweep

_STYLES = {"spin": "o-", "mwait": "s--", "sleep": "^:"}
_COLUMNS = 5  # of the legend
_PANELS = (("flag_reads", "flag reads"), ("non_flag_reads", "non-flag reads"), ("wall_s", "wall time of trine, s"))


def plot_waiting(result: EidolonResult, path: str | Path) -> None:
    """Draw waiting wavefronts, and writes that have landed, against time."""
    check_ending(path)
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    spans = result.acquires_ps[result.acquires_ps[:, 0] >= 0]
    ends = np.where(spans[:, 1] < 0, result.inside.time_ps, spans[:, 1])
    _steps(axes, spans[:, 0], ends, result.inside.time_ps)
    axes.set_xlabel("time, us")
    axes.set_ylabel("wavefronts that wait", color=COLOURS[0])
    _counts_from_0(axes)
    other = axes.twinx()
    landed = np.sort(result.incoming.time_ps) / 1e6
    other.step(np.append(0, landed), np.arange(len(landed) + 1), where="post", color=COLOURS[3], lw=1)
    other.set_ylabel("writes of peers that have landed", color=COLOURS[3])
    _counts_from_0(other)
    title = f"{result.work.program.name}, {result.inside.replayed}, {result.work.way}"
    axes.set_title(f"{title}: {format_time(result.end_ps)}, {result.flag_reads:,} flag reads", fontsize=9)
    save(figure, plt, path)


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


def plot_sweep(sweep: Sweep, path: str | Path) -> None:
    """Draw flag reads, non-flag reads and the time of the simulation against what varies most."""
    check_ending(path)
    if len(sweep.rows) < 2:
        raise InputError("one run is no curve: give several values", file=path)
    plt = pyplot()
    axis, label, scale = sweep.axis
    curves = sweep.curves(axis)
    below = -(-len(curves) // _COLUMNS) if len(curves) > 1 else 0
    figure, panels = plt.subplots(1, len(_PANELS), figsize=(11, 3.4 + 0.17 * below), layout="constrained")
    colours = _colours(list(curves), plt)
    for (key, title), axes in zip(_PANELS, panels, strict=True):
        for name, rows in curves.items():
            x = [float(row[axis]) * scale for row in rows]  # type: ignore[arg-type]
            style = _STYLES[str(rows[0]["sync"])]
            axes.plot(x, [row[key] for row in rows], style, ms=3, color=colours[name], label=name)
        axes.set_xlabel(label)
        axes.set_title(title, fontsize=9)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    if below:
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=_COLUMNS, fontsize=7, frameon=False)
    save(figure, plt, path)


def _colours(names: list[str], plt: Any) -> dict[str, Any]:
    """One for each workload, whichever way it waits: that is the style; one way to wait each where nothing else is."""
    workloads = list(dict.fromkeys(name.rpartition(", ")[0] for name in names))
    if len(workloads) == 1:
        return dict(zip(names, COLOURS, strict=False))
    many = plt.get_cmap("viridis")
    shown = COLOURS if len(workloads) <= len(COLOURS) else [many(i / len(workloads)) for i in range(len(workloads))]
    found = dict(zip(workloads, shown, strict=False))
    return {name: found[name.rpartition(", ")[0]] for name in names}
