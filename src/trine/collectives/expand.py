"""Expansion of a schedule into its transfers and their dependencies.

A send waits for

- receives of its chunks at the sender in earlier steps, starting at the last overwrite and after the sender's last send
  of them on this channel,
- the sender's previous send on its channel,
- the entry of sender and receiver into the collective, unless other dependencies imply it (a rendezvous: GPU
  collectives need both kernels to run). Reducing switches have no entry.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.collectives.dependencies import (
    SendColumns,
    check_edges,
    check_units,
    columns_of,
    csr,
    previous_of_same,
    received_before,
)
from trine.collectives.schedule import ChunkRanges, ExpandedSchedule, Schedule
from trine.common.arrays import Int32, Int64, pointers, row_sums
from trine.errors import InputError

#: Structures up to this number of ranks are cached for 16 schedules, larger ones (100 MB for 1024 ranks) for 2.
MANY_RANKS = 256


def expand(schedule: Schedule) -> ExpandedSchedule:
    """List the transfers of ``schedule``, with their predecessors. The structure is cached; only sizes differ.

    Raises InputError if the schedule names a missing rank or chunk, a rank sends to itself, a switch sends data that it
    never received, or the dependencies do not fit into memory.
    """
    expanded = (_cached_structure if schedule.num_ranks <= MANY_RANKS else _cached_large)(without_sizes(schedule))
    return dataclasses.replace(expanded, size_bytes=transfer_bytes(schedule, expanded.chunk, expanded.chunk_ranges))


def without_sizes(schedule: Schedule) -> Schedule:
    """Return the schedule without sizes: the cache key of its structure."""
    kinds = None if schedule.chunk_caps is None else ()
    return dataclasses.replace(schedule, chunk_bytes=0, size_bytes=0, chunk_sizes=None, chunk_caps=kinds, parameters=())


def structure(schedule: Schedule) -> ExpandedSchedule:
    """Return the expanded schedule with all sizes zero. Not cached."""
    if schedule.shift_symmetric and not schedule.num_switches and schedule.num_chunks % schedule.num_ranks == 0:
        return _expand_shifts(schedule)
    return _expand_all(schedule)


_cached_structure = lru_cache(maxsize=16)(structure)
_cached_large = lru_cache(maxsize=2)(structure)


def transfer_bytes(schedule: Schedule, chunk: Int32, chunk_ranges: ChunkRanges | None) -> Int64:
    """Return int64[transfers]: the total size of each transfer's chunks, from ``chunk`` or its ``chunk_ranges``."""
    num_chunks = schedule.num_chunks
    if schedule.chunk_sizes is None:
        if chunk_ranges is None:
            return np.full(len(chunk), schedule.chunk_bytes, dtype=np.int64)
        range_bytes = chunk_ranges.count * np.int64(schedule.chunk_bytes)
    else:
        if len(schedule.chunk_sizes) != num_chunks:
            raise InputError(f"the schedule has {num_chunks} chunks, but {len(schedule.chunk_sizes)} sizes of chunks")
        sizes = np.array(schedule.chunk_sizes, dtype=np.int64)
        if chunk_ranges is None:
            return sizes[chunk]
        offsets = pointers(np.concatenate((sizes, sizes)))
        range_bytes = offsets[chunk_ranges.chunk + chunk_ranges.count] - offsets[chunk_ranges.chunk]
    return row_sums(range_bytes, chunk_ranges.ptr)


# -- dependencies ------------------------------------------------------------------------------------------------------


def _expand_all(schedule: Schedule) -> ExpandedSchedule:
    """Return the structure from the sends of every position."""
    num_ranks = schedule.num_ranks
    sends = columns_of(schedule, range(num_ranks + schedule.num_switches))
    m = len(sends.src)
    previous = previous_of_same(sends.src, sends.channel)
    users, arrivals = _arrival_pairs(sends, schedule.num_chunks)
    followers = np.flatnonzero(previous >= 0)
    waits = previous >= 0
    waits[users] = True
    if not waits[sends.src >= num_ranks].all():
        raise InputError("in this schedule a switch sends data that it never received")
    ptr, idx = csr(np.concatenate([users, followers]), np.concatenate([arrivals, previous[followers]]), m, m)
    pair_previous = previous_of_same(sends.src, sends.channel, sends.dst)
    ends = last_of_pairs(pair_previous)
    ranks, transfers = np.concatenate([sends.src[ends], sends.dst[ends]]), np.concatenate([ends, ends])
    is_rank = ranks < num_ranks
    completion_ptr, completion_idx = csr(ranks[is_rank].astype(np.int64), transfers[is_rank], num_ranks, m)
    return ExpandedSchedule(
        src=sends.src,
        dst=sends.dst,
        step=sends.step,
        chunk=sends.chunk,
        size_bytes=np.zeros(m, dtype=np.int64),
        reduce=sends.reduce,
        # A sender that waits for data or its previous send has entered: these dependencies waited for its entry.
        entry_src=~waits,
        entry_dst=(pair_previous < 0) & (sends.dst < num_ranks),
        predecessor_ptr=ptr,
        predecessor_idx=idx,
        completion_ptr=completion_ptr,
        completion_idx=completion_idx,
        chunk_ranges=sends.chunk_ranges,
        num_switches=schedule.num_switches,
    )


def _arrival_pairs(sends: SendColumns, num_chunks: int) -> tuple[Int64, Int64]:
    """Return pairs (transfer, transfer that brought one of its chunks to its sender in an earlier step)."""
    src, dst, step, channel = (data[sends.unit_transfer] for data in (sends.src, sends.dst, sends.step, sends.channel))
    previous_use = previous_of_same(src, channel, sends.unit_chunk)
    to_sender, to_receiver = (position * np.int64(num_chunks) + sends.unit_chunk for position in (src, dst))
    users, arrivals = received_before(to_sender, step, previous_use, to_receiver, step, sends.unit_adds)
    return sends.unit_transfer[users], sends.unit_transfer[arrivals]


def last_of_pairs(pair_previous: Int64) -> Int64:
    """Return the last transfer on each channel to each peer."""
    last = np.ones(len(pair_previous), dtype=np.bool_)
    last[pair_previous[pair_previous >= 0]] = False
    return np.flatnonzero(last)


# -- shift-symmetric schedules -----------------------------------------------------------------------------------------


def _expand_shifts(schedule: Schedule) -> ExpandedSchedule:
    """Return the structure from the sends of position 0, repeated for every other position.

    A transfer is (sender, its number among the sender's transfers). The predecessors at position p are the predecessors
    at position 0 with p added to the sender.
    """
    num_ranks, part = schedule.num_ranks, schedule.num_chunks // schedule.num_ranks
    sends = columns_of(schedule, range(1))
    k = len(sends.src)
    check_units(num_ranks * (k if sends.chunk_ranges is None else len(sends.chunk_ranges.chunk)))
    sender = -sends.dst.astype(np.int64) % num_ranks  # sender of the transfer of this number to position 0
    previous = previous_of_same(sends.channel)
    users, senders, arrivals = _arrival_pairs_at_0(sends, sender, part, schedule.num_chunks)
    followers = np.flatnonzero(previous >= 0)
    waits = previous >= 0
    waits[users] = True
    pair_previous = previous_of_same(sends.channel, sends.dst)
    ends = last_of_pairs(pair_previous)
    zeros = np.zeros_like(followers)
    ptr, idx = _repeat_rows(
        np.concatenate([users, followers]),
        np.concatenate([senders, zeros]),
        np.concatenate([arrivals, previous[followers]]),
        (k, num_ranks),
    )
    completions = np.concatenate([np.zeros_like(ends), sender[ends]]), np.concatenate([ends, ends])
    completion_ptr, completion_idx = _repeat_rows(np.zeros(2 * len(ends), np.int64), *completions, (1, num_ranks), k)
    shift, ranges = np.arange(num_ranks, dtype=np.int32)[:, None], sends.chunk_ranges

    def repeat_column(column: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return np.tile(column, num_ranks)

    return ExpandedSchedule(
        src=np.repeat(shift.ravel(), k), dst=((sends.dst + shift) % num_ranks).astype(np.int32).ravel(),
        step=repeat_column(sends.step).astype(np.int32, copy=False),
        chunk=((sends.chunk + shift * part) % schedule.num_chunks).astype(np.int32).ravel(),
        size_bytes=np.zeros(k * num_ranks, dtype=np.int64),
        reduce=repeat_column(sends.reduce).astype(np.bool_, copy=False),
        entry_src=repeat_column(~waits).astype(np.bool_, copy=False),
        entry_dst=repeat_column(pair_previous < 0).astype(np.bool_, copy=False), predecessor_ptr=ptr,
        predecessor_idx=idx, completion_ptr=completion_ptr, completion_idx=completion_idx,
        chunk_ranges=ranges and _shift_ranges(ranges, num_ranks, schedule.num_chunks),
    )  # fmt: skip


class _ArrivalPairs(NamedTuple):
    """Transfers of position 0 and the arrivals that they wait for, int64[pairs] each.

    users: the waiting transfer. senders, arrivals: sender and number of the transfer that brought its chunk.
    """

    users: Int64
    senders: Int64
    arrivals: Int64


def _arrival_pairs_at_0(sends: SendColumns, sender: Int64, part: int, num_chunks: int) -> _ArrivalPairs:
    """Return the transfers that brought the chunks of each transfer of position 0."""
    step, channel = sends.step[sends.unit_transfer], sends.channel[sends.unit_transfer]
    previous_use = previous_of_same(channel, sends.unit_chunk)
    arrival_chunks = (sends.unit_chunk + sender[sends.unit_transfer] * part) % num_chunks
    users, arrivals = received_before(sends.unit_chunk, step, previous_use, arrival_chunks, step, sends.unit_adds)
    number = sends.unit_transfer[arrivals]
    return _ArrivalPairs(sends.unit_transfer[users], sender[number], number)


def _repeat_rows(
    rows: Int64, senders: Int64, numbers: Int64, shape: tuple[int, int], sends: int | None = None
) -> tuple[Int64, Int32]:
    """Return the CSR of position 0's pairs (row, (sender, number)), repeated with each position added to the sender.

    ``shape``: rows per position, and positions. ``sends``: transfers per position, if different from the rows.
    """
    num_rows, num_ranks = shape
    k = num_rows if sends is None else sends
    row_ptr, row_idx = csr(rows, senders * k + numbers, num_rows, max(1, k) * num_ranks)
    check_edges(len(row_idx) * num_ranks)
    counts = np.tile(np.diff(row_ptr), num_ranks)
    ptr = pointers(counts)
    if not len(row_idx):
        return ptr, row_idx
    total = np.int64(k) * num_ranks
    shifted_idx = row_idx.astype(np.int64) + np.arange(num_ranks, dtype=np.int64)[:, None] * k
    np.subtract(shifted_idx, total, out=shifted_idx, where=shifted_idx >= total)
    return ptr, shifted_idx.astype(np.int32).ravel()


def _shift_ranges(ranges: ChunkRanges, num_ranks: int, num_chunks: int) -> ChunkRanges:
    rows = len(ranges.chunk)
    shift = np.arange(num_ranks, dtype=np.int64)[:, None]
    ptr = np.append((ranges.ptr[:-1] + shift * rows).ravel(), num_ranks * rows)
    return ChunkRanges(
        ptr=ptr,
        chunk=((ranges.chunk + shift * (num_chunks // num_ranks)) % num_chunks).astype(np.int32).ravel(),
        count=np.tile(ranges.count, num_ranks),
        reduce=np.tile(ranges.reduce, num_ranks),
    )
