"""One line of the text form of GPU programs: tokens, read from left to right, and errors that name file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trine.errors import SpecError, nearest
from trine.spec import show

MAX_LINE = 2**18
MAX_LINES = 500_000

#: kinds of tokens; a NAME is quoted
NUMBER, WORD, NAME, MARK, END = "number", "word", "name", "mark", "end"

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<comment>\#.*)
      | (?P<number>0x[0-9a-fA-F]{1,16}|[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<mark>->|\.\.|//|[-+*%():,=])
      | (?P<bad>\S)
    )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


class Token(NamedTuple):
    """``text`` of a NAME is without its quotes."""

    kind: str
    text: str


class Line:
    """Tokens of one line, and how far they have been read. Every ``take`` raises SpecError naming file and line."""

    def __init__(self, text: str, file: str, number: int) -> None:
        self.place = f"{file or 'program'}:{number}"
        self._tokens = list(self._split(text))
        self._next = 0

    def _split(self, text: str) -> Iterator[Token]:
        if len(text) > MAX_LINE:
            raise self.fail(f"the line is longer than {MAX_LINE} characters")
        for match in _TOKEN.finditer(text):
            kind, found = str(match.lastgroup), str(match[str(match.lastgroup)])
            if kind == "bad":
                raise self.fail(
                    f"unexpected {show(found)}" + ("; a name in quotes has no end" if found in "'\"" else "")
                )
            if kind == NAME:
                found = self._unquoted(found)
            if kind != "comment":
                yield Token(kind, found)

    def _unquoted(self, text: str) -> str:
        def character(match: re.Match[str]) -> str:
            if match[1] not in _ESCAPES:
                raise self.fail(f"unknown escape {show(match[0])} in {show(text)}")
            return _ESCAPES[match[1]]

        return re.sub(r"\\(.)", character, text[1:-1], flags=re.DOTALL)

    def fail(self, message: str) -> SpecError:
        """An error at this line."""
        return SpecError(message, file=self.place)

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or one behind it; an END token where there is none."""
        at = self._next + ahead
        return self._tokens[at] if at < len(self._tokens) else Token(END, "")

    def take(self) -> Token:
        token = self.peek()
        self._next += 1
        return token

    def accept(self, *texts: str) -> bool:
        """Take the next token if it is one of these words or marks."""
        token = self.peek()
        if token.kind in (WORD, MARK) and token.text in texts:
            self._next += 1
            return True
        return False

    def expect(self, text: str, what: str) -> None:
        """Take this word or mark, or fail saying ``what`` should stand here."""
        if not self.accept(text):
            raise self.unexpected(what, (text,))

    def unexpected(self, what: str, known: Iterable[str] = ()) -> SpecError:
        """An error: ``what`` should be where the next token is."""
        token = self.peek()
        if token.kind == END:
            return self.fail(f"the line ends where {what} should be")
        hint = nearest(token.text[:80], known) if token.kind == WORD else ""
        return self.fail(f"{show(token.text)} where {what} should be{hint if 'did you' in hint else ''}")

    def name(self, what: str) -> str:
        """A name, in quotes or a word."""
        if self.peek().kind not in (NAME, WORD):
            raise self.unexpected(what)
        return self.take().text

    def done(self, known: Iterable[str] = ()) -> None:
        """Fail unless the line is over."""
        if self.peek().kind != END:
            raise self.unexpected("the end of the line", known)


def lines_of(text: str, file: str) -> Iterator[Line]:
    """The lines of a text that say something."""
    parts = text.split("\n")
    if len(parts) > MAX_LINES:
        raise SpecError(f"has more than {MAX_LINES} lines", file=file or "program")
    for number, part in enumerate(parts, 1):
        line = Line(part.rstrip("\r"), file, number)
        if not line.is_empty:
            yield line


def quoted(name: str) -> str:
    """A name as the text form writes it: as it is where it is a plain word, else in quotes."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        return name
    return in_quotes(name)


def in_quotes(text: str) -> str:
    """Text in single quotes, with escapes."""
    back = {character: f"\\{letter}" for letter, character in _ESCAPES.items() if character != '"'}
    return "'" + "".join(back.get(character, character) for character in text) + "'"
