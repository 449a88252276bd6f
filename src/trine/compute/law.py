"""Law of operator times: non-negative regression of time on FLOPs and bytes, with an intercept.

With at most three coefficients, the non-negative least squares problem is solved exactly by trying every subset. Sums
are correctly rounded (math.fsum), and everything else is +, -, *, / and square roots of doubles in a fixed order. So
the coefficients are bit-identical on every machine, which a BLAS does not promise.

A kind with enough operators of different sizes has its own law. Other kinds borrow the GPU's properties, the time per
byte and the fixed time, from the law of all memory-bound operators, and take their rate from the most efficient
operator of the kind. The extra time of a less efficient operator is its excess (linear.py). The report shows how well
laws fit: in the trace, and on operators left out of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np

from trine.common.arrays import Float64
from trine.common.median import median
from trine.common.shown import OneLine
from trine.compute.cost import Work
from trine.compute.kinds import family_of, is_compute_bound

#: Assumed relative error of a law: times with coarser rounding than this have less weight in a fit.
RELATIVE_ERROR = 0.05
#: Prior standard deviation of a law's fixed part around zero. A kernel's start, its last partial wave and the few
#: kernels of one operator cost up to some tens of microseconds on any GPU. Without the prior, the intercept of a kind
#: that only ran at large sizes is an extrapolation of its scatter.
FIXED_SPREAD_PS = 30_000_000.0
#: The same for each kernel of an operator, if the trace lists its kernels: start and last partial wave. Empty kernels
#: take 1 to 3 us (tests/data/h100/latencies.csv); trine.compute.tables.fp32 has the same figure.
KERNEL_SPREAD_PS = 3_000_000.0
# A residual of this many (robust) standard deviations gets half weight: Cauchy weights with their usual constant, 95 %
# efficient if errors are normal.
_CAUCHY = 2.385
_ROUNDS, _SETTLED = 12, 1e-6


@dataclass(frozen=True, slots=True)
class Law:
    """time [ps] = ps_per_flop x FLOPs + ps_per_byte x bytes + fixed_ps; no coefficient is negative."""

    ps_per_flop: float
    ps_per_byte: float
    fixed_ps: float

    def time_ps(self, work: Work) -> float:
        """Return the law's time for ``work`` in picoseconds."""
        return self.ps_per_flop * work.flops + self.ps_per_byte * work.bytes + self.fixed_ps


@dataclass(frozen=True, slots=True)
class Sample:
    """One operator in a fit: its work, its time, and the number of its kernels (0: unknown)."""

    work: Work
    time_ps: int
    kernels: int = 0


def fit_law(samples: Sequence[Sample], memory: Law | None = None, *, resolution_ps: int = 1) -> Law:
    """Fit a law to ``samples``, in relative terms and robustly.

    Residuals are relative to the recorded time (or to resolution_ps / RELATIVE_ERROR if that is more; ``resolution_ps``
    is the time step of the trace). Operators far off the law of their kind, such as one with another algorithm from the
    library, weigh less (Cauchy, at most a fixed number of rounds). Times must be positive.

    ``memory``: the law of memory-bound operators, for compute-bound kinds; the law has a FLOPs term only if it is
    given. At a single batch size, FLOPs and bytes of a linear layer are nearly proportional (both to the weight), and
    its times cannot separate them. So ``memory`` is the prior of the time per byte, with a standard deviation of 100 %.
    """
    # The priors of the coefficients are further rows: fixed part 0, time per byte as in ``memory``.
    rows = [(float(s.work.flops), float(s.work.bytes), 1.0, float(s.time_ps)) for s in samples]
    sigma = [max(row[3], resolution_ps / RELATIVE_ERROR) for row in rows]
    rows.append((0.0, 0.0, 1.0, 0.0))
    sigma.append(_fixed_spread(samples) / RELATIVE_ERROR)
    if memory is not None and memory.ps_per_byte > 0.0:
        typical = max(row[1] for row in rows)
        rows.append((0.0, typical, 0.0, memory.ps_per_byte * typical))
        sigma.append(memory.ps_per_byte * typical / RELATIVE_ERROR)
    table = np.array(rows)
    first = 0 if memory is not None else 1
    columns = [table[:, k].copy() for k in range(first, 3)]
    times, spreads, num = table[:, 3].copy(), np.array(sigma), len(samples)
    start = [_typical_rate(columns[0][:num], times[:num]), *[0.0] * (len(columns) - 2), float(times[:num].min())]
    coefficients = _robust(columns, times, spreads, num, start)
    # No operator takes less than the fixed part. If the solution breaks that bound, the best one lies on it.
    bound = start[-1] + resolution_ps
    if coefficients[-1] > bound:
        remainder = np.maximum(times - bound * columns[-1], 0.0)
        coefficients = [*_robust(columns[:-1], remainder, spreads, num, start[:-1]), bound]
    return Law(*coefficients) if memory is not None else Law(0.0, *coefficients)


def _fixed_spread(samples: Sequence[Sample]) -> float:
    """Return the prior standard deviation of the fixed part of an operator of these samples, in ps."""
    kernels = [sample.kernels for sample in samples]
    return KERNEL_SPREAD_PS * sum(kernels) / len(kernels) if all(kernels) else FIXED_SPREAD_PS


def _typical_rate(work: Float64, times: Float64) -> float:
    """Return the time-weighted median of time per work: operators at least this fast take half of the time."""
    has_work = work > 0.0
    return _weighted_median(times[has_work] / work[has_work], times[has_work]) if has_work.any() else 0.0


def _robust(
    columns: Sequence[Float64], times: Float64, sigma: Float64, num_samples: int, coefficients: list[float]
) -> list[float]:
    """Solve non-negative least squares, with less weight in each round for samples (the first rows) far off the fit.

    A residual is relative to the larger of recorded and predicted time, so an operator that does less than its tensors
    suggest (a dropout that passes its input on) pulls no harder than one that takes too long. The scatter comes from
    the samples that make up half of the time, because the law has to describe the operators that matter, however
    numerous the small ones are. The rounds start from ``coefficients``.
    """
    problem, recorded = _Problem(columns, times), times[:num_samples]
    for _ in range(_ROUNDS):
        predicted = sum((c * column for c, column in zip(coefficients, columns, strict=True)), np.zeros(len(times)))
        spreads = np.maximum(sigma, predicted)
        spreads[num_samples:] = sigma[num_samples:]
        residuals = np.abs(times - predicted) / spreads
        # 1.4826 x median absolute residual estimates a standard deviation; the floor is for nearly exact fits.
        scatter = max(1.4826 * _weighted_median(residuals[:num_samples], recorded), 1e-3)
        ratio = residuals / (_CAUCHY * scatter)
        factor = 1.0 / (1.0 + ratio * ratio)
        factor[num_samples:] = 1.0
        before, coefficients = coefficients, problem.solve(factor / (spreads * spreads))
        if all(abs(new - old) <= _SETTLED * old for new, old in zip(coefficients, before, strict=True)):
            break
    return coefficients


def _weighted_median(values: Float64, weights: Float64) -> float:
    """Return the value at which half of the weight is reached; equal values keep the given order."""
    order = np.argsort(values, kind="stable")
    half, total = math.fsum(weights.tolist()) / 2, 0.0
    for i in order.tolist():
        total += float(weights[i])
        if total >= half:
            return float(values[i])
    return float(values[order[-1]])


class _Problem:
    """Minimisation of sum weight (time - columns . c)^2 over c >= 0, for several choices of weights.

    ``columns``: float64[n] each; ``times``: float64[n].
    """

    def __init__(self, columns: Sequence[Float64], times: Float64) -> None:
        # Columns in units of their largest value, so that the normal equations are well scaled.
        self._scale = [float(column.max()) for column in columns]
        scaled = []
        for column, s in zip(columns, self._scale, strict=True):
            scaled.append(column / s if s > 0.0 else column)
        self._pairs = {(i, j): scaled[i] * scaled[j] for i in range(len(scaled)) for j in range(i + 1)}
        self._right = [column * times for column in scaled]

    def solve(self, weights: Float64) -> list[float]:
        """Solve on every subset of columns; return the first best solution without negative coefficients."""
        product: dict[tuple[int, int], float] = {}
        for (i, j), values in self._pairs.items():
            product[i, j] = product[j, i] = math.fsum((weights * values).tolist())
        right = [math.fsum((weights * values).tolist()) for values in self._right]
        used = [k for k, s in enumerate(self._scale) if s > 0.0]
        best, best_gain = [0.0] * len(self._scale), 0.0
        for size in range(1, len(used) + 1):
            for subset in combinations(used, size):
                subset_product = []
                for i in subset:
                    subset_product.append([product[i, j] for j in subset])
                subset_right = [right[i] for i in subset]
                solution = _eliminate(subset_product, subset_right)
                if solution is None or min(solution) < 0.0:
                    continue
                # By the normal equations the residual falls by c . right; a subset wins if it explains clearly more.
                gain = math.fsum([c * right[i] for c, i in zip(solution, subset, strict=True)])
                if gain > best_gain * (1 + 1e-12):
                    best_gain, best = gain, [0.0] * len(self._scale)
                    for c, k in zip(solution, subset, strict=True):
                        best[k] = c / self._scale[k]
        return best


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve a symmetric positive definite system without pivoting; None if it is close to singular."""
    num = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for k in range(num):
        if rows[k][k] <= 1e-10 * matrix[k][k]:
            return None
        for i in range(k + 1, num):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [x - factor * y for x, y in zip(rows[i], rows[k], strict=True)]
    solution = [0.0] * num
    for k in reversed(range(num)):
        known = math.fsum([rows[k][j] * solution[j] for j in range(k + 1, num)])
        solution[k] = (rows[k][num] - known) / rows[k][k]
    return solution


#: Minimum number of operators of different work for a kind's own law: one more than its coefficients.
MIN_SIZES_COMPUTE, MIN_SIZES_MEMORY = 4, 3
OWN, POOLED = "own", "pooled"


@dataclass(frozen=True, slots=True)
class Laws:
    """Laws by kind with their origin, the samples that they were fitted on, and the law of memory alone."""

    samples: Mapping[str, tuple[Sample, ...]]
    by_kind: Mapping[str, tuple[Law, str]]
    memory: Law
    resolution_ps: int

    def law(self, kind: str) -> Law:
        """Return the law of ``kind``, or the memory law if no operator of the kind took any time."""
        return self.by_kind[kind][0] if kind in self.by_kind else self.memory


def fit_laws(samples: Iterable[tuple[str, Sample]], resolution_ps: int) -> Laws:
    """Fit the laws of all kinds. ``samples``: (kind, sample) in a fixed order; those without time are skipped."""
    grouped: dict[str, list[Sample]] = {}
    for kind, sample in samples:
        if sample.time_ps > 0:
            grouped.setdefault(kind, []).append(sample)
    groups = {kind: tuple(grouped[kind]) for kind in sorted(grouped)}
    memory = _memory_law(groups, resolution_ps)
    by_kind = {}
    for kind, members in groups.items():
        with_flops = is_compute_bound(kind)
        if num_sizes(members) >= (MIN_SIZES_COMPUTE if with_flops else MIN_SIZES_MEMORY):
            law = fit_law(members, memory if with_flops else None, resolution_ps=resolution_ps)
            if law.ps_per_flop == law.ps_per_byte == 0.0:
                # All too small to show a time per byte; at larger sizes it is at least that in ``memory``.
                law = Law(0.0, memory.ps_per_byte, law.fixed_ps)
            by_kind[kind] = law, OWN
        else:
            by_kind[kind] = _borrow_law(members, memory, with_flops), POOLED
    return Laws(groups, by_kind, memory, resolution_ps)


def _memory_law(groups: Mapping[str, tuple[Sample, ...]], resolution_ps: int) -> Law:
    """Return the law of all known memory-bound operators; with too few of them, memory costs nothing by itself."""
    known = [kind for kind in groups if not is_compute_bound(kind) and family_of(kind) not in ("other", "view")]
    members = [s for kind in known for s in groups[kind] if s.work.bytes]
    if num_sizes(members) < MIN_SIZES_MEMORY:
        return Law(0.0, 0.0, 0.0)
    return fit_law(members, resolution_ps=resolution_ps)


def _borrow_law(samples: Sequence[Sample], memory: Law, with_flops: bool) -> Law:
    """Return the memory law with the rate of the most efficient sample, per FLOP if ``with_flops``, else per byte."""
    if with_flops:
        rates = [(s.time_ps - memory.time_ps(s.work)) / s.work.flops for s in samples if s.work.flops]
        return Law(min((rate for rate in rates if rate > 0.0), default=0.0), memory.ps_per_byte, memory.fixed_ps)
    rates = [(s.time_ps - memory.fixed_ps) / s.work.bytes for s in samples if s.work.bytes]
    return Law(0.0, max(min(rates, default=0.0), memory.ps_per_byte), memory.fixed_ps)


def num_sizes(samples: Sequence[Sample]) -> int:
    """Count the samples of different work."""
    return len({sample.work for sample in samples})


@dataclass(frozen=True, slots=True)
class KindFit:
    """The law of one kind, and its relative errors |law / recorded - 1| (left out: None for pooled laws).

    ``origin``: 'own' or 'pooled'. ``num_sizes``: operators of different work among ``num_operators``.
    """

    kind: str
    num_operators: int
    num_sizes: int
    origin: str
    law: Law
    median_error: float
    max_error: float
    left_out_median_error: float | None
    left_out_max_error: float | None


@dataclass(frozen=True, slots=True)
class FitReport(OneLine):
    """One row for each kind, in alphabetical order, and the time step of the trace (of several: the coarsest)."""

    kinds: tuple[KindFit, ...]
    resolution_ps: int

    def text(self) -> str:
        """Return a text table: coefficients as rates, errors in percent of the recorded time, median and largest."""
        lines = [
            f"{'kind':<28}{'ops':>5}{'sizes':>6}  {'law':<7}{'TFLOP/s':>9}{'GB/s':>9}{'fixed us':>9}"
            f"{'error %: med':>14}{'max':>7}{'left out: med':>15}{'max':>7}"
        ]
        for row in self.kinds:
            law = row.law
            lines.append(
                f"{row.kind:<28}{row.num_operators:>5}{row.num_sizes:>6}  {row.origin:<7}"
                f"{_rate(law.ps_per_flop, 1.0):>9}{_rate(law.ps_per_byte, 1e3):>9}{law.fixed_ps / 1e6:>9.1f}"
                f"{_percent(row.median_error):>14}{_percent(row.max_error):>7}"
                f"{_percent(row.left_out_median_error):>15}{_percent(row.left_out_max_error):>7}"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Return the rows as plain data: ps per FLOP, ps per byte, ps; errors as fractions of the recorded time."""
        return {"resolution_ps": self.resolution_ps, "kinds": [asdict(row) for row in self.kinds]}


def _rate(ps_per_unit: float, factor: float) -> str:
    """Format units per picosecond times ``factor``: 1 / (ps per FLOP) is TFLOP/s, 1000 / (ps per byte) is GB/s."""
    return f"{factor / ps_per_unit:,.1f}" if ps_per_unit > 0.0 else "-"


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:.1f}"


def report(laws: Laws) -> FitReport:
    """Measure each law on its own samples, and with the laws fitted anew without each sample in turn."""
    rows = []
    for kind, samples in laws.samples.items():
        law, origin = laws.by_kind[kind]
        errors = [_error(law, sample) for sample in samples]
        left_out = _left_out(laws, kind) if origin == OWN else None
        left_out_median = median(left_out) if left_out else None
        left_out_max = max(left_out) if left_out else None
        rows.append(
            KindFit(
                kind, len(samples), num_sizes(samples), origin, law, median(errors), max(errors),
                left_out_median, left_out_max,
            ),
        )  # fmt: skip
    return FitReport(tuple(rows), laws.resolution_ps)


def _error(law: Law, sample: Sample) -> float:
    return abs(law.time_ps(sample.work) / sample.time_ps - 1)


def _left_out(laws: Laws, kind: str) -> list[float]:
    """Return the law's leave-one-out errors: on each sample when fitted on the kind's other samples."""
    samples, memory = laws.samples[kind], laws.memory if is_compute_bound(kind) else None
    errors = []
    for i, sample in enumerate(samples):
        subset = samples[:i] + samples[i + 1 :]
        law = fit_law(subset, memory, resolution_ps=laws.resolution_ps)
        errors.append(_error(law, sample))
    return errors
