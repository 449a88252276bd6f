"""Collectives in which every sender sends straight to the receiver, all at once: the network shares the links."""

from __future__ import annotations

import numpy as np

from trine.errors import InputError
from trine.model.schedule import Schedule, Sends


def _sends(peers: np.ndarray, chunks: np.ndarray) -> Sends:
    """One send a peer, all in step 0, each on a channel of its own."""
    count = len(peers)
    return Sends(
        step=np.zeros(count, dtype=np.int32),
        peer=peers.astype(np.int32),
        chunk=chunks.astype(np.int32),
        reduce=np.zeros(count, dtype=np.bool_),
        channel=np.arange(count, dtype=np.int32),
    )


def gather_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """All but the root send their chunk to the root."""
    own = np.array([position] if position != root else [], dtype=np.int64)
    return _sends(np.full(len(own), root), own)


def scatter_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """The root sends chunk p to rank p."""
    everyone = np.arange(num_ranks)
    peers = everyone[everyone != root] if position == root else everyone[:0]
    return _sends(peers, peers)


def send_recv_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """The root sends its buffer to the other rank."""
    peers = np.array([1 - root] if position == root else [], dtype=np.int64)
    return _sends(peers, np.zeros(len(peers), dtype=np.int64))


def gather(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """The root ends with the chunks of all. ``size_bytes``: the output of the root."""
    return Schedule(
        kind="gather",
        algorithm="direct",
        num_ranks=num_ranks,
        num_chunks=num_ranks,
        chunk_bytes=-(-size_bytes // num_ranks),
        size_bytes=size_bytes,
        sends_of=gather_sends,
        root=root,
    )


def scatter(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Rank p ends with chunk p of the root. ``size_bytes``: the input of the root."""
    return Schedule(
        kind="scatter",
        algorithm="direct",
        num_ranks=num_ranks,
        num_chunks=num_ranks,
        chunk_bytes=-(-size_bytes // num_ranks),
        size_bytes=size_bytes,
        sends_of=scatter_sends,
        root=root,
    )


def send_recv(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """The rank that is not the root ends with the root's buffer. Two ranks. ``size_bytes``: the message."""
    if num_ranks != 2:
        raise InputError(f"send_recv has 2 ranks, not {num_ranks}")
    return Schedule(
        kind="send_recv",
        algorithm="direct",
        num_ranks=2,
        num_chunks=1,
        chunk_bytes=size_bytes,
        size_bytes=size_bytes,
        sends_of=send_recv_sends,
        root=root,
    )
