"""The answer of ``trine check FOLDER`` for traces: the causes of lost time, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trine.common.evidence import Evidence
from trine.common.units import format_time
from trine.results.columns import Column, Columns, to_row
from trine.results.report import Report, Row, Table, seconds
from trine.results.screen import Listing, Screen
from trine.results.text import columns
from trine.runs.causes import ADVICE, MIN_SHARE, SLOW_LINK, Cause
from trine.runs.measured_run import MeasuredRun
from trine.runs.waits import RankWaits

if TYPE_CHECKING:
    from trine.report.run_blocks import RunBlocks

CAUSE = Columns(
    Column(key="kind", unit="text", meaning="`straggler`, `late CPU launch`, `slow link` or `imbalance`."),
    Column(key="ranks", unit="list of integer", meaning="Ranks that the others wait for; empty for all ranks."),
    Column(key="operator", unit="text", meaning="Operator or collective that loses most."),
    Column(
        key="slowdown", unit="number",
        meaning="Time of the kernels, launches, transfers or work against the reference; of the launches of all "
                "ranks, their time as a share of the step.",
    ),
    Column(key="gain_s", unit="s", meaning="Time per step that the removal saves."),
    Column(key="share", unit="number", meaning="That time as a share of the step."),
)  # fmt: skip

_MAX_RANKS_NAMED = 8
_MAX_ROWS = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class RunCheck(Report):
    """The causes of lost time in a measured run, the largest gain first; none for a healthy run.

    folder: of the traces. run: the ranks with their collectives. causes: each with its gain. waits: of each rank.
    warnings: on skipped files and collectives.
    """

    SCHEMA: ClassVar[str] = "check-trace"

    folder: str
    run: MeasuredRun
    causes: tuple[Cause, ...]
    waits: tuple[RankWaits, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether no cause reaches MIN_SHARE of the step."""
        return not self.causes

    @property
    def verdict(self) -> str:
        """The first cause in one sentence."""
        if self.is_healthy:
            if len(self.run.ranks) == 1:
                return "one rank alone shows no other rank's delay: give the traces of several ranks"
            return f"healthy: no single cause costs {MIN_SHARE:.0%} of the step"
        return cause_words(self.causes[0])

    @property
    def headline(self) -> str:
        """The verdict and the step time."""
        return f"{self.folder}: step {format_time(self.run.step_ps)}, {self.verdict}"

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence for the gains."""
        return (
            Evidence("times of kernels, launches and collectives", "measured", "the traces"),
            Evidence("gain of a removal", "modelled", "replay of the measured run with other durations"),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return self.warnings

    @property
    def _question(self) -> str:
        steps = f", {self.run.num_steps} steps" if self.run.num_steps > 1 else ""
        known = self.run.ranks[0].world_size
        size = f"{len(self.run.ranks)} of {known}" if known and known > len(self.run.ranks) else len(self.run.ranks)
        gpu = self.run.ranks[0].gpu
        return f"why is the run slow? {self.folder}: {size} ranks{f' ({gpu})' if gpu else ''}{steps}"

    def _cause_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("", "ranks", "factor", "gain", "of the step", "most in")]
        for cause in self.causes:
            rows.append(
                (cause.kind, rank_words(cause.ranks), f"{cause.slowdown:.2f}", format_time(cause.gain_ps),
                 f"{cause.share:.1%}", cause.operator[:40])
            )  # fmt: skip
        return rows if self.causes else []

    def _wait_rows(self, limit: int | None = None) -> list[tuple[str, ...]]:
        order = sorted(self.waits, key=lambda row: (-row.waited_for_ps, row.rank))[:limit]
        rows: list[tuple[str, ...]] = [("rank", "others wait", "waits", "computes", "transfers", "last in")]
        for row in order:
            times = (row.waited_for_ps, row.waiting_ps, row.compute_ps, row.transfer_ps)
            rows.append((str(row.rank), *map(format_time, times), f"{row.times_last:.0f}"))
        return rows if len(self.waits) > 1 else []

    def summary(self) -> str:
        """Return the causes and the waits on one screen."""
        worst = max(self.waits, key=lambda row: row.waited_for_ps)
        waited = f"others wait {format_time(worst.waited_for_ps)} for rank {worst.rank}" if len(self.waits) > 1 else ""
        advice = [("look at", ADVICE[self.causes[0].kind])] if self.causes else []
        return Screen(
            question=self._question,
            numbers=[("step", format_time(self.run.step_ps), waited), ("cause", "", self.verdict)],
            listings=(
                Listing(title="causes, with the gain of removing each", rows=self._cause_rows()),
                Listing(title="waits in collectives, per step", rows=self._wait_rows(_MAX_ROWS)),
            ),
            warnings=self.warnings,
            closing=(*advice, ("rests on", "measured times; gains replayed with the other ranks' durations"),
                     ("next", "--details (all ranks); --plot FILE; --json FILE")),
        ).text()  # fmt: skip

    def details(self) -> str:
        """Return all causes, all ranks, clock offsets and notes."""
        lines = [self._question, "", f"step {format_time(self.run.step_ps)}: {self.verdict}", ""]
        if self.causes:
            lines += [*columns(self._cause_rows()), ""]
            lines += [f"{cause.kind}: look at {ADVICE[cause.kind]}" for cause in self.causes] + [""]
        if len(self.waits) > 1:
            lines += [*columns(self._wait_rows()), ""]
        moved = [(trace.rank, offset) for trace, offset in zip(self.run.ranks, self.run.offsets_ps, strict=True)
                 if offset]  # fmt: skip
        for rank, offset_ps in moved:
            lines.append(f"clock of rank {rank} moved by {offset_ps / 10**9:+.3f} ms")
        lines += [f"note: {note}" for note in self.warnings]
        lines += [f"{item.what}: {item.kind} ({item.detail})" for item in self.evidence]
        return "\n".join(lines)

    def document(self) -> Row:
        """Return the answer as plain data (docs/reference/check-json.md)."""
        return {
            "folder": self.folder, "step_s": seconds(self.run.step_ps), "steps": self.run.num_steps,
            "num_ranks": len(self.run.ranks), "world_size": self.run.ranks[0].world_size, "healthy": self.is_healthy,
            "verdict": self.verdict, **self.tables(), "notes": list(self.warnings),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``causes`` and ``ranks``."""
        causes = CAUSE.rows(self.causes)
        ranks = []
        for row, trace, offset_ps in zip(self.waits, self.run.ranks, self.run.offsets_ps, strict=True):
            ranks.append({
                **to_row(row, "rank", "compute_s", "transfer_s", "waiting_s", "waited_for_s", "times_last"),
                "clock_offset_s": seconds(offset_ps), "file": trace.file,
            })  # fmt: skip
        return {"causes": causes, "ranks": ranks}

    def run_blocks(self) -> RunBlocks:
        """Return the timeline of the suspicious ranks and of those that wait for them, for a report."""
        from trine.report.run_blocks import RunBlocks
        from trine.runs.timeline import TimelinePart, measured_timeline

        named = [rank for cause in self.causes for rank in cause.ranks]
        waiting = [row.rank for row in sorted(self.waits, key=lambda row: -row.waiting_ps)]
        part = TimelinePart("", self.run, tuple(dict.fromkeys([*named, *waiting])))
        return RunBlocks(timeline=measured_timeline([part], "What the ranks do: those at fault first"))

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``ranks``: the time of each rank by activity."""
        from trine.runs.picture import draw_ranks

        return {"ranks": lambda: draw_ranks(self.run, self.waits, self.verdict)}


def rank_words(ranks: tuple[int, ...]) -> str:
    """Return ranks as words: ``5``, ``3, 11``, or ``all`` for ()."""
    if not ranks:
        return "all"
    named = ", ".join(map(str, ranks[:_MAX_RANKS_NAMED]))
    return named + (f" and {len(ranks) - _MAX_RANKS_NAMED} more" if len(ranks) > _MAX_RANKS_NAMED else "")


def cause_words(cause: Cause) -> str:
    """Return a cause as a sentence with its gain."""
    gain = f"without it the step takes {format_time(cause.gain_ps)} ({cause.share:.1%}) less"
    if not cause.ranks:
        return f"{cause.kind} on all ranks, most in {cause.operator}: {gain}"
    ranks = f"rank{'s' if len(cause.ranks) > 1 else ''} {rank_words(cause.ranks)}"
    if cause.kind == SLOW_LINK:
        return f"{cause.kind} of {ranks}: {cause.operator} takes {cause.slowdown:.2f} times as long; {gain}"
    return f"{cause.kind}: {ranks} at {cause.slowdown:.2f} times its peers' time, most in {cause.operator}; {gain}"
