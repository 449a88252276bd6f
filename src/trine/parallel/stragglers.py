"""Slow ranks and jitter: factors on compute durations, the same for folded and unfolded runs.

A factor depends only on (seed, rank, index) (``draws.py``), so trine never stores arrays of size ranks x tasks.
Depending on ``per``, the index is the number of a step, or the number of a task in its rank's program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.common.arguments import named_arguments
from trine.common.arrays import Float64
from trine.common.shown import OneLine
from trine.common.units import finite_number
from trine.errors import InputError, nearest
from trine.parallel import draws

Int = npt.NDArray[np.integer]

DISTRIBUTIONS = ("normal", "lognormal", "gamma", "exponential", "pareto")
PER = ("operator", "step")
EACH = ("rank", "class")
#: Normal factors are clipped at this many standard deviations on both sides, so that their mean stays 1.
NORMAL_CUT = 4.0
MAX_FACTOR = 1000.0
MAX_RANK = 2**31


@dataclass(frozen=True, kw_only=True, slots=True)
class Jitter:
    """Random variation of compute durations: a factor for each (rank, index).

    distribution and spread:
        ``normal``, ``lognormal``, ``gamma``: mean 1, standard deviation ``spread``;
        ``exponential``: 1 plus an exponential variable of mean ``spread``, so no task is faster than recorded;
        ``pareto``: at least 1, tail index ``spread`` (> 1): the smaller, the heavier; mean spread / (spread - 1).

    Raises InputError for an unknown distribution or a spread outside its range.
    """

    distribution: str
    spread: float

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise InputError(
                f"unknown distribution {self.distribution!r}{nearest(self.distribution, DISTRIBUTIONS)}", field="jitter"
            )
        if not math.isfinite(self.spread) or self.spread <= 0:
            raise InputError(f"a spread is a positive number, got {self.spread!r}", field="jitter")
        limits = {"normal": 1 / NORMAL_CUT, "lognormal": 2.0, "gamma": 1.0, "exponential": 10.0, "pareto": 1e6}
        if self.spread > limits[self.distribution]:
            raise InputError(
                f"the spread of {self.distribution} is at most {limits[self.distribution]:g}, got {self.spread:g}",
                field="jitter",
            )
        if self.distribution == "pareto" and self.spread <= 1:
            raise InputError(f"a tail index of at most 1 has no mean, got {self.spread:g}", field="jitter")

    @property
    def mean(self) -> float:
        """The mean factor."""
        if self.distribution == "pareto":
            return self.spread / (self.spread - 1.0)
        return 1.0 + self.spread if self.distribution == "exponential" else 1.0

    def factors(self, seed: int, rank: Int, index: Int) -> Float64:
        """Return factors in (0, MAX_FACTOR], float64 with the broadcast shape of ``rank`` and ``index``."""
        return np.minimum(self._draw(seed, rank, index), MAX_FACTOR)

    def _draw(self, seed: int, rank: Int, index: Int) -> Float64:
        spread = self.spread
        if self.distribution == "normal":
            cut = np.clip(draws.normal(seed, rank, index), -NORMAL_CUT, NORMAL_CUT)
            return np.maximum(1.0 + spread * cut, 2.0**-20)
        if self.distribution == "lognormal":
            variance = math.log1p(spread * spread)
            return draws.exp(math.sqrt(variance) * draws.normal(seed, rank, index) - 0.5 * variance)
        if self.distribution == "gamma":
            shape = 1.0 / (spread * spread)
            return draws.gamma(shape, seed, rank, index) / shape
        tail = -draws.log(draws.uniform(seed, rank, index))
        return 1.0 + spread * tail if self.distribution == "exponential" else draws.exp(np.minimum(tail / spread, 700))


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers(OneLine):
    """Slow ranks, jitter, or both; the factors multiply.

    slow: (rank, factor) pairs, each rank once. per: whether ``index`` counts the steps of a run or the operators of a
    rank's program. seed: seed of the jitter. each: whether every ``rank`` or every ``class`` draws its factors. In a
    class, ranks that are identical without jitter draw the same factors, stay identical, and can be folded.

    Raises InputError for a repeated rank, a factor outside (0, MAX_FACTOR], or neither slow ranks nor jitter.
    """

    slow: tuple[tuple[int, float], ...] = ()
    jitter: Jitter | None = None
    per: str = "operator"
    seed: int = 0
    each: str = "rank"

    def __post_init__(self) -> None:
        if not self.slow and self.jitter is None:
            raise InputError("neither slow ranks nor jitter were given", field="stragglers")
        if self.per not in PER:
            raise InputError(f"jitter is per {' or '.join(PER)}; got {self.per!r}{nearest(self.per, PER)}", field="per")
        if self.each not in EACH:
            raise InputError(
                f"jitter is of each {' or '.join(EACH)}; got {self.each!r}{nearest(self.each, EACH)}", field="each"
            )
        for field, value in (("seed", self.seed), *(("slow", rank) for rank, _ in self.slow)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"must be a whole number, got {value!r}", field=field)
        ranks: set[int] = set()
        for rank, factor in self.slow:
            if not 0 <= rank < MAX_RANK or rank in ranks:
                reason = "is given twice" if rank in ranks else "is no rank"
                raise InputError(f"{rank} {reason}", field="slow")
            ranks.add(rank)
            if not math.isfinite(factor) or not 0 < factor <= MAX_FACTOR:
                raise InputError(
                    f"rank {rank}: a factor is above 0 and at most {MAX_FACTOR:g}, got {factor}", field="slow"
                )

    def check(self, num_ranks: int) -> None:
        """Raise InputError for a slow rank that the job does not have."""
        for rank, _ in self.slow:
            if rank >= num_ranks:
                raise InputError(f"there is no rank {rank}: the job has ranks 0 to {num_ranks - 1}", field="slow")

    @property
    def tells_ranks_apart(self) -> bool:
        """Whether every rank draws separate factors."""
        return self.jitter is not None and self.each == "rank"

    def factors(self, rank: Int, index: Int, draws_as: Int | None = None) -> Float64:
        """Return the factor of each (rank, index): float64 of their broadcast shape.

        draws_as: for jitter per class, the rank number to use in each rank's draws; None: the rank itself.
        """
        rank, index = np.asarray(rank), np.asarray(index)
        slow = self.slow_factors(rank)
        if self.jitter is None:
            return np.broadcast_to(slow, np.broadcast_shapes(rank.shape, index.shape)).copy()
        return slow * self.jitter.factors(self.seed, rank if draws_as is None else np.asarray(draws_as), index)

    def slow_factors(self, rank: Int) -> Float64:
        """Return the factor of each rank without jitter; without jitter, ranks with equal factors behave alike."""
        rank = np.asarray(rank)
        if not self.slow:
            return np.ones(rank.shape)
        slow, factor = (np.array(column) for column in zip(*sorted(self.slow), strict=True))
        index = np.minimum(np.searchsorted(slow, rank), len(slow) - 1)
        return np.where(slow[index] == rank, factor[index], 1.0)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Descriptions of slow ranks and jitter for the result's evidence (``assumed``)."""
        texts = [f"rank {rank}: {factor:g}x compute time" for rank, factor in self.slow[:8]]
        if len(self.slow) > 8:
            texts.append(f"{len(self.slow) - 8} more ranks are slow")
        if self.jitter is not None:
            scope = "each operator of each rank" if self.per == "operator" else "all operators of a rank in a step"
            if self.each == "class":
                scope += ", equal on identical ranks"
            texts.append(f"jitter: {scope}, {self.jitter.distribution} {self.jitter.spread:g}, seed {self.seed}")
        return tuple(texts)


def scaled_ps(duration_ps: Int, factors: Float64) -> npt.NDArray[np.int64]:
    """Return durations times factors, rounded to 1 ps (half to even); positive durations stay at least 1 ps."""
    duration = np.asarray(duration_ps)
    scaled = np.rint(duration.astype(np.float64) * factors).astype(np.int64)
    return np.where(duration > 0, np.maximum(scaled, 1), 0).astype(np.int64)


def parse_slow(texts: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """Parse texts such as ``rank=17:1.3`` or ``rank=8-15:1.2`` (both ends included).

    Raises InputError with the invalid text.
    """
    factors: list[tuple[int, float]] = []
    for text in texts:
        match = re.fullmatch(r"\s*rank\s*=\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*:\s*([0-9.eE+-]+)\s*", text)
        factor = finite_number(match[3]) if match else None
        if match is None or factor is None:
            raise InputError(f"takes rank=17:1.3 or rank=8-15:1.3, got {text!r}", field="--slow")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + 2**20:
            raise InputError(
                f"{text!r}: ranks go from the smaller to the larger, 2**20 of them at most", field="--slow"
            )
        factors += [(rank, factor) for rank in range(first, last + 1)]
    return tuple(factors)


def parse_jitter(text: str) -> Jitter:
    """Parse ``normal:5%``, ``lognormal:0.1``, ``gamma:0.2``, ``exponential:3%`` or ``pareto:20``.

    Raises InputError with the nearest distribution, or the fault of the number.
    """
    name, colon, amount = (part.strip() for part in text.partition(":"))
    if not colon:
        raise InputError(f"takes DISTRIBUTION:SPREAD such as normal:5%, got {text!r}", field="--jitter")
    spread = finite_number(amount.removesuffix("%"))
    if spread is None:
        raise InputError(f"{text!r}: {amount!r} is no number", field="--jitter")
    if amount.endswith("%") and name == "pareto":
        raise InputError("pareto takes a tail index such as pareto:20, not a percentage", field="--jitter")
    return Jitter(distribution=name, spread=spread / 100 if amount.endswith("%") else spread)
