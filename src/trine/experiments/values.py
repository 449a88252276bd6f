"""Values of a varied field: lists, ranges with a step, a factor or a count, and distributions for random samples.

::

    1,2,4              a list; separate with ; if a value holds commas
    8..64              whole numbers, or 8..64+8 (step), 8..64*2 (factor), 1..2/5 (five values, equally spaced)
    200..400+100 GB/s  a range with a unit
    uniform(0.1..0.9)  random, log(1..1000) random on a logarithmic scale; whole numbers between whole numbers
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from fractions import Fraction

from trine.errors import InputError

#: A value of a setting, as in JSON.
Value = str | int | float | bool
#: Maximum number of values of one field.
MAX_VALUES = 1_000_000
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:([+*/])({_NUMBER}))?\s*([A-Za-zµ%/]*)", re.ASCII)
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
        if match := _RANDOM.fullmatch(text):
            return _distribution(field, *match.groups())
        given = [part.strip() for part in text.split(";" if ";" in text else ",")]
    values = [value for part in (given if isinstance(given, list | tuple) else [given]) for value in _part(field, part)]
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
        match = _RANGE.fullmatch(part)
        return [_literal(part)] if match is None else _range(field, part, *match.groups())
    if not isinstance(part, bool | int | float) or not math.isfinite(part):
        raise InputError(f"takes finite numbers and text, got {part!r:.80}", field=field)
    return [part]


def _literal(text: str) -> Value:
    """Return a number, a boolean or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not re.fullmatch(_NUMBER, text, re.ASCII):
        return text
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _distribution(field: str, kind: str, low: str, high: str, unit: str) -> RandomValues:
    is_whole = isinstance(_literal(low), int) and isinstance(_literal(high), int)
    made = RandomValues(low=float(low), high=float(high), is_log=kind == "log", is_whole=is_whole, unit=unit)
    if not made.low < made.high < math.inf or (made.is_log and made.low <= 0):
        raise InputError(f"{kind}({low}..{high}) is empty, or its logarithm is", field=field)
    return made


def _range(field: str, text: str, low: str, high: str, kind: str | None, by: str | None, unit: str) -> list[Value]:
    """Return the values of a range, exact in the decimals as typed."""
    start, end, step = Fraction(low), Fraction(high), Fraction(by or 1)
    if kind == "/":
        kind, step = "+", (end - start) / (int(step) - 1) if step >= 2 else Fraction(0)
    if start > end or step <= 0 or (kind == "*" and (step <= 1 or start <= 0)):
        raise InputError(f"the range {text!r:.80} is empty or endless", field=field)
    if kind != "*" and (end - start) / step >= MAX_VALUES:
        raise InputError(f"has more than {MAX_VALUES} values", field=field)
    values: list[Value] = []
    number = start
    while number <= end:
        plain: int | float = int(number) if number.denominator == 1 else float(number)
        values.append(f"{plain} {unit}" if unit else plain)
        number = number * step if kind == "*" else number + step
    return values
