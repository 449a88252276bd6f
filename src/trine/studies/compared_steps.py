"""A published step beside its prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trine.studies.replay_rows import Predicted, predict
from trine.studies.training_rows import TrainingRow
from trine.studies.validation import Validation


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedStep:
    """A row and its prediction; ``calibrated_s``: with factors fitted on other rows of the source, None without."""

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
        """Return the row's source, GPU, software or scale."""
        return {
            "source": self.row.source.key,
            "gpu": self.row.gpu,
            "software": self.row.source.software,
            "scale": self.row.scale,
        }[by]


def compared(rows: Iterable[TrainingRow], answers: Iterable[Predicted]) -> tuple[ComparedStep, ...]:
    """Return rows with their predictions."""
    return tuple(ComparedStep(row=row, answer=answer) for row, answer in zip(rows, answers, strict=True))


def read_steps(records: Iterable[Mapping[str, Any]], rows: Iterable[TrainingRow]) -> tuple[ComparedStep, ...]:
    """Return stored predictions with the rows of the same names; skip predictions whose row is not bundled any more."""
    named = {row.name: row for row in rows}
    return tuple(
        ComparedStep(row=named[record["row"]], answer=Predicted.read(record), calibrated_s=record["calibrated_s"])
        for record in records
        if record["row"] in named
    )


def source_weights(steps: Sequence[ComparedStep]) -> list[float]:
    """Return weights that give every source the same weight, whatever its number of rows."""
    sizes = Counter(step.row.source.key for step in steps)
    return [1 / sizes[step.row.source.key] for step in steps]


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
