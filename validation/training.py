"""How far predicted training steps are from published ones: errors by source, GPU, software and scale.

The error of a row is predicted / measured step time - 1. Every source weighs the same, however many rows it has, and
within a source every group of rows (the scales of one job) has one vote. Rows whose source leaves decisive facts open,
or whose times are doubtful, are shown apart and count nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import ClassVar, cast

import numpy as np

from trine.errors import InputError
from trine.results.precision_errors import precision_errors, precision_lines
from trine.results.report import Row, Table
from trine.results.text import aligned
from trine.software.profile import Software
from validation.harness import (
    HEAD,
    Errors,
    ReplayProgress,
    Target,
    cells,
    error_lines,
    errors_by,
    grouped,
    read_stored,
)
from validation.replay_rows import Answers, Ask, cost, replay, shuffled
from validation.step_factors import ComparedStep, StepValidation, calibrated, compared, read_steps, source_weights
from validation.training_rows import (
    TrainingRow,
    check_sources,
    load_layouts,
    load_left_out,
    load_rows,
    sources_of,
)

#: Rows of each source in a sample, and the most layers times micro-batches of such a row.
SAMPLE_ROWS, SAMPLE_COST = 5, 200
#: Targets over sources: of blind predictions, and with factors fitted on other models or GPU counts of the source.
BLIND, CALIBRATED = Target(mean=0.15, p90=0.30, bias=0.08), Target(mean=0.08, p90=0.18)
GROUPS = ("source", "gpu", "software", "scale")
#: Name of the set of sources that have groups of several rows (``sources.yaml``).
TUNED = "tuned"
NUM_WORST = 12


class TrainingValidation(StepValidation):
    """Published steps of all sources, the worst first where rows are shown."""

    SCHEMA: ClassVar[str] = "validate-training"

    def errors(self, steps: Sequence[ComparedStep], is_calibrated: bool = False) -> Errors | None:
        """Return errors over sources, which weigh the same; None without steps."""
        counted = [step for step in steps if not is_calibrated or step.calibrated_s is not None]
        errors = []
        for step in counted:
            errors.append(cast(float, step.calibrated_error) if is_calibrated else step.error)
        return Errors.of_some(errors, source_weights(counted))

    def grouped(self, by: str, is_calibrated: bool = False) -> list[tuple[str, Errors]]:
        """Return errors of counted rows by source, GPU, software or scale, the largest mean first."""
        groups = grouped(self.counted, lambda step: step.group(by)).items()
        rows = []
        for name, steps in groups:
            if errors := self.errors(steps, is_calibrated):
                rows.append((name, errors))
        return sorted(rows, key=lambda row: -row[1].mean)

    def votes(self) -> list[tuple[str, Errors]]:
        """Return errors by group, of the tuned sources, whose groups have one vote each; the largest mean first."""
        steps = [step for step in self.counted if step.row.source.set == TUNED]
        rows = list(errors_by(steps, lambda step: step.row.group, lambda step: step.error).items())
        return sorted(rows, key=lambda row: -row[1].mean)

    def voted(self) -> Errors | None:
        """Return the errors over the groups of :meth:`votes`: one signed mean error a group; None without groups."""
        return Errors.of_some([errors.bias for _, errors in self.votes()])

    def apart(self) -> list[tuple[str, str, Errors]]:
        """Return source, reason and errors of the rows that are shown apart and count nowhere."""
        steps = [step for step in self.compared if step.row.apart]
        errors_by_reason = errors_by(steps, lambda step: (step.row.source.key, step.row.apart), lambda step: step.error)
        return [(source, why, errors) for (source, why), errors in errors_by_reason.items()]

    @property
    def headline(self) -> str:
        """How far predictions are off, over sources."""
        errors = self.errors(self.counted)
        sample = "sample: " if self.is_sample else ""
        if errors is None:
            return f"{sample}no row that counts was predicted"
        sources = len({step.group("source") for step in self.counted})
        fitted = self.errors(self.counted, True)
        ending = (
            "" if fitted is None else f"; with fitted factors {fitted.mean:.1%}, {fitted.p90:.1%}, {fitted.bias:+.1%}"
        )
        return (
            f"{sample}{errors.count} published steps of {sources} sources, each weighing the same: off by "
            f"{errors.mean:.1%} on average, nine of ten within {errors.p90:.1%}, bias {errors.bias:+.1%} (blind)"
            f"{ending}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        steps_apart = [step for step in self.compared if step.row.apart]
        lines = [f"{len(steps_apart)} rows are shown apart and count nowhere"] if steps_apart else []
        return (*lines, *([f"{len(self.failed)} rows were not predicted"] if self.failed else []))

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """Return errors by source, GPU, software and scale, the worst rows with open facts, and the other rows."""
        yield from map(self._group_lines, GROUPS)
        yield from self.tuned_paragraphs()
        yield precision_lines()
        worst = [line for step in self.worst()[:NUM_WORST] for line in _worst_lines(step)]
        if worst:
            yield ["worst rows", *worst]
        if apart := self.apart():
            head, *rows = error_lines("apart, counted nowhere", ((name, errors) for name, _, errors in apart), 24)
            yield [head, *(line for row, (_, why, _) in zip(rows, apart, strict=True) for line in (row, f"    {why}"))]
        if self.failed:
            yield ["not predicted", *(f"  {s.row.source.key}: {s.row.name}: {s.answer.why_not}" for s in self.failed)]

    def tuned_paragraphs(self) -> Iterable[Sequence[str]]:
        """Return errors by group of tuned software, one vote each, and the groups that are left out."""
        if voted := self.voted():
            yield error_lines("tuned software, one vote a group", [*self.votes(), ("all groups", voted)], 32)
            yield ["tuned software, left out", *left_out_lines()]

    def _group_lines(self, by: str) -> list[str]:
        fitted = dict(self.grouped(by, True))
        head = (f"by {by}", *HEAD, *(("fitted:", "bias", "mean", "p90") if fitted else ()))
        rows = [(name, *cells(errors)) for name, errors in self.grouped(by)]
        if fitted:
            rows = [(*row, "", *fitted_cells(fitted.get(row[0]))) for row in rows]
        return aligned([head, *rows], 20) if rows else []

    def document(self) -> Row:
        """Return ``errors`` over sources, ``groups`` by :data:`GROUPS`, ``rows``, ``apart`` and ``not_predicted``.

        Times in seconds, errors as fractions. ``stored``: origin of a stored report.
        """
        errors, fitted = self.errors(self.counted), self.errors(self.counted, True)
        blind_row = None if errors is None else errors.row()
        calibrated_row = None if fitted is None else fitted.row()
        left_out = load_left_out() if self.voted() else []
        apart_rows = [step_row(step) for step in self.compared if step.row.apart]
        not_predicted = [{"row": s.row.name, "why": s.answer.why_not} for s in self.failed]
        return {
            **self.replayed(),
            "finished": self.finished,
            "targets": {"mean_error_max": BLIND.mean, "p90_error_max": BLIND.p90, "bias_max": BLIND.bias},
            "errors": blind_row,
            "calibrated_errors": calibrated_row,
            **self.tables(),
            "left_out": left_out,
            "apart": apart_rows,
            "not_predicted": not_predicted,
            "precisions": [each.model_dump() for each in precision_errors()],
        }

    def tables(self) -> dict[str, Table]:
        """Return ``groups`` and ``rows`` of :meth:`document`, the worst first."""
        groups = [{"by": by, "group": name, **errors.row()} for by in GROUPS for name, errors in self.grouped(by)]
        groups += [{"by": "group", "group": name, **errors.row()} for name, errors in self.votes()]
        return {"groups": groups, "rows": [step_row(step) for step in self.worst()]}

    def worst(self) -> list[ComparedStep]:
        """Return counted rows, the largest factor between prediction and measurement first."""
        return sorted(self.counted, key=lambda step: -abs(np.log1p(step.error)))


def left_out_lines() -> list[str]:
    """Return the groups of tuned rows that are not compared, with the number of rows and the reason."""
    return [f"  {row['group']} (rows: {row['rows']}): {row['reason']}" for row in load_left_out()]


def step_row(step: ComparedStep) -> Row:
    """Return a row and its prediction as plain data."""
    row, answer = step.row, step.answer
    return {
        "row": row.name, "source": row.source.key, "model": row.model, "gpu": row.gpu, "num_gpus": row.num_gpus,
        "software": answer.software, "measured_s": step.measured_s, "predicted_s": answer.step_s, "error": step.error,
        "calibrated_s": step.calibrated_s, "calibrated_error": step.calibrated_error,
        "tokens_per_s": row.tokens / answer.step_s, "simulated_micro_batches": answer.simulated,
        "micro_batches": answer.micro_batches, "open": list(row.open), "apart": row.apart or None,
    }  # fmt: skip


def validate_training(
    *,
    sample: bool = False,
    sources: Sequence[str] | None = None,
    software: Software | str | None = None,
    blind: bool = False,
    most_rows: int | None = None,
    answers: Answers | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TrainingValidation:
    """Predict the bundled steps (of some sources, or sets of sources such as ``tuned``) and compare.

    sample: a few cheap rows of each source. software: another profile for all rows, by name or file; ``none`` for no
    profile. blind: fit no factors either; a sample fits none. most_rows: maximum of counted rows per source, chosen by
    the hash of their names. answers: cached answers (None: cache nothing). jobs: as in
    :func:`validation.replay_rows.replay`. progress: called with the work done and all work, in milliseconds of
    CPU time.

    Raises InputError for an unknown source or profile, and if ``most_rows`` or ``jobs`` is below 1.
    """
    if most_rows is not None and most_rows < 1:
        raise InputError(f"must be at least 1, got {most_rows}", field="most_rows")
    rows, usual = chosen_rows(sources, sample), Ask.of(software)
    if most_rows is not None:
        rows = thinned(rows, most_rows, lambda row: row.source.key)
    if sample or blind:
        refitted = []
    else:
        refitted = [row for row in rows if not row.apart and row.source.set != TUNED]
    count_row = ReplayProgress("training", (row.name for row in (*rows, *refitted)), progress)
    ask = partial(replay, answers=answers, jobs=jobs, done=count_row)
    steps = compared(rows, ask(rows, usual))
    if sample or blind:
        return TrainingValidation(steps=steps, is_sample=sample)
    tuned = [step for step in steps if step.row.source.set == TUNED]
    others = [step for step in steps if step.row.source.set != TUNED]
    # A second simulation of the tuned rows takes 5 CPU minutes: their factors scale the critical path alone.
    fitted = {step.row.name: step for step in (*calibrated(others, ask, usual), *calibrated(tuned))}
    return TrainingValidation(steps=tuple(fitted[step.row.name] for step in steps))


def load_stored_training() -> TrainingValidation:
    """Return the stored report of all rows, without a replay."""
    origin, content = read_stored("training")
    return TrainingValidation(steps=read_steps(content["rows"], chosen_rows(None, False)), stored=origin)


def chosen_rows(sources: Sequence[str] | None, sample: bool) -> list[TrainingRow]:
    """Return rows with a measured step: of all sources, with the layouts of Ultra-Scale on one node."""
    layouts = [row for row in load_layouts() if row.step_s is not None and row.apart == ""]
    one_node = [row for row in layouts if row.num_nodes == 1]
    rows = [row for row in (*load_rows(), *one_node) if row.step_s is not None or row.fault]
    names = sources_of(sources or ())
    check_sources(names, list(dict.fromkeys(row.source.key for row in rows)))
    rows = [row for row in rows if not names or row.source.key in names]
    if sample:
        return sampled(rows, SAMPLE_ROWS, lambda row: row.source.key)
    return rows


def sampled(rows: Sequence[TrainingRow], count: int, group: Callable[[TrainingRow], Hashable]) -> list[TrainingRow]:
    """Return ``count`` counted rows of each group: the first by hash among the cheap ones.

    Groups with fewer than two cheap rows also give their two cheapest others.
    """
    sample: list[TrainingRow] = []
    for members in grouped((row for row in rows if not row.apart), group).values():
        ranked = shuffled(members)
        cheap = [row for row in ranked if cost(row) <= SAMPLE_COST][:count]
        expensive = sorted((row for row in ranked if cost(row) > SAMPLE_COST), key=cost)
        sample += cheap if len(cheap) > 1 else [*cheap, *expensive[:2]]
    return sample


def thinned(rows: Sequence[TrainingRow], limit: int, group: Callable[[TrainingRow], str]) -> list[TrainingRow]:
    """Return the first ``limit`` counted rows of each group, by hash."""
    groups = grouped(shuffled(row for row in rows if not row.apart), group)
    return [row for members in groups.values() for row in members[:limit]]


def fitted_cells(errors: Errors | None) -> tuple[str, ...]:
    """Return a table's cells for errors with fitted factors, empty for None."""
    return ("",) * 3 if errors is None else (f"{errors.bias:+.1%}", f"{errors.mean:.1%}", f"{errors.p90:.1%}")


def layout_words(row: TrainingRow, separator: str = "") -> str:
    """Return the degrees of a row's layout above one, such as ``dp8 tp2``."""
    plan = row.plan()
    degrees = {name: getattr(plan, name) for name in ("dp", "tp", "pp")}
    return " ".join(f"{name}{separator}{degree}" for name, degree in degrees.items() if degree > 1)


def _worst_lines(step: ComparedStep) -> list[str]:
    row = step.row
    first = (
        f"  {step.error:+7.1%}  {row.name}: {row.model}, {row.num_gpus} x {row.gpu} {layout_words(row)}, "
        f"{step.measured_s:.4g} s measured, {step.answer.step_s:.4g} s predicted"
    )
    return [first, *([f"           open: {'; '.join(row.open)}"] if row.open else [])]
