"""Every rank sends its buffer to the next one, all at once, the last to the first.

That is what nccl-tests runs as send_recv, and one step of ring attention (``shift``).
"""

from __future__ import annotations

from dataclasses import replace

from trine.collectives.schedule import Schedule, Sends
from trine.collectives.sends import SendList


def next_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """One send, of one's own buffer; none where there is nobody else."""
    sends = SendList()
    if num_ranks > 1:
        sends.each(0, (position + 1) % num_ranks, position)
    return sends.build()


def to_the_next(num_ranks: int, size_bytes: int) -> Schedule:
    """Rank p ends with the buffer of rank p - 1. ``size_bytes``: of each message. At least two ranks."""
    return Schedule(
        kind="send_recv", algorithm="direct", num_ranks=num_ranks, num_chunks=num_ranks, chunk_bytes=size_bytes,
        size_bytes=size_bytes, sends_of=next_sends, shift_symmetric=True,
    )  # fmt: skip


def shift(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Rank p ends with the buffer of rank p - 1 besides its own. ``size_bytes``: one buffer."""
    return replace(to_the_next(num_ranks, size_bytes), kind="shift")
