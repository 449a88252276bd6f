"""Lines of nccl-tests and rccl-tests as people paste them: what they hold, and what stands before them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

#: What comes before a line: colours, mpirun's and srun's labels, time stamps of container logs, quotes.
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIXES = (
    re.compile(r"\[\d+,\d+\]\s*<std(?:out|err)>:\s?"),
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s"),
    re.compile(r"\[\d\d:\d\d:\d\d(?:\.\d+)?\]\s"),
    re.compile(r"\s*\d{1,5}:\s(?=\s*(?:#|\d))"),
    re.compile(r"(?:>|\|)\s?"),
)
_MAX_PREFIXES = 4
_QUANTITY = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?\d{1,3})?)(ns|us|ms|s)?", re.ASCII)
_WHOLE = re.compile(r"\d{1,19}", re.ASCII)
_ROOT = re.compile(r"-?\d{1,7}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_TIME_COLUMNS = ("time", "cputime")
PS_PER_UNIT = {"ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
#: A time above it (11 days) is no time of a collective.
_MAX_TIME_PS = 10**18


@dataclass(frozen=True, slots=True)
class Measure:
    """One of a row's two results. ``time_ps`` int; bandwidths in bytes/s as printed; ``wrong`` None: not checked."""

    time_ps: int
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One size. ``root`` and ``redop`` None: the table has no such column, or it is empty."""

    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: Measure | None
    in_place: Measure | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns after size, count and type. ``extra``: columns after each result (statistics of iterations)."""

    has_redop: bool
    has_root: bool
    extra: int = 0
    unit: str = "us"


def clean(line: str) -> str:
    """The line without what terminals, launchers and log collectors put before it."""
    line = _ANSI.sub("", line).replace("\r", "")
    for _ in range(_MAX_PREFIXES):
        for prefix in _PREFIXES:
            if match := prefix.match(line):
                line = line[match.end() :]
                break
        else:
            break
    return line


def header(line: str) -> Layout | None:
    """The columns that a ``# size count type ...`` line announces, None if it is another line."""
    words = line.lstrip("# \t").split()
    if words[:3] != ["size", "count", "type"] or not any(word in _TIME_COLUMNS for word in words):
        return None
    first = next(i for i, word in enumerate(words) if word in _TIME_COLUMNS)
    second = next((i for i, word in enumerate(words) if word in _TIME_COLUMNS and i > first), len(words))
    return Layout(has_redop="redop" in words[:first], has_root="root" in words[:first], extra=second - first - 4)


def looks_like_row(words: Sequence[str]) -> bool:
    """Size, count and data type: what every row begins with."""
    return (
        len(words) >= 4
        and _WHOLE.fullmatch(words[0]) is not None
        and _WHOLE.fullmatch(words[1]) is not None
        and _TYPE.fullmatch(words[2]) is not None
    )


def row(words: Sequence[str], layout: Layout | None) -> Row | None:
    """A row of the table; None if the line is cut before its first result is complete.

    ``layout`` None: there was no header, so the columns follow from their number: 4 for each result.
    """
    redop, rest = (words[3], list(words[4:])) if _TYPE.fullmatch(words[3]) and words[3] != "N" else (None, words[3:])
    layout = layout or Layout(has_redop=redop is not None, has_root=len(rest) % 4 == 1 or rest[:1] == ["-1"])
    root = None
    if layout.has_root and rest and _ROOT.fullmatch(rest[0]):
        root, rest = int(rest[0]), rest[1:]
    width = 4 + max(0, layout.extra)
    if len(rest) < 4:
        return None
    try:
        first = _measure(rest[:4], layout.unit)
        second = _measure(rest[width : width + 4], layout.unit) if len(rest) >= width + 4 else None
    except ValueError:
        return None
    if first is None and second is None:
        return None
    return Row(
        size_bytes=int(words[0]), count=int(words[1]), dtype=words[2], redop=redop, root=root,
        out_of_place=first, in_place=second,
    )  # fmt: skip


def _measure(words: Sequence[str], unit: str) -> Measure | None:
    """A result; None where the test has none (``N/A``). Raises ValueError if it is neither."""
    if all(word.upper() in ("N/A", "NA", "-") for word in words[:3]):
        return None
    time_ps, algbw, busbw = time_of(words[0], unit), _number(words[1]), _number(words[2])
    if time_ps is None or algbw is None or busbw is None:
        raise ValueError("not a result")
    return Measure(time_ps, algbw * 1e9, busbw * 1e9, _number(words[3]))


def time_of(word: str, unit: str = "us") -> int | None:
    """``1234.5``, ``1.0e+06``, ``12.3ms`` as picoseconds; None for anything else, or what cannot be a time."""
    match = _QUANTITY.fullmatch(word)
    if match is None:
        return None
    time_ps = float(match[1]) * PS_PER_UNIT[match[2] or unit]
    return round(time_ps) if 0 < time_ps < _MAX_TIME_PS else None


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None
