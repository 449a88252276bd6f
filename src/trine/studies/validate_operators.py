"""How far operator times by measured tables are off where nothing was measured.

Three questions, each asked of shapes (or GPUs) that the table was not given: the time of a shape on a GPU that was
measured at other shapes; a measured time moved to another GPU by the ratio of the two tables; the time on a GPU of
which nothing is known but its data sheet. The error is predicted / measured - 1; all shapes count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import ClassVar, NamedTuple

import numpy as np

from trine.arrays import Float64
from trine.compute.tables.deepbench import BENCH_DTYPES
from trine.compute.tables.fp32_errors import bench_left_out_us, from_another_us, left_out_us
from trine.compute.tables.fp32_rows import DEEPBENCH, NEUSIGHT, measured
from trine.errors import InputError, nearest
from trine.results.report import Report, Row, Table

#: Of each fold, every so-manieth shape is asked in a sample.
SAMPLED = 10
TABLES = ("bmm", "linear", "conv", "elementwise", "layer_norm", "softmax")
#: GPUs between which recorded times are moved, and the mean absolute error that each ordered pair may have.
MOVED = ("v100-pcie", "p100-pcie", "t4", "a100-pcie-40gb")
MOVED_TARGET = 0.15
#: What was left out.
SHAPES, ANOTHER, GPU = "shapes", "another GPU", "GPU"
#: A GPU, and another one whose tables stand for it where its own are left out.
_INSTEAD = {
    "v100-pcie": "a100-pcie-40gb", "a100-pcie-40gb": "v100-pcie", "p100-pcie": "v100-pcie", "t4": "v100-pcie",
    "mi210": "mi100", "mi100": "mi210",
}  # fmt: skip
_PASSES = ("conv, layers", "conv, gradient of the input", "conv, gradient of the weight")
ALL = "all"


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


class OperatorQuestion(NamedTuple):
    """Of which operators on which GPU; source: whose measurements stand behind it. what: SHAPES, ANOTHER or GPU."""

    what: str
    operator: str
    gpu: str
    source: str
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorErrors:
    """Errors of one kind of operators on one GPU, as parts of one.

    median, mean, p90, worst: of the absolute error; bias: mean of the signed one. target: of the mean, None where there
    is none.
    """

    about: OperatorQuestion
    count: int
    median: float
    mean: float
    p90: float
    worst: float
    bias: float
    target: float | None = None

    @property
    def meets(self) -> bool | None:
        """Whether the mean is within the target."""
        return None if self.target is None else self.mean <= self.target

    def row(self) -> Row:
        """As JSON has it."""
        return {
            **self.about._asdict(),
            "num_points": self.count, "median_error": self.median, "mean_error": self.mean, "p90_error": self.p90,
            "worst_error": self.worst, "bias": self.bias, "target_mean_error": self.target, "meets_target": self.meets,
        }  # fmt: skip


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
                f"; moved to another GPU: {met} of {len(pairs)} pairs within {MOVED_TARGET:.0%}, the worst "
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
    return (
        f"{about.gpu:16} {'' if about.source == about.gpu else about.source:16} {about.operator:28} {about.dtype:9} "
        f"{each.count:6} {each.median:7.1%} {each.mean:6.1%} {each.p90:6.1%} {each.worst:7.0%}"
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


def errors_of(
    predicted: Float64, actual: Float64, about: OperatorQuestion, target: float | None = None
) -> list[OperatorErrors]:
    """Statistics of predictions and measurements, in any unit; none where nothing was measured (NaN)."""
    known = np.isfinite(predicted) & np.isfinite(actual)
    if not known.any():
        return []
    signed = predicted[known] / actual[known] - 1
    off = np.abs(signed)
    return [
        OperatorErrors(
            about=about, count=len(off), median=float(np.median(off)), mean=float(off.mean()), target=target,
            p90=float(np.quantile(off, 0.9)), worst=float(off.max()), bias=float(signed.mean()),
        )
    ]  # fmt: skip


Step = Callable[[], list[OperatorErrors]]


def steps(gpus: Sequence[str] = (), *, every: int = 1) -> list[Step]:
    """The questions, each a function that answers it; together they make an :class:`OperatorValidation`.

    gpus: those that are asked about, by default all with measurements. Raises InputError for one without.
    """
    known = known_gpus_measured()
    for name in gpus:
        if name not in known:
            raise InputError(f"no operators of {name!r} were measured{nearest(name, known)}", field="--gpu")
    chosen = gpus or known
    found: list[Step] = [partial(_shapes, gpu, table, every) for gpu, table in _tables(chosen)]
    found += [partial(_bench, gpu) for gpu in measured(DEEPBENCH, "conv").times_us if gpu in chosen]
    pairs = [(a, b) for a, b in permutations(MOVED, 2) if a in chosen or b in chosen]
    found += [partial(_pair, source, gpu, every) for source, gpu in pairs]
    found += [partial(_instead, gpu, table, every) for gpu, table in _tables(chosen) if table in _has(_INSTEAD[gpu])]
    return found


def known_gpus_measured() -> tuple[str, ...]:
    """GPUs whose operators were measured."""
    return tuple(dict.fromkeys((*measured(NEUSIGHT, "bmm").times_us, *measured(DEEPBENCH, "conv").times_us)))


def validate_operators(gpus: Sequence[str] = (), *, every: int = 1) -> OperatorValidation:
    """Answer all of :func:`steps`. ``every``: 10 asks one of ten shapes; all of them take minutes."""
    return OperatorValidation(errors=tuple(answers(steps(gpus, every=every))), every=every)


def answers(asked: Sequence[Step]) -> Iterator[OperatorErrors]:
    """What each step found, as it is found."""
    for step in asked:
        yield from step()


def _has(gpu: str) -> tuple[str, ...]:
    return tuple(table for table in TABLES if gpu in measured(NEUSIGHT, table).times_us)


def _tables(gpus: Sequence[str]) -> list[tuple[str, str]]:
    return [(gpu, table) for gpu in gpus for table in _has(gpu)]


def _shapes(gpu: str, table: str, every: int) -> list[OperatorErrors]:
    return errors_of(*left_out_us(gpu, table, every), OperatorQuestion(SHAPES, table, gpu, gpu))


def _bench(gpu: str) -> list[OperatorErrors]:
    return [
        each
        for dtype in BENCH_DTYPES
        for direction, name in enumerate(_PASSES)
        for each in errors_of(
            *bench_left_out_us(gpu, dtype, direction), OperatorQuestion(SHAPES, name, gpu, gpu, dtype)
        )
    ]


def _pair(source: str, gpu: str, every: int) -> list[OperatorErrors]:
    """All tables, and each."""
    moved, actual = [], []
    for table in TABLES:
        here, there = left_out_us(gpu, table, every), left_out_us(source, table, every)
        moved.append(there[1] * here[0] / there[0])
        actual.append(here[1])
    found = errors_of(np.concatenate(moved), np.concatenate(actual), _about(ALL, source, gpu), MOVED_TARGET)
    for table, one, other in zip(TABLES, moved, actual, strict=True):
        found += errors_of(one, other, _about(table, source, gpu), MOVED_TARGET)
    return found


def _about(table: str, source: str, gpu: str) -> OperatorQuestion:
    return OperatorQuestion(ANOTHER, table, gpu, source)


def _instead(gpu: str, table: str, every: int) -> list[OperatorErrors]:
    source = _INSTEAD[gpu]
    return errors_of(*from_another_us(gpu, source, table, every), OperatorQuestion(GPU, table, gpu, source))
