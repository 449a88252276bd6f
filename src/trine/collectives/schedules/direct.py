"""Direct collectives: every sender sends straight to the receiver, all at once, and the network shares the links.

Messages to different ranks use separate channels. The barrier uses dissemination: in round k rank p signals rank
p + 2**k (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988). Messages to the next
rank, the last to the first, model nccl-tests' send_recv and one step of ring attention (``shift``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from trine.collectives.algorithm import (
    Algorithm,
    MessageTime,
    Rounds,
    all_but_own,
    no_symmetry,
    shifts,
    twice_all_but_own,
)
from trine.collectives.schedule import Schedule, Sends, SendsOf
from trine.collectives.sends import SendList, cut, log2_ceil
from trine.errors import InputError

#: bytes from each rank (row) to each rank (column)
Matrix = npt.NDArray[np.int64] | tuple[tuple[int, ...], ...]


def _peers(position: int, num_ranks: int) -> npt.NDArray[np.int64]:
    """Return the other ranks, starting with the next one."""
    return (position + np.arange(1, num_ranks)) % num_ranks


@dataclass(frozen=True)
class DirectSends:
    """Sends of rootless collectives. A reduce-scatter sends part q to rank q; an all-gather sends its part to all."""

    kind: str

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        peers, channels = _peers(position, num_ranks), np.arange(num_ranks - 1)
        sends = SendList()
        if self.kind in ("all_to_all", "all_to_all_v"):
            sends.add_all(0, peers, position * num_ranks + peers, channel=channels)
        if self.kind in ("all_reduce", "reduce_scatter"):
            sends.add_all(0, peers, peers, reduce=True, channel=channels)
        if self.kind in ("all_reduce", "all_gather"):
            sends.add_all(int(self.kind == "all_reduce"), peers, position, channel=channels)
        return sends.build()


def one_shot_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return sends of the whole buffer from every rank to every other rank."""
    sends = SendList()
    sends.add_all(0, _peers(position, num_ranks), 0, reduce=True, channel=np.arange(num_ranks - 1))
    return sends.build()


@dataclass(frozen=True)
class BlockSends:
    """Sends of all_to_all_v; ``present`` has a bit per pair of ranks, set if the pair has bytes to send."""

    present: bytes

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        bits = np.unpackbits(np.frombuffer(self.present, np.uint8), count=num_chunks)
        sends, peers = DirectSends("all_to_all_v")(position, num_ranks, num_chunks, root), _peers(position, num_ranks)
        is_present = bits[position * num_ranks + peers] == 1
        return Sends(
            step=sends.step[is_present], peer=sends.peer[is_present], chunk=sends.chunk[is_present],
            reduce=sends.reduce[is_present], channel=sends.channel[is_present],
        )  # fmt: skip


def gather_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return a send of each non-root rank's chunk to the root."""
    sends = SendList()
    if position != root:
        sends.add_all(0, root, position)
    return sends.build()


def scatter_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return sends of chunk p from the root to rank p."""
    sends = SendList()
    if position == root:
        peers = _peers(root, num_ranks)
        sends.add_all(0, peers, peers, channel=np.arange(num_ranks - 1))
    return sends.build()


def broadcast_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return sends of the root's buffer to every rank."""
    sends = SendList()
    if position == root:
        sends.add_all(0, _peers(root, num_ranks), 0, channel=np.arange(num_ranks - 1))
    return sends.build()


def dissemination_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return one send per round: in round k to the rank 2**k further on."""
    rounds = np.arange(log2_ceil(num_ranks))
    sends = SendList()
    sends.add_all(rounds, (position + (1 << rounds)) % num_ranks, 0, reduce=True)
    return sends.build()


def _symmetric_schedule(kind: str, num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Build a collective without a root; an all-reduce in two shots: a reduce-scatter, then an all-gather."""
    return cut(kind, "direct", num_ranks, size_bytes, num_ranks, DirectSends(kind), shift_symmetric=True)


def _one_shot(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Return a one-shot all-reduce: ranks send their buffers to all and sum in scratch. ``size_bytes``: the buffer."""
    return cut("all_reduce", "one-shot", num_ranks, size_bytes, 1, one_shot_sends, staged=True, symmetry=(num_ranks,))


def _all_to_all(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Return a schedule that sends block d of every rank to rank d. ``size_bytes``: all blocks of one rank."""
    sends_of = DirectSends("all_to_all")
    schedule = cut("all_to_all", "direct", num_ranks, size_bytes, num_ranks, sends_of, symmetry=(num_ranks,))
    return replace(schedule, num_chunks=num_ranks * num_ranks)


def _all_to_all_v(num_ranks: int, size_bytes: int, root: int = -1, *, matrix: Matrix | None = None) -> Schedule:
    """Return a schedule that sends ``matrix[s][d]`` bytes from rank s to rank d, with no message for 0.

    ``size_bytes``: the largest total of a rank's blocks, including the block it keeps. The default is equal blocks.

    Raises InputError if the matrix is not square, has a negative entry, or its largest row sum is not ``size_bytes``.
    """
    if matrix is None:
        block = -(-size_bytes // num_ranks)
        table = np.full((num_ranks, num_ranks), block, dtype=np.int64)
    else:
        table = _check_matrix(matrix, num_ranks, size_bytes)
    present = np.packbits(table.ravel() > 0).tobytes()
    return Schedule(
        kind="all_to_all_v", algorithm="direct", num_ranks=num_ranks, num_chunks=num_ranks * num_ranks,
        chunk_bytes=int(table.max()), size_bytes=size_bytes, sends_of=BlockSends(present),
        chunk_sizes=tuple(table.ravel().tolist()), symmetry=(num_ranks,) if _is_cyclic(table > 0) else None,
    )  # fmt: skip


def _is_cyclic(present: npt.NDArray[np.bool_]) -> bool:
    """Return whether every rank has bytes for the ranks at the same distances, apart from itself."""
    ranks = np.arange(len(present))
    by_distance = present[ranks[:, None], (ranks[:, None] + ranks) % len(present)]
    return bool((by_distance[:, 1:] == by_distance[:1, 1:]).all())


def _check_matrix(matrix: Matrix, num_ranks: int, size_bytes: int) -> npt.NDArray[np.int64]:
    table = np.asarray(matrix)
    if table.shape != (num_ranks, num_ranks) or not np.issubdtype(table.dtype, np.integer):
        raise InputError(
            f"must be {num_ranks} x {num_ranks} whole numbers, got {table.shape} of {table.dtype}", field="matrix"
        )
    if table.min() < 0:
        raise InputError(f"bytes must not be negative, got {table.min()}", field="matrix")
    largest = int(table.sum(axis=1, dtype=np.int64).max())
    if largest != size_bytes:
        raise InputError(f"the largest row adds up to {largest}, but the size is given as {size_bytes}", field="matrix")
    return table.astype(np.int64)


def _parts_schedule(kind: str, sends_of: SendsOf, num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Build a collective that gives each rank, or takes from it, one part of the root's buffer."""
    return cut(kind, "direct", num_ranks, size_bytes, num_ranks, sends_of, root=root)


def _broadcast(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Return a schedule after which every rank has the root's buffer. ``size_bytes``: the buffer."""
    return cut("broadcast", "direct", num_ranks, size_bytes, 1, broadcast_sends, root=root)


def _send_recv(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Return a send of the root's buffer to the second rank. ``size_bytes``: the message."""
    if num_ranks != 2:
        raise InputError(f"send_recv has 2 ranks, not {num_ranks}")
    return cut("send_recv", "direct", 2, size_bytes, 1, broadcast_sends, root=root)


def _barrier(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Return a barrier: no rank ends before all have entered. ``size_bytes``: of each message, usually 0."""
    return cut(
        "barrier", "dissemination", num_ranks, size_bytes, 1, dissemination_sends, staged=True, symmetry=(num_ranks,)
    )


def next_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return one send of the rank's buffer to the next rank, or no sends for a single rank."""
    sends = SendList()
    if num_ranks > 1:
        sends.add_all(0, (position + 1) % num_ranks, position)
    return sends.build()


def to_the_next(num_ranks: int, size_bytes: int) -> Schedule:
    """Return a send of every rank's buffer to the next rank. ``size_bytes``: of each message. At least two ranks."""
    return Schedule(
        kind="send_recv", algorithm="direct", num_ranks=num_ranks, num_chunks=num_ranks, chunk_bytes=size_bytes,
        size_bytes=size_bytes, sends_of=next_sends, shift_symmetric=True,
    )  # fmt: skip


def _shift(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Return a schedule after which rank p also has the buffer of rank p - 1. ``size_bytes``: one buffer."""
    return replace(to_the_next(num_ranks, size_bytes), kind="shift")


def _one_round(schedule: Schedule, time: MessageTime) -> Rounds:
    return ((1, schedule.chunk_bytes),)


def _two_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    return ((2, schedule.chunk_bytes),)


def _largest_block(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return one round of the largest block between two ranks, or no round if all blocks are empty."""
    n, sizes = schedule.num_ranks, schedule.chunk_sizes or ()
    largest = max(size for i, size in enumerate(sizes) if i // n != i % n)
    return ((1, largest),) if largest else ()


def _dissemination_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    return ((log2_ceil(schedule.num_ranks), schedule.chunk_bytes),)


def _parts_of_one(num_ranks: int, payload_bytes: int) -> float:
    """Return the bytes of all parts of one buffer but the root's own."""
    return (num_ranks - 1) * payload_bytes / num_ranks


def _whole_to_all(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes if each rank sends its buffer to all others."""
    return num_ranks * (num_ranks - 1) * payload_bytes


def _one_each(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes if each chunk of the payload is sent once."""
    return payload_bytes


def _signals(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes of a message a round from each rank."""
    return num_ranks * log2_ceil(num_ranks) * payload_bytes


_SOURCE = "every sender sends to every receiver at once"
all_reduce = Algorithm(
    kind="all_reduce", name="direct", make=partial(_symmetric_schedule, "all_reduce"), rounds=_two_rounds,
    total_bytes=twice_all_but_own, symmetry=shifts, source="two shots, as in TensorRT-LLM and vLLM",
)  # fmt: skip
reduce_scatter, all_gather = (
    Algorithm(
        kind=kind, name="direct", make=partial(_symmetric_schedule, kind), rounds=_one_round, total_bytes=all_but_own,
        symmetry=shifts, source=_SOURCE,
    )
    for kind in ("reduce_scatter", "all_gather")
)  # fmt: skip
one_shot = Algorithm(
    kind="all_reduce", name="one-shot", make=_one_shot, rounds=_one_round, total_bytes=_whole_to_all, symmetry=shifts,
    source="one shot, as in TensorRT-LLM and vLLM",
)  # fmt: skip
all_to_all = Algorithm(
    kind="all_to_all", name="direct", make=_all_to_all, rounds=_one_round, total_bytes=all_but_own, symmetry=shifts,
    source=_SOURCE,
)  # fmt: skip
all_to_all_v = Algorithm(
    kind="all_to_all_v", name="direct", make=_all_to_all_v, rounds=_largest_block, total_bytes=all_but_own,
    symmetry=shifts, source=_SOURCE,
)  # fmt: skip
gather, scatter = (
    Algorithm(
        kind=kind, name="direct", make=partial(_parts_schedule, kind, sends_of), rounds=_one_round,
        total_bytes=_parts_of_one, symmetry=no_symmetry, source=_SOURCE,
    )
    for kind, sends_of in (("gather", gather_sends), ("scatter", scatter_sends))
)  # fmt: skip
broadcast = Algorithm(
    kind="broadcast", name="direct", make=_broadcast, rounds=_one_round, total_bytes=all_but_own,
    symmetry=no_symmetry, source=_SOURCE,
)  # fmt: skip
send_recv = Algorithm(
    kind="send_recv", name="direct", make=_send_recv, rounds=_one_round, total_bytes=_one_each, symmetry=no_symmetry,
    source=_SOURCE,
)  # fmt: skip
shift = Algorithm(
    kind="shift", name="direct", make=_shift, rounds=_one_round, total_bytes=_one_each, symmetry=shifts,
    source="sendrecv_perf of nccl-tests; ring attention",
)  # fmt: skip
barrier = Algorithm(
    kind="barrier", name="dissemination", make=_barrier, rounds=_dissemination_rounds, total_bytes=_signals,
    symmetry=shifts, source="Hensgen, Finkel and Manber 1988",
)  # fmt: skip
