"""Finds the rule behind numbers of several ranks and workgroups, so that one printed line stands for all of them.

Numbers are tried as ``base + slope * ((rank + shift) % ranks) + rise * wg``; ranks of operands as relative ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.arrays import Int64


@dataclass(frozen=True, slots=True)
class Rules:
    """Of m columns of numbers, int64[m] each. ``shift`` -1: of the rank as it is; ``first``: one of the numbers."""

    first: Int64
    base: Int64
    slope: Int64
    shift: Int64
    rise: Int64


def fit(values: Int64, ranks: Int64, wg: Int64, num_ranks: int) -> Rules | None:
    """The rules of ``values`` int64[ranks, workgroups, m]; None where one of the m has none."""
    rise = values[0, 1] - values[0, 0] if len(wg) > 1 else np.zeros(values.shape[2], np.int64)
    level = values - rise * wg[None, :, None]
    if (level != level[:, :1]).any():
        return None
    rules = Rules(values[0, 0], level[0, 0].copy(), np.zeros_like(rise), np.full_like(rise, -1), rise)
    by_rank = level[:, 0]
    for column in np.flatnonzero((by_rank != by_rank[0]).any(axis=0)).tolist():
        found = _by_rank(by_rank[:, column], ranks, num_ranks)
        if found is None:
            return None
        rules.base[column], rules.slope[column], rules.shift[column] = found
    return rules


def _by_rank(values: Int64, ranks: Int64, num_ranks: int) -> tuple[int, int, int] | None:
    slope = int(values[1] - values[0])
    base = int(values[0]) - slope * int(ranks[0])
    if (values == base + slope * ranks).all():
        return base, slope, -1
    if len(values) != num_ranks:
        return None
    for at in (int(values.argmin()), int(values.argmax())):
        base, slope = int(values[at]), int(values[(at + 1) % num_ranks] - values[at])
        shift = (num_ranks - at) % num_ranks
        if (values == base + slope * ((ranks + shift) % num_ranks)).all():
            return base, slope, shift
    return None


@dataclass(frozen=True, slots=True)
class Peers:
    """Of m columns of ranks, int64[m] each: (rank + distance + rise * wg) % ranks, or ``rank`` where that is not -1."""

    distance: Int64
    rise: Int64
    rank: Int64


def fit_peers(values: Int64, ranks: Int64, wg: Int64, num_ranks: int) -> Peers | None:
    """The rules of ranks ``values`` int64[ranks, workgroups, m]; None where one of the m has none.

    One kernel alone names other ranks by number, several by distance where that is the same. From one workgroup to the
    next the distance changes by one at most: of two workgroups anything else would be a rule too.
    """
    fixed = (values == values[:1, :1]).all(axis=(0, 1))
    distance = (values - ranks[:, None, None]) % num_ranks
    relative = distance[0]
    rise = (relative[1] - relative[0]) % num_ranks if len(wg) > 1 else np.zeros(values.shape[2], np.int64)
    base = (relative[0] - rise * wg[0]) % num_ranks
    moving = (distance == (base + rise * wg[None, :, None]) % num_ranks).all(axis=(0, 1))
    moving &= (rise <= 1) | (rise == num_ranks - 1)
    own = moving & (base == 0) & (rise == 0)
    absolute = fixed & ~own if len(ranks) == 1 else fixed & ~moving
    if not (absolute | moving).all():
        return None
    return Peers(base, rise, np.where(absolute, values[0, 0], -1))
