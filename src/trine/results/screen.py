"""An answer on one screen: the question, the numbers with their likely ranges, two short tables, and their basis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trine.results.text import MAX_LINES, columns, width, wrapped_at

_GAP = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A short table: its title, and rows of equally many cells."""

    title: str
    rows: Sequence[tuple[str, ...]]

    def lines(self) -> list[str]:
        """Return the title and one line a row."""
        return [self.title, *columns(self.rows)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """What an answer shows by default.

    question: what was asked, in one line. numbers: name, value, and its likely range or verdict. listings: the most
    important first. warning_label: the word before each warning. closing: label and sentence, such as ``rests on`` and
    ``next``.
    """

    question: str
    numbers: Sequence[tuple[str, str, str]]
    listings: Sequence[Listing] = ()
    warnings: Sequence[str] = ()
    warning_label: str = "warning"
    closing: Sequence[tuple[str, str]] = ()

    def translated(self, translate: Callable[[str], str]) -> Screen:
        """Return the same screen with ``translate`` applied to every text."""

        def rows(cells: Iterable[tuple[str, ...]]) -> list[Any]:
            return [tuple(translate(cell) for cell in row) for row in cells]

        return replace(
            self,
            question=translate(self.question),
            numbers=rows(self.numbers),
            listings=[Listing(title=translate(each.title), rows=rows(each.rows)) for each in self.listings],
            warnings=[translate(each) for each in self.warnings],
            closing=rows(self.closing),
        )

    def text(self, lines: int = MAX_LINES) -> str:
        """Return at most ``lines`` lines of :func:`trine.results.text.width` columns; narrow terminals take more.

        Rows of listings and then whole warnings give way, except the first warning; ``--details`` has all of them.
        """
        above = [*wrapped_at("", self.question, 0), "", *self._numbers()]
        below = ["", *(line for label, text in self.closing for line in wrapped_at(label, text, self._label))]
        warnings = [wrapped_at(self.warning_label, text, self._label) for text in self.warnings]
        reserved = len(warnings[0]) + (len(warnings) > 1) if warnings else 0
        middle = self._listings(lines - len(above) - len(below) - reserved)
        shown = _fitting(warnings, lines - len(above) - len(middle) - len(below), self.warning_label)
        return "\n".join(line.rstrip() for line in [*above, *shown, *middle, *below])

    @property
    def _label(self) -> int:
        return max(len(name) for name in (self.warning_label, *(row[0] for row in (*self.numbers, *self.closing)))) + 3

    def _numbers(self) -> list[str]:
        value = max((len(row[1]) for row in self.numbers), default=0) + 3
        found = []
        for name, number, remark in self.numbers:
            label = f"{name:{self._label}}{number}"
            found += wrapped_at(label, remark, self._label + value) or [label]
        return found

    def _listings(self, room: int) -> list[str]:
        """Return the listings side by side where the terminal is wide enough, in at most ``room`` lines."""
        shown = [each for each in self.listings if each.rows]
        blocks = [each.lines() for each in shown]
        wide = sum(max(map(len, block)) for block in blocks) + _GAP * (len(blocks) - 1) + 2
        if len(blocks) > 1 and wide <= width():
            blocks = [_side_by_side(blocks)]
        lines = [line for block in blocks for line in ("", *(f"  {each}" for each in block))]
        if len(lines) > room and shown and max(len(each.rows) for each in shown) > 1:
            longest = max(range(len(shown)), key=lambda index: (len(shown[index].rows), index))
            shown[longest] = replace(shown[longest], rows=shown[longest].rows[:-1])
            return replace(self, listings=shown)._listings(room)
        return lines


def _side_by_side(blocks: Sequence[Sequence[str]]) -> list[str]:
    height = max(map(len, blocks))
    padded = [[line.ljust(max(map(len, block)) + _GAP) for line in block] for block in blocks]
    empty = [" " * len(block[0]) for block in padded]
    return [
        "".join(block[row] if row < len(block) else blank for block, blank in zip(padded, empty, strict=True))
        for row in range(height)
    ]


def _fitting(warnings: Sequence[list[str]], room: int, label: str) -> list[str]:
    """Return as many whole warnings as fit, at least one, and how many more there are."""
    shown: list[str] = []
    for index, lines in enumerate(warnings):
        is_last = index == len(warnings) - 1
        if index and len(shown) + len(lines) + (not is_last) > room:
            left = len(warnings) - index
            return [*shown, f"{left} more {label}{'s' if left > 1 else ''}: --details"]
        shown += lines
    return shown
