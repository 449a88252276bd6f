"""An answer on one screen: the question, the numbers with their likely ranges, two short tables, and their basis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trine.results.text import MAX_LINES, WIDE, columns, width, wrapped_at

_GAP = 4
#: Rows that a listing keeps on a narrow terminal if something less important can give way.
_LEAST_ROWS = 3
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

        Rows of listings and whole warnings except the first give way. On narrow terminals some closing lines and the
        second listing give way before a listing has less than three rows. ``--details`` has all of them.
        """
        screens = self._variants() if width() < WIDE else [self]
        fitting = [each for each in (screen._laid_out(lines) for screen in screens) if len(each[0]) <= lines]
        fitting = fitting or [replace(screens[-1], listings=())._laid_out(lines)]
        best = next((text for text, has_rows in fitting if has_rows), fitting[-1][0])
        return "\n".join(line.rstrip() for line in best)

    def _variants(self) -> list[Screen]:
        """Return the screen, and the same without one, two and three of its less important parts."""
        found = [self]
        for label in _OPTIONAL:
            kept = [row for row in found[-1].closing if row[0] != label]
            found.append(replace(found[-1], closing=kept))
        return [*found, replace(found[-1], listings=self.listings[:1])]

    def _laid_out(self, lines: int) -> tuple[list[str], bool]:
        """Return the lines, and whether each listing has all of its rows or at least three."""
        above = [*wrapped_at("", self.question, 0), "", *self._numbers()]
        below = ["", *(line for label, text in self.closing for line in wrapped_at(label, text, self._label))]
        warnings = [wrapped_at(self.warning_label, text, self._label) for text in self.warnings]
        reserved = len(warnings[0]) + (len(warnings) > 1) if warnings else 0
        middle, has_rows = self._listings(lines - len(above) - len(below) - reserved)
        shown = _fitting(warnings, lines - len(above) - len(middle) - len(below), self.warning_label)
        return [*above, *shown, *middle, *below], has_rows

    @property
    def _label(self) -> int:
        return max(len(name) for name in (self.warning_label, *(row[0] for row in (*self.numbers, *self.closing)))) + 3

    def _numbers(self) -> list[str]:
        """Return the numbers with their remarks beside them, or below them if that takes fewer lines."""
        value = max((len(row[1]) for row in self.numbers), default=0) + 3
        labels = [f"{name:{self._label}}{number}" for name, number, _ in self.numbers]
        remarks = [(label, row[2]) for label, row in zip(labels, self.numbers, strict=True)]
        beside = [wrapped_at(label, text, self._label + value) or [label] for label, text in remarks]
        below = [[label, *wrapped_at("", text, self._label)] for label, text in remarks]
        return [line for each in min(beside, below, key=lambda way: sum(map(len, way))) for line in each]

    def _listings(self, room: int) -> tuple[list[str], bool]:
        """Return the listings in at most ``room`` lines, side by side if they fit, and the same fact."""
        shown = [each for each in self.listings if each.rows]
        least = [min(_LEAST_ROWS, len(each.rows)) for each in shown]
        while True:
            blocks = [each.lines() for each in shown]
            wide = sum(max(map(len, block)) for block in blocks) + _GAP * (len(blocks) - 1) + 2
            if len(blocks) > 1 and wide <= width():
                blocks = [_side_by_side(blocks)]
            lines = [line for block in blocks for line in ("", *(f"  {each}" for each in block))]
            if len(lines) <= room or max((len(each.rows) for each in shown), default=0) <= 1:
                return lines, all(len(each.rows) >= rows for each, rows in zip(shown, least, strict=True))
            longest = max(range(len(shown)), key=lambda index: (len(shown[index].rows), index))
            shown[longest] = replace(shown[longest], rows=shown[longest].rows[:-1])


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
