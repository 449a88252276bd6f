"""Compute tasks that are slowed down while others take part of their stream's speed.

All in whole numbers: attoseconds (millionths of a ps) at full speed, times in ps, speeds in millionths of full speed.
So it makes no difference in how many steps the speed of a stream comes to what it is, or in which order.
"""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.engine._heap import push
from trine.engine._state import (
    AMOUNT,
    DUE_PS,
    HALVES,
    IS_CHANGED,
    LEFT_AS,
    PACE,
    PACED_SINCE_PS,
    RUNNING,
    SPEED,
    STREAM,
    TAKEN,
    WORDS,
    Streams,
    Tasks,
)
from trine.network._limits import FULL_PPM, LEAST_PPM, MAX_PS

U = np.uint64


@inlined
def press(streams: Streams, num_changed: Int, finished: Int) -> Int:
    """Apply the pressure of a task that has ended; returns the new number of changed streams."""
    stream = np.int64(streams.pressure_stream[U(finished)])
    if stream < 0:
        return num_changed
    streams.pace[U(PACE * stream + TAKEN)] += np.int64(streams.pressure_ppm[U(finished)])
    return _note(streams, num_changed, stream)


@inlined
def begin_paced(tasks: Tasks, streams: Streams, num_changed: Int, task: Int, now: Int) -> Int:
    """Let ``task`` run on its stream; :func:`repace` foresees its end. Returns the new number of changed streams."""
    stream = np.int64(tasks.half[U(HALVES * task + STREAM)])
    base = PACE * stream
    streams.pace[U(base + LEFT_AS)] = tasks.word[U(WORDS * task + AMOUNT)] * FULL_PPM
    streams.pace[U(base + PACED_SINCE_PS)] = now
    streams.pace[U(base + DUE_PS)] = -1
    streams.pace[U(base + RUNNING)] = task
    return _note(streams, num_changed, stream)


@inlined
def ends_now(tasks: Tasks, streams: Streams, task: Int, now: Int) -> bool:
    """Whether an entry of the heap that says so is still valid; if so the task no longer runs."""
    stream = np.int64(tasks.half[U(HALVES * task + STREAM)])
    if stream < 0 or tasks.word[U(WORDS * task + AMOUNT)] == 0:
        return True
    base = PACE * stream
    if streams.pace[U(base + RUNNING)] != task or streams.pace[U(base + DUE_PS)] != now:
        return False
    streams.pace[U(base + RUNNING)] = -1
    return True


@inlined
def repace(streams: Streams, heap: Int64, size: Int, num_changed: Int, now: Int) -> tuple[Int, Int, Int]:
    """Give the changed streams their speeds, and put new ends of their tasks on the heap, which has room for them.

    Returns the size of the heap, a task that would end after MAX_PS or -1, and a stream that is faster than full speed
    or -1.
    """
    late = np.int64(-1)
    fast = np.int64(-1)
    for at in range(num_changed):
        stream = np.int64(streams.changed[U(at)])
        base = PACE * stream
        streams.pace[U(base + IS_CHANGED)] = 0
        speed = FULL_PPM - streams.pace[U(base + TAKEN)]
        if speed > FULL_PPM:
            fast = max(fast, stream)
        speed = max(np.int64(LEAST_PPM), speed)
        task = streams.pace[U(base + RUNNING)]
        if task >= 0:
            elapsed_ps = now - streams.pace[U(base + PACED_SINCE_PS)]
            left_as = streams.pace[U(base + LEFT_AS)] - elapsed_ps * streams.pace[U(base + SPEED)]
            delay_ps = (left_as + speed - 1) // speed
            if delay_ps > MAX_PS - now:
                late = max(late, task)
            elif now + delay_ps != streams.pace[U(base + DUE_PS)]:
                streams.pace[U(base + DUE_PS)] = now + delay_ps
                size = push(heap, size, now + delay_ps, task)
            streams.pace[U(base + LEFT_AS)] = left_as
        streams.pace[U(base + PACED_SINCE_PS)] = now
        streams.pace[U(base + SPEED)] = speed
    return size, late, fast


@inlined
def _note(streams: Streams, num_changed: Int, stream: Int) -> Int:
    """Note that ``stream`` has changed at this instant; returns the new number of those that have."""
    if streams.pace[U(PACE * stream + IS_CHANGED)] == 0:
        streams.pace[U(PACE * stream + IS_CHANGED)] = 1
        streams.changed[U(num_changed)] = stream
        num_changed += 1
    return num_changed
