"""The answer of ``trine check FOLDER`` for dumps of the flight recorder: why the job hangs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trine.results.report import Report, Row, Table
from trine.results.screen import Listing, Screen
from trine.results.text import columns
from trine.runs.hang import ADVICE, MISMATCH, MISSING, NO_DUMP, Hang

_NS_PER_S = 10**9


@dataclass(frozen=True, kw_only=True, repr=False)
class HangCheck(Report):
    """Why ranks wait, the reason of other waits first; none if no rank waits.

    folder: of the dumps. num_dumps: ranks with a dump. hangs: one per blocked process group. warnings: skipped files.
    """

    SCHEMA: ClassVar[str] = "check-hang"

    folder: str
    num_dumps: int
    hangs: tuple[Hang, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether all collectives are completed."""
        return not self.hangs

    @property
    def verdict(self) -> str:
        """The first reason in one sentence."""
        return hang_words(self.hangs[0]) if self.hangs else "no rank waits: all recorded collectives are completed"

    @property
    def headline(self) -> str:
        """The verdict."""
        return f"{self.folder}: {self.verdict}"

    @property
    def notes(self) -> tuple[str, ...]:
        return self.warnings

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("", "ranks", "collective", "group", "waiting ranks", "waited")]
        for hang in self.hangs:
            group = f"{hang.group} ({hang.description})" if hang.description else hang.group
            waited = f"{hang.waited_ns / _NS_PER_S:.1f} s"
            rows.append((hang.kind, _listed(hang.ranks), f"{hang.operation} {hang.number}", group,
                         _listed(hang.waiting), waited))  # fmt: skip
        return rows if self.hangs else []

    def summary(self) -> str:
        """Return the reasons on one screen."""
        advice = [("look at", ADVICE[self.hangs[0].kind])] if self.hangs else []
        return Screen(
            question=f"why does the job hang? {self.folder}: dumps of {self.num_dumps} ranks",
            numbers=[("verdict", "", self.verdict)],
            listings=(Listing(title="blocked collectives", rows=self._rows()),),
            warnings=self.warnings,
            closing=(*advice, ("rests on", "PyTorch's flight recorder; clocks of hosts may differ")),
        ).text()  # fmt: skip

    def details(self) -> str:
        """Return all reasons and notes."""
        lines = [self.verdict, "", *columns(self._rows())]
        lines += [f"{hang.kind}: look at {ADVICE[hang.kind]}" for hang in self.hangs]
        return "\n".join([*lines, *(f"note: {note}" for note in self.warnings)])

    def document(self) -> Row:
        """Return the answer as plain data (docs/reference/check-json.md)."""
        return {
            "folder": self.folder, "num_ranks": self.num_dumps, "healthy": self.is_healthy, "verdict": self.verdict,
            **self.tables(), "notes": list(self.warnings),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``hangs``."""
        rows: list[Row] = []
        for hang in self.hangs:
            rows.append({
                "kind": hang.kind, "ranks": list(hang.ranks), "group": hang.group, "description": hang.description,
                "number": hang.number, "operation": hang.operation, "waiting": list(hang.waiting),
                "waited_s": hang.waited_ns / _NS_PER_S, "detail": hang.detail,
            })  # fmt: skip
        return {"hangs": rows}


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:12])) + (f" and {len(ranks) - 12} more" if len(ranks) > 12 else "")


def hang_words(hang: Hang) -> str:
    """Return a reason as a sentence."""
    ranks = f"rank{'s' if len(hang.ranks) > 1 else ''} {_listed(hang.ranks)}"
    purpose = f" ({hang.description})" if hang.description else ""
    collective = f"{hang.operation} {hang.number} of group {hang.group}{purpose}"
    waits = (
        f"rank{'s' if len(hang.waiting) > 1 else ''} {_listed(hang.waiting)} waited {hang.waited_ns / _NS_PER_S:.1f} s"
    )
    if hang.kind == MISSING:
        return f"{ranks} did not enter {collective}: {waits}"
    if hang.kind == NO_DUMP:
        return f"{ranks} left no dump and did not enter {collective}: {waits}"
    if hang.kind == MISMATCH:
        return f"{ranks} called {hang.detail} as {collective}"
    return f"{collective} does not end, although all ranks entered it; {ranks} did not finish: {waits}"
