"""What wavefronts, CUs and dispatchers do in one event: small steps of the loop."""

from __future__ import annotations

import numpy as np

import trine.gpu._state as S
from trine._jit import Int, inlined, kernel
from trine.gpu._legs import L_OUT, hop_ps, serve
from trine.gpu._state import Code, Entities, Int64, Machine, Seen, Ways
from trine.model.gpuprogram import READ_FLAGGED, RELEASE, STORE
from trine.model.gpurecords import BARRIER, COMPUTING, ISSUE, MEMORY, SEMAPHORE, STATE_NAMES

U = np.uint64
_NUM_STATES = len(STATE_NAMES)
_MAX_SEQ = (1 << (S.SHIFT_WAVE - S.SHIFT_SEQ)) - 1


@inlined
def occupy(m: Machine, resource: Int, now: Int, service_ps: Int) -> None:
    """Keep a resource busy for something that is no message."""
    at = S.RESOURCE_WORDS * resource
    m.resource[U(at + S.R_FREE_PS)] = max(now, m.resource[U(at + S.R_FREE_PS)]) + service_ps
    m.resource[U(at + S.R_BUSY_PS)] += service_ps


@inlined
def wave_key(c: Code, k: Int64, cu: Int, place: Int) -> Int:
    """The key of a wavefront's event."""
    own = place - np.int64(c.cu_gpu[U(cu)]) * k[S.N_CUS] * k[S.N_WAVES]
    return (np.int64(S.WAVE_CLASS) << S.SHIFT_CLASS) | (own << S.SHIFT_WAVE)


@inlined
def labelled(e: Entities, r: Int, label: Int) -> Int:
    """The key of a request where ``label`` says how far away it comes from."""
    return e.word[U(S.ENTITY_WORDS * r + S.OWN_KEY)] | (label << S.SHIFT_LABEL)


@inlined
def do(m: Machine, seen: Seen, place: Int, doing: Int, now: Int) -> None:
    """The wavefront does something else from now on; its time so far goes to what it did."""
    at = S.WAVE_HALVES * place
    before = m.wave[U(at + S.W_DOING)]
    cu = np.int64(m.wave[U(at + S.W_CU)])
    spent_ps = now - m.wave_since[U(place)]
    full_ps = m.cu_word[U(S.CU_WORDS * cu + S.C_FULL_PS)]
    since_ps = m.cu_word[U(S.CU_WORDS * cu + S.C_FULL_SINCE)]
    if since_ps >= 0:
        full_ps += now - since_ps
    state = np.int64(MEMORY)
    if before == S.D_QUEUED:
        waited_ps = full_ps - m.wave_full[U(place)]
        seen.state[U(_NUM_STATES * cu + MEMORY)] += waited_ps
        spent_ps -= waited_ps
        state = np.int64(ISSUE)
    elif before == S.D_ACQUIRING:
        state = np.int64(SEMAPHORE)
    elif before == S.D_BARRIER:
        state = np.int64(BARRIER)
    elif before == S.D_COMPUTING:
        state = np.int64(COMPUTING)
    seen.state[U(_NUM_STATES * cu + state)] += spent_ps
    m.wave[U(at + S.W_DOING)] = doing
    m.wave_since[U(place)] = now
    m.wave_full[U(place)] = full_ps


@inlined
def queue_wave(m: Machine, cu: Int, place: Int) -> None:
    """The wavefront joins the end of its CU's queue."""
    at = S.CU_HALVES * cu
    m.wave[U(S.WAVE_HALVES * place + S.W_QUEUE)] = -1
    if m.cu[U(at + S.C_HEAD)] < 0:
        m.cu[U(at + S.C_HEAD)] = place
    else:
        m.wave[U(S.WAVE_HALVES * np.int64(m.cu[U(at + S.C_TAIL)]) + S.W_QUEUE)] = place
    m.cu[U(at + S.C_TAIL)] = place


@inlined
def queue_line(e: Entities, m: Machine, cu: Int, item: Int) -> None:
    """A line with writes to issue (2 * line), or a poll to repeat (2 * request + 1), joins its CU's queue of those."""
    at = S.CU_HALVES * cu
    last = np.int64(m.cu[U(at + S.C_LAST_LINE)])
    if item & 1 == 1:
        e.half[U(S.ENTITY_HALVES * (item >> 1) + S.NEXT)] = -1
    else:
        m.line[U(S.LINE_HALVES * (item >> 1) + S.L_NEXT)] = -1
    if m.cu[U(at + S.C_LINES)] < 0:
        m.cu[U(at + S.C_LINES)] = item
    elif last & 1 == 1:
        e.half[U(S.ENTITY_HALVES * (last >> 1) + S.NEXT)] = item
    else:
        m.line[U(S.LINE_HALVES * (last >> 1) + S.L_NEXT)] = item
    m.cu[U(at + S.C_LAST_LINE)] = item


@inlined
def has_work(m: Machine, k: Int64, cu: Int) -> bool:
    """Whether a CU has something that it may issue."""
    at = S.CU_HALVES * cu
    if m.cu[U(at + S.C_LINES)] >= 0:
        return True
    return bool(m.cu[U(at + S.C_HEAD)] >= 0 and m.cu[U(at + S.C_PLACES)] < k[S.N_MAX_PLACES])


@inlined
def take_request(e: Entities, n: Int64) -> Int:
    """A free request; the loop has made sure that there is one."""
    n[S.NUM_FREE_REQUESTS] -= 1
    return np.int64(e.fresh[U(n[S.NUM_FREE_REQUESTS])])


@inlined
def give_request(e: Entities, n: Int64, r: Int) -> None:
    """The request is free again."""
    e.fresh[U(n[S.NUM_FREE_REQUESTS])] = r
    n[S.NUM_FREE_REQUESTS] += 1


@inlined
def make_line(c: Code, m: Machine, line: Int, place: Int, op: Int, number: Int) -> None:
    """Line ``number`` of an operation begins."""
    at = S.LINE_HALVES * line
    operands = c.operands[U(op + 1)] - c.operands[U(op)]
    reads = np.int64(c.reads[U(op)])
    m.line[U(at + S.L_WAVE)] = place
    m.line[U(at + S.L_OP)] = op
    m.line[U(at + S.L_NUMBER)] = number
    m.line[U(at + S.L_READS)] = reads
    m.line[U(at + S.L_WRITES)] = operands - reads
    m.line[U(at + S.L_UNPOSTED)] = operands - reads
    m.line[U(at + S.L_UNACKED)] = operands - reads


@inlined
def posted_line(c: Code, m: Machine, line_id: Int) -> bool:
    """A write of a line has been posted; returns whether a place is free for that."""
    at = S.LINE_HALVES * np.int64(line_id)
    m.line[U(at + S.L_UNPOSTED)] -= 1
    kind = c.kind[U(m.line[U(at + S.L_OP)])]
    if kind == STORE or kind == RELEASE:
        return True
    return bool(m.line[U(at + S.L_UNPOSTED)] == 0)


@inlined
def own_key(c: Code, m: Machine, k: Int64, place: Int, kind_of_event: Int) -> Int:
    """The key of the wavefront's next request at its own GPU."""
    at = S.WAVE_HALVES * place
    gpu = np.int64(c.cu_gpu[U(m.wave[U(at + S.W_CU)])])
    seq = np.int64(m.wave[U(at + S.W_SEQ)])
    m.wave[U(at + S.W_SEQ)] = (seq + 1) & _MAX_SEQ
    own = place - gpu * k[S.N_CUS] * k[S.N_WAVES]
    key = (np.int64(kind_of_event) << S.SHIFT_CLASS) | (own << S.SHIFT_WAVE)
    return key | (seq << S.SHIFT_SEQ) | c.rank_bits[U(gpu)]


@inlined
def way_number(k: Int64, address: Int, count: Int) -> Int:
    """Which of ``count`` ways the line at ``address`` takes (fabric.way_of)."""
    block = address // k[S.N_PORT_INTERLEAVE]
    if k[S.N_HASHED] == 1:
        mixed = (block ^ (block >> 7) ^ (block >> 15)) & 0xFFFFFFFF
        block = ((mixed * 2654435761) & 0xFFFFFFFF) >> 1
    return block % count


@inlined
def set_out(e: Entities, c: Code, w: Ways, m: Machine, k: Int64, r: Int) -> None:
    """The request stands at the link out of its CU."""
    h = S.ENTITY_HALVES * r
    at = S.COLD * (r - k[S.N_FIRST_REQUEST])
    cu = np.int64(m.wave[U(S.WAVE_HALVES * np.int64(e.half[U(h + S.WAVE)]) + S.W_CU)])
    gpu = np.int64(c.cu_gpu[U(cu)])
    own_cu = cu - gpu * k[S.N_CUS]
    if e.half[U(h + S.PAIR)] < 0:
        path = own_cu * k[S.N_CHANNELS] + e.cold[U(at + S.CHANNEL)]
        first, last = w.cu_channel[U(path)], w.cu_channel[U(path + 1)]
    else:
        path = own_cu * k[S.N_PORTS] + w.way[U(4 * e.cold[U(at + S.WAY_OUT)] + 2)]
        first, last = w.cu_port[U(path)], w.cu_port[U(path + 1)]
    e.half[U(h + S.POS)] = first
    e.half[U(h + S.END)] = last
    e.half[U(h + S.BASE)] = gpu * k[S.N_RESOURCES]
    e.half[U(h + S.LEG)] = L_OUT
    e.half[U(h + S.STAGE)] = S.S_HOP
    e.half[U(h + S.SIZE)] = 0 if e.cold[U(at + S.KIND)] == S.KIND_STORE else 1
    e.word[U(S.ENTITY_WORDS * r + S.KEY)] = e.word[U(S.ENTITY_WORDS * r + S.OWN_KEY)]


@inlined
def make_request(
    e: Entities, c: Code, w: Ways, m: Machine, seen: Seen, k: Int64, r: Int, kind: Int, place: Int, operand: Int,
    line: Int, number: Int, now: Int,
) -> None:  # fmt: skip
    """A request of ``kind`` for line ``number`` of an operand is issued."""
    h = S.ENTITY_HALVES * r
    at = S.COLD * (r - k[S.N_FIRST_REQUEST])
    address = c.address[U(operand)] + np.int64(c.step[U(operand)]) * number
    pair = np.int64(c.pair[U(operand)])
    semaphore = np.int64(c.semaphore[U(operand)])
    amount = np.int64(1)
    if c.role[U(operand)] >= READ_FLAGGED:
        semaphore += number
    elif kind >= S.KIND_ACQUIRE:
        amount = c.amount[U(m.wave[U(S.WAVE_HALVES * place + S.W_OP)])]
    e.cold[U(at + S.ADDRESS)] = address
    e.cold[U(at + S.ISSUED_PS)] = now
    e.cold[U(at + S.KIND)] = kind
    e.cold[U(at + S.CHANNEL)] = (address // k[S.N_MEM_INTERLEAVE]) % k[S.N_CHANNELS]
    e.cold[U(at + S.SEMAPHORE)] = semaphore
    e.cold[U(at + S.AMOUNT)] = amount
    if pair >= 0:
        first, last = np.int64(w.pair_out[U(pair)]), np.int64(w.pair_out[U(pair + 1)])
        e.cold[U(at + S.WAY_OUT)] = first + way_number(k, address, last - first)
        first, last = np.int64(w.pair_back[U(pair)]), np.int64(w.pair_back[U(pair + 1)])
        e.cold[U(at + S.WAY_BACK)] = first + way_number(k, address, last - first)
    e.half[U(h + S.PAIR)] = pair
    e.half[U(h + S.WAVE)] = place
    e.half[U(h + S.LINE)] = line
    e.word[U(S.ENTITY_WORDS * r + S.OWN_KEY)] = own_key(c, m, k, place, S.MESSAGE_CLASS)
    set_out(e, c, w, m, k, r)
    gpu = np.int64(c.cu_gpu[U(m.wave[U(S.WAVE_HALVES * place + S.W_CU)])])
    seen.counts[U(S.NUM_COUNTS * gpu + kind)] += 1


@inlined
def repeat(e: Entities, c: Code, w: Ways, m: Machine, seen: Seen, k: Int64, r: Int, now: Int) -> None:
    """A poll is issued again."""
    place = np.int64(e.half[U(S.ENTITY_HALVES * r + S.WAVE)])
    e.word[U(S.ENTITY_WORDS * r + S.OWN_KEY)] = own_key(c, m, k, place, S.MESSAGE_CLASS)
    e.cold[U(S.COLD * (r - k[S.N_FIRST_REQUEST]) + S.ISSUED_PS)] = now
    set_out(e, c, w, m, k, r)
    e.half[U(S.ENTITY_HALVES * r + S.SIZE)] |= S.POLL
    gpu = np.int64(c.cu_gpu[U(m.wave[U(S.WAVE_HALVES * place + S.W_CU)])])
    kind = e.cold[U(S.COLD * (r - k[S.N_FIRST_REQUEST]) + S.KIND)]
    seen.counts[U(S.NUM_COUNTS * gpu + kind)] += 1
    seen.counts[U(S.NUM_COUNTS * gpu + S.N_POLLS)] += 1


@inlined
def packets_of(k: Int64, size_bytes: Int) -> Int:
    """How many packets carry so many bytes: at least one."""
    return max(1, (size_bytes + k[S.N_PACKET_BYTES] - 1) // k[S.N_PACKET_BYTES])


@inlined
def wait_key(e: Entities, c: Code, k: Int64, m: Machine, r: Int) -> Int:
    """The key of an event of the wavefront whose request ``r`` is; those of one wavefront come as they were issued."""
    place = np.int64(e.half[U(S.ENTITY_HALVES * r + S.WAVE)])
    key = wave_key(c, k, np.int64(m.wave[U(S.WAVE_HALVES * place + S.W_CU)]), place)
    return key | (e.word[U(S.ENTITY_WORDS * r + S.OWN_KEY)] & ((1 << S.SHIFT_WAVE) - 1))


@inlined
def make_flow(e: Entities, c: Code, w: Ways, m: Machine, k: Int64, flow: Int, place: Int, op: Int) -> None:
    """A wavefront hands bytes to the copy engine."""
    operand = c.operands[U(op + 1)] - 1
    pair = np.int64(c.pair[U(operand)])
    at = S.COLD * (flow - k[S.N_FIRST_REQUEST])
    packets = packets_of(k, c.amount[U(op)])
    e.cold[U(at + S.TOTAL_BYTES)] = c.amount[U(op)]
    e.cold[U(at + S.NOT_LEFT)] = packets
    e.cold[U(at + S.NOT_ARRIVED)] = packets
    e.cold[U(at + S.KIND)] = S.KIND_FLOW
    e.cold[U(at + S.TASK)] = -1
    e.cold[U(at + S.SEMAPHORE)] = c.semaphore[U(operand)]
    e.cold[U(at + S.AMOUNT)] = 1
    h = S.ENTITY_HALVES * flow
    e.half[U(h + S.STAGE)] = S.S_FLOW
    e.half[U(h + S.PAIR)] = pair
    e.half[U(h + S.WAVE)] = place
    e.word[U(S.ENTITY_WORDS * flow + S.OWN_KEY)] = own_key(c, m, k, place, S.DMA_CLASS)


@inlined
def start_group(c: Code, m: Machine, seen: Seen, n: Int64, k: Int64, gpu: Int, now: Int) -> bool:
    """Start the next workgroup of a GPU on the next CU that has room; returns whether there was one."""
    number = np.int64(m.gpu[U(4 * gpu)])
    if number < 0:
        return False
    count = np.int64(c.kernel_waves[U(number)])
    found = np.int64(-1)
    for step in range(k[S.N_CUS]):
        own = np.int64(m.gpu[U(4 * gpu + 2)]) + step
        own = own - k[S.N_CUS] if own >= k[S.N_CUS] else own
        at = S.CU_HALVES * (gpu * k[S.N_CUS] + own)
        if m.cu[U(at + S.C_GROUPS)] < k[S.N_MAX_GROUPS] and m.cu[U(at + S.C_WAVES)] + count <= k[S.N_WAVES]:
            found = own
            break
    if found < 0:
        return False
    cu = gpu * k[S.N_CUS] + found
    group = c.kernels[U(number)] + m.kernel[U(3 * number)]
    m.kernel[U(3 * number)] += 1
    if c.kernels[U(number)] + m.kernel[U(3 * number)] == c.kernels[U(number + 1)]:
        m.gpu[U(4 * gpu)] = m.kernel[U(3 * number + 2)]
    m.gpu[U(4 * gpu + 2)] = found + 1 if found + 1 < k[S.N_CUS] else 0
    m.cu[U(S.CU_HALVES * cu + S.C_GROUPS)] += 1
    m.cu[U(S.CU_HALVES * cu + S.C_WAVES)] += count
    seen.group_start[U(group)] = now
    seen.group_cu[U(group)] = found
    m.group_left[U(group)] = count
    before = np.int64(-1)
    place = cu * k[S.N_WAVES]
    for index in range(count):
        while m.wave[U(S.WAVE_HALVES * place + S.W_DOING)] != S.D_GONE:
            place += 1
        at = S.WAVE_HALVES * place
        m.wave[U(at + S.W_OP)] = c.workgroups[U(group)]
        m.wave[U(at + S.W_END)] = c.workgroups[U(group + 1)]
        m.wave[U(at + S.W_GROUP)] = group
        m.wave[U(at + S.W_INDEX)] = index
        m.wave[U(at + S.W_COUNT)] = count
        m.wave[U(at + S.W_LINE)] = index
        m.wave[U(at + S.W_OPERAND)] = 0
        m.wave[U(at + S.W_PLACES)] = 0
        m.wave[U(at + S.W_UNFINISHED)] = 0
        m.wave[U(at + S.W_DOING)] = S.D_NEW
        m.wave[U(at + S.W_CU)] = cu
        m.wave[U(at + S.W_SIBLING)] = before
        m.wave_since[U(place)] = now
        before = place
        place += 1
    m.group_first[U(group)] = before
    while before >= 0:
        m.todo[U(n[S.NUM_TODO])] = before
        n[S.NUM_TODO] += 1
        before = np.int64(m.wave[U(S.WAVE_HALVES * before + S.W_SIBLING)])
    return True


@inlined
def next_in_turn(e: Entities, w: Ways, m: Machine, k: Int64, resource: Int, now: Int) -> tuple[Int, Int]:
    """The lane out of a GPU serves the next message that waits for it, data and control in turns.

    Returns that message (-1: none), and when it will have left.
    """
    at = 6 * resource
    which = np.int64(m.queue[U(at + 1)])
    if m.queue[U(at + 2 + 2 * which)] < 0:
        which = 1 - which
    r = np.int64(m.queue[U(at + 2 + 2 * which)])
    if r < 0:
        m.queue[U(at)] = 0
        return r, np.int64(0)
    m.queue[U(at + 1)] = 1 - which
    m.queue[U(at + 2 + 2 * which)] = e.half[U(S.ENTITY_HALVES * r + S.NEXT)]
    row = np.int64(e.half[U(S.ENTITY_HALVES * r + S.POS)])
    size = np.int64(e.half[U(S.ENTITY_HALVES * r + S.SIZE)])
    size_bytes = e.cold[U(S.COLD * (r - k[S.N_FIRST_REQUEST]) + S.AMOUNT)]
    e.half[U(S.ENTITY_HALVES * r + S.STAGE)] = S.S_LEFT
    return r, serve(m, resource, now, hop_ps(w, row, size, size_bytes), size)


@kernel
def finish_states(c: Code, m: Machine, seen: Seen, n: Int64) -> Int:
    """Of a run that stops here: what wavefronts have been doing up to now goes to the records."""
    for place in range(len(m.wave_since)):
        doing = np.int64(m.wave[U(S.WAVE_HALVES * place + S.W_DOING)])
        if doing not in (S.D_GONE, S.D_OVER):
            do(m, seen, np.int64(place), doing, n[S.NOW])
    return 0
