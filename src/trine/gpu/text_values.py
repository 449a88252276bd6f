"""Numbers in the text form of GPU programs: sizes with units, and sums and products of them, for all places at once.

Arithmetic is on whole numbers, with ``+ - * // %`` and parentheses; names are the buffers and the counters of loops. A
value is worked out for all ranks, workgroups and turns of loops at once: names stand for arrays that broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from trine.arrays import Int64
from trine.errors import UnitError, nearest
from trine.gpu.text_line import MARK, NAME, NUMBER, WORD, Line
from trine.spec import show
from trine.units import parse_bytes

Value: TypeAlias = "int | Int64"

MAX_VALUE = 2**61
#: Parentheses inside each other, and terms of a sum: values are worked out by recursion.
MAX_DEPTH, MAX_TERMS = 8, 32
MAX_DIGITS = 40
_UNITS = tuple(f"{prefix}B" for prefix in ("", "k", "K", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"))


@dataclass(frozen=True, slots=True)
class Number:
    value: int
    is_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    text: str


@dataclass(frozen=True, slots=True)
class Sum:
    """Two values joined by ``mark``, any of the operators."""

    mark: str
    left: Expression
    right: Expression


Expression: TypeAlias = "Number | Name | Sum"


def read_value(line: Line, what: str, depth: int = 0) -> Expression:
    """Products joined by plus and minus.

    Raises
    ------
    SpecError: what stands there is no value; says that ``what`` should be there.
    """
    left = _product(line, what, depth)
    for _ in range(MAX_TERMS):
        if line.peek().text not in ("+", "-") or line.peek().kind != MARK:
            return left
        mark = line.take().text
        left = Sum(mark, left, _product(line, what, depth))
    raise line.fail(f"more than {MAX_TERMS} terms")


def _product(line: Line, what: str, depth: int) -> Expression:
    left = read_factor(line, what, depth)
    for _ in range(MAX_TERMS):
        if line.peek().text not in ("*", "//", "%") or line.peek().kind != MARK:
            return left
        mark = line.take().text
        left = Sum(mark, left, read_factor(line, what, depth))
    raise line.fail(f"more than {MAX_TERMS} factors")


def read_factor(line: Line, what: str, depth: int = 0) -> Expression:
    """A number, a name, or a value in parentheses."""
    if depth > MAX_DEPTH:
        raise line.fail(f"more than {MAX_DEPTH} parentheses inside each other")
    if line.accept("("):
        inside = read_value(line, what, depth + 1)
        line.expect(")", "')'")
        return inside
    if line.accept("-"):
        return Sum("-", Number(0), read_factor(line, what, depth + 1))
    token = line.peek()
    if token.kind in (WORD, NAME):
        return Name(line.take().text)
    if token.kind != NUMBER:
        raise line.unexpected(what)
    return _number(line)


def _number(line: Line) -> Number:
    text = line.take().text
    if len(text) > MAX_DIGITS:
        raise line.fail(f"{show(text)} is too large")
    unit = line.peek()
    if unit.kind == WORD and unit.text in _UNITS:
        line.take()
        try:
            return Number(parse_bytes(f"{int(text, 16) if text.startswith('0x') else text} {unit.text}"), True)
        except UnitError as error:
            raise line.fail(str(error)) from None
    if "." in text:
        raise line.fail(f"{text} must be a whole number, or have a unit such as KiB")
    return Number(int(text, 16) if text.startswith("0x") else int(text))


def has_unit(value: Expression) -> bool:
    """Whether any number in ``value`` has a unit of bytes."""
    if isinstance(value, Sum):
        return has_unit(value.left) or has_unit(value.right)
    return isinstance(value, Number) and value.is_bytes


def work_out(value: Expression, names: Mapping[str, Value], line: Line) -> Value:
    """``value`` for all places that the arrays in ``names`` stand for.

    Raises
    ------
    SpecError: an unknown name, a division by zero, or numbers beyond 2^61.
    """
    if isinstance(value, Number):
        return _bounded(value.value, line)
    if isinstance(value, Name):
        if value.text not in names:
            raise line.fail(f"unknown name {show(value.text)}{nearest(value.text[:80], names)}")
        return names[value.text]
    left, right = work_out(value.left, names, line), work_out(value.right, names, line)
    if value.mark == "*":
        _bounded(_largest(left) * _largest(right), line)
        return left * right
    if value.mark in ("//", "%"):
        if np.any(np.equal(right, 0)):
            raise line.fail("division by zero")
        return left // right if value.mark == "//" else left % right
    return _bounded(left + right if value.mark == "+" else left - right, line)


def constant(value: Expression, names: Mapping[str, Value], line: Line, what: str, low: int, high: int) -> int:
    """A value that is one number from ``low`` to ``high``; ``names`` has only what is known here."""
    number = work_out(value, names, line)
    if not isinstance(number, int):
        raise line.fail(f"{what} must be the same everywhere")
    if not low <= number <= high:
        raise line.fail(f"{what} must be from {low} to {high}, got {number}")
    return number


def _largest(value: Value) -> int:
    if isinstance(value, int):
        return abs(value)
    return max(abs(int(value.min())), abs(int(value.max()))) if value.size else 0


def _bounded(value: Value, line: Line) -> Value:
    if _largest(value) > MAX_VALUE:
        raise line.fail(f"a number is larger than {MAX_VALUE}")
    return value
