"""Random numbers that depend on (seed, rank, index) alone: no state, no order, nothing stored.

A counter goes through splitmix64's finaliser (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators,
OOPSLA 2014, figure 13). Logarithm, exponential and cosine are series of IEEE additions, products and quotients: the
same bits on every machine and for every length of array, so that a rank gets the same number alone and among a hundred
thousand.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Float64, UInt64

Counter = npt.NDArray[np.integer]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = np.uint64(31)
_MANTISSA_SHIFT = np.uint64(11)
MAX_ATTEMPTS = 64


def uniform(seed: int, rank: Counter, index: Counter, lane: int = 0) -> Float64:
    """Return float64 in (0, 1), one per (rank, index); ``lane`` distinguishes several draws for one pair.

    ``rank`` and ``index`` are whole numbers >= 0 that broadcast together.
    """
    state = _mixed(np.array([seed % 2**64], np.uint64))
    for part in (rank, index, np.array([lane])):
        state = _mixed(state ^ (np.asarray(part).astype(np.uint64) + np.uint64(1)))
    shape = np.broadcast_shapes(np.shape(rank), np.shape(index))
    return (((state >> _MANTISSA_SHIFT).astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)


def normal(seed: int, rank: Counter, index: Counter, lane: int = 0) -> Float64:
    """Return standard normal draws (Box and Muller, 1958)."""
    radius = np.sqrt(-2.0 * log(uniform(seed, rank, index, lane)))
    return radius * _cos_turns(uniform(seed, rank, index, lane + 1))


def gamma(shape: float, seed: int, rank: Counter, index: Counter) -> Float64:
    """Return gamma draws, mean ``shape`` >= 1 (Marsaglia and Tsang, ACM TOMS 26, 2000: rejection, > 95 % accepted).

    Each pair makes its own attempts, so that its number does not depend on the others'.
    """
    rank, index = np.broadcast_arrays(np.asarray(rank), np.asarray(index))
    draws = np.zeros(rank.size)
    pending = np.arange(rank.size)
    ranks, indices = rank.ravel(), index.ravel()
    d = shape - 1.0 / 3.0
    for attempt in range(MAX_ATTEMPTS):
        z = normal(seed, ranks[pending], indices[pending], 3 * attempt)
        root = 1.0 + z / math.sqrt(9.0 * d)
        v = np.maximum(root, 0.0) ** 2 * root
        safe = np.where(v > 0, v, 1.0)
        u = uniform(seed, ranks[pending], indices[pending], 3 * attempt + 2)
        good = (v > 0) & (log(u) < 0.5 * z * z + d - d * v + d * log(safe))
        draws[pending[good]] = d * v[good]
        pending = pending[~good]
        if not len(pending):
            break
    draws[pending] = shape  # one in 20**64
    return draws.reshape(rank.shape)


def log(x: Float64) -> Float64:
    """Return the natural logarithm of numbers > 0: x = m 2**e with m near 1, and 2 artanh((m - 1) / (m + 1))."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _horner([1.0 / k for k in range(1, 27, 2)], s * s)
    return (exponent - small) * math.log(2.0) + 2.0 * s * series


def exp(x: Float64) -> Float64:
    """Return the exponential of numbers between -700 and 700."""
    twos = np.rint(x / math.log(2.0))
    rest = x - twos * math.log(2.0)
    return np.ldexp(_horner([1.0 / math.factorial(k) for k in range(18)], rest), twos.astype(np.int32))


def _cos_turns(turns: Float64) -> Float64:
    """Return the cosine of 0 to 1 turns: fold them to 0..1/4 of a turn, then sum the series."""
    folded = np.abs(turns - 0.5)  # cos is even about half a turn, where it is -1
    angle = np.where(folded > 0.25, 0.5 - folded, folded) * (2.0 * math.pi)
    series = _horner([(-1.0) ** k / math.factorial(2 * k) for k in range(12)], angle * angle)
    return np.where(folded > 0.25, series, -series)


def _horner(coefficients: list[float], x: Float64) -> Float64:
    total = np.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def _mixed(state: UInt64) -> UInt64:
    state = state + _GOLDEN
    for shift, factor in _MIX:
        state = (state ^ (state >> shift)) * factor
    return state ^ (state >> _LAST_SHIFT)
