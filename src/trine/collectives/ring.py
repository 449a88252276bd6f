"""Collectives on a ring: position p sends to p + 1 only.

All-reduce is a reduce-scatter followed by an all-gather (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
for clusters of workstations", JPDC 2009). Broadcast and reduce are chains along the ring through which chunks are
pipelined.
"""

from __future__ import annotations

import numpy as np

from trine.model.schedule import Schedule, Sends

#: A pipelined chain cuts its buffer into chunks of this size, which keeps the fill time of the pipeline short against
#: the whole and the latency short against a chunk (10 us a chunk at 50 GB/s) ...
CHAIN_CHUNK_BYTES = 512 * 1024
#: ... but into no more chunks than this, so that the number of transfers stays bounded.
MAX_CHAIN_CHUNKS = 64


def _sends(position: int, num_ranks: int, chunk: np.ndarray, reduce: np.ndarray, first_step: int = 0) -> Sends:
    count = len(chunk)
    return Sends(
        step=np.arange(first_step, first_step + count, dtype=np.int32),
        peer=np.full(count, (position + 1) % num_ranks, dtype=np.int32),
        chunk=chunk.astype(np.int32),
        reduce=reduce,
        channel=np.zeros(count, dtype=np.int32),
    )


def reduce_scatter_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """In step s send chunk p - 1 - s: chunk p, complete, arrives at p in the last of N - 1 steps."""
    steps = np.arange(num_ranks - 1)
    return _sends(position, num_ranks, (position - 1 - steps) % num_ranks, np.ones(len(steps), dtype=np.bool_))


def all_gather_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """In step s send chunk p - s: first one's own, then what arrived in the step before."""
    steps = np.arange(num_ranks - 1)
    return _sends(position, num_ranks, (position - steps) % num_ranks, np.zeros(len(steps), dtype=np.bool_))


def all_reduce_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Reduce-scatter, then all-gather: 2(N - 1) steps."""
    steps = np.arange(2 * (num_ranks - 1))
    return _sends(position, num_ranks, (position - 1 - steps) % num_ranks, steps < num_ranks - 1)


def broadcast_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """The rank at distance d behind the root passes chunk k on in step d + k; the last rank sends nothing."""
    distance = (position - root) % num_ranks
    count = num_chunks if distance < num_ranks - 1 else 0
    return _sends(position, num_ranks, np.arange(count), np.zeros(count, dtype=np.bool_), first_step=distance)


def reduce_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """The chain starts behind the root and ends in it; every rank adds what it holds."""
    distance = (position - root - 1) % num_ranks
    count = num_chunks if distance < num_ranks - 1 else 0
    return _sends(position, num_ranks, np.arange(count), np.ones(count, dtype=np.bool_), first_step=distance)


def chain_chunks(size_bytes: int) -> int:
    """Number of chunks into which a pipelined chain cuts ``size_bytes``."""
    return max(1, min(MAX_CHAIN_CHUNKS, -(-size_bytes // CHAIN_CHUNK_BYTES)))


def _cut(kind: str, num_ranks: int, size_bytes: int) -> Schedule:
    sends_of = {
        "all_reduce": all_reduce_sends,
        "reduce_scatter": reduce_scatter_sends,
        "all_gather": all_gather_sends,
    }[kind]
    return Schedule(
        kind=kind,
        algorithm="ring",
        num_ranks=num_ranks,
        num_chunks=num_ranks,
        chunk_bytes=-(-size_bytes // num_ranks),
        size_bytes=size_bytes,
        sends_of=sends_of,
        shift_symmetric=True,
    )


def _chain(kind: str, num_ranks: int, size_bytes: int, root: int) -> Schedule:
    num_chunks = chain_chunks(size_bytes)
    return Schedule(
        kind=kind,
        algorithm="ring",
        num_ranks=num_ranks,
        num_chunks=num_chunks,
        chunk_bytes=-(-size_bytes // num_chunks),
        size_bytes=size_bytes,
        sends_of=broadcast_sends if kind == "broadcast" else reduce_sends,
        root=root,
    )


def all_reduce(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Every rank ends with the sum of all buffers. ``size_bytes``: the buffer."""
    return _cut("all_reduce", num_ranks, size_bytes)


def reduce_scatter(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Rank p ends with chunk p of the sum. ``size_bytes``: the input of a rank."""
    return _cut("reduce_scatter", num_ranks, size_bytes)


def all_gather(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Every rank ends with the chunks of all. ``size_bytes``: the output of a rank."""
    return _cut("all_gather", num_ranks, size_bytes)


def broadcast(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Every rank ends with the root's buffer. ``size_bytes``: the buffer."""
    return _chain("broadcast", num_ranks, size_bytes, root)


def reduce(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """The root ends with the sum of all buffers. ``size_bytes``: the buffer."""
    return _chain("reduce", num_ranks, size_bytes, root)
