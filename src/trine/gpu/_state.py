"""State of the load-store event loop: its records, its clock, and the numbers of the GPU model that it reads.

Everything that can have an event of its own is an *entity* with one number: CUs, then places of wavefronts, then
dispatchers (one a GPU), then requests (and packets, and flows of them), whose number grows with the run.
"""

from __future__ import annotations

from typing import NamedTuple

from trine._records import RecordArray, record_dtype
from trine.arrays import Int8, Int32, Int64
from trine.engine._state import TaskTables

#: Why the loop came back: nothing more can happen; the budget of events is spent; too few free requests or lines; the
#: instant to stop at has come; time is over; nothing happens but polls that nobody will ever answer; the log is full;
#: a request gets no answer from the record that is replayed.
FINISHED, PAUSED, REQUESTS_FULL, LINES_FULL, STOPPED, OVERFLOW, STUCK, LOG_FULL, NO_ANSWER = range(9)

#: The time wheel reaches 4 us ahead, in buckets of up to 32 ps: events of one bucket are sorted by one int64: 5 bits of
#: time, then the key.
WHEEL_BITS, MAX_BUCKET_BITS = 22, 5
#: Keys: what it is (3 bits), distance of the requester (13), place of the wavefront in its GPU (15), number of the
#: request (14), rank of the requester (12).
SHIFT_SEQUENCE, SHIFT_WAVE, SHIFT_LABEL, SHIFT_CLASS, SHIFT_TIME = 12, 26, 41, 54, 57
#: All of a key but the distance: the key at servers of the requester's own GPU.
OWN_KEY = ~((1 << SHIFT_CLASS) - (1 << SHIFT_LABEL))
MAX_RANKS, MAX_WAVES = 1 << 12, 1 << 15
#: Paths of a pair, as a request notes which one it takes.
MAX_PATHS = (1 << 15) - 1
MESSAGE_CLASS, TRANSFER_CLASS, DMA_CLASS, WAVE_CLASS, CU_CLASS, DISPATCH_CLASS = range(1, 7)

#: Free requests and lines that one turn of the loop may need.
MARGIN = 8

#: An entity: one cache line. CUs, wavefronts and dispatchers have ``time_ps`` and ``key`` alone; flows and packets have
#: fields of their own in place of some that requests have.
EVENT = record_dtype(
    64,
    ("time_ps", "i8"),  # when
    ("key", "i8"),  # the order of events of one instant
    ("address", "i8"),
    ("issued_ps", "i8"),
    # the hop that is next: an entry of noc_hops, or a lane; of a multimem request at its switch: copies on their way
    ("position", "i4"),
    ("amount", "i4"),  # of a semaphore; of a packet: bytes
    ("pair", "i4"),  # of its GPU and the other; -1: to its own GPU
    ("wave", "i4"),  # place of its wavefront; -1: of a GPU that is replayed, or a transfer
    # line at work that it is of; of a flow the next to the same peer, of an acquire the next armed one, of a copy for a
    # member the multimem request
    ("line", "i4"),
    ("semaphore", "i4"),  # of all GPUs; -1: none
    ("gpu", "i2"),  # that it is in
    ("choice", "i2"),  # which of the paths of its pair it takes
    ("stage", "i1"),  # STAGE_HOP, ...: what its event means
    ("segment", "i1"),  # SEGMENT_OUT, ...: which part of its travel
    ("form", "i1"),  # 0 with data, 1 without; + PACKET: a packet; + POLL: a poll that was refused before
    ("kind", "i1"),  # IS_LOAD, ...
    ("monitor", "i2", "choice"),  # of an acquire, which crosses no fabric: how it waits, POLLS, ...
    ("total_bytes", "i8", "address"),  # of a flow
    ("not_left", "i8", "issued_ps"),  # of a flow: packets that have not left the first link
    ("not_arrived", "i8", "position"),  # of a flow: packets
    ("operand", "i4", "gpu"),  # of a flow: where it goes to
    ("task", "i4", "line"),  # of a flow that is of no wavefront: the transfer
    ("first_path", "i4", "semaphore"),  # of such a flow
    ("number", "i8", "address"),  # of a packet: which of its flow
    ("flow", "i4", "semaphore"),  # of a packet
)
PACKET, POLL = 2, 4

#: IS_ADD: a member's copy of a multimem store that adds; it must be below IS_LOAD, and odd as IS_STORE.
IS_ADD = -1
IS_LOAD, IS_STORE, IS_ACQUIRE, IS_RELEASE, IS_PACKET, IS_FLOW = range(6)

#: How an acquire waits: not asleep (it polls), armed (its answer is on the way), asleep, woken before its answer was
#: back, asking again.
POLLS, ARMED, ASLEEP, WOKEN, AGAIN = range(5)
#: Segments of the travel of a request: in its GPU, over the fabric, in the other GPU, at the memory; and back. LANDS: a
#: write of a replayed peer that begins at the memory.
(SEGMENT_OUT, SEGMENT_FABRIC, SEGMENT_THERE, SEGMENT_MEMORY, SEGMENT_FROM, SEGMENT_BACK, SEGMENT_HOME, SEGMENT_OVER,
 SEGMENT_LANDS) = range(9)  # fmt: skip
#: Where a request is, when its event comes.
(STAGE_HOP, STAGE_LANE, STAGE_EGRESS, STAGE_LEFT, STAGE_MEMORY, STAGE_CHANNEL, STAGE_DONE, STAGE_ANSWER, STAGE_ALU,
 STAGE_RETRY, STAGE_FLOW, STAGE_ARRIVED, STAGE_DELIVERED, STAGE_KNOWN, STAGE_SENDING) = range(15)  # fmt: skip

WAVE = record_dtype(
    64,
    ("op", "i4"),  # the operation that it is at
    ("end", "i4"),  # behind its last operation
    ("group", "i4"),  # workgroup
    ("index", "i4"),  # of it among ``count``
    ("count", "i4"),
    ("line", "i4"),  # what it issues next
    ("operand", "i4"),
    ("slots", "i4"),  # that its requests hold
    ("unfinished", "i4"),  # lines, releases, dmas
    ("doing", "i4"),  # WAVE_GONE, ...
    ("cu", "i4"),
    ("sequence", "i4"),  # number of its next request, of its key
    ("next_in_queue", "i4"),  # of its CU; -1: none
    ("sibling", "i4"),  # the next of its workgroup; -1: none
    ("current_line", "i4"),  # the line at work that it issues reads of
)
#: What a wavefront is doing; WAVE_GONE: the place is free; WAVE_ENDED: the wavefront has ended, its workgroup has not;
#: WAVE_PAUSED: in a fence or delay.
(WAVE_GONE, WAVE_NEW, WAVE_QUEUED, WAVE_FULL, WAVE_COUNTING, WAVE_DRAINING, WAVE_ACQUIRING, WAVE_AT_BARRIER,
 WAVE_COMPUTING, WAVE_ENDED, WAVE_PAUSED) = range(11)  # fmt: skip

WAVE_TIME = record_dtype(
    16,
    ("since_ps", "i8"),  # when what it is doing began
    ("full_ps", "i8"),  # how long its CU had had no slot left then
)

CU = record_dtype(
    64,
    ("first_wave", "i4"),  # queue of wavefronts that want to issue; -1: none
    ("last_wave", "i4"),
    ("first_item", "i4"),  # queue of lines (2 * line) and polls (2 * request + 1); -1: none
    ("last_item", "i4"),
    ("slots", "i4"),  # taken
    ("is_pending", "i4"),  # whether it has an event
    ("groups", "i4"),  # workgroups that it holds
    ("waves", "i4"),
    ("ready_ps", "i8"),  # when it may issue again
    ("alu_ps", "i8"),  # when its ALU is free
    ("full_ps", "i8"),  # how long it has had no slot left
    ("full_since_ps", "i8"),  # -1: it has one
)

#: Of a CU, where polls take turns or the order of its wavefronts is drawn; beside CU, which fills a cache line.
CU_TURN = record_dtype(
    16,
    ("free_ps", "i8"),  # when the next poll may have its turn
    ("drawn", "i8"),  # the last number drawn
)

#: A line at work.
LINE = record_dtype(
    32,
    ("wave", "i4"),
    ("op", "i4"),
    ("number", "i4"),
    ("reads", "i4"),  # that are out or to come
    ("writes", "i4"),  # to issue
    ("unposted", "i4"),  # writes
    ("unacknowledged", "i4"),
    ("next", "i4"),  # in the queue of its CU: as ``first_item``
)

#: A link inside a GPU, a slice of its L2, a channel of its memory, or a lane of a link of the fabric.
RESOURCE = record_dtype(
    64,
    ("free_ps", "i8"),
    ("messages", "2i8"),  # served: with data, without
    ("busy_ps", "i8"),
    ("service_ps", "2i8"),  # of links inside GPUs: what a message takes, and the latency behind
    ("after_ps", "i8"),
)

#: Who waits for a lane out of a GPU, where arbitration is fair.
LANE_QUEUE = record_dtype(
    32,
    ("is_busy", "i4"),
    ("turn", "i4"),  # which kind is served next: 0 with data, 1 without
    ("first", "2i4"),  # of both kinds; -1: none
    ("last", "2i4"),
)

#: A hop in the fabric.
LANE = record_dtype(
    64,
    ("resource", "i8"),
    ("service_ps", "2i8"),  # with data, without
    ("after_ps", "i8"),  # latency behind
    ("bytes_per_s", "i8"),
    ("label", "i8"),  # of the key
    ("leaves", "i8"),  # whether it leads out of a GPU
    ("is_first", "i4"),  # of its path
    ("is_last", "i4"),
)

#: A path over the fabric.
PATH = record_dtype(
    16,
    ("first", "i4"),  # lane
    ("end", "i4"),
    ("port_out", "i4"),
    ("port_in", "i4"),
)

#: A simulated GPU and another rank, or the other way round; or a multimem operand: up to its switch, and down again.
PAIR = record_dtype(
    32,
    ("gpu", "i4"),  # the simulated GPU that the requests go to; -1: none
    ("label", "i4"),  # 1 + distance
    ("first_out", "i4"),  # paths there and back
    ("end_out", "i4"),
    ("first_back", "i4"),
    ("end_back", "i4"),
    ("latency_ps", "i8"),  # of the links back
    ("first_member", "i4", "label"),  # of a multimem operand
    ("end_member", "i8", "latency_ps"),
)
#: In place of the simulated GPU: a multimem operand, which goes to a switch; one that adds to its members' memory.
TO_SWITCH, TO_SWITCH_ADDS = -2, -3

SEMAPHORE = record_dtype(
    16,
    ("amount", "i8"),
    ("first_waiting", "i4"),  # requests that the memory has not answered; -1: none
    ("last_waiting", "i4"),
)

GROUP = record_dtype(
    16,
    ("waves_left", "i4"),  # wavefronts that run
    ("at_barrier", "i4"),
    ("first_wave", "i4"),
)

KERNEL = record_dtype(
    16,
    ("next_group", "i4"),  # to start, counted from its first
    ("groups_left", "i4"),
    ("next_in_queue", "i4"),  # of the GPU; -1: none
)

GPU = record_dtype(
    64,
    ("first_kernel", "i4"),  # queue of kernels; -1: none
    ("last_kernel", "i4"),
    ("next_cu", "i4"),  # to look at
    ("is_pending", "i4"),  # whether its dispatcher has an event
    ("ready_ps", "i8"),  # of the dispatcher
    ("num_armed", "i8"),  # entries taken of its monitor table
    ("nic_free_ps", "i8"),  # from when the next dma may come to a NIC
)

#: Dmas to a peer.
CHAIN = record_dtype(
    32,
    ("first", "i4"),  # that has not been delivered; -1: none
    ("last", "i4"),
    ("entering", "i4"),  # the first link; -1: none
    ("initiation_ps", "i8"),  # from the operation to the first packet
    ("interval_ps", "i8"),  # between dmas of the GPU that cross NICs; 0: does not cross any
)

#: A place in an L2. A stamp is the number of the access, twice, and 1 more where the line is dirty; 0: empty.
CACHE_LINE = record_dtype(16, ("tag", "i8"), ("stamp", "i8"))

#: Acquires on the monitor of a line with flags: request, -1: none.
WATCHERS = record_dtype(8, ("first", "i4"), ("last", "i4"))

#: What a GPU has done.
COUNTS = record_dtype(
    128,
    ("issued", "4i8"),  # loads, stores, acquires, releases: by the kind of a request
    ("polls", "i8"),
    ("load_ps", "i8"),  # latency of all loads
    ("packets", "i8"),
    ("hits", "i8"),  # in the L2
    ("misses", "i8"),
    ("flagged", "i8"),  # loads of lines with flags
    ("wakeups", "i8"),
    ("spurious", "i8"),  # wake-ups for nothing
    ("monitor_full", "i8"),
)

#: An entry of the write tracking table: what comes from a replayed peer.
PEER_WRITE = record_dtype(
    64,
    ("time_ps", "i8"),
    ("key", "i8"),
    ("address", "i8"),
    ("amount", "i8"),
    ("pair", "i4"),
    ("semaphore", "i4"),  # of all GPUs; -1: none
    ("kind", "i4"),
)

#: Answers that a record has for the requests of a place of wavefronts, and how many requests it has issued.
ANSWERS = record_dtype(32, ("first", "i8"), ("end", "i8"), ("issued", "i8"))
ANSWER = record_dtype(16, ("time_ps", "i8"), ("is_refused", "i8"))

#: Uncontended times of a message with data, and without.
SERVICE = record_dtype(16, ("message_ps", "2i8"))

#: A request has come to the recorded GPU, one of its own sets out for another GPU, its answer is back.
LOG_ROW = record_dtype(
    64,
    ("what", "i8"),  # HAS_COME, SETS_OUT, IS_BACK
    ("time_ps", "i8"),
    ("key", "i8"),
    ("label", "i8"),
    ("kind", "i8"),
    ("address", "i8"),
    ("semaphore", "i8"),
    ("amount", "i8"),
)
HAS_COME, SETS_OUT, IS_BACK = range(3)

#: What ``op_start`` has of the first acquire of a workgroup that is not there yet, in a run up to when all are.
LOOKED_FOR = -2

#: Where a run is; survives from one call of the loop to the next. The second half is what a turn of the loop hands on:
#: set by what happens, taken back to -1 (nothing) by who deals with it.
CLOCK = record_dtype(
    384,
    ("now", "i8"),  # ps
    ("bucket_bits", "i8"),  # buckets of the wheel are 2 ** bits ps wide
    ("open_bucket", "i8"),
    ("num_open", "i8"),  # events of the open bucket
    ("at_open", "i8"),  # the next of them
    ("num_in_wheel", "i8"),
    ("num_queued", "i8"),  # entries of the heap
    ("num_to_do", "i8"),  # wavefronts in ``to_do``
    ("num_ready", "i8"),  # tasks in ``ready``
    ("num_done", "i8"),  # tasks that have ended
    ("num_free_requests", "i8"),
    ("num_free_lines", "i8"),
    ("num_events", "i8"),
    ("num_issued", "i8"),  # requests
    ("stop_ps", "i8"),  # the instant to stop at
    ("tick", "i8"),  # accesses of L2s
    ("num_pollers", "i8"),  # polls that were refused and will be repeated
    ("num_queued_polls", "i8"),  # those of them that wait for their CU, or in the queue of a fair lane
    ("num_cu_events", "i8"),
    ("idle", "i8"),  # events of refused polls, one after the other
    ("next_write", "i8"),  # of the write tracking table
    ("num_log", "i8"),  # rows of the log
    ("log_room", "i8"),  # rows of it that may be in use at the end of a turn
    ("not_waiting", "i8"),  # of a run up to when the last workgroup waits: how many do not yet
    ("kick_cu", "i8"),  # a CU, a GPU that may have something to do
    ("kick_gpu", "i8"),
    ("wake", "i8"),  # a semaphore that has changed
    ("inject", "i8"),  # a flow whose packets from inject_number to inject_end enter
    ("inject_number", "i8"),
    ("inject_end", "i8"),
    ("copied", "i8"),  # a multimem request that its switch copies for its members
    ("deliver", "i8"),  # a pair whose first dma may have arrived
    ("begin", "i8"),  # a task that begins
    ("ended", "i8"),  # a task that has ended
    ("scheduled", "i8"),  # an entity that gets an event
    ("other", "i8"),  # another one: that a lane out of a GPU serves next
    ("onward", "i8"),  # a request at the end of a segment
    ("freed", "i8"),  # a wavefront that has a slot back
    ("fewer", "i8"),  # a wavefront that has one thing less unfinished
    ("ready_line", "i8"),  # a line that has all its reads
    ("over_line", "i8"),  # a line that is over
    ("retried", "i8"),  # a poll to be repeated
    ("unrecorded", "i8"),  # a request that gets no answer
)
HANDED_ON = CLOCK.names[CLOCK.names.index("kick_cu") :]  # type: ignore[index, union-attr]

#: Numbers of the GPU model and the system, read only.
MODEL = record_dtype(
    512,
    ("cus", "i8"),  # of a GPU
    ("first_host", "i8"),  # of the GPUs, those from this on are hosts: memory alone
    ("channels", "i8"),
    ("ports", "i8"),
    ("waves", "i8"),  # places of wavefronts of a CU
    ("resources", "i8"),  # of a GPU
    ("line_bytes", "i8"),
    ("issue_ps", "i8"),
    ("max_slots", "i8"),  # of a CU
    ("unroll", "i8"),  # slots of a wavefront, where the program does not say
    ("is_posted", "i8"),  # stores
    ("memory_ps", "i8"),
    ("first_slice", "i8"),  # resource; -1: no L2
    ("first_channel", "i8"),
    ("channel_ps", "2i8"),  # what a message with data, and without, takes of a channel of the memory
    ("slice_ps", "2i8"),  # and of a slice of the L2
    ("l2_ps", "i8"),
    ("far_ps", "i8"),
    ("sets", "i8"),  # of a slice
    ("ways", "i8"),  # of a set
    ("memory_interleave_bytes", "i8"),
    ("port_interleave_bytes", "i8"),
    ("is_hashed", "i8"),  # whether the port is chosen by a hash of the address
    ("is_fair", "i8"),  # whether lanes out of a GPU serve data and control in turns
    ("launch_ps", "i8"),
    ("dispatch_ps", "i8"),
    ("barrier_ps", "i8"),
    ("fence_ps", "i8"),
    ("poll_ps", "i8"),  # -1: the memory keeps what it cannot answer
    ("poll_turn_ps", "i8"),
    ("is_drawn", "i8"),  # whether the order of a CU's wavefronts is
    ("dma_ps", "i8"),
    ("packet_bytes", "i8"),
    ("packet_header_bytes", "i8"),
    ("cycle_ps", "i8"),
    ("reduce_bytes_per_cycle", "i8"),
    ("max_groups", "i8"),  # workgroups of a CU
    ("tasks", "i8"),  # of the task graph
    ("first_wave", "i8"),  # where the entities of each kind begin
    ("first_dispatcher", "i8"),
    ("first_request", "i8"),
    ("cu_channel", "i8"),  # where the paths inside a GPU of each kind begin: from CUs to channels, ...
    ("cu_port", "i8"),
    ("channel_port", "i8"),
    ("port_channel", "i8"),
    ("channel_cu", "i8"),
    ("port_cu", "i8"),
    ("peers_begin", "i8"),  # where what comes from outside begins: AT_MEMORY, ...
    ("recorded_gpu", "i8"),  # whose arrivals are logged; -1: none
    ("has_answers", "i8"),  # 1: answers of replayed peers are those of a record
    ("uncached_first", "i8"),  # addresses whose requests go past the L2
    ("uncached_end", "i8"),
    ("monitors", "i8"),  # room of a GPU's monitor table; -1: it has none
    ("wakeup_ps", "i8"),
)
#: Where what comes from outside begins: at the memory, at the first link, out of the port.
AT_MEMORY, AT_LINK, AT_PORT = range(3)


class ProgramTable(NamedTuple):
    """The program, read only: the columns of a GpuProgram, which are not copied, and what follows from them.

    op_reads: operands of each operation that are sources. operand_pair: -1: the own GPU. operand_semaphore: of all
    GPUs, -1: none. rank_bits: of each GPU, the rank as part of keys. flag_line: of each semaphore, the line that it
    lies in, numbered; -1: nobody sleeps on it. Operands are those of :class:`trine.gpu.multimem.OperandHeads`;
    member_pair, member_address, member_semaphore: of the members of multimem ones (PAIR has which).
    """

    op_kind: Int8
    op_amount: Int64
    op_unroll: Int32
    operand_ptr: Int64
    op_reads: Int32
    operand_role: Int8
    operand_address: Int64
    operand_step: Int32
    operand_pair: Int32
    operand_semaphore: Int32
    workgroup_ptr: Int64
    kernel_ptr: Int64
    kernel_gpu: Int32
    kernel_waves: Int32
    kernel_task: Int32
    group_kernel: Int32
    cu_gpu: Int32
    task_kernel: Int32
    task_route: Int32
    software_latency_ps: Int64
    route_latency_ps: Int64
    rank_bits: Int64
    flag_line: Int32
    member_pair: Int32
    member_address: Int64
    member_semaphore: Int32


class PathTable(NamedTuple):
    """Hops, and where the paths are among them. Read only but for what numba wants writable.

    noc_hops: links of a GPU, twice, and 1 more where it is the last of its path; path i, j of a kind is
    noc_hops[noc_paths[at]:noc_paths[at + 1]], at = first of the kind (in the numbers of the model) + i * columns + j.
    route_path: the path of each route of the task graph.
    """

    noc_hops: Int32
    noc_paths: Int32
    lanes: RecordArray
    paths: RecordArray
    pairs: RecordArray
    route_path: Int32


class Entities(NamedTuple):
    """One record an entity, modified in place. free_requests: stack.

    next: the next entity in the list that it waits in: its bucket of the wheel, or the queue of a lane, a CU, a
        semaphore. Apart from the records, so that a walk along a bucket need not wait for the memory of one after the
        other (1.3 times as fast).
    answer: where a record is replayed, the answer that a request to a replayed peer is to get; -1: there is none.
    """

    events: RecordArray
    next: Int32
    answer: Int32
    free_requests: Int32


class Wheel(NamedTuple):
    """Events in the order of time, modified in place.

    head: of each bucket, -1: empty. open_key, open_id: events of the open bucket, sorted from at_open to num_open.
    heap: what is too far away, and tasks.
    """

    head: Int32
    open_key: Int64
    open_id: Int32
    heap: RecordArray


class PeerWriteTable(NamedTuple):
    """What comes from replayed peers, and what stands for them; empty where all are simulated. ``log``: in and out.

    writes: the write tracking table. answers_of: by place of wavefronts, the answers of a record. fabric_ps (by path),
    there_ps (by port and channel), home_ps (by channel and port): uncontended times of what is not simulated.
    memory_ps: a line, a semaphore; and the same past the L2.
    """

    writes: RecordArray
    answers_of: RecordArray
    answers: RecordArray
    fabric_ps: RecordArray
    there_ps: RecordArray
    home_ps: RecordArray
    memory_ps: Int64
    log: RecordArray


class MachineTables(NamedTuple):
    """GPUs, modified in place. free_lines: stack. to_do: stack of wavefronts to go on.

    lane_queues: by resource, where arbitration is fair. cache: places of all L2s. watchers: by line with flags.
    """

    waves: RecordArray
    wave_times: RecordArray
    cus: RecordArray
    cu_turns: RecordArray
    lines: RecordArray
    free_lines: Int32
    resources: RecordArray
    lane_queues: RecordArray
    semaphores: RecordArray
    groups: RecordArray
    kernels: RecordArray
    gpus: RecordArray
    to_do: Int32
    chains: RecordArray
    cache: RecordArray
    watchers: RecordArray


class RunCounters(NamedTuple):
    """What the records need, modified in place: columns of GpuRecords. state: int64[cus * states], ps."""

    op_start: Int64
    op_end: Int64
    group_start: Int64
    group_end: Int64
    group_cu: Int32
    state: Int64
    counts: RecordArray


class LoopTables(NamedTuple):
    """All that the loop works on, but for its clock and the numbers of the model."""

    work: TaskTables
    program: ProgramTable
    paths: PathTable
    peers: PeerWriteTable
    entities: Entities
    wheel: Wheel
    machine: MachineTables
    counters: RunCounters
