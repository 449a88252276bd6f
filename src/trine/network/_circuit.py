"""What happens to circuits: set up, used, left, torn down; the readable form is engine/circuits.py."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.network._circuit_state import (
    BUFFER,
    BUSY,
    CIRCUIT,
    FIRST,
    FIRST_ASKING,
    FIRST_ROOM,
    HAS_ROOM,
    IS_BUSY,
    IS_CHANGED,
    IS_OPEN,
    LAST,
    LAST_ASKING,
    LAST_ROOM,
    LAST_TASK,
    LINE,
    LOWER,
    NUM_CHANGED,
    NUM_FREE,
    NUM_OPEN,
    NUM_ROOMS,
    PORTS,
    RANK,
    SINCE_PS,
    STANDS,
    UPPER,
    USED,
    USERS,
    Circuits,
)

U = np.uint64


@inlined
def join_circuit(state: Circuits, task: Int) -> Int:
    """Put ``task`` in line on the circuit between its ends; sets one up if there is none and both have a port for it.

    Returns 0 if it waits in line, 1 if it has to set the circuit up, -1 if an end has no port.
    """
    sender = np.int64(state.sender[U(task)])
    receiver = np.int64(state.receiver[U(task)])
    found = _between(state, sender, receiver)
    answer = np.int64(0)
    if found < 0:
        ports = state.number[U(PORTS)]
        if state.rank[U(RANK * sender + BUSY)] >= ports or state.rank[U(RANK * receiver + BUSY)] >= ports:
            return np.int64(-1)
        _free_port(state, sender, ports)
        _free_port(state, receiver, ports)
        found = _new_circuit(state, min(sender, receiver), max(sender, receiver), ports)
        answer = np.int64(1)
    if state.circuit[U(CIRCUIT * found + USERS)] == 0:
        state.rank[U(RANK * sender + BUSY)] += 1
        state.rank[U(RANK * receiver + BUSY)] += 1
    state.circuit[U(CIRCUIT * found + USERS)] += 1
    _stand_in_line(state, 2 * found + (0 if sender < receiver else 1), task)
    return answer


@inlined
def _between(state: Circuits, rank: Int, other: Int) -> Int:
    """The circuit that joins two ranks, or -1."""
    base = rank * state.number[U(PORTS)]
    for port in range(state.rank[U(RANK * rank + USED)]):
        circuit = np.int64(state.ports[U(base + port)])
        if state.circuit[U(CIRCUIT * circuit + LOWER)] == other or state.circuit[U(CIRCUIT * circuit + UPPER)] == other:
            return circuit
    return np.int64(-1)


@inlined
def _free_port(state: Circuits, rank: Int, ports: Int) -> None:
    """If all ports of ``rank`` hold circuits, tear down that of the idle ones which is idle longest."""
    if state.rank[U(RANK * rank + USED)] < ports:
        return
    worst = np.int64(-1)
    for port in range(ports):
        circuit = np.int64(state.ports[U(rank * ports + port)])
        if state.circuit[U(CIRCUIT * circuit + USERS)] > 0:
            continue
        if worst < 0 or _idler(state, circuit, worst):
            worst = circuit
    _leave_port(state, np.int64(state.circuit[U(CIRCUIT * worst + LOWER)]), worst, ports)
    _leave_port(state, np.int64(state.circuit[U(CIRCUIT * worst + UPPER)]), worst, ports)
    state.free[U(state.number[U(NUM_FREE)])] = worst
    state.number[U(NUM_FREE)] += 1


@inlined
def _idler(state: Circuits, circuit: Int, other: Int) -> bool:
    """Whether ``circuit`` has been idle longer; if as long, whether its last task has the lower number."""
    since_ps = state.circuit[U(CIRCUIT * circuit + SINCE_PS)]
    other_ps = state.circuit[U(CIRCUIT * other + SINCE_PS)]
    if since_ps != other_ps:
        return bool(since_ps < other_ps)
    return bool(state.circuit[U(CIRCUIT * circuit + LAST_TASK)] < state.circuit[U(CIRCUIT * other + LAST_TASK)])


@inlined
def _leave_port(state: Circuits, rank: Int, circuit: Int, ports: Int) -> None:
    last = np.int64(state.rank[U(RANK * rank + USED)]) - 1
    base = rank * ports
    for port in range(last):
        if state.ports[U(base + port)] == circuit:
            state.ports[U(base + port)] = state.ports[U(base + last)]
            break
    state.rank[U(RANK * rank + USED)] = last


@inlined
def _new_circuit(state: Circuits, lower: Int, upper: Int, ports: Int) -> Int:
    """A circuit that does not yet stand, on a port of both ends."""
    state.number[U(NUM_FREE)] -= 1
    circuit = np.int64(state.free[U(state.number[U(NUM_FREE)])])
    state.circuit[U(CIRCUIT * circuit + LOWER)] = lower
    state.circuit[U(CIRCUIT * circuit + UPPER)] = upper
    state.circuit[U(CIRCUIT * circuit + USERS)] = 0
    state.circuit[U(CIRCUIT * circuit + STANDS)] = 0
    state.circuit[U(CIRCUIT * circuit + SINCE_PS)] = -1
    state.circuit[U(CIRCUIT * circuit + LAST_TASK)] = -1
    for end in range(2):
        rank = lower if end == 0 else upper
        used = np.int64(state.rank[U(RANK * rank + USED)])
        state.ports[U(rank * ports + used)] = circuit
        state.rank[U(RANK * rank + USED)] = used + 1
    return circuit


@inlined
def _stand_in_line(state: Circuits, line: Int, task: Int) -> None:
    state.line_of[U(task)] = line
    state.next_in_line[U(task)] = -1
    last = np.int64(state.line[U(LINE * line + LAST)])
    if last < 0:
        state.line[U(LINE * line + FIRST)] = task
    else:
        state.next_in_line[U(last)] = task
    state.line[U(LINE * line + LAST)] = task
    open_line(state, line)


@inlined
def open_line(state: Circuits, line: Int) -> None:
    """Note that the first transfer of ``line`` may be able to send."""
    if state.line[U(LINE * line + IS_OPEN)] == 0:
        state.line[U(LINE * line + IS_OPEN)] = 1
        state.open[U(state.number[U(NUM_OPEN)])] = line
        state.number[U(NUM_OPEN)] += 1


@inlined
def end_setup(state: Circuits, task: Int) -> None:
    """The circuit that ``task`` set up stands."""
    circuit = np.int64(state.line_of[U(task)]) >> 1
    state.circuit[U(CIRCUIT * circuit + STANDS)] = 1
    open_line(state, 2 * circuit)
    open_line(state, 2 * circuit + 1)


@inlined
def leave_line(state: Circuits, task: Int) -> None:
    """The last byte of ``task`` has left."""
    line = np.int64(state.line_of[U(task)])
    after = np.int64(state.next_in_line[U(task)])
    state.line[U(LINE * line + FIRST)] = after
    if after < 0:
        state.line[U(LINE * line + LAST)] = -1
    state.line[U(LINE * line + IS_BUSY)] = 0
    open_line(state, line)


@inlined
def leave_circuit(state: Circuits, task: Int, size_bytes: Int, now: Int) -> None:
    """``task`` has been received."""
    circuit = CIRCUIT * (np.int64(state.line_of[U(task)]) >> 1)
    if state.circuit[U(circuit + SINCE_PS)] != now or state.circuit[U(circuit + LAST_TASK)] < task:
        state.circuit[U(circuit + LAST_TASK)] = task
    state.circuit[U(circuit + SINCE_PS)] = now
    state.circuit[U(circuit + USERS)] -= 1
    if state.circuit[U(circuit + USERS)] == 0:
        for end in range(2):
            rank = np.int64(state.circuit[U(circuit + LOWER + end)])
            state.rank[U(RANK * rank + BUSY)] -= 1
            if state.rank[U(RANK * rank + IS_CHANGED)] == 0:
                state.rank[U(RANK * rank + IS_CHANGED)] = 1
                state.changed[U(state.number[U(NUM_CHANGED)])] = rank
                state.number[U(NUM_CHANGED)] += 1
    if state.number[U(BUFFER)] > 0:
        receiver = np.int64(state.receiver[U(task)])
        state.reserved[U(receiver)] -= min(size_bytes, state.number[U(BUFFER)])
        look_for_room(state, receiver)


@inlined
def look_for_room(state: Circuits, receiver: Int) -> None:
    """Note that something may be sent to ``receiver``."""
    if state.rank[U(RANK * receiver + HAS_ROOM)] == 0:
        state.rank[U(RANK * receiver + HAS_ROOM)] = 1
        state.rooms[U(state.number[U(NUM_ROOMS)])] = receiver
        state.number[U(NUM_ROOMS)] += 1


@inlined
def wait_for_room(state: Circuits, task: Int) -> None:
    """Put ``task`` behind those that wait for the receive buffer."""
    receiver = np.int64(state.receiver[U(task)])
    state.next_in_room[U(task)] = -1
    last = np.int64(state.rank[U(RANK * receiver + LAST_ROOM)])
    if last < 0:
        state.rank[U(RANK * receiver + FIRST_ROOM)] = task
    else:
        state.next_in_room[U(last)] = task
    state.rank[U(RANK * receiver + LAST_ROOM)] = task
    look_for_room(state, receiver)


@inlined
def take_room(state: Circuits, receiver: Int, size_bytes: Int) -> bool:
    """Reserve room for the first that waits for ``receiver``, if there is; what is larger than the buffer takes all."""
    need = min(size_bytes, state.number[U(BUFFER)])
    if state.reserved[U(receiver)] + need > state.number[U(BUFFER)]:
        return False
    state.reserved[U(receiver)] += need
    after = np.int64(state.next_in_room[U(state.rank[U(RANK * receiver + FIRST_ROOM)])])
    state.rank[U(RANK * receiver + FIRST_ROOM)] = after
    if after < 0:
        state.rank[U(RANK * receiver + LAST_ROOM)] = -1
    return True


@inlined
def wait_for_circuit(state: Circuits, task: Int) -> None:
    """Put ``task`` behind those that wait at both of its ends."""
    for end in range(2):
        rank = np.int64(state.sender[U(task)]) if end == 0 else np.int64(state.receiver[U(task)])
        node = 2 * task + end
        last = np.int64(state.rank[U(RANK * rank + LAST_ASKING)])
        state.asking[U(2 * node)] = -1
        state.asking[U(2 * node + 1)] = last
        if last < 0:
            state.rank[U(RANK * rank + FIRST_ASKING)] = node
        else:
            state.asking[U(2 * last)] = node
        state.rank[U(RANK * rank + LAST_ASKING)] = node


@inlined
def stop_waiting(state: Circuits, task: Int) -> None:
    """Take ``task`` off the lists of those that wait at its ends."""
    for end in range(2):
        rank = np.int64(state.sender[U(task)]) if end == 0 else np.int64(state.receiver[U(task)])
        node = 2 * task + end
        after = np.int64(state.asking[U(2 * node)])
        before = np.int64(state.asking[U(2 * node + 1)])
        if before < 0:
            state.rank[U(RANK * rank + FIRST_ASKING)] = after
        else:
            state.asking[U(2 * before)] = after
        if after < 0:
            state.rank[U(RANK * rank + LAST_ASKING)] = before
        else:
            state.asking[U(2 * after + 1)] = before
