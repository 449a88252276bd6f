"""Events in order: a wheel of 32 ps buckets, each sorted when it is opened; a heap for what is far away, and for tasks.

One event an entity, so that lists need no memory of their own. 1.3 to 1.5 times as fast as a heap alone, with the same
order.
"""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine._records import Record
from trine.arrays import Int32, Int64
from trine.engine._heap import BY_PAYLOAD, pop, push
from trine.gpu._state import BUCKET_BITS, FINISHED, NUM_BUCKETS, PAUSED, SHIFT_TIME, STOPPED, Entities, Wheel

U = np.uint64
_MASK = NUM_BUCKETS - 1
_INSIDE = (1 << BUCKET_BITS) - 1

#: What :func:`next_event` returns where the top of the heap is next; what it returns where nothing may happen is below.
FROM_HEAP = -1


@inlined
def give_event(entities: Entities, clock: Record, entity: Int, at_ps: Int, key: Int) -> None:
    """At the end of this turn ``entity`` gets an event."""
    event = entities.events[U(entity)]
    event.time_ps = at_ps
    event.key = key
    clock.scheduled = entity


@inlined
def schedule(entities: Entities, wheel: Wheel, clock: Record, first_far: Int, entity: Int) -> None:
    """Put the event of ``entity`` into the order; in the heap it has number ``first_far + entity``."""
    open_key, open_id = wheel.open_key, wheel.open_id
    event = entities.events[U(entity)]
    at_ps = event.time_ps
    bucket = at_ps >> BUCKET_BITS
    ahead = bucket - clock.open_bucket
    if ahead == 0:
        at = clock.num_open
        clock.num_open = at + 1
        whole = ((at_ps & _INSIDE) << SHIFT_TIME) | event.key
        first = clock.at_open
        while at > first and open_key[U(at - 1)] > whole:
            open_key[U(at)] = open_key[U(at - 1)]
            open_id[U(at)] = open_id[U(at - 1)]
            at -= 1
        open_key[U(at)] = whole
        open_id[U(at)] = entity
    elif ahead < NUM_BUCKETS:
        slot = bucket & _MASK
        wheel.next[U(entity)] = wheel.head[U(slot)]
        wheel.head[U(slot)] = entity
        clock.num_in_wheel += 1
    else:
        push(wheel.heap, clock, at_ps, first_far + entity, BY_PAYLOAD)


@inlined
def next_event(entities: Entities, wheel: Wheel, clock: Record, limit: Int) -> Int:
    """The entity whose event it is from now on; FROM_HEAP; or FROM_HEAP - 1 - why, where none may happen now."""
    heap = wheel.heap
    if clock.at_open == clock.num_open:
        if clock.num_in_wheel == 0:
            return FROM_HEAP if clock.num_queued > 0 else FROM_HEAP - 1 - FINISHED
        bucket = clock.open_bucket + 1
        while wheel.head[U(bucket & _MASK)] < 0:
            bucket += 1
        if clock.num_queued > 0 and heap[U(0)].time_ps < bucket << BUCKET_BITS:
            return FROM_HEAP
        if bucket << BUCKET_BITS > clock.stop_ps:
            return FROM_HEAP - 1 - STOPPED
        _open(entities, wheel, clock, bucket)
    at = clock.at_open
    at_ps = (clock.open_bucket << BUCKET_BITS) + (wheel.open_key[U(at)] >> SHIFT_TIME)
    if clock.num_queued > 0 and heap[U(0)].time_ps <= at_ps:
        return FROM_HEAP
    if at_ps > clock.stop_ps:
        return FROM_HEAP - 1 - STOPPED
    if clock.num_events >= limit:
        return FROM_HEAP - 1 - PAUSED
    clock.now = at_ps
    clock.num_events += 1
    clock.at_open = at + 1
    return np.int64(wheel.open_id[U(at)])


@inlined
def take_far(wheel: Wheel, clock: Record) -> Int:
    """What is at the top of the heap happens now."""
    top = wheel.heap[U(0)]
    now = top.time_ps
    payload = top.payload
    clock.now = now
    clock.num_events += 1
    pop(wheel.heap, clock, BY_PAYLOAD)
    if clock.at_open == clock.num_open:
        clock.open_bucket = now >> BUCKET_BITS
        clock.at_open = 0
        clock.num_open = 0
    return payload


@inlined
def _open(entities: Entities, wheel: Wheel, clock: Record, bucket: Int) -> None:
    """Sort the events of ``bucket`` into the open one, which must be empty."""
    open_key, open_id = wheel.open_key, wheel.open_id
    slot = bucket & _MASK
    entity = np.int64(wheel.head[U(slot)])
    wheel.head[U(slot)] = -1
    count = np.int64(0)
    while entity >= 0:
        event = entities.events[U(entity)]
        open_key[U(count)] = ((event.time_ps & _INSIDE) << SHIFT_TIME) | event.key
        open_id[U(count)] = entity
        count += 1
        entity = np.int64(wheel.next[U(entity)])
    clock.open_bucket = bucket
    clock.at_open = 0
    clock.num_open = count
    clock.num_in_wheel -= count
    _sort(open_key, open_id, count)


@inlined
def _sort(keys: Int64, ids: Int32, count: Int) -> None:
    """Shell sort; with few events the only gap is 1, which is an insertion sort."""
    gap = np.int64(1)
    while gap * 9 < count:
        gap = gap * 3 + 1
    while gap > 0:
        for i in range(gap, count):
            key = keys[U(i)]
            entity = ids[U(i)]
            at = np.int64(i)
            while at >= gap and keys[U(at - gap)] > key:
                keys[U(at)] = keys[U(at - gap)]
                ids[U(at)] = ids[U(at - gap)]
                at -= gap
            keys[U(at)] = key
            ids[U(at)] = entity
        gap //= 3
