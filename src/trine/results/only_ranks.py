"""A result that shows some of its ranks: their tasks, and the transfers to and from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from trine.common.arrays import Int64, pointers, row_of
from trine.errors import InputError
from trine.graph.assembler import take
from trine.graph.memory import MemoryEvents
from trine.graph.taskgraph import TRANSFER, TaskGraph
from trine.results.ends import Ends
from trine.results.run import Part, TaskRun

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
    times = {name: getattr(records, name)[tasks] for name in ("ready_ps", "start_ps", "end_ps")}
    memory = None if result.memory is None else _memory(result.memory, tasks, row_of, rows, graph.num_tasks)
    if capacity:
        capacities = tuple(capacity[row] for row in rows)
    else:
        capacities = ()
    if power:
        powers = tuple(power[row] for row in rows)
    else:
        powers = ()
    return replace(
        result, graph=_only(graph, tasks, sender[tasks], receiver[tasks], rows), records=replace(
            records, **times
        ),
        memory=memory, memory_capacity_bytes=capacities, power_w=powers, part=Part(
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
    stream_names = tuple(graph.stream_names[stream] for stream in shown_streams.tolist())
    stream_ranks = tuple(row_of[int(streams[stream])] for stream in shown_streams.tolist())
    rank_names = tuple(graph.rank_names[row] for row in rows)
    labels = []
    for label in graph.collectives:
        labels.append(
            replace(label, ranks=tuple(row_of[row] for row in label.ranks if row in row_of), group_size=label.num_ranks)
        )
    collectives = tuple(labels)
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
        stream_names=stream_names,
        stream_ranks=stream_ranks,
        rank_names=rank_names,
        collectives=collectives,
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
    block = None if memory.block is None else memory.block[is_shown]
    held = None if memory.held is None else _renumbered(memory.held[is_shown], number)
    return MemoryEvents(
        task=number[memory.task[is_shown]].astype(np.int32), at_end=memory.at_end[is_shown],
        rank=row_of[memory.rank[is_shown]].astype(np.int32), delta_bytes=memory.delta_bytes[is_shown],
        category=memory.category[is_shown], resident_bytes=memory.resident_bytes[list(rows)], block=block, held=held,
    )  # fmt: skip
