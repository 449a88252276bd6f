"""When things start and end: tasks of the graph, kernels, workgroups."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.engine._limits import MAX_PS
from trine.engine._state import COMPUTE as COMPUTE_TASK
from trine.engine._state import JOIN as JOIN_TASK
from trine.engine._state import TaskTables
from trine.engine._tasks import stream_ready
from trine.gpu._acts import take_request, wake_group
from trine.gpu._flows import make_transfer
from trine.gpu._later import push
from trine.gpu._state import (
    BEGIN,
    C_GROUPS,
    C_WAVES,
    CU_HALVES,
    D_GONE,
    D_NEW,
    DISPATCH_CLASS,
    ENDED,
    KICK_GPU,
    N_CUS,
    N_DISPATCH_PS,
    N_FIRST_DISPATCHER,
    N_LAUNCH_PS,
    N_MAX_GROUPS,
    N_WAVES,
    NOW,
    NUM_DONE,
    NUM_HEAP,
    NUM_READY,
    SCHEDULED,
    SHIFT_CLASS,
    W_COUNT,
    W_CU,
    W_DOING,
    W_END,
    W_GROUP,
    W_INDEX,
    W_LINE,
    W_OP,
    W_OPERAND,
    W_PLACES,
    W_SIBLING,
    W_UNFINISHED,
    WAVE_HALVES,
    Code,
    Entities,
    Machine,
    Seen,
    Ways,
    Wheel,
)
from trine.gpu._wheel import give_event

U = np.uint64


@inlined
def begin_ready(work: TaskTables, n: Int64) -> None:
    """A task that has become ready begins, or waits for its stream."""
    n[NUM_READY] -= 1
    task = np.int64(work.ready[U(n[NUM_READY])])
    work.tasks[U(task)].ready_ps = n[NOW]
    if work.tasks[U(task)].kind != COMPUTE_TASK or stream_ready(work, task):
        n[BEGIN] = task


@inlined
def begin(work: TaskTables, e: Entities, c: Code, w: Ways, wheel: Wheel, n: Int64, k: Int64) -> bool:
    """A task begins; returns whether it would last until after MAX_PS."""
    task, now = n[BEGIN], n[NOW]
    n[BEGIN] = -1
    kind = work.tasks[U(task)].kind
    amount = work.tasks[U(task)].amount
    work.tasks[U(task)].start_ps = now
    if kind == JOIN_TASK:
        n[ENDED] = task
    elif kind == COMPUTE_TASK:
        carries = c.task_kernel[U(task)] >= 0
        delay_ps = k[N_LAUNCH_PS] if carries else amount
        if delay_ps > MAX_PS - now:
            return True
        n[NUM_HEAP] = push(wheel.heap, n[NUM_HEAP], now + delay_ps, 2 * task + 1 if carries else 2 * task)
    else:
        make_transfer(e, c, w, n, k, take_request(e.fresh, n), task, amount)
    return False


@inlined
def far_event(c: Code, m: Machine, n: Int64, first_far: Int, payload: Int) -> None:
    """What was in the heap: the end of a task (2 * task), a launch (2 * task + 1), an entity whose event is now."""
    if payload >= first_far:
        n[SCHEDULED] = payload - first_far
        return
    task = payload >> 1
    number = np.int64(c.task_kernel[U(task)])
    if payload & 1 == 0 or c.kernels[U(number + 1)] == c.kernels[U(number)]:
        n[ENDED] = task
        return
    gpu = np.int64(c.kernel_gpu[U(number)])
    if m.gpu[U(4 * gpu)] < 0:
        m.gpu[U(4 * gpu)] = number
    else:
        m.kernel[U(3 * np.int64(m.gpu[U(4 * gpu + 1)]) + 2)] = number
    m.gpu[U(4 * gpu + 1)] = number
    n[KICK_GPU] = gpu


@inlined
def end_task(work: TaskTables, n: Int64) -> None:
    """A task has ended: others may become ready."""
    task = n[ENDED]
    n[ENDED] = -1
    work.tasks[U(task)].end_ps = n[NOW]
    n[NUM_DONE] += 1
    first = work.tasks[U(task)].first_successor
    for entry in range(first, first + work.tasks[U(task)].num_successors):
        successor = np.int64(work.successors[U(entry)])
        work.tasks[U(successor)].num_awaited -= 1
        if work.tasks[U(successor)].num_awaited == 0:  # below 0: a join that did not need this one any more
            work.ready[U(n[NUM_READY])] = successor
            n[NUM_READY] += 1
    following = np.int64(work.tasks[U(task)].next_in_stream)
    if following >= 0 and stream_ready(work, following):
        n[BEGIN] = following


@inlined
def kick_gpu(e: Entities, m: Machine, n: Int64, k: Int64) -> None:
    """The GPU's dispatcher gets an event, if it has none and a kernel waits."""
    gpu = n[KICK_GPU]
    n[KICK_GPU] = -1
    if m.gpu[U(4 * gpu + 3)] == 0 and m.gpu[U(4 * gpu)] >= 0:
        m.gpu[U(4 * gpu + 3)] = 1
        key = np.int64(DISPATCH_CLASS) << SHIFT_CLASS
        give_event(e.word, n, k[N_FIRST_DISPATCHER] + gpu, max(n[NOW], m.gpu_ready[U(gpu)]), key)


@inlined
def dispatch(c: Code, m: Machine, seen: Seen, n: Int64, k: Int64, gpu: Int) -> None:
    """The GPU starts the next workgroup of the first kernel in its queue on the next CU with room, if any."""
    m.gpu[U(4 * gpu + 3)] = 0
    number = np.int64(m.gpu[U(4 * gpu)])
    if number < 0:
        return
    count = np.int64(c.kernel_waves[U(number)])
    own = _find_room(m, k, gpu, count)
    if own < 0:
        return
    cu = gpu * k[N_CUS] + own
    group = c.kernels[U(number)] + m.kernel[U(3 * number)]
    m.kernel[U(3 * number)] += 1
    if group + 1 == c.kernels[U(number + 1)]:
        m.gpu[U(4 * gpu)] = m.kernel[U(3 * number + 2)]
    m.gpu[U(4 * gpu + 2)] = own + 1 if own + 1 < k[N_CUS] else 0
    m.cu[U(CU_HALVES * cu + C_GROUPS)] += 1
    m.cu[U(CU_HALVES * cu + C_WAVES)] += count
    seen.group_start[U(group)] = n[NOW]
    seen.group_cu[U(group)] = own
    m.group_left[U(group)] = count
    _start_waves(c, m, n, k, cu, group, count)
    wake_group(m, n, np.int64(m.group_first[U(group)]))
    m.gpu_ready[U(gpu)] = n[NOW] + k[N_DISPATCH_PS]
    n[KICK_GPU] = gpu


@inlined
def _find_room(m: Machine, k: Int64, gpu: Int, count: Int) -> Int:
    """The next CU of the GPU that has room for so many wavefronts; -1: none has."""
    words = m.cu
    own = np.int64(m.gpu[U(4 * gpu + 2)])
    for _ in range(k[N_CUS]):
        at = CU_HALVES * (gpu * k[N_CUS] + own)
        if words[U(at + C_GROUPS)] < k[N_MAX_GROUPS] and words[U(at + C_WAVES)] + count <= k[N_WAVES]:
            return own
        own = own + 1 if own + 1 < k[N_CUS] else np.int64(0)
    return np.int64(-1)


@inlined
def _start_waves(c: Code, m: Machine, n: Int64, k: Int64, cu: Int, group: Int, count: Int) -> None:
    """Give the wavefronts of a workgroup places."""
    wave = m.wave
    before = np.int64(-1)
    place = cu * k[N_WAVES]
    for index in range(count):
        while wave[U(WAVE_HALVES * place + W_DOING)] != D_GONE:
            place += 1
        at = WAVE_HALVES * place
        wave[U(at + W_OP)] = c.workgroups[U(group)]
        wave[U(at + W_END)] = c.workgroups[U(group + 1)]
        wave[U(at + W_GROUP)] = group
        wave[U(at + W_INDEX)] = index
        wave[U(at + W_COUNT)] = count
        wave[U(at + W_LINE)] = index
        wave[U(at + W_OPERAND)] = 0
        wave[U(at + W_PLACES)] = 0
        wave[U(at + W_UNFINISHED)] = 0
        wave[U(at + W_DOING)] = D_NEW
        wave[U(at + W_CU)] = cu
        wave[U(at + W_SIBLING)] = before
        m.wave_since[U(place)] = n[NOW]
        before = place
        place += 1
    m.group_first[U(group)] = before
