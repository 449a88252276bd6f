"""How likely a measured curve is, if a machine should have taken other times: one number for the whole curve.

A prediction misses a machine's curve in three ways: by much the same factor over many sizes, by a few per cent from one
measurement to the next, and now and then by a jump at a single size. So the logarithm of measured / predicted, counted
in standard deviations of the prediction's own band, is taken as a stationary process over the binary logarithm of the
size, whose correlation fades over octaves, not over rows: to measure more sizes in the same octaves adds little, and
neither a verdict nor an order of causes hangs on how densely one measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trine.arrays import Float64

#: A band holds 80 %: from here below to here above the middle, in standard deviations.
_BAND_SIGMAS = 2 * NormalDist().inv_cdf(0.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """How predictions miss. Standard deviations in those of the band; probabilities as parts of 1.

    ``drift``: of the slow part, whose correlation falls to 1/e over ``octaves``. ``repeat``: of each measurement (0.1
    is 2 to 3 %; given, not fitted). A part ``stray`` of the sizes misses by ``stray_by`` more, each for itself; on a
    part ``wide`` of the machines all but ``repeat`` is ``wide_by`` times as large.
    """

    drift: float
    octaves: float
    repeat: float
    stray: float
    stray_by: float
    wide: float
    wide_by: float


#: Fitted by ``benchmarks/fit_check_noise.py`` to what predictions left of each machine that had no part in them.
NOISE = Noise(drift=0.576, octaves=18.3, repeat=0.1, stray=0.0541, stray_by=0.959, wide=0.289, wide_by=2.55)


def band_sigma(low_ps: Sequence[int], high_ps: Sequence[int]) -> Float64:
    """The standard deviation of log(measured / predicted) that a band of 80 % says, by size."""
    sigma: Float64 = np.log(np.asarray(high_ps, float) / np.asarray(low_ps, float)) / _BAND_SIGMAS
    return sigma


def log_likelihood(missed: Float64, sizes: Sequence[int], noise: Noise = NOISE) -> Float64:
    """Logarithm of the likelihood of curves.

    Parameters
    ----------
    missed: (curves, sizes) log(measured / time) in standard deviations of the band (:func:`band_sigma`).
    sizes: bytes, ascending.

    Returns
    -------
    (curves,), natural logarithms of densities; only differences between curves of the same sizes mean something.
    """
    octaves = np.log2(np.asarray(sizes, float))
    usual = _filtered(missed, octaves, noise, 1.0)
    wide = _filtered(missed, octaves, noise, noise.wide_by)
    both: Float64 = np.logaddexp(math.log1p(-noise.wide) + usual, math.log(noise.wide) + wide)
    return both


def _filtered(missed: Float64, octaves: Float64, noise: Noise, factor: float) -> Float64:
    """A Kalman filter of the slow part along the sizes; each size is ordinary or a stray, weighed by what it shows."""
    level = (factor * noise.drift) ** 2
    kinds = (
        (math.log1p(-noise.stray), noise.repeat**2),
        (math.log(noise.stray), noise.repeat**2 + (factor * noise.stray_by) ** 2),
    )
    mean, variance = np.zeros(len(missed)), np.full(len(missed), level)
    total = np.zeros(len(missed))
    for i in range(missed.shape[1]):
        if i:
            kept = math.exp(-(octaves[i] - octaves[i - 1]) / noise.octaves)
            mean, variance = mean * kept, variance * kept**2 + level * (1 - kept**2)
        off = missed[:, i] - mean
        spread = [variance + own for _, own in kinds]
        weight = [
            log_share - 0.5 * (np.log(2 * math.pi * s) + off**2 / s)
            for (log_share, _), s in zip(kinds, spread, strict=True)
        ]
        both = np.logaddexp(*weight)
        total += both
        share = [np.exp(each - both) for each in weight]
        moved = [mean + variance / s * off for s in spread]
        left = [variance * (1 - variance / s) for s in spread]
        mean = share[0] * moved[0] + share[1] * moved[1]
        spreads = [v + (m - mean) ** 2 for v, m in zip(left, moved, strict=True)]
        variance = share[0] * spreads[0] + share[1] * spreads[1]
    return total
