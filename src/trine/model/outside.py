"""What reaches a GPU from others that are not simulated. Frozen data without logic (docs/design/replay.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]

#: Kinds of requests that arrive.
LOAD, STORE, ACQUIRE, RELEASE = range(4)

IDEAL, MODELLED = "ideal", "modelled"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PeerWrites:
    """Writes of peers into the target's memory, in any order.

    peer: int32[n], ranks. address: int64[n]. size_bytes: int64[n]; of a write to a semaphore what it likes. semaphore:
    int32[n], the target's semaphore at that address, -1: data. value: int64[n], what it adds to the semaphore.
    time_ps: int64[n]. fabric: ``ideal``: they are at the memory then; ``modelled``: they are at the first link from
    the peer then.
    """

    peer: Int32
    address: Int64
    size_bytes: Int64
    semaphore: Int32
    value: Int64
    time_ps: Int64
    fabric: str = IDEAL


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Arrivals:
    """What came to one GPU's I/O ports in a load-store run.

    Requests of others, in the order in which they came: time_ps int64[n], at the port; rank int32[n], whose request;
    place, number int32[n]: the wavefront's place in its GPU and the number of the request there (both only order what
    comes at one instant); kind int8[n]; address int64[n]; semaphore int32[n], of this GPU, -1: none; amount int64[n],
    of semaphores. Answers to its own: answer_place int32[m], place of the wavefront in the GPU; answer_number
    int32[m], the how manieth remote request of that place it answers, from 0; answer_ps int64[m], at the port.
    """

    time_ps: Int64
    rank: Int32
    place: Int32
    number: Int32
    kind: Int8
    address: Int64
    semaphore: Int32
    amount: Int64
    answer_place: Int32
    answer_number: Int32
    answer_ps: Int64
