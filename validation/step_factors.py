"""Cross-validated fit of up to three factors per source and GPU.

Rows are predicted once without factors and once with factors fitted on all of them. Around the second prediction, a
step's time follows the factors along its critical path (:meth:`validation.replay_rows.Predicted.scaled`), so that
leave-one-group-out fits need no simulation. A group is a model of the source, or a number of GPUs if it has one model.

``trine validate`` uses this fit. Unlike the fit of ``trine calibrate --step`` (:mod:`trine.training.factor_fit`), it
must give factors for every source, even with few or similar rows, and nobody can measure the rows again. Each factor
therefore has a prior around 1, which fixes factors that the rows do not determine; the other fit refuses them. Errors
far beyond the noise count linearly, not squared, so that a row with a wrong fact moves no factor far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trine.common.arrays import Float64
from trine.software.profile import USUAL_FACTORS
from trine.training.factor_fit import folds
from validation.harness import Validation, grouped
from validation.replay_rows import ONES, Ask, Predicted, Triple, predict
from validation.training_rows import TrainingRow


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedStep:
    """A row and its prediction; ``calibrated_s``: the step with factors fitted on other rows of the source, or None."""

    row: TrainingRow
    answer: Predicted
    calibrated_s: float | None = None

    @property
    def measured_s(self) -> float:
        assert self.row.step_s is not None
        return self.row.step_s

    @property
    def error(self) -> float:
        """Predicted / measured - 1, without a fit."""
        return self.answer.step_s / self.measured_s - 1

    @property
    def calibrated_error(self) -> float | None:
        return None if self.calibrated_s is None else self.calibrated_s / self.measured_s - 1

    @property
    def rate_error(self) -> float:
        """Error of tokens/s, with fitted factors if the row has them."""
        return self.measured_s / (self.calibrated_s or self.answer.step_s) - 1

    def group(self, by: str) -> str:
        """Return the row's source, GPU, software, scale or group."""
        return {
            "group": self.row.group,
            "source": self.row.source.key,
            "gpu": self.row.gpu,
            "software": self.row.software,
            "scale": self.row.scale,
        }[by]


def compared(rows: Iterable[TrainingRow], answers: Iterable[Predicted]) -> tuple[ComparedStep, ...]:
    """Return rows with their predictions."""
    return tuple(ComparedStep(row=row, answer=answer) for row, answer in zip(rows, answers, strict=True))


def read_steps(records: Iterable[Mapping[str, Any]], rows: Iterable[TrainingRow]) -> tuple[ComparedStep, ...]:
    """Return stored predictions with the rows of the same names; skip predictions whose row is not bundled any more."""
    row_of = {row.name: row for row in rows}
    return tuple(
        ComparedStep(row=row_of[record["row"]], answer=Predicted.read(record), calibrated_s=record["calibrated_s"])
        for record in records
        if record["row"] in row_of
    )


def source_weights(steps: Sequence[ComparedStep]) -> list[float]:
    """Return weights that give every source the same weight, and within a source every group of rows."""
    rows = Counter((step.row.source.key, step.row.group) for step in steps)
    groups = Counter(source for source, _ in rows)
    keys = [(step.row.source.key, step.row.group) for step in steps]
    return [1 / groups[key[0]] / rows[key] for key in keys]


def compared_faults(rows: Iterable[TrainingRow]) -> tuple[ComparedStep, ...]:
    """Return the rows that cannot be read, each with its fault as the reason why it has no prediction."""
    return tuple(ComparedStep(row=row, answer=predict(row)) for row in rows if row.fault)


@dataclass(frozen=True, kw_only=True, repr=False)
class StepValidation(Validation):
    """Published steps and their predictions."""

    steps: tuple[ComparedStep, ...]

    @property
    def compared(self) -> tuple[ComparedStep, ...]:
        """Rows with a prediction."""
        return tuple(step for step in self.steps if not step.answer.why_not)

    @property
    def counted(self) -> tuple[ComparedStep, ...]:
        """Rows with a prediction that count."""
        return tuple(step for step in self.compared if not step.row.apart)

    @property
    def failed(self) -> tuple[ComparedStep, ...]:
        """Rows without a prediction."""
        return tuple(step for step in self.steps if step.answer.why_not)


#: A source with fewer rows fits only the compute factor.
MIN_FOR_THREE = 8
#: Standard deviation of the rows' log errors, and prior standard deviations of the log factors.
NOISE, PRIORS = 0.06, (0.4, 0.7, 0.7)
#: Errors beyond this number of standard deviations count linearly, not squared, so that outliers move no factor far.
HUBER = 1.5
_STEPS = 12


@dataclass(frozen=True, slots=True)
class AskedStep:
    """A row, its prediction, and the factors of that prediction."""

    row: TrainingRow
    answer: Predicted
    asked: Triple = ONES

    def log_error(self, factors: Triple) -> float:
        """Return log(predicted / measured) under other factors."""
        assert self.row.step_s is not None
        return float(np.log(self.answer.scaled(factors, self.asked) / self.row.step_s))

    def slopes(self, factors: Triple) -> Float64:
        """Return the derivative of the log step time by the log of each factor: float64[3]."""
        scaled_shares = np.array([s * f / a for s, f, a in zip(self.answer.shares, factors, self.asked, strict=True)])
        slopes: Float64 = scaled_shares / (1 - sum(self.answer.shares) + scaled_shares.sum())
        return slopes


def fit(steps: Sequence[AskedStep], num_factors: int = 3) -> Triple:
    """Return the factors that minimise the errors of ``steps`` and the priors; after ``num_factors`` they are 1.

    Gauss-Newton on log(predicted / measured) / noise, with Huber's weights, and log factor / prior.
    """
    logs = np.zeros(num_factors)
    prior = 1 / np.array(PRIORS[:num_factors])
    for _ in range(_STEPS):
        factors = _triple(logs)
        errors = np.array([step.log_error(factors) for step in steps]) / NOISE
        slopes = np.array([step.slopes(factors)[:num_factors] for step in steps]) / NOISE
        weight = np.sqrt(np.minimum(1, HUBER / np.maximum(np.abs(errors), 1e-9)))
        matrix = np.vstack([slopes * weight[:, None], np.diag(prior)])
        targets = np.concatenate([-errors * weight, -logs * prior])
        move = np.clip(np.linalg.lstsq(matrix, targets, rcond=None)[0], -0.5, 0.5)
        logs = logs + move
        if np.abs(move).max() < 1e-4:
            break
    return _triple(logs)


def _triple(logs: Float64) -> Triple:
    factors = [*np.exp(logs).tolist(), *[1.0] * (3 - len(logs))]
    return factors[0], factors[1], factors[2]


#: Predicts rows under the given settings.
Again = Callable[[Sequence[TrainingRow], Ask], Sequence[Predicted]]


def calibrated(
    steps: Sequence[ComparedStep], rerun: Again | None = None, usual: Ask | None = None
) -> tuple[ComparedStep, ...]:
    """Return each row with its step time under factors fitted on the other groups of its source and GPU.

    rerun: simulates rows with factors instead of scaling critical paths only. usual: the earlier settings.
    """
    calibrated_by_row: dict[str, ComparedStep] = {}
    counted = [step for step in steps if not step.row.apart and not step.answer.why_not]
    for members in grouped(counted, lambda step: (step.row.source.key, step.row.gpu)).values():
        num_factors = 3 if len(members) >= MIN_FOR_THREE else 1
        refined_steps = refined([AskedStep(step.row, step.answer) for step in members], num_factors, rerun, usual)
        for step, seconds in zip(members, left_out(refined_steps, num_factors), strict=True):
            calibrated_by_row[step.row.name] = replace(step, calibrated_s=seconds)
    return tuple(calibrated_by_row.get(step.row.name, step) for step in steps)


def refined(steps: list[AskedStep], num_factors: int, rerun: Again | None, usual: Ask | None = None) -> list[AskedStep]:
    """Predict the rows again with factors fitted on all of them."""
    if rerun is None:
        return steps
    simulated_factors = asked_factors(fit(steps, num_factors))
    answers = rerun([step.row for step in steps], replace(usual or Ask(), factors=simulated_factors))
    asked = []
    for step, answer in zip(steps, answers, strict=True):
        asked.append(step if answer.why_not else AskedStep(step.row, answer, simulated_factors))
    return asked


def asked_factors(factors: Triple) -> Triple:
    """Round factors to three digits for a simulation, so that it can reuse cached answers."""
    return round(factors[0], 3), round(factors[1], 3), round(factors[2], 3)


def left_out(steps: Sequence[AskedStep], num_factors: int) -> list[float | None]:
    """Return the step time of each row in seconds, with factors of the other groups; None without other groups."""
    groups = _groups([step.row for step in steps])
    times: list[float | None] = [None] * len(steps)
    for members, rest in folds(groups):
        if rest:
            factors = fit([steps[place] for place in rest], num_factors)
            for place in members:
                times[place] = steps[place].answer.scaled(factors, steps[place].asked)
    return times


def _groups(rows: Sequence[TrainingRow]) -> list[str]:
    models = [f"{row.model} {row.whole('layers')} {row.whole('hidden')}" for row in rows]
    if len(set(models)) > 1:
        return models
    return [str(row.num_gpus) for row in rows]


def words(factors: Triple, names: Sequence[str] = USUAL_FACTORS) -> str:
    """Return the factors as text."""
    return ", ".join(f"{name} x {value:.3g}" for name, value in zip(names, factors, strict=True))
