"""Transfers on circuits: what their events mean, and who gets a circuit, a line and room; see engine/circuits.py."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.engine._heap import push
from trine.engine._sort import sort
from trine.engine._state import AMOUNT, HALVES, ROUTE, START_PS, WORDS, Routes, Tasks
from trine.network._circuit import (
    end_setup,
    join_circuit,
    leave_circuit,
    leave_line,
    stop_waiting,
    take_room,
    wait_for_circuit,
    wait_for_room,
)
from trine.network._circuit_state import (
    ASKING,
    BUFFER,
    BUSY,
    BYTES_PER_S,
    CIRCUIT,
    FIRST,
    FIRST_ASKING,
    FIRST_ROOM,
    HAS_CHANGED,
    HAS_ROOM,
    IN_LINE,
    IS_BUSY,
    IS_CHANGED,
    IS_OPEN,
    LATENCY,
    LATENCY_PS,
    LINE,
    LISTED,
    NUM_ARRIVED,
    NUM_ASKED,
    NUM_CHANGED,
    NUM_OPEN,
    NUM_ROOMS,
    PORTS,
    RANK,
    SENDING,
    SETTER,
    SETUP,
    SETUP_PS,
    STANDS,
    UNDERWAY,
    Circuits,
)
from trine.network._flows import drain_ps
from trine.network._limits import MAX_PS

U = np.uint64


@inlined
def circuit_event(circuits: Circuits, tasks: Tasks, task: Int, now: Int) -> Int:
    """What ``task`` was doing is over; returns the ps until its next event: 0: it has ended; -1: not known yet."""
    circuits.number[U(HAS_CHANGED)] = 1
    step = circuits.step[U(task)]
    if step == LATENCY:
        circuits.arrived[U(circuits.number[U(NUM_ARRIVED)])] = task
        circuits.number[U(NUM_ARRIVED)] += 1
        return np.int64(-1)
    if step == SETUP:
        circuits.step[U(task)] = SETTER
        end_setup(circuits, task)
        return np.int64(-1)
    if step == SENDING:
        leave_line(circuits, task)
        if circuits.number[U(LATENCY_PS)] > 0:
            circuits.step[U(task)] = UNDERWAY
            return circuits.number[U(LATENCY_PS)]
    leave_circuit(circuits, task, tasks.word[U(WORDS * task + AMOUNT)], now)
    return np.int64(0)


@inlined
def settle(circuits: Circuits, tasks: Tasks, routes: Routes, heap: Int64, size: Int, now: Int) -> tuple[Int, Int]:
    """Once an instant, when all its events have happened: who gets a circuit, who sends.

    Returns the size of the heap, for which the caller has made sure of the room, and a task that would end too late or
    -1.
    """
    circuits.number[U(HAS_CHANGED)] = 0
    num_found = _who_asks(circuits)
    late = np.int64(-1)
    for at in range(num_found):
        task = np.int64(circuits.asked[U(circuits.found[U(at)])])
        was_waiting = circuits.step[U(task)] == LISTED
        circuits.step[U(task)] = ASKING
        size, beyond = _ask(circuits, tasks, routes, heap, size, task, now)
        late = max(late, beyond)
        still_waits = circuits.step[U(task)] == ASKING
        if was_waiting and not still_waits:
            stop_waiting(circuits, task)
        elif still_waits and not was_waiting:
            wait_for_circuit(circuits, task)
    size, beyond = _send_heads(circuits, tasks, routes, heap, size, now)
    return size, max(late, beyond)


@inlined
def _who_asks(circuits: Circuits) -> Int:
    """Those that wait at ranks that have a port again, then those that have just arrived, into circuits.found.

    By their place in circuits.asked, ascending. Returns their number.
    """
    num_found = _ask_again(circuits)
    sort(circuits.found, num_found)
    num_arrived = circuits.number[U(NUM_ARRIVED)]
    circuits.number[U(NUM_ARRIVED)] = 0
    sort(circuits.arrived, num_arrived)
    for at in range(num_arrived):
        place = circuits.number[U(NUM_ASKED)] + at
        circuits.order[U(circuits.arrived[U(at)])] = place
        circuits.asked[U(place)] = circuits.arrived[U(at)]
        circuits.found[U(num_found + at)] = place
    circuits.number[U(NUM_ASKED)] += num_arrived
    return num_found + num_arrived


@inlined
def _ask_again(circuits: Circuits) -> Int:
    """Find those that wait at ranks that have a port again, in any order; returns their number."""
    num_found = np.int64(0)
    for at in range(circuits.number[U(NUM_CHANGED)]):
        rank = RANK * np.int64(circuits.changed[U(at)])
        circuits.rank[U(rank + IS_CHANGED)] = 0
        if circuits.rank[U(rank + BUSY)] >= circuits.number[U(PORTS)]:
            continue
        node = np.int64(circuits.rank[U(rank + FIRST_ASKING)])
        while node >= 0:
            task = node >> 1
            if circuits.step[U(task)] == ASKING:  # else it has been found at its other end
                circuits.step[U(task)] = LISTED
                circuits.found[U(num_found)] = circuits.order[U(task)]
                num_found += 1
            node = np.int64(circuits.asking[U(2 * node)])
    circuits.number[U(NUM_CHANGED)] = 0
    return num_found


@inlined
def _ask(
    circuits: Circuits, tasks: Tasks, routes: Routes, heap: Int64, size: Int, task: Int, now: Int
) -> tuple[Int, Int]:
    """Give ``task`` a circuit if there can be one; returns the size of the heap, and the task if it ends too late."""
    answer = join_circuit(circuits, task)
    if answer == 0:
        circuits.step[U(task)] = IN_LINE
    if answer <= 0:
        return size, np.int64(-1)
    circuits.step[U(task)] = SETUP
    _begin(tasks, routes, task, now)
    if circuits.number[U(SETUP_PS)] > MAX_PS - now:
        return size, np.int64(task)
    return push(heap, size, now + circuits.number[U(SETUP_PS)], task), np.int64(-1)


@inlined
def _send_heads(circuits: Circuits, tasks: Tasks, routes: Routes, heap: Int64, size: Int, now: Int) -> tuple[Int, Int]:
    """Let the first of each free line send, if its receiver has room; returns the size of the heap, and who is late."""
    num_heads = np.int64(0)
    late = np.int64(-1)
    for at in range(circuits.number[U(NUM_OPEN)]):
        number = np.int64(circuits.open[U(at)])
        line = LINE * number
        circuits.line[U(line + IS_OPEN)] = 0
        if circuits.circuit[U(CIRCUIT * (number >> 1) + STANDS)] == 0 or circuits.line[U(line + IS_BUSY)] != 0:
            continue
        if circuits.line[U(line + FIRST)] >= 0:
            circuits.line[U(line + IS_BUSY)] = 1
            circuits.heads[U(num_heads)] = circuits.line[U(line + FIRST)]
            num_heads += 1
    circuits.number[U(NUM_OPEN)] = 0
    if circuits.number[U(BUFFER)] > 0:
        sort(circuits.heads, num_heads)
        for at in range(num_heads):
            wait_for_room(circuits, np.int64(circuits.heads[U(at)]))
        num_heads = _take_rooms(circuits, tasks)
    for at in range(num_heads):
        size, beyond = _send(circuits, tasks, routes, heap, size, np.int64(circuits.heads[U(at)]), now)
        late = max(late, beyond)
    return size, late


@inlined
def _take_rooms(circuits: Circuits, tasks: Tasks) -> Int:
    """Put all into circuits.heads for which there is room, in the order in which they wait; returns their number."""
    num_heads = np.int64(0)
    for at in range(circuits.number[U(NUM_ROOMS)]):
        receiver = np.int64(circuits.rooms[U(at)])
        circuits.rank[U(RANK * receiver + HAS_ROOM)] = 0
        task = np.int64(circuits.rank[U(RANK * receiver + FIRST_ROOM)])
        while task >= 0:
            if not take_room(circuits, receiver, tasks.word[U(WORDS * task + AMOUNT)]):
                break
            circuits.heads[U(num_heads)] = task
            num_heads += 1
            task = np.int64(circuits.rank[U(RANK * receiver + FIRST_ROOM)])
    circuits.number[U(NUM_ROOMS)] = 0
    return num_heads


@inlined
def _send(
    circuits: Circuits, tasks: Tasks, routes: Routes, heap: Int64, size: Int, task: Int, now: Int
) -> tuple[Int, Int]:
    if circuits.step[U(task)] != SETTER:
        _begin(tasks, routes, task, now)
    circuits.step[U(task)] = SENDING
    size_bytes = tasks.word[U(WORDS * task + AMOUNT)]
    delay_ps = drain_ps(np.float64(size_bytes), np.float64(circuits.number[U(BYTES_PER_S)]))
    if delay_ps > MAX_PS - now:
        return size, np.int64(task)
    return push(heap, size, now + delay_ps, task), np.int64(-1)


@inlined
def _begin(tasks: Tasks, routes: Routes, task: Int, now: Int) -> None:
    """The network begins ``task``, after the latency of its route."""
    latency_ps = routes.latency_ps[U(tasks.half[U(HALVES * task + ROUTE)])]
    tasks.word[U(WORDS * task + START_PS)] = now - latency_ps
