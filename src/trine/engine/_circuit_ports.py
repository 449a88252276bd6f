"""Circuits and the ports of their two ends, compiled."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.engine._receive_buffers import look_for_room
from trine.engine._state import CircuitTables

U = np.uint64


@inlined
def find_between(circuits: CircuitTables, rank: Int, peer: Int) -> Int:
    """Return the circuit that joins two ranks, or -1."""
    first = rank * circuits.switch[U(0)].ports
    for port in range(first, first + circuits.ranks[U(rank)].num_circuits):
        circuit = np.int64(circuits.ports[U(port)])
        ends = circuits.joints[U(circuit)].ends
        if ends[U(0)] == peer or ends[U(1)] == peer:
            return circuit
    return np.int64(-1)


@inlined
def free_port(circuits: CircuitTables, rank: Int) -> None:
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
def new_circuit(circuits: CircuitTables, lower: Int, upper: Int) -> Int:
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
def leave_circuit(circuits: CircuitTables, clock: Record, number: Int, size_bytes: Int) -> None:
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
        look_for_room(circuits, receiver)
