"""A collective as data: which rank of the group sends which chunk to whom, and when. Frozen data without logic.

A schedule is a function from a rank's position in its group to that rank's sends, so that nothing of size
(ranks x steps) exists until somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sends:
    """What one rank sends, in the order in which it sends it; every array has one entry a send.

    step: int32, collective step; a send may use what arrived in earlier steps. peer: int32, position of the receiver.
    chunk: int32, index of the chunk of the buffer. reduce: bool, whether the receiver adds (else it overwrites).
    channel: int32; sends of one rank on one channel go one after the other, channels are independent.
    count: int32, how many consecutive chunks from ``chunk`` on; None: one each.
    """

    step: Int32
    peer: Int32
    chunk: Int32
    reduce: Bool
    channel: Int32
    count: Int32 | None = None


#: position in the group, number of ranks, number of chunks, root -> the sends of that rank
SendsOf = Callable[[int, int, int, int], Sends]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """One collective of ``num_ranks`` ranks on a buffer of ``num_chunks`` chunks of ``chunk_bytes`` each.

    ``size_bytes`` is the payload as nccl-tests counts it; chunks are equal, so the last one may be padded.
    ``sends_of`` is called as ``sends_of(position, num_ranks, num_chunks, root)``. ``shift_symmetric`` states that the
    sends of position p are those of position 0 with p added to peer and chunk, modulo ``num_ranks``. ``kind`` says what
    the schedule claims to do, which :mod:`trine.collectives.checker` proves. ``num_agents``: switches that add up and
    multicast (NVLS, SHARP) take part as positions ``num_ranks`` to ``num_ranks + num_agents - 1``.
    """

    kind: str
    algorithm: str
    num_ranks: int
    num_chunks: int
    chunk_bytes: int
    size_bytes: int
    sends_of: SendsOf
    root: int = 0
    shift_symmetric: bool = False
    num_agents: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ExpandedSchedule:
    """All transfers of a schedule, ranks in order and each rank's sends in its order.

    src, dst: int32[m], positions in the group. step, chunk: int32[m]. size_bytes: int64[m]. reduce: bool[m].
    entry_src, entry_dst: bool[m]; the transfer also waits until its sender, or its receiver, has entered the
    collective.
    predecessor_ptr, predecessor_idx: CSR over transfers: the transfers that must have ended before.
    completion_ptr, completion_idx: CSR over ranks: the transfers that must have ended before the collective has ended
    on that rank. Empty for a rank that neither sends nor receives.
    """

    src: Int32
    dst: Int32
    step: Int32
    chunk: Int32
    size_bytes: Int64
    reduce: Bool
    entry_src: Bool
    entry_dst: Bool
    predecessor_ptr: Int64
    predecessor_idx: Int32
    completion_ptr: Int64
    completion_idx: Int32

    @property
    def num_transfers(self) -> int:
        return len(self.src)
