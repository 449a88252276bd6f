"""Fit of a cluster's links to nccl-tests logs: bandwidth, latency, and the spread from run to run.

One factor on the bandwidth and one on the latency of all links inside a node, and the same between nodes, minimise the
logarithmic errors of trine's predictions. The library's own costs stay, so that the fitted latency holds all software
costs per step beyond them. A factor that the logs do not determine stays 1. The spread comes from repeated sizes, else
from the scatter of neighbouring sizes around a smooth curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import ClassVar

from trine.check.compare import measured_times, mismatches, options_of
from trine.check.determined import undetermined_factors
from trine.check.nccl_tests import NcclLog
from trine.check.two_runs import scatter
from trine.cluster.cluster import Cluster
from trine.cluster.copies import scaled
from trine.cluster.load import as_cluster, rescaled
from trine.cluster.parts import HOST_LINK, SCALE_OUT, SCALE_UP, Link
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from trine.common.arguments import named_arguments
from trine.common.units import format_bandwidth, format_time
from trine.errors import InputError
from trine.results.columns import to_row
from trine.results.report import Report, Row, Table
from trine.results.text import columns, wrapped_at

#: Errors beyond this fraction count linearly, so that single strays hardly move the fit.
HUBER = 0.1
#: Steps of the search in the logarithm of a factor, and how far a factor may lie from 1.
STEPS = (0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
MAX_LOG = math.log(50)
#: Weight of a factor's distance from 1: breaks ties between fits.
RIDGE = 1e-4
MIN_SIZES = 4
#: Sizes this close to a log's largest decide the bandwidth; training sends mostly such messages.
LARGE_OCTAVES = 3
#: Above this remaining error the links cannot explain the logs.
MAX_ERROR = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedLinks:
    """Factors on the links of one class. kinds: name, link before and link after of each kind of link."""

    link_class: str
    bandwidth: float
    latency: float
    kinds: tuple[tuple[str, Link, Link], ...]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One log: its nodes, GPUs, options, and the measured times of each size."""

    log: NcclLog
    nodes: int
    gpus: int
    options: CollectiveOptions
    times_ps: dict[int, list[int]]  # by size

    @property
    def machine(self) -> tuple[int, int]:
        return self.nodes, self.gpus


@dataclass(frozen=True, kw_only=True, repr=False)
class ClusterFit(Report):
    """The result of :func:`fit_cluster`: the fitted cluster, its factors, errors before and after, and the spread.

    error_before, error_after: root mean square of log(measured / predicted). spread: standard deviation of the
    logarithm of repeated times; spread_from: its source.
    """

    SCHEMA: ClassVar[str] = "calibrate-cluster"

    cluster: Cluster
    base: str
    logs: tuple[str, ...]
    num_sizes: int
    links: tuple[FittedLinks, ...]
    error_before: float
    error_after: float
    spread: float
    spread_from: str
    remarks: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Links that the logs do not measure."""
        return self.remarks

    @property
    def headline(self) -> str:
        """The errors before and after, and the spread, in one line."""
        return (
            f"{self.base} fitted to {self.num_sizes} sizes of {len(self.logs)} log{'s' if len(self.logs) > 1 else ''}: "
            f"error {self.error_before:.1%} before, {self.error_after:.1%} after; "
            f"spread {self.spread:.1%} ({self.spread_from})"
        )

    def details(self) -> str:
        """Return the headline, the links before and after, and notes."""
        table: list[tuple[str, ...]] = [("links", "bandwidth", "fitted", "latency", "fitted")]
        for fitted, name, old, new in self._kinds():
            rates = (format_bandwidth(link.bytes_per_s) for link in (old, new))
            times = (format_time(link.latency_ps) for link in (old, new))
            table.append((f"{name} ({fitted.link_class})", *rates, *times))
        notes = [line for note in self.remarks for line in wrapped_at("note", note, 6)]
        return "\n".join([*wrapped_at("", self.headline, 0), "", *columns(table), *(["", *notes] if notes else [])])

    def document(self) -> Row:
        """Return plain data, as documented in docs/reference/json-keys.csv."""
        row = to_row(self, "base", "num_sizes", "error_before", "error_after", "spread", "spread_from", "logs")
        return {**row, **self.tables(), "notes": list(self.remarks)}

    def tables(self) -> dict[str, Table]:
        """Return ``links``: each kind of link before and after."""
        rows = [
            {
                "link": name, "class": fitted.link_class,
                "bandwidth_factor": fitted.bandwidth, "latency_factor": fitted.latency,
                "bytes_per_s": old.bytes_per_s, "fitted_bytes_per_s": new.bytes_per_s,
                "latency_ps": old.latency_ps, "fitted_latency_ps": new.latency_ps,
            }
            for fitted, name, old, new in self._kinds()
        ]  # fmt: skip
        return {"links": rows}

    def _kinds(self) -> Iterator[tuple[FittedLinks, str, Link, Link]]:
        return ((fitted, *kind) for fitted in self.links for kind in fitted.kinds)

    def save(self, path: str | Path) -> None:
        """Write the fitted cluster as a cluster file (YAML)."""
        from trine.common.outputs import write_text

        write_text(path, self.cluster.to_yaml())


@named_arguments
def fit_cluster(base: Cluster | str | Path, logs: Sequence[NcclLog], *, name: str | None = None) -> ClusterFit:
    """Fit the links of ``base`` to logs of one machine, and return the fit with its cluster.

    base: one node; logs of several nodes join copies of it by its usual fabric. name: of the fitted cluster.
    Raises InputError for logs without a number of ranks, of more GPUs than the base has, or with too few sizes, and for
    a base with bandwidths per collective.
    """
    cluster = as_cluster(base)
    if cluster.collective_bandwidth is not None:
        message = (
            f"{cluster.name} gives collective_bandwidth, which hides its links from a fit: remove it from the base"
        )
        raise InputError(message, field="collective_bandwidth")
    runs = [_run_of(log, cluster) for log in logs]
    if not runs:
        raise InputError("give at least one log", field="LOG")
    num_sizes = sum(len(run.times_ps) for run in runs)
    if num_sizes < MIN_SIZES:
        message = f"{num_sizes} sizes are too few to fit: at least {MIN_SIZES} are needed"
        raise InputError(message, file=runs[0].log.path)
    classes = _classes(cluster, runs)
    largest = max(runs, key=lambda run: run.machine)
    machines = {run.machine: _machine(cluster, run) for run in runs}

    def residuals(factors: Sequence[float]) -> list[float]:
        changed = {key: _with_factors(each, classes, factors) for key, each in machines.items()}
        return [value for run in runs for value in _residuals(run, changed[run.machine])]

    limits = _limits(machines[largest.machine], classes)
    factors = _search(residuals, _weights(runs), limits)
    fixed = undetermined_factors(residuals, factors, limits)
    if fixed:
        factors = _search(residuals, _weights(runs), limits, fixed)
    before, after = residuals([0.0] * len(factors)), residuals(factors)
    spread, spread_from = _spread(runs, after)
    machine = machines[largest.machine] if largest.nodes > 1 else cluster
    errors = _rms(before), _rms(after)
    if fits_badly := errors[1] > MAX_ERROR:
        spread, spread_from = max(spread, errors[1]), "the error that the fit leaves"
    source = (
        f"bandwidth and latency fitted to {', '.join(Path(run.log.path).name for run in runs)} ({num_sizes} sizes; "
        f"error {errors[0]:.1%} before, {errors[1]:.1%} after); spread {spread:.1%}, {spread_from}"
    )
    fitted = replace(
        _with_factors(machine, classes, factors), name=name or f"{cluster.name}-fitted",
        evidence="assumed" if fits_badly else "measured",
        sources={**machine.sources, "calibrated": source}, spread=round(spread, 4),
    )  # fmt: skip
    log_files = tuple(run.log.path for run in runs)
    links = []
    for i, each in enumerate(classes):
        links.append(_fitted_links(machine, fitted, each, factors[2 * i : 2 * i + 2]))
    return ClusterFit(
        cluster=fitted, base=cluster.name, logs=log_files, num_sizes=num_sizes, links=tuple(links),
        error_before=errors[0], error_after=errors[1], spread=spread, spread_from=spread_from,
        remarks=(
            *_fit_notes(classes, factors, limits, fixed), *_remarks(cluster, classes, largest, errors[1]),
            *_of_other_machines(runs, machines),
        ),
    )  # fmt: skip


def _run_of(log: NcclLog, base: Cluster) -> _Run:
    if log.op is None or log.num_ranks is None:
        raise InputError("the log does not show its collective or its number of ranks", file=log.path)
    if log.unsound is not None:
        raise InputError(f"{log.unsound}: leave this log out", file=log.path)
    nodes = log.num_hosts or -(-log.num_ranks // len(base.gpus))
    if log.num_ranks > nodes * len(base.gpus):
        message = f"has {log.num_ranks} ranks on {nodes} nodes, and {base.name!r} has {len(base.gpus)} GPUs"
        raise InputError(message, file=log.path)
    times = {}
    for size, found in measured_times(log, in_place=False)[0]:
        times[size] = [ps for ps, _ in found]
    return _Run(log=log, nodes=nodes, gpus=log.num_ranks, options=options_of(log)[0], times_ps=times)


def _of_other_machines(runs: Sequence[_Run], machines: Mapping[tuple[int, int], Cluster]) -> tuple[str, ...]:
    """Return a note on each log whose GPUs, hosts or library are not those of the base."""
    notes = []
    for run in runs:
        for difference in mismatches(run.log, machines[run.machine]):
            notes.append(f"{Path(run.log.path).name} is of another machine: {difference}")
    return tuple(notes)


def _machine(base: Cluster, run: _Run) -> Cluster:
    """Return copies of the base with the run's GPUs."""
    is_whole = run.machine == (1, len(base.gpus))
    return base if is_whole else scaled(base, nodes=run.nodes, gpus=run.gpus)


def _classes(base: Cluster, runs: Sequence[_Run]) -> tuple[str, ...]:
    """Return the classes of links that the logs measure: inside a node first."""
    inside = SCALE_UP if base.link_table.of_class(SCALE_UP).any() else HOST_LINK
    node_counts = sorted(run.nodes for run in runs)
    classes = []
    for nodes in node_counts:
        classes.append(inside if nodes == 1 else SCALE_OUT)
    return tuple(dict.fromkeys(classes))


def _with_factors(cluster: Cluster, classes: Sequence[str], factors: Sequence[float]) -> Cluster:
    """Return the cluster with changed links. factors: logarithms, of bandwidth and latency of each class in turn."""
    if not any(factors):
        return cluster
    by_class = {
        each: dict(zip(("bytes_per_s", "latency_ps"), map(math.exp, factors[2 * i : 2 * i + 2]), strict=True))
        for i, each in enumerate(classes)
    }
    return replace(rescaled(cluster, by_class), cut_from=None, degraded_from=())


def _residuals(run: _Run, machine: Cluster) -> list[float]:
    """Return log(measured / predicted) of each size."""
    model = Collectives(machine, None, run.options)
    assert run.log.op is not None
    return [math.log(median(times) / model.predict(run.log.op, size).time_ps) for size, times in run.times_ps.items()]


def _weights(runs: Sequence[_Run]) -> list[float]:
    """Return the weight of each size: the largest sizes of a log, within LARGE_OCTAVES, weigh as much as the rest."""
    weights: list[float] = []
    for run in runs:
        is_large = [size >= max(run.times_ps) / 2**LARGE_OCTAVES for size in run.times_ps]
        large, small = sum(is_large), len(is_large) - sum(is_large)
        weights += [len(is_large) / (2 * (large if each else small)) if small else 1.0 for each in is_large]
    return weights


def _loss(values: Sequence[float], weights: Sequence[float], factors: Sequence[float]) -> float:
    far = (abs(value) for value in values)
    bends = (each * each / 2 if each <= HUBER else HUBER * (each - HUBER / 2) for each in far)
    total = sum(weight * bend for weight, bend in zip(weights, bends, strict=True))
    return total / len(values) + RIDGE * sum(factor * factor for factor in factors)


def _limits(machine: Cluster, classes: Sequence[str]) -> list[float]:
    """Return the largest logarithm of each factor: no bandwidth exceeds its data sheet."""
    limits = []
    for each in classes:
        room = [
            math.log(link.peak_bytes_per_s / link.bytes_per_s)
            for link in machine.link_table.numbers
            if link.link_class == each and link.peak_bytes_per_s is not None
        ]
        limits += [max(0.0, min(room, default=MAX_LOG)), MAX_LOG]
    return limits


def _search(
    residuals: Callable[[Sequence[float]], list[float]], weights: Sequence[float], limits: Sequence[float],
    fixed: Sequence[int] = (),
) -> list[float]:  # fmt: skip
    """Return the logarithms of the factors with the least loss: pattern search, one factor at a time.

    limits: the largest value of each. fixed: positions of factors that stay 0.
    """
    count = len(limits)
    known: dict[tuple[float, ...], float] = {}

    def loss_of(factors: Sequence[float]) -> float:
        key = tuple(round(factor, 6) for factor in factors)
        if key not in known:
            known[key] = _loss(residuals(factors), weights, factors)
        return known[key]

    best = [0.0] * count
    least = loss_of(best)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for i in range(count):
                for sign in (1, -1) if i not in fixed else ():
                    trial = [*best[:i], min(best[i] + sign * step, limits[i]), *best[i + 1 :]]
                    if trial[i] < -MAX_LOG or trial[i] == best[i]:
                        continue
                    loss = loss_of(trial)
                    if loss < least * (1 - 1e-9):
                        best, least, moved = trial, loss, True
                        break
    return best


def _spread(runs: Sequence[_Run], left: Sequence[float]) -> tuple[float, str]:
    """Return the standard deviation of the logarithm of a time from run to run, and its source.

    The same collective, size and number of GPUs in several logs, or several rows, are repetitions.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for run in runs:
        for size, times in run.times_ps.items():
            groups.setdefault((run.log.op, run.machine, size), []).extend(times)
    repeated = []
    for group in groups.values():
        if len(group) > 1:
            repeated.append([math.log(ps) for ps in group])
    degrees = sum(len(logs) - 1 for logs in repeated)
    if degrees < MIN_SIZES:
        ends = list(accumulate(len(run.times_ps) for run in runs))
        parts = [scatter(left[start:end]) for start, end in pairwise([0, *ends])]
        return max(parts), "from the scatter between neighbouring sizes, without repeated runs"
    squares = sum((value - sum(logs) / len(logs)) ** 2 for logs in repeated for value in logs)
    return math.sqrt(squares / degrees), f"from {len(repeated)} repeated sizes"


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def _fitted_links(before: Cluster, after: Cluster, link_class: str, factors: Sequence[float]) -> FittedLinks:
    pairs = zip(before.link_table.numbers, after.link_table.numbers, strict=True)
    kinds = {
        (old.medium or link_class, old.bytes_per_s): (old, new) for old, new in pairs if old.link_class == link_class
    }
    return FittedLinks(
        link_class=link_class, bandwidth=math.exp(factors[0]), latency=math.exp(factors[1]),
        kinds=tuple((name, old, new) for (name, _), (old, new) in kinds.items()),
    )  # fmt: skip


def _fit_notes(
    classes: Sequence[str], factors: Sequence[float], limits: Sequence[float], fixed: Sequence[int]
) -> Iterator[str]:
    """Yield a note for each factor that the logs do not determine, and for each bandwidth at its data sheet."""
    for i, factor in enumerate(factors):
        name = f"{('bandwidth', 'latency')[i % 2]} of {classes[i // 2]} links"
        if i in fixed:
            yield f"the logs do not determine the {name}: unchanged"
        elif i % 2 == 0 and factor >= limits[i] - 1e-9:
            yield f"the {name} is at its data sheet, which a fit never exceeds"


def _remarks(base: Cluster, classes: Sequence[str], largest: _Run, error: float) -> tuple[str, ...]:
    notes = {
        f"the remaining error of {error:.0%} is not the links': compare with trine check": error > MAX_ERROR,
        "no log of several nodes: the fabric keeps the catalogue's numbers":
            SCALE_OUT not in classes and base.fabric is not None,
        "no log of one node: links inside a node keep their numbers": classes == (SCALE_OUT,),
        f"the file holds {largest.nodes} joined nodes, because a fabric's numbers belong to its links":
            largest.nodes > 1,
    }  # fmt: skip
    return tuple(note for note, applies in notes.items() if applies)
