"""Compute tasks that are slowed down while others take part of their stream's speed; the readable form: slowdown.py.

All in whole numbers: attoseconds (millionths of a ps) at full speed, times in ps, speeds in millionths of full speed.
So it makes no difference in how many steps the speed of a stream comes to what it is, or in which order.
"""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine._records import Record, RecordArray
from trine.engine._heap import ANY_ORDER, push
from trine.engine._limits import FULL_PPM, LEAST_PPM, MAX_PS
from trine.engine._state import TaskTables

U = np.uint64


@inlined
def apply_slowdown(work: TaskTables, clock: Record, finished: Int) -> None:
    """A task has ended: its stream loses or gets back speed."""
    number = np.int64(work.slowdown_stream[U(finished)])
    if number >= 0:
        work.streams[U(number)].taken_ppm += np.int64(work.slowdown_ppm[U(finished)])
        _note_change(work, clock, number)


@inlined
def begin_rate_limited(work: TaskTables, clock: Record, number: Int) -> None:
    """Let a task run on its stream; :func:`update_speeds` predicts its end."""
    task = work.tasks[U(number)]
    stream = work.streams[U(task.stream)]
    stream.left_as = task.amount * FULL_PPM
    stream.since_ps = clock.now
    stream.due_ps = -1
    stream.running = number
    _note_change(work, clock, np.int64(task.stream))


@inlined
def ends_now(work: TaskTables, clock: Record, number: Int) -> bool:
    """Whether an entry of the heap that says so is still valid; if so the task no longer runs."""
    task = work.tasks[U(number)]
    if task.stream < 0 or task.amount == 0:
        return True
    stream = work.streams[U(task.stream)]
    if stream.running != number or stream.due_ps != clock.now:
        return False
    stream.running = -1
    return True


@inlined
def update_speeds(work: TaskTables, heap: RecordArray, clock: Record) -> None:
    """Give the changed streams their speeds, and put new ends of their tasks on the heap, which has room for them.

    Notes in the clock a task that would end after MAX_PS, and a stream that is faster than full speed.
    """
    now = clock.now
    clock.fast_stream = -1
    for at in range(clock.num_changed):
        number = np.int64(work.changed_streams[U(at)])
        stream = work.streams[U(number)]
        stream.is_changed = 0
        speed_ppm = FULL_PPM - stream.taken_ppm
        if speed_ppm > FULL_PPM:
            clock.fast_stream = max(clock.fast_stream, number)
        speed_ppm = max(np.int64(LEAST_PPM), speed_ppm)
        if stream.running >= 0:
            left_as = stream.left_as - (now - stream.since_ps) * stream.speed_ppm
            delay_ps = (left_as + speed_ppm - 1) // speed_ppm
            if delay_ps > MAX_PS - now:
                clock.late_task = max(clock.late_task, stream.running)
            elif now + delay_ps != stream.due_ps:
                stream.due_ps = now + delay_ps
                push(heap, clock, now + delay_ps, stream.running, ANY_ORDER)
            stream.left_as = left_as
        stream.since_ps = now
        stream.speed_ppm = speed_ppm
    clock.num_changed = 0


@inlined
def _note_change(work: TaskTables, clock: Record, number: Int) -> None:
    """A stream has changed at this instant."""
    stream = work.streams[U(number)]
    if stream.is_changed == 0:
        stream.is_changed = 1
        work.changed_streams[U(clock.num_changed)] = number
        clock.num_changed += 1
