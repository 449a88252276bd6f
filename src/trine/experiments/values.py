"""Values of a varied field: lists, ranges with a step, a factor or a count, and distributions for random samples.

::

    1,2,4              a list; separate with ; if a value holds commas
    8..64, 8:64:x2     ranges, as in :mod:`trine.common.ranges`
    uniform(0.1..0.9)  random, log(1..1000) random on a logarithmic scale; whole numbers between whole numbers
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from trine.common.ranges import expand_range
from trine.common.units import MAX_INT64, finite_number, whole_number
from trine.errors import InputError

#: A value of a setting, as in JSON.
Value = str | int | float | bool
#: Options whose own values have a colon between numbers.
_WITH_COLONS = frozenset({"slow_by", "straggler"})
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,5})?"
_PLAIN = re.compile(_NUMBER, re.ASCII)
#: Longest text that may be a number or a distribution.
_MAX_TEXT = 160
_RANDOM = re.compile(rf"(uniform|log)\(\s*({_NUMBER})\.\.({_NUMBER})\s*([A-Za-z%/]*)\s*\)", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomValues:
    """A random field: uniform between ``low`` and ``high``, or uniform in the logarithm. is_whole: whole numbers."""

    low: float
    high: float
    is_log: bool
    is_whole: bool
    unit: str = ""

    def __str__(self) -> str:
        low, high = (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)
        return f"{'log' if self.is_log else 'uniform'}({low}..{high} {self.unit})"

    def draw(self, seed: int, field: str, sample: int) -> Value:
        """Return the value of a sample; it depends on the arguments alone."""
        part = random.Random(f"{seed}/{field}/{sample}").random()
        if self.is_log:
            number = math.exp(math.log(self.low) + part * (math.log(self.high) - math.log(self.low)))
            return self.with_unit(round(number) if self.is_whole else number)
        if self.is_whole:
            return self.with_unit(int(self.low) + int(part * (int(self.high) - int(self.low) + 1)))
        return self.with_unit(self.low + part * (self.high - self.low))

    def with_unit(self, number: float) -> Value:
        """Return a number, as text if the range has a unit."""
        return f"{number!r} {self.unit}" if self.unit else number


def parse_values(field: str, given: object) -> tuple[Value, ...] | RandomValues:
    """Return the values of a field from its text or list.

    Raises InputError: no value, a repeated value, a range that is empty or too long.
    """
    if isinstance(given, RandomValues):
        return given
    if isinstance(given, str):
        text = given.strip()
        if len(text) <= _MAX_TEXT and (match := _RANDOM.fullmatch(text)):
            return _distribution(field, *match.groups())
        separator = ";" if ";" in text else ","
        given = [part.strip() for part in text.split(separator)]
    texts = given if isinstance(given, list | tuple) else [given]
    values = [value for part in texts for value in _part(field, part)]
    seen: set[tuple[type, Value]] = set()
    for value in values:
        if (type(value), value) in seen:
            raise InputError(f"has the value {value!r} twice", field=field)
        seen.add((type(value), value))
    if not values or "" in values:
        raise InputError(f"has an empty value in {given!r:.80}; give values such as 1,2,4 or 8..64*2", field=field)
    return tuple(values)


def _part(field: str, part: object) -> list[Value]:
    if isinstance(part, str):
        try:
            values = expand_range(part, has_colons=field not in _WITH_COLONS)
        except InputError as error:
            raise InputError(str(error), field=field) from None
        return [_literal(field, part)] if values is None else [*values]
    if not is_number(part):
        raise InputError(f"takes finite numbers and text, got {part!r:.80}", field=field)
    return [part]  # type: ignore[list-item]


def is_number(value: object) -> bool:
    """Return whether a value is a boolean, a whole number of 64 bits or a finite float."""
    if isinstance(value, int):
        return -MAX_INT64 <= value <= MAX_INT64
    return isinstance(value, float) and math.isfinite(value)


def _literal(field: str, text: str) -> Value:
    """Return a number, a boolean or the text itself. Raises InputError for a number that no float holds."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    digits = text.replace(".", "").lstrip("+-") if len(text) > _MAX_TEXT else ""
    if digits.isdecimal():
        raise InputError(f"has a number of {len(digits):,} digits: {text:.20}...", field=field)
    if len(text) > _MAX_TEXT or not _PLAIN.fullmatch(text):
        return text
    number = whole_number(text.removeprefix("+"), -MAX_INT64)
    if number is not None:
        return number
    decimal = finite_number(text)
    if decimal is None:
        raise InputError(f"has a number that is too large or too long: {text:.40}", field=field)
    return decimal


def _distribution(field: str, kind: str, low: str, high: str, unit: str) -> RandomValues:
    ends = [_literal(field, low), _literal(field, high)]
    is_whole = all(isinstance(end, int) for end in ends)
    made = RandomValues(low=float(ends[0]), high=float(ends[1]), is_log=kind == "log", is_whole=is_whole, unit=unit)
    if not made.low < made.high < math.inf or (made.is_log and made.low <= 0):
        raise InputError(f"{kind}({low}..{high}) is empty, or its logarithm is", field=field)
    return made
