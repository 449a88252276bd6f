"""What reaches a GPU from others that are not simulated. Frozen data without logic (docs/design/replay.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trine.arrays import Int8, Int32, Int64

#: Kinds of what arrives; PUT: a copy engine or NIC has brought its bytes, and releases the semaphore behind them.
LOAD, STORE, ACQUIRE, RELEASE, PUT = range(5)

IDEAL, MODELLED = "ideal", "modelled"
FABRICS = (IDEAL, MODELLED)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PeerWrites:
    """Writes of peers into the target's memory, in any order: the write tracking table.

    peer: int32[n], ranks. address, size_bytes: int64[n]; bytes of the target's memory. semaphore: int32[n], the
    target's semaphore that the write changes, -1: it is data. value: int64[n], what it adds to the semaphore; of data
    0. time_ps: int64[n]. fabric: ``ideal``: they are at the memory then; ``modelled``: they are at the first link from
    the peer then, and cross the fabric.
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
    """What came to the I/O ports of one GPU, ``target`` (a rank), in a load-store run of ``num_ranks`` ranks.

    Requests of others, by the instant of arrival, then in the order of messages (docs/design/gpu-model.md): time_ps
    int64[n], when it came out of the port; rank int32[n], whose request; place int32[n], of the wavefront in its GPU
    (CU * ``wavefronts_per_cu`` of the model + slot); number int32[n], of the request there; kind int8[n]: LOAD, STORE,
    RELEASE or PUT (of a dma that releases a semaphore: when it does); address int64[n]; semaphore int32[n], of the
    target, -1: none; amount int64[n], of the semaphore.
    Answers to requests and dmas of the target to others: answer_place int32[m]; answer_number int32[m], the number of
    the request among those of that place to other GPUs, from 0; answer_ps int64[m], when it came out of the port, or
    the wavefront knew that the dma is there; answer_refused int8[m], 1: a flagged load that came too early.
    Of a graph of tasks of all ranks: task int32[k], tasks elsewhere for which those of the target waited, and transfers
    that left it, in ascending order; task_end_ps int64[k], when each ended.
    origin: of which run it is (JSON of ``trine.replay.arrivals``), "" where nobody has said.
    """

    target: int
    num_ranks: int
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
    answer_refused: Int8
    task: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    task_end_ps: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    origin: str = ""
