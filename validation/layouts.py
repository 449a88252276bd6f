"""Ranking of the Ultra-Scale Playbook's layouts (nanotron, 1B to 8B, 8 to 512 H100).

A group is a model on a number of nodes with at least LEAST measured layouts of the population ``clean``. Spearman:
rank correlation of predicted and measured tokens/s. Regret: loss of throughput of trine's first choice against the best
measured layout; "of three": the same for the best of its first three choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from trine.results.report import Row, Table
from trine.results.text import aligned
from trine.software.profile import Software
from validation.harness import (
    HEAD,
    Errors,
    ReplayProgress,
    cells,
    error_lines,
    errors_by,
    grouped,
    named_rows,
    read_stored,
)
from validation.replay_rows import ONES, Answers, Ask, Triple, replay
from validation.step_factors import (
    AskedStep,
    ComparedStep,
    StepValidation,
    asked_factors,
    compared,
    compared_faults,
    fit,
    read_steps,
    refined,
    words,
)
from validation.training import sampled, thinned
from validation.training_rows import TrainingRow, load_layouts

LEAST = 20
#: Model and maximum number of nodes of the clean layouts for the fit.
FITTED_MODEL, FITTED_NODES = "1B", 4
#: The fabric has no factor: its speed was measured along with the layouts.
FITTED_FACTORS = ("gpu", "cpu", "scale_up")
#: Layouts per model and number of nodes in a sample.
SAMPLE_LAYOUTS = 3
BANDS = ("1-2 nodes", "4-32 nodes", "more")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutGroup(Errors):
    """A model on a number of nodes. regret, best_of_three: lost shares of the best measured throughput."""

    model: str
    nodes: int
    spearman: float
    regret: float
    best_of_three: float

    @property
    def name(self) -> str:
        """Name such as ``1B on 2 nodes``."""
        return f"{self.model} on {self.nodes} node{'s' if self.nodes > 1 else ''}"

    @staticmethod
    def ranked(model: str, nodes: int, steps: Sequence[ComparedStep]) -> LayoutGroup:
        """Rank at least two layouts; throughput and time rank alike, as nearly all have the same tokens per step."""
        measured = np.array([step.row.tokens / step.measured_s for step in steps])
        predicted = np.array([step.row.tokens / (step.calibrated_s or step.answer.step_s) for step in steps])
        order = np.argsort(-predicted, kind="stable")
        best = measured.max()
        return LayoutGroup.of(
            [step.rate_error for step in steps], model=model, nodes=nodes, spearman=spearman(predicted, measured),
            regret=1 - float(measured[order[0]] / best), best_of_three=1 - float(measured[order[:3]].max() / best),
        )  # fmt: skip


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Return the rank correlation (0 if one is constant); equal values share their mean rank."""
    x, y = _ranks(first), _ranks(second)
    spread = x.std() * y.std()
    return float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


@dataclass(frozen=True, kw_only=True, repr=False)
class LayoutValidation(StepValidation):
    """Layouts with a result; clean ones with at most 8-way tensor parallelism count.

    blind: layouts on one node, without a fit. factors: fitted on ``num_fitted`` rows outside ``steps``.
    """

    SCHEMA: ClassVar[str] = "validate-layouts"

    blind: tuple[ComparedStep, ...] = ()
    factors: Triple = ONES
    num_fitted: int = 0
    least: int = LEAST

    def groups(self) -> list[LayoutGroup]:
        """Return the groups of at least ``least`` layouts, by nodes and model."""
        groups = grouped(self.counted, lambda step: (step.row.num_nodes, step.row.facts["model"]))
        ranked = []
        for (nodes, model), steps in sorted(groups.items(), key=lambda item: item[0]):
            if len(steps) >= self.least:
                ranked.append(LayoutGroup.ranked(model, nodes, steps))
        return ranked

    def by_nodes(self) -> list[tuple[str, Errors]]:
        """Return errors of tokens/s at 1-2 nodes, 4-32 nodes and more."""
        errors = errors_by(self.counted, lambda step: band(step.row), lambda step: step.rate_error)
        return [(name, errors[name]) for name in BANDS if name in errors]

    def apart(self) -> list[tuple[str, Errors]]:
        """Return errors of the layouts that do not count, by reason."""
        steps = [step for step in self.compared if step.row.apart]
        return list(errors_by(steps, lambda step: step.row.apart, lambda step: step.rate_error).items())

    def on_several_nodes(self) -> tuple[ComparedStep, ...]:
        """Return the counted layouts on several nodes, blind: the fitted factors are taken out along critical paths."""
        simulated_factors = asked_factors(self.factors)
        return tuple(
            replace(step, answer=replace(step.answer, step_s=step.answer.scaled(ONES, simulated_factors)))
            for step in self.counted
            if step.row.num_nodes > 1
        )

    @property
    def blind_errors(self) -> Errors | None:
        """Errors of :attr:`blind`, None without any."""
        return Errors.of_some([step.rate_error for step in self.blind if not step.answer.why_not])

    @property
    def headline(self) -> str:
        """Errors, ranking and regret in one line."""
        groups, errors = self.groups(), self.by_nodes()
        error_text = ", ".join(f"{name}: median {e.median:.1%}, p90 {e.p90:.1%}" for name, e in errors)
        sample = "sample: " if self.is_sample else ""
        text = f"{sample}{len(self.counted)} layouts; error of tokens/s: {error_text or 'none'}"
        if groups:
            regret = np.median([group.regret for group in groups])
            least_spearman = min(g.spearman for g in groups)
            most_regret = max(g.regret for g in groups)
            text += (
                f"; Spearman at least {least_spearman:.2f} in {len(groups)} groups of {self.least} "
                f"layouts or more, regret {regret:.1%} median, {most_regret:.1%} at most"
            )
        return text

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """Return errors by nodes, by group, and of the layouts that do not count."""
        notes = []
        if self.num_fitted:
            notes.append(f"{words(self.factors, FITTED_FACTORS)}, fitted on {self.num_fitted} rows of the 1B model")
        if (blind := self.blind_errors) is not None:
            notes.append(f"nothing fitted, 1 node: median {blind.median:.1%}, p90 {blind.p90:.1%}, {blind.count} rows")
        yield notes
        yield error_lines("error of tokens/s", self.by_nodes(), 24)
        if groups := self.groups():
            ranks = [(f"{g.spearman:.2f}", f"{g.regret:.1%}", f"{g.best_of_three:.1%}") for g in groups]
            rows = [(g.name, *cells(g), *rank) for g, rank in zip(groups, ranks, strict=True)]
            yield aligned([("group", *HEAD, "Spearman", "regret", "of three"), *rows], 24)
        if errors_apart := self.apart():
            yield error_lines("apart, counted nowhere", errors_apart, 24)
        yield [f"not predicted: {s.row.name}: {s.answer.why_not}" for s in self.failed][:8]

    def document(self) -> Row:
        """Return ``errors`` of tokens/s by nodes, ``groups``, ``rows``, ``apart``; ``stored``: origin if stored."""
        blind = self.blind_errors
        return {
            **self.replayed(), "factors": dict(zip(FITTED_FACTORS, self.factors, strict=True)),
            "num_fitted": self.num_fitted,
            "blind_one_node": blind.row() if blind is not None else None,
            "errors": named_rows("nodes", self.by_nodes()), "apart": named_rows("why", self.apart()), **self.tables(),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``groups`` and ``rows`` of :meth:`document`."""
        groups: list[Row] = [
            {"model": g.model, "nodes": g.nodes, **g.row(), "spearman": g.spearman, "regret": g.regret,
             "best_of_three": g.best_of_three}
            for g in self.groups()
        ]  # fmt: skip
        rows: list[Row] = [
            {"row": s.row.name, "model": s.row.facts["model"], "num_gpus": s.row.num_gpus, "measured_s": s.measured_s,
             "predicted_s": s.answer.step_s, "calibrated_s": s.calibrated_s, "error": s.rate_error,
             "apart": s.row.apart or None}
            for s in self.compared
        ]  # fmt: skip
        return {"groups": groups, "rows": rows}


def band(row: TrainingRow) -> str:
    """Return ``1-2 nodes``, ``4-32 nodes`` or ``more``."""
    if row.num_nodes <= 2:
        return BANDS[0]
    if row.num_nodes <= 32:
        return BANDS[1]
    return BANDS[2]


def validate_layouts(
    *,
    sample: bool = False,
    software: Software | str | None = None,
    blind: bool = False,
    most_rows: int | None = None,
    answers: Answers | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LayoutValidation:
    """Predict the layouts with a result. Factors are fitted on the clean ones of the 1B model on up to 4 nodes, which
    do not count; with ``blind`` nothing is fitted and all count.

    sample: a few cheap layouts per model and number of nodes, blind. most_rows: maximum of counted layouts per model
    and number of nodes, chosen by the hash of their names. For the others, see
    :func:`validation.training.validate_training`.
    """
    all_rows = load_layouts()
    rows = [row for row in all_rows if row.step_s is not None]
    unread = compared_faults(all_rows)
    if most_rows is not None:
        rows = thinned(rows, most_rows, lambda row: f"{row.model} on {row.num_nodes}")
    usual = Ask.of(software)
    if sample:
        few_nodes = [row for row in rows if row.num_nodes <= 16]
        rows = sampled(few_nodes, SAMPLE_LAYOUTS, lambda row: (row.facts["model"], row.num_nodes))
    fitted_on = [row for row in rows if _is_fitted_on(row)]
    one_node = [row for row in rows if row.num_nodes == 1 and not row.apart]
    refitted = [] if sample or blind else [*fitted_on, *fitted_on, *one_node]
    count_row = ReplayProgress("layouts", (row.name for row in (*rows, *refitted)), progress)
    ask = partial(replay, answers=answers, jobs=jobs, done=count_row)
    if sample or blind:
        steps = (*compared(rows, ask(rows, usual)), *unread)
        return LayoutValidation(steps=steps, is_sample=sample, least=SAMPLE_LAYOUTS if sample else LEAST)
    first = [AskedStep(row, answer) for row, answer in zip(fitted_on, ask(fitted_on, usual), strict=True)]
    fitting = replace(usual, names=FITTED_FACTORS)
    fitted_steps = refined([step for step in first if not step.answer.why_not], len(FITTED_FACTORS), ask, fitting)
    fitted_steps = refined(fitted_steps, len(FITTED_FACTORS), ask, fitting)
    factors = fit(fitted_steps, len(FITTED_FACTORS))
    simulated_factors = asked_factors(factors)
    judged = [row for row in rows if not _is_fitted_on(row)]
    steps = tuple(
        ComparedStep(row=row, answer=answer, calibrated_s=answer.scaled(factors, simulated_factors))
        for row, answer in zip(judged, ask(judged, replace(fitting, factors=simulated_factors)), strict=True)
    )
    blind_steps = compared(one_node, ask(one_node, usual))
    return LayoutValidation(steps=(*steps, *unread), blind=blind_steps, factors=factors, num_fitted=len(fitted_steps))


def load_stored_layouts() -> LayoutValidation:
    """Return the stored report of all layouts, without a replay."""
    origin, content = read_stored("layouts")
    rows = load_layouts()
    steps, blind = (read_steps(content[part], rows) for part in ("rows", "blind"))
    return LayoutValidation(
        steps=(*steps, *compared_faults(rows)), blind=blind, factors=tuple(content["factors"]),
        num_fitted=content["num_fitted"], stored=origin,
    )  # fmt: skip


def _is_fitted_on(row: TrainingRow) -> bool:
    return not row.apart and row.num_nodes <= FITTED_NODES and row.facts["model"] == FITTED_MODEL
