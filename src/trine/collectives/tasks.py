"""The transfers of one collective as tasks of a larger graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trine.arrays import Int32, Int64
from trine.collectives.expand import expand
from trine.collectives.schedule import Schedule
from trine.graph.assembler import PlacedAssembler
from trine.graph.taskgraph import JOIN, TRANSFER


def caps_of(schedule: Schedule, chunk: Int32) -> Int64:
    """int64[transfers]: bytes/s at most of each, by its first chunk; 0 for no limit."""
    if schedule.chunk_caps is None:
        return np.zeros(len(chunk), np.int64)
    return np.array(schedule.chunk_caps, np.int64)[chunk]


def append_transfers(
    assembler: PlacedAssembler,
    schedule: Schedule,
    ranks: Sequence[int],
    entered: Int64,
    software_ps: int,
    **labels: int,
) -> None:
    """Append the transfers of ``schedule`` among ``ranks``, in the order of the expanded schedule.

    entered: int64[ranks], the task with which each enters; the next task is the one with which it has ended.
    software_ps: before each message. labels: what the transfers are for.
    """
    transfers = expand(schedule)
    count = transfers.num_transfers
    members = np.array(ranks, np.int32)
    source, target = members[transfers.src], members[transfers.dst]
    is_sent = np.full(count, True) if schedule.timed_step < 0 else transfers.step == schedule.timed_step
    caps = caps_of(schedule, transfers.chunk)
    has_software = is_sent if schedule.timed_step < 0 else is_sent & ((transfers.size_bytes == 0) | (caps > 0))
    route = np.full(count, -1, np.int32)
    for cap in np.unique(caps[is_sent]).tolist():
        for chosen, extra_ps in ((has_software, software_ps), (is_sent & ~has_software, 0)):
            own = chosen & (caps == cap)
            route[own] = assembler.between_all(source[own], target[own], extra_ps, cap)
    first = assembler.tasks(
        count,
        kind=np.where(is_sent, TRANSFER, JOIN),
        size_bytes=transfers.size_bytes,
        rank=source,
        peer=np.where(is_sent, target, -1),
        route=route,
        **labels,
    )
    own = np.arange(first, first + count, dtype=np.int64)
    assembler.connect(np.repeat(own, np.diff(transfers.predecessor_ptr)), transfers.predecessor_idx + np.int64(first))
    assembler.connect(own[transfers.entry_src], entered[transfers.src[transfers.entry_src]])
    assembler.connect(own[transfers.entry_dst], entered[transfers.dst[transfers.entry_dst]])
    ended = np.repeat(entered + 1, np.diff(transfers.completion_ptr))
    assembler.connect(ended, transfers.completion_idx + np.int64(first))
