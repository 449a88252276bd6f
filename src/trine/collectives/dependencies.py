"""Sends of positions as checked columns, and their dependencies as pairs of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.collectives.schedule import ChunkRanges, Schedule, Sends
from trine.common.arrays import Bool, Int32, Int64, pointers, spans
from trine.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class SendColumns:
    """Transfers of some positions as columns. ``unit_*``: one entry per (transfer, chunk in it)."""

    src: Int32
    dst: Int32
    step: Int32
    chunk: Int32
    channel: Int32
    reduce: Bool
    unit_transfer: Int64
    unit_chunk: Int64
    unit_adds: Bool
    chunk_ranges: ChunkRanges | None


def columns_of(schedule: Schedule, positions: range) -> SendColumns:
    """Join and check the sends of ``positions``. Raise InputError for invalid sends."""
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
    _check_range("rank", dst, schedule.num_ranks + schedule.num_switches)
    _check_range("chunk", chunk, schedule.num_chunks)
    if (src == dst).any():
        raise InputError("in this schedule a rank sends to itself")
    rows = np.arange(len(src), dtype=np.int64)
    if all(one.count is None and one.message is None for one in sends):
        return SendColumns(
            src=src, dst=dst, step=step, chunk=chunk, channel=channel, reduce=reduce,
            unit_transfer=rows, unit_chunk=chunk.astype(np.int64), unit_adds=reduce, chunk_ranges=None,
        )  # fmt: skip
    counts = []
    for one in sends:
        counts.append(np.ones_like(one.chunk) if one.count is None else one.count)
    count = np.concatenate(counts)
    if len(count) and (count.min() < 1 or count.max() > schedule.num_chunks):
        raise InputError(f"in this schedule a send carries fewer than 1 or more than {schedule.num_chunks} chunks")
    check_units(int(count.sum()))
    is_first = _first_of_message(sends, src, dst, step, channel)
    transfer = np.cumsum(is_first) - 1
    starts = np.flatnonzero(is_first)
    unit_row = np.repeat(rows, count)
    offset = spans(0, count)
    ptr = np.append(starts, len(src)).astype(np.int64)
    return SendColumns(
        src=src[starts], dst=dst[starts], step=step[starts], chunk=chunk[starts], channel=channel[starts],
        reduce=np.logical_or.reduceat(reduce, starts) if len(starts) else reduce, unit_transfer=transfer[unit_row],
        unit_chunk=(chunk[unit_row] + offset) % schedule.num_chunks, unit_adds=reduce[unit_row],
        chunk_ranges=ChunkRanges(ptr=ptr, chunk=chunk, count=count.astype(np.int32), reduce=reduce),
    )  # fmt: skip


def _first_of_message(sends: list[Sends], src: Int32, dst: Int32, step: Int32, channel: Int32) -> Bool:
    """Return bool[rows]: whether a row is the first of its transfer."""
    messages = []
    for one in sends:
        messages.append(np.arange(len(one.step)) if one.message is None else one.message)
    message = np.concatenate(messages)
    continues = np.zeros(len(src), dtype=np.bool_)
    continues[1:] = (src[1:] == src[:-1]) & (message[1:] == message[:-1])
    for name, column in (("receiver", dst), ("step", step), ("channel", channel)):
        if (continues[1:] & (column[1:] != column[:-1])).any():
            raise InputError(f"in this schedule the parts of one message have more than one {name}")
    return ~continues


def _check_range(name: str, values: Int32, limit: int) -> None:
    if len(values) and (values.min() < 0 or values.max() >= limit):
        raise InputError(f"in this schedule a send names a {name} outside 0 to {limit - 1}")


#: Maximum numbers of dependencies between transfers, and of chunks in transfers; trine refuses larger schedules (these
#: need a few GB during the search).
MAX_EDGES = 100_000_000
MAX_UNITS = 50_000_000


def stable_order(key: Int64) -> Int64:
    """Return ``np.argsort(key, kind="stable")`` for non-negative keys."""
    length = max(1, len(key))
    if int(key.max(initial=0)) < np.iinfo(np.int64).max // length:
        # Sorting (key, position) as one number is several times faster than a stable argsort.
        packed: Int64 = np.sort(key * length + np.arange(len(key)))
        return packed % length
    return np.argsort(key, kind="stable")


def joint_key(*columns: npt.NDArray[np.integer]) -> Int64:
    """Return one int64 per row that sorts rows like the columns, with the first column most significant."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    return key


def previous_of_same(*columns: npt.NDArray[np.integer]) -> Int64:
    """Return for each row the last row before it with the same columns, or -1."""
    key = joint_key(*columns)
    previous = np.full(len(key), -1, dtype=np.int64)
    if (key[1:] >= key[:-1]).all():
        repeats = np.flatnonzero(key[1:] == key[:-1])
        previous[repeats + 1] = repeats
        return previous
    order = stable_order(key)
    repeats = key[order[1:]] == key[order[:-1]]
    previous[order[1:][repeats]] = order[:-1][repeats]
    return previous


def received_before(
    slot: Int64, step: Int32, previous_use: Int64, arrival_slot: Int64, arrival_step: Int32,
    arrival_adds: npt.NDArray[np.bool_],
) -> tuple[Int64, Int64]:  # fmt: skip
    """Return pairs (use, arrival): uses of a slot at a step, and the earlier arrivals in the slot that still matter.

    Overwritten arrivals do not matter; the schedule orders them against the overwriting one, and the checker proves it.
    ``previous_use``: for each use, the previous use that has already waited for the arrivals up to then, or -1.
    """
    num_steps = int(max(step.max(initial=0), arrival_step.max(initial=0))) + 1
    arrival = arrival_slot * num_steps + arrival_step
    order = stable_order(arrival)
    arrival = arrival[order]
    first_key = slot * num_steps + np.where(previous_use >= 0, step[previous_use], 0)
    end_key = slot * num_steps + step
    overwrites = arrival[~arrival_adds[order]]
    if len(overwrites):
        last_overwrite = overwrites[np.maximum(np.searchsorted(overwrites, end_key) - 1, 0)]
        first_key = np.where(last_overwrite < end_key, np.maximum(first_key, last_overwrite), first_key)
    start = np.searchsorted(arrival, first_key)
    count = np.maximum(np.searchsorted(arrival, end_key) - start, 0)
    check_edges(int(count.sum()))
    uses = np.repeat(np.arange(len(slot), dtype=np.int64), count)
    return uses, order[spans(start, count)]


def check_edges(count: int) -> None:
    """Raise InputError for more than MAX_EDGES dependencies, before they are built."""
    if count > MAX_EDGES:
        raise InputError(
            f"this schedule has {count:,} dependencies between its transfers, more than the {MAX_EDGES:,} that fit "
            "into memory: take fewer ranks or another algorithm"
        )


def check_units(count: int) -> None:
    """Raise InputError for more than MAX_UNITS chunks in transfers, before they are listed."""
    if count > MAX_UNITS:
        raise InputError(
            f"the transfers of this schedule carry {count:,} chunks, more than the {MAX_UNITS:,} that fit into memory: "
            "take fewer ranks or chunks, or another algorithm"
        )


def csr(rows: Int64, columns: Int64, num_rows: int, num_columns: int) -> tuple[Int64, Int32]:
    """Return the compressed rows of the pairs (row, column); each row's columns are ascending and unique."""
    width = max(1, num_columns)
    pairs = np.sort(rows * width + columns)
    if len(pairs):
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])]
    return pointers(np.bincount(pairs // width, minlength=num_rows)), (pairs % width).astype(np.int32)
