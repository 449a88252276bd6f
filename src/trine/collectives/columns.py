"""The sends of some positions of a schedule as columns, checked. Used where schedules are expanded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.arrays import Bool, Int32, Int64
from trine.collectives.dependencies import check_units
from trine.collectives.schedule import Pieces, Schedule, Sends
from trine.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Transfers of some positions. ``units``: (transfer, chunk) for each chunk that one carries."""

    src: Int32
    dst: Int32
    step: Int32
    chunk: Int32
    channel: Int32
    reduce: Bool
    unit_transfer: Int64
    unit_chunk: Int64
    unit_adds: Bool
    pieces: Pieces | None


def columns_of(schedule: Schedule, positions: range) -> Columns:
    """Join the sends of ``positions``, checked. Raises InputError for sends that cannot be."""
    if schedule.num_chunks > np.iinfo(np.int32).max:
        raise InputError(f"a schedule cannot have {schedule.num_chunks:,} chunks: take fewer ranks")
    sends: list[Sends] = []
    rows_so_far = 0
    for position in positions:
        sends.append(schedule.sends_of(position, schedule.num_ranks, schedule.num_chunks, schedule.root))
        rows_so_far += len(sends[-1].step)
        check_units(rows_so_far)
    src = np.repeat(np.array(positions, dtype=np.int32), [len(one.step) for one in sends])
    dst, step, chunk, channel = (
        np.concatenate([getattr(one, name) for one in sends]).astype(np.int32, copy=False)
        for name in ("peer", "step", "chunk", "channel")
    )
    reduce = np.concatenate([one.reduce for one in sends])
    _check_range("rank", dst, schedule.num_ranks + schedule.num_agents)
    _check_range("chunk", chunk, schedule.num_chunks)
    if (src == dst).any():
        raise InputError("in this schedule a rank sends to itself")
    rows = np.arange(len(src), dtype=np.int64)
    if all(one.count is None and one.message is None for one in sends):
        return Columns(
            src=src, dst=dst, step=step, chunk=chunk, channel=channel, reduce=reduce,
            unit_transfer=rows, unit_chunk=chunk.astype(np.int64), unit_adds=reduce, pieces=None,
        )  # fmt: skip
    count = np.concatenate([np.ones_like(one.chunk) if one.count is None else one.count for one in sends])
    if len(count) and (count.min() < 1 or count.max() > schedule.num_chunks):
        raise InputError(f"in this schedule a send carries fewer than 1 or more than {schedule.num_chunks} chunks")
    check_units(int(count.sum()))
    first = _first_of_message(sends, src, dst, step, channel)
    transfer = np.cumsum(first) - 1
    starts = np.flatnonzero(first)
    unit_row = np.repeat(rows, count)
    offset = np.arange(len(unit_row)) - np.repeat(np.cumsum(count) - count, count)
    ptr = np.append(starts, len(src)).astype(np.int64)
    return Columns(
        src=src[starts],
        dst=dst[starts],
        step=step[starts],
        chunk=chunk[starts],
        channel=channel[starts],
        reduce=np.logical_or.reduceat(reduce, starts) if len(starts) else reduce,
        unit_transfer=transfer[unit_row],
        unit_chunk=(chunk[unit_row] + offset) % schedule.num_chunks,
        unit_adds=reduce[unit_row],
        pieces=Pieces(ptr=ptr, chunk=chunk, count=count.astype(np.int32), reduce=reduce),
    )


def _first_of_message(sends: list[Sends], src: Int32, dst: Int32, step: Int32, channel: Int32) -> Bool:
    """bool[rows]: whether a row is the first of its transfer."""
    message = np.concatenate([np.arange(len(one.step)) if one.message is None else one.message for one in sends])
    same = np.zeros(len(src), dtype=np.bool_)
    same[1:] = (src[1:] == src[:-1]) & (message[1:] == message[:-1])
    for name, column in (("receiver", dst), ("step", step), ("channel", channel)):
        if (same[1:] & (column[1:] != column[:-1])).any():
            raise InputError(f"in this schedule the parts of one message have more than one {name}")
    return ~same


def _check_range(name: str, values: Int32, limit: int) -> None:
    if len(values) and (values.min() < 0 or values.max() >= limit):
        raise InputError(f"in this schedule a send names a {name} outside 0 to {limit - 1}")
