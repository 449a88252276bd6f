"""A collective's transfers as tasks of a larger graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trine.collectives.expand import expand
from trine.collectives.schedule import Schedule
from trine.common.arrays import Int32, Int64, distinct
from trine.graph.assembler import PlacedAssembler
from trine.graph.taskgraph import JOIN, TRANSFER


def caps_of(schedule: Schedule, chunk: Int32) -> Int64:
    """Return the maximum bytes/s of each transfer, by its first chunk; 0 for no limit: int64[transfers]."""
    if schedule.chunk_caps is None:
        return np.zeros(len(chunk), np.int64)
    return np.array(schedule.chunk_caps, np.int64)[chunk]


def append_transfers(
    assembler: PlacedAssembler, schedule: Schedule, ranks: Sequence[int], entry_tasks: Int64, software_ps: int,
    **labels: int,
) -> None:  # fmt: skip
    """Append the transfers of ``schedule`` among ``ranks``, in the order of the expanded schedule.

    entry_tasks: int64[ranks], the task of each rank's entry; the next task is its end. software_ps: time before each
    message. labels: purpose of the transfers.
    """
    transfers = expand(schedule)
    count = transfers.num_transfers
    members = np.array(ranks, np.int32)
    source, target = members[transfers.src], members[transfers.dst]
    is_sent = np.full(count, True) if schedule.timed_step < 0 else transfers.step == schedule.timed_step
    caps = caps_of(schedule, transfers.chunk)
    has_software = is_sent if schedule.timed_step < 0 else is_sent & ((transfers.size_bytes == 0) | (caps > 0))
    route = np.full(count, -1, np.int32)
    for cap in distinct(caps[is_sent]).tolist():
        for selection, extra_ps in ((has_software, software_ps), (is_sent & ~has_software, 0)):
            rows = selection & (caps == cap)
            route[rows] = assembler.between_all(source[rows], target[rows], extra_ps, cap)
    first = assembler.tasks(
        count, kind=np.where(is_sent, TRANSFER, JOIN), size_bytes=transfers.size_bytes, rank=source,
        peer=np.where(is_sent, target, -1), route=route, **labels,
    )  # fmt: skip
    rows = np.arange(first, first + count, dtype=np.int64)
    assembler.connect(np.repeat(rows, np.diff(transfers.predecessor_ptr)), transfers.predecessor_idx + np.int64(first))
    assembler.connect(rows[transfers.entry_src], entry_tasks[transfers.src[transfers.entry_src]])
    assembler.connect(rows[transfers.entry_dst], entry_tasks[transfers.dst[transfers.entry_dst]])
    end_tasks = np.repeat(entry_tasks + 1, np.diff(transfers.completion_ptr))
    assembler.connect(end_tasks, transfers.completion_idx + np.int64(first))
