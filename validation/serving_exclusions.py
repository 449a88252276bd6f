"""Rows of published serving runs that judge nothing, by rules on their configuration and measured values.

The rules read no predictions. Rule numbers follow the list of known traps in the data: 1 repeated rows, 4 unstated
speculative decoding, 5 more requests than run at a time, 6 planned configurations, 7 a stalled server.
``benchmarks/exclude_serving_rows.py`` prints the number of rows of each rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from validation.harness import grouped
from validation.serving_rows import AGGREGATED, ServingRow

SOURCE = "aiconfigurator"
#: A run is overloaded if its TTFT is above this many milliseconds and above this share of a request's time.
OVERLOAD_TTFT_MS, OVERLOAD_SHARE = 8000, 0.35
#: Input lengths of planned configurations.
PLANNED_LENGTHS = (1000, 2000, 4000, 8000)
#: Release and date of TensorRT-LLM runs with speculation; pairs of equal SGLang runs show it in the faster one.
SPECULATIVE_RELEASE, SPECULATIVE_DATE = "1.2.0rc6.post3", "2026-01-14"
PAIRED_RELEASE = "0.5.9"
#: SGLang runs on B200 before this month stalled.
STALLED_BEFORE = "2025-12"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A rule. trap: its number; find: returns the rows to exclude among the rows that earlier rules leave."""

    trap: int
    reason: str
    find: Callable[[Sequence[ServingRow]], Iterable[ServingRow]]


def _repeated(rows: Sequence[ServingRow]) -> Iterable[ServingRow]:
    """Return rows whose TTFT and TPOT equal another row's in five digits; the row that states most stays."""
    groups = grouped(rows, lambda row: (f"{row.ttft_ms or 0:.5g}", f"{row.tpot_ms or 0:.5g}"))
    for repeats in groups.values():
        stated = [row for row in repeats if row.decode_workers is not None]
        kept = (stated or repeats)[0]
        yield from (row for row in repeats if row is not kept)


def _speculative(rows: Sequence[ServingRow]) -> Iterable[ServingRow]:
    aggregated = [row for row in rows if row.kind == AGGREGATED]
    for row in aggregated:
        if row.engine == "trtllm" and (row.version == SPECULATIVE_RELEASE or row.measured == SPECULATIVE_DATE):
            yield row
    paired = [
        row for row in aggregated if (row.engine, row.version, row.precision) == ("sglang", PAIRED_RELEASE, "fp8")
    ]
    for equal in grouped(paired, lambda row: (row.configuration, row.concurrency)).values():
        slowest = max(equal, key=lambda row: row.tpot_ms or 0)
        yield from (row for row in equal if row is not slowest)


def _planned(rows: Sequence[ServingRow]) -> Iterable[ServingRow]:
    return (row for row in rows if row.kind == AGGREGATED and row.isl in PLANNED_LENGTHS)


def _stalled(rows: Sequence[ServingRow]) -> Iterable[ServingRow]:
    for row in rows:
        is_candidate = row.kind == AGGREGATED and row.engine == "sglang" and row.gpu == "b200_sxm"
        if is_candidate and "" < row.measured < STALLED_BEFORE:
            yield row


def _overloaded(rows: Sequence[ServingRow]) -> Iterable[ServingRow]:
    for row in rows:
        if row.kind != AGGREGATED or row.ttft_ms is None or row.tpot_ms is None:
            continue
        run_ms = row.ttft_ms + row.osl * row.tpot_ms
        if row.ttft_ms > OVERLOAD_TTFT_MS and row.ttft_ms > OVERLOAD_SHARE * run_ms:
            yield row


#: The rules, in their order of application.
EXCLUSIONS = (
    Exclusion(1, "repeats another row: TTFT and TPOT equal in five digits", _repeated),
    Exclusion(4, "speculative decoding, which no column states", _speculative),
    Exclusion(6, "a planned configuration: the batch is no closed loop", _planned),
    Exclusion(5, "overload: TTFT above 8 s and above 35 % of the request's time", _overloaded),
    Exclusion(7, "SGLang on B200 before December 2025: the server stalled", _stalled),
)


def excluded_rows(rows: Iterable[ServingRow]) -> dict[str, Exclusion]:
    """Return the name of each excluded row with the first rule that applies."""
    left = [row for row in rows if row.source == SOURCE]
    excluded: dict[str, Exclusion] = {}
    for rule in EXCLUSIONS:
        excluded |= {row.name: rule for row in rule.find(left)}
        left = [row for row in left if row.name not in excluded]
    return excluded


def exclusion_counts(excluded: Mapping[str, Exclusion]) -> list[tuple[Exclusion, int]]:
    """Return the rules in the order of their numbers, each with its number of rows."""
    counts = {rule.trap: sum(each is rule for each in excluded.values()) for rule in EXCLUSIONS}
    return [(rule, counts[rule.trap]) for rule in sorted(EXCLUSIONS, key=lambda rule: rule.trap)]
