"""One line of a text program: its tokens, its expressions, and errors that name file and line.

Expressions have whole numbers, ``+ - * // %``, parentheses and size units; names are buffers and loop counters. They
are evaluated for all ranks, workgroups and loop iterations at once: names are arrays that broadcast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from trine.common.arrays import Int64
from trine.common.schema import show
from trine.common.units import parse_bytes
from trine.errors import SpecError, UnitError, nearest

MAX_LINE = 2**18
MAX_LINES = 500_000

#: Kinds of tokens; a NAME is quoted.
NUMBER, WORD, NAME, MARK, END = "number", "word", "name", "mark", "end"

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<comment>\#.*)
      | (?P<number>0x[0-9a-fA-F]{1,16}|[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<mark>->|\.\.|//|[-+*%():,=&])
      | (?P<bad>\S)
    )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


class Lexeme(NamedTuple):
    """A token; the ``text`` of a NAME is without its quotes."""

    kind: str
    text: str


class SourceLine:
    """Tokens of one line, and the read position. Methods raise SpecError, naming file and line."""

    def __init__(self, text: str, file: str, number: int) -> None:
        self.place = f"{file or 'program'}:{number}"
        self._tokens = list(self._split(text))
        self._next = 0

    def _split(self, text: str) -> Iterator[Lexeme]:
        if len(text) > MAX_LINE:
            raise self.fail(f"the line is longer than {MAX_LINE} characters")
        for match in _TOKEN.finditer(text):
            kind, lexeme = str(match.lastgroup), str(match[str(match.lastgroup)])
            if kind == "bad":
                raise self.fail(
                    f"unexpected {show(lexeme)}" + ("; a name in quotes has no end" if lexeme in "'\"" else "")
                )
            if kind == NAME:
                lexeme = self._unquoted(lexeme)
            if kind != "comment":
                yield Lexeme(kind, lexeme)

    def _unquoted(self, text: str) -> str:
        def character(match: re.Match[str]) -> str:
            if match[1] not in _ESCAPES:
                raise self.fail(f"unknown escape {show(match[0])} in {show(text)}")
            return _ESCAPES[match[1]]

        return re.sub(r"\\(.)", character, text[1:-1], flags=re.DOTALL)

    def fail(self, message: str) -> SpecError:
        """Return an error at this line."""
        return SpecError(message, file=self.place)

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    def peek(self, ahead: int = 0) -> Lexeme:
        """Return the next token, or the one ``ahead`` tokens later; an END token past the end of the line."""
        position = self._next + ahead
        return self._tokens[position] if position < len(self._tokens) else Lexeme(END, "")

    def take(self) -> Lexeme:
        token = self.peek()
        self._next += 1
        return token

    def accept(self, *texts: str) -> bool:
        """Take the next token if it is one of these words or marks, and return whether it is."""
        token = self.peek()
        if token.kind in (WORD, MARK) and token.text in texts:
            self._next += 1
            return True
        return False

    def expect(self, text: str, expected: str) -> None:
        """Take this word or mark. Raises SpecError, naming ``expected``, if another token follows."""
        if not self.accept(text):
            raise self.unexpected(expected, (text,))

    def unexpected(self, expected: str, candidates: Iterable[str] = ()) -> SpecError:
        """Return the error for a next token that is not ``expected``, as text."""
        token = self.peek()
        if token.kind == END:
            return self.fail(f"the line ends where {expected} should be")
        hint = nearest(token.text[:80], candidates) if token.kind == WORD else ""
        return self.fail(f"{show(token.text)} where {expected} should be{hint if 'did you' in hint else ''}")

    def name(self, expected: str) -> str:
        """Take a name: quoted, or a word."""
        if self.peek().kind not in (NAME, WORD):
            raise self.unexpected(expected)
        return self.take().text

    def done(self, candidates: Iterable[str] = ()) -> None:
        """Raise SpecError unless the line is at its end."""
        if self.peek().kind != END:
            raise self.unexpected("the end of the line", candidates)


def lines_of(text: str, file: str) -> Iterator[SourceLine]:
    """Yield the non-empty lines of a text. Raises SpecError above MAX_LINES."""
    parts = text.split("\n")
    if len(parts) > MAX_LINES:
        raise SpecError(f"has more than {MAX_LINES} lines", file=file or "program")
    for number, line_text in enumerate(parts, 1):
        line = SourceLine(line_text.rstrip("\r"), file, number)
        if not line.is_empty:
            yield line


def quoted(name: str) -> str:
    """Return a name in the text form: unchanged if it is a plain word, else in quotes."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        return name
    return in_quotes(name)


def in_quotes(text: str) -> str:
    """Return the text in single quotes, with escapes."""
    back = {character: f"\\{letter}" for letter, character in _ESCAPES.items() if character != '"'}
    return "'" + "".join(back.get(character, character) for character in text) + "'"


Value: TypeAlias = "int | Int64"

MAX_VALUE = 2**61
#: Limits on nested parentheses and on terms of a sum, because evaluation is recursive.
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
class BinaryExpression:
    """Two values joined by the operator ``mark``."""

    mark: str
    left: Expression
    right: Expression


Expression: TypeAlias = "Number | Name | BinaryExpression"


def read_value(line: SourceLine, expected: str, depth: int = 0) -> Expression:
    """Read products joined by plus and minus.

    Raises SpecError, naming ``expected``, if no value follows.
    """
    left = _product(line, expected, depth)
    for _ in range(MAX_TERMS):
        if line.peek().text not in ("+", "-") or line.peek().kind != MARK:
            return left
        mark = line.take().text
        left = BinaryExpression(mark, left, _product(line, expected, depth))
    raise line.fail(f"more than {MAX_TERMS} terms")


def _product(line: SourceLine, expected: str, depth: int) -> Expression:
    left = read_factor(line, expected, depth)
    for _ in range(MAX_TERMS):
        if line.peek().text not in ("*", "//", "%") or line.peek().kind != MARK:
            return left
        mark = line.take().text
        left = BinaryExpression(mark, left, read_factor(line, expected, depth))
    raise line.fail(f"more than {MAX_TERMS} factors")


def read_factor(line: SourceLine, expected: str, depth: int = 0) -> Expression:
    """Read a number, a name, or a value in parentheses."""
    if depth > MAX_DEPTH:
        raise line.fail(f"more than {MAX_DEPTH} parentheses inside each other")
    if line.accept("("):
        expression = read_value(line, expected, depth + 1)
        line.expect(")", "')'")
        return expression
    if line.accept("-"):
        return BinaryExpression("-", Number(0), read_factor(line, expected, depth + 1))
    token = line.peek()
    if token.kind in (WORD, NAME):
        return Name(line.take().text)
    if token.kind != NUMBER:
        raise line.unexpected(expected)
    return _number(line)


def _number(line: SourceLine) -> Number:
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
    """Return whether any number in ``value`` has a unit of bytes."""
    if isinstance(value, BinaryExpression):
        return has_unit(value.left) or has_unit(value.right)
    return isinstance(value, Number) and value.is_bytes


def work_out(value: Expression, names: Mapping[str, Value], line: SourceLine) -> Value:
    """Evaluate ``value`` for all ranks, workgroups and loop iterations of the arrays in ``names``.

    Raises SpecError for an unknown name, a division by zero, or numbers beyond 2^61.
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


def constant(value: Expression, names: Mapping[str, Value], line: SourceLine, noun: str, low: int, high: int) -> int:
    """Return a single number from ``low`` to ``high``; ``names``: values known here. Raises SpecError for others."""
    number = work_out(value, names, line)
    if not isinstance(number, int):
        raise line.fail(f"{noun} must be the same everywhere")
    if not low <= number <= high:
        raise line.fail(f"{noun} must be from {low} to {high}, got {number}")
    return number


def _largest(value: Value) -> int:
    if isinstance(value, int):
        return abs(value)
    return max(abs(int(value.min())), abs(int(value.max()))) if value.size else 0


def _bounded(value: Value, line: SourceLine) -> Value:
    if _largest(value) > MAX_VALUE:
        raise line.fail(f"a number is larger than {MAX_VALUE}")
    return value
