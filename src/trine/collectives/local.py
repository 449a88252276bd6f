"""Sends and waits of single positions of a collective, without expanding all positions.

The result agrees with :func:`trine.collectives.expand`. If a schedule states a symmetry
(``shift_symmetric``, ``symmetry``), the sends of position 0 and of its senders suffice: every other position does the
same with peers moved by the symmetry. Other schedules (trees, rooted ones, ranks beyond a power of two, switches) are
expanded once, and a comparison finds the positions with identical behaviour.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trine.collectives.dependencies import columns_of
from trine.collectives.expand import MANY_RANKS, transfer_bytes, without_sizes
from trine.collectives.schedule import RankSends, Schedule, moved, symmetry_of
from trine.collectives.send_patterns import SendPattern, patterns_of, waits_of_all, waits_of_first
from trine.common.arrays import Int32, Int64
from trine.errors import InputError

Positions = npt.NDArray[np.integer] | Sequence[int]


class _Peers(Protocol):
    """A function that returns the peers of positions of one structure: int32[positions, roles]."""

    def __call__(self, positions: Int64) -> Int32: ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Moved:
    """Peers of a symmetric schedule: position 0's peers, moved by the symmetry."""

    of_first: Int32
    symmetry: tuple[int, ...]

    def __call__(self, positions: Int64) -> Int32:
        return moved(self.of_first, positions[:, None], self.symmetry)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Listed:
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
    kept = _structures(schedule)
    pattern = kept.patterns[kept.structure_of[position]]
    peers = kept.peers(np.array([position]))[0]
    if schedule.chunk_sizes is None:
        return dataclasses.replace(_equal_chunks(pattern, schedule.chunk_bytes), peers=peers)
    if schedule.chunk_caps is not None:
        return dataclasses.replace(_by_kind(pattern, schedule), peers=peers)
    one = columns_of(schedule, range(position, position + 1))
    return dataclasses.replace(_own_sizes(pattern, transfer_bytes(schedule, one.chunk, one.chunk_ranges)), peers=peers)


def local_structures(schedule: Schedule) -> LocalStructures:
    """Return the sends and waits of every position.

    With ``chunk_sizes`` the sizes of sends also distinguish positions, so that all sends are listed.

    Raises InputError: as :func:`trine.collectives.expand`.
    """
    kept = _structures(schedule)
    if schedule.chunk_sizes is not None and schedule.chunk_caps is None:
        return _by_size(schedule, kept)
    if schedule.chunk_sizes is not None:
        structures = tuple(_by_kind(pattern, schedule) for pattern in kept.patterns)
        return LocalStructures(structure_of=kept.structure_of, structures=structures, _peers=kept.peers)
    structures = tuple(_equal_chunks(pattern, schedule.chunk_bytes) for pattern in kept.patterns)
    return LocalStructures(structure_of=kept.structure_of, structures=structures, _peers=kept.peers)


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
        return _kept_symmetric(key)
    return (_kept if schedule.num_ranks <= MANY_RANKS else _kept_large)(key)


@lru_cache(maxsize=64)
def _kept_symmetric(schedule: Schedule) -> _Structures:
    symmetry = symmetry_of(schedule)
    assert symmetry is not None
    num_ranks = schedule.num_ranks
    pattern = patterns_of(waits_of_first(schedule, symmetry), num_ranks).pattern(0)
    return _Structures(
        structure_of=np.zeros(num_ranks, dtype=np.int32),
        patterns=(pattern,),
        peers=_Moved(of_first=pattern.sends.peers, symmetry=symmetry),
    )


@lru_cache(maxsize=64)
def _kept(schedule: Schedule) -> _Structures:
    return _compared(schedule)


@lru_cache(maxsize=8)
def _kept_large(schedule: Schedule) -> _Structures:
    return _compared(schedule)


def _compared(schedule: Schedule) -> _Structures:
    """Return the distinct patterns of all positions."""
    num_positions = schedule.num_ranks + schedule.num_switches
    table = patterns_of(waits_of_all(schedule), num_positions)
    found: dict[bytes, int] = {}
    structure_of = np.array([found.setdefault(table.key(p), len(found)) for p in range(num_positions)], dtype=np.int32)
    firsts = np.unique(structure_of, return_index=True)[1]
    return _Structures(
        structure_of=structure_of,
        patterns=tuple(table.pattern(int(position)) for position in firsts),
        peers=_Listed(ptr=table.peers_ptr, peers=table.peers),
    )


# -- sizes -------------------------------------------------------------------------------------------------------------


def _equal_chunks(pattern: SendPattern, chunk_bytes: int) -> RankSends:
    key = pattern.sends.structure_key + b"=" + chunk_bytes.to_bytes(8, "little")
    return dataclasses.replace(pattern.sends, size_bytes=pattern.units * chunk_bytes, structure_key=key)


def _by_kind(pattern: SendPattern, schedule: Schedule) -> RankSends:
    """Return sends with sizes and limits for schedules whose chunks are kinds of messages."""
    table = np.array([schedule.chunk_sizes, schedule.chunk_caps], np.int64)
    sizes, caps = table[:, pattern.chunk]
    key = pattern.sends.structure_key + b"/" + hashlib.blake2b(table.tobytes(), digest_size=16).digest()
    return dataclasses.replace(pattern.sends, size_bytes=sizes, caps=caps, structure_key=key)


def _own_sizes(pattern: SendPattern, size_bytes: Int64) -> RankSends:
    key = pattern.sends.structure_key + b":" + hashlib.blake2b(size_bytes.tobytes(), digest_size=16).digest()
    return dataclasses.replace(pattern.sends, size_bytes=size_bytes, structure_key=key)


def _by_size(schedule: Schedule, kept: _Structures) -> LocalStructures:
    """Return the structures of all positions, distinguished by sizes as well."""
    num_positions = len(kept.structure_of)
    whole = columns_of(schedule, range(num_positions))
    sizes = transfer_bytes(schedule, whole.chunk, whole.chunk_ranges)
    ptr = np.searchsorted(whole.src, np.arange(num_positions + 1))
    number: dict[bytes, int] = {}
    structures: list[RankSends] = []
    structure_of = np.empty(num_positions, dtype=np.int32)
    for position in range(num_positions):
        one = _own_sizes(kept.patterns[kept.structure_of[position]], sizes[ptr[position] : ptr[position + 1]])
        structure_of[position] = number.setdefault(one.structure_key, len(number))
        if len(structures) < len(number):
            structures.append(dataclasses.replace(one, peers=kept.peers(np.array([position]))[0]))
    return LocalStructures(structure_of=structure_of, structures=tuple(structures), _peers=kept.peers)
