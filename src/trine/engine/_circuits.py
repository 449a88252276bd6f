"""Life of circuits, and of transfers over them, compiled; the readable form is circuits.py.

A transfer arrives (after its route's latency), asks for a circuit, queues on it, waits for room at its receiver, sends,
and leaves. The first transfer that asks for a circuit sets it up. A circuit is torn down when one of its ends needs the
port and no idle circuit there has been idle longer.
"""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record, RecordArray
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
        _open_line(circuits, 2 * circuit)
        _open_line(circuits, 2 * circuit + 1)
        return np.int64(-1)
    if task.step == SENDING:
        _leave_line(circuits, number)
        if switch.latency_ps > 0:
            task.step = UNDERWAY
            return np.int64(switch.latency_ps)
    _leave_circuit(circuits, clock, number, work.tasks[U(number)].amount)
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
    num_heads = _find_heads(circuits, work)
    for i in range(num_heads):
        _send(circuits, work, network, heap, clock, np.int64(circuits.heads[U(i)]))


# Asking for a circuit


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
    circuit = _find_between(circuits, sender, receiver)
    task_step = IN_LINE
    if circuit < 0:
        if circuits.ranks[U(sender)].num_busy >= switch.ports or circuits.ranks[U(receiver)].num_busy >= switch.ports:
            return
        _free_port(circuits, sender)
        _free_port(circuits, receiver)
        circuit = _new_circuit(circuits, min(sender, receiver), max(sender, receiver))
        task_step = SETUP
    joint = circuits.joints[U(circuit)]
    if joint.num_users == 0:
        circuits.ranks[U(sender)].num_busy += 1
        circuits.ranks[U(receiver)].num_busy += 1
    joint.num_users += 1
    _stand_in_line(circuits, 2 * circuit + (0 if sender < receiver else 1), number)
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


# Circuits and their ports


@inlined
def _find_between(circuits: CircuitTables, rank: Int, peer: Int) -> Int:
    """Return the circuit that joins two ranks, or -1."""
    first = rank * circuits.switch[U(0)].ports
    for port in range(first, first + circuits.ranks[U(rank)].num_circuits):
        circuit = np.int64(circuits.ports[U(port)])
        ends = circuits.joints[U(circuit)].ends
        if ends[U(0)] == peer or ends[U(1)] == peer:
            return circuit
    return np.int64(-1)


@inlined
def _free_port(circuits: CircuitTables, rank: Int) -> None:
    """Tear down the circuit that has been idle longest if all ports of ``rank`` hold circuits."""
    switch = circuits.switch[U(0)]
    if circuits.ranks[U(rank)].num_circuits < switch.ports:
        return
    longest = np.int64(-1)
    for port in range(rank * switch.ports, (rank + 1) * switch.ports):
        circuit = np.int64(circuits.ports[U(port)])
        if circuits.joints[U(circuit)].num_users > 0:
            continue
        if longest < 0 or _is_idle_longer(circuits, circuit, longest):
            longest = circuit
    for end in range(2):
        _leave_port(circuits, np.int64(circuits.joints[U(longest)].ends[U(end)]), longest)
    circuits.free_circuits[U(switch.num_free)] = longest
    switch.num_free += 1


@inlined
def _is_idle_longer(circuits: CircuitTables, circuit: Int, longest: Int) -> bool:
    """Return whether ``circuit`` has been idle longer than ``longest``; a tie goes to the lower last task."""
    joint, longest_joint = circuits.joints[U(circuit)], circuits.joints[U(longest)]
    if joint.idle_since_ps != longest_joint.idle_since_ps:
        return bool(joint.idle_since_ps < longest_joint.idle_since_ps)
    return bool(joint.last_task < longest_joint.last_task)


@inlined
def _leave_port(circuits: CircuitTables, rank_number: Int, circuit: Int) -> None:
    """Remove a circuit from its port at a rank; the last circuit takes its place."""
    rank = circuits.ranks[U(rank_number)]
    last = np.int64(rank.num_circuits) - 1
    first = rank_number * circuits.switch[U(0)].ports
    for port in range(first, first + last):
        if circuits.ports[U(port)] == circuit:
            circuits.ports[U(port)] = circuits.ports[U(first + last)]
            break
    rank.num_circuits = last


@inlined
def _new_circuit(circuits: CircuitTables, lower: Int, upper: Int) -> Int:
    """Return a new circuit, still down, on a port of both ends."""
    switch = circuits.switch[U(0)]
    switch.num_free -= 1
    circuit = np.int64(circuits.free_circuits[U(switch.num_free)])
    joint = circuits.joints[U(circuit)]
    joint.ends[U(0)] = lower
    joint.ends[U(1)] = upper
    joint.num_users = 0
    joint.is_up = 0
    joint.idle_since_ps = -1
    joint.last_task = -1
    for end in range(2):
        rank_number = lower if end == 0 else upper
        rank = circuits.ranks[U(rank_number)]
        circuits.ports[U(rank_number * switch.ports + rank.num_circuits)] = circuit
        rank.num_circuits += 1
    return circuit


@inlined
def _leave_circuit(circuits: CircuitTables, clock: Record, number: Int, size_bytes: Int) -> None:
    """Remove a transfer from its circuit and receive buffer after it has been received."""
    switch, task = circuits.switch[U(0)], circuits.tasks[U(number)]
    joint = circuits.joints[U(np.int64(task.line) >> 1)]
    if joint.idle_since_ps != clock.now or joint.last_task < number:
        joint.last_task = number
    joint.idle_since_ps = clock.now
    joint.num_users -= 1
    if joint.num_users == 0:
        for end in range(2):
            rank_number = np.int64(joint.ends[U(end)])
            rank = circuits.ranks[U(rank_number)]
            rank.num_busy -= 1
            if rank.is_changed == 0:
                rank.is_changed = 1
                circuits.changed_ranks[U(switch.num_changed)] = rank_number
                switch.num_changed += 1
    if switch.buffer_bytes > 0:
        receiver = np.int64(task.receiver)
        circuits.ranks[U(receiver)].reserved_bytes -= min(size_bytes, switch.buffer_bytes)
        _look_for_room(circuits, receiver)


# Lines: who sends next


@inlined
def _stand_in_line(circuits: CircuitTables, line_number: Int, number: Int) -> None:
    task, line = circuits.tasks[U(number)], circuits.lines[U(line_number)]
    task.line = line_number
    task.next_in_line = -1
    if line.last < 0:
        line.first = number
    else:
        circuits.tasks[U(line.last)].next_in_line = number
    line.last = number
    _open_line(circuits, line_number)


@inlined
def _open_line(circuits: CircuitTables, number: Int) -> None:
    """Note that the first transfer of a line may be able to send."""
    switch, line = circuits.switch[U(0)], circuits.lines[U(number)]
    if line.is_open == 0:
        line.is_open = 1
        circuits.open_lines[U(switch.num_open)] = number
        switch.num_open += 1


@inlined
def _leave_line(circuits: CircuitTables, number: Int) -> None:
    """Free a transfer's line after its last byte has left."""
    task = circuits.tasks[U(number)]
    line = circuits.lines[U(task.line)]
    line.first = task.next_in_line
    if task.next_in_line < 0:
        line.last = -1
    line.is_busy = 0
    _open_line(circuits, np.int64(task.line))


@inlined
def _find_heads(circuits: CircuitTables, work: TaskTables) -> Int:
    """Write the first transfer of each free line to circuits.heads, if its receiver has room; return the count."""
    switch = circuits.switch[U(0)]
    num_heads = np.int64(0)
    for i in range(switch.num_open):
        number = np.int64(circuits.open_lines[U(i)])
        line = circuits.lines[U(number)]
        line.is_open = 0
        if circuits.joints[U(number >> 1)].is_up == 0 or line.is_busy != 0:
            continue
        if line.first >= 0:
            line.is_busy = 1
            circuits.heads[U(num_heads)] = line.first
            num_heads += 1
    switch.num_open = 0
    if switch.buffer_bytes > 0:
        sort(circuits.heads, num_heads)
        for i in range(num_heads):
            _wait_for_room(circuits, np.int64(circuits.heads[U(i)]))
        num_heads = _take_rooms(circuits, work)
    return num_heads


# Room in the receive buffer


@inlined
def _look_for_room(circuits: CircuitTables, number: Int) -> None:
    """Note that a rank may have room for a waiting transfer."""
    switch, rank = circuits.switch[U(0)], circuits.ranks[U(number)]
    if rank.has_room == 0:
        rank.has_room = 1
        circuits.ranks_with_room[U(switch.num_with_room)] = number
        switch.num_with_room += 1


@inlined
def _wait_for_room(circuits: CircuitTables, number: Int) -> None:
    """Put a transfer behind the ones waiting for the receive buffer."""
    task = circuits.tasks[U(number)]
    rank = circuits.ranks[U(task.receiver)]
    task.next_for_room = -1
    if rank.last_for_room < 0:
        rank.first_for_room = number
    else:
        circuits.tasks[U(rank.last_for_room)].next_for_room = number
    rank.last_for_room = number
    _look_for_room(circuits, np.int64(task.receiver))


@inlined
def _take_rooms(circuits: CircuitTables, work: TaskTables) -> Int:
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
