"""Sends and waits of single positions of a collective, without expanding all positions.

The result agrees with :func:`trine.collectives.expand`. If a schedule states a symmetry
(``shift_symmetric``, ``symmetry``), the sends of position 0 and of its senders suffice: every other position does the
same with peers moved by the symmetry. Other schedules (trees, rooted ones, ranks beyond a power of two, switches) are
expanded once, and a comparison finds the positions with identical behaviour.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.collectives.dependencies import SendColumns, columns_of, csr, previous_of_same, received_before, stable_order
from trine.collectives.expand import MANY_RANKS, last_of_pairs, structure, transfer_bytes, without_sizes
from trine.collectives.schedule import ExpandedSchedule, RankSends, Schedule, is_shifted, moved, opposite, symmetry_of
from trine.common.arrays import Bool, Int32, Int64, distinct, pointers, row_of, row_sums
from trine.errors import InputError

# Patterns of sends and dependencies that are independent of the position, that is, of the rank or switch.
#
# Each position numbers its peers in the order in which its sends first name them. The predecessors of a send form a
# set, sorted by the predecessor's send number, then by position; schedules list children in the same order. Positions
# with the same pattern behave alike toward their peers.

#: Sizes of a pattern's sends, which are not known yet.
NO_SIZES = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitPattern:
    """All sends of some positions, and the sends that they wait for, named by position and send number.

    src, dst, step, units, entry_src, entry_dst: one entry per send, by position, then in the position's order.
    ``units``: number of chunks in the send. ``chunk``: the first chunk if chunks are kinds of messages, else 0.
    user, sender, number: send ``user`` (a row of the above) waits for send ``number`` of position ``sender``.
    end_*: the collective ends on position ``end_position`` after send ``end_number`` of position ``end_sender``.
    """

    src: Int64
    dst: Int64
    step: Int32
    units: Int64
    chunk: Int32
    entry_src: Bool
    entry_dst: Bool
    user: Int64
    sender: Int64
    number: Int64
    end_position: Int64
    end_sender: Int64
    end_number: Int64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SendPattern:
    """The sends of a position without their sizes; ``units``: int64[m], chunks per send; ``chunk``: int32[m], the kind
    of message of each send, if chunks are kinds.
    """

    sends: RankSends
    units: Int64
    chunk: Int32


class _PositionTables(NamedTuple):
    """The rows of one position in the tables of SendPatterns."""

    sends: Int32
    waits: Int32
    ends: Int32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SendPatterns:
    """The patterns of all positions as CSR tables: rows ptr[p] to ptr[p + 1] belong to position or send p.

    sends: int32[m, 6]: receiver, step, chunks, entries (1 at the sender, 2 at the receiver), number of predecessors,
    kind. waits: int32[e, 2] by send and ends: int32[c, 2] by position: sender (index into peers, -1 itself), number.
    """

    sends_ptr: Int64
    sends: Int32
    waits_ptr: Int64
    waits: Int32
    ends_ptr: Int64
    ends: Int32
    peers_ptr: Int64
    peers: Int32

    def key(self, position: int) -> bytes:
        """Return a key that is equal for positions with the same pattern."""
        digest = hashlib.blake2b(digest_size=16)
        for table in self._tables(position):
            digest.update(len(table).to_bytes(8, "little"))
            digest.update(table.tobytes())
        return digest.digest()

    def pattern(self, position: int) -> SendPattern:
        """Return the pattern of a position, as copies of its arrays."""
        sends, waits, ends = self._tables(position)
        sender, number = waits.T.copy()
        end_sender, end_number = ends.T.copy()
        position_sends = RankSends(
            peers=self.peers[self.peers_ptr[position] : self.peers_ptr[position + 1]].copy(),
            receiver=sends[:, 0].copy(), step=sends[:, 1].copy(), size_bytes=NO_SIZES,
            entry_src=(sends[:, 3] & 1) != 0, entry_dst=(sends[:, 3] & 2) != 0, predecessor_ptr=pointers(sends[:, 4]),
            predecessor_who=sender, predecessor_number=number, completion_who=end_sender,
            completion_number=end_number, structure_key=self.key(position),
        )  # fmt: skip
        return SendPattern(sends=position_sends, units=sends[:, 2].astype(np.int64), chunk=sends[:, 5].copy())

    def _tables(self, position: int) -> _PositionTables:
        first, last = self.sends_ptr[position], self.sends_ptr[position + 1]
        return _PositionTables(
            self.sends[first:last],
            self.waits[self.waits_ptr[first] : self.waits_ptr[last]],
            self.ends[self.ends_ptr[position] : self.ends_ptr[position + 1]],
        )


def patterns_of(waits: WaitPattern, num_positions: int) -> SendPatterns:
    """Return the patterns of ``num_positions`` ranks and switches; ``waits`` may omit positions without sends."""
    m, e = len(waits.src), len(waits.user)
    wait_order = _canonical(waits.user, waits.src[waits.user], waits.sender, waits.number)
    end_order = _canonical(waits.end_position, waits.end_position, waits.end_sender, waits.end_number)
    user, end_position = waits.user[wait_order], waits.end_position[end_order]
    sends_ptr = _pointers(waits.src, num_positions)
    # Order of first use: the receiver of each send, then its predecessors; last, the sends that complete a position.
    order = stable_order(np.concatenate([3 * np.arange(m) + 1, 3 * user + 2, 3 * sends_ptr[end_position + 1]]))
    position = np.concatenate([waits.src, waits.src[user], end_position])
    peer = np.concatenate([waits.dst, waits.sender[wait_order], waits.end_sender[end_order]])
    numbered = _number_peers(position[order], peer[order], num_positions)
    peer_idx = np.empty_like(numbered.number)
    peer_idx[order] = numbered.number
    counts = np.bincount(user, minlength=m)
    entries = waits.entry_src + 2 * waits.entry_dst.astype(np.int64)
    return SendPatterns(
        sends_ptr=sends_ptr,
        sends=np.stack([peer_idx[:m], waits.step, waits.units, entries, counts, waits.chunk], axis=1).astype(np.int32),
        waits_ptr=_pointers(user, m),
        waits=np.stack([peer_idx[m : m + e], waits.number[wait_order]], axis=1).astype(np.int32),
        ends_ptr=_pointers(end_position, num_positions),
        ends=np.stack([peer_idx[m + e :], waits.end_number[end_order]], axis=1).astype(np.int32),
        peers_ptr=numbered.ptr,
        peers=numbered.peers,
    )


def _canonical(row: Int64, position: Int64, sender: Int64, number: Int64) -> Int64:
    """Return the order of pairs (sender, number): by row, the position's sends first, then by number and sender."""
    return np.lexsort((sender, number, sender != position, row))


def _pointers(rows: Int64, num_rows: int) -> Int64:
    return pointers(np.bincount(rows, minlength=num_rows))


class _PeerNumbers(NamedTuple):
    """Peers of all positions, numbered by first use.

    number: int64[entries], the peer of each entry, -1 for the position itself. ptr, peers: the peers as CSR.
    """

    number: Int64
    ptr: Int64
    peers: Int32


def _number_peers(position: Int64, peer: Int64, num_positions: int) -> _PeerNumbers:
    """Sort each position's peers by first use.

    Entries are sorted by position, then by order of use.
    """
    is_peer = np.flatnonzero(peer != position)
    pairs, first, inverse = np.unique(
        position[is_peer] * num_positions + peer[is_peer], return_index=True, return_inverse=True
    )
    by_use = np.argsort(first)
    rank = np.empty_like(by_use)
    rank[by_use] = np.arange(len(pairs))
    ptr = _pointers(pairs // num_positions, num_positions)
    number = np.full(len(peer), -1, dtype=np.int64)
    number[is_peer] = (rank - ptr[pairs // num_positions])[inverse]
    return _PeerNumbers(number, ptr, (pairs[by_use] % num_positions).astype(np.int32))


#: Chunks, the number of the transfer that delivers each, and whether each is added to the receiver's data.
Arrivals = tuple[Int64, Int64, npt.NDArray[np.bool_]]


def waits_of_all(schedule: Schedule) -> WaitPattern:
    """Return the waits of every position, by expanding the whole schedule."""
    expanded = structure(schedule)
    m, src = expanded.num_transfers, expanded.src.astype(np.int64)
    first = np.searchsorted(src, np.arange(schedule.num_ranks + schedule.num_switches))
    number = np.arange(m) - first[src]
    end_position = row_of(expanded.completion_ptr)
    return WaitPattern(
        src=src, dst=expanded.dst.astype(np.int64), step=expanded.step, units=_units(expanded),
        chunk=_kinds(schedule, expanded.chunk), entry_src=expanded.entry_src, entry_dst=expanded.entry_dst,
        user=row_of(expanded.predecessor_ptr), sender=src[expanded.predecessor_idx],
        number=number[expanded.predecessor_idx], end_position=end_position, end_sender=src[expanded.completion_idx],
        end_number=number[expanded.completion_idx],
    )  # fmt: skip


def _kinds(schedule: Schedule, chunk: Int32) -> Int32:
    return np.zeros_like(chunk) if schedule.chunk_caps is None else chunk


def _units(expanded: ExpandedSchedule) -> Int64:
    """Return the number of chunks in each transfer, int64[transfers]."""
    if expanded.chunk_ranges is None:
        return np.ones(expanded.num_transfers, dtype=np.int64)
    return row_sums(expanded.chunk_ranges.count, expanded.chunk_ranges.ptr)


def waits_of_first(schedule: Schedule, symmetry: tuple[int, ...]) -> WaitPattern:
    """Return the waits of position 0, from its own sends and the sends that arrive there.

    Send k of a position goes to the receiver of position 0's send k, shifted by the position's digits. So exactly one
    position's send k arrives at position 0: the position opposite to the receiver of position 0's send k.
    """
    sends = columns_of(schedule, range(1))
    sender = opposite(sends.dst, symmetry)
    chunk, arrival, adds = _arrivals(schedule, sends, sender, symmetry)
    step, channel = sends.step[sends.unit_transfer], sends.channel[sends.unit_transfer]
    previous_use = previous_of_same(channel, sends.unit_chunk)
    units, arrivals = received_before(sends.unit_chunk, step, previous_use, chunk, sends.step[arrival], adds)
    previous, pair_previous = previous_of_same(sends.channel), previous_of_same(sends.channel, sends.dst)
    user, is_remote, number = _dependencies(previous, sends.unit_transfer[units], arrival[arrivals])
    waits = np.zeros(len(previous), dtype=np.bool_)
    waits[user] = True
    ends = last_of_pairs(pair_previous)
    return WaitPattern(
        src=sends.src.astype(np.int64), dst=sends.dst.astype(np.int64), step=sends.step,
        units=np.bincount(sends.unit_transfer, minlength=len(sends.src)), chunk=_kinds(schedule, sends.chunk),
        entry_src=~waits, entry_dst=pair_previous < 0, user=user, sender=np.where(is_remote, sender[number], 0),
        number=number, end_position=np.zeros(2 * len(ends), dtype=np.int64),
        end_sender=np.concatenate([np.zeros_like(ends), sender[ends]]), end_number=np.concatenate([ends, ends]),
    )  # fmt: skip


class _Dependencies(NamedTuple):
    """Each dependency of a send once; one row per dependency.

    user: the waiting send. is_remote: whether it waits for another position. number: of the awaited send.
    """

    user: Int64
    is_remote: npt.NDArray[np.bool_]
    number: Int64


def _dependencies(previous: Int64, users: Int64, arrivals: Int64) -> _Dependencies:
    """Return each dependency once, sorted by the waiting send."""
    followers, k = np.flatnonzero(previous >= 0), len(previous)
    rows, columns = np.concatenate([users, followers]), np.concatenate([arrivals + k, previous[followers]])
    ptr, idx = csr(rows, columns, k, 2 * k)
    numbers = idx.astype(np.int64)
    return _Dependencies(row_of(ptr), numbers >= k, np.where(numbers >= k, numbers - k, numbers))


def _arrivals(schedule: Schedule, sends: SendColumns, sender: Int64, symmetry: tuple[int, ...]) -> Arrivals:
    """Return the arrivals at position 0 before its last step; the last step's sends cannot use its arrivals."""
    last = int(sends.step.max(initial=0))
    if is_shifted(schedule):
        units = np.flatnonzero(sends.step[sends.unit_transfer] < last)
        number, part = sends.unit_transfer[units], schedule.num_chunks // schedule.num_ranks
        return (sends.unit_chunk[units] + sender[number] * part) % schedule.num_chunks, number, sends.unit_adds[units]
    parts = [_arrivals_from(schedule, sends, sender, int(p), symmetry) for p in distinct(sender[sends.step < last])]
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty.astype(np.bool_)
    chunk, number, adds = (np.concatenate(column) for column in zip(*parts, strict=True))
    return chunk, number, adds


def _arrivals_from(
    schedule: Schedule, sends: SendColumns, sender: Int64, position: int, symmetry: tuple[int, ...]
) -> Arrivals:
    """Return the arrivals at position 0 from ``position``. Raises InputError if the declared symmetry does not hold."""
    peer_sends = columns_of(schedule, range(position, position + 1))
    is_moved = (
        np.array_equal(peer_sends.step, sends.step)
        and np.array_equal(peer_sends.channel, sends.channel)
        and np.array_equal(peer_sends.dst == 0, sender == position)
    )
    if not is_moved:
        raise InputError(
            f"the {schedule.algorithm} {schedule.kind} of {schedule.num_ranks} ranks declares the symmetry "
            f"{symmetry}, but the sends of rank {position} are not the moved sends of rank 0"
        )
    units = np.flatnonzero(peer_sends.dst[peer_sends.unit_transfer] == 0)
    return peer_sends.unit_chunk[units], peer_sends.unit_transfer[units], peer_sends.unit_adds[units]


Positions = npt.NDArray[np.integer] | Sequence[int]


#: Returns the peers of positions of one structure: int32[positions, roles].
_Peers = Callable[[Int64], Int32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _MovedPeers:
    """Peers of a symmetric schedule: position 0's peers, moved by the symmetry."""

    first_peers: Int32
    symmetry: tuple[int, ...]

    def __call__(self, positions: Int64) -> Int32:
        return moved(self.first_peers, positions[:, None], self.symmetry)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _ListedPeers:
    """Explicit lists of each position's peers (CSR)."""

    ptr: Int64
    peers: Int32

    def __call__(self, positions: Int64) -> Int32:
        if not len(positions):
            return np.zeros((0, 0), dtype=np.int32)
        roles = np.arange(self.ptr[positions[0] + 1] - self.ptr[positions[0]])
        return self.peers[self.ptr[positions][:, None] + roles]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LocalStructures:
    """Sends and waits of all positions of a schedule, each distinct structure once.

    structure_of: int32[ranks and switches], index into ``structures``. structures: each with the peers of the first
    position that has it; their keys are distinct. A symmetric schedule of equal chunks has one.
    """

    structure_of: Int32
    structures: tuple[RankSends, ...]
    _peers: _Peers

    def peers_of(self, positions: Positions) -> Int32:
        """Return int32[positions, roles]: peers of ``positions``, all of one structure, in the order of its ``peers``.

        Raises InputError: an unknown position, or positions of several structures.
        """
        rows = np.asarray(positions, dtype=np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self.structure_of)):
            raise InputError(f"positions are from 0 to {len(self.structure_of) - 1}, got {rows.min()} to {rows.max()}")
        if (self.structure_of[rows] != self.structure_of[rows[:1]]).any():
            raise InputError("peers can be tabled for positions of one structure only")
        return self._peers(rows)


def rank_sends(schedule: Schedule, position: int) -> RankSends:
    """Return the sends and waits of ``position`` (switches follow the ranks). Arrays are shared between positions.

    With ``chunk_sizes`` each call reads all of them; :func:`local_structures` reads them once for all positions.

    Raises InputError: an unknown position; and as :func:`trine.collectives.expand`.
    """
    if not 0 <= position < schedule.num_ranks + schedule.num_switches:
        raise InputError(f"positions are from 0 to {schedule.num_ranks + schedule.num_switches - 1}, got {position}")
    base = _structures(schedule)
    pattern = base.patterns[base.structure_of[position]]
    peers = base.peers(np.array([position]))[0]
    if schedule.chunk_sizes is None:
        return dataclasses.replace(_equal_chunks(pattern, schedule.chunk_bytes), peers=peers)
    if schedule.chunk_caps is not None:
        return dataclasses.replace(_size_by_kind(pattern, schedule), peers=peers)
    sends = columns_of(schedule, range(position, position + 1))
    return dataclasses.replace(_resize(pattern, transfer_bytes(schedule, sends.chunk, sends.chunk_ranges)), peers=peers)


def local_structures(schedule: Schedule) -> LocalStructures:
    """Return the sends and waits of every position.

    With ``chunk_sizes`` the sizes of sends also distinguish positions, so that all sends are listed.

    Raises InputError: as :func:`trine.collectives.expand`.
    """
    base = _structures(schedule)
    if schedule.chunk_sizes is not None and schedule.chunk_caps is None:
        return _distinguish_sizes(schedule, base)
    if schedule.chunk_sizes is not None:
        structures = tuple(_size_by_kind(pattern, schedule) for pattern in base.patterns)
    else:
        structures = tuple(_equal_chunks(pattern, schedule.chunk_bytes) for pattern in base.patterns)
    return LocalStructures(structure_of=base.structure_of, structures=structures, _peers=base.peers)


# -- structures without sizes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Structures:
    structure_of: Int32
    patterns: tuple[SendPattern, ...]
    peers: _Peers


def _structures(schedule: Schedule) -> _Structures:
    """Return the cached part of a schedule that does not depend on sizes, as for expansions."""
    key = without_sizes(schedule)
    if symmetry_of(schedule) is not None:
        return _cached_symmetric(key)
    return (_cached_structures if schedule.num_ranks <= MANY_RANKS else _cached_large)(key)


@lru_cache(maxsize=64)
def _cached_symmetric(schedule: Schedule) -> _Structures:
    symmetry = symmetry_of(schedule)
    assert symmetry is not None
    num_ranks = schedule.num_ranks
    pattern = patterns_of(waits_of_first(schedule, symmetry), num_ranks).pattern(0)
    return _Structures(
        structure_of=np.zeros(num_ranks, dtype=np.int32),
        patterns=(pattern,),
        peers=_MovedPeers(first_peers=pattern.sends.peers, symmetry=symmetry),
    )


def _compare_positions(schedule: Schedule) -> _Structures:
    """Return the distinct patterns of all positions."""
    num_positions = schedule.num_ranks + schedule.num_switches
    table = patterns_of(waits_of_all(schedule), num_positions)
    index: dict[bytes, int] = {}
    structure_of = np.array([index.setdefault(table.key(p), len(index)) for p in range(num_positions)], dtype=np.int32)
    firsts = np.unique(structure_of, return_index=True)[1]
    return _Structures(
        structure_of=structure_of,
        patterns=tuple(table.pattern(int(position)) for position in firsts),
        peers=_ListedPeers(ptr=table.peers_ptr, peers=table.peers),
    )


_cached_structures = lru_cache(maxsize=64)(_compare_positions)
_cached_large = lru_cache(maxsize=8)(_compare_positions)


# -- sizes -------------------------------------------------------------------------------------------------------------


def _equal_chunks(pattern: SendPattern, chunk_bytes: int) -> RankSends:
    key = pattern.sends.structure_key + b"=" + chunk_bytes.to_bytes(8, "little")
    return dataclasses.replace(pattern.sends, size_bytes=pattern.units * chunk_bytes, structure_key=key)


def _size_by_kind(pattern: SendPattern, schedule: Schedule) -> RankSends:
    """Return sends with sizes and limits for schedules whose chunks are kinds of messages."""
    table = np.array([schedule.chunk_sizes, schedule.chunk_caps], np.int64)
    sizes, caps = table[:, pattern.chunk]
    key = pattern.sends.structure_key + b"/" + hashlib.blake2b(table.tobytes(), digest_size=16).digest()
    return dataclasses.replace(pattern.sends, size_bytes=sizes, caps=caps, structure_key=key)


def _resize(pattern: SendPattern, size_bytes: Int64) -> RankSends:
    key = pattern.sends.structure_key + b":" + hashlib.blake2b(size_bytes.tobytes(), digest_size=16).digest()
    return dataclasses.replace(pattern.sends, size_bytes=size_bytes, structure_key=key)


def _distinguish_sizes(schedule: Schedule, base: _Structures) -> LocalStructures:
    """Return the structures of all positions, distinguished by sizes as well."""
    num_positions = len(base.structure_of)
    columns = columns_of(schedule, range(num_positions))
    sizes = transfer_bytes(schedule, columns.chunk, columns.chunk_ranges)
    ptr = np.searchsorted(columns.src, np.arange(num_positions + 1))
    number: dict[bytes, int] = {}
    structures: list[RankSends] = []
    structure_of = np.empty(num_positions, dtype=np.int32)
    for position in range(num_positions):
        sends = _resize(base.patterns[base.structure_of[position]], sizes[ptr[position] : ptr[position + 1]])
        structure_of[position] = number.setdefault(sends.structure_key, len(number))
        if len(structures) < len(number):
            structures.append(dataclasses.replace(sends, peers=base.peers(np.array([position]))[0]))
    return LocalStructures(structure_of=structure_of, structures=tuple(structures), _peers=base.peers)
