"""Life of circuits, and of transfers over them, compiled; the readable form is circuits.py.

A transfer arrives (after its route's latency), asks for a circuit, queues on it, waits for room at its receiver, sends,
and leaves. The first transfer that asks for a circuit sets it up. A circuit is torn down when one of its ends needs the
port and no idle circuit there has been idle longer.
"""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record, RecordArray
from trine.engine._circuit_lines import find_heads, leave_line, open_line, stand_in_line
from trine.engine._circuit_ports import find_between, free_port, leave_circuit, new_circuit
from trine.engine._flows import drain_ps
from trine.engine._heap import ANY_ORDER, push, sort
from trine.engine._limits import MAX_PS
from trine.engine._state import (
    ASKING,
    IN_LINE,
    LATENCY,
    LISTED,
    SENDING,
    SETTER,
    SETUP,
    UNDERWAY,
    CircuitTables,
    NetworkTables,
    TaskTables,
)

U = np.uint64


@inlined
def circuit_event(circuits: CircuitTables, work: TaskTables, clock: Record, number: Int) -> Int:
    """End the current state of a transfer; return the ps until its next event: 0: it has ended; -1: not known yet."""
    switch, task = circuits.switch[U(0)], circuits.tasks[U(number)]
    switch.has_changed = 1
    if task.step == LATENCY:
        circuits.arrived[U(switch.num_arrived)] = number
        switch.num_arrived += 1
        return np.int64(-1)
    if task.step == SETUP:
        task.step = SETTER
        circuit = np.int64(task.line) >> 1
        circuits.joints[U(circuit)].is_up = 1
        open_line(circuits, 2 * circuit)
        open_line(circuits, 2 * circuit + 1)
        return np.int64(-1)
    if task.step == SENDING:
        leave_line(circuits, number)
        if switch.latency_ps > 0:
            task.step = UNDERWAY
            return np.int64(switch.latency_ps)
    leave_circuit(circuits, clock, number, work.tasks[U(number)].amount)
    return np.int64(0)


@inlined
def settle(circuits: CircuitTables, work: TaskTables, network: NetworkTables, heap: RecordArray, clock: Record) -> None:
    """Assign circuits and start sends, once an instant after all its events.

    The caller has made sure that the heap has room.
    """
    circuits.switch[U(0)].has_changed = 0
    num_askers = _find_askers(circuits)
    for i in range(num_askers):
        number = np.int64(circuits.requests[U(circuits.askers[U(i)])])
        task = circuits.tasks[U(number)]
        was_waiting = task.step == LISTED
        task.step = ASKING
        _ask(circuits, work, network, heap, clock, number)
        still_waits = task.step == ASKING
        if was_waiting and not still_waits:
            _stop_waiting(circuits, number)
        elif still_waits and not was_waiting:
            _wait_for_circuit(circuits, number)
    num_heads = find_heads(circuits, work)
    for i in range(num_heads):
        _send(circuits, work, network, heap, clock, np.int64(circuits.heads[U(i)]))


@inlined
def _find_askers(circuits: CircuitTables) -> Int:
    """Find transfers that wait at ranks with a free port again, then new arrivals, for circuits.askers.

    Writes their positions in circuits.requests, ascending. Returns their number.
    """
    switch = circuits.switch[U(0)]
    num_retries = _ask_again(circuits)
    sort(circuits.askers, num_retries)
    num_arrived = switch.num_arrived
    switch.num_arrived = 0
    sort(circuits.arrived, num_arrived)
    for i in range(num_arrived):
        order = switch.num_requests + i
        circuits.tasks[U(circuits.arrived[U(i)])].order = order
        circuits.requests[U(order)] = circuits.arrived[U(i)]
        circuits.askers[U(num_retries + i)] = order
    switch.num_requests += num_arrived
    return num_retries + num_arrived


@inlined
def _ask_again(circuits: CircuitTables) -> Int:
    """Find transfers that wait at ranks with a free port again, in any order; return their number."""
    switch = circuits.switch[U(0)]
    num_retries = np.int64(0)
    for i in range(switch.num_changed):
        rank = circuits.ranks[U(circuits.changed_ranks[U(i)])]
        rank.is_changed = 0
        if rank.num_busy >= switch.ports:
            continue
        node = np.int64(rank.first_asking)
        while node >= 0:
            task = circuits.tasks[U(node >> 1)]
            if task.step == ASKING:  # else it has already been found at its other end
                task.step = LISTED
                circuits.askers[U(num_retries)] = task.order
                num_retries += 1
            node = np.int64(task.next_asking[U(node & 1)])
    switch.num_changed = 0
    return num_retries


@inlined
def _ask(
    circuits: CircuitTables, work: TaskTables, network: NetworkTables, heap: RecordArray, clock: Record, number: Int
) -> None:
    """Give a transfer the circuit between its ends, or a new one if both have a port for it; else do nothing."""
    switch, task = circuits.switch[U(0)], circuits.tasks[U(number)]
    sender, receiver = np.int64(task.sender), np.int64(task.receiver)
    circuit = find_between(circuits, sender, receiver)
    task_step = IN_LINE
    if circuit < 0:
        if circuits.ranks[U(sender)].num_busy >= switch.ports or circuits.ranks[U(receiver)].num_busy >= switch.ports:
            return
        free_port(circuits, sender)
        free_port(circuits, receiver)
        circuit = new_circuit(circuits, min(sender, receiver), max(sender, receiver))
        task_step = SETUP
    joint = circuits.joints[U(circuit)]
    if joint.num_users == 0:
        circuits.ranks[U(sender)].num_busy += 1
        circuits.ranks[U(receiver)].num_busy += 1
    joint.num_users += 1
    stand_in_line(circuits, 2 * circuit + (0 if sender < receiver else 1), number)
    task.step = task_step
    if task_step == SETUP:
        _begin(work, network, clock, number)
        _queue(heap, clock, number, switch.setup_ps)


@inlined
def _wait_for_circuit(circuits: CircuitTables, number: Int) -> None:
    """Put a transfer behind the ones waiting at both of its ends."""
    task = circuits.tasks[U(number)]
    for end in range(2):
        rank = circuits.ranks[U(task.sender if end == 0 else task.receiver)]
        node = 2 * number + end
        last = np.int64(rank.last_asking)
        task.next_asking[U(end)] = -1
        task.previous_asking[U(end)] = last
        if last < 0:
            rank.first_asking = node
        else:
            circuits.tasks[U(last >> 1)].next_asking[U(last & 1)] = node
        rank.last_asking = node


@inlined
def _stop_waiting(circuits: CircuitTables, number: Int) -> None:
    """Remove a transfer from the waiting lists of its ends."""
    task = circuits.tasks[U(number)]
    for end in range(2):
        rank = circuits.ranks[U(task.sender if end == 0 else task.receiver)]
        following = np.int64(task.next_asking[U(end)])
        previous = np.int64(task.previous_asking[U(end)])
        if previous < 0:
            rank.first_asking = following
        else:
            circuits.tasks[U(previous >> 1)].next_asking[U(previous & 1)] = following
        if following < 0:
            rank.last_asking = previous
        else:
            circuits.tasks[U(following >> 1)].previous_asking[U(following & 1)] = previous


@inlined
def _send(
    circuits: CircuitTables, work: TaskTables, network: NetworkTables, heap: RecordArray, clock: Record, number: Int
) -> None:
    task = circuits.tasks[U(number)]
    if task.step != SETTER:
        _begin(work, network, clock, number)
    task.step = SENDING
    bytes_per_s = np.float64(circuits.switch[U(0)].bytes_per_s)
    _queue(heap, clock, number, drain_ps(np.float64(work.tasks[U(number)].amount), bytes_per_s))


@inlined
def _begin(work: TaskTables, network: NetworkTables, clock: Record, number: Int) -> None:
    """Begin a transfer in the network, after the latency of its route."""
    task = work.tasks[U(number)]
    task.start_ps = clock.now - network.routes[U(task.route)].latency_ps


@inlined
def _queue(heap: RecordArray, clock: Record, number: Int, delay_ps: Int) -> None:
    """Schedule the next event of a transfer; the clock notes an event after MAX_PS."""
    if delay_ps > MAX_PS - clock.now:
        clock.late_task = max(clock.late_task, number)
    else:
        push(heap, clock, clock.now + delay_ps, number, ANY_ORDER)
