"""Collectives as frozen data: which rank of the group sends which chunk to which peer, and when.

A schedule is a function from a rank's position in its group to that rank's sends. Arrays of size (ranks x steps)
therefore exist only on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int32, Int64
from trine.errors import InputError, PlanError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sends:
    """Sends of one rank in order; every array has one entry per send.

    step: int32, collective step; a send may use data that arrived in earlier steps. peer: int32, receiver's position.
    chunk: int32, index of the chunk in the buffer. reduce: bool, whether the receiver adds (else it overwrites).
    channel: int32; a rank's sends on one channel run in sequence, channels are independent.
    count: int32, number of consecutive chunks from ``chunk`` on, wrapping from last to first; None: one each.
    message: int32; adjacent entries with the same number form one transfer and share step, peer and channel; None:
    every entry is a separate transfer.
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

#: Collectives with a root: the rank that has the data at the start, or gets it.
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "send_recv"})

#: Type of an algorithm's parameter: a number of channels, a shape, the name of another algorithm.
Parameter = int | str | tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """One collective of ``num_ranks`` ranks on a buffer of ``num_chunks`` chunks.

    ``size_bytes`` is the payload as nccl-tests counts it. Each chunk has ``chunk_bytes``, so the last one may be
    padded; ``chunk_sizes`` gives each chunk its own size instead (all_to_all_v). The kind defines the chunks' meaning:
    in all_to_all and all_to_all_v, chunk ``s * num_ranks + d`` is the block from rank s to rank d. In reduce_scatter,
    all_gather, gather and scatter, the chunks form ``num_ranks`` equal consecutive parts, and part p belongs to rank p.

    ``sends_of`` is called as ``sends_of(position, num_ranks, num_chunks, root)``. Equal schedules should share it,
    because trine caches the results. ``shift_symmetric``: the sends of position p equal the sends of position 0 with p
    added to the peer and p parts to the chunk, each modulo its number. ``symmetry`` is more general: positions are
    mixed-radix numbers with these radices, least significant first. Adding the same digits to all positions, each
    modulo its radix, maps the sends and waits of one position to another's, up to a renaming of chunks. Examples: (n,)
    on a ring, (2, 2, ..., 2) for peers p XOR 2**k. ``shift_symmetric`` implies (n,) and excludes ``symmetry``.
    ``kind``: the operation, which :mod:`trine.testing.schedule_proof` proves. ``num_switches``: reducing and
    multicasting switches (NVLS, SHARP) are positions ``num_ranks`` to ``num_ranks + num_switches - 1``.
    ``staged``: arriving data may wait in scratch memory until the receiver has sent the data it overwrites.
    ``parameters``: further inputs of the algorithm, such as its number of channels.
    ``timed_step``: the only step that takes time and uses links; in other steps ranks just wait for each other. Only
    its messages of zero bytes, or with a rate limit, have software before them. -1: all steps are ordinary messages.
    ``chunk_caps``: rate limit of a message in bytes/s, by the first chunk that it carries, 0 for no limit. Chunks are
    then kinds of messages, and equivalent positions send the same chunks.
    ``together``: messages of ``timed_step`` wait until all ranks have entered, and the collective ends on all ranks
    when the last one has arrived. Indirect waits between ranks then do not matter. Each rank has as many sends before
    ``timed_step`` as after it.
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
    """Chunks of each transfer, for schedules whose transfers carry several.

    ptr: int64[m + 1], CSR over transfers. chunk, count: int32, consecutive chunks, wrapping from last to first.
    reduce: bool, whether the receiver adds them.
    """

    ptr: Int64
    chunk: Int32
    count: Int32
    reduce: Bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ExpandedSchedule:
    """All transfers of a schedule, by rank and then in the rank's order.

    src, dst: int32[m], positions in the group. step, chunk: int32[m]; ``chunk`` is the transfer's first chunk.
    size_bytes: int64[m]. reduce: bool[m], whether the receiver adds any of the data. chunk_ranges: None if each
    transfer carries one chunk.
    entry_src, entry_dst: bool[m]; the transfer also waits until its sender, or its receiver, has entered the
    collective.
    predecessor_ptr, predecessor_idx: CSR over transfers: the transfers that must end first.
    completion_ptr, completion_idx: CSR over ranks: the transfers that must end before the collective ends on that rank.
    Empty for a rank that neither sends nor receives.
    num_switches: participating switches; their positions follow the ranks.
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
    """Sends of one position of a schedule and their dependencies; other positions are indices into ``peers``.

    peers: int32[roles], positions that it sends to or waits for, ordered by first use in the arrays below: each send's
    receiver, then its predecessors, and the completion last. Switches are numbered after the ranks.
    receiver, step: int32[m]; index into ``peers`` and collective step of each send, in order.
    size_bytes: int64[m]. entry_src, entry_dst: bool[m]; the send also waits until this position, or its receiver, has
    entered the collective. caps: int64[m], rate limit in bytes/s, 0 for no limit; None if all are unlimited.
    predecessor_ptr: int64[m + 1], CSR over its sends: the sends that must end first. predecessor_who: int32, their
    sender: index into ``peers``, or -1 for this position. predecessor_number: int32, the send's number at its sender.
    completion_who, completion_number: int32, likewise for the sends that must end before the collective ends on this
    position. Empty for a switch, and for a rank that neither sends nor receives.
    structure_key: positions with equal keys, in one or several schedules, have equal arrays except ``peers``.
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
    """Return the radix of each digit, least significant first, or None if the schedule has no valid symmetry.

    Raises InputError if ``symmetry`` does not multiply to the number of ranks, has a radix below 1, or is combined
    with switches or ``shift_symmetric``.
    """
    n, radices = schedule.num_ranks, schedule.symmetry
    if radices is not None:
        if schedule.shift_symmetric:
            raise InputError("states both symmetry and shift_symmetric, which is (n,)", field="symmetry")
        if schedule.num_switches:
            raise InputError("is stated of ranks only, but this schedule has switches", field="symmetry")
        if any(radix < 1 for radix in radices):
            raise InputError(f"a digit of {radices} has fewer than 1 value", field="symmetry")
        if prod(radices) != n:
            raise InputError(f"the digits {radices} are {prod(radices)} positions, not {n} ranks", field="symmetry")
        return radices
    if schedule.num_switches or (n > 1 and not is_shifted(schedule)):
        return None
    return (n,)


def is_shifted(schedule: Schedule) -> bool:
    """Return whether the schedule is shift-symmetric, has no switches, and divides its chunks evenly among ranks."""
    return schedule.shift_symmetric and not schedule.num_switches and schedule.num_chunks % schedule.num_ranks == 0


def moved(positions: Positions, offsets: Positions, symmetry: tuple[int, ...]) -> Int32:
    """Return ``positions`` with the digits of ``offsets`` added; arguments broadcast."""
    positions, offsets = positions.astype(np.int32), offsets.astype(np.int32)
    if set(symmetry) <= {2}:
        return positions ^ offsets
    total, weight = np.zeros(np.broadcast_shapes(positions.shape, offsets.shape), dtype=np.int32), 1
    for radix in symmetry:
        digit = positions // weight % radix + offsets // weight % radix
        np.subtract(digit, radix, out=digit, where=digit >= radix)
        digit *= weight
        total += digit
        weight *= radix
    return total


def opposite(positions: Positions, symmetry: tuple[int, ...]) -> Int64:
    """Return the offsets that take ``positions`` back to position 0."""
    total, weight = np.zeros(positions.shape, dtype=np.int64), 1
    for radix in symmetry:
        total += -(positions.astype(np.int64) // weight) % radix * weight
        weight *= radix
    return total


def check_sent_by_ranks(schedule: Schedule) -> None:
    """Raise PlanError for a schedule with switches: in a training step only ranks send messages."""
    if schedule.num_switches:
        raise PlanError(
            f"{schedule.kind} by {schedule.algorithm} needs switches that reduce: a step has them on a library's links "
            "(NVLink, xGMI) with flows that share them (--network fair) only; leave it out of --algorithm"
        )
