"""Validation of operator times from measured tables, for shapes and GPUs excluded from the tables.

There are three questions: the time of a new shape on a GPU measured at other shapes; a measured time moved to another
GPU by the ratio of the two tables; the time on a GPU known only by its data sheet. The error is
predicted / measured - 1; all shapes have equal weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import ClassVar, NamedTuple

import numpy as np

from trine.cluster.presets import load_gpu
from trine.common.arrays import Float64
from trine.common.precision import CASTS
from trine.compute.tables.convolutions import BENCH_DTYPES, bench_gpus
from trine.compute.tables.files import known_tables, read_arrays
from trine.compute.tables.fp32_files import DEEPBENCH, NEUSIGHT, measured
from trine.compute.tables.operators import OperatorTables
from trine.errors import InputError, nearest
from trine.results.report import Row, Table
from trine.results.stored import blocks
from trine.results.text import aligned, wrapped_at
from validation import left_out
from validation.harness import Errors, Target, Validation

#: A sample takes every Nth shape of each fold.
SAMPLED = 10
TABLES = ("bmm", "linear", "conv", "elementwise", "layer_norm", "softmax")
#: GPUs between which recorded times are moved.
MOVED = ("v100-pcie", "p100-pcie", "t4", "a100-pcie-40gb")
#: Kinds of data left out.
SHAPES, ANOTHER, GPU = "shapes", "another GPU", "GPU"
#: GPU -> the substitute GPU whose tables predict it when its tables are excluded.
_INSTEAD = {
    "v100-pcie": "a100-pcie-40gb", "a100-pcie-40gb": "v100-pcie", "p100-pcie": "v100-pcie", "t4": "v100-pcie",
    "mi210": "mi100", "mi100": "mi210",
}  # fmt: skip
_PASSES = ("conv, layers", "conv, gradient of the input", "conv, gradient of the weight", "conv, both gradients")
#: Minimum number of layers for leaving out a fifth of them at a time.
_MIN_LAYERS = 20
#: GPUs with float16 GEMMs in DeepBench, and the minimum m, n, k of large GEMMs there.
_FLOAT16_BENCHED, _LARGE = ("v100", "t4"), 512
_DTYPES = ("bfloat16", *CASTS)
ALL = "all"


NO_TARGET = Target()
#: Target for times moved to another GPU, for each ordered pair (trine issue 14).
MOVED_TARGET = Target(mean=0.15)
#: Targets for left-out shapes, by operator and dtype, and for large GEMMs on a left-out GPU, by its kind of source.
_SHAPE_TARGETS = {
    ("gemm", "bfloat16"): Target(median=0.04, p90=0.14), ("attention", "bfloat16"): Target(median=0.025, p90=0.10),
}  # fmt: skip
_GPU_TARGETS = {
    "same generation": Target(mean=0.08), "next generation": Target(mean=0.14), "one rate": Target(mean=0.14),
}  # fmt: skip


class OperatorQuestion(NamedTuple):
    """Operators and GPU of a validation. source: GPU that was measured. what: SHAPES, ANOTHER or GPU."""

    what: str
    operator: str
    gpu: str
    source: str
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorErrors(Errors):
    """Errors of one kind of operator on one GPU."""

    about: OperatorQuestion
    target: Target = NO_TARGET

    @property
    def meets(self) -> bool | None:
        """Whether the errors are within the target; None without a target."""
        return self.target.met(self)

    def row(self) -> Row:
        """Return the errors as a row for JSON."""
        return {
            **self.about._asdict(),
            "num_points": self.count, "median_error": self.median, "mean_error": self.mean, "p90_error": self.p90,
            "worst_error": self.worst, "bias": self.bias,
            "target_median_error": self.target.median, "target_mean_error": self.target.mean,
            "target_p90_error": self.target.p90, "meets_target": self.meets,
        }  # fmt: skip


def errors_of(
    predicted: Float64, actual: Float64, question: OperatorQuestion, target: Target = NO_TARGET
) -> list[OperatorErrors]:
    """Return statistics of relative errors, for times in any unit; [] if all are NaN (not measured)."""
    is_measured = np.isfinite(predicted) & np.isfinite(actual)
    signed = predicted[is_measured] / actual[is_measured] - 1
    return [OperatorErrors.interpolated(signed, about=question, target=target)] if is_measured.any() else []


Step = Callable[[], list[OperatorErrors]]


def steps(gpus: Sequence[str] = (), *, every: int = 1) -> list[Step]:
    """Return functions that each validate one question; their errors make an :class:`OperatorValidation`.

    gpus: default all GPUs with measurements. Raises InputError for a GPU without measurements.
    """
    measured_gpus = known_gpus_measured()
    for name in gpus:
        if name not in measured_gpus:
            raise InputError(f"no operators of {name!r} were measured{nearest(name, measured_gpus)}", field="--gpu")
    chosen = gpus or measured_gpus
    tasks: list[Step] = [partial(_products, gpu, every) for gpu in sorted(known_tables()) if gpu in chosen]
    tasks += [partial(_shapes, gpu, table, every) for gpu, table in _tables(chosen)]
    tasks += [partial(_bench, gpu) for gpu in bench_gpus() if gpu in chosen]
    pairs = [(a, b) for a, b in permutations(MOVED, 2) if a in chosen or b in chosen]
    tasks += [partial(_pair, source, gpu, every) for source, gpu in pairs]
    tasks += [partial(_gpu_left_out, *names, every) for names in left_out.GPUS_LEFT_OUT if names[0] in chosen]
    tasks += [partial(_bench_products, gpu) for gpu in _FLOAT16_BENCHED if gpu in chosen]
    tasks += [partial(_substitute, gpu, table, every) for gpu, table in _tables(chosen) if table in _has(_INSTEAD[gpu])]
    return tasks


def known_gpus_measured() -> tuple[str, ...]:
    """Return the GPUs with measured operators."""
    return tuple(dict.fromkeys((*sorted(known_tables()), *measured(NEUSIGHT, "bmm").times_us, *bench_gpus())))


def answers(questions: Sequence[Step]) -> Iterator[OperatorErrors]:
    """Yield the errors of each step as soon as it ends."""
    for step in questions:
        yield from step()


def _has(gpu: str) -> tuple[str, ...]:
    return tuple(table for table in TABLES if gpu in measured(NEUSIGHT, table).times_us)


def _tables(gpus: Sequence[str]) -> list[tuple[str, str]]:
    return [(gpu, table) for gpu in gpus for table in _has(gpu)]


def _products(gpu: str, every: int) -> list[OperatorErrors]:
    """Validate GEMMs and attention in 16 bits and fewer, in turn."""

    def errors(operator: str, dtype: str, times: tuple[Float64, Float64]) -> list[OperatorErrors]:
        target = _SHAPE_TARGETS.get((operator, dtype), NO_TARGET)
        return errors_of(*times, OperatorQuestion(SHAPES, operator, gpu, gpu, dtype), target)

    names, all_errors = read_arrays(gpu), []
    for dtype in _DTYPES:
        if f"gemm_{dtype}" in names:
            all_errors += errors("gemm", dtype, left_out.gemm_shapes_left_out(gpu, dtype, every=every))
    if "attention" in names:
        all_errors += errors("attention", "bfloat16", left_out.attention_shapes_left_out(gpu, every=every))
    return all_errors


def _gpu_left_out(gpu: str, source: str, basis: str, every: int) -> list[OperatorErrors]:
    """Predict large GEMMs of a GPU from another GPU's table."""
    question = OperatorQuestion(GPU, f"large gemm, {basis}", gpu, source, "bfloat16")
    return errors_of(*left_out.gemm_gpu_left_out(gpu, source, basis, every=every), question, _GPU_TARGETS[basis])


def _bench_products(gpu: str) -> list[OperatorErrors]:
    """Predict DeepBench's float16 GEMMs, which the tables do not contain (for T4 they have one sustained rate)."""
    rows = measured(DEEPBENCH, "gemm")
    is_float16 = (rows.shapes[:, 0] == BENCH_DTYPES.index("float16")) & np.isfinite(rows.times_us[gpu])
    tables = OperatorTables(load_gpu(gpu))
    predictions = [tables.gemm(m, n, k, "float16") for m, n, k in rows.shapes[is_float16, 1:4].tolist()]
    times = [(each.us, each.source) for each in predictions if each is not None]
    question = OperatorQuestion(GPU, "gemm of DeepBench", gpu, times[0][1], "float16")
    large = (rows.shapes[is_float16, 1:4] >= _LARGE).all(axis=1)
    predicted, actual = np.array([us for us, _ in times]), rows.times_us[gpu][is_float16]
    name = f"large {question.operator}"
    return errors_of(predicted, actual, question) + errors_of(
        predicted[large], actual[large], question._replace(operator=name)
    )


def _shapes(gpu: str, table: str, every: int) -> list[OperatorErrors]:
    return errors_of(*left_out.left_out_us(gpu, table, every), OperatorQuestion(SHAPES, table, gpu, gpu))


def _bench(gpu: str) -> list[OperatorErrors]:
    errors: list[OperatorErrors] = []
    for dtype in BENCH_DTYPES:
        for direction, name in enumerate(_PASSES):
            predicted, actual = left_out.bench_left_out_us(gpu, dtype, direction)
            if len(actual) >= _MIN_LAYERS:
                errors += errors_of(predicted, actual, OperatorQuestion(SHAPES, name, gpu, gpu, dtype))
    return errors


def _pair(source: str, gpu: str, every: int) -> list[OperatorErrors]:
    """Validate a pair of GPUs on all tables together, then on each."""
    predicted, actual = [], []
    for table in TABLES:
        on_gpu, on_source = left_out.left_out_us(gpu, table, every), left_out.left_out_us(source, table, every)
        predicted.append(on_source[1] * on_gpu[0] / on_source[0])
        actual.append(on_gpu[1])
    errors = errors_of(np.concatenate(predicted), np.concatenate(actual), _question(ALL, source, gpu), MOVED_TARGET)
    for table, table_predicted, table_actual in zip(TABLES, predicted, actual, strict=True):
        errors += errors_of(table_predicted, table_actual, _question(table, source, gpu), MOVED_TARGET)
    return errors


def _question(table: str, source: str, gpu: str) -> OperatorQuestion:
    return OperatorQuestion(ANOTHER, table, gpu, source)


def _substitute(gpu: str, table: str, every: int) -> list[OperatorErrors]:
    source = _INSTEAD[gpu]
    return errors_of(*left_out.from_another_us(gpu, source, table, every), OperatorQuestion(GPU, table, gpu, source))


# -- the result --------------------------------------------------------------------------------------------------------


class PublishedError(NamedTuple):
    """Error published by another simulator: its name, the operators, the error as text, and the source."""

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
class OperatorValidation(Validation):
    """All errors of a validation. every: N if every Nth shape of each fold was predicted."""

    SCHEMA: ClassVar[str] = "validate-operators"

    errors: tuple[OperatorErrors, ...]
    every: int = 1

    @property
    def headline(self) -> str:
        """Number of predictions, and of GPU pairs that meet their target."""
        pairs = [each for each in self.of(ANOTHER) if each.about.operator == ALL]
        num_shapes = sum(each.count for each in self.of(SHAPES))
        text = f"{num_shapes} shapes predicted from others' measurements"
        if pairs:
            worst = max(pairs, key=lambda each: each.mean)
            met = sum(each.meets is True for each in pairs)
            text += (
                f"; moved to another GPU: {met} of {len(pairs)} pairs within {MOVED_TARGET.mean:.0%}, the worst "
                f"{worst.about.source} to {worst.about.gpu} {worst.mean:.1%}"
            )
        return text

    def of(self, kind: str) -> list[OperatorErrors]:
        """Return the errors of one question, in the order of the steps."""
        return [each for each in self.errors if each.about.what == kind]

    def details(self) -> str:
        """Return the headline with the notes below it, and all paragraphs."""
        return blocks([*wrapped_at("", self.headline, 0), *self.notes], *self.paragraphs())

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """Return one table per question, worst median first, and the errors published by others."""
        for kind, title in _TITLES.items():
            rows = sorted(self.of(kind), key=lambda each: (-each.median, each.about.gpu, each.about.operator))
            if rows:
                yield [title, *(_pair_lines(rows) if kind == ANOTHER else _table(rows))]
        yield ["published by others", *aligned([(peer.name, peer.of, peer.error) for peer in PEERS], 15, left=3)]

    @property
    def notes(self) -> tuple[str, ...]:
        """Size of the sample, if not all shapes were predicted."""
        return () if self.every == 1 else (f"a sample: one of {self.every} shapes",)

    def document(self) -> Row:
        """Return ``errors``, ``peers`` and the sampling of shapes."""
        return {
            **self.tables(), "peers": [peer._asdict() for peer in PEERS], "sampled": self.every,
            "notes": list(self.notes), "finished": self.finished,
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``errors``, with one row per question, GPU, operator and dtype."""
        return {"errors": [each.row() for each in self.errors]}


_TITLES = {
    SHAPES: "shapes left out: predicted from the other shapes of the same GPU",
    ANOTHER: "another GPU: measured time x ratio of the tables, the shape's fold in neither; mean of |error|",
    GPU: "a GPU left out: predicted from another one's measurements and the two data sheets",
}


def _table(rows: Sequence[OperatorErrors]) -> list[str]:
    """Return a line per GPU, operator and type; the column of sources only if some are other GPUs."""
    is_moved = any(errors.about.source != errors.about.gpu for errors in rows)
    head = ("GPU", "from", "operator", "dtype", "shapes", "median", "mean", "90 %", "worst", "")
    lines = [head]
    for errors in rows:
        question, met = errors.about, {None: "", True: "target met", False: "target missed"}[errors.meets]
        source = "" if question.source == question.gpu else question.source
        percentages = (f"{errors.median:.1%}", f"{errors.mean:.1%}", f"{errors.p90:.1%}", f"{errors.worst:.0%}")
        lines.append((question.gpu, source, question.operator, question.dtype, f"{errors.count}", *percentages, met))
    if is_moved:
        return aligned(lines, 16, left=4)
    return aligned([(line[0], *line[2:]) for line in lines], 16, left=3)


def _pair_lines(rows: Sequence[OperatorErrors]) -> list[str]:
    """Return lines of mean absolute errors, one line per pair and one column per table."""
    names = [ALL, *(name for name in TABLES if any(each.about.operator == name for each in rows))]
    means = {(each.about.source, each.about.gpu, each.about.operator): f"{each.mean:.1%}" for each in rows}
    pairs = sorted({pair[:2] for pair in means})
    cells = ((*pair, *(means.get((*pair, name), "") for name in names)) for pair in pairs)
    return aligned([("from", "to", *names), *cells], 16, left=2)


def validate_operators(gpus: Sequence[str] = (), *, every: int = 1) -> OperatorValidation:
    """Validate all of :func:`steps`. ``every``: 10 takes one shape in ten; all shapes take minutes."""
    return OperatorValidation(errors=tuple(answers(steps(gpus, every=every))), every=every)
