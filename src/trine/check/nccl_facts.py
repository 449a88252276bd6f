"""Facts that the rows of a log imply: the collective, the number of ranks, contradictory and missing rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trine.check.nccl_rows import LogRow, Measure
from trine.collectives.sizes import format_size
from trine.common.precision import NCCL_BYTES

#: Bandwidths are printed with two decimals, large ones with five digits (nccl-tests, getFloatStr).
_HALF_UNIT_BYTES_PER_S, _HALF_DIGIT = 0.005e9, 5e-5
#: A time that misses its own bandwidth by more than this factor contradicts it. Rounding explains a few per cent.
MAX_DISAGREEMENT = 1.5
#: Collectives whose count column is one rank's block, so that size / count gives the number of ranks.
_PER_RANK = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def measures_of(rows: Sequence[LogRow]) -> Iterator[tuple[LogRow, Measure]]:
    """Yield each result with its row."""
    for row in rows:
        for measure in (row.out_of_place, row.in_place):
            if measure is not None:
                yield row, measure


def bus_ratio(rows: Sequence[LogRow]) -> float | None:
    """Return busbw / algbw where rounding matters least; None below 1 GB/s, or if a table has only one of them."""
    measures = [m for _, m in measures_of(rows)]
    best = max(measures, key=lambda m: m.algbw_bytes_per_s, default=None)
    if best is None or best.algbw_bytes_per_s < 1e9 or not best.busbw_bytes_per_s:
        return None
    return best.busbw_bytes_per_s / best.algbw_bytes_per_s


def ratio_range(rows: Sequence[LogRow]) -> tuple[float, float] | None:
    """Return the lowest and highest busbw / algbw that all printed roundings allow; None below 1 GB/s."""
    bounds = [_bounds(m) for _, m in measures_of(rows) if m.algbw_bytes_per_s >= 0.1e9]
    if not bounds or bus_ratio(rows) is None:
        return None
    low = max(low for low, _ in bounds)
    high = min(high for _, high in bounds)
    if low <= high:
        return low, high
    measures = [m for _, m in measures_of(rows)]
    return _bounds(max(measures, key=lambda m: m.algbw_bytes_per_s))


def _bounds(measure: Measure) -> tuple[float, float]:
    algbw, busbw = measure.algbw_bytes_per_s, measure.busbw_bytes_per_s
    off_alg, off_bus = (max(_HALF_UNIT_BYTES_PER_S, _HALF_DIGIT * rate) for rate in (algbw, busbw))
    return max(0.0, busbw - off_bus) / (algbw + off_alg), (busbw + off_bus) / (algbw - off_alg)


def blocks_of(rows: Sequence[LogRow]) -> int | None:
    """Return size / (count x bytes of an element) if all rows agree on a whole number; None otherwise."""
    counts = set()
    for row in rows:
        block = row.count * NCCL_BYTES.get(row.dtype, 0)
        if row.size_bytes and block:
            counts.add(row.size_bytes // block if row.size_bytes % block == 0 else 0)
    return counts.pop() if len(counts) == 1 and 0 not in counts else None


def ranks_by_ratio(rows: Sequence[LogRow], op: str | None) -> tuple[int, int | None] | None:
    """Return the fewest and most ranks that busbw / algbw allows; most None: no upper bound.

    The ratio is 2(n-1)/n for an all-reduce and (n-1)/n for operations that move each block once.
    """
    bounds = ratio_range(rows)
    if bounds is None or op in (None, "send_recv", "broadcast", "reduce"):
        return None
    low, high = (bound / (2 if op == "all_reduce" else 1) for bound in bounds)
    if low <= 0 or low >= 1:
        return None
    fewest = max(2, math.ceil(1 / (1 - low) - 1e-9))
    if high >= 1:
        return fewest, None
    most = math.floor(1 / (1 - high) + 1e-9)
    return (fewest, most) if fewest <= most else (round(2 / (2 - low - high)),) * 2


def ranks_by_count(rows: Sequence[LogRow], op: str | None) -> int | None:
    """Return size / count in ranks, of operations whose count is one rank's block (versions since 2018)."""
    blocks = blocks_of(rows) if op in _PER_RANK else None
    return blocks if blocks is not None and blocks > 1 else None


def roundest(low: int, high: int) -> int:
    """Return the number of a range that has most factors of two: clusters have 64 or 72 ranks, seldom 67."""
    power = next(p for p in range(high.bit_length(), -1, -1) if (high >> p << p) >= low)
    step = 1 << power
    return min(range(-(-low // step) * step, high + 1, step), key=lambda n: abs(2 * n - low - high))


def without_contradictions(rows: Sequence[LogRow]) -> tuple[list[LogRow], list[str]]:
    """Leave out results whose time contradicts their own bandwidth, and return a note on each.

    If most rows do, the columns mean something else, and the rows stay.
    """
    wrong = {}
    for each, part in measures_of(rows):
        if (factor := _disagreement(each, part)) > 1:
            wrong[id(part)] = factor
    if not wrong:
        return list(rows), []
    total = sum(1 for _ in measures_of(rows))
    if 2 * len(wrong) > total:
        return list(rows), [f"time and algbw disagree in {len(wrong)} of {total} results: the times are compared"]
    sound, notes = [], []
    for row in rows:
        out, ins = (None if id(m) in wrong else m for m in (row.out_of_place, row.in_place))
        for name, measure in (("out-of-place", row.out_of_place), ("in-place", row.in_place)):
            if measure is not None and id(measure) in wrong:
                time, algbw = measure.time_ps / 1e6, measure.algbw_bytes_per_s / 1e9
                text = f"a time of {time:g} us contradicts its algbw of {algbw:g} GB/s by {wrong[id(measure)]:.3g} x"
                notes.append(f"{format_size(row.size_bytes)} {name}: {text}; left out")
        if out is not None or ins is not None:
            sound.append(replace(row, out_of_place=out, in_place=ins))
    return sound, notes


def _disagreement(row: LogRow, measure: Measure) -> float:
    """Return the factor between size / time and algbw, 0 within rounding."""
    if not measure.time_ps:
        return 0.0
    rate = row.size_bytes * 1e12 / measure.time_ps
    off = max(_HALF_UNIT_BYTES_PER_S, _HALF_DIGIT * measure.algbw_bytes_per_s)
    low, high = measure.algbw_bytes_per_s - off, measure.algbw_bytes_per_s + off
    if not row.size_bytes or low / MAX_DISAGREEMENT <= rate <= high * MAX_DISAGREEMENT:
        return 0.0
    return rate / high if rate > high else low / rate


def missing_sizes(rows: Sequence[LogRow], last_bytes: int, step: int, by_factor: bool) -> str | None:
    """Return how a log is incomplete if its rows end before the size that the run was to reach."""
    reached = max((row.size_bytes for row in rows), default=0)
    following = reached * step if by_factor else reached + step
    if not reached or step < 1 or following <= reached or following > last_bytes:
        return None
    return f"rows end at {format_size(reached)}, the run was to go to {format_size(last_bytes)}"
