"""Circuits as arrays: who is joined with whom, who waits for what."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.arrays import Int8, Int32, Int64

#: ``number[...]``: what the circuits are (BUFFER 0: there is always room), and how much of the lists is filled.
SETUP_PS, BYTES_PER_S, LATENCY_PS, BUFFER, PORTS = 0, 1, 2, 3, 4
NUM_ARRIVED, NUM_CHANGED, NUM_OPEN, NUM_ROOMS, NUM_FREE, NUM_ASKED, HAS_CHANGED = 5, 6, 7, 8, 9, 10, 11
NUMBERS = 12

#: ``step[task]``: it needs no circuit; what its next event ends (the latency of its route, the set-up that it asked
#: for, sending, the way of its last byte); that it waits: for a circuit (LISTED too: and is being asked again), in
#: line; in line after it has set the circuit up itself.
NONE, LATENCY, SETUP, SENDING, UNDERWAY, ASKING, LISTED, IN_LINE, SETTER = range(9)

#: ``rank[RANK * r + field]``: circuits; those of them in use; first and last that wait for a circuit, for room; whether
#: it is in ``changed``, in ``rooms``.
RANK = 8
USED, BUSY, FIRST_ASKING, LAST_ASKING, FIRST_ROOM, LAST_ROOM, IS_CHANGED, HAS_ROOM = range(8)

#: ``circuit[CIRCUIT * c + field]``: both ends, the lower first; transfers that use it; whether it stands; since when it
#: is idle, and the last task before that.
CIRCUIT = 6
LOWER, UPPER, USERS, STANDS, SINCE_PS, LAST_TASK = range(6)

#: ``line[LINE * (2 * c + direction) + field]``, direction 0 from the lower end: first and last transfer; whether the
#: first sends or waits for room; whether it is in ``open``.
LINE = 4
FIRST, LAST, IS_BUSY, IS_OPEN = range(4)


class Circuits(NamedTuple):
    """All circuits of a run, modified in place but for sender and receiver.

    number: int64[NUMBERS]. sender, receiver: int32[tasks]. step: int8[tasks]. rank: int32[ranks * RANK].
    reserved: int64[ranks], bytes of the receive buffer. ports: int32[ranks * PORTS], the circuits of each rank.
    circuit: int64[circuits * CIRCUIT]. line: int32[2 * circuits * LINE]. free: int32, stack of circuits.
    line_of, next_in_line, next_in_room: int32[tasks]. asking: int32[tasks * 4], next and previous in the lists of those
    that wait at the sender and at the receiver, as 2 * task + end. order: int32[tasks], its number in ``asked``: int32,
    tasks in the order in which they asked for a circuit. Lists of an instant, int32: arrived, those that ask;
    changed, ranks at which a circuit has become idle; open, lines that may send; rooms, ranks to which something may be
    sent; found, heads: scratch.
    """

    number: Int64
    sender: Int32
    receiver: Int32
    step: Int8
    rank: Int32
    reserved: Int64
    ports: Int32
    circuit: Int64
    line: Int32
    free: Int32
    line_of: Int32
    next_in_line: Int32
    next_in_room: Int32
    asking: Int32
    order: Int32
    asked: Int32
    arrived: Int32
    changed: Int32
    open: Int32
    rooms: Int32
    found: Int32
    heads: Int32


def new_circuits(
    number: Int64, sender: Int32, receiver: Int32, needs: npt.NDArray[np.bool_], num_ranks: int
) -> Circuits:
    """No circuit yet; ``needs``: bool[tasks], which tasks need one; ``number``: the first five of it are given."""
    tasks, transfers = len(sender), int(needs.sum())
    ports = min(int(number[PORTS]), max(num_ranks - 1, 1))  # a rank has at most one circuit with each other
    circuits = num_ranks * ports // 2
    number = np.concatenate((number[:5], np.zeros(NUMBERS - 5, np.int64)))
    number[PORTS], number[NUM_FREE] = ports, circuits
    rank = np.zeros((num_ranks, RANK), np.int32)
    rank[:, FIRST_ASKING : LAST_ROOM + 1] = -1
    line = np.zeros((2 * circuits, LINE), np.int32)
    line[:, : LAST + 1] = -1
    return Circuits(
        number=number,
        sender=sender,
        receiver=receiver,
        step=np.where(needs, LATENCY, NONE).astype(np.int8),
        rank=rank.ravel(),
        reserved=np.zeros(num_ranks, np.int64),
        ports=np.zeros(num_ranks * ports, np.int32),
        circuit=np.zeros(circuits * CIRCUIT, np.int64),
        line=line.ravel(),
        free=np.arange(circuits, dtype=np.int32)[::-1].copy(),
        line_of=np.zeros(tasks, np.int32),
        next_in_line=np.full(tasks, -1, np.int32),
        next_in_room=np.full(tasks, -1, np.int32),
        asking=np.full(4 * tasks, -1, np.int32),
        order=np.zeros(tasks, np.int32),
        asked=np.zeros(transfers, np.int32),
        arrived=np.zeros(transfers, np.int32),
        changed=np.zeros(num_ranks, np.int32),
        open=np.zeros(2 * circuits, np.int32),
        rooms=np.zeros(num_ranks, np.int32),
        found=np.zeros(transfers, np.int32),
        heads=np.zeros(2 * circuits, np.int32),
    )
