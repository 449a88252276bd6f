"""Questions to the tables of operator times, of shapes and GPUs that a table was not given, and their errors.

The error is predicted / measured - 1; all shapes count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np

from trine.arrays import Float64
from trine.cluster.presets import load_gpu
from trine.compute.tables.convolutions import BENCH_DTYPES, bench_gpus
from trine.compute.tables.files import known_tables, read_arrays
from trine.compute.tables.fp32_errors import bench_left_out_us, from_another_us, left_out_us
from trine.compute.tables.fp32_rows import DEEPBENCH, NEUSIGHT, measured
from trine.compute.tables.left_out import (
    GPUS_LEFT_OUT,
    LeftOut,
    attention_shapes_left_out,
    gemm_gpu_left_out,
    gemm_shapes_left_out,
)
from trine.compute.tables.operators import OperatorTables
from trine.errors import InputError, nearest
from trine.results.report import Row

#: Of each fold, every so-manieth shape is asked in a sample.
SAMPLED = 10
TABLES = ("bmm", "linear", "conv", "elementwise", "layer_norm", "softmax")
#: GPUs between which recorded times are moved.
MOVED = ("v100-pcie", "p100-pcie", "t4", "a100-pcie-40gb")
#: What was left out.
SHAPES, ANOTHER, GPU = "shapes", "another GPU", "GPU"
#: A GPU, and another one whose tables stand for it where its own are left out.
_INSTEAD = {
    "v100-pcie": "a100-pcie-40gb", "a100-pcie-40gb": "v100-pcie", "p100-pcie": "v100-pcie", "t4": "v100-pcie",
    "mi210": "mi100", "mi100": "mi210",
}  # fmt: skip
_PASSES = ("conv, layers", "conv, gradient of the input", "conv, gradient of the weight", "conv, both gradients")
#: Fewer layers are not worth a fifth.
_ENOUGH = 20
#: GPUs whose products in float16 DeepBench has, and the least m, n, k of large ones there.
_HALVES_BENCHED, _LARGE = ("v100", "t4"), 512
_DTYPES = ("bfloat16", "float8", "float4")
ALL = "all"


class Target(NamedTuple):
    """What the absolute error may be at most, as parts of one; None: no matter."""

    median: float | None = None
    mean: float | None = None
    p90: float | None = None


NO_TARGET = Target()
#: Issue 14 of trine: times moved to another GPU, each ordered pair.
MOVED_TARGET = Target(mean=0.15)
#: Shapes left out, by operator and dtype; large products on a GPU left out, by what stands between it and its source.
_SHAPE_TARGETS = {
    ("gemm", "bfloat16"): Target(median=0.04, p90=0.14), ("attention", "bfloat16"): Target(median=0.025, p90=0.10),
}  # fmt: skip
_GPU_TARGETS = {
    "same generation": Target(mean=0.08), "next generation": Target(mean=0.14), "one rate": Target(mean=0.14),
}  # fmt: skip


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

    median, mean, p90, worst: of the absolute error; bias: mean of the signed one.
    """

    about: OperatorQuestion
    count: int
    median: float
    mean: float
    p90: float
    worst: float
    bias: float
    target: Target = NO_TARGET

    @property
    def meets(self) -> bool | None:
        """Whether the errors are within the target; None where there is none."""
        asked = [(getattr(self, name), most) for name, most in self.target._asdict().items() if most is not None]
        return all(error <= most for error, most in asked) if asked else None

    def row(self) -> Row:
        """As JSON has it."""
        return {
            **self.about._asdict(),
            "num_points": self.count, "median_error": self.median, "mean_error": self.mean, "p90_error": self.p90,
            "worst_error": self.worst, "bias": self.bias,
            **{f"target_{name}_error": most for name, most in self.target._asdict().items()},
            "meets_target": self.meets,
        }  # fmt: skip


def errors_of(
    predicted: Float64, actual: Float64, about: OperatorQuestion, target: Target = NO_TARGET
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
    found: list[Step] = [partial(_products, gpu, every) for gpu in sorted(known_tables()) if gpu in chosen]
    found += [partial(_shapes, gpu, table, every) for gpu, table in _tables(chosen)]
    found += [partial(_bench, gpu) for gpu in bench_gpus() if gpu in chosen]
    pairs = [(a, b) for a, b in permutations(MOVED, 2) if a in chosen or b in chosen]
    found += [partial(_pair, source, gpu, every) for source, gpu in pairs]
    found += [partial(_gpu_left_out, *names, every) for names in GPUS_LEFT_OUT if names[0] in chosen]
    found += [partial(_bench_products, gpu) for gpu in _HALVES_BENCHED if gpu in chosen]
    found += [partial(_instead, gpu, table, every) for gpu, table in _tables(chosen) if table in _has(_INSTEAD[gpu])]
    return found


def known_gpus_measured() -> tuple[str, ...]:
    """GPUs whose operators were measured."""
    return tuple(dict.fromkeys((*sorted(known_tables()), *measured(NEUSIGHT, "bmm").times_us, *bench_gpus())))


def answers(asked: Sequence[Step]) -> Iterator[OperatorErrors]:
    """What each step found, as it is found."""
    for step in asked:
        yield from step()


def _has(gpu: str) -> tuple[str, ...]:
    return tuple(table for table in TABLES if gpu in measured(NEUSIGHT, table).times_us)


def _tables(gpus: Sequence[str]) -> list[tuple[str, str]]:
    return [(gpu, table) for gpu in gpus for table in _has(gpu)]


def _products(gpu: str, every: int) -> list[OperatorErrors]:
    """Products and attention in 16 bits and fewer, one after another."""
    names = read_arrays(gpu)
    dtypes = [dtype for dtype in _DTYPES if f"gemm_{dtype}" in names]
    found = [_scored(gemm_shapes_left_out(gpu, dtype, every=every)) for dtype in dtypes]
    return [*found, _scored(attention_shapes_left_out(gpu, every=every))] if "attention" in names else found


def _gpu_left_out(gpu: str, source: str, what: str, every: int) -> list[OperatorErrors]:
    """Large products of a GPU from another's table."""
    return [_scored(gemm_gpu_left_out(gpu, source, what, every=every))]


def _bench_products(gpu: str) -> list[OperatorErrors]:
    """Products of DeepBench in float16, of which the tables know nothing (of T4 one sustained rate)."""
    rows = measured(DEEPBENCH, "gemm")
    chosen = (rows.shapes[:, 0] == BENCH_DTYPES.index("float16")) & np.isfinite(rows.times_us[gpu])
    tables = OperatorTables(load_gpu(gpu))
    found = [tables.gemm(m, n, k, "float16") for m, n, k in rows.shapes[chosen, 1:4].tolist()]
    times = [(each.us, each.source) for each in found if each is not None]
    about = OperatorQuestion(GPU, "gemm of DeepBench", gpu, times[0][1], "float16")
    large = (rows.shapes[chosen, 1:4] >= _LARGE).all(axis=1)
    predicted, actual = np.array([us for us, _ in times]), rows.times_us[gpu][chosen]
    name = f"large {about.operator}"
    return errors_of(predicted, actual, about) + errors_of(
        predicted[large], actual[large], about._replace(operator=name)
    )


def _scored(found: LeftOut) -> OperatorErrors:
    is_shape = found.what == SHAPES
    target = _SHAPE_TARGETS.get((found.operator, found.dtype)) if is_shape else _GPU_TARGETS.get(found.what)
    name = found.operator if is_shape else f"large {found.operator}, {found.what}"
    about = OperatorQuestion(SHAPES if is_shape else GPU, name, found.gpu, found.source, found.dtype)
    return OperatorErrors(
        about=about, count=found.count, median=found.median, mean=found.mean, p90=found.p90, worst=found.worst,
        bias=found.bias, target=target or NO_TARGET,
    )  # fmt: skip


def _shapes(gpu: str, table: str, every: int) -> list[OperatorErrors]:
    return errors_of(*left_out_us(gpu, table, every), OperatorQuestion(SHAPES, table, gpu, gpu))


def _bench(gpu: str) -> list[OperatorErrors]:
    found: list[OperatorErrors] = []
    for dtype in BENCH_DTYPES:
        for direction, name in enumerate(_PASSES):
            predicted, actual = bench_left_out_us(gpu, dtype, direction)
            if len(actual) >= _ENOUGH:
                found += errors_of(predicted, actual, OperatorQuestion(SHAPES, name, gpu, gpu, dtype))
    return found


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
