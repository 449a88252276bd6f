"""Leave-one-machine-out: each point predicted by parameters that its family of machines had no part in.

Fitting takes minutes, so ``benchmarks/fit_collectives.py --leave`` writes the predictions to
presets/measured/left_out.csv. Each of its rows also holds the measured time and what the model said with all
parameters: a model that answers otherwise, or other points, need a new table.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from trine.errors import SpecError
from trine.studies.measured import FIT, FOLDER
from trine.studies.validate import Compared, Validation

PATH = FOLDER / "left_out.csv"
HOW = "benchmarks/fit_collectives.py --leave"
_TIMES = ("predicted_us", "usual_us", "measured_us")


def left_out(validation: Validation, path: Path | None = None) -> tuple[Validation | None, str]:
    """The same comparison with the left-out predictions, of those points that have one; and what is wrong with it.

    The band keeps its factors around the other time. (None, why) where there is no table; a table of another model or
    other data is still compared, and the second value says so.

    Raises
    ------
    SpecError: a file that is not such a table.
    """
    path = path or PATH
    if not path.is_file():
        return None, f"no left-out predictions: {HOW} writes them"
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        try:
            table = {(int(r["series"]), int(r["size_bytes"])): tuple(float(r[name]) for name in _TIMES) for r in rows}
        except (KeyError, ValueError, TypeError) as error:
            raise SpecError(f"not a table of series, size_bytes, {', '.join(_TIMES)}: {error}", file=path) from None
    found = tuple(
        _with_time(each, times[0])
        for each in validation.compared
        if (times := table.get((each.series.number, each.point.size_bytes))) is not None
    )
    as_written = all(
        _near(each.predicted.time_ps, times[1]) and _near(each.point.time_ps, times[2])
        for each in validation.compared
        if (times := table.get((each.series.number, each.point.size_bytes))) is not None
    )
    missing = [
        each
        for each in validation.counted
        if each.series.machine.split == FIT and (each.series.number, each.point.size_bytes) not in table
    ]
    stale = "" if as_written and not missing else f"left-out predictions are of an older model: run {HOW}"
    return Validation(compared=found, skipped=()), stale


def _near(time_ps: int, time_us: float) -> bool:
    """To the six digits that the table has."""
    return abs(time_ps / 1e6 - time_us) <= 2e-5 * time_us


def _with_time(each: Compared, time_us: float) -> Compared:
    usual = each.predicted
    factor = time_us * 1e6 / usual.time_ps
    times = {name: round(getattr(usual, name) * factor) for name in ("time_ps", "low_ps", "high_ps")}
    return replace(each, predicted=replace(usual, **times))
