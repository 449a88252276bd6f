"""How well trine ranks layouts: those of the Ultra-Scale Playbook (nanotron, 1B to 8B, 8 to 512 H100), replayed.

A group is a model on a number of nodes with at least so many measured layouts of the population ``clean``. Spearman:
rank correlation of predicted and measured tokens/s. Regret: how much slower the layout that trine picks is than the
best that was measured; of the first three: the best of those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trine.results.report import Report, Row, Table
from trine.results.text import aligned
from trine.studies.compared_steps import ComparedStep, Errors, cells
from trine.studies.replay_rows import Answers, Ask, replay
from trine.studies.training_rows import TrainingRow, load_layouts
from trine.studies.validate_training import drawn

LEAST = 20
#: Layouts of each model and number of nodes in a sample.
SAMPLE_LAYOUTS = 3
BANDS = ("1-2 nodes", "4-32 nodes", "more")


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """A model on a number of nodes. regret, best_of_three: parts of the best measured throughput that are lost."""

    model: str
    nodes: int
    errors: Errors
    spearman: float
    regret: float
    best_of_three: float

    @staticmethod
    def of(model: str, nodes: int, steps: Sequence[ComparedStep]) -> LayoutGroup:
        """Of at least two layouts; throughput and time rank alike, since all have the same tokens a step but few."""
        measured = np.array([step.row.tokens / step.measured_s for step in steps])
        predicted = np.array([step.row.tokens / (step.calibrated_s or step.answer.step_s) for step in steps])
        order = np.argsort(-predicted, kind="stable")
        best = measured.max()
        return LayoutGroup(
            model, nodes, Errors.of([_error(step) for step in steps]), spearman(predicted, measured),
            1 - float(measured[order[0]] / best), 1 - float(measured[order[:3]].max() / best),
        )  # fmt: skip


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Rank correlation; equal values share their mean rank. 0 where one is constant."""
    one, other = _ranks(first), _ranks(second)
    spread = one.std() * other.std()
    return float(((one - one.mean()) * (other - other.mean())).mean() / spread) if spread else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _error(step: ComparedStep) -> float:
    """Of tokens/s."""
    return step.measured_s / (step.calibrated_s or step.answer.step_s) - 1


@dataclass(frozen=True, kw_only=True, repr=False)
class LayoutValidation(Report):
    """All layouts with a result and their predictions."""

    SCHEMA: ClassVar[str] = "validate-layouts"

    steps: tuple[ComparedStep, ...]
    is_sample: bool = False
    least: int = LEAST

    @property
    def compared(self) -> tuple[ComparedStep, ...]:
        return tuple(step for step in self.steps if not step.answer.why_not)

    @property
    def counted(self) -> tuple[ComparedStep, ...]:
        """Clean ones with at most 8-way tensor parallelism."""
        return tuple(step for step in self.compared if not step.row.apart)

    def groups(self) -> list[LayoutGroup]:
        """Of at least ``least`` layouts, by nodes and model."""
        found: dict[tuple[int, str], list[ComparedStep]] = {}
        for step in self.counted:
            found.setdefault((step.row.num_nodes, step.row.facts["model"]), []).append(step)
        return [
            LayoutGroup.of(model, nodes, steps)
            for (nodes, model), steps in sorted(found.items(), key=lambda item: item[0])
            if len(steps) >= self.least
        ]

    def by_nodes(self) -> list[tuple[str, Errors]]:
        """Errors of tokens/s at 1-2 nodes, 4-32 nodes and more."""
        found: dict[str, list[float]] = {}
        for step in self.counted:
            found.setdefault(band(step.row), []).append(_error(step))
        return [(name, Errors.of(found[name])) for name in BANDS if name in found]

    def apart(self) -> list[tuple[str, Errors]]:
        """Errors of what counts nowhere, by why."""
        found: dict[str, list[float]] = {}
        for step in self.compared:
            if step.row.apart:
                found.setdefault(step.row.apart, []).append(_error(step))
        return [(why, Errors.of(errors)) for why, errors in found.items()]

    @property
    def headline(self) -> str:
        """Error, ranking and regret."""
        groups, errors = self.groups(), self.by_nodes()
        text = ", ".join(f"{name}: median {e.median:.1%}, p90 {e.p90:.1%}" for name, e in errors)
        sample = "sample: " if self.is_sample else ""
        found = f"{sample}{len(self.counted)} layouts; error of tokens/s: {text or 'none'}"
        if groups:
            regret = np.median([group.regret for group in groups])
            found += (
                f"; Spearman at least {min(g.spearman for g in groups):.2f} in {len(groups)} groups, regret "
                f"{regret:.1%} median, {max(g.regret for g in groups):.1%} at most"
            )
        return found

    def summary(self) -> str:
        """Return errors by nodes, then each group, then what is apart."""
        head = ("rows", "bias", "mean", "median", "p90", "<=10%")
        rows = [("error of tokens/s", *head), *((name, *cells(e)) for name, e in self.by_nodes())]
        groups: list[tuple[str, ...]] = [("group", *head, "Spearman", "regret", "of three")]
        groups += [
            (f"{g.model} on {g.nodes} nodes", *cells(g.errors), f"{g.spearman:.2f}", f"{g.regret:.1%}",
             f"{g.best_of_three:.1%}")
            for g in self.groups()
        ]  # fmt: skip
        apart = [("apart, counted nowhere", *head), *((why, *cells(e)) for why, e in self.apart())]
        failed = [f"not predicted: {s.row.name}: {s.answer.why_not}" for s in self.steps if s.answer.why_not]
        blocks = [[self.headline], aligned(rows, 30), aligned(groups, 30) if len(groups) > 1 else [],
                  aligned(apart, 30) if len(apart) > 1 else [], failed[:8]]  # fmt: skip
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def document(self) -> Row:
        """``errors`` of tokens/s by nodes, ``groups``, ``rows``, ``apart``."""
        return {
            "is_sample": self.is_sample,
            "errors": [{"nodes": name, **errors.row()} for name, errors in self.by_nodes()],
            "apart": [{"why": why, **errors.row()} for why, errors in self.apart()],
            **self.tables(),
        }

    def tables(self) -> dict[str, Table]:
        """Return ``groups`` and ``rows`` of :meth:`document`."""
        groups: list[Row] = [
            {"model": g.model, "nodes": g.nodes, **g.errors.row(), "spearman": g.spearman, "regret": g.regret,
             "best_of_three": g.best_of_three}
            for g in self.groups()
        ]  # fmt: skip
        rows: list[Row] = [
            {"row": s.row.name, "model": s.row.facts["model"], "num_gpus": s.row.num_gpus, "measured_s": s.measured_s,
             "predicted_s": s.answer.step_s, "calibrated_s": s.calibrated_s, "error": _error(s),
             "apart": s.row.apart or None}
            for s in self.compared
        ]  # fmt: skip
        return {"groups": groups, "rows": rows}


def band(row: TrainingRow) -> str:
    """``1-2 nodes``, ``4-32 nodes`` or ``more``."""
    return BANDS[0] if row.num_nodes <= 2 else BANDS[1] if row.num_nodes <= 32 else BANDS[2]


def validate_layouts(
    *,
    sample: bool = False,
    software: str | None = None,
    answers: Answers | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LayoutValidation:
    """Predict all layouts that have a result; ``sample``: a few cheap ones of each model and number of nodes."""
    rows = [row for row in load_layouts() if row.step_s is not None]
    if sample:
        rows = _sample(rows)
    found = replay(rows, Ask(software=software), answers=answers, jobs=jobs, progress=progress)
    steps = tuple(ComparedStep(row=row, answer=answer) for row, answer in zip(rows, found, strict=True))
    return LayoutValidation(steps=steps, is_sample=sample, least=SAMPLE_LAYOUTS if sample else LEAST)


def _sample(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    groups: dict[tuple[str, int], list[TrainingRow]] = {}
    for row in rows:
        if not row.apart and row.num_nodes <= 16:
            groups.setdefault((row.facts["model"], row.num_nodes), []).append(row)
    return [row for group in groups.values() for row in drawn(group, SAMPLE_LAYOUTS)]
