"""From a schedule to its transfers and what each of them waits for.

A send waits for

- the receives of its chunk at the sender, in earlier steps, since the sender last sent that chunk on this channel,
- the sender's previous send on its channel,
- where nothing else shows that they have: its sender and its receiver to have entered the collective (a rendezvous, as
  GPU collectives need both kernels to run).
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trine.errors import InputError
from trine.model.schedule import ExpandedSchedule, Schedule, SendsOf

Index = npt.NDArray[np.int64]


def expand(schedule: Schedule) -> ExpandedSchedule:
    """List the transfers of ``schedule``, with their predecessors. The structure is cached; only sizes differ.

    Raises
    ------
    InputError: the schedule sends to a rank, or a chunk, that does not exist, or from a rank to itself.
    """
    structure = _structure(schedule.sends_of, schedule.num_ranks, schedule.num_chunks, schedule.root)
    sizes = np.full(structure.num_transfers, schedule.chunk_bytes, dtype=np.int64)
    return dataclasses.replace(structure, size_bytes=sizes)


@lru_cache(maxsize=16)
def _structure(sends_of: SendsOf, num_ranks: int, num_chunks: int, root: int) -> ExpandedSchedule:
    """Everything but the sizes, which are left at zero."""
    ranks = [sends_of(position, num_ranks, num_chunks, root) for position in range(num_ranks)]
    src = np.repeat(np.arange(num_ranks, dtype=np.int32), [len(sends.step) for sends in ranks])
    dst, step, chunk, channel = (
        np.concatenate([getattr(sends, name) for sends in ranks]) for name in ("peer", "step", "chunk", "channel")
    )
    _check_range("rank", dst, num_ranks)
    _check_range("chunk", chunk, num_chunks)
    if (src == dst).any():
        raise InputError("in this schedule a rank sends to itself")
    before = _previous_of_same(src, channel)
    users, received = _received_before(src, dst, step, chunk, channel)
    has_before = np.flatnonzero(before >= 0)
    waits_for_data = np.zeros(len(src), dtype=np.bool_)
    waits_for_data[users] = True
    ptr, idx = _csr(np.concatenate([users, has_before]), np.concatenate([received, before[has_before]]), len(src))
    on_pair = _previous_of_same(src, channel, dst)
    completion_ptr, completion_idx = _completion(src, dst, on_pair, num_ranks)
    return ExpandedSchedule(
        src=src,
        dst=dst,
        step=step,
        chunk=chunk,
        size_bytes=np.zeros(len(src), dtype=np.int64),
        reduce=np.concatenate([sends.reduce for sends in ranks]),
        # A sender that waits for data, or for its previous send, has entered: those waited for its entry.
        entry_src=(before < 0) & ~waits_for_data,
        entry_dst=on_pair < 0,
        predecessor_ptr=ptr,
        predecessor_idx=idx,
        completion_ptr=completion_ptr,
        completion_idx=completion_idx,
    )


def _check_range(name: str, values: npt.NDArray[np.int32], limit: int) -> None:
    if len(values) and (values.min() < 0 or values.max() >= limit):
        raise InputError(f"in this schedule a send names a {name} outside 0 to {limit - 1}")


def _key(*columns: npt.NDArray[np.int32]) -> Index:
    """One int64 a row that orders rows as the columns do, the first column first."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    return key


def _previous_of_same(*columns: npt.NDArray[np.int32]) -> Index:
    """For each row the last row before it with the same columns, or -1."""
    key = _key(*columns)
    order = np.argsort(key, kind="stable")
    previous = np.full(len(key), -1, dtype=np.int64)
    same = key[order[1:]] == key[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _received_before(
    src: npt.NDArray[np.int32],
    dst: npt.NDArray[np.int32],
    step: npt.NDArray[np.int32],
    chunk: npt.NDArray[np.int32],
    channel: npt.NDArray[np.int32],
) -> tuple[Index, Index]:
    """Pairs (transfer, transfer that brought its chunk to its sender in an earlier step).

    Receives that an earlier send of the same chunk on the same channel has waited for are left out.
    """
    num_steps = int(step.max(initial=0)) + 1
    num_chunks = int(chunk.max(initial=0)) + 1
    arrival = (dst.astype(np.int64) * num_chunks + chunk) * num_steps + step
    order = np.argsort(arrival, kind="stable")
    arrival = arrival[order]
    slot = (src.astype(np.int64) * num_chunks + chunk) * num_steps
    earlier = _previous_of_same(src, channel, chunk)
    since = np.where(earlier >= 0, step[earlier], 0)
    low = np.searchsorted(arrival, slot + since)
    count = np.searchsorted(arrival, slot + step) - low
    users = np.repeat(np.arange(len(src), dtype=np.int64), count)
    offset = np.arange(len(users)) - np.repeat(np.cumsum(count) - count, count)
    return users, order[np.repeat(low, count) + offset]


def _csr(rows: Index, columns: Index, num_rows: int) -> tuple[Index, npt.NDArray[np.int32]]:
    """Compressed rows of the pairs (row, column), each row's columns ascending and without repeats."""
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    if len(rows):
        keep = np.append(True, (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1]))
        rows, columns = rows[keep], columns[keep]
    ptr = np.zeros(num_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=ptr[1:])
    return ptr, columns.astype(np.int32)


def _completion(
    src: npt.NDArray[np.int32], dst: npt.NDArray[np.int32], on_pair: Index, num_ranks: int
) -> tuple[Index, npt.NDArray[np.int32]]:
    """For each rank its last sends and receives; ``on_pair`` is the one before on the same channel to the same peer."""
    last = np.ones(len(src), dtype=np.bool_)
    last[on_pair[on_pair >= 0]] = False
    ends = np.flatnonzero(last)
    return _csr(np.concatenate([src[ends], dst[ends]]).astype(np.int64), np.concatenate([ends, ends]), num_ranks)
