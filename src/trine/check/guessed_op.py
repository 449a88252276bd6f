"""The collective that a table without a program's name shows: from its columns, bandwidths and in-place checks.

Source: src/*.cu of github.com/NVIDIA/nccl-tests. Programs that reduce print a redop, and so does sendrecv_perf. Rooted
programs print a root. alltoall_perf and sendrecv_perf do not check in-place results (``args->reportErrors``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trine.check.nccl_facts import blocks_of, bus_ratio
from trine.check.nccl_rows import LogRow
from trine.check.rate_units import RateUnits

_COLUMNS = "the columns and busbw / algbw"
_CHECKS = "the columns, busbw / algbw and in-place checks"


@dataclass(frozen=True, slots=True)
class GuessedOp:
    """``op``: None if ``others`` are equally possible. ``source``: the evidence."""

    op: str | None
    source: str = ""
    others: tuple[str, ...] = ()


def guess_op(rows: Sequence[LogRow], units: RateUnits, fewest_ranks: int) -> GuessedOp:
    """Return the collective that the rows allow. fewest_ranks: by the device lines, or nThread x nGpus; at least 1."""
    reduces = rows[0].redop not in (None, "none")
    is_rooted = rows[0].root is not None and rows[0].root >= 0
    if units.blocks is not None:
        return GuessedOp("reduce_scatter" if reduces else "all_gather", "the block that algbw leaves out")
    ratio = bus_ratio(rows)
    if ratio is None:
        return _without_rates(rows, reduces, is_rooted)
    is_one = abs(ratio - 1) < 0.005
    if reduces and is_rooted:
        return GuessedOp("reduce", _COLUMNS)
    if reduces and is_one:
        return _ratio_of_one(rows, fewest_ranks)
    if reduces:
        return GuessedOp("all_reduce" if ratio > 1 else "reduce_scatter", _COLUMNS)
    if ratio > 1.005:
        # a table with an explicit "none" cannot be an all-reduce of nccl-tests
        return GuessedOp("all_reduce", _COLUMNS) if rows[0].redop is None else GuessedOp(None)
    if is_one and not rows[0].dtype:
        return GuessedOp(None, others=("all_reduce", "send_recv", "broadcast"))  # no columns but size, time and rates
    if is_one:
        return GuessedOp("broadcast", _COLUMNS) if is_rooted else GuessedOp("send_recv", _COLUMNS)
    if is_rooted:
        return GuessedOp(None, others=("gather", "scatter"))
    checks = _in_place_checks(rows)
    if checks == "absent":
        return GuessedOp("all_to_all", _CHECKS)
    if checks == "present":
        return GuessedOp("all_gather", _CHECKS, ("all_to_all",))
    return GuessedOp(None, others=("all_gather", "all_to_all"))


def _ratio_of_one(rows: Sequence[LogRow], fewest_ranks: int) -> GuessedOp:
    """Return the collective of a table with a redop and busbw = algbw: sendrecv, or an all-reduce of two ranks."""
    checks = _in_place_checks(rows)
    if checks == "absent" or fewest_ranks > 2:
        return GuessedOp("send_recv", _CHECKS)
    return GuessedOp("all_reduce", _COLUMNS, () if checks == "present" else ("send_recv",))


def _without_rates(rows: Sequence[LogRow], reduces: bool, is_rooted: bool) -> GuessedOp:
    """Return the collective of small sizes, whose bandwidths say nothing, by the number of blocks."""
    blocks = blocks_of(rows)
    if reduces and is_rooted:
        return GuessedOp("reduce", f"redop {rows[0].redop} and a root")
    if is_rooted:
        return GuessedOp("broadcast", "a root and the count column") if blocks == 1 else GuessedOp(None)
    if reduces and blocks is not None:
        if blocks > 1:
            return GuessedOp("reduce_scatter", f"redop {rows[0].redop} and the count column")
        if _in_place_checks(rows) == "absent":
            return GuessedOp("send_recv", _CHECKS, ("all_reduce",))
        return GuessedOp("all_reduce", f"redop {rows[0].redop} and the count column")
    if rows[0].redop == "none" and (blocks or 1) > 1:
        checks = _in_place_checks(rows)
        if checks == "absent":
            return GuessedOp("all_to_all", "the count column and in-place checks")
        if checks == "present":
            return GuessedOp("all_gather", "the count column and in-place checks", ("all_to_all",))
    return GuessedOp(None) if rows[0].dtype else GuessedOp(None, others=("all_reduce", "all_gather", "reduce_scatter"))


def _in_place_checks(rows: Sequence[LogRow]) -> str:
    """Return whether in-place results are checked as the others are: ``present``, ``absent`` or ``unknown``."""
    pairs = [(row.out_of_place, row.in_place) for row in rows if row.out_of_place is not None]
    checked = [in_place for out, in_place in pairs if out is not None and out.wrong is not None]
    if not checked:
        return "unknown"
    missing = sum(each is None or each.wrong is None for each in checked)
    if missing == len(checked):
        # a log without the second group of columns shows nothing
        is_present = any(each is not None for each in checked)
        return "absent" if is_present else "unknown"
    return "present" if missing == 0 else "unknown"
