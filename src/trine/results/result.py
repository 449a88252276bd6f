"""The answer of a run of tasks: what ran, in every form that people and programs read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trine.errors import InputError
from trine.results import document, frames, plot, summary, timeline
from trine.results.records import record_table
from trine.results.report import Report, Row, Table, Timeline
from trine.results.restrict import only_ranks
from trine.results.run import TaskRun
from trine.units import format_bytes, format_time

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result(TaskRun, Report):
    """What a run gave. Times describe its last step: with more than one step, the steady state."""

    SCHEMA: ClassVar[str] = "result"

    def rank(self, rank: int) -> Result:
        """What happened on one rank, whichever it is, as a result that shows this rank only.

        Raises InputError for a rank that the job does not have.
        """
        return self.of_ranks([rank])

    def of_ranks(self, ranks: Sequence[int]) -> Result:
        """A result that shows the given ranks, in this order; its times are exactly theirs.

        Raises InputError for a rank that the job does not have or that is named twice, and, where nothing was folded,
        for one that this result does not show.
        """
        for rank in ranks:
            if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.num_ranks:
                raise InputError(f"there is no rank {rank!r}, ranks are 0 to {self.num_ranks - 1}", field="rank")
        if not ranks or len(set(ranks)) < len(ranks):
            raise InputError("name at least one rank, and each once", field="ranks")
        if self.scope is None:
            return only_ranks(self, ranks)
        seen = self.scope.observe(ranks)
        assert isinstance(seen, Result)
        return seen

    @property
    def headline(self) -> str:
        """Step time, ranks and what the slowest rank spends it on."""
        peak = self.memory_peak_bytes
        name = self.plan.get("workload") or self.plan.get("name")
        return (
            f"{f'{name}: ' if name else ''}step time {format_time(self.step_time_ps)} on {self.num_ranks:,} "
            f"rank{'s' if self.num_ranks > 1 else ''} "
            f"({100 * self.compute_s / self.step_time_s if self.step_time_ps else 0:.0f} % compute)"
            + (f", memory peak {format_bytes(peak)}" if peak else "")
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.warnings, *(f"not modelled: {words}" for words in self.not_modelled))

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(str(self.plan[key]) for key in ("source", "cluster") if key in self.plan)

    def summary(self) -> str:
        """Return a text for people, the largest bottlenecks first."""
        return summary.summary(self)

    def document(self) -> Row:
        """Return the result as plain data (docs/reference/result-json.md)."""
        return document.document(self)

    def tables(self) -> dict[str, Table]:
        """Return ranks, layers, operators, phases, stages, collectives, links, memory, and the records of all tasks."""
        return document.tables(self)

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``breakdown`` (of the slowest rank) and ``timeline`` (of ``ranks``, by default the first 16)."""
        return {
            "breakdown": partial(plot.breakdown, [self], [f"rank {self.slowest_rank}"]),
            "timeline": partial(plot.timeline, self),
        }

    def timeline(self) -> Timeline:
        """Return the tasks of all ranks, and their memory."""
        table = record_table(self.graph, self.records, self.wait_reasons)
        return Timeline(timeline.packets(self.graph, table, self.memory_timeline))

    def to_npz(self, path: str | Path) -> None:
        """Write the record table as a compressed numpy archive."""
        frames.to_npz(self.record_table, path)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the record table as a data frame; raises MissingExtraError without pandas."""
        return frames.to_frame(self.record_table)
