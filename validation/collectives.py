"""Comparison of predicted collectives with the bundled measurements: replay, errors, bands.

The error of a point is predicted / measured time - 1. Statistics weight each point by 1 / (runs of the same machine,
collective, GPUs and settings), so that a machine measured with four versions of a library does not count four times.

:func:`left_out` predicts each point with parameters fitted without its family of machines. Fitting takes minutes, so
``benchmarks/fit_collectives.py --leave`` writes the predictions to presets/measured/left_out.csv. Each row also holds
the measured time and the model's prediction with all parameters. If the model's predictions or the points change, the
table must be written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, cast

import numpy as np

from trine.cluster import Cluster
from trine.cluster.parts import LIBRARIES
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveTime
from trine.common._version import __version__
from trine.errors import InputError, SpecError, nearest
from trine.results.columns import column
from trine.results.report import Row, Table
from validation.harness import Errors, Validation, grouped, quantile, read_table
from validation.measured import COUNTED, FIT, FOLDER, HELD_OUT, MeasuredPoint, Series, load_measurements

#: Returns the times of a series' points, in order; raises InputError or SpecError if it cannot predict the series.
Predictor = Callable[[Series], list[CollectiveTime]]

MIB = 1 << 20
#: Name, first size, first size that is too large.
SIZE_BANDS = (("below 8 KiB", 0, 8 << 10), ("8 KiB to 1 MiB", 8 << 10, MIB), ("from 1 MiB", MIB, 1 << 62))
BELOW, FROM = "below 1 MiB", "from 1 MiB"
#: Targets of issue 3: median and 90th percentile of the absolute error, share inside the band, median high / low.
TARGETS = {BELOW: (0.25, 0.40, 0.80, 2.5), FROM: (0.12, 0.40, 0.80, 1.6)}
_TARGET_KEYS = ("median_error_max", "p90_error_max", "share_inside_min", "median_width_max")
#: Name of the total over points that do not count.
NOT_COUNTED = "not counted (noisy, degraded)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Measured point with its prediction; the module's docstring defines ``weight``."""

    series: Series
    point: MeasuredPoint
    predicted: CollectiveTime
    weight: float

    @property
    def error(self) -> float:
        """Predicted / measured time - 1; positive if the prediction is too slow."""
        return self.predicted.time_ps / self.point.time_ps - 1

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the predicted band."""
        return self.predicted.low_ps <= self.point.time_ps <= self.predicted.high_ps

    @property
    def width(self) -> float:
        """High / low of the band."""
        return self.predicted.high_ps / max(1, self.predicted.low_ps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics(Errors):
    """Weighted statistics of some points. bias: median signed error. at: the point with the largest absolute error."""

    num_series: int
    inside: float = field(metadata=column("share_inside"))
    width: float = field(metadata=column("median_width"))
    at: Compared

    def meets(self, band: str) -> bool:
        """Return whether the points meet the issue's targets for this size band (BELOW or FROM)."""
        return not self.missed(band)

    def missed(self, band: str) -> list[str]:
        """Return the missed targets for this size band, as text."""
        middle, tail, share, width = TARGETS[band]
        wrong = {
            f"median > {middle:.0%}": self.median > middle,
            f"p90 > {tail:.0%}": self.p90 > tail,
            f"inside < {share:.0%}": self.inside < share,
            f"width > {width}": self.width > width,
        }
        return [name for name, is_missed in wrong.items() if is_missed]

    def row(self) -> Row:
        return {
            "num_points": self.count, "num_series": self.num_series, "median_error": self.median, "p90_error": self.p90,
            "bias": self.bias, "share_inside": self.inside, "median_width": self.width,
            "worst_series": self.at.series.name, "worst_size_bytes": self.at.point.size_bytes,
            "worst_error": self.at.error,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class CollectiveValidation(Validation):
    """All compared points, and the skipped series with reasons: (series, why).

    left_out: the same points, predicted with parameters fitted without their machines. notes: warnings about those.
    """

    SCHEMA: ClassVar[str] = "validate-collectives"

    compared: tuple[Compared, ...]
    skipped: tuple[tuple[Series, str], ...]
    left_out: CollectiveValidation | None = None
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Numbers of points and series behind the statistics, as text."""
        points = self.compared
        return (
            f"{len(points)} points of {len({x.series.number for x in points})} series predicted, "
            f"{len(self.counted)} count; error = predicted / measured time - 1"
        )

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """Return one line per total: points, median and 90th percentile of the absolute error."""
        yield [
            f"{name} {band}: {s.count} points, median {s.median:.1%}, 90 % within {s.p90:.1%}"
            for name, band, s in self.totals()
        ]

    def document(self) -> Row:
        """Return ``totals``, ``left_out_totals``, ``groups`` (worst first), ``points`` and ``skipped``; times in us,
        errors as fractions."""
        targets = {band: dict(zip(_TARGET_KEYS, values, strict=True)) for band, values in TARGETS.items()}
        left_out = [] if self.left_out is None else _totals_json(self.left_out)
        group_rows = [
            {"machine": machine, "op": op, "sizes": band, **stats.row()} for machine, op, band, stats in self.groups()
        ]
        point_rows = [_point_json(each) for each in self.compared]
        skipped = [{"series": series.name, "why": why} for series, why in self.skipped]
        return {
            "trine_version": __version__,
            "targets": targets,
            "totals": _totals_json(self),
            "left_out_totals": left_out,
            "notes": list(self.notes),
            "groups": group_rows,
            "points": point_rows,
            "skipped": skipped,
        }

    def tables(self) -> dict[str, Table]:
        """Return ``totals``, ``groups`` and ``points`` of :meth:`document`."""
        document = self.document()
        return {name: cast(list[Row], document[name]) for name in ("totals", "groups", "points")}

    @property
    def counted(self) -> tuple[Compared, ...]:
        """Points with a quality that counts."""
        return tuple(each for each in self.compared if each.point.quality in COUNTED)

    def totals(self) -> list[tuple[str, str, Statistics]]:
        """Return (name, size band, statistics) for all, fitted and held-out machines, one and several nodes, and for
        points that do not count."""
        one_node = [each for each in self.counted if each.series.num_nodes <= 1]
        several_nodes = [each for each in self.counted if each.series.num_nodes > 1]
        not_counted = [x for x in self.compared if x.point.quality not in COUNTED]
        groups: list[tuple[str, Iterable[Compared]]] = [
            ("all machines", self.counted),
            ("machines used for fitting", _of_split(self.counted, FIT)),
            ("held-out machines", _of_split(self.counted, HELD_OUT)),
            ("one node", one_node),
            ("several nodes", several_nodes),
            ("every point, counted or not", self.compared),
            (NOT_COUNTED, not_counted),
        ]
        totals = []
        for name, points in groups:
            for band in (BELOW, FROM):
                if (
                    stats := statistics([p for p in points if (p.point.size_bytes >= MIB) == (band == FROM)])
                ) is not None:
                    totals.append((name, band, stats))
        return totals

    def groups(self) -> list[tuple[str, str, str, Statistics]]:
        """Return (machine, op, size band, statistics) of counted points, worst median first."""
        members = grouped(self.counted, lambda each: (each.series.machine.name, each.series.op, _size_band(each)))
        rows = []
        for key, points in members.items():
            if (stats := statistics(points)) is not None:
                rows.append((*key, stats))
        return sorted(rows, key=lambda row: (-row[3].median, row[:3]))

    def worst(self, count: int) -> list[Compared]:
        """Return the counted points with the largest factor between prediction and measurement, one per series."""
        ranked = sorted(self.counted, key=lambda each: -abs(np.log1p(each.error)))
        by_series = grouped(ranked, lambda each: each.series.number)
        return [points[0] for points in by_series.values()][:count]


def _totals_json(validation: CollectiveValidation) -> list[Row]:
    return [
        {"machines": name, "sizes": band, **stats.row(), "meets_targets": stats.meets(band)}
        for name, band, stats in validation.totals()
    ]


def _point_json(pair: Compared) -> Row:
    return {
        "series": pair.series.name, "machine": pair.series.machine.name, "op": pair.series.op,
        "num_gpus": pair.series.num_gpus, "size_bytes": pair.point.size_bytes, "measured_us": pair.point.time_ps / 1e6,
        "time_us": pair.predicted.time_ps / 1e6, "low_us": pair.predicted.low_ps / 1e6,
        "high_us": pair.predicted.high_ps / 1e6, "algorithm": pair.predicted.algorithm,
        "protocol": pair.predicted.protocol, "quality": pair.point.quality, "weight": pair.weight,
    }  # fmt: skip


def by_library(series: Series) -> list[CollectiveTime]:
    """Predict with the library model. Raises InputError if trine has no model of the library or no such cluster."""
    machine = series.machine
    if series.fault:
        raise InputError(series.fault)
    if machine.library not in LIBRARIES:
        raise InputError(f"{machine.library} is not modelled")
    cluster = series.load_cluster()
    if cluster is None:
        raise InputError(f"no cluster stands for it: {machine.reason}")
    library = Collectives(cluster, _group(series, cluster), series.options)
    return [library.predict(series.op, point.size_bytes) for point in series.points]


def validate_collectives(
    series: Sequence[Series] | None = None, predictor: Predictor = by_library
) -> CollectiveValidation:
    """Predict every series and compare; series that cannot be predicted are listed as skipped, with the reason.

    ``predictor``: a model to use instead of the library's.
    """
    series = load_measurements() if series is None else series
    runs = Counter(run.weight_key for run in series)
    compared: list[Compared] = []
    skipped = []
    for run in series:
        try:
            times = predictor(run)
        except (InputError, SpecError) as error:
            skipped.append((run, str(error)))
            continue
        weight = 1 / runs[run.weight_key]
        compared += [
            Compared(series=run, point=point, predicted=time, weight=weight)
            for point, time in zip(run.points, times, strict=True)
        ]
    return CollectiveValidation(compared=tuple(compared), skipped=tuple(skipped))


def select(series: Sequence[Series], machines: Sequence[str]) -> list[Series]:
    """Return the series of some machines or families. Raises InputError for an unknown name."""
    machine_names = {run.machine.name for run in series}
    families = {run.machine.family for run in series}
    names = machine_names | families
    for name in machines:
        if name not in names:
            raise InputError(f"no measurements of {name!r}{nearest(name, names)}", field="--machine")
    return [run for run in series if {run.machine.name, run.machine.family} & set(machines)]


def statistics(points: Sequence[Compared]) -> Statistics | None:
    """Return weighted statistics; None without points."""
    if not points:
        return None
    weights = np.array([each.weight for each in points])
    errors = np.array([each.error for each in points])
    series_numbers = {each.series.number for each in points}
    are_inside = [each.inside for each in points]
    widths = [each.width for each in points]
    return Statistics.of(
        errors, weights, bias=quantile(errors, weights, 0.5), num_series=len(series_numbers),
        inside=float(np.sum(weights[are_inside]) / np.sum(weights)), width=quantile(np.array(widths), weights, 0.5),
        at=max(points, key=lambda each: abs(each.error)),
    )  # fmt: skip


def _group(series: Series, cluster: Cluster) -> tuple[int, ...]:
    """Return the GPUs of a run: the first ones, because the cluster file describes the whole machine."""
    num_gpus = len(cluster.gpus)
    if num_gpus < series.num_gpus:
        raise SpecError(f"cluster {cluster.name!r} has {num_gpus} GPUs, the run had {series.num_gpus}")
    return tuple(range(series.num_gpus))


def _size_band(compared: Compared) -> str:
    return next(name for name, low, high in SIZE_BANDS if low <= compared.point.size_bytes < high)


def _of_split(points: Iterable[Compared], split: str) -> list[Compared]:
    return [each for each in points if each.series.machine.split == split]


PATH = FOLDER / "left_out.csv"
HOW = "benchmarks/fit_collectives.py --leave"
_TIMES = ("predicted_us", "usual_us", "measured_us")


def left_out(validation: CollectiveValidation, path: Path | None = None) -> tuple[CollectiveValidation | None, str]:
    """Return the comparison with left-out predictions, for the points that have one, and a warning or "".

    The band keeps its factors around the left-out time. Returns (None, why) if the table does not exist. A table of an
    older model or different data is still compared, with a warning.

    Raises
    ------
    SpecError: The file is not such a table.
    """
    path = path or PATH
    if not path.is_file():
        return None, f"no left-out predictions: {HOW} writes them"
    try:
        table = {}
        for row in read_table(path):
            table[(int(row["series"]), int(row["size_bytes"]))] = [float(row[name]) for name in _TIMES]
    except (KeyError, ValueError) as error:
        raise SpecError(f"not a table of series, size_bytes, {', '.join(_TIMES)}: {error}", file=path) from None
    times = [(pair, table.get((pair.series.number, pair.point.size_bytes))) for pair in validation.compared]
    with_time = [(pair, entry) for pair, entry in times if entry is not None]
    as_written = all(
        _is_close(pair.predicted.time_ps, usual_us) and _is_close(pair.point.time_ps, measured_us)
        for pair, (_, usual_us, measured_us) in with_time
    )
    is_whole = all(
        entry is not None or pair.point.quality not in COUNTED or pair.series.machine.split != FIT
        for pair, entry in times
    )
    stale = "" if as_written and is_whole else f"left-out predictions are of an older model: run {HOW}"
    compared = tuple(_with_time(pair, time_us) for pair, (time_us, *_) in with_time)
    return CollectiveValidation(compared=compared, skipped=()), stale


def _is_close(time_ps: int, time_us: float) -> bool:
    """Return whether two times agree to the table's precision of six digits."""
    return abs(time_ps / 1e6 - time_us) <= 2e-5 * time_us


def _with_time(compared: Compared, time_us: float) -> Compared:
    usual = compared.predicted
    factor = time_us * 1e6 / usual.time_ps
    times = {name: round(getattr(usual, name) * factor) for name in ("time_ps", "low_ps", "high_ps")}
    return replace(compared, predicted=replace(usual, **times))
