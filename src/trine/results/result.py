"""The answer of a task-level run, in all forms for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from trine.common.arrays import Int64, pointers, row_of
from trine.common.units import format_time
from trine.errors import InputError
from trine.graph.assembler import take
from trine.graph.memory import MemoryEvents
from trine.graph.taskgraph import TRANSFER, TaskGraph
from trine.results import details, document, frames, headline, plot, summary, timeline
from trine.results.records import Ends, record_table
from trine.results.report import Report, Row, Table, Timeline
from trine.results.run import Part, TaskRun

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result(TaskRun, Report):
    """Result of a run. Times describe its last step; with several steps, the steady state."""

    SCHEMA: ClassVar[str] = "result"

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
        view = only_ranks(self, ranks) if self.scope is None else self.scope.observe(ranks)
        assert isinstance(view, Result)
        view.__dict__["critical_path_times"] = self.critical_path_times  # other ranks' tasks are part of the path
        return view

    @property
    def headline(self) -> str:
        """Step time, ranks, the slowest rank's compute share, MFU, and whether it fits in memory."""
        name = self.plan.get("workload") or self.plan.get("name")
        needed = summary.memory_needed(self)
        return (
            f"{f'{name}: ' if name else ''}step time {format_time(self.step_time_ps)} on {self.num_ranks:,} "
            f"rank{'s' if self.num_ranks > 1 else ''}{summary.profile_suffix(self)} "
            f"({100 * self.compute_s / self.step_time_s if self.step_time_ps else 0:.0f} % compute)"
            + "".join(f", {words}" for words in summary.rates_in_brief(self))
            + (f", memory needed {needed}" if needed else "")
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
        return summary.screen(self).text()

    def details(self) -> str:
        """Return everything as text, the largest bottlenecks first."""
        return details.details(self)

    def document(self) -> Row:
        """Return the result as plain data (docs/reference/result-json.md)."""
        return document.document(self)

    def record(self) -> Row:
        """Return the numbers of the step, the memory needed and the plan as one flat row."""
        return document.record(self)

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
        """Return the simulated tasks of all ranks, and their memory; a note names repetitions, which are absent."""
        excerpt = self.excerpt
        table = record_table(self.graph, excerpt.records, self.wait_reasons)
        table = table._replace(columns={**table.columns, **self.shown_columns})
        return Timeline(timeline.packets(self.graph, table, excerpt.memory_timeline, self.left_out_words))

    def to_npz(self, path: str | Path) -> None:
        """Write the record table as a compressed numpy archive."""
        frames.to_npz(self.record_table, path)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the record table as a data frame; raises MissingExtraError without pandas."""
        return frames.to_frame(self.record_table)


# A result that shows some of its ranks: their tasks, and the transfers to and from them.

R = TypeVar("R", bound=TaskRun)


def only_ranks(result: R, ranks: Sequence[int]) -> R:
    """Return the part of ``result`` on ``ranks``.

    A transfer between a shown and a hidden rank belongs to the shown rank. Raises InputError for a rank that ``result``
    does not show itself.
    """
    graph, records = result.graph, result.records
    rows = _rows(result, ranks)
    row_of = np.full(len(graph.rank_names) + 1, -1, np.int64)  # the last entry serves rank -1
    row_of[rows] = np.arange(len(rows))
    sender, receiver = row_of[graph.rank], row_of[graph.peer]
    tasks = np.flatnonzero((sender >= 0) | (receiver >= 0))
    capacity, power = result.memory_capacity_bytes, result.power_w
    return replace(
        result,
        graph=_only(graph, tasks, sender[tasks], receiver[tasks], rows),
        records=replace(
            records, **{name: getattr(records, name)[tasks] for name in ("ready_ps", "start_ps", "end_ps")}
        ),
        memory=None if result.memory is None else _memory(result.memory, tasks, row_of, rows, graph.num_tasks),
        memory_capacity_bytes=tuple(capacity[row] for row in rows) if capacity else (),
        power_w=tuple(power[row] for row in rows) if power else (),
        part=Part(
            ranks=tuple(ranks), num_ranks=result.num_ranks, ends=_ends(result, tasks),
            step_ends_ps=result.simulated_ends_ps, reasons=lambda: result.wait_reasons[tasks],
        ),
    )  # fmt: skip


def _rows(result: TaskRun, ranks: Sequence[int]) -> list[int]:
    row_of = {rank: row for row, rank in enumerate(result.shown_ranks)}
    for rank in ranks:
        if rank not in row_of:
            raise InputError(f"this result shows only some ranks, and not rank {rank}", field="rank")
    return [row_of[rank] for rank in ranks]


def _ends(result: TaskRun, tasks: Int64) -> Ends:
    if result.part is not None:
        rank, peer, is_copy = result.part.ends
        return Ends(rank=rank[tasks], peer=peer[tasks], is_copy=is_copy[tasks])
    graph = result.graph
    return Ends(
        rank=graph.rank[tasks].astype(np.int64),
        peer=graph.peer[tasks].astype(np.int64),
        is_copy=np.zeros(len(tasks), np.bool_),
    )


def _only(graph: TaskGraph, tasks: Int64, sender: Int64, receiver: Int64, rows: Sequence[int]) -> TaskGraph:
    """Return the tasks ``tasks``, renumbered; sender, receiver: their new rows, -1 for hidden ranks."""
    ptr, predecessors = _edges(graph, tasks)
    streams = np.array(graph.stream_ranks, np.int64)
    shown_streams = np.flatnonzero(np.isin(streams, rows))
    stream_of = np.full(len(streams) + 1, -1, np.int64)
    stream_of[shown_streams] = np.arange(len(shown_streams))
    row_of = {row: number for number, row in enumerate(rows)}
    is_transfer = graph.kind[tasks] == TRANSFER
    return replace(
        graph,
        **take(graph, tasks)
        | {
            "rank": np.where(sender >= 0, sender, receiver).astype(np.int32),
            "peer": np.where(is_transfer, np.where(receiver >= 0, receiver, sender), -1).astype(np.int32),
            "stream": stream_of[graph.stream[tasks]].astype(np.int32),
            "num_required": np.diff(ptr).astype(np.int32),
            "pressure_ppm": None,
            "pressure_stream": None,
        },
        predecessor_ptr=ptr,
        predecessor_idx=predecessors,
        stream_names=tuple(graph.stream_names[stream] for stream in shown_streams.tolist()),
        stream_ranks=tuple(row_of[int(streams[stream])] for stream in shown_streams.tolist()),
        rank_names=tuple(graph.rank_names[row] for row in rows),
        collectives=tuple(
            replace(label, ranks=tuple(row_of[row] for row in label.ranks if row in row_of), group_size=label.num_ranks)
            for label in graph.collectives
        ),
    )


def _edges(graph: TaskGraph, tasks: Int64) -> tuple[Int64, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """Return the dependencies among the tasks ``tasks``, as CSR."""
    number = np.full(graph.num_tasks, -1, np.int64)
    number[tasks] = np.arange(len(tasks))
    owner = number[row_of(graph.predecessor_ptr)]
    predecessor = number[graph.predecessor_idx]
    is_inside = (owner >= 0) & (predecessor >= 0)
    need = np.bincount(owner[is_inside], minlength=len(tasks))
    return pointers(need), predecessor[is_inside].astype(np.int32)


def _renumbered(holds: Int64, number: Int64) -> Int64:
    """Return ``holds`` of :class:`MemoryEvents` with renumbered tasks."""
    renumbered = holds.copy()
    for column in (0, 2, 3):
        renumbered[:, column] = np.where(holds[:, column] >= 0, number[holds[:, column]], -1)
    return renumbered


def _memory(memory: MemoryEvents, tasks: Int64, row_of: Int64, rows: Sequence[int], num_tasks: int) -> MemoryEvents:
    number = np.full(num_tasks, -1, np.int64)
    number[tasks] = np.arange(len(tasks))
    is_shown = row_of[memory.rank] >= 0
    return MemoryEvents(
        task=number[memory.task[is_shown]].astype(np.int32), at_end=memory.at_end[is_shown],
        rank=row_of[memory.rank[is_shown]].astype(np.int32), delta_bytes=memory.delta_bytes[is_shown],
        category=memory.category[is_shown], resident_bytes=memory.resident_bytes[list(rows)],
        block=None if memory.block is None else memory.block[is_shown],
        held=None if memory.held is None else _renumbered(memory.held[is_shown], number),
    )  # fmt: skip
