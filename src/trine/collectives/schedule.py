"""A collective as data: which rank of the group sends which chunk to whom, and when. Frozen data without logic.

A schedule is a function from a rank's position in its group to that rank's sends, so that nothing of size
(ranks x steps) exists until somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from trine.arrays import Bool, Int32, Int64
from trine.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sends:
    """What one rank sends, in the order in which it sends it; every array has one entry a send.

    step: int32, collective step; a send may use what arrived in earlier steps. peer: int32, position of the receiver.
    chunk: int32, index of the chunk of the buffer. reduce: bool, whether the receiver adds (else it overwrites).
    channel: int32; sends of one rank on one channel go one after the other, channels are independent.
    count: int32, how many consecutive chunks from ``chunk`` on, the first following the last; None: one each.
    message: int32; neighbouring entries with the same number travel as one transfer and have one step, peer and
    channel; None: every entry is a transfer of its own.
    """

    step: Int32
    peer: Int32
    chunk: Int32
    reduce: Bool
    channel: Int32
    count: Int32 | None = None
    message: Int32 | None = None


#: position in the group, number of ranks, number of chunks, root -> the sends of that position
SendsOf = Callable[[int, int, int, int], Sends]

#: What a parameter of an algorithm may be: a number of channels, a shape, the name of another algorithm.
Parameter = int | str | tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """One collective of ``num_ranks`` ranks on a buffer of ``num_chunks`` chunks.

    ``size_bytes`` is the payload as nccl-tests counts it. Chunks have ``chunk_bytes`` each, so that the last one may be
    padded; ``chunk_sizes`` gives each chunk its own size instead (all_to_all_v). What the chunks are depends on the
    kind: in all_to_all and all_to_all_v chunk ``s * num_ranks + d`` is the block from rank s to rank d; where every
    rank has a part of its own (reduce_scatter, all_gather, gather, scatter), rank p has the p-th part of equally many
    consecutive chunks.

    ``sends_of`` is called as ``sends_of(position, num_ranks, num_chunks, root)``; equal schedules should have equal
    ones, since what follows from them is cached. ``shift_symmetric`` states that the sends of position p are those of
    position 0 with p added to the peer and p parts to the chunk, both modulo their number. ``symmetry`` states more
    generally that positions are numbers whose digits have these numbers of values, the least significant first, and
    that adding any digits to all positions, each modulo its values, maps what one position sends and waits for onto
    what another does, chunks being renamed somehow: (n,) on a ring, (2, 2, ..., 2) for peers p XOR 2**k. It is for
    schedules that are not ``shift_symmetric``, which says (n,) already. ``kind`` says what the
    schedule claims to do, which :mod:`trine.testing.schedule_proof` proves. ``num_switches``: switches that add up and
    multicast (NVLS, SHARP) take part as positions ``num_ranks`` to ``num_ranks + num_switches - 1``. ``staged``: what
    arrives may have to wait in scratch memory until the receiver has sent what it overwrites. ``parameters``: what the
    algorithm was asked for besides, such as its number of channels. ``timed_step``: in steps other than this one ranks
    only wait for each other, in no time and over no link, and of this step's messages those of no bytes, or with a
    limit on their rate, alone have software before them (-1: all are messages alike). ``chunk_caps``: bytes/s at most
    of a message, by the first chunk that it carries, 0 for no limit; then chunks are kinds of messages, and positions
    that do alike send the same chunks. ``together``: what is sent in ``timed_step`` waits until all ranks have entered,
    and the collective ends on all ranks when the last of it has arrived, so that whom a rank waits for by way of whom
    does not matter; of each rank the sends before ``timed_step`` are as many as those after it.
    """

    kind: str
    algorithm: str
    num_ranks: int
    num_chunks: int
    chunk_bytes: int
    size_bytes: int
    sends_of: SendsOf
    root: int = 0
    shift_symmetric: bool = False
    num_switches: int = 0
    staged: bool = False
    chunk_sizes: tuple[int, ...] | None = None
    parameters: tuple[tuple[str, Parameter], ...] = ()
    symmetry: tuple[int, ...] | None = None
    timed_step: int = -1
    chunk_caps: tuple[int, ...] | None = None
    together: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChunkRanges:
    """What each transfer carries, where that is more than one chunk.

    ptr: int64[m + 1], CSR over transfers. chunk, count: int32, consecutive chunks, the first following the last.
    reduce: bool, whether the receiver adds them.
    """

    ptr: Int64
    chunk: Int32
    count: Int32
    reduce: Bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ExpandedSchedule:
    """All transfers of a schedule, ranks in order and each rank's sends in its order.

    src, dst: int32[m], positions in the group. step, chunk: int32[m]; ``chunk`` is the first one that it carries.
    size_bytes: int64[m]. reduce: bool[m], whether the receiver adds any of it. chunk_ranges: None where each
    carries one chunk.
    entry_src, entry_dst: bool[m]; the transfer also waits until its sender, or its receiver, has entered the
    collective.
    predecessor_ptr, predecessor_idx: CSR over transfers: the transfers that must have ended before.
    completion_ptr, completion_idx: CSR over ranks: the transfers that must have ended before the collective has ended
    on that rank. Empty for a rank that neither sends nor receives.
    num_switches: switches that take part, as positions after those of the ranks.
    """

    src: Int32
    dst: Int32
    step: Int32
    chunk: Int32
    size_bytes: Int64
    reduce: Bool
    entry_src: Bool
    entry_dst: Bool
    predecessor_ptr: Int64
    predecessor_idx: Int32
    completion_ptr: Int64
    completion_idx: Int32
    chunk_ranges: ChunkRanges | None = None
    num_switches: int = 0

    @property
    def num_transfers(self) -> int:
        return len(self.src)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankSends:
    """What one position of a schedule sends, and what it waits for; other positions are named by their place in peers.

    peers: int32[roles], positions that it sends to or waits for, in the order in which the arrays below first name
    them (of each send its receiver, then its predecessors; the completion last); switches follow the ranks in number.
    receiver, step: int32[m]; index into ``peers``, and collective step, of each of its sends in its order.
    size_bytes: int64[m]. entry_src, entry_dst: bool[m]; the send also waits until this position, or its receiver, has
    entered the collective. caps: int64[m], bytes/s at most, 0 for no limit; None where none has one.
    predecessor_ptr: int64[m + 1], CSR over its sends: sends that must have ended before. predecessor_who: int32, whose:
    index into ``peers``, or -1 for its own. predecessor_number: int32, which of that position's sends, in its order.
    completion_who, completion_number: int32, in the same way the sends that must have ended before the collective has
    ended on this position. Empty for a switch, and for a rank that neither sends nor receives.
    structure_key: positions with equal keys, of one schedule or of several, have equal arrays except ``peers``.
    """

    peers: Int32
    receiver: Int32
    step: Int32
    size_bytes: Int64
    entry_src: Bool
    entry_dst: Bool
    predecessor_ptr: Int64
    predecessor_who: Int32
    predecessor_number: Int32
    completion_who: Int32
    completion_number: Int32
    structure_key: bytes
    caps: Int64 | None = None

    @property
    def num_sends(self) -> int:
        return len(self.receiver)


Positions = npt.NDArray[np.integer]


def symmetry_of(schedule: Schedule) -> tuple[int, ...] | None:
    """Values of each digit, the least significant first; None where the schedule states no symmetry that can hold.

    Raises InputError: ``symmetry`` does not multiply to the number of ranks, has a digit without values, or is stated
    of a schedule with switches or besides ``shift_symmetric``.
    """
    n, stated = schedule.num_ranks, schedule.symmetry
    if stated is not None:
        if schedule.shift_symmetric:
            raise InputError("states both symmetry and shift_symmetric, which is (n,)", field="symmetry")
        if schedule.num_switches:
            raise InputError("is stated of ranks only, but this schedule has switches", field="symmetry")
        if any(values < 1 for values in stated):
            raise InputError(f"a digit of {stated} has fewer than 1 value", field="symmetry")
        if prod(stated) != n:
            raise InputError(f"the digits {stated} are {prod(stated)} positions, not {n} ranks", field="symmetry")
        return stated
    if schedule.num_switches or (n > 1 and not is_shifted(schedule)):
        return None
    return (n,)


def is_shifted(schedule: Schedule) -> bool:
    """Whether it states that every rank does as rank 0, and has equally many chunks for each."""
    return schedule.shift_symmetric and not schedule.num_switches and schedule.num_chunks % schedule.num_ranks == 0


def moved(positions: Positions, by: Positions, symmetry: tuple[int, ...]) -> Int32:
    """``positions`` with the digits of ``by`` added; arguments broadcast."""
    positions, by = positions.astype(np.int32), by.astype(np.int32)
    if set(symmetry) <= {2}:
        return positions ^ by
    total, weight = np.zeros(np.broadcast_shapes(positions.shape, by.shape), dtype=np.int32), 1
    for values in symmetry:
        digit = positions // weight % values + by // weight % values
        np.subtract(digit, values, out=digit, where=digit >= values)
        digit *= weight
        total += digit
        weight *= values
    return total


def opposite(positions: Positions, symmetry: tuple[int, ...]) -> Int64:
    """What leads back to position 0 when added to ``positions``."""
    total, weight = np.zeros(positions.shape, dtype=np.int64), 1
    for values in symmetry:
        total += -(positions.astype(np.int64) // weight) % values * weight
        weight *= values
    return total
