"""A collective as one operation of its group: all ranks enter, and all end at the same instant, after a fixed time.

In a chain from a root every rank behaves differently, so a job with a chain cannot be folded. As one operation all
ranks behave alike: a barrier, one share of the bytes from each rank over the links, and another barrier. The caller
provides the collective's time. An empty message takes this time (as software before its first link), while the other
messages share the links with other traffic. So the collective takes longer only if the links are busy, or cannot carry
the bytes in this time.

The shares equal a ring that carries the buffer around once, less one hop, spread evenly over all hops: each of N ranks
sends (N - 1) / N of the buffer. If the ranks form groups (domains of fast links), each rank sends to the next one
of its group, and to its counterpart in the next group: one ring for each rank of a group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.collectives.library_flows import FlowPlan
from trine.collectives.schedule import Schedule, Sends
from trine.collectives.sends import MAX_PIPELINE_CHUNKS, SendList, log2_ceil
from trine.errors import InputError

#: The algorithm's name in programs and answers. ``one-operation:4x8:ring`` gives the number of groups, the ranks of
#: each, and how these send to each other: ``ring`` (to the next) or ``direct`` (to all).
ONE_OPERATION = "one-operation"
_SHAPE = re.compile(rf"{ONE_OPERATION}:(\d+)x(\d+):(ring|direct)")
#: Roles of the schedule's chunks.
_SIGNAL, _TIMER, _INNER, _OUTER = range(4)


@dataclass(frozen=True)
class OneOperationSends:
    """Sends of a rank: a dissemination barrier, its messages, and another barrier. ``size``: ranks of a group."""

    size: int
    is_direct: bool

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        size, groups = self.size, num_ranks // self.size
        group, member = divmod(position, size)
        signals = [group * size + (member + (1 << k)) % size for k in range(log2_ceil(size))]
        signals += [(group + (1 << k)) % groups * size + member for k in range(log2_ceil(groups))]
        rounds = np.arange(len(signals))
        sends = SendList()
        sends.add_all(rounds, signals, _SIGNAL, reduce=True)
        distances = np.arange(1, size if self.is_direct else min(size, 2))
        messages = [(int(next_of(position, size, num_ranks)), _TIMER)]
        messages += [(group * size + (member + int(distance)) % size, _INNER) for distance in distances]
        messages += [((position + size) % num_ranks, _OUTER)] if groups > 1 else []
        for channel, (peer, chunk) in enumerate(messages, start=1):
            sends.add(len(signals), peer, [(chunk, False), (_SIGNAL, True)], channel=channel)
        sends.add_all(rounds + len(signals) + 1, signals, _SIGNAL, reduce=True)
        return sends.build()


def next_of(position: int | npt.NDArray[np.int64], size: int, num_ranks: int) -> npt.NDArray[np.int64]:
    """Return the next rank of the same group of ``size``; in groups of one the next group."""
    if size == 1:
        return np.asarray((position + 1) % num_ranks)
    return np.asarray(position // size * size + (position + 1) % size)


def name_of(num_ranks: int, size: int | None = None, inner: str = "ring") -> str:
    """Return the algorithm name of ``num_ranks`` ranks in groups of ``size`` (None: all in one)."""
    size = num_ranks if size is None else size
    return f"{ONE_OPERATION}:{num_ranks // size}x{size}:{inner}"


def one_operation(kind: str, num_ranks: int, size_bytes: int, algorithm: str) -> Schedule:
    """Build the schedule of a broadcast as one operation. Raises InputError for another kind or a wrong shape."""
    match = _SHAPE.fullmatch(algorithm)
    groups, size = (int(match[1]), int(match[2])) if match else (1, num_ranks)
    if kind != "broadcast" or groups * size != num_ranks:
        raise InputError(f"{algorithm} is no way to run a {kind} of {num_ranks} ranks", field="algorithm")
    is_direct = match is not None and match[3] == "direct"
    share = -(-size_bytes * (num_ranks - 1) // num_ranks)
    inner_bytes = share if groups == 1 else -(-share * (size - 1) // size)
    chunks = (0, 0, -(-inner_bytes // max(1, size - 1)) if is_direct else inner_bytes, -(-share // size))
    signals = log2_ceil(size) + log2_ceil(groups)
    return Schedule(
        kind=kind, algorithm=ONE_OPERATION, num_ranks=num_ranks, num_chunks=len(chunks), chunk_bytes=max(chunks),
        size_bytes=size_bytes, sends_of=OneOperationSends(size, is_direct), chunk_sizes=chunks,
        chunk_caps=(0,) * len(chunks), symmetry=(size, groups), timed_step=signals, together=True,
    )  # fmt: skip


def schedule_of(
    kind: str, num_ranks: int, size_bytes: int, algorithm: str | FlowPlan | Schedule | None, root: int
) -> Schedule:
    """Return a job collective's schedule: from the registry, one operation, a library's flows, or as passed."""
    if isinstance(algorithm, Schedule):
        return algorithm
    if isinstance(algorithm, FlowPlan):
        return algorithm.schedule(kind, num_ranks, size_bytes, root)
    if algorithm is not None and algorithm.startswith(ONE_OPERATION):
        return one_operation(kind, num_ranks, size_bytes, algorithm)
    from trine.collectives.registry import make_schedule

    return make_schedule(kind, num_ranks, size_bytes, algorithm, root)


def chain_ps(num_ranks: int, size_bytes: int, bytes_per_s: int, latency_ps: int) -> int:
    """Return the end of a chain along the ring at its last rank, with the fastest number of chunks.

    The result never falls as ranks are added, because each number of chunks needs one more round for each rank more.
    """
    from trine.collectives.closed_forms import uncontended_ps

    def time_ps(chunks: int) -> int:
        from trine.collectives.registry import make_schedule

        schedule = make_schedule("broadcast", num_ranks, size_bytes, "ring", 0, chunks=chunks)
        return uncontended_ps(schedule, bytes_per_s, latency_ps)

    low, high = 1, MAX_PIPELINE_CHUNKS
    while high - low > 2:  # apart from the rounding of chunks to bytes, the time falls, then rises
        third = (high - low) // 3
        left, right = low + third, high - third
        low, high = (low, right) if time_ps(left) <= time_ps(right) else (left, high)
    return min(time_ps(chunks) for chunks in range(low, high + 1))
