"""The answer of a task-level run, in all forms for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trine.common.units import format_time
from trine.errors import InputError
from trine.results import brief, headline
from trine.results.drawn import DrawnLinks, DrawnTimeline, MemoryField, view
from trine.results.report import Report, Row, Table, Timeline
from trine.results.run import TaskRun

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result(TaskRun, Report):
    """Result of a run. Times describe its last step; with several steps, the steady state."""

    SCHEMA: ClassVar[str] = "result"
    memory = MemoryField()

    def rank(self, rank: int) -> Result:
        """Return a result that shows only this rank, which may be any rank of the job.

        Raises InputError if the job does not have the rank.
        """
        return self.of_ranks([rank])

    def of_ranks(self, ranks: Sequence[int]) -> Result:
        """Return a result that shows the given ranks, in this order; its times are exactly theirs.

        Raises InputError for a rank that the job does not have or that is named twice, and, in an unfolded run, for a
        rank that this result does not show.
        """
        for rank in ranks:
            if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.num_ranks:
                raise InputError(f"there is no rank {rank!r}, ranks are 0 to {self.num_ranks - 1}", field="rank")
        if not ranks or len(set(ranks)) < len(ranks):
            raise InputError("name at least one rank, and each once", field="ranks")
        from trine.results.only_ranks import only_ranks

        view = only_ranks(self, ranks) if self.scope is None else self.scope.observe(ranks)
        assert isinstance(view, Result)
        view.__dict__["critical_path_times"] = self.critical_path_times  # other ranks' tasks are part of the path
        return view

    @property
    def headline(self) -> str:
        """Step time, ranks, the slowest rank's compute share, MFU, and whether it fits in memory."""
        name = self.plan.get("workload") or self.plan.get("name")
        needed = brief.memory_needed(self)
        prefix = f"{name}: " if name else ""
        plural = "s" if self.num_ranks > 1 else ""
        compute_percent = 100 * self.compute_s / self.step_time_s if self.step_time_ps else 0
        rates = "".join(f", {words}" for words in brief.rates_in_brief(self))
        memory = f", memory needed {needed}" if needed else ""
        return (
            f"{prefix}step time {format_time(self.step_time_ps)} on {self.num_ranks:,} "
            f"rank{plural}{brief.profile_suffix(self)} "
            f"({compute_percent:.0f} % compute)" + rates + memory
        )

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s of a GPU as a share of its dense peak; None if either is unknown."""
        return headline.mfu(self)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of the whole job per second; None for a workload without tokens."""
        return headline.rate(self, "tokens_per_s")

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.warnings, *(f"not modelled: {words}" for words in self.not_modelled))

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(str(self.plan[key]) for key in ("source", "cluster") if key in self.plan)

    def summary(self) -> str:
        """Return the answer on one screen."""
        from trine.results.summary import screen

        return screen(self).text()

    def details(self) -> str:
        """Return everything as text, the largest bottlenecks first."""
        from trine.results import details

        return details.details(self)

    def document(self) -> Row:
        """Return the result as plain data (docs/reference/result-json.md)."""
        from trine.results import document

        return document.document(self)

    def record(self) -> Row:
        """Return the numbers of the step, the memory needed and the plan as one flat row."""
        from trine.results import document

        return document.record(self)

    def tables(self) -> dict[str, Table]:
        """Return ranks, layers, operators, phases, stages, collectives, links, memory, and the records of all tasks."""
        from trine.results import document

        return document.tables(self)

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``breakdown`` (of the slowest rank) and ``timeline`` (of ``ranks``, by default the first 16)."""
        from trine.results import plot

        return {
            "breakdown": partial(plot.breakdown, [self], [f"rank {self.slowest_rank}"]),
            "timeline": partial(plot.timeline, self),
        }

    def timeline(self) -> Timeline:
        """Return the simulated tasks of all ranks, and their memory; a note names repetitions, which are absent."""
        from trine.results import timeline
        from trine.results.records import record_table

        excerpt = self.excerpt
        table = record_table(self.graph, excerpt.records, self.wait_reasons)
        table = table._replace(columns={**table.columns, **self.shown_columns})
        packets = timeline.packets(self.graph, table, excerpt.memory_timeline, self.left_out_words)
        return DrawnTimeline.of(packets, (), self)

    @property
    def links(self) -> DrawnLinks:
        """Bytes and utilisation of each link in the step; a call draws them in a notebook."""
        return DrawnLinks.of(self.link_uses, partial(view, self, "links"))

    def to_kineto(self, folder: str | Path) -> None:
        """Write a trace of each rank, in the form of the PyTorch profiler's, into a folder.

        Raises InputError if the run lacks tasks of some ranks, micro-batches or steps.
        """
        from trine.results.kineto import write_kineto

        write_kineto(self, folder)

    def to_npz(self, path: str | Path) -> None:
        """Write the record table as a compressed numpy archive."""
        from trine.results import frames

        frames.to_npz(self.record_table, path)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the record table as a data frame; raises MissingExtraError without pandas."""
        from trine.results import frames

        return frames.to_frame(self.record_table)
