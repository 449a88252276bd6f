"""What positions send and wait for, in a form that does not depend on which positions they are.

Other positions are numbered in the order in which a position's sends first name them. What one send waits for is a set;
it is put in order by the number of the send that is waited for, and sends of one number by their positions, which is
the order in which schedules list children too. Positions with the same form do the same among those that they name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from trine.arrays import Bool, Int32, Int64
from trine.collectives.dependencies import stable_order
from trine.collectives.schedule import RankSends

#: Of a form, which has no sizes yet.
NO_SIZES = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """Sends of some positions, all of each; what they wait for is named by position and number among its sends.

    src, dst, step, units, entry_src, entry_dst: one entry a send, positions ascending, each one's in its order;
    ``units``: chunks that it carries. user, who, number: send ``user`` (a row of the above) waits for send ``number``
    of position ``who``. ended, ended_who, ended_number: the collective ends on position ``ended`` after those.
    """

    src: Int64
    dst: Int64
    step: Int32
    units: Int64
    entry_src: Bool
    entry_dst: Bool
    user: Int64
    who: Int64
    number: Int64
    ended: Int64
    ended_who: Int64
    ended_number: Int64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Form:
    """The sends of a position without their sizes; ``units``: int64[m], chunks that each carries."""

    sends: RankSends
    units: Int64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Forms:
    """The forms of all positions as tables: rows of a position, or a send, p are those from ptr[p] to ptr[p + 1].

    sends: int32[m, 5]: receiver, step, chunks, entries (1 its own, 2 the receiver's), number of predecessors.
    waits: int32[e, 2] by send and ends: int32[c, 2] by position: whose (index into peers, -1 its own) and number.
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
        """Equal for positions of one form."""
        digest = hashlib.blake2b(digest_size=16)
        for table in self._tables(position):
            digest.update(len(table).to_bytes(8, "little"))
            digest.update(table.tobytes())
        return digest.digest()

    def form(self, position: int) -> Form:
        """Its arrays, copied."""
        sends, waits, ends = self._tables(position)
        who, number = waits.T.copy()
        ended_who, ended_number = ends.T.copy()
        one = RankSends(
            peers=self.peers[self.peers_ptr[position] : self.peers_ptr[position + 1]].copy(),
            receiver=sends[:, 0].copy(),
            step=sends[:, 1].copy(),
            size_bytes=NO_SIZES,
            entry_src=(sends[:, 3] & 1) != 0,
            entry_dst=(sends[:, 3] & 2) != 0,
            predecessor_ptr=np.concatenate(([0], np.cumsum(sends[:, 4], dtype=np.int64))),
            predecessor_who=who,
            predecessor_number=number,
            completion_who=ended_who,
            completion_number=ended_number,
            structure_key=self.key(position),
        )
        return Form(sends=one, units=sends[:, 2].astype(np.int64))

    def _tables(self, position: int) -> tuple[Int32, Int32, Int32]:
        first, last = self.sends_ptr[position], self.sends_ptr[position + 1]
        return (
            self.sends[first:last],
            self.waits[self.waits_ptr[first] : self.waits_ptr[last]],
            self.ends[self.ends_ptr[position] : self.ends_ptr[position + 1]],
        )


def forms_of(waits: Waits, num_positions: int) -> Forms:
    """The forms of ``num_positions`` ranks and switches, of which those without sends may be left out of ``waits``."""
    m, e = len(waits.src), len(waits.user)
    of_send = _canonical(waits.user, waits.src[waits.user], waits.who, waits.number)
    of_end = _canonical(waits.ended, waits.ended, waits.ended_who, waits.ended_number)
    user, ended = waits.user[of_send], waits.ended[of_end]
    sends_ptr = _pointers(waits.src, num_positions)
    # The order of first use: a send's receiver, then its predecessors; at the end of a position what ends it.
    order = stable_order(np.concatenate([3 * np.arange(m) + 1, 3 * user + 2, 3 * sends_ptr[ended + 1]]))
    position = np.concatenate([waits.src, waits.src[user], ended])
    other = np.concatenate([waits.dst, waits.who[of_send], waits.ended_who[of_end]])
    in_order, peers_ptr, peers = _numbered(position[order], other[order], num_positions)
    local = np.empty_like(in_order)
    local[order] = in_order
    counts = np.bincount(user, minlength=m)
    entries = waits.entry_src + 2 * waits.entry_dst.astype(np.int64)
    return Forms(
        sends_ptr=sends_ptr,
        sends=np.stack([local[:m], waits.step, waits.units, entries, counts], axis=1).astype(np.int32),
        waits_ptr=_pointers(user, m),
        waits=np.stack([local[m : m + e], waits.number[of_send]], axis=1).astype(np.int32),
        ends_ptr=_pointers(ended, num_positions),
        ends=np.stack([local[m + e :], waits.ended_number[of_end]], axis=1).astype(np.int32),
        peers_ptr=peers_ptr,
        peers=peers,
    )


def _canonical(row: Int64, position: Int64, who: Int64, number: Int64) -> Int64:
    """The order of pairs (who, number): by row, a position's own first, by number, by whose it is."""
    return np.lexsort((who, number, who != position, row))


def _pointers(rows: Int64, num_rows: int) -> Int64:
    return np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=num_rows))))


def _numbered(position: Int64, other: Int64, num_positions: int) -> tuple[Int64, Int64, Int32]:
    """Number of each entry's ``other`` among those of its position by first use (-1: itself), and CSR of the others.

    Entries are those of all positions, ascending, each one's in the order of use.
    """
    is_other = np.flatnonzero(other != position)
    pairs, first, inverse = np.unique(
        position[is_other] * num_positions + other[is_other], return_index=True, return_inverse=True
    )
    by_use = np.argsort(first)
    rank = np.empty_like(by_use)
    rank[by_use] = np.arange(len(pairs))
    ptr = _pointers(pairs // num_positions, num_positions)
    number = np.full(len(other), -1, dtype=np.int64)
    number[is_other] = (rank - ptr[pairs // num_positions])[inverse]
    return number, ptr, (pairs[by_use] % num_positions).astype(np.int32)
