"""An answer on one screen: the question, the numbers with their likely ranges, two short tables, and their basis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trine.results.text import MAX_LINES, WIDE, columns, width, wrapped_at

_GAP = 4
#: Closing lines to drop on a narrow terminal, the least important first.
_OPTIONAL = ("range", "bottleneck")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A short table: its title, and rows with the same number of cells."""

    title: str
    rows: Sequence[tuple[str, ...]]

    def lines(self) -> list[str]:
        """Return the title and one line per row."""
        return [self.title, *columns(self.rows)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """The default view of an answer.

    question: the request, in one line. numbers: name, value, and its likely range or verdict. listings: the most
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
        """Return at most ``lines`` lines of :func:`trine.results.text.width` columns.

        Too long a text loses rows of listings, whole warnings except the first, and on narrow terminals also closing
        lines and the second listing; ``--details`` shows all of them.
        """
        above = [*wrapped_at("", self.question, 0), "", *self._numbers()]
        below = ["", *(line for label, text in self.closing for line in wrapped_at(label, text, self._label))]
        warnings = [wrapped_at(self.warning_label, text, self._label) for text in self.warnings]
        reserved = len(warnings[0]) + (len(warnings) > 1) if warnings else 0
        middle = self._listings(lines - len(above) - len(below) - reserved)
        shown = _fitting(warnings, lines - len(above) - len(middle) - len(below), self.warning_label)
        text = [*above, *shown, *middle, *below]
        if len(text) > lines and (smaller := self._smaller()):
            return smaller.text(lines)
        return "\n".join(line.rstrip() for line in text)

    def _smaller(self) -> Screen | None:
        """Return the same screen without its least important part; None if nothing optional is left."""
        for label in _OPTIONAL:
            if any(row[0] == label for row in self.closing):
                return replace(self, closing=[row for row in self.closing if row[0] != label])
        return replace(self, listings=self.listings[:-1]) if self.listings else None

    @property
    def _label(self) -> int:
        return max(len(name) for name in (self.warning_label, *(row[0] for row in (*self.numbers, *self.closing)))) + 3

    def _numbers(self) -> list[str]:
        value = max((len(row[1]) for row in self.numbers), default=0) + 3
        found = []
        for name, number, remark in self.numbers:
            label = f"{name:{self._label}}{number}"
            if width() < WIDE:
                found += [label, *wrapped_at("", remark, self._label)]
            else:
                found += wrapped_at(label, remark, self._label + value) or [label]
        return found

    def _listings(self, room: int) -> list[str]:
        """Return the listings, side by side if the terminal is wide enough, in at most ``room`` lines."""
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
    """Return the whole warnings that fit, at least one, and the number of hidden ones."""
    shown: list[str] = []
    for index, lines in enumerate(warnings):
        is_last = index == len(warnings) - 1
        if index and len(shown) + len(lines) + (not is_last) > room:
            left = len(warnings) - index
            return [*shown, f"{left} more {label}{'s' if left > 1 else ''}: --details"]
        shown += lines
    return shown
