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
    one = (_kept if schedule.num_ranks <= MANY_RANKS else _kept_large)(without_sizes(schedule))
    return dataclasses.replace(one, size_bytes=transfer_bytes(schedule, one.chunk, one.chunk_ranges))


def without_sizes(schedule: Schedule) -> Schedule:
    """Return the schedule without sizes: the cache key of its structure."""
    kinds = None if schedule.chunk_caps is None else ()
    return dataclasses.replace(schedule, chunk_bytes=0, size_bytes=0, chunk_sizes=None, chunk_caps=kinds, parameters=())


@lru_cache(maxsize=16)
def _kept(schedule: Schedule) -> ExpandedSchedule:
    return structure(schedule)


@lru_cache(maxsize=2)
def _kept_large(schedule: Schedule) -> ExpandedSchedule:
    return structure(schedule)


def structure(schedule: Schedule) -> ExpandedSchedule:
    """Return the expanded schedule with all sizes zero. Not cached."""
    if schedule.shift_symmetric and not schedule.num_switches and schedule.num_chunks % schedule.num_ranks == 0:
        return _shifted(schedule)
    return _general(schedule)


def transfer_bytes(schedule: Schedule, chunk: Int32, chunk_ranges: ChunkRanges | None) -> Int64:
    """Return int64[transfers]: the total size of each transfer's chunks, from ``chunk`` or its ``chunk_ranges``."""
    num_chunks = schedule.num_chunks
    if schedule.chunk_sizes is None:
        if chunk_ranges is None:
            return np.full(len(chunk), schedule.chunk_bytes, dtype=np.int64)
        of_range = chunk_ranges.count * np.int64(schedule.chunk_bytes)
    else:
        if len(schedule.chunk_sizes) != num_chunks:
            raise InputError(f"the schedule has {num_chunks} chunks, but {len(schedule.chunk_sizes)} sizes of chunks")
        sizes = np.array(schedule.chunk_sizes, dtype=np.int64)
        if chunk_ranges is None:
            return sizes[chunk]
        until = pointers(np.concatenate((sizes, sizes)))
        of_range = until[chunk_ranges.chunk + chunk_ranges.count] - until[chunk_ranges.chunk]
    return row_sums(of_range, chunk_ranges.ptr)


# -- dependencies ------------------------------------------------------------------------------------------------------


def _general(schedule: Schedule) -> ExpandedSchedule:
    """Return the structure from the sends of every position."""
    num_ranks = schedule.num_ranks
    one = columns_of(schedule, range(num_ranks + schedule.num_switches))
    m = len(one.src)
    before = previous_of_same(one.src, one.channel)
    users, received = _received(one, schedule.num_chunks)
    has_before = np.flatnonzero(before >= 0)
    waits = before >= 0
    waits[users] = True
    if not waits[one.src >= num_ranks].all():
        raise InputError("in this schedule a switch sends data that it never received")
    ptr, idx = csr(np.concatenate([users, has_before]), np.concatenate([received, before[has_before]]), m, m)
    on_pair = previous_of_same(one.src, one.channel, one.dst)
    ends = last_of_pairs(on_pair)
    ranks, transfers = np.concatenate([one.src[ends], one.dst[ends]]), np.concatenate([ends, ends])
    of_rank = ranks < num_ranks
    completion_ptr, completion_idx = csr(ranks[of_rank].astype(np.int64), transfers[of_rank], num_ranks, m)
    return ExpandedSchedule(
        src=one.src,
        dst=one.dst,
        step=one.step,
        chunk=one.chunk,
        size_bytes=np.zeros(m, dtype=np.int64),
        reduce=one.reduce,
        # A sender that waits for data or its previous send has entered: these dependencies waited for its entry.
        entry_src=~waits,
        entry_dst=(on_pair < 0) & (one.dst < num_ranks),
        predecessor_ptr=ptr,
        predecessor_idx=idx,
        completion_ptr=completion_ptr,
        completion_idx=completion_idx,
        chunk_ranges=one.chunk_ranges,
        num_switches=schedule.num_switches,
    )


def _received(one: SendColumns, num_chunks: int) -> tuple[Int64, Int64]:
    """Return pairs (transfer, transfer that brought one of its chunks to its sender in an earlier step)."""
    src, dst, step, channel = (column[one.unit_transfer] for column in (one.src, one.dst, one.step, one.channel))
    earlier = previous_of_same(src, channel, one.unit_chunk)
    to_sender, to_receiver = (position * np.int64(num_chunks) + one.unit_chunk for position in (src, dst))
    users, received = received_before(to_sender, step, earlier, to_receiver, step, one.unit_adds)
    return one.unit_transfer[users], one.unit_transfer[received]


def last_of_pairs(on_pair: Int64) -> Int64:
    """Return the last transfer on each channel to each peer."""
    last = np.ones(len(on_pair), dtype=np.bool_)
    last[on_pair[on_pair >= 0]] = False
    return np.flatnonzero(last)


# -- shift-symmetric schedules -----------------------------------------------------------------------------------------


def _shifted(schedule: Schedule) -> ExpandedSchedule:
    """Return the structure from the sends of position 0, repeated for every other position.

    A transfer is (sender, its number among the sender's transfers). The predecessors at position p are the predecessors
    at position 0 with p added to the sender.
    """
    num_ranks, part = schedule.num_ranks, schedule.num_chunks // schedule.num_ranks
    one = columns_of(schedule, range(1))
    k = len(one.src)
    check_units(num_ranks * (k if one.chunk_ranges is None else len(one.chunk_ranges.chunk)))
    sender = -one.dst.astype(np.int64) % num_ranks  # sender of the transfer of this number to position 0
    before = previous_of_same(one.channel)
    users, senders, received = _received_at_0(one, sender, part, schedule.num_chunks)
    has_before = np.flatnonzero(before >= 0)
    waits = before >= 0
    waits[users] = True
    on_pair = previous_of_same(one.channel, one.dst)
    ends = last_of_pairs(on_pair)
    zeros = np.zeros_like(has_before)
    ptr, idx = _repeated(
        np.concatenate([users, has_before]),
        np.concatenate([senders, zeros]),
        np.concatenate([received, before[has_before]]),
        (k, num_ranks),
    )
    completed = np.concatenate([np.zeros_like(ends), sender[ends]]), np.concatenate([ends, ends])
    completion_ptr, completion_idx = _repeated(np.zeros(2 * len(ends), np.int64), *completed, (1, num_ranks), k)
    shift = np.arange(num_ranks, dtype=np.int32)[:, None]

    def everywhere(column: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return np.tile(column, num_ranks)

    return ExpandedSchedule(
        src=np.repeat(shift.ravel(), k),
        dst=((one.dst + shift) % num_ranks).astype(np.int32).ravel(),
        step=everywhere(one.step).astype(np.int32, copy=False),
        chunk=((one.chunk + shift * part) % schedule.num_chunks).astype(np.int32).ravel(),
        size_bytes=np.zeros(k * num_ranks, dtype=np.int64),
        reduce=everywhere(one.reduce).astype(np.bool_, copy=False),
        entry_src=everywhere(~waits).astype(np.bool_, copy=False),
        entry_dst=everywhere(on_pair < 0).astype(np.bool_, copy=False),
        predecessor_ptr=ptr,
        predecessor_idx=idx,
        completion_ptr=completion_ptr,
        completion_idx=completion_idx,
        chunk_ranges=None
        if one.chunk_ranges is None
        else _shifted_ranges(one.chunk_ranges, num_ranks, schedule.num_chunks),
    )


def _received_at_0(one: SendColumns, sender: Int64, part: int, num_chunks: int) -> tuple[Int64, Int64, Int64]:
    """Return (transfer of position 0, sender, number), for each transfer that brought one of its chunks."""
    step, channel = one.step[one.unit_transfer], one.channel[one.unit_transfer]
    earlier = previous_of_same(channel, one.unit_chunk)
    arriving = (one.unit_chunk + sender[one.unit_transfer] * part) % num_chunks
    users, received = received_before(one.unit_chunk, step, earlier, arriving, step, one.unit_adds)
    number = one.unit_transfer[received]
    return one.unit_transfer[users], sender[number], number


def _repeated(
    rows: Int64, senders: Int64, numbers: Int64, shape: tuple[int, int], sends: int | None = None
) -> tuple[Int64, Int32]:
    """Return the CSR of position 0's pairs (row, (sender, number)), repeated with each position added to the sender.

    ``shape``: rows per position, and positions. ``sends``: transfers per position, if different from the rows.
    """
    num_rows, num_ranks = shape
    k = num_rows if sends is None else sends
    own_ptr, own = csr(rows, senders * k + numbers, num_rows, max(1, k) * num_ranks)
    check_edges(len(own) * num_ranks)
    counts = np.tile(np.diff(own_ptr), num_ranks)
    ptr = pointers(counts)
    if not len(own):
        return ptr, own
    total = np.int64(k) * num_ranks
    shifted = own.astype(np.int64) + np.arange(num_ranks, dtype=np.int64)[:, None] * k
    np.subtract(shifted, total, out=shifted, where=shifted >= total)
    return ptr, shifted.astype(np.int32).ravel()


def _shifted_ranges(own: ChunkRanges, num_ranks: int, num_chunks: int) -> ChunkRanges:
    rows = len(own.chunk)
    shift = np.arange(num_ranks, dtype=np.int64)[:, None]
    ptr = np.append((own.ptr[:-1] + shift * rows).ravel(), num_ranks * rows)
    return ChunkRanges(
        ptr=ptr,
        chunk=((own.chunk + shift * (num_chunks // num_ranks)) % num_chunks).astype(np.int32).ravel(),
        count=np.tile(own.count, num_ranks),
        reduce=np.tile(own.reduce, num_ranks),
    )
