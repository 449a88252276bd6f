"""The constant factor between a row's time and its algbw: units, and versions of nccl-tests that count differently.

nccl-tests prints algbw = size / time. A factor that all rows share tells how a table differs: 1000 means milliseconds.
Old versions leave one of n blocks out of all_gather's and reduce_scatter's algbw, which gives n / (n - 1)
(github.com/NVIDIA/nccl-tests/issues/44). If most rows share no factor, the columns mean something else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from trine.check.nccl_rows import LogRow, Measure

#: Bandwidths are printed with two decimals, large ones with five digits; times with three or more digits.
_HALF_UNIT_BYTES_PER_S, _HALF_DIGIT, _TIME_DIGITS = 0.005e9, 5e-5, 1e-3
#: Rows whose printed algbw is less precise than this say nothing about a factor.
_IMPRECISE = 0.05
#: A row shares a factor within its own rounding and this.
_AGREES = math.log(1.02)
#: Shares of rows that make a factor constant.
_MOST = 0.5
_UNITS = {
    1e3: ("times are milliseconds", 1e3, 1.0), 1e6: ("times are seconds", 1e6, 1.0),
    2**30 / 1e9: ("bandwidths are GiB/s", 1.0, 2**30 / 1e9), 0.125: ("bandwidths are Gb/s", 1.0, 0.125),
}  # fmt: skip
_SMALL = {False: ("times are nanoseconds", 1e-3, 1.0), True: ("bandwidths are MB/s", 1.0, 1e-3)}
#: From this number of ranks on, n / (n - 1) is too close to 1 to prove an old version by itself.
_MAX_PROVEN_RANKS = 32


@dataclass(frozen=True, slots=True)
class RateUnits:
    """How a table's numbers are to be read. ``time``, ``rate``: factors on times and on both bandwidths.

    ``blocks``: number of ranks if algbw leaves out one of n blocks (old nccl-tests); None otherwise. ``note``: what
    differs from today's nccl-tests, "" if nothing. ``fault``: why times and bandwidths contradict each other.
    """

    time: float = 1.0
    rate: float = 1.0
    blocks: int | None = None
    note: str = ""
    fault: str = ""

    def apply(self, rows: Sequence[LogRow]) -> list[LogRow]:
        """Return rows in microseconds and GB/s, with algbw = size / time."""
        algbw = self.rate * (1.0 if self.blocks is None else self.blocks / (self.blocks - 1))
        if self.time == self.rate == algbw == 1.0:
            return list(rows)

        def corrected(measure: Measure | None) -> Measure | None:
            return measure and replace(
                measure,
                time_ps=max(1, round(measure.time_ps * self.time)),
                algbw_bytes_per_s=measure.algbw_bytes_per_s * algbw,
                busbw_bytes_per_s=measure.busbw_bytes_per_s * self.rate,
            )

        return [
            replace(row, out_of_place=corrected(row.out_of_place), in_place=corrected(row.in_place)) for row in rows
        ]


def read_units(rows: Sequence[LogRow], blocks: int | None, states_unit: bool) -> RateUnits:
    """Return the meaning of the factor between size / time and algbw.

    blocks: size / (count x bytes of an element) if constant. states_unit: the header names the unit of the times.
    """
    factors = []
    for row in rows:
        for measure in (row.out_of_place, row.in_place):
            if each := _factor(row, measure):
                factors.append(each)
    if not factors:
        return RateUnits()
    factor = median(value for value, _ in factors)
    agreeing = sum(abs(math.log(value / factor)) <= off + _AGREES for value, off in factors)
    if agreeing <= _MOST * len(factors) and len(factors) > 2:
        low = min(value for value, _ in factors)
        high = max(value for value, _ in factors)
        text = f"size / time is {low:.3g} to {high:.3g} times algbw in {len(factors)} results"
        return RateUnits(fault=f"time and algbw disagree: {text}, so the columns mean something else")
    ratios = [m.busbw_bytes_per_s / m.algbw_bytes_per_s for row in rows for m in (row.out_of_place, row.in_place)
              if m and m.algbw_bytes_per_s > 1e9]  # fmt: skip
    is_old_form = bool(ratios) and abs(median(ratios) - 1) < 0.005
    precision = max(0.004, min(off for _, off in factors))
    for scale in (1.0, 1e3, 1e6):
        ranks = _left_out_block(factor / scale, precision, blocks) if is_old_form else None
        if ranks is not None:
            unit, time, _ = _UNITS.get(scale, ("", 1.0, 1.0))
            words = f"algbw leaves out one of {ranks} blocks, as old versions of nccl-tests did"
            return RateUnits(time=time, blocks=ranks, note="; ".join(filter(None, (words, unit))))
    if abs(math.log(factor)) <= _AGREES + precision:
        return RateUnits()
    for value, (note, time, rate) in (*_UNITS.items(), (1e-3, _SMALL[states_unit])):
        if abs(math.log(factor / value)) <= _AGREES:
            return RateUnits(time, rate, note=f"{note}: size / time is {value:.4g} times the printed algbw")
    text = f"size / time is {factor:.4g} times algbw in {agreeing} of {len(factors)} results"
    return RateUnits(fault=f"time and algbw disagree: {text}, which no unit explains")


def _factor(row: LogRow, measure: Measure | None) -> tuple[float, float] | None:
    """Return size / time / algbw and its relative rounding error; None if the printed numbers are too coarse."""
    if measure is None or not row.size_bytes or measure.algbw_bytes_per_s <= 0:
        return None
    algbw = measure.algbw_bytes_per_s
    off = max(_HALF_UNIT_BYTES_PER_S, _HALF_DIGIT * algbw) / algbw + _TIME_DIGITS
    return None if off > _IMPRECISE else (row.size_bytes * 1e12 / measure.time_ps / algbw, off)


def _left_out_block(factor: float, precision: float, blocks: int | None) -> int | None:
    """Return n if the factor is n / (n - 1): of the known number of blocks, else of a small whole number."""
    if blocks is not None:
        fits = blocks > 1 and abs(factor * (blocks - 1) / blocks - 1) <= precision
        return blocks if fits else None
    if factor <= 1 + precision:
        return None
    ranks = round(factor / (factor - 1))
    fits = 2 <= ranks <= _MAX_PROVEN_RANKS and abs(factor * (ranks - 1) / ranks - 1) <= precision
    return ranks if fits else None
