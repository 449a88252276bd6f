"""The answer of ``trine compare`` for a measured run: terms that explain its difference from a run or an answer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trine.common.evidence import Evidence
from trine.common.inputs import read_text
from trine.common.spec import parse_json
from trine.common.units import format_time
from trine.errors import InputError, TraceError
from trine.results.columns import to_row
from trine.results.report import Report, Row, Table, seconds
from trine.results.screen import Listing, Screen
from trine.results.text import columns
from trine.runs.differences import Differences, RemovalEffect, find_differences
from trine.runs.folder import read_run
from trine.runs.json_stream import EVENTS, read_values
from trine.runs.measured_run import MeasuredRun
from trine.runs.predicted import reference_from_answer
from trine.runs.reference import reference_from_run
from trine.runs.result import rank_words

if TYPE_CHECKING:
    from trine.report.run_blocks import RunBlocks

_MAX_ANSWER_BYTES = 256 * 2**20
#: Ranks of each run in a timeline.
_MAX_RANKS_DRAWN = 4


@dataclass(frozen=True, kw_only=True, repr=False)
class MeasuredComparison(Report):
    """A measured run B beside its reference A.

    names: of A and B. a_ps, b_ps: their step times. is_predicted: whether A is an answer of ``trine train``.
    differences: the terms, by the effect of removing each from B. runs: A, None for an answer, and B. notes: on ranks
    without a trace.
    """

    SCHEMA: ClassVar[str] = "compare-trace"

    names: tuple[str, str]
    a_ps: int
    b_ps: int
    is_predicted: bool
    differences: Differences
    runs: tuple[MeasuredRun | None, MeasuredRun]
    remarks: tuple[str, ...] = ()

    @property
    def difference_ps(self) -> int:
        """Time of B less time of A."""
        return self.b_ps - self.a_ps

    @property
    def verdict(self) -> str:
        """The difference, and its first term."""
        if not self.difference_ps:
            return "the times are equal"
        word = "slower" if self.difference_ps > 0 else "faster"
        share = f" ({abs(self.difference_ps) / self.a_ps:.1%})" if self.a_ps else ""
        words = f"{self.names[1]} is {format_time(abs(self.difference_ps))}{share} {word}"
        if self.differences.effects:
            words += f", mostly {effect_words(self.differences.effects[0])}"
        return words

    @property
    def headline(self) -> str:
        """Both times and the verdict."""
        times = f"{self.names[0]} {format_time(self.a_ps)}, {self.names[1]} {format_time(self.b_ps)}"
        return f"{times}: {self.verdict}"

    @property
    def notes(self) -> tuple[str, ...]:
        return self.remarks

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence for both times and the effects."""
        first = "modelled" if self.is_predicted else "measured"
        return (
            Evidence("time of A", first, self.names[0]),
            Evidence("time of B", "measured", self.names[1]),
            Evidence("effect of a term", "modelled", "replay of B with the durations of A"),
        )

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("", "ranks", "effect", "of B - A", "most in")]
        for effect in self.differences.effects:
            share = f"{effect.ps / self.difference_ps:.0%}" if self.difference_ps else ""
            rows.append((effect.kind, rank_words(effect.ranks), _signed(effect.ps), share, effect.operator[:44]))
        rows.append(("unexplained", "", _signed(self.differences.unexplained_ps), "", ""))
        return rows

    def _alignment(self) -> str:
        parts = [f"{share:.0%} by {name}" for name, share in self.differences.aligned.items() if name != "not"]
        missing = self.differences.aligned.get("not", 0.0)
        return ", ".join([*parts, *([f"{missing:.0%} only in B"] if missing else [])]) or "no kernels"

    def summary(self) -> str:
        """Return the comparison on one screen, the largest terms first."""
        return Screen(
            question=f"A: {self.names[0]} ({'predicted' if self.is_predicted else 'measured'}); B: {self.names[1]} "
            "(measured)",
            numbers=[("A", format_time(self.a_ps), ""), ("B", format_time(self.b_ps), self.verdict)],
            listings=(Listing(title="terms of the difference, with the effect of removing each", rows=self._rows()),),
            warnings=self.remarks,
            closing=(("aligned", f"kernel time: {self._alignment()}"),
                     ("rests on", "replays of B with the durations of A, one term at a time; effects may overlap")),
        ).text()  # fmt: skip

    def details(self) -> str:
        """Return all terms and notes."""
        lines = [self.headline, "", *columns(self._rows()), "", f"kernel time aligned: {self._alignment()}"]
        lines += [f"note: {note}" for note in self.remarks]
        lines += [f"{item.what}: {item.kind} ({item.detail})" for item in self.evidence]
        return "\n".join(lines)

    def run_blocks(self) -> RunBlocks:
        """Return both timelines on one axis, the ranks of the first term first, for a report."""
        from trine.report.run_blocks import RunBlocks
        from trine.runs.timeline import TimelinePart, measured_timeline

        named = [rank for effect in self.differences.effects for rank in effect.ranks]
        ranks = dict.fromkeys([*named, *(trace.rank for run in self.runs if run is not None for trace in run.ranks)])
        parts = []
        for rank in list(ranks)[:_MAX_RANKS_DRAWN]:
            for label, run in zip("AB", self.runs, strict=True):
                if run is not None and any(trace.rank == rank for trace in run.ranks):
                    parts.append(TimelinePart(label, run, (rank,)))
        return RunBlocks(timeline=measured_timeline(parts, "Both runs on one axis"))

    def document(self) -> Row:
        """Return the comparison as plain data (docs/reference/decide-json.md)."""
        return {
            "a": self.names[0], "b": self.names[1], "a_s": seconds(self.a_ps), "b_s": seconds(self.b_ps),
            "difference_s": seconds(self.difference_ps), "a_is_predicted": self.is_predicted, "verdict": self.verdict,
            **self.tables(), "unexplained_s": seconds(self.differences.unexplained_ps),
            "aligned": dict(self.differences.aligned), "notes": list(self.remarks),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``terms``."""
        rows: list[Row] = []
        for effect in self.differences.effects:
            rows.append({**to_row(effect, "kind", "ranks", "operator"), "effect_s": seconds(effect.ps)})
        return {"terms": rows}


def is_measured(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a folder, or a file with a list of trace events, of which only the head is read."""
    place = Path(path)
    if place.is_dir():
        return True
    if not place.is_file():
        return False
    try:
        for key, _ in read_values(place):
            if key in (EVENTS, "schema"):
                return key == EVENTS
    except TraceError:
        return False
    return False


def compare_measured(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> MeasuredComparison:
    """Compare a measured run with another one, or with an answer of ``trine train``.

    a, b: a folder of Kineto traces, one trace, or (one of them) a file written with ``train --json``. The measured
    run comes second, so the sides of an answer in second place are swapped. Raises InputError and TraceError for
    other files.
    """
    notes: list[str] = []
    if not is_measured(b):
        a, b = b, a
        notes.append("sides swapped: the measured run is B")
    run = read_run(b)
    other = None
    names = (Path(a).name.removesuffix(".json"), Path(b).name)
    names = (os.fspath(a), os.fspath(b)) if names[0] == names[1] else names
    if is_measured(a):
        other = read_run(a)
        if len(other.ranks) != len(run.ranks):
            notes.append(f"A has {len(other.ranks)} ranks and B has {len(run.ranks)}")
        reference = reference_from_run(other, run, names[0])
        notes += [f"A: {note}" for note in other.notes]
    else:
        reference = reference_from_answer(_answer(a), run, names[0], os.fspath(a))
    notes += [f"B: {note}" for note in run.notes]
    return MeasuredComparison(
        names=names, a_ps=reference.step_ps, b_ps=run.step_ps, is_predicted=reference.calls is None,
        differences=find_differences(run, reference), runs=(other, run), remarks=tuple(notes),
    )  # fmt: skip


def _answer(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read an answer of ``trine train``. Raises InputError for another file."""
    content = parse_json(read_text(path, _MAX_ANSWER_BYTES, InputError), os.fspath(path))
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(schema, str) or not schema.startswith("trine/result/"):
        raise InputError("is no trace and no answer of trine train: write one with --json FILE", file=path)
    return content


def effect_words(effect: RemovalEffect) -> str:
    """Return a term with its effect."""
    ranks = f" of rank{'s' if len(effect.ranks) > 1 else ''} {rank_words(effect.ranks)}" if effect.ranks else ""
    return f"{effect.kind}{ranks} ({_signed(effect.ps)}, most in {effect.operator or 'no operator'})"


def _signed(ps: int) -> str:
    if ps:
        return f"{'-' if ps < 0 else '+'}{format_time(abs(ps))}"
    return "0"
