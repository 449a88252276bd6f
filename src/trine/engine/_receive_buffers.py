"""Room in receive buffers, compiled: transfers over circuits wait for it in order."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.engine._state import CircuitTables, TaskTables

U = np.uint64


@inlined
def look_for_room(circuits: CircuitTables, number: Int) -> None:
    """Note that a rank may have room for a waiting transfer."""
    switch, rank = circuits.switch[U(0)], circuits.ranks[U(number)]
    if rank.has_room == 0:
        rank.has_room = 1
        circuits.ranks_with_room[U(switch.num_with_room)] = number
        switch.num_with_room += 1


@inlined
def wait_for_room(circuits: CircuitTables, number: Int) -> None:
    """Put a transfer behind the ones waiting for the receive buffer."""
    task = circuits.tasks[U(number)]
    rank = circuits.ranks[U(task.receiver)]
    task.next_for_room = -1
    if rank.last_for_room < 0:
        rank.first_for_room = number
    else:
        circuits.tasks[U(rank.last_for_room)].next_for_room = number
    rank.last_for_room = number
    look_for_room(circuits, np.int64(task.receiver))


@inlined
def take_rooms(circuits: CircuitTables, work: TaskTables) -> Int:
    """Write all transfers with room in the receive buffer to circuits.heads, in waiting order; return their number.

    Transfers larger than the buffer take all of it.
    """
    switch = circuits.switch[U(0)]
    num_heads = np.int64(0)
    for i in range(switch.num_with_room):
        rank = circuits.ranks[U(circuits.ranks_with_room[U(i)])]
        rank.has_room = 0
        while rank.first_for_room >= 0:
            number = np.int64(rank.first_for_room)
            needed_bytes = min(work.tasks[U(number)].amount, switch.buffer_bytes)
            if rank.reserved_bytes + needed_bytes > switch.buffer_bytes:
                break
            rank.reserved_bytes += needed_bytes
            rank.first_for_room = circuits.tasks[U(number)].next_for_room
            if rank.first_for_room < 0:
                rank.last_for_room = -1
            circuits.heads[U(num_heads)] = number
            num_heads += 1
    switch.num_with_room = 0
    return num_heads
