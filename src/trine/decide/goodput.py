"""Goodput: the share of a training run's time that remains for new steps, with failures, restarts and checkpoints.

Failures are exponential and may also strike during a restart. A failure loses the work since the last checkpoint. With
M the mean time between failures of the job (that of one GPU / GPUs), R the restart, d the blocking part of a checkpoint
and tau the work between two checkpoints, a run of work W takes

    M exp(R / M) (exp((tau + d) / M) - 1) W / tau

(J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22, 2006, equation 20).
Not included: hangs that nobody notices, slow GPUs, planned maintenance, and waits for spare nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from trine.common.evidence import ASSUMED, Evidence
from trine.common.inputs import PRESETS
from trine.common.schema import Spec
from trine.common.spec import read_spec
from trine.decide.failures import ALLOWED, Failures
from trine.errors import InputError
from trine.results.report import Row

_S_PER_HOUR = 3600.0
#: A run that takes more than this many times its work makes no progress.
MAX_TIMES = 100.0


class _RangeSpec(Spec):
    """A default of presets/failures.yaml, its likely range and its source."""

    value: float
    low: float
    high: float
    source: str


class _RatesSpec(_RangeSpec):
    gpus: dict[str, _RangeSpec]


class FailuresFile(Spec):
    """Contents of presets/failures.yaml."""

    mtbf_per_gpu: _RatesSpec
    checkpoint: _RangeSpec
    restart: _RangeSpec


@cache
def usual_failures() -> FailuresFile:
    """Return the defaults of presets/failures.yaml."""
    return read_spec(PRESETS / "failures.yaml", FailuresFile)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureModel:
    """Failures of a job. mtbf_s: mean time between failures of the whole job, inf for none; the rest in seconds."""

    mtbf_s: float
    checkpoint_s: float
    restart_s: float

    def wall_time_s(self, work_s: float, interval_s: float) -> float:
        """Return the expected time of ``work_s`` seconds of steps with a checkpoint after each ``interval_s`` of work.

        Returns inf if the numbers exceed floating point.
        """
        mtbf_s, segment_s = self.mtbf_s, interval_s + self.checkpoint_s
        if mtbf_s == math.inf:
            return work_s * segment_s / interval_s
        try:
            return mtbf_s * math.exp(self.restart_s / mtbf_s) * math.expm1(segment_s / mtbf_s) * work_s / interval_s
        except OverflowError:
            return math.inf

    def best_interval_s(self, step_s: float, work_s: float) -> float:
        """Return the work between two checkpoints that makes the run shortest, a whole number of steps.

        It is next to the interval of Daly (2006, equation 37), whose first term is Young's (1974).
        """
        if self.mtbf_s == math.inf or not self.checkpoint_s:
            ideal_s = work_s if self.mtbf_s == math.inf else step_s
        elif self.checkpoint_s < 2 * self.mtbf_s:
            ratio = self.checkpoint_s / (2 * self.mtbf_s)
            young_s = math.sqrt(2 * self.checkpoint_s * self.mtbf_s)
            ideal_s = young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.checkpoint_s
        else:
            ideal_s = self.mtbf_s
        num_steps, all_steps = max(1, int(ideal_s / step_s)), max(1, math.ceil(work_s / step_s))
        choices = [min(count, all_steps) * step_s for count in (num_steps, num_steps + 1)]
        return min(choices, key=lambda interval_s: self.wall_time_s(work_s, interval_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Effect of failures on a run of ``num_gpus`` GPUs.

    interval_s: work between two checkpoints. slowdown: expected time over the time without failures and checkpoints;
    low, high: its likely range, from the ranges of the defaults. num_failures: expected failures of the run.
    assumed: the values that are defaults, with their sources.
    """

    num_gpus: int
    mtbf_per_gpu_h: float
    model: FailureModel
    interval_s: float
    slowdown: float
    low: float
    high: float
    num_failures: float
    assumed: tuple[tuple[str, str], ...]

    @property
    def effective_share(self) -> float:
        """Share of the run's time that new steps take."""
        return 1 / self.slowdown

    def words(self) -> str:
        """Return the effective share and its reasons in one sentence."""
        model = self.model
        share = f"{self.effective_share:.1%} of the time is effective"
        checkpoints = f"checkpoint of {model.checkpoint_s:g} s every {_span(self.interval_s)}"
        if model.mtbf_s == math.inf:
            return f"{share}: no failures, {checkpoints}"
        names = ", ".join(name.replace("_", " ") for name, _ in self.assumed)
        source = f"assumed: {names}" if names else "all given"
        failures = f"a failure every {_span(model.mtbf_s)}, restart {_span(model.restart_s)}"
        return f"{share}: {failures}, {checkpoints} ({source})"

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence of the defaults."""
        return tuple(Evidence(name, ASSUMED, source) for name, source in self.assumed)

    def document(self) -> Row:
        """Return the goodput as plain data (docs/reference/decide-json.md)."""
        model, has_failures = self.model, self.model.mtbf_s != math.inf
        mtbf_per_gpu = self.mtbf_per_gpu_h if has_failures else None
        mtbf = model.mtbf_s / _S_PER_HOUR if has_failures else None
        return {
            "mtbf_per_gpu_hours": mtbf_per_gpu,
            "mtbf_hours": mtbf,
            "checkpoint_s": model.checkpoint_s, "restart_s": model.restart_s,
            "checkpoint_interval_s": self.interval_s, "failures": self.num_failures,
            "effective_share": self.effective_share, "effective_share_low": 1 / self.high,
            "effective_share_high": 1 / self.low, "assumed": dict(self.assumed),
        }  # fmt: skip


def goodput_of(failures: Failures, gpu: str | None, num_gpus: int, step_s: float, work_s: float) -> Goodput:
    """Return the goodput of ``work_s`` seconds of equal steps of ``step_s`` on ``num_gpus`` GPUs of a model.

    The best and the worst end of each default together give the likely range; given values have none.

    Raises InputError if failures leave no progress.
    """
    defaults = _defaults(gpu)
    values, assumed = {}, []
    for name, (unit, _, _) in ALLOWED.items():
        given, usual = getattr(failures, name), defaults[name]
        values[name] = (usual.value, usual.low, usual.high) if given is None else (given, given, given)
        if given is None:
            text = f"{usual.value:,g} {unit} ({usual.low:,g} to {usual.high:,g}): {usual.source}"
            assumed.append((name, text))
    mtbf, checkpoint, restart = values.values()
    models = [
        FailureModel(mtbf_s=hours * _S_PER_HOUR / num_gpus, checkpoint_s=checkpoint_s, restart_s=restart_s)
        for hours, checkpoint_s, restart_s in (
            (mtbf[0], checkpoint[0], restart[0]),
            (mtbf[2], checkpoint[1], restart[1]),
            (mtbf[1], checkpoint[2], restart[2]),
        )
    ]
    intervals_s = [model.best_interval_s(step_s, work_s) for model in models]
    slow = [model.wall_time_s(work_s, tau) / work_s for model, tau in zip(models, intervals_s, strict=True)]
    if slow[0] > MAX_TIMES:
        raise InputError(
            f"{mtbf[0]:g} hours on {num_gpus:,} GPUs is a failure every {_span(models[0].mtbf_s)}, and a restart takes "
            f"{_span(restart[0])}: the run makes no progress; give more hours, fewer GPUs or a shorter restart",
            field="mtbf_per_gpu",
        )
    return Goodput(
        num_gpus=num_gpus, mtbf_per_gpu_h=mtbf[0], model=models[0], interval_s=intervals_s[0], slowdown=slow[0],
        low=min(slow), high=min(max(slow), MAX_TIMES), num_failures=slow[0] * work_s / models[0].mtbf_s,
        assumed=tuple(assumed),
    )  # fmt: skip


def _defaults(gpu: str | None) -> dict[str, Any]:
    """Return the defaults for a GPU model, by field."""
    usual = usual_failures()
    of_gpu = [each for start, each in usual.mtbf_per_gpu.gpus.items() if gpu is not None and gpu.startswith(start)]
    return {
        "mtbf_per_gpu": of_gpu[0] if of_gpu else usual.mtbf_per_gpu,
        "checkpoint": usual.checkpoint,
        "restart": usual.restart,
    }


def _span(seconds: float) -> str:
    """Return a time in s, min, h or days with three digits."""
    for least_s, unit_s, unit in ((172_800, 86_400, "days"), (3600, 3600, "h"), (120, 60, "min")):
        if seconds >= least_s:
            amount = seconds / unit_s
            return f"{amount:,.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
    return f"{seconds:.3g} s"
