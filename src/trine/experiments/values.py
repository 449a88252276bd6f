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
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

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

    def draw(self, seed: int, field: str, sample: int) -> Value:
        """Return the value of a sample; it depends on the arguments alone."""
        part = random.Random(f"{seed}/{field}/{sample}").random()
        if self.is_whole and not self.is_log:
            return self.with_unit(int(self.low) + int(part * (int(self.high) - int(self.low) + 1)))
        if self.is_log:
            number = math.exp(math.log(self.low) + part * (math.log(self.high) - math.log(self.low)))
        else:
            number = self.low + part * (self.high - self.low)
        return self.with_unit(round(number) if self.is_whole else number)

    def with_unit(self, number: float) -> Value:
        """Return a number, as text if the range has a unit."""
        return f"{number!r} {self.unit}" if self.unit else number


def parse_values(field: str, given: object) -> tuple[Value, ...] | RandomValues:
    """Return the values of a field from its text or list.

    Raises InputError: no value, a repeated value, a range that is empty or too long.
    """
    if isinstance(given, str):
        text = given.strip()
        match = _RANDOM.fullmatch(text)
        if match is not None:
            return _distribution(field, *match.groups())
        parts: list[object] = [part.strip() for part in re.split(";" if ";" in text else ",", text)]
    else:
        parts = list(given) if isinstance(given, list | tuple) else [given]
    values = [value for part in parts for value in _part(field, part)]
    if len(set(map(_key, values))) < len(values):
        repeated = next(value for i, value in enumerate(values) if _key(value) in map(_key, values[:i]))
        raise InputError(f"has the value {repeated!r} twice", field=field)
    if not values or "" in values:
        raise InputError(f"has an empty value in {given!r:.80}; give values such as 1,2,4 or 8..64*2", field=field)
    return tuple(values)


def _key(value: Value) -> tuple[str, Value]:
    return type(value).__name__, value


def _part(field: str, part: object) -> list[Value]:
    if isinstance(part, bool | int | float):
        if isinstance(part, float) and not math.isfinite(part):
            raise InputError(f"takes finite numbers, got {part!r}", field=field)
        return [part]
    if not isinstance(part, str):
        raise InputError(f"takes numbers and text, got {part!r:.80}", field=field)
    match = _RANGE.fullmatch(part)
    return [literal(part)] if match is None else _range(field, part, *match.groups())


def literal(text: str) -> Value:
    """Return a number, a boolean or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not re.fullmatch(_NUMBER, text, re.ASCII):
        return text
    return int(text) if re.fullmatch(r"[+-]?\d+", text, re.ASCII) else float(text)


def _distribution(field: str, kind: str, low: str, high: str, unit: str) -> RandomValues:
    made = RandomValues(
        low=float(low), high=float(high), is_log=kind == "log", unit=unit,
        is_whole=isinstance(literal(low), int) and isinstance(literal(high), int),
    )  # fmt: skip
    if not made.low < made.high or (made.is_log and made.low <= 0):
        raise InputError(f"{kind}({low}..{high}) is empty, or its logarithm is", field=field)
    return made


def _range(field: str, text: str, low: str, high: str, kind: str | None, by: str | None, unit: str) -> list[Value]:
    """Return the values of a range, exact in the decimals as typed."""
    start, end = Fraction(low), Fraction(high)
    step = Fraction(by) if by is not None else Fraction(1)
    if start > end or step <= 0 or (kind == "*" and (step <= 1 or start <= 0)):
        raise InputError(f"the range {text!r:.80} is empty or endless", field=field)
    numbers = _spaced(field, text, start, end, int(step)) if kind == "/" else _stepped(field, start, end, kind, step)
    return [_value(number, unit) for number in numbers]


def _spaced(field: str, text: str, start: Fraction, end: Fraction, count: int) -> list[Fraction]:
    if not 2 <= count <= MAX_VALUES:
        raise InputError(f"the range {text!r:.80} needs 2 to {MAX_VALUES} values", field=field)
    return [start + (end - start) * i / (count - 1) for i in range(count)]


def _stepped(field: str, start: Fraction, end: Fraction, kind: str | None, step: Fraction) -> list[Fraction]:
    if kind != "*" and (end - start) / step >= MAX_VALUES:
        raise InputError(f"has more than {MAX_VALUES} values", field=field)
    numbers = [start]
    while (following := numbers[-1] * step if kind == "*" else numbers[-1] + step) <= end:
        numbers.append(following)
    return numbers


def _value(number: Fraction, unit: str) -> Value:
    plain: int | float = int(number) if number.denominator == 1 else float(number)
    return f"{plain} {unit}" if unit else plain


def written(values: tuple[Value, ...] | RandomValues) -> list[Value] | dict[str, Any]:
    """Return the values as plain data for the resolved specification."""
    if isinstance(values, tuple):
        return list(values)
    return {name: getattr(values, name) for name in RandomValues.__dataclass_fields__}


def read_written(field: str, data: object) -> tuple[Value, ...] | RandomValues:
    """Return the values that :func:`written` wrote. Raises InputError for other data."""
    if isinstance(data, Mapping):
        if set(data) != set(RandomValues.__dataclass_fields__):
            raise InputError("is no distribution", field=field)
        return RandomValues(**data)
    return parse_values(field, data)
