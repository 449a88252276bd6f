"""A result that shows some of its ranks: their tasks, and what they send and receive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from trine.arrays import Int64
from trine.errors import InputError
from trine.graph.assembler import take
from trine.graph.memory import MemoryEvents
from trine.graph.taskgraph import TRANSFER, TaskGraph
from trine.results.records import Ends
from trine.results.run import Part, TaskRun

R = TypeVar("R", bound=TaskRun)


def only_ranks(result: R, ranks: Sequence[int]) -> R:
    """The part of ``result`` that happened on ``ranks``.

    A transfer between a rank that is shown and one that is not belongs to the one that is shown. Raises InputError for
    a rank that ``result`` does not show itself.
    """
    graph, records = result.graph, result.records
    rows = _rows(result, ranks)
    row_of = np.full(len(graph.rank_names) + 1, -1, np.int64)  # the last entry is that of nobody, -1
    row_of[rows] = np.arange(len(rows))
    sender, receiver = row_of[graph.rank], row_of[graph.peer]
    kept = np.flatnonzero((sender >= 0) | (receiver >= 0))
    capacity, power = result.memory_capacity_bytes, result.power_w
    return replace(
        result,
        graph=_only(graph, kept, sender[kept], receiver[kept], rows),
        records=replace(
            records, ready_ps=records.ready_ps[kept], start_ps=records.start_ps[kept], end_ps=records.end_ps[kept]
        ),
        memory=None if result.memory is None else _memory(result.memory, kept, row_of, rows, graph.num_tasks),
        memory_capacity_bytes=tuple(capacity[row] for row in rows) if capacity else (),
        power_w=tuple(power[row] for row in rows) if power else (),
        part=Part(
            ranks=tuple(ranks),
            num_ranks=result.num_ranks,
            ends=_ends(result, kept),
            step_ends_ps=result.step_ends_ps,
            reasons=lambda: result.wait_reasons[kept],
        ),
    )


def _rows(result: TaskRun, ranks: Sequence[int]) -> list[int]:
    row_of = {rank: row for row, rank in enumerate(result.shown_ranks)}
    for rank in ranks:
        if rank not in row_of:
            raise InputError(f"this result shows only some ranks, and not rank {rank}", field="rank")
    return [row_of[rank] for rank in ranks]


def _ends(result: TaskRun, kept: Int64) -> Ends:
    if result.part is not None:
        rank, peer, is_copy = result.part.ends
        return Ends(rank=rank[kept], peer=peer[kept], is_copy=is_copy[kept])
    graph = result.graph
    return Ends(
        rank=graph.rank[kept].astype(np.int64),
        peer=graph.peer[kept].astype(np.int64),
        is_copy=np.zeros(len(kept), np.bool_),
    )


def _only(graph: TaskGraph, kept: Int64, sender: Int64, receiver: Int64, rows: Sequence[int]) -> TaskGraph:
    """The tasks ``kept``, renumbered; sender, receiver: their new rows, -1 for ranks that are not shown."""
    ptr, before = _edges(graph, kept)
    streams = np.array(graph.stream_ranks, np.int64)
    shown = np.flatnonzero(np.isin(streams, rows))
    stream_of = np.full(len(streams) + 1, -1, np.int64)
    stream_of[shown] = np.arange(len(shown))
    row_of = {row: number for number, row in enumerate(rows)}
    is_transfer = graph.kind[kept] == TRANSFER
    return replace(
        graph,
        **take(graph, kept)
        | {
            "rank": np.where(sender >= 0, sender, receiver).astype(np.int32),
            "peer": np.where(is_transfer, np.where(receiver >= 0, receiver, sender), -1).astype(np.int32),
            "stream": stream_of[graph.stream[kept]].astype(np.int32),
            "num_required": np.diff(ptr).astype(np.int32),
            "pressure_ppm": None,
            "pressure_stream": None,
        },
        predecessor_ptr=ptr,
        predecessor_idx=before,
        stream_names=tuple(graph.stream_names[stream] for stream in shown.tolist()),
        stream_ranks=tuple(row_of[int(streams[stream])] for stream in shown.tolist()),
        rank_names=tuple(graph.rank_names[row] for row in rows),
        collectives=tuple(
            replace(label, ranks=tuple(row_of[row] for row in label.ranks if row in row_of), group_size=label.num_ranks)
            for label in graph.collectives
        ),
    )


def _edges(graph: TaskGraph, kept: Int64) -> tuple[Int64, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """CSR of the dependencies among the tasks ``kept``."""
    number = np.full(graph.num_tasks, -1, np.int64)
    number[kept] = np.arange(len(kept))
    owner = number[np.repeat(np.arange(graph.num_tasks), np.diff(graph.predecessor_ptr))]
    before = number[graph.predecessor_idx]
    left = (owner >= 0) & (before >= 0)
    need = np.bincount(owner[left], minlength=len(kept))
    return np.concatenate(([0], np.cumsum(need))).astype(np.int64), before[left].astype(np.int32)


def _memory(memory: MemoryEvents, kept: Int64, row_of: Int64, rows: Sequence[int], num_tasks: int) -> MemoryEvents:
    number = np.full(num_tasks, -1, np.int64)
    number[kept] = np.arange(len(kept))
    mine = row_of[memory.rank] >= 0
    return MemoryEvents(
        task=number[memory.task[mine]].astype(np.int32),
        at_end=memory.at_end[mine],
        rank=row_of[memory.rank[mine]].astype(np.int32),
        delta_bytes=memory.delta_bytes[mine],
        category=memory.category[mine],
        resident_bytes=memory.resident_bytes[list(rows)],
        block=None if memory.block is None else memory.block[mine],
    )
