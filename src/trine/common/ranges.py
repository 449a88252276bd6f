"""Ranges of numbers and sizes: one syntax for ``--size``, ``--vary`` and experiment files.

::

    8..64        steps of 1; sizes (1K..1G) double
    8..64+8      steps of 8                8:64:8
    8..64*2      factors of 2              8:64:x2, or 8:64
    0..1/5       five values, equally spaced
    200..400+100 GB/s   with a unit, after the range or after each number

K, M, G and T after the ends are powers of 1024, as in nccl-tests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction

from trine.common.units import finite_number
from trine.errors import InputError

#: Maximum number of values of a range, and of one with a factor, whose exact values have ever more digits.
MAX_VALUES, MAX_FACTORS = 1_000_000, 4096
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,5})?"
_UNIT = r"\s*([A-Za-zµμ%/]*)\s*"
_DOTS = re.compile(rf"\s*({_NUMBER}){_UNIT}\.\.\s*({_NUMBER}){_UNIT}(?:([+*/])\s*({_NUMBER}){_UNIT})?", re.ASCII)
_COLONS = re.compile(rf"\s*({_NUMBER}){_UNIT}:\s*({_NUMBER}){_UNIT}(?::\s*([xX*]?)\s*({_NUMBER}){_UNIT})?", re.ASCII)
_POWER = {"K": 10, "M": 20, "G": 30, "T": 40}
#: Longest range, and longest number in it, in characters.
_MAX_TEXT, _MAX_DIGITS = 160, 40


def expand_range(text: str, *, has_colons: bool = True) -> list[int | float | str] | None:
    """Return the values of a range, exact in the decimals as typed; None if the text is no range.

    Values with a unit or a size are texts. has_colons: False for a setting whose own values have colons.

    Raises InputError for a range that is empty, endless or too long, for numbers beyond any float, and for units that
    differ.
    """
    if len(text) > _MAX_TEXT:
        return None
    match, kind = _DOTS.fullmatch(text), "+"
    if match is None and has_colons:
        match, kind = _COLONS.fullmatch(text), "*"
    if match is None:
        return None
    first, unit, last, last_unit, operator, by, by_unit = match.groups()
    if any(len(number or "") > _MAX_DIGITS or finite_number(number or "0") is None for number in (first, last, by)):
        raise InputError(f"the range {text!r:.80} has a number that is too large or too long")
    if operator is not None:
        if operator in ("+", "/"):
            kind = operator
        elif operator:
            kind = "*"
        else:
            kind = "+"
    units = {each for each in (unit, last_unit, by_unit) if each}
    if units and all(each.upper() in _POWER for each in units):
        start, end = _bytes(first, unit), _bytes(last, last_unit)
        if by is None:
            step = Fraction(2)
        elif kind in ("*", "/"):
            step = Fraction(by)
        else:
            step = _bytes(by, by_unit)
        values = list(_steps(start, end, step, "*" if by is None else kind, text))
        return [_size(value) for value in values]
    if len(units) > 1:
        raise InputError(f"the range {text!r:.80} has several units: {', '.join(sorted(units))}")
    step = Fraction(by or (2 if kind == "*" else 1))
    numbers = [_plain(number) for number in _steps(Fraction(first), Fraction(last), step, kind, text)]
    if units:
        return [f"{number} {next(iter(units))}" for number in numbers]
    return [*numbers]


def _bytes(number: str, unit: str) -> Fraction:
    return Fraction(number) * (1 << _POWER.get((unit or "").upper(), 0))


def _size(value: Fraction) -> str:
    """Return a whole number of bytes as a size such as 64M. Raises InputError for a part of a byte."""
    if value.denominator != 1:
        raise InputError(f"a size must be a whole number of bytes, got {float(value):g}")
    number, unit = int(value), ""
    for letter in _POWER:
        if number and number % 1024 == 0:
            number, unit = number // 1024, letter
    return f"{number}{unit}"


def _plain(number: Fraction) -> int | float:
    return int(number) if number.denominator == 1 else float(number)


def _steps(first: Fraction, last: Fraction, by: Fraction, kind: str, text: str) -> Iterator[Fraction]:
    if kind == "/":
        if by.denominator != 1:
            raise InputError(f"the range {text!r:.80}: the number of values is whole")
        kind, by = "+", (last - first) / (by - 1) if by >= 2 else Fraction(0)
    if first > last or by <= 0 or (kind == "*" and (by <= 1 or first <= 0)):
        raise InputError(f"the range {text!r:.80} is empty or endless")
    if kind == "+" and (last - first) / by >= MAX_VALUES:
        raise InputError(f"the range {text!r:.80} has more than {MAX_VALUES:,} values")
    if kind == "*" and _log(last) - _log(first) >= MAX_FACTORS * max(_log(by), 1e-12):
        raise InputError(f"the range {text!r:.80} has more than {MAX_FACTORS:,} values")
    number = first
    while number <= last:
        yield number
        number = number * by if kind == "*" else number + by


def _log(number: Fraction) -> float:
    """Return the logarithm of a positive number, also of one that no float holds."""
    return math.log(number.numerator) - math.log(number.denominator)
