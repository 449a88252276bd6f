"""Repeated runs with different seeds: the spread of their times."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trine.common.arguments import takes
from trine.common.evidence import Evidence
from trine.common.observer import ignore, observing
from trine.common.units import format_time
from trine.errors import InputError
from trine.parallel.stragglers import Jitter, Stragglers
from trine.results.axes import tidy, title, write_in_full
from trine.results.headline import WidenedBand
from trine.results.picture import COLOURS, subplots
from trine.results.report import Report, Row, Table
from trine.results.text import wrapped_at
from trine.training.options import SimulateOptions, observed

if TYPE_CHECKING:
    from trine.graph.workload import Workload
    from trine.parallel.plan import Plan
    from trine.results import Result

#: Perturbation of runs without other random inputs: far below the variation of any clock or kernel.
PERTURBATION = Jitter(distribution="normal", spread=1e-6)
MAX_REPEATS = 100_000
#: Bins of the printed histogram, and its width in characters.
BINS, WIDTH = 10, 40


@dataclass(frozen=True, kw_only=True, repr=False)
class EnsembleResult(Report):
    """Times of repeated runs: ``times_ps[i]`` is the time with ``seeds[i]``, in whole picoseconds.

    Percentiles interpolate between the sorted times (numpy's default); ``std_ps`` is the sample's (n - 1). finished:
    False if Ctrl-C came before the last run.
    """

    SCHEMA: ClassVar[str] = "ensemble"

    seeds: tuple[int, ...]
    times_ps: tuple[int, ...]
    finished: bool = True

    def percentile_ps(self, percent: float) -> float:
        """Return the time below which ``percent`` % of the runs lie."""
        return float(np.percentile(np.array(self.times_ps, np.float64), percent))

    @property
    def min_ps(self) -> int:
        return min(self.times_ps)

    @property
    def max_ps(self) -> int:
        return max(self.times_ps)

    @property
    def median_ps(self) -> float:
        return self.percentile_ps(50)

    @property
    def p5_ps(self) -> float:
        return self.percentile_ps(5)

    @property
    def p95_ps(self) -> float:
        return self.percentile_ps(95)

    @cached_property
    def mean_ps(self) -> float:
        return math.fsum(self.times_ps) / len(self.times_ps)

    @cached_property
    def std_ps(self) -> float:
        """Sample standard deviation, 0 for a single run."""
        if len(self.times_ps) == 1:
            return 0.0
        return math.sqrt(math.fsum((t - self.mean_ps) ** 2 for t in self.times_ps) / (len(self.times_ps) - 1))

    @property
    def headline(self) -> str:
        """Number of runs, their median and range."""
        return (
            f"{len(self.seeds)} runs: median {format_time(round(self.median_ps))}, "
            f"{format_time(self.min_ps)} to {format_time(self.max_ps)}" + ("" if self.finished else ", stopped")
        )

    def tables(self) -> dict[str, Table]:
        """Return ``runs``, one row per seed."""
        return {"runs": [{"seed": seed, "time_ps": t} for seed, t in zip(self.seeds, self.times_ps, strict=True)]}

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``histogram``."""
        return {"histogram": self._draw}

    def _draw(self) -> Any:
        figure, axes = subplots(figsize=(6, 3.5))
        axes.hist([time / 1e6 for time in self.times_ps], bins=min(BINS, len(self.times_ps)), color=COLOURS[0])
        axes.set_xlabel("time (µs)")
        axes.set_ylabel("runs")
        write_in_full(axes.xaxis)
        title(axes, self.headline)
        tidy(axes, "y")
        return figure

    def document(self) -> Row:
        """Return plain data: statistics in seconds, the time of each seed in picoseconds."""
        names = ("min", "p5", "median", "p95", "max", "mean", "std")
        return {
            "repeats": len(self.seeds),
            "finished": self.finished,
            **{f"{name}_s": getattr(self, f"{name}_ps") / 1e12 for name in names},
            **self.tables(),
        }

    def details(self) -> str:
        """Return the percentiles and a small histogram as text."""
        return "\n".join([*self.numbers(), *self._histogram()])

    def numbers(self) -> list[str]:
        """Return the percentiles, the mean and the standard deviation as lines of text."""
        parts = (("min", self.min_ps), ("5 %", self.p5_ps), ("median", self.median_ps), ("95 %", self.p95_ps),
                 ("max", self.max_ps))  # fmt: skip
        head = f"{len(self.seeds)} runs, seeds {self.seeds[0]} to {self.seeds[-1]}: " + ", ".join(
            f"{name} {format_time(round(value))}" for name, value in parts
        )
        tail = f"mean {format_time(round(self.mean_ps))}, standard deviation {format_time(round(self.std_ps))}"
        partial = [] if self.finished else ["PARTIAL: stopped; these are the runs until then"]
        return [*partial, *wrapped_at("", head, 0), tail]

    def _histogram(self) -> list[str]:
        if self.min_ps == self.max_ps:
            return []
        above = np.array([time - self.min_ps for time in self.times_ps], np.float64)  # keeps single ps apart
        counts, edges = np.histogram(above, bins=min(BINS, len(above)))
        starts = [format_time(self.min_ps + round(low)) for low in edges[:-1]]
        bars = ["#" * math.ceil(WIDTH * count / counts.max()) for count in counts]
        return [
            f"  from {start:>12} {count:6} {bar}".rstrip()
            for start, count, bar in zip(starts, counts, bars, strict=True)
        ]


def ensemble(run: Callable[[int], int], repeats: int, first_seed: int = 0) -> EnsembleResult:
    """Call ``run(seed)``, which returns picoseconds, for ``repeats`` seeds from ``first_seed`` on.

    Raises
    ------
    InputError: no repeats, or more than MAX_REPEATS. Errors of ``run`` pass through, but Ctrl-C after two or more runs
        returns a result of those runs.
    """
    if not 1 <= repeats <= MAX_REPEATS:
        raise InputError(f"repeats are 1 to {MAX_REPEATS}, got {repeats}", field="repeat")
    seeds = tuple(range(first_seed, first_seed + repeats))
    times: list[int] = []
    try:
        for seed in seeds:
            times.append(int(run(seed)))
    except KeyboardInterrupt:
        if len(times) < 2:
            raise
    return EnsembleResult(seeds=seeds[: len(times)], times_ps=tuple(times), finished=len(times) == repeats)


@dataclass(frozen=True, kw_only=True, repr=False)
class StepEnsemble(Report):
    """Step times with several seeds.

    result: of the first seed; without the perturbation if nothing but it is random. what: the random input, in words.
    """

    SCHEMA: ClassVar[str] = "ensemble"

    result: Result
    runs: EnsembleResult
    what: str

    @property
    def headline(self) -> str:
        return self.runs.headline

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return self.result.evidence

    def tables(self) -> dict[str, Table]:
        """Return ``runs``, one row per seed."""
        return self.runs.tables()

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``histogram``."""
        return self.runs.pictures()

    def summary(self) -> str:
        """Return the random input and the percentiles as text."""
        return "\n".join([*self._random(), *self.runs.numbers()])

    def details(self) -> str:
        """Return the random input, the percentiles and a histogram as text."""
        return "\n".join([*self._random(), self.runs.details()])

    def _random(self) -> list[str]:
        return wrapped_at("ensemble", self.what, len("ensemble") + 2)

    def document(self) -> Row:
        """Return the block ``ensemble`` of a result's JSON."""
        return {"what": self.what, **self.runs.document()}


@takes(SimulateOptions)
@observed
def step_ensemble(
    workload: Workload | str | os.PathLike[str],
    plan: Plan,
    *,
    repeats: int,
    first_seed: int | None = None,
    options: SimulateOptions,
) -> StepEnsemble:
    """Return the step times of a job for ``repeats`` seeds from ``first_seed`` on (default: the stragglers', else 0).

    options: as for :func:`trine.simulate`; ``on_job`` is called once. Without jitter, PERTURBATION makes every operator
    slightly longer or shorter, to the nearest picosecond: far less than any machine varies. The spread then shows how
    sensitive the step is to the order of arrivals at links. Ranks that behave alike are perturbed alike, so a run that
    folds still folds.

    Raises the errors of simulate, and InputError for impossible repeats.
    """
    from trine.training import simulate
    from trine.training.software import is_model
    from trine.workload import load

    if not is_model(workload):
        workload = load(workload) if isinstance(workload, str | os.PathLike) else workload
    stragglers = options.stragglers
    has_jitter = stragglers is not None and stragglers.jitter is not None
    drawn = stragglers if stragglers is not None and has_jitter else _perturbed(stragglers)
    seed = drawn.seed if first_seed is None else first_seed
    seeded = replace(options, stragglers=replace(drawn, seed=seed)) if has_jitter else options
    result = simulate(workload, plan, options=seeded)
    later = replace(options, compare=False)

    def run(number: int) -> int:
        if has_jitter and number == seed:
            return result.step_time_ps
        return simulate(workload, plan, options=replace(later, stragglers=replace(drawn, seed=number))).step_time_ps

    with observing(on_job=ignore):
        runs = ensemble(run, repeats, seed)
    low, high = math.floor(runs.percentile_ps(10)), math.ceil(runs.percentile_ps(90))
    reason = f"80 % of these {len(runs.times_ps)} runs"
    result = replace(result, band=WidenedBand(inner=result.band, low_ps=low, high_ps=high, reason=reason))
    return StepEnsemble(result=result, runs=runs, what=_random_input(drawn, has_jitter))


def _perturbed(stragglers: Stragglers | None) -> Stragglers:
    slow = () if stragglers is None else stragglers.slow
    return Stragglers(slow=slow, jitter=PERTURBATION, each="class")


def _random_input(drawn: Stragglers, has_jitter: bool) -> str:
    if has_jitter:
        assert drawn.jitter is not None
        return f"step times with jitter {drawn.jitter.distribution} {drawn.jitter.spread:g} per {drawn.per}"
    return (
        f"step times with every operator perturbed by {PERTURBATION.spread:g} of its time (alike on ranks that behave "
        "alike); the result below is without that"
    )
