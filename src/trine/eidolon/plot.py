"""Pictures of replays (extra ``plot``): how many wavefronts wait and when writes land; what sweeps found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trine.errors import InputError
from trine.results.plot import pyplot, save
from trine.units import format_time

if TYPE_CHECKING:
    from trine.eidolon.result import EidolonResult
    from trine.eidolon.sweep import Sweep

ENDINGS = (".png", ".svg", ".pdf")
#: Okabe and Ito, 2008: apart for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PANELS = (("flag_reads", "flag reads"), ("non_flag_reads", "non-flag reads"), ("wall_s", "wall time of trine, s"))


def check_ending(path: str | Path) -> None:
    """Raises InputError for what is no picture."""
    if not str(path).lower().endswith(ENDINGS):
        raise InputError(f"a picture is a file of {', '.join(ENDINGS)}", file=path)


def plot_waiting(result: EidolonResult, path: str | Path) -> None:
    """Draw waiting wavefronts, and writes that have landed, against time."""
    check_ending(path)
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    spans = result.acquires_ps[result.acquires_ps[:, 0] >= 0]
    ends = np.where(spans[:, 1] < 0, result.inside.time_ps, spans[:, 1])
    _steps(axes, spans[:, 0], ends, result.inside.time_ps)
    axes.set_xlabel("time, us")
    axes.set_ylabel("wavefronts that wait", color=_COLOURS[0])
    other = axes.twinx()
    landed = np.sort(result.incoming.time_ps) / 1e6
    other.step(np.append(0, landed), np.arange(len(landed) + 1), where="post", color=_COLOURS[1], lw=1)
    other.set_ylabel("writes of peers", color=_COLOURS[1])
    title = f"{result.work.program.name}, {result.inside.replayed}, {result.work.way}"
    axes.set_title(f"{title}: {format_time(result.end_ps)}, {result.flag_reads:,} flag reads", fontsize=9)
    save(figure, plt, path)


def _steps(axes: Any, starts: Any, ends: Any, now_ps: int) -> None:
    at = np.concatenate([starts, ends, [0, now_ps]])
    change = np.concatenate([np.ones(len(starts)), -np.ones(len(ends)), [0, 0]])
    order = np.argsort(at, kind="stable")
    axes.fill_between(at[order] / 1e6, np.cumsum(change[order]), step="post", color=_COLOURS[0], alpha=0.3)
    axes.step(at[order] / 1e6, np.cumsum(change[order]), where="post", color=_COLOURS[0], lw=1)


def plot_sweep(sweep: Sweep, path: str | Path) -> None:
    """Draw flag reads, non-flag reads and the time of the simulation against what varies most."""
    check_ending(path)
    if len(sweep.rows) < 2:
        raise InputError("one run is no curve: give several values", file=path)
    plt = pyplot()
    axis, label, scale = sweep.axis
    figure, panels = plt.subplots(1, len(_PANELS), figsize=(11, 3.4), layout="constrained")
    for (key, title), axes in zip(_PANELS, panels, strict=True):
        for number, (name, rows) in enumerate(sweep.curves(axis).items()):
            x = [float(row[axis]) * scale for row in rows]  # type: ignore[arg-type]
            axes.plot(x, [row[key] for row in rows], "o-", ms=3, color=_COLOURS[number % len(_COLOURS)], label=name)
        axes.set_xlabel(label)
        axes.set_title(title, fontsize=9)
        axes.set_ylim(bottom=0)
    if len(sweep.curves(axis)) > 1:
        panels[0].legend(fontsize=7)
    save(figure, plt, path)
