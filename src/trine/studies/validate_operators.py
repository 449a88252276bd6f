"""How far operator times by measured tables are off where nothing was measured.

Three questions, each asked of shapes (or GPUs) that the table was not given: the time of a shape on a GPU that was
measured at other shapes; a measured time moved to another GPU by the ratio of the two tables; the time on a GPU of
which nothing is known but its data sheet. The error is predicted / measured - 1; all shapes count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from trine.results.report import Report, Row, Table
from trine.studies.operator_errors import (
    ALL,
    ANOTHER,
    GPU,
    MOVED_TARGET,
    SHAPES,
    TABLES,
    OperatorErrors,
    answers,
    steps,
)


class PublishedError(NamedTuple):
    """What others publish: who, of what, in words, and where."""

    name: str
    of: str
    error: str
    source: str


PEERS = (
    PublishedError("aiconfigurator", "products in bfloat16, shapes left out", "median 3.63 %, 90 % within 14.7 %",
         "its own tables and interpolation (ai-dynamo/aiconfigurator), whole shapes left out"),
    PublishedError("aiconfigurator", "attention forward, shapes left out", "median 2.0 %, 90 % within 9.7 %",
         "its own tables and interpolation (ai-dynamo/aiconfigurator), whole shapes left out"),
    PublishedError("NeuSight", "a step of GPT-3 on an H100, neither of them seen", "2.3 %",
         "Lee et al., Forecasting GPU Performance for Deep Learning Training and Inference, ASPLOS 2025"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class OperatorValidation(Report):
    """All errors that were found. every: of each fold, each so-manieth shape was asked. finished: False: stopped."""

    SCHEMA: ClassVar[str] = "validate-operators"

    errors: tuple[OperatorErrors, ...]
    every: int = 1
    finished: bool = True

    @property
    def headline(self) -> str:
        """How many predictions, and whether the pairs of GPUs meet their target."""
        pairs = [each for each in self.of(ANOTHER) if each.about.operator == ALL]
        asked = sum(each.count for each in self.of(SHAPES))
        text = f"{asked} shapes predicted from others' measurements"
        if pairs:
            worst = max(pairs, key=lambda each: each.mean)
            met = sum(each.meets is True for each in pairs)
            text += (
                f"; moved to another GPU: {met} of {len(pairs)} pairs within {MOVED_TARGET.mean:.0%}, the worst "
                f"{worst.about.source} to {worst.about.gpu} {worst.mean:.1%}"
            )
        return text

    def of(self, what: str) -> list[OperatorErrors]:
        """Errors of one question, in the order in which they were found."""
        return [each for each in self.errors if each.about.what == what]

    def summary(self) -> str:
        """Return a table a question, the worst median first, and what others publish."""
        lines = [self.headline, *self.notes]
        for what, title in _TITLES.items():
            rows = sorted(self.of(what), key=lambda each: (-each.median, each.about.gpu, each.about.operator))
            if what == ANOTHER:
                lines += _pair_lines(rows)
            elif rows:
                lines += ["", title, _HEAD, *map(_line, rows)]
        width = max(len(peer.of) for peer in PEERS)
        lines += ["", "published by others", *(f"{p.name:15} {p.of:{width}}  {p.error}" for p in PEERS)]
        return "\n".join(lines)

    @property
    def notes(self) -> tuple[str, ...]:
        """What part of the shapes was asked."""
        return () if self.every == 1 else (f"a sample: one of {self.every} shapes",)

    def document(self) -> Row:
        """Return ``errors``, ``peers``, and how the shapes were chosen."""
        return {
            **self.tables(),
            "peers": [peer._asdict() for peer in PEERS],
            "sampled": self.every,
            "notes": list(self.notes),
            "finished": self.finished,
        }

    def tables(self) -> dict[str, Table]:
        """Return ``errors``, a row a question, GPU, operator and dtype."""
        rows: list[Row] = [each.row() for each in self.errors]
        return {"errors": rows}


_TITLES = {
    SHAPES: "shapes left out: predicted from the other shapes of the same GPU",
    ANOTHER: "another GPU",
    GPU: "a GPU left out: predicted from another one's measurements and the two data sheets",
}
_HEAD = f"{'GPU':16} {'from':16} {'operator':28} {'dtype':9} shapes  median   mean   90 %   worst"


def _line(each: OperatorErrors) -> str:
    about = each.about
    met = {None: "", True: "  target met", False: "  target missed"}[each.meets]
    return (
        f"{about.gpu:16} {'' if about.source == about.gpu else about.source:16} {about.operator:28} {about.dtype:9} "
        f"{each.count:6} {each.median:7.1%} {each.mean:6.1%} {each.p90:6.1%} {each.worst:7.0%}{met}"
    )


def _pair_lines(rows: Sequence[OperatorErrors]) -> list[str]:
    """Mean absolute errors, a line a pair and a column a table."""
    if not rows:
        return []
    names = [ALL, *(name for name in TABLES if any(each.about.operator == name for each in rows))]
    lines = ["", "another GPU: measured time x ratio of the tables, the shape's fold in neither; mean of |error|"]
    lines.append(f"{'from':16} {'to':16}" + "".join(f"{name:>12}" for name in names))
    found = {(each.about.source, each.about.gpu, each.about.operator): each for each in rows}
    for source, gpu in dict.fromkeys(
        (each.about.source, each.about.gpu) for each in sorted(rows, key=lambda x: (x.about.source, x.about.gpu))
    ):
        cells = [found.get((source, gpu, name)) for name in names]
        lines.append(
            f"{source:16} {gpu:16}" + "".join(f"{'' if x is None else format(x.mean, '.1%'):>12}" for x in cells)
        )
    return lines


def validate_operators(gpus: Sequence[str] = (), *, every: int = 1) -> OperatorValidation:
    """Answer all of :func:`steps`. ``every``: 10 asks one of ten shapes; all of them take minutes."""
    return OperatorValidation(errors=tuple(answers(steps(gpus, every=every))), every=every)
