"""Collectives on a ring: position p sends to p + 1, and with more than one channel also to p - 1.

All-reduce is a reduce-scatter followed by an all-gather (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
for clusters of workstations", JPDC 2009). Broadcast and reduce are chains along the ring through which chunks are
pipelined.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from trine.collectives.algorithm import (
    Algorithm,
    MessageTime,
    Rounds,
    all_but_own,
    no_symmetry,
    shifts,
    twice_all_but_own,
    whole_parameter,
)
from trine.collectives.schedule import Schedule, Sends, SendsOf
from trine.collectives.sends import cut, pipeline_chunks, positive


@dataclass(frozen=True)
class RingSends:
    """Sends of all_reduce, reduce_scatter or all_gather; odd channels run in the opposite direction.

    A rank's part has ``channels`` chunks, one per channel. On an even channel a reduce-scatter sends part p - 1 - s in
    step s, so that the sum of part p reaches rank p in the last of N - 1 steps. An all-gather sends part p - s: first
    part p, then the part of the previous step. An all-reduce does both in sequence, in 2(N - 1) steps.
    """

    kind: str
    channels: int

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        hops = num_ranks - 1
        steps = np.arange(2 * hops if self.kind == "all_reduce" else hops, dtype=np.int32)
        lag = steps if self.kind == "all_gather" else steps + 1
        channel = np.repeat(np.arange(self.channels, dtype=np.int32), len(steps))
        forward = 1 - 2 * (channel % 2)
        part = (position - forward * np.tile(lag, self.channels)) % num_ranks
        adds = steps < hops if self.kind != "all_gather" else np.zeros(len(steps), dtype=np.bool_)
        return Sends(
            step=np.tile(steps, self.channels),
            peer=((position + forward) % num_ranks).astype(np.int32),
            chunk=(part * self.channels + channel).astype(np.int32),
            reduce=np.tile(adds, self.channels),
            channel=channel,
        )


def broadcast_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return the sends of a rank: at distance d from the root it forwards chunk k in step d + k, unless it is last."""
    distance = (position - root) % num_ranks
    return _chain_sends(position, num_ranks, num_chunks if distance < num_ranks - 1 else 0, distance, reduce=False)


def reduce_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return the sends of a rank. The chain starts after the root and ends at it; every rank adds its buffer."""
    distance = (position - root - 1) % num_ranks
    return _chain_sends(position, num_ranks, num_chunks if distance < num_ranks - 1 else 0, distance, reduce=True)


def _chain_sends(position: int, num_ranks: int, count: int, first_step: int, *, reduce: bool) -> Sends:
    return Sends(
        step=np.arange(first_step, first_step + count, dtype=np.int32),
        peer=np.full(count, (position + 1) % num_ranks, dtype=np.int32),
        chunk=np.arange(count, dtype=np.int32),
        reduce=np.full(count, reduce, dtype=np.bool_),
        channel=np.zeros(count, dtype=np.int32),
    )


def _ring(kind: str, num_ranks: int, size_bytes: int, root: int = -1, *, channels: int = 1) -> Schedule:
    """Build a collective without a root, whose parts have ceil(size / N) bytes."""
    positive("channels", channels)
    sends_of, number = RingSends(kind, channels), num_ranks * channels
    parameters = (("channels", channels),)
    return cut(kind, "ring", num_ranks, size_bytes, number, sends_of, shift_symmetric=True, parameters=parameters)


def _chain(
    kind: str, sends_of: SendsOf, num_ranks: int, size_bytes: int, root: int = -1, *, chunks: int | None = None
) -> Schedule:
    number = pipeline_chunks(size_bytes, num_ranks, num_ranks - 1, chunks)
    return cut(kind, "ring", num_ranks, size_bytes, number, sends_of, root=root, parameters=(("chunks", number),))


def _ring_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return N - 1 rounds (all-reduce: twice); half of the channels share a link to a neighbour, all if N = 2."""
    channels = whole_parameter(schedule, "channels")
    sharing = channels if schedule.num_ranks == 2 else -(-channels // 2)
    hops = schedule.num_ranks - 1
    return ((2 * hops if schedule.kind == "all_reduce" else hops, sharing * schedule.chunk_bytes),)


def _chain_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of a chain: the first chunk takes N - 1 rounds, and each other chunk follows a round later."""
    return ((schedule.num_ranks - 2 + schedule.num_chunks, schedule.chunk_bytes),)


all_reduce, reduce_scatter, all_gather = (
    Algorithm(
        kind=kind, name="ring", make=partial(_ring, kind), rounds=_ring_rounds, total_bytes=total_bytes,
        symmetry=shifts, source="Patarasuk and Yuan 2009",
    )
    for kind, total_bytes in (
        ("all_reduce", twice_all_but_own), ("reduce_scatter", all_but_own), ("all_gather", all_but_own),
    )
)  # fmt: skip
broadcast, reduce = (
    Algorithm(
        kind=kind, name="ring", make=partial(_chain, kind, sends_of), rounds=_chain_rounds, total_bytes=all_but_own,
        symmetry=no_symmetry, source="Chan, Heimlich, Purkayastha and van de Geijn 2007",
    )
    for kind, sends_of in (("broadcast", broadcast_sends), ("reduce", reduce_sends))
)  # fmt: skip
