"""What the sends of a schedule wait for: of position 0 where all positions do alike, else of every position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.collectives.columns import Columns, columns_of
from trine.collectives.dependencies import csr, previous_of_same, received_before
from trine.collectives.expand import last_of_pairs, structure
from trine.collectives.local_form import Waits
from trine.collectives.schedule import ExpandedSchedule, Schedule
from trine.collectives.symmetry import is_shifted, opposite
from trine.errors import InputError

#: Chunks, the number of the transfer that brings each, and whether they are added.
Arrivals = tuple[Int64, Int64, npt.NDArray[np.bool_]]


def waits_of_all(schedule: Schedule) -> Waits:
    """Of every position, by expanding the whole schedule."""
    whole = structure(schedule)
    m, src = whole.num_transfers, whole.src.astype(np.int64)
    first = np.searchsorted(src, np.arange(schedule.num_ranks + schedule.num_agents))
    number = np.arange(m) - first[src]
    ended = np.repeat(np.arange(schedule.num_ranks), np.diff(whole.completion_ptr))
    return Waits(
        src=src,
        dst=whole.dst.astype(np.int64),
        step=whole.step,
        units=_units(whole),
        entry_src=whole.entry_src,
        entry_dst=whole.entry_dst,
        user=np.repeat(np.arange(m), np.diff(whole.predecessor_ptr)),
        who=src[whole.predecessor_idx],
        number=number[whole.predecessor_idx],
        ended=ended,
        ended_who=src[whole.completion_idx],
        ended_number=number[whole.completion_idx],
    )


def _units(whole: ExpandedSchedule) -> Int64:
    """int64[transfers]: chunks that each carries."""
    if whole.pieces is None:
        return np.ones(whole.num_transfers, dtype=np.int64)
    totals = np.concatenate(([0], np.cumsum(whole.pieces.count, dtype=np.int64)))
    return np.diff(totals[whole.pieces.ptr])


def waits_of_first(schedule: Schedule, symmetry: tuple[int, ...]) -> Waits:
    """Of position 0, from its own sends and those of the positions that send to it.

    Send k of a position goes where send k of position 0 goes, moved by the position's digits. So exactly one position
    has a send k that arrives at position 0: the one opposite of its receiver.
    """
    own = columns_of(schedule, range(1))
    sender = opposite(own.dst, symmetry)
    chunk, arrival, adds = _arrivals(schedule, own, sender, symmetry)
    step, channel = own.step[own.unit_transfer], own.channel[own.unit_transfer]
    earlier = previous_of_same(channel, own.unit_chunk)
    units, received = received_before(own.unit_chunk, step, earlier, chunk, own.step[arrival], adds)
    before, on_pair = previous_of_same(own.channel), previous_of_same(own.channel, own.dst)
    user, is_other, number = _pairs(before, own.unit_transfer[units], arrival[received])
    waits = np.zeros(len(before), dtype=np.bool_)
    waits[user] = True
    ends = last_of_pairs(on_pair)
    return Waits(
        src=own.src.astype(np.int64),
        dst=own.dst.astype(np.int64),
        step=own.step,
        units=np.bincount(own.unit_transfer, minlength=len(own.src)),
        entry_src=~waits,
        entry_dst=on_pair < 0,
        user=user,
        who=np.where(is_other, sender[number], 0),
        number=number,
        ended=np.zeros(2 * len(ends), dtype=np.int64),
        ended_who=np.concatenate([np.zeros_like(ends), sender[ends]]),
        ended_number=np.concatenate([ends, ends]),
    )


def _pairs(before: Int64, users: Int64, received: Int64) -> tuple[Int64, npt.NDArray[np.bool_], Int64]:
    """Each pair once: the waiting send, whether the other is another position's, and the other's number."""
    follows, k = np.flatnonzero(before >= 0), len(before)
    rows, columns = np.concatenate([users, follows]), np.concatenate([received + k, before[follows]])
    ptr, idx = csr(rows, columns, k, 2 * k)
    numbers = idx.astype(np.int64)
    return np.repeat(np.arange(k), np.diff(ptr)), numbers >= k, np.where(numbers >= k, numbers - k, numbers)


def _arrivals(schedule: Schedule, own: Columns, sender: Int64, symmetry: tuple[int, ...]) -> Arrivals:
    """What arrives at position 0 before its last step; sends of the last step cannot use what arrives in it."""
    last = int(own.step.max(initial=0))
    if is_shifted(schedule):
        kept = np.flatnonzero(own.step[own.unit_transfer] < last)
        number, part = own.unit_transfer[kept], schedule.num_chunks // schedule.num_ranks
        return (own.unit_chunk[kept] + sender[number] * part) % schedule.num_chunks, number, own.unit_adds[kept]
    parts = [_arrivals_from(schedule, own, sender, int(one), symmetry) for one in np.unique(sender[own.step < last])]
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing.astype(np.bool_)
    chunk, number, adds = (np.concatenate(column) for column in zip(*parts, strict=True))
    return chunk, number, adds


def _arrivals_from(
    schedule: Schedule, own: Columns, sender: Int64, position: int, symmetry: tuple[int, ...]
) -> Arrivals:
    """What arrives at position 0 from ``position``. Raises InputError if that does not send as position 0 does."""
    theirs = columns_of(schedule, range(position, position + 1))
    alike = (
        np.array_equal(theirs.step, own.step)
        and np.array_equal(theirs.channel, own.channel)
        and np.array_equal(theirs.dst == 0, sender == position)
    )
    if not alike:
        raise InputError(
            f"the {schedule.algorithm} {schedule.kind} of {schedule.num_ranks} ranks says that it has the symmetry "
            f"{symmetry}, but the sends of rank {position} are not those of rank 0 moved"
        )
    kept = np.flatnonzero(theirs.dst[theirs.unit_transfer] == 0)
    return theirs.unit_chunk[kept], theirs.unit_transfer[kept], theirs.unit_adds[kept]
