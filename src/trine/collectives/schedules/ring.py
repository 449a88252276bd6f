"""Collectives on a ring: position p sends to p + 1, and with more than one channel also to p - 1.

All-reduce is a reduce-scatter followed by an all-gather (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
for clusters of workstations", JPDC 2009). Broadcast and reduce are chains along the ring through which chunks are
pipelined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.collectives.schedule import Schedule, Sends
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


def _ring(kind: str, num_ranks: int, size_bytes: int, channels: int) -> Schedule:
    positive("channels", channels)
    return cut(
        kind,
        "ring",
        num_ranks,
        size_bytes,
        num_ranks * channels,
        RingSends(kind, channels),
        shift_symmetric=True,
        parameters=(("channels", channels),),
    )


def all_reduce(num_ranks: int, size_bytes: int, root: int = -1, *, channels: int = 1) -> Schedule:
    """Build an all_reduce: every rank ends with the sum of all buffers. ``size_bytes``: the buffer."""
    return _ring("all_reduce", num_ranks, size_bytes, channels)


def reduce_scatter(num_ranks: int, size_bytes: int, root: int = -1, *, channels: int = 1) -> Schedule:
    """Build a reduce_scatter: rank p ends with part p of the sum. ``size_bytes``: the input of a rank."""
    return _ring("reduce_scatter", num_ranks, size_bytes, channels)


def all_gather(num_ranks: int, size_bytes: int, root: int = -1, *, channels: int = 1) -> Schedule:
    """Build an all_gather: every rank ends with all parts of ceil(size / N). ``size_bytes``: the output of a rank."""
    return _ring("all_gather", num_ranks, size_bytes, channels)


def broadcast(num_ranks: int, size_bytes: int, root: int = -1, *, chunks: int | None = None) -> Schedule:
    """Build a broadcast: every rank ends with the root's buffer. ``size_bytes``: the buffer."""
    number = pipeline_chunks(size_bytes, num_ranks, num_ranks - 1, chunks)
    return cut(
        "broadcast", "ring", num_ranks, size_bytes, number, broadcast_sends, root=root, parameters=(("chunks", number),)
    )


def reduce(num_ranks: int, size_bytes: int, root: int = -1, *, chunks: int | None = None) -> Schedule:
    """Build a reduce: the root ends with the sum of all buffers. ``size_bytes``: the buffer."""
    number = pipeline_chunks(size_bytes, num_ranks, num_ranks - 1, chunks)
    return cut(
        "reduce", "ring", num_ranks, size_bytes, number, reduce_sends, root=root, parameters=(("chunks", number),)
    )
