"""Collectives in ceil(log2 N) rounds for any N, by sending more than one part in a message.

Bruck: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE TPDS 1997. PAT: the parallel aggregated trees of NCCL 2.23 (Jeaugey, "PAT: a new
algorithm for all-gather and reduce-scatter operations at scale", 2025), here with room to aggregate everything: one
binomial tree per part, first to far ranks with few parts per message, last to near ranks with many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from trine.collectives.algorithm import Algorithm, MessageTime, Rounds, all_but_own, shifts
from trine.collectives.schedule import Schedule, Sends
from trine.collectives.sends import SendList, cut, log2_ceil


def all_gather_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return the sends: in round k to the rank 2**k before, the first 2**k held parts that it lacks, from part p on."""
    rounds = np.arange(log2_ceil(num_ranks))
    distance = 1 << rounds
    sends = SendList()
    sends.add_all(rounds, (position - distance) % num_ranks, position, count=np.minimum(distance, num_ranks - distance))
    return sends.build()


def all_to_all_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return the sends: in round k to the rank 2**k further on, the held blocks with bit k in their distance.

    A block from rank s to s + r travels by the bits of r, the lowest first.
    """
    sends = SendList()
    distances = np.arange(1, num_ranks)
    for k in range(log2_ceil(num_ranks)):
        distance = distances[(distances >> k) & 1 == 1]
        source = (position - distance % (1 << k)) % num_ranks
        sends.add(k, (position + (1 << k)) % num_ranks, [(source * num_ranks + (source + distance) % num_ranks, False)])
    return sends.build()


@dataclass(frozen=True)
class PatSends:
    """Sends of PAT. A part goes from its rank to the one x further on by the bits of x, the highest first.

    A reduce-scatter uses the same trees in reverse, and in the opposite order.
    """

    kind: str

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        sends = SendList()
        bits = range(log2_ceil(num_ranks))
        gather = self.kind == "all_gather"
        for step, k in enumerate(reversed(bits) if gather else bits):
            distance = 1 << k
            distances = np.arange(distance, num_ranks, 2 * distance)  # distances with a last hop of this length
            peer = position + (distance if gather else -distance)
            origin = (peer if gather else position) - distances
            sends.add(step, peer % num_ranks, [(origin % num_ranks, not gather)])
        return sends.build()


def _all_gather(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Build Bruck's all_gather: every rank ends with the parts of all. ``size_bytes``: the output of a rank."""
    return cut("all_gather", "bruck", num_ranks, size_bytes, num_ranks, all_gather_sends, shift_symmetric=True)


def _all_to_all(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Build Bruck's all_to_all: rank d ends with block d of all. ``size_bytes``: sent by a rank, its own included."""
    schedule = cut("all_to_all", "bruck", num_ranks, size_bytes, num_ranks, all_to_all_sends, symmetry=(num_ranks,))
    return replace(schedule, num_chunks=num_ranks * num_ranks)


def _pat(kind: str, num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Build PAT's all_gather or reduce_scatter."""
    return cut(kind, "pat", num_ranks, size_bytes, num_ranks, PatSends(kind), shift_symmetric=True)


def _gather_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return rounds of 1, 2, 4, ... parts, and a last round of the missing parts."""
    n = schedule.num_ranks
    return tuple((1, min(1 << k, n - (1 << k)) * schedule.chunk_bytes) for k in range(log2_ceil(n)))


def _block_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return rounds k with the blocks whose distance has bit k: about half of all blocks."""
    n = schedule.num_ranks
    blocks = (sum(way >> k & 1 for way in range(n)) for k in range(log2_ceil(n)))
    return tuple((1, number * schedule.chunk_bytes) for number in blocks)


def _pat_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return rounds at distance d with the parts whose last hop has this distance: d, 3d, 5d, ... below N."""
    n = schedule.num_ranks
    distances = [1 << k for k in range(log2_ceil(n))]
    rounds = [(1, -(-(n - d) // (2 * d)) * schedule.chunk_bytes) for d in distances]
    return tuple(reversed(rounds) if schedule.kind == "all_gather" else rounds)


def _block_bytes(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes of an all-to-all: a block is sent once for each bit of its distance."""
    return sum(distance.bit_count() for distance in range(num_ranks)) * payload_bytes


all_gather = Algorithm(
    kind="all_gather", name="bruck", make=_all_gather, rounds=_gather_rounds, total_bytes=all_but_own,
    symmetry=shifts, source="Bruck et al. 1997",
)  # fmt: skip
all_to_all = Algorithm(
    kind="all_to_all", name="bruck", make=_all_to_all, rounds=_block_rounds, total_bytes=_block_bytes,
    symmetry=shifts, source="Bruck et al. 1997",
)  # fmt: skip
pat_all_gather, pat_reduce_scatter = (
    Algorithm(
        kind=kind, name="pat", make=partial(_pat, kind), rounds=_pat_rounds, total_bytes=all_but_own, symmetry=shifts,
        source="Jeaugey 2025 (NCCL 2.23)",
    )
    for kind in ("all_gather", "reduce_scatter")
)  # fmt: skip
