"""An answer on one screen: the question, the numbers with their likely ranges, two short tables, and their basis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trine.results.text import MAX_LINES, WIDE, columns, width, wrapped_at

_GAP = 4
#: Rows that a listing keeps on a narrow terminal if something less important can give way.
_MIN_ROWS = 3
#: Closing lines to drop on a narrow terminal, the least important first.
_OPTIONAL = ("range", "contention", "bottleneck")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A short table: its title, rows with the same number of cells, and columns to leave out if it is too wide."""

    title: str
    rows: Sequence[tuple[str, ...]]
    spare: Sequence[int] = ()

    def lines(self) -> list[str]:
        """Return the title and one line per row."""
        return [self.title, *columns(self.rows, self.spare, margin=2)]


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
            translated = []
            for row in cells:
                translated.append(tuple(translate(cell) for cell in row))
            return translated

        listings = [replace(each, title=translate(each.title), rows=rows(each.rows)) for each in self.listings]
        warnings = [translate(each) for each in self.warnings]
        return replace(
            self, question=translate(self.question), numbers=rows(self.numbers), listings=listings, warnings=warnings,
            closing=rows(self.closing),
        )  # fmt: skip

    def text(self, lines: int = MAX_LINES) -> str:
        """Return at most ``lines`` lines of :func:`trine.results.text.width` columns.

        Rows of listings and whole warnings except the first give way. On narrow terminals some closing lines and the
        second listing give way before a listing has less than three rows. ``--details`` has all of them.
        """
        screens = self._variants() if width() < WIDE else [self]
        fitting = []
        for each in (screen._laid_out(lines) for screen in screens):
            if len(each[0]) <= lines:
                fitting.append(each)
        fitting = fitting or [replace(screens[-1], listings=())._laid_out(lines)]
        best = next((text for text, has_rows in fitting if has_rows), fitting[-1][0])
        return "\n".join(line.rstrip() for line in best)

    def _variants(self) -> list[Screen]:
        """Return the screen, and the same without one, two and three of its less important parts."""
        screens = [self]
        for label in _OPTIONAL:
            closing = [row for row in screens[-1].closing if row[0] != label]
            screens.append(replace(screens[-1], closing=closing))
        return [*screens, replace(screens[-1], listings=self.listings[:1])]

    def _laid_out(self, lines: int) -> tuple[list[str], bool]:
        """Return the lines, and whether each listing has all of its rows or at least three."""
        head = [*wrapped_at("", self.question, 0), "", *self._numbers()]
        foot = ["", *(line for label, text in self.closing for line in wrapped_at(label, text, self._label))]
        warnings = [wrapped_at(self.warning_label, text, self._label) for text in self.warnings]
        reserved = len(warnings[0]) + (len(warnings) > 1) if warnings else 0
        middle, has_rows = self._listings(lines - len(head) - len(foot) - reserved)
        fitting = _fitting(warnings, lines - len(head) - len(middle) - len(foot), self.warning_label)
        return [*head, *fitting, *middle, *foot], has_rows

    @property
    def _label(self) -> int:
        return max(len(name) for name in (self.warning_label, *(row[0] for row in (*self.numbers, *self.closing)))) + 3

    def _numbers(self) -> list[str]:
        """Return the numbers with their remarks beside them, or below them if that takes fewer lines."""
        value = max((len(row[1]) for row in self.numbers), default=0) + 3
        labels = [f"{name:{self._label}}{number}" for name, number, _ in self.numbers]
        remarks = [(label, row[2]) for label, row in zip(labels, self.numbers, strict=True)]
        inline = [wrapped_at(label, text, self._label + value) or [label] for label, text in remarks]
        stacked = [[label, *wrapped_at("", text, self._label)] for label, text in remarks]
        return [line for block in min(inline, stacked, key=lambda lines: sum(map(len, lines))) for line in block]

    def _listings(self, room: int) -> tuple[list[str], bool]:
        """Return the listings in at most ``room`` lines, side by side if they fit, and whether each has enough rows."""
        listings = [each for each in self.listings if each.rows]
        min_rows = [min(_MIN_ROWS, len(each.rows)) for each in listings]
        while True:
            blocks = [each.lines() for each in listings]
            total_width = sum(max(map(len, block)) for block in blocks) + _GAP * (len(blocks) - 1) + 2
            if len(blocks) > 1 and total_width <= width():
                blocks = [_side_by_side(blocks)]
            lines: list[str] = []
            for block in blocks:
                lines.extend(("", *(f"  {each}" for each in block)))
            if len(lines) <= room or max((len(each.rows) for each in listings), default=0) <= 1:
                return lines, all(len(each.rows) >= rows for each, rows in zip(listings, min_rows, strict=True))
            longest = max(range(len(listings)), key=lambda index: (len(listings[index].rows), index))
            listings[longest] = replace(listings[longest], rows=listings[longest].rows[:-1])


def _side_by_side(blocks: Sequence[Sequence[str]]) -> list[str]:
    height = max(map(len, blocks))
    padded = []
    for block in blocks:
        padded.append([line.ljust(max(map(len, block)) + _GAP) for line in block])
    empty = [" " * len(block[0]) for block in padded]
    lines = []
    for row in range(height):
        cells = []
        for block, blank in zip(padded, empty, strict=True):
            cells.append(block[row] if row < len(block) else blank)
        lines.append("".join(cells))
    return lines


def _fitting(warnings: Sequence[list[str]], room: int, label: str) -> list[str]:
    """Return the whole warnings that fit, at least one, and the number of hidden ones."""
    fitting: list[str] = []
    for index, lines in enumerate(warnings):
        is_last = index == len(warnings) - 1
        if index and len(fitting) + len(lines) + (not is_last) > room:
            num_hidden = len(warnings) - index
            return [*fitting, f"{num_hidden} more {label}{'s' if num_hidden > 1 else ''}: --details"]
        fitting += lines
    return fitting
