"""The load-store event loop, compiled. Its semantics are those of reference.py (docs/design/gpu-model.md)."""

from __future__ import annotations

import numpy as np

import trine.gpu._state as S
from trine._jit import Int, inlined, kernel
from trine.engine._state import AMOUNT, END_PS, HALVES, NEXT_IN_STREAM, READY_PS, START_PS, WORDS, Tasks
from trine.engine._state import COMPUTE as COMPUTE_TASK
from trine.engine._state import JOIN as JOIN_TASK
from trine.engine._state import KIND as TASK_KIND
from trine.engine._tasks import open_gate, release
from trine.gpu._acts import (
    do,
    give_request,
    has_work,
    labelled,
    make_flow,
    make_line,
    make_request,
    next_in_turn,
    occupy,
    packets_of,
    posted_line,
    queue_line,
    queue_wave,
    repeat,
    start_group,
    take_request,
    wait_key,
    wave_key,
)  # fmt: skip
from trine.gpu._cache import DIRTY, HIT, look_up
from trine.gpu._later import pop, push
from trine.gpu._legs import L_FABRIC, hop_ps, next_leg, serve
from trine.gpu._state import Code, Entities, Int64, Machine, Seen, Ways, Wheel
from trine.gpu._wheel import next_bucket, open_bucket, schedule
from trine.model.gpuprogram import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    DMA,
    REDUCE,
    RELEASE,
    STORE,
    WAITCNT,
)
from trine.network._limits import MAX_PS

U = np.uint64


@kernel
def advance(
    tasks: Tasks, c: Code, w: Ways, e: Entities, wheel: Wheel, m: Machine, seen: Seen, n: Int64, k: Int64, budget: Int
) -> Int:
    """Run until nothing can happen, ``budget`` events have, an array is full or the instant to stop has come; returns why.

    All state is in the arguments, so that the shell may grow arrays and call again. One turn of the loop does one thing: what
    follows at once from the last event, in the order of the branches below, else the next event.
    """
    now = n[S.NOW]
    kick_cu, kick_gpu, wake = n[S.KICK_CU], n[S.KICK_GPU], n[S.WAKE]
    inject, inject_number, inject_end = n[S.INJECT], n[S.INJECT_NUMBER], n[S.INJECT_END]
    deliver, begin = n[S.DELIVER], n[S.BEGIN]
    limit = n[S.NUM_EVENTS] + budget
    first_request = k[S.N_FIRST_REQUEST]
    first_far = 2 * k[S.N_TASKS]  # in the heap: ends of tasks (2 * task), launches (+ 1), then entities
    posted = k[S.N_POSTED] == 1
    fair = k[S.N_FAIR] == 1
    status = S.FINISHED
    while True:
        if n[S.NUM_FREE_REQUESTS] < S.MARGIN:
            status = S.REQUESTS_FULL
            break
        if n[S.NUM_FREE_LINES] < S.MARGIN:
            status = S.LINES_FULL
            break
        scheduled = np.int64(-1)  # an entity that gets an event
        at_ps = np.int64(0)
        key = np.int64(0)
        onward = False  # a request, at the beginning of its next leg
        other = np.int64(-1)  # one more: a message that the lane out of a GPU serves next
        other_ps = np.int64(0)
        r = np.int64(-1)  # the request whose event it is
        new_kind = np.int64(-1)  # a request to be made: of this kind, wavefront, operand, line
        new_place = np.int64(0)
        new_operand = np.int64(0)
        new_line = np.int64(-1)
        new_number = np.int64(0)
        freed = np.int64(-1)  # the wavefront that gets a place back
        fewer = np.int64(-1)  # the wavefront that has one thing less unfinished
        ready_line = np.int64(-1)  # a line that has all its reads
        retried = np.int64(-1)  # a poll to be repeated
        over_line = np.int64(-1)
        finished = np.int64(-1)  # a task
        if n[S.NUM_TODO] > 0:
            n[S.NUM_TODO] -= 1
            place = np.int64(m.todo[U(n[S.NUM_TODO])])
            at = S.WAVE_HALVES * place
            cu = np.int64(m.wave[U(at + S.W_CU)])
            index = np.int64(m.wave[U(at + S.W_INDEX)])
            doing = np.int64(-1)
            while doing < 0:
                op = np.int64(m.wave[U(at + S.W_OP)])
                if op == m.wave[U(at + S.W_END)]:
                    doing = np.int64(S.D_OVER) if m.wave[U(at + S.W_UNFINISHED)] == 0 else np.int64(S.D_DRAINING)
                    break
                kind = np.int64(c.kind[U(op)])
                amount = c.amount[U(op)]
                is_control = kind == ACQUIRE or kind == RELEASE or kind == DMA
                mine = index == 0 or not is_control
                if mine and seen.op_start[U(op)] < 0:
                    seen.op_start[U(op)] = now
                issued = np.int64(m.wave[U(at + S.W_OPERAND)])
                unroll = np.int64(c.unroll[U(op)])
                if unroll == 0:
                    unroll = k[S.N_UNROLL]
                wants = False
                if kind <= REDUCE:
                    wants = m.wave[U(at + S.W_LINE)] < amount
                elif kind == RELEASE:
                    wants = mine and issued < c.operands[U(op + 1)] - c.operands[U(op)]
                elif is_control:
                    wants = mine and issued == 0
                elif kind == WAITCNT:
                    if m.wave[U(at + S.W_UNFINISHED)] > amount:
                        doing = np.int64(S.D_COUNTING)
                elif kind == BARRIER:
                    if issued == 0:
                        doing = np.int64(S.D_BARRIER)
                        m.wave[U(at + S.W_OPERAND)] = 1
                elif kind == COMPUTE and issued == 0:
                    doing = np.int64(S.D_COMPUTING)
                    m.wave[U(at + S.W_OPERAND)] = 1
                    done_ps = max(now, m.cu_word[U(S.CU_WORDS * cu + S.C_ALU_PS)]) + amount * k[S.N_CYCLE_PS]
                    m.cu_word[U(S.CU_WORDS * cu + S.C_ALU_PS)] = done_ps
                    scheduled = k[S.N_FIRST_WAVE] + place
                    at_ps = done_ps
                    key = wave_key(c, k, cu, place)
                if wants:
                    full = kind <= REDUCE and m.wave[U(at + S.W_PLACES)] >= unroll
                    doing = np.int64(S.D_FULL) if full else np.int64(S.D_QUEUED)
                if doing < 0:  # through with it
                    if mine:
                        seen.op_end[U(op)] = now
                    m.wave[U(at + S.W_OP)] = op + 1
                    m.wave[U(at + S.W_LINE)] = index
                    m.wave[U(at + S.W_OPERAND)] = 0
            do(m, seen, place, doing, now)
            if doing == S.D_QUEUED:
                queue_wave(m, cu, place)
                kick_cu = cu
            elif doing == S.D_BARRIER:
                group = np.int64(m.wave[U(at + S.W_GROUP)])
                m.group_at[U(group)] += 1
                if m.group_at[U(group)] == m.wave[U(at + S.W_COUNT)]:
                    m.group_at[U(group)] = 0
                    first = np.int64(m.group_first[U(group)])
                    if k[S.N_BARRIER_PS] == 0:
                        _wake_group(m, n, first)
                    else:
                        while m.wave[U(S.WAVE_HALVES * first + S.W_SIBLING)] >= 0:
                            first = np.int64(m.wave[U(S.WAVE_HALVES * first + S.W_SIBLING)])
                        scheduled = k[S.N_FIRST_WAVE] + first
                        at_ps = now + k[S.N_BARRIER_PS]
                        key = wave_key(c, k, cu, first)
            elif doing == S.D_OVER:
                group = np.int64(m.wave[U(at + S.W_GROUP)])
                m.group_left[U(group)] -= 1
                if m.group_left[U(group)] == 0:
                    seen.group_end[U(group)] = now
                    m.cu[U(S.CU_HALVES * cu + S.C_GROUPS)] -= 1
                    m.cu[U(S.CU_HALVES * cu + S.C_WAVES)] -= m.wave[U(at + S.W_COUNT)]
                    sibling = np.int64(m.group_first[U(group)])
                    while sibling >= 0:
                        m.wave[U(S.WAVE_HALVES * sibling + S.W_DOING)] = S.D_GONE
                        sibling = np.int64(m.wave[U(S.WAVE_HALVES * sibling + S.W_SIBLING)])
                    kick_gpu = np.int64(c.cu_gpu[U(cu)])
                    number = np.int64(c.group_kernel[U(group)])
                    m.kernel[U(3 * number + 1)] -= 1
                    if m.kernel[U(3 * number + 1)] == 0:
                        finished = np.int64(c.kernel_task[U(number)])
        elif kick_cu >= 0:
            at = S.CU_HALVES * kick_cu
            if m.cu[U(at + S.C_PENDING)] == 0 and has_work(m, k, kick_cu):
                m.cu[U(at + S.C_PENDING)] = 1
                n[S.CU_EVENTS] += 1
                scheduled = kick_cu
                at_ps = max(now, m.cu_word[U(S.CU_WORDS * kick_cu + S.C_READY_PS)])
                own = kick_cu - c.cu_gpu[U(kick_cu)] * k[S.N_CUS]
                key = (np.int64(S.CU_CLASS) << S.SHIFT_CLASS) | (own << S.SHIFT_WAVE)
            kick_cu = np.int64(-1)
        elif wake >= 0:
            r = np.int64(m.waiting[U(2 * wake)])
            if r >= 0 and e.cold[U(S.COLD * (r - first_request) + S.AMOUNT)] <= m.semaphore[U(wake)]:
                m.waiting[U(2 * wake)] = e.half[U(S.ENTITY_HALVES * r + S.NEXT)]
                m.semaphore[U(wake)] -= e.cold[U(S.COLD * (r - first_request) + S.AMOUNT)]
                e.cold[U(S.COLD * (r - first_request) + S.AMOUNT)] = 0
                scheduled = r
                at_ps = now
                onward = True
            else:
                wake = np.int64(-1)
            r = np.int64(-1)
        elif inject >= 0:
            flow = S.COLD * (inject - first_request)
            r = take_request(e, n)
            at = S.COLD * (r - first_request)
            total = e.cold[U(flow + S.TOTAL_BYTES)]
            size_bytes = min(total - inject_number * k[S.N_PACKET_BYTES], k[S.N_PACKET_BYTES])
            pair = np.int64(e.half[U(S.ENTITY_HALVES * inject + S.PAIR)])
            way = e.cold[U(flow + S.FIRST_WAY)]
            if pair >= 0:
                way = w.pair_out[U(pair)] + inject_number % (w.pair_out[U(pair + 1)] - w.pair_out[U(pair)])
            e.cold[U(at + S.KIND)] = S.KIND_PACKET
            e.cold[U(at + S.ADDRESS)] = inject
            e.cold[U(at + S.NUMBER)] = inject_number
            e.cold[U(at + S.WAY_OUT)] = way
            e.cold[U(at + S.AMOUNT)] = size_bytes + k[S.N_PACKET_HEADER]
            row = np.int64(w.way[U(4 * way)])
            h = S.ENTITY_HALVES * r
            e.half[U(h + S.POS)] = row
            e.half[U(h + S.END)] = w.way[U(4 * way + 1)]
            e.half[U(h + S.STAGE)] = S.S_EGRESS
            e.half[U(h + S.BASE)] = 0
            e.half[U(h + S.SIZE)] = 2 if size_bytes > 0 else 3
            e.half[U(h + S.LEG)] = L_FABRIC
            e.half[U(h + S.PAIR)] = pair
            e.half[U(h + S.WAVE)] = e.half[U(S.ENTITY_HALVES * inject + S.WAVE)]
            e.word[U(S.ENTITY_WORDS * r + S.OWN_KEY)] = e.word[U(S.ENTITY_WORDS * inject + S.OWN_KEY)]
            if e.half[U(h + S.WAVE)] >= 0:
                own_gpu = c.cu_gpu[U(m.wave[U(S.WAVE_HALVES * np.int64(e.half[U(h + S.WAVE)]) + S.W_CU)])]
                seen.counts[U(S.NUM_COUNTS * np.int64(own_gpu) + S.N_PACKETS)] += 1
            scheduled = r
            at_ps = now
            key = labelled(e, r, np.int64(w.label[U(row)]))
            r = np.int64(-1)
            inject_number += 1
            if inject_number == inject_end:
                inject = np.int64(-1)
        elif deliver >= 0:
            flow = np.int64(m.chain[U(3 * deliver)])
            if flow < 0 or e.half[U(S.ENTITY_HALVES * flow + S.STAGE)] != S.S_DELIVERED:
                deliver = np.int64(-1)
            else:
                m.chain[U(3 * deliver)] = e.half[U(S.ENTITY_HALVES * flow + S.LINE)]
                semaphore = e.cold[U(S.COLD * (flow - first_request) + S.SEMAPHORE)]
                if semaphore >= 0:
                    m.semaphore[U(semaphore)] += e.cold[U(S.COLD * (flow - first_request) + S.AMOUNT)]
                    wake = semaphore
                e.half[U(S.ENTITY_HALVES * flow + S.STAGE)] = S.S_KNOWN
                scheduled = flow
                at_ps = now + w.pair_latency[U(deliver)]
                key = wait_key(e, c, k, m, flow)
        elif begin >= 0:
            kind = np.int64(tasks.half[U(HALVES * begin + TASK_KIND)])
            tasks.word[U(WORDS * begin + START_PS)] = now
            if kind == JOIN_TASK:
                finished = begin
            elif kind == COMPUTE_TASK:
                number = np.int64(c.task_kernel[U(begin)])
                payload = 2 * begin if number < 0 else 2 * begin + 1
                delay_ps = tasks.word[U(WORDS * begin + AMOUNT)] if number < 0 else k[S.N_LAUNCH_PS]
                if delay_ps > MAX_PS - now:
                    status = S.OVERFLOW
                    break
                n[S.NUM_HEAP] = push(wheel.heap, n[S.NUM_HEAP], now + delay_ps, payload)
            else:
                route = np.int64(c.task_route[U(begin)])
                flow = take_request(e, n)
                at = S.COLD * (flow - first_request)
                size_bytes = tasks.word[U(WORDS * begin + AMOUNT)]
                e.cold[U(at + S.TOTAL_BYTES)] = size_bytes
                e.cold[U(at + S.NOT_LEFT)] = packets_of(k, size_bytes)
                e.cold[U(at + S.NOT_ARRIVED)] = packets_of(k, size_bytes)
                e.cold[U(at + S.KIND)] = S.KIND_FLOW
                e.cold[U(at + S.TASK)] = begin
                e.cold[U(at + S.FIRST_WAY)] = w.route_way[U(route)]
                e.cold[U(at + S.SEMAPHORE)] = -1
                h = S.ENTITY_HALVES * flow
                e.half[U(h + S.STAGE)] = S.S_FLOW
                e.half[U(h + S.PAIR)] = -1
                e.half[U(h + S.WAVE)] = -1
                own_key = (np.int64(S.TRANSFER_CLASS) << S.SHIFT_CLASS) | (begin << S.SHIFT_SEQ)
                e.word[U(S.ENTITY_WORDS * flow + S.OWN_KEY)] = own_key
                scheduled = flow
                at_ps = now + (c.entry_ps[U(route)] if size_bytes > 0 else c.route_ps[U(route)])
                key = own_key
            begin = np.int64(-1)
        elif n[S.NUM_READY] > 0:
            n[S.NUM_READY] -= 1
            task = np.int64(tasks.ready[U(n[S.NUM_READY])])
            tasks.word[U(WORDS * task + READY_PS)] = now
            if tasks.half[U(HALVES * task + TASK_KIND)] != COMPUTE_TASK or open_gate(tasks, task):
                begin = task
        elif kick_gpu >= 0:
            if m.gpu[U(4 * kick_gpu + 3)] == 0 and m.gpu[U(4 * kick_gpu)] >= 0:
                m.gpu[U(4 * kick_gpu + 3)] = 1
                scheduled = k[S.N_FIRST_DISPATCHER] + kick_gpu
                at_ps = max(now, m.gpu_ready[U(kick_gpu)])
                key = np.int64(S.DISPATCH_CLASS) << S.SHIFT_CLASS
            kick_gpu = np.int64(-1)
        else:
            from_heap = False
            if n[S.AT_OPEN] == n[S.NUM_OPEN]:
                if n[S.IN_WHEEL] > 0:
                    bucket = next_bucket(wheel, n)
                    if n[S.NUM_HEAP] > 0 and wheel.heap[U(0)] < bucket << S.BUCKET_BITS:
                        from_heap = True
                    else:
                        if bucket << S.BUCKET_BITS > n[S.STOP_PS]:
                            status = S.STOPPED
                            break
                        open_bucket(e, wheel, n, bucket)
                elif n[S.NUM_HEAP] > 0:
                    from_heap = True
                else:
                    break
            if not from_heap:
                opened_ps = (n[S.OPEN] << S.BUCKET_BITS) + (wheel.open_key[U(n[S.AT_OPEN])] >> S.SHIFT_TIME)
                from_heap = n[S.NUM_HEAP] > 0 and wheel.heap[U(0)] <= opened_ps
                if not from_heap:
                    if opened_ps > n[S.STOP_PS]:
                        status = S.STOPPED
                        break
                    if n[S.NUM_EVENTS] >= limit:
                        status = S.PAUSED
                        break
                    now = opened_ps
            n[S.NUM_EVENTS] += 1
            entity = np.int64(-1)
            idle = n[S.IDLE]
            n[S.IDLE] = 0
            if from_heap:
                if wheel.heap[U(0)] > n[S.STOP_PS]:
                    n[S.NUM_EVENTS] -= 1
                    status = S.STOPPED
                    break
                now = wheel.heap[U(0)]
                payload = wheel.heap[U(1)]
                n[S.NUM_HEAP] = pop(wheel.heap, n[S.NUM_HEAP])
                if n[S.AT_OPEN] == n[S.NUM_OPEN]:
                    n[S.OPEN] = now >> S.BUCKET_BITS
                    n[S.AT_OPEN] = 0
                    n[S.NUM_OPEN] = 0
                if payload < first_far and payload & 1 == 0:
                    finished = payload >> 1
                elif payload < first_far:
                    number = np.int64(c.task_kernel[U(payload >> 1)])
                    if c.kernels[U(number + 1)] == c.kernels[U(number)]:
                        finished = np.int64(c.kernel_task[U(number)])
                    else:
                        kick_gpu = np.int64(c.kernel_gpu[U(number)])
                        if m.gpu[U(4 * kick_gpu)] < 0:
                            m.gpu[U(4 * kick_gpu)] = number
                        else:
                            m.kernel[U(3 * np.int64(m.gpu[U(4 * kick_gpu + 1)]) + 2)] = number
                        m.gpu[U(4 * kick_gpu + 1)] = number
                else:
                    scheduled = payload - first_far
                    at_ps = now
                    key = e.word[U(S.ENTITY_WORDS * scheduled + S.KEY)]
            else:
                entity = np.int64(wheel.open_id[U(n[S.AT_OPEN])])
                n[S.AT_OPEN] += 1
            if entity >= first_request:
                r = entity
                if e.half[U(S.ENTITY_HALVES * r + S.SIZE)] >= S.POLL:
                    n[S.IDLE] = idle + 1
            elif entity >= k[S.N_FIRST_DISPATCHER]:
                gpu = entity - k[S.N_FIRST_DISPATCHER]
                m.gpu[U(4 * gpu + 3)] = 0
                if start_group(c, m, seen, n, k, gpu, now):
                    m.gpu_ready[U(gpu)] = now + k[S.N_DISPATCH_PS]
                    kick_gpu = gpu
            elif entity >= k[S.N_FIRST_WAVE]:
                place = entity - k[S.N_FIRST_WAVE]
                if m.wave[U(S.WAVE_HALVES * place + S.W_DOING)] == S.D_BARRIER:
                    _wake_group(m, n, np.int64(m.group_first[U(m.wave[U(S.WAVE_HALVES * place + S.W_GROUP)])]))
                else:
                    m.todo[U(n[S.NUM_TODO])] = place
                    n[S.NUM_TODO] += 1
            elif entity >= 0:
                at = S.CU_HALVES * entity
                m.cu[U(at + S.C_PENDING)] = 0
                n[S.CU_EVENTS] -= 1
                item = np.int64(m.cu[U(at + S.C_LINES)])
                place = np.int64(m.cu[U(at + S.C_HEAD)])
                kick_cu = entity
                if item >= 0 and item & 1 == 1:
                    r = item >> 1
                    n[S.IDLE] = idle + 1
                    n[S.QUEUED_POLLS] -= 1
                    m.cu[U(at + S.C_LINES)] = e.half[U(S.ENTITY_HALVES * r + S.NEXT)]
                    repeat(e, c, w, m, seen, k, r, now)
                elif item >= 0:
                    new_line = item >> 1
                    line = S.LINE_HALVES * new_line
                    op = np.int64(m.line[U(line + S.L_OP)])
                    new_operand = c.operands[U(op + 1)] - m.line[U(line + S.L_WRITES)]
                    new_kind = np.int64(S.KIND_STORE)
                    new_place = np.int64(m.line[U(line + S.L_WAVE)])
                    new_number = np.int64(m.line[U(line + S.L_NUMBER)])
                    m.line[U(line + S.L_WRITES)] -= 1
                    if m.line[U(line + S.L_WRITES)] == 0:
                        m.cu[U(at + S.C_LINES)] = m.line[U(line + S.L_NEXT)]
                elif place >= 0 and m.cu[U(at + S.C_PLACES)] < k[S.N_MAX_PLACES]:
                    wave = S.WAVE_HALVES * place
                    m.cu[U(at + S.C_HEAD)] = m.wave[U(wave + S.W_QUEUE)]
                    op = np.int64(m.wave[U(wave + S.W_OP)])
                    kind = np.int64(c.kind[U(op)])
                    issued = np.int64(m.wave[U(wave + S.W_OPERAND)])
                    m.wave[U(wave + S.W_OPERAND)] = issued + 1
                    new_place = place
                    new_operand = c.operands[U(op)] + issued
                    if kind == DMA:
                        flow = take_request(e, n)
                        make_flow(e, c, w, m, k, flow, place, op)
                        m.wave[U(wave + S.W_UNFINISHED)] += 1
                        scheduled = flow
                        at_ps = now + k[S.N_DMA_PS]
                        key = e.word[U(S.ENTITY_WORDS * flow + S.OWN_KEY)]
                    elif kind == ACQUIRE:
                        new_kind = np.int64(S.KIND_ACQUIRE)
                        do(m, seen, place, np.int64(S.D_ACQUIRING), now)
                    else:
                        new_kind = np.int64(S.KIND_LOAD)
                        if kind == STORE:
                            new_kind = np.int64(S.KIND_STORE)
                        elif kind == RELEASE:
                            new_kind = np.int64(S.KIND_RELEASE)
                        new_number = np.int64(m.wave[U(wave + S.W_LINE)])
                        if issued == 0:
                            n[S.NUM_FREE_LINES] -= 1
                            new_line = np.int64(m.free_lines[U(n[S.NUM_FREE_LINES])])
                            make_line(c, m, new_line, place, op, new_number)
                            m.wave[U(wave + S.W_CURRENT)] = new_line
                            m.wave[U(wave + S.W_UNFINISHED)] += 1
                        new_line = np.int64(m.wave[U(wave + S.W_CURRENT)])
                        wanted = c.reads[U(op)]
                        if kind == STORE:
                            wanted = c.operands[U(op + 1)] - c.operands[U(op)]
                        if kind != RELEASE and issued + 1 == wanted:
                            m.wave[U(wave + S.W_OPERAND)] = 0
                            m.wave[U(wave + S.W_LINE)] += m.wave[U(wave + S.W_COUNT)]
                    if kind != DMA:
                        m.wave[U(wave + S.W_PLACES)] += 1
                        m.cu[U(at + S.C_PLACES)] += 1
                        if m.cu[U(at + S.C_PLACES)] == k[S.N_MAX_PLACES]:
                            m.cu_word[U(S.CU_WORDS * entity + S.C_FULL_SINCE)] = now
                    if kind != ACQUIRE:
                        m.todo[U(n[S.NUM_TODO])] = place
                        n[S.NUM_TODO] += 1
                m.cu_word[U(S.CU_WORDS * entity + S.C_READY_PS)] = now + k[S.N_ISSUE_PS]
                if new_kind >= 0:
                    r = take_request(e, n)
                    make_request(e, c, w, m, seen, k, r, new_kind, new_place, new_operand, new_line, new_number, now)
                    n[S.NUM_ISSUED] += 1
        if r >= 0:
            h = S.ENTITY_HALVES * r
            at = S.COLD * (r - first_request)
            stage = np.int64(e.half[U(h + S.STAGE)])
            kind = e.cold[U(at + S.KIND)]
            next_ps = np.int64(-1)  # when it comes to its next place
            done_ps = np.int64(-1)  # when the memory has done what it was asked
            if stage == S.S_HOP:
                row = np.int64(e.half[U(h + S.POS)])
                size = np.int64(e.half[U(h + S.SIZE)])
                service_ps = hop_ps(w, row, size, e.cold[U(at + S.AMOUNT)])
                resource = w.hops[U(S.HOP_WORDS * row)] + e.half[U(h + S.BASE)]
                next_ps = serve(m, resource, now, service_ps, size) + w.hops[U(S.HOP_WORDS * row + S.H_AFTER_PS)]
            elif stage == S.S_EGRESS:
                row = np.int64(e.half[U(h + S.POS)])
                size = np.int64(e.half[U(h + S.SIZE)])
                resource = w.hops[U(S.HOP_WORDS * row)]
                if fair and m.queue[U(6 * resource)] == 1:
                    which = 2 + 2 * (size & 1)
                    e.half[U(h + S.NEXT)] = -1
                    if m.queue[U(6 * resource + which)] < 0:
                        m.queue[U(6 * resource + which)] = r
                    else:
                        last = np.int64(m.queue[U(6 * resource + which + 1)])
                        e.half[U(S.ENTITY_HALVES * last + S.NEXT)] = r
                    m.queue[U(6 * resource + which + 1)] = r
                else:
                    service_ps = hop_ps(w, row, size, e.cold[U(at + S.AMOUNT)])
                    left_ps = serve(m, resource, now, service_ps, size)
                    is_store = kind == S.KIND_STORE or kind == S.KIND_RELEASE
                    is_first = e.half[U(h + S.LEG)] == L_FABRIC and row == w.way[U(4 * e.cold[U(at + S.WAY_OUT)])]
                    if fair or (is_first and (kind == S.KIND_PACKET or (posted and is_store))):
                        if fair:
                            m.queue[U(6 * resource)] = 1
                            m.queue[U(6 * resource + 1)] = 1 - (size & 1)
                        e.half[U(h + S.STAGE)] = S.S_LEFT
                        scheduled = r
                        at_ps = left_ps
                        key = e.word[U(S.ENTITY_WORDS * r + S.KEY)]
                    else:
                        next_ps = left_ps + w.hops[U(S.HOP_WORDS * row + S.H_AFTER_PS)]
            elif stage == S.S_LEFT:
                row = np.int64(e.half[U(h + S.POS)])
                next_ps = now + w.hops[U(S.HOP_WORDS * row + S.H_AFTER_PS)]
                if fair:
                    other, other_ps = next_in_turn(e, w, m, k, w.hops[U(S.HOP_WORDS * row)], now)
                is_first = e.half[U(h + S.LEG)] == L_FABRIC and row == w.way[U(4 * e.cold[U(at + S.WAY_OUT)])]
                if is_first and kind == S.KIND_PACKET:
                    flow_id = e.cold[U(at + S.ADDRESS)]
                    flow = S.COLD * (flow_id - first_request)
                    pair = np.int64(e.half[U(h + S.PAIR)])
                    lanes = np.int64(1)
                    if pair >= 0:
                        lanes = np.int64(w.pair_out[U(pair + 1)]) - w.pair_out[U(pair)]
                    e.cold[U(flow + S.NOT_LEFT)] -= 1
                    inject_number = e.cold[U(at + S.NUMBER)] + lanes
                    inject_end = inject_number + 1
                    if inject_number < packets_of(k, e.cold[U(flow + S.TOTAL_BYTES)]):
                        inject = flow_id
                    elif pair >= 0 and e.cold[U(flow + S.NOT_LEFT)] == 0:
                        inject = np.int64(e.half[U(S.ENTITY_HALVES * flow_id + S.LINE)])
                        m.chain[U(3 * pair + 2)] = inject
                        if inject >= 0:
                            inject_number = np.int64(0)
                            after = S.COLD * (inject - first_request)
                            inject_end = min(lanes, packets_of(k, e.cold[U(after + S.TOTAL_BYTES)]))
                elif is_first and posted and (kind == S.KIND_RELEASE or kind == S.KIND_STORE):
                    if posted_line(c, m, e.half[U(h + S.LINE)]):
                        freed = np.int64(e.half[U(h + S.WAVE)])
            elif stage == S.S_MEMORY:
                pair = np.int64(e.half[U(h + S.PAIR)])
                gpu = np.int64(c.cu_gpu[U(m.wave[U(S.WAVE_HALVES * np.int64(e.half[U(h + S.WAVE)]) + S.W_CU)])])
                if pair >= 0:
                    gpu = np.int64(w.pair_gpu[U(pair)])
                channel = e.cold[U(at + S.CHANNEL)]
                is_data = kind == S.KIND_LOAD or kind == S.KIND_STORE
                memory = gpu * k[S.N_RESOURCES] + k[S.N_FIRST_CHANNEL] + channel
                e.half[U(h + S.BASE)] = gpu * k[S.N_RESOURCES]
                if k[S.N_FIRST_SLICE] < 0:
                    service_ps = k[S.N_MEM_DATA_PS] if is_data else k[S.N_MEM_CONTROL_PS]
                    done_ps = serve(m, memory, now, service_ps, 0 if is_data else 1) + k[S.N_MEMORY_PS]
                else:
                    found = np.int64(HIT)
                    if is_data:
                        stores = np.int64(1) if kind == S.KIND_STORE else np.int64(0)
                        found = look_up(m, seen, n, k, gpu, channel, e.cold[U(at + S.ADDRESS)], stores)
                    cache = gpu * k[S.N_RESOURCES] + k[S.N_FIRST_SLICE] + channel
                    service_ps = k[S.N_L2_DATA_PS] if is_data else k[S.N_L2_CONTROL_PS]
                    done_ps = serve(m, cache, now, service_ps, 0 if is_data else 1) + k[S.N_L2_PS]
                    if found & DIRTY:
                        occupy(m, memory, now, k[S.N_MEM_DATA_PS])
                    if found & HIT == 0 and kind == S.KIND_LOAD:
                        e.half[U(h + S.STAGE)] = S.S_CHANNEL
                        scheduled = r
                        at_ps = done_ps
                        key = e.word[U(S.ENTITY_WORDS * r + S.KEY)]
                        done_ps = np.int64(-1)
            elif stage == S.S_CHANNEL:
                memory = e.half[U(h + S.BASE)] + k[S.N_FIRST_CHANNEL] + e.cold[U(at + S.CHANNEL)]
                done_ps = serve(m, memory, now, k[S.N_MEM_DATA_PS], 0) + k[S.N_MEMORY_PS]
            elif stage == S.S_DONE:
                semaphore = e.cold[U(at + S.SEMAPHORE)]
                answered = True
                if kind == S.KIND_STORE or kind == S.KIND_RELEASE:
                    if semaphore >= 0:
                        m.semaphore[U(semaphore)] += e.cold[U(at + S.AMOUNT)]
                        wake = semaphore
                    if posted and e.half[U(h + S.PAIR)] < 0:
                        if posted_line(c, m, e.half[U(h + S.LINE)]):
                            freed = np.int64(e.half[U(h + S.WAVE)])
                else:
                    waits = m.waiting[U(2 * semaphore)] >= 0
                    if not waits and m.semaphore[U(semaphore)] >= e.cold[U(at + S.AMOUNT)]:
                        m.semaphore[U(semaphore)] -= e.cold[U(at + S.AMOUNT)]
                        e.cold[U(at + S.AMOUNT)] = 0
                    elif k[S.N_POLL_PS] < 0:
                        answered = False
                        e.half[U(h + S.NEXT)] = -1
                        if waits:
                            last = np.int64(m.waiting[U(2 * semaphore + 1)])
                            e.half[U(S.ENTITY_HALVES * last + S.NEXT)] = r
                        else:
                            m.waiting[U(2 * semaphore)] = r
                        m.waiting[U(2 * semaphore + 1)] = r
                if answered:
                    scheduled = r
                    at_ps = now
                    onward = True
            elif stage == S.S_ANSWER:
                place = np.int64(e.half[U(h + S.WAVE)])
                if kind == S.KIND_LOAD:
                    gpu = np.int64(c.cu_gpu[U(m.wave[U(S.WAVE_HALVES * place + S.W_CU)])])
                    seen.counts[U(S.NUM_COUNTS * gpu + S.N_LOAD_PS)] += now - e.cold[U(at + S.ISSUED_PS)]
                is_refused = e.cold[U(at + S.SEMAPHORE)] >= 0 and e.cold[U(at + S.AMOUNT)] > 0
                is_refused = is_refused and (kind == S.KIND_LOAD or kind == S.KIND_ACQUIRE)
                was_poll = e.half[U(h + S.SIZE)] >= S.POLL
                if was_poll and not is_refused:
                    n[S.POLLERS] -= 1
                elif is_refused and not was_poll:
                    n[S.POLLERS] += 1
                    e.half[U(h + S.SIZE)] |= S.POLL
                if is_refused:
                    if n[S.IDLE] > 64 * (n[S.POLLERS] + 2) and _only_polls(n):
                        status = S.STUCK
                        break
                    e.half[U(h + S.STAGE)] = S.S_RETRY
                    scheduled = r
                    at_ps = now + k[S.N_POLL_PS]
                    key = wait_key(e, c, k, m, r)
                elif kind == S.KIND_LOAD:
                    line = S.LINE_HALVES * np.int64(e.half[U(h + S.LINE)])
                    cu = np.int64(m.wave[U(S.WAVE_HALVES * place + S.W_CU)])
                    m.line[U(line + S.L_READS)] -= 1
                    op = np.int64(m.line[U(line + S.L_OP)])
                    if m.line[U(line + S.L_READS)] > 0:
                        freed = place
                        give_request(e, n, r)
                    elif c.kind[U(op)] == REDUCE and c.reads[U(op)] > 1:
                        total = (np.int64(c.reads[U(op)]) - 1) * k[S.N_LINE_BYTES]
                        cycles = (total + k[S.N_REDUCE_PER_CYCLE] - 1) // k[S.N_REDUCE_PER_CYCLE]
                        alu = S.CU_WORDS * cu + S.C_ALU_PS
                        at_ps = max(now, m.cu_word[U(alu)]) + cycles * k[S.N_CYCLE_PS]
                        m.cu_word[U(alu)] = at_ps
                        e.half[U(h + S.STAGE)] = S.S_ALU
                        scheduled = r
                        key = wait_key(e, c, k, m, r)
                    else:
                        ready_line = np.int64(e.half[U(h + S.LINE)])
                        give_request(e, n, r)
                elif kind == S.KIND_ACQUIRE:
                    freed = place
                    m.todo[U(n[S.NUM_TODO])] = place
                    n[S.NUM_TODO] += 1
                    give_request(e, n, r)
                else:
                    if not posted and posted_line(c, m, e.half[U(h + S.LINE)]):
                        freed = place
                    line = S.LINE_HALVES * np.int64(e.half[U(h + S.LINE)])
                    m.line[U(line + S.L_UNACKED)] -= 1
                    if m.line[U(line + S.L_UNACKED)] == 0:
                        fewer = place
                        over_line = np.int64(e.half[U(h + S.LINE)])
                    give_request(e, n, r)
            elif stage == S.S_ALU:
                ready_line = np.int64(e.half[U(h + S.LINE)])
                give_request(e, n, r)
            elif stage == S.S_RETRY:
                retried = r
            elif stage == S.S_FLOW:
                pair = np.int64(e.half[U(h + S.PAIR)])
                packets = packets_of(k, e.cold[U(at + S.TOTAL_BYTES)])
                if pair < 0 and e.cold[U(at + S.TASK)] < 0:  # to its own GPU
                    fewer = np.int64(e.half[U(h + S.WAVE)])
                    if e.cold[U(at + S.SEMAPHORE)] >= 0:
                        wake = e.cold[U(at + S.SEMAPHORE)]
                        m.semaphore[U(wake)] += e.cold[U(at + S.AMOUNT)]
                    give_request(e, n, r)
                elif pair < 0:
                    way = e.cold[U(at + S.FIRST_WAY)]
                    if e.cold[U(at + S.TOTAL_BYTES)] == 0 or w.way[U(4 * way)] == w.way[U(4 * way + 1)]:
                        finished = e.cold[U(at + S.TASK)]
                        give_request(e, n, r)
                    else:
                        inject = r
                        inject_number = np.int64(0)
                        inject_end = np.int64(1)
                else:
                    e.half[U(h + S.LINE)] = -1
                    if m.chain[U(3 * pair)] < 0:
                        m.chain[U(3 * pair)] = r
                    else:
                        last = np.int64(m.chain[U(3 * pair + 1)])
                        e.half[U(S.ENTITY_HALVES * last + S.LINE)] = r
                    m.chain[U(3 * pair + 1)] = r
                    if m.chain[U(3 * pair + 2)] < 0:
                        m.chain[U(3 * pair + 2)] = r
                        inject = r
                        inject_number = np.int64(0)
                        inject_end = min(np.int64(w.pair_out[U(pair + 1)]) - w.pair_out[U(pair)], packets)
            elif stage == S.S_ARRIVED:
                flow_id = e.cold[U(at + S.ADDRESS)]
                flow = S.COLD * (flow_id - first_request)
                e.cold[U(flow + S.NOT_ARRIVED)] -= 1
                give_request(e, n, r)
                if e.cold[U(flow + S.NOT_ARRIVED)] == 0:
                    pair = np.int64(e.half[U(S.ENTITY_HALVES * flow_id + S.PAIR)])
                    if pair < 0:
                        finished = e.cold[U(flow + S.TASK)]
                        give_request(e, n, flow_id)
                    else:
                        e.half[U(S.ENTITY_HALVES * flow_id + S.STAGE)] = S.S_DELIVERED
                        deliver = pair
            elif stage == S.S_KNOWN:
                fewer = np.int64(e.half[U(h + S.WAVE)])
                give_request(e, n, r)
            if next_ps >= 0:
                row = np.int64(e.half[U(h + S.POS)]) + 1
                scheduled = r
                at_ps = next_ps
                if row < e.half[U(h + S.END)]:
                    e.half[U(h + S.POS)] = row
                    e.half[U(h + S.STAGE)] = S.S_HOP
                    if e.half[U(h + S.LEG)] & 3 == 1:
                        if fair and w.leaves[U(row)] == 1:
                            e.half[U(h + S.STAGE)] = S.S_EGRESS
                        key = labelled(e, r, np.int64(w.label[U(row)]))
                    else:
                        key = e.word[U(S.ENTITY_WORDS * r + S.KEY)]
                elif kind == S.KIND_PACKET:
                    e.half[U(h + S.STAGE)] = S.S_ARRIVED
                    key = e.word[U(S.ENTITY_WORDS * r + S.KEY)]
                else:
                    onward = True
            if done_ps >= 0:
                scheduled = r
                at_ps = done_ps
                is_local_store = kind == S.KIND_STORE and posted and e.half[U(h + S.PAIR)] < 0
                if e.cold[U(at + S.SEMAPHORE)] >= 0 or is_local_store:
                    e.half[U(h + S.STAGE)] = S.S_DONE
                    key = e.word[U(S.ENTITY_WORDS * r + S.KEY)]
                else:
                    onward = True
        if ready_line >= 0:
            line = S.LINE_HALVES * ready_line
            if m.line[U(line + S.L_WRITES)] == 0:
                freed = np.int64(m.line[U(line + S.L_WAVE)])
                fewer = freed
                over_line = ready_line
            else:
                cu = np.int64(m.wave[U(S.WAVE_HALVES * np.int64(m.line[U(line + S.L_WAVE)]) + S.W_CU)])
                queue_line(e, m, cu, 2 * ready_line)
                kick_cu = cu
        if retried >= 0:
            place = np.int64(e.half[U(S.ENTITY_HALVES * retried + S.WAVE)])
            cu = np.int64(m.wave[U(S.WAVE_HALVES * place + S.W_CU)])
            queue_line(e, m, cu, 2 * retried + 1)
            n[S.QUEUED_POLLS] += 1
            kick_cu = cu
        if over_line >= 0:
            m.free_lines[U(n[S.NUM_FREE_LINES])] = over_line
            n[S.NUM_FREE_LINES] += 1
        if freed >= 0:
            wave = S.WAVE_HALVES * freed
            cu = np.int64(m.wave[U(wave + S.W_CU)])
            m.wave[U(wave + S.W_PLACES)] -= 1
            m.cu[U(S.CU_HALVES * cu + S.C_PLACES)] -= 1
            if m.cu[U(S.CU_HALVES * cu + S.C_PLACES)] == k[S.N_MAX_PLACES] - 1:
                since_ps = m.cu_word[U(S.CU_WORDS * cu + S.C_FULL_SINCE)]
                m.cu_word[U(S.CU_WORDS * cu + S.C_FULL_PS)] += now - since_ps
                m.cu_word[U(S.CU_WORDS * cu + S.C_FULL_SINCE)] = -1
            if m.wave[U(wave + S.W_DOING)] == S.D_FULL:
                m.todo[U(n[S.NUM_TODO])] = freed
                n[S.NUM_TODO] += 1
            kick_cu = cu
        if fewer >= 0:
            wave = S.WAVE_HALVES * fewer
            m.wave[U(wave + S.W_UNFINISHED)] -= 1
            doing = m.wave[U(wave + S.W_DOING)]
            if doing == S.D_COUNTING or doing == S.D_DRAINING:
                m.todo[U(n[S.NUM_TODO])] = fewer
                n[S.NUM_TODO] += 1
        if finished >= 0:
            tasks.word[U(WORDS * finished + END_PS)] = now
            n[S.NUM_DONE] += 1
            n[S.NUM_READY] = release(tasks, finished, n[S.NUM_READY])
            following = np.int64(tasks.half[U(HALVES * finished + NEXT_IN_STREAM)])
            if following >= 0 and open_gate(tasks, following):
                begin = following
        if onward:
            key = labelled(e, scheduled, next_leg(e, w, c, m, k, scheduled))
        if max(at_ps, other_ps) > MAX_PS:
            status = S.OVERFLOW
            break
        while scheduled >= 0:
            schedule(e, wheel, n, first_far, scheduled, at_ps, key)
            scheduled = other
            if other >= 0:
                at_ps = other_ps
                key = e.word[U(S.ENTITY_WORDS * other + S.KEY)]
                other = np.int64(-1)
    n[S.NOW] = now
    n[S.KICK_CU], n[S.KICK_GPU], n[S.WAKE] = kick_cu, kick_gpu, wake
    n[S.INJECT], n[S.INJECT_NUMBER], n[S.INJECT_END] = inject, inject_number, inject_end
    n[S.DELIVER], n[S.BEGIN] = deliver, begin
    return status


@inlined
def _wake_group(m: Machine, n: Int64, place: Int) -> None:
    """All wavefronts of a workgroup go on, the first one first; ``place``: of the last one."""
    while place >= 0:
        m.todo[U(n[S.NUM_TODO])] = place
        n[S.NUM_TODO] += 1
        place = np.int64(m.wave[U(S.WAVE_HALVES * place + S.W_SIBLING)])


@inlined
def _only_polls(n: Int64) -> bool:
    """Whether all events to come are of polls (but the one whose event it is), or of CUs that have polls to repeat."""
    events = n[S.IN_WHEEL] + n[S.NUM_OPEN] - n[S.AT_OPEN] + n[S.NUM_HEAP] + 1
    return bool(events - n[S.CU_EVENTS] + n[S.QUEUED_POLLS] == n[S.POLLERS])
