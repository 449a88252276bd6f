"""State of the load-store event loop as arrays, and the numbers that the loop and its shell exchange.

Everything that can have an event of its own is an *entity* with one number: CUs, then places of wavefronts, then
dispatchers (one a GPU), then requests (and packets, and flows of them), whose number grows with the run.
"""

from __future__ import annotations

from typing import NamedTuple

from trine.arrays import Int8, Int32, Int64

#: Why the loop came back: nothing more can happen; the budget of events is spent; too few free requests or lines; the
#: instant to stop at has come; time is over; nothing happens but polls that nobody will ever answer; the log is full;
#: a request gets no answer from the record that is replayed.
FINISHED, PAUSED, REQUESTS_FULL, LINES_FULL, STOPPED, OVERFLOW, STUCK, LOG_FULL, NO_ANSWER = range(9)

#: Buckets of the time wheel are 32 ps wide: events of one bucket are sorted by one int64: 5 bits of time, then the key.
BUCKET_BITS = 5
NUM_BUCKETS = 1 << 17
#: Keys: what it is (3 bits), distance of the requester (13), place of the wavefront in its GPU (15), number of the
#: request (14), rank of the requester (12).
SHIFT_SEQ, SHIFT_WAVE, SHIFT_LABEL, SHIFT_CLASS, SHIFT_TIME = 12, 26, 41, 54, 57
MAX_RANKS, MAX_WAVES = 1 << 12, 1 << 15
MESSAGE_CLASS, TRANSFER_CLASS, DMA_CLASS, WAVE_CLASS, CU_CLASS, DISPATCH_CLASS = range(1, 7)

#: Free requests and lines that one turn of the loop may need.
MARGIN = 8

#: An entity: one record of 64 bytes: 8 int64 words, which are also 16 int32 halves: ``word[8 * i + field]``,
#: ``half[16 * i + field]``. OWN_KEY: its key at places of its requester's GPU. POS, END: hops that are left of this
#: leg. BASE: first resource of the GPU that it is in. SIZE: 0 with data, 1 without; PACKET more: a packet; POLL more:
#: a poll that was refused before.
ENTITY_WORDS, ENTITY_HALVES = 8, 16
TIME_PS, KEY, OWN_KEY = 0, 1, 2
POS, END, STAGE, NEXT, BASE, SIZE, LEG, PAIR, WAVE, LINE = 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
PACKET, POLL = 2, 4
#: The rest of a request, which hops do not touch: ``cold[8 * r + field]``, r counted from the first request. KIND: one
#: of those below; WAY_OUT, WAY_BACK: indices of ways. SEMAPHORE: absolute, -1 none. AMOUNT: of a semaphore.
COLD = 8
ADDRESS, ISSUED_PS, KIND, CHANNEL, WAY_OUT, WAY_BACK, SEMAPHORE, AMOUNT = range(8)
#: A flow of packets has other fields in their place: its bytes; packets that have not left the first link, and that
#: have not arrived; its task (-1: of a wavefront); its first way and how many. The next flow to the same peer is in
#: LINE. A packet has its flow in ADDRESS, its number in CHANNEL, its way in WAY_OUT, its bytes in AMOUNT.
TOTAL_BYTES, NOT_LEFT, TASK, NOT_ARRIVED, FIRST_WAY = 0, 1, 3, 4, 5
NUMBER = CHANNEL
KIND_LOAD, KIND_STORE, KIND_ACQUIRE, KIND_RELEASE, KIND_PACKET, KIND_FLOW = range(6)

#: An acquire crosses no fabric; in the place of a way it has how it waits: not asleep (it polls), armed (its answer is
#: on the way), asleep, woken before its answer was back, asking again.
MONITOR = WAY_OUT
M_POLLS, M_ARMED, M_ASLEEP, M_WOKEN, M_AGAIN = range(5)
#: Legs of a request: in its GPU, over the fabric, in the other GPU, at the memory; and back. L_LAND: a write of a
#: replayed peer that begins at the memory.
L_OUT, L_FABRIC, L_THERE, L_MEMORY, L_FROM, L_BACK, L_HOME, L_OVER, L_LAND = range(9)
#: A row of the log: 8 int64. WHAT: a request has come to N_RECORD, one of its own sets out for another GPU, its answer
#: is back.
LOG_WORDS = 8
LOG_WHAT, LOG_TIME_PS, LOG_KEY, LOG_LABEL, LOG_KIND, LOG_ADDRESS, LOG_SEMAPHORE, LOG_AMOUNT = range(8)
HAS_COME, SETS_OUT, IS_BACK = range(3)

#: Where a request is, when its event comes.
(S_HOP, S_LANE, S_EGRESS, S_LEFT, S_MEMORY, S_CHANNEL, S_DONE, S_ANSWER, S_ALU, S_RETRY, S_FLOW, S_ARRIVED,
 S_DELIVERED, S_KNOWN, S_SENDING) = range(15)  # fmt: skip

#: A wavefront: 16 int32. GROUP: workgroup; INDEX of it among COUNT; LINE, OPERAND: what it issues next; PLACES that
#: it holds; UNFINISHED lines, releases, dmas; DOING: of the states below; QUEUE: the next in its CU's queue;
#: SIBLING: the next of its workgroup; CURRENT: line that it issues reads of.
WAVE_HALVES = 16
(W_OP, W_END, W_GROUP, W_INDEX, W_COUNT, W_LINE, W_OPERAND, W_PLACES, W_UNFINISHED, W_DOING, W_CU, W_SEQ, W_QUEUE,
 W_SIBLING, W_CURRENT) = range(15)  # fmt: skip
#: What it is doing; D_GONE: the place is free; D_OVER: the wavefront has ended, its workgroup has not.
D_GONE, D_NEW, D_QUEUED, D_FULL, D_COUNTING, D_DRAINING, D_ACQUIRING, D_BARRIER, D_COMPUTING, D_OVER = range(10)

#: A CU: 8 int32: queue of wavefronts, queue of lines and polls (2 * line, or 2 * request + 1), places taken, whether it
#: has an event, workgroups and wavefronts that it holds.
CU_HALVES = 8
C_HEAD, C_TAIL, C_LINES, C_LAST_LINE, C_PLACES, C_PENDING, C_GROUPS, C_WAVES = range(8)
#: and 4 int64: when it may issue again, when its ALU is free, how long it has had no place left, and since when (-1).
CU_WORDS = 4
C_READY_PS, C_ALU_PS, C_FULL_PS, C_FULL_SINCE = range(4)

#: A line at work: 8 int32. READS that are out or to come; WRITES to issue; UNPOSTED, UNACKNOWLEDGED writes.
LINE_HALVES = 8
L_WAVE, L_OP, L_NUMBER, L_READS, L_WRITES, L_UNPOSTED, L_UNACKED, L_NEXT = range(8)

#: A resource: 8 int64: when it is free, messages with data and without, ps that it was busy; of links inside GPUs also
#: the ps that data and control take, and the latency behind.
RESOURCE_WORDS = 8
R_FREE_PS, R_DATA, R_CONTROL, R_BUSY_PS, R_DATA_PS, R_CONTROL_PS, R_AFTER_PS = range(7)
#: and 6 int32 where arbitration is fair: busy, turn, heads and tails of data and of control.
QUEUE_HALVES = 6

#: A hop in the fabric: 8 int64: resource, ps that data and control take, latency behind, bytes/s, label of the key,
#: whether it leads out of a GPU.
LANE_WORDS = 8
E_RESOURCE, E_DATA_PS, E_CONTROL_PS, E_AFTER_PS, E_RATE, E_LABEL, E_LEAVES = range(7)
#: A way: 4 int32: first of its hops, end, ports.
WAY_HALVES = 4
Y_FIRST, Y_END, Y_PORT_OUT, Y_PORT_IN = range(4)

#: What ``Seen.op_start`` has of the first acquire of a workgroup that is not there yet, in a run up to when all are.
LOOKED_FOR = -2

#: Scalars that survive from one call of the loop to the next. KICK_CU, KICK_GPU: may have something to do. WAKE: a
#: semaphore that has changed. INJECT: a flow whose packets INJECT_NUMBER to INJECT_END enter. DELIVER: a pair whose
#: first dma may have arrived. BEGIN: a task. IDLE: events of refused polls, one after the other. What lives within a
#: turn only: entities that get an event (SCHEDULED; OTHER: that a lane out of a GPU serves next); ONWARD: a request at
#: the end of a leg; wavefronts that have a place back (FREED), and one thing less unfinished (FEWER); a line that has
#: all its reads (READY_LINE), one that is over (OVER_LINE); a poll to be repeated (RETRIED); a task (ENDED). All of
#: these -1: none. NEXT_OUTSIDE: entry of the write tracking table; NUM_LOG rows of the log, of LOG_ROOM and some more;
#: UNRECORDED: a request that gets no answer, -1. NOT_WAITING: of a run up to when the last workgroup waits, how many do
#: not yet.
(NOW, OPEN, NUM_OPEN, AT_OPEN, IN_WHEEL, NUM_HEAP, NUM_TODO, NUM_READY, NUM_DONE, NUM_FREE_REQUESTS,
 NUM_FREE_LINES, NUM_EVENTS, NUM_ISSUED, STOP_PS, KICK_CU, KICK_GPU, WAKE, INJECT, INJECT_NUMBER,
 INJECT_END, DELIVER, BEGIN, TICK, POLLERS, QUEUED_POLLS, CU_EVENTS, IDLE, SCHEDULED, OTHER, ONWARD, FREED, FEWER,
 READY_LINE, RETRIED, OVER_LINE, ENDED, NEXT_OUTSIDE, NUM_LOG, LOG_ROOM, UNRECORDED,
 NOT_WAITING) = range(41)  # fmt: skip
NUM_SCALARS = 41

#: Numbers of the GPU model and the system, read only: ``numbers[...]``. N_CHANNEL_CU and the like: where paths of each
#: kind begin. N_RECORD: GPU whose arrivals are logged, -1. N_ANSWERS: 1: answers of replayed peers are those of a
#: record. N_MONITORS: room of a GPU's monitor table, -1: it has none.
(N_GPUS, N_CUS, N_CHANNELS, N_PORTS, N_WAVES, N_RESOURCES, N_LINE_BYTES, N_ISSUE_PS, N_MAX_PLACES, N_UNROLL, N_POSTED,
 N_MEMORY_PS, N_FIRST_SLICE, N_MEM_DATA_PS, N_MEM_CONTROL_PS, N_L2_DATA_PS, N_L2_CONTROL_PS, N_L2_PS,
 N_SETS, N_WAYS, N_MEM_INTERLEAVE, N_PORT_INTERLEAVE, N_HASHED, N_FAIR, N_LAUNCH_PS, N_DISPATCH_PS, N_BARRIER_PS,
 N_POLL_PS, N_DMA_PS, N_PACKET_BYTES, N_PACKET_HEADER, N_CYCLE_PS, N_REDUCE_PER_CYCLE, N_MAX_GROUPS, N_TASKS,
 N_KERNELS, N_FIRST_WAVE, N_FIRST_DISPATCHER, N_FIRST_REQUEST, N_FIRST_CHANNEL, N_MAX_WAVES, N_CU_CHANNEL, N_CU_PORT,
 N_CHANNEL_PORT, N_PORT_CHANNEL, N_CHANNEL_CU, N_PORT_CU, N_BEGIN_AT, N_RECORD, N_ANSWERS, N_UNCACHED_FIRST,
 N_UNCACHED_END, N_MONITORS, N_WAKEUP_PS) = range(54)  # fmt: skip
NUM_NUMBERS = 54
#: Where what comes from outside begins (N_BEGIN_AT): at the memory, at the first link, out of the port.
AT_MEMORY, AT_LINK, AT_PORT = range(3)


class Ways(NamedTuple):
    """Hops, and where the paths are among them. Read only but for what numba wants writable.

    hops: int32, links of a GPU; path i, j of a kind is ``hops[path[at]:path[at + 1]]``, at = first of the kind (in
        ``numbers``) + i * columns + j.
    lane: int64[rows * 8], hops in the fabric. way: int32[ways * 4].
    pair_gpu, pair_label: int32[pairs]; pair_out, pair_back: int32[pairs + 1]: ways there and back; pair_latency:
        int64[pairs], of the links back. route_way: int32[routes of the task graph].
    """

    hops: Int32
    path: Int32
    lane: Int64
    pair_gpu: Int32
    pair_label: Int32
    pair_out: Int32
    pair_back: Int32
    pair_latency: Int64
    way: Int32
    route_way: Int32


class Code(NamedTuple):
    """The program (model/gpuprogram.py), read only.

    reads: int32[ops], operands of each that are sources. pair: int32[operands], -1: the own GPU. semaphore:
    int32[operands], absolute. rank_bits: int64[gpus], the rank as part of keys. flag_line: int32[semaphores], the line
    that each lies in, numbered; -1: nobody sleeps on it.
    """

    kind: Int8
    amount: Int64
    unroll: Int32
    operands: Int64
    reads: Int32
    role: Int8
    address: Int64
    step: Int32
    pair: Int32
    semaphore: Int32
    workgroups: Int64
    kernels: Int64
    kernel_gpu: Int32
    kernel_waves: Int32
    kernel_task: Int32
    group_kernel: Int32
    cu_gpu: Int32
    task_kernel: Int32
    task_route: Int32
    entry_ps: Int64
    route_ps: Int64
    rank_bits: Int64
    flag_line: Int32


class Entities(NamedTuple):
    """Events and requests, modified in place. word, half: the same memory. ``fresh``: int32, stack of free requests."""

    word: Int64
    half: Int32
    cold: Int64
    fresh: Int32


class Wheel(NamedTuple):
    """Events in the order of time, modified in place.

    head: int32[buckets], -1: empty. next: int32[entities], the next one in its bucket; apart from the entities, so that
        a walk along a bucket need not wait for the memory of one after the other (1.3 times as fast).
    open_key, open_id: events of the open bucket, sorted from AT_OPEN to NUM_OPEN.
    heap: what is too far away, and tasks.
    """

    head: Int32
    open_key: Int64
    open_id: Int32
    next: Int32
    heap: Int64


class Outside(NamedTuple):
    """What comes from replayed peers, and what stands for them; empty where all are simulated. ``log``: in and out.

    time_ps, key, address, amount: int64[n], pair, semaphore: int32[n] (absolute), kind: int8[n]: the write tracking
    table. answer_ptr: int64[places + 1]; answer_ps: int64[m]; answer_refused: int8[m]; issued: int64[places], requests
    to peers so far, in and out. lanes_ps: int64[ways * 2], there_ps: int64[ports * channels * 2], home_ps:
    int64[channels * ports * 2], each with data and without: uncontended times of what is not simulated; memory_ps:
    int64[4]: a line, a semaphore; and the same past the L2. log: int64[rows * 8].
    """

    time_ps: Int64
    key: Int64
    pair: Int32
    kind: Int8
    address: Int64
    semaphore: Int32
    amount: Int64
    answer_ptr: Int64
    answer_ps: Int64
    answer_refused: Int8
    issued: Int64
    lanes_ps: Int64
    there_ps: Int64
    home_ps: Int64
    memory_ps: Int64
    log: Int64


class Machine(NamedTuple):
    """GPUs, modified in place.

    wave: int32[places * 16]; wave_since: int64[places], when its state began; wave_full: int64[places], how long its
        CU had had no place when it joined the queue.
    cu: int32[cus * 8]; cu_word: int64[cus * 4]. line: int32[lines * 8]; free_lines: stack.
    resource: int64[resources * 8]. queue: int32[resources * 6] where arbitration is fair.
    semaphore: int64; waiting: int32[semaphores * 2], heads and tails of requests that the memory has not answered.
    group_left, group_at: int32[workgroups]: wavefronts that run, that are at the barrier; group_first: its first
        wavefront.
    kernel: int32[kernels * 3]: next workgroup to start (of its own), workgroups left, next in the GPU's queue.
    gpu: int32[gpus * 4]: queue of kernels, CU to look at next, whether its dispatcher has an event; gpu_ready:
        int64[gpus].
    todo: int32[places], stack of wavefronts to go on. chain: int32[pairs * 3]: dmas to each peer: the first that has
        not been delivered, the last, the one that enters the first link.
    tag, stamp: int64[lines of all L2], as in _cache.py. armed: int32[lines with flags * 2], heads and tails of acquires
        on a monitor; sleepers: int32[gpus], entries taken of the monitor table.
    """

    wave: Int32
    wave_since: Int64
    wave_full: Int64
    cu: Int32
    cu_word: Int64
    line: Int32
    free_lines: Int32
    resource: Int64
    queue: Int32
    semaphore: Int64
    waiting: Int32
    group_left: Int32
    group_at: Int32
    group_first: Int32
    kernel: Int32
    gpu: Int32
    gpu_ready: Int64
    todo: Int32
    chain: Int32
    tag: Int64
    stamp: Int64
    armed: Int32
    sleepers: Int32


class Seen(NamedTuple):
    """What the records need, modified in place: as in model/gpurecords.py. counts: int64[gpus * 13]."""

    op_start: Int64
    op_end: Int64
    group_start: Int64
    group_end: Int64
    group_cu: Int32
    state: Int64
    counts: Int64


(N_LOADS, N_STORES, N_ACQUIRES, N_RELEASES, N_POLLS, N_LOAD_PS, N_PACKETS, N_HITS, N_MISSES, N_FLAGGED, N_WAKEUPS,
 N_SPURIOUS, N_MONITOR_FULL) = range(13)  # fmt: skip
NUM_COUNTS = 13
