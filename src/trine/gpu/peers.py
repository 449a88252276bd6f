"""Traffic to a GPU from peers that are not simulated. Frozen data without logic (docs/design/replay.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trine.common.arrays import Int8, Int32, Int64

#: Kinds of arrivals; PUT: a copy engine or NIC has delivered its bytes and releases the semaphore behind them.
LOAD, STORE, ACQUIRE, RELEASE, PUT = range(5)

IDEAL, MODELLED = "ideal", "modelled"
FABRICS = (IDEAL, MODELLED)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PeerWrites:
    """Writes of peers into the target's memory, in any order: the write tracking table.

    peer: int32[n], ranks. address, size_bytes: int64[n]; bytes of the target's memory. semaphore: int32[n], the
    target's semaphore that the write changes; -1 for data. value: int64[n], added to the semaphore; 0 for data.
    time_ps: int64[n], the arrival at the memory with fabric ``ideal``; with ``modelled`` the start at the first link
    from the peer, followed by a trip across the fabric.
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
    """Arrivals at the I/O ports of one GPU, ``target`` (a rank), in a load-store run of ``num_ranks`` ranks.

    Requests of other GPUs, by arrival time, then in the order of messages (docs/design/gpu-model.md): time_ps int64[n],
    when the request left the port; rank int32[n], the requester; place int32[n], the wavefront's slot in its GPU (CU *
    ``wavefronts_per_cu`` of the model + slot); number int32[n], of the request in that slot; kind int8[n]: LOAD, STORE,
    RELEASE or PUT (the release of a dma's semaphore); address int64[n]; semaphore int32[n], of the target, -1: none;
    amount int64[n], of the semaphore.
    Answers to requests and dmas of the target to other GPUs: answer_place int32[m]; answer_number int32[m], the number
    of the request among the slot's requests to other GPUs, from 0; answer_ps int64[m], when the answer left the port,
    or the wavefront learned of the dma's arrival; answer_refused int8[m], 1: a flagged load that came too early.
    Task graph of all ranks: task int32[k], remote tasks that tasks of the target waited for, and transfers that left
    the target, in ascending order; task_end_ps int64[k], when each ended.
    origin: the recorded run (JSON of ``trine.gpu.replay.arrivals``), "" if unknown.
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
