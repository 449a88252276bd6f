"""Columns of files as whole numbers: the unit is in the header, or in each value; the column says what it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.errors import InputError, UnitError, nearest
from trine.units import MAX_INT64, parse_bytes, parse_time, whole_number

#: A column as a file has it: texts and numbers, or an array of whole numbers.
Cells = Sequence[object] | npt.NDArray[Any]

COLUMNS = ("peer", "address", "bytes", "value", "time")
#: Distinct texts of a column that are remembered.
MAX_KNOWN = 10**6
_UNIT = re.compile(r"\s*([A-Za-z]+)(?:_([A-Za-zµμ]+)|\s*[(\[]\s*([A-Za-zµμ]+)\s*[)\]])?\s*")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_PARSERS: dict[str, Callable[..., int]] = {"time": parse_time, "bytes": parse_bytes}


class Fault(InputError):
    """A cell that cannot be read; ``row`` counts from 0."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


def read_header(names: Iterable[object], file: str) -> dict[str, tuple[int, int | None]]:
    """Where each column stands, and how much one of its unit is (ps or bytes; None: the header names none).

    Columns: ``peer``, ``address``, ``bytes`` (or ``bytes_KiB``, or with units in the values), ``value`` (may be left
    out) and ``time`` with units in the values, or ``time_us``, ``time (us)``.

    Raises
    ------
    InputError: an unknown, repeated or missing column, or an unknown unit.
    """
    found: dict[str, tuple[int, int | None]] = {}
    for place, text in enumerate(names):
        match = _UNIT.fullmatch(text) if isinstance(text, str) and len(text) <= 80 else None
        name = match[1] if match else str(text)[:80]
        if name not in COLUMNS:
            raise InputError(f"unknown column {name!r}{nearest(name, COLUMNS)}", file=file)
        if name in found:
            raise InputError(f"the column {name!r} is there twice", file=file)
        found[name] = place, _factor(name, (match[2] or match[3]) if match else None, file)
    missing = [name for name in COLUMNS if name not in found and name != "value"]
    if missing:
        hint = " (time_us, or time with a unit in each value)" if missing[0] == "time" else ""
        raise InputError(f"has no column {missing[0]!r}{hint}", file=file)
    return found


def _factor(name: str, unit: str | None, file: str) -> int | None:
    if unit is None:
        return None
    if name not in _PARSERS:
        raise InputError(f"has no unit, but the header says {unit!r}", file=file, field=name)
    try:
        return _PARSERS[name](f"1 {unit}")
    except UnitError as error:
        raise InputError(str(error), file=file, field=name) from None


def whole_numbers(name: str, cells: Cells, factor: int | None) -> Int64:
    """int64[rows]: ps, bytes, or plain numbers.

    Raises
    ------
    Fault: the first that cannot be read.
    """
    if isinstance(cells, np.ndarray):
        return _scaled(name, cells, factor)
    if (name != "time" or factor is not None) and all(map(_is_short_number, cells)):
        return _scaled(name, np.array([int(cell) for cell in cells], np.int64), factor)  # type: ignore[call-overload]
    known: dict[str, int] = {}
    numbers = []
    for row, cell in enumerate(cells):
        number = known.get(cell) if isinstance(cell, str) else None
        if number is None:
            number = _number(name, cell, factor, row)
            if isinstance(cell, str) and len(known) < MAX_KNOWN:
                known[cell] = number
        numbers.append(number)
    return np.array(numbers, np.int64)


def _is_short_number(cell: object) -> bool:
    """Whether it is a whole number within int64 and nothing else: most are."""
    if type(cell) is str:
        return len(cell) < 19 and cell.isascii() and cell.isdecimal()
    return type(cell) is int and -(10**18) < cell < 10**18


def _scaled(name: str, cells: npt.NDArray[Any], factor: int | None) -> Int64:
    if name == "time" and factor is None and cells.any():
        raise Fault("needs a unit: name the column time_us, or write '10 us'", int((cells != 0).argmax()))
    one = factor or 1
    wrong = (cells > MAX_INT64 // one) | (cells.astype(np.int64) < -(MAX_INT64 // one))
    if wrong.any():
        raise Fault(f"{cells[wrong.argmax()]} is too large", int(wrong.argmax()))
    return cells.astype(np.int64) * one


def _number(name: str, cell: object, factor: int | None, row: int) -> int:
    if isinstance(cell, str):
        cell = cell.strip()
    if (cell is None or cell == "") and name == "value":
        return 0
    if cell is None or cell == "":
        raise Fault("is missing", row)
    if isinstance(cell, bool) or not isinstance(cell, str | int | float) or len(str(cell)) > 64:
        raise Fault(f"must be a number, got {str(cell)[:80]!r}", row)
    try:
        number = _parsed(name, cell, factor)
    except UnitError as error:
        if "must not be negative" in str(error):
            raise Fault(
                f"{cell!r} is in the past: the run begins at 0" if name == "time" else str(error), row
            ) from None
        raise Fault(str(error).removeprefix("a time ").removeprefix("a size "), row) from None
    except OverflowError:
        raise Fault(f"{cell!r} is too large", row) from None
    except (InvalidOperation, ValueError):
        raise Fault(f"must be a{'' if name == 'time' else ' whole'} number, got {cell!r}", row) from None
    if abs(number) > MAX_INT64:
        raise Fault(f"{cell!r} is too large", row)
    return number


def _parsed(name: str, cell: str | int | float, factor: int | None) -> int:
    """Raises UnitError, ValueError, OverflowError or InvalidOperation."""
    if name == "time" and factor is None:
        return parse_time(cell)
    if name == "bytes" and factor is None and isinstance(cell, str) and whole_number(cell, -MAX_INT64) is None:
        return parse_bytes(cell)
    if name == "value" and isinstance(cell, str) and cell[:2] in ("0x", "0X"):
        return int(cell, 16)
    if isinstance(cell, str) and not _DECIMAL.fullmatch(cell):
        raise ValueError
    exact = Decimal(str(cell))
    if not exact.is_finite():
        raise ValueError
    if exact.adjusted() > 20:
        raise OverflowError
    whole = (exact * (factor or 1)).to_integral_value(ROUND_CEILING)
    if whole != exact * (factor or 1) and name != "time":
        raise ValueError
    return int(whole)
