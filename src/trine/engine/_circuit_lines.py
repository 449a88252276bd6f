"""Lines of transfers at circuits, compiled: the first one sends, if its receiver has room."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.engine._heap import sort
from trine.engine._receive_buffers import take_rooms, wait_for_room
from trine.engine._state import CircuitTables, TaskTables

U = np.uint64


@inlined
def stand_in_line(circuits: CircuitTables, line_number: Int, number: Int) -> None:
    task, line = circuits.tasks[U(number)], circuits.lines[U(line_number)]
    task.line = line_number
    task.next_in_line = -1
    if line.last < 0:
        line.first = number
    else:
        circuits.tasks[U(line.last)].next_in_line = number
    line.last = number
    open_line(circuits, line_number)


@inlined
def open_line(circuits: CircuitTables, number: Int) -> None:
    """Note that the first transfer of a line may be able to send."""
    switch, line = circuits.switch[U(0)], circuits.lines[U(number)]
    if line.is_open == 0:
        line.is_open = 1
        circuits.open_lines[U(switch.num_open)] = number
        switch.num_open += 1


@inlined
def leave_line(circuits: CircuitTables, number: Int) -> None:
    """Free a transfer's line after its last byte has left."""
    task = circuits.tasks[U(number)]
    line = circuits.lines[U(task.line)]
    line.first = task.next_in_line
    if task.next_in_line < 0:
        line.last = -1
    line.is_busy = 0
    open_line(circuits, np.int64(task.line))


@inlined
def find_heads(circuits: CircuitTables, work: TaskTables) -> Int:
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
            wait_for_room(circuits, np.int64(circuits.heads[U(i)]))
        num_heads = take_rooms(circuits, work)
    return num_heads
