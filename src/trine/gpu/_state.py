"""State of the load-store event loop: its records, its clock, and the numbers of the GPU model that it reads.

Everything that can have an event is an *entity* with a number: CUs, then wavefront slots ("places"), then dispatchers
(one per GPU), then requests (and packets, and flows of packets), whose count grows with the run.
"""

from __future__ import annotations

from typing import NamedTuple

from trine.common._records import RecordArray, record_dtype
from trine.common.arrays import Int8, Int32, Int64
from trine.engine._state import TaskTables

#: Reasons for the loop's return: no events remain; the event budget is spent; too few free requests; too few free
#: lines; the stop time is reached; simulated time passes MAX_PS; only polls that can never succeed remain; the log is
#: full; the replayed record has no answer for a request.
FINISHED, PAUSED, REQUESTS_FULL, LINES_FULL, STOPPED, OVERFLOW, STUCK, LOG_FULL, NO_ANSWER = range(9)

#: The time wheel reaches 4 us ahead, in buckets of up to 32 ps. One int64 orders the events of a bucket: 5 bits of
#: time, then the key.
WHEEL_BITS, MAX_BUCKET_BITS = 22, 5
#: Keys: event class (3 bits), distance of the requester (13), wavefront slot in its GPU (15), number of the request
#: (14), rank of the requester (12).
SHIFT_SEQUENCE, SHIFT_WAVE, SHIFT_LABEL, SHIFT_CLASS, SHIFT_TIME = 12, 26, 41, 54, 57
#: Mask of a key without the distance: the key at servers of the requester's GPU.
OWN_KEY = ~((1 << SHIFT_CLASS) - (1 << SHIFT_LABEL))
MAX_RANKS, MAX_WAVES = 1 << 12, 1 << 15
#: Limit of the paths of a pair, from the width of a request's ``choice``.
MAX_PATHS = (1 << 15) - 1
MESSAGE_CLASS, TRANSFER_CLASS, DMA_CLASS, WAVE_CLASS, CU_CLASS, DISPATCH_CLASS = range(1, 7)

#: Maximum number of free requests, and of free lines, that one turn of the loop may need.
MARGIN = 8

# An entity is one cache line with one of five layouts, which begin alike.
_EVENT = (
    ("time_ps", "i8"),  # time of its event
    ("key", "i8"),  # the order of events of one instant
    # below: not of CUs, wavefronts and dispatchers
    ("pair", "i4"),  # pair of its GPU and its destination; -1: local
    ("wave", "i4"),  # slot of its wavefront; -1: belongs to a replayed GPU or a transfer
    ("stage", "i1"),  # STAGE_HOP, ...: meaning of its event
    ("segment", "i1"),  # SEGMENT_OUT, ...: current part of its trip
    ("form", "i1"),  # 0 with data, 1 without; + PACKET_FORM: a packet; + POLL: a repeated poll
    ("kind", "i1"),  # IS_LOAD, ...
)
_MESSAGE = (
    *_EVENT,
    ("position", "i4"),  # the next hop: an entry of noc_hops, or a lane
    ("amount", "i4"),  # for a semaphore; for a packet: bytes
)

#: Any entity.
EVENT = record_dtype(64, *_EVENT)

#: A request or a packet on its way.
MESSAGE = record_dtype(64, *_MESSAGE)

REQUEST = record_dtype(
    64,
    *_MESSAGE,
    ("gpu", "i2"),  # its current GPU
    ("choice", "i2"),  # index of its path among the pair's paths
    ("line", "i4"),  # its line in flight
    ("semaphore", "i4"),  # of all GPUs; -1: none
    ("address", "i8"),
    ("issued_ps", "i8"),
    ("num_copies", "i4", "position"),  # of a multimem request at its switch: copies in flight
    ("multimem", "i4", "line"),  # of a member's copy: the multimem request; of a replayed GPU's request: -1
    ("next_armed", "i4", "line"),  # of an armed acquire
    ("monitor", "i2", "choice"),  # of an acquire, which crosses no fabric: its way to wait, POLLS, ...
)

PACKET = record_dtype(
    64,
    *_MESSAGE,
    ("flow", "i4"),
    ("number", "i8"),  # in the flow
)

#: A dma, or a transfer of the task graph. A dma from a replayed GPU arrives as a request of kind IS_FLOW.
FLOW = record_dtype(
    64,
    *_EVENT,
    ("operand", "i4"),  # its destination
    ("not_left", "i8"),  # packets still to leave the first link
    ("next_in_chain", "i4"),  # the next dma to the same peer; -1: none
    ("semaphore", "i4"),  # as of a request
    ("total_bytes", "i8"),
    ("not_arrived", "i8"),  # packets still to arrive
    ("task", "i4", "next_in_chain"),  # the transfer; -1: a dma
    ("first_path", "i4", "semaphore"),  # of a transfer
)
#: Views of the entities by name, in the order of :class:`Entities`.
VIEWS = {"events": EVENT, "messages": MESSAGE, "requests": REQUEST, "packets": PACKET, "flows": FLOW}
PACKET_FORM, POLL = 2, 4

#: IS_ADD: a member's copy of a multimem store that adds; it must be below IS_LOAD, and odd as IS_STORE.
IS_ADD = -1
IS_LOAD, IS_STORE, IS_ACQUIRE, IS_RELEASE, IS_PACKET, IS_FLOW = range(6)

#: Ways of an acquire to wait: polling; armed, with its answer on the way; asleep; woken before the return of its
#: answer; asking again.
POLLS, ARMED, ASLEEP, WOKEN, AGAIN = range(5)
#: Segments of a request's trip: in its GPU, over the fabric, in the other GPU, at the memory; and back. LANDS: a write
#: of a replayed peer that begins at the memory.
(SEGMENT_OUT, SEGMENT_FABRIC, SEGMENT_THERE, SEGMENT_MEMORY, SEGMENT_FROM, SEGMENT_BACK, SEGMENT_HOME, SEGMENT_OVER,
 SEGMENT_LANDS) = range(9)  # fmt: skip
#: Stages: position of a request at its event.
(STAGE_HOP, STAGE_LANE, STAGE_EGRESS, STAGE_LEFT, STAGE_MEMORY, STAGE_CHANNEL, STAGE_DONE, STAGE_ANSWER, STAGE_ALU,
 STAGE_RETRY, STAGE_FLOW, STAGE_ARRIVED, STAGE_DELIVERED, STAGE_KNOWN, STAGE_SENDING) = range(15)  # fmt: skip

WAVE = record_dtype(
    64,
    ("op", "i4"),  # current operation
    ("end", "i4"),  # one more than its last operation
    ("group", "i4"),  # workgroup
    ("index", "i4"),  # its number in the workgroup, of ``count``
    ("count", "i4"),
    ("line", "i4"),  # the line to issue next
    ("operand", "i4"),
    ("slots", "i4"),  # held by its requests
    ("unfinished", "i4"),  # lines, releases, dmas
    ("doing", "i4"),  # WAVE_GONE, ...
    ("cu", "i4"),
    ("sequence", "i4"),  # number of its next request, part of keys
    ("next_in_queue", "i4"),  # of its CU; -1: none
    ("sibling", "i4"),  # the next wavefront of the workgroup; -1: none
    ("current_line", "i4"),  # the line in flight whose reads it issues
)
#: States of a wavefront; WAVE_GONE: the slot is free; WAVE_ENDED: the wavefront has ended, its workgroup still runs;
#: WAVE_PAUSED: in a fence or delay.
(WAVE_GONE, WAVE_NEW, WAVE_QUEUED, WAVE_FULL, WAVE_COUNTING, WAVE_DRAINING, WAVE_ACQUIRING, WAVE_AT_BARRIER,
 WAVE_COMPUTING, WAVE_ENDED, WAVE_PAUSED) = range(11)  # fmt: skip

WAVE_TIME = record_dtype(
    16,
    ("since_ps", "i8"),  # start of its current state
    ("full_ps", "i8"),  # its CU's ``full_ps`` at that time
)

CU = record_dtype(
    64,
    ("first_wave", "i4"),  # queue of wavefronts that want to issue; -1: none
    ("last_wave", "i4"),
    ("first_item", "i4"),  # queue of lines (2 * line) and polls (2 * request + 1); -1: none
    ("last_item", "i4"),
    ("slots", "i4"),  # taken
    ("is_pending", "i4"),  # whether it has an event
    ("groups", "i4"),  # resident workgroups
    ("waves", "i4"),
    ("ready_ps", "i8"),  # when it may issue again
    ("alu_ps", "i8"),  # when its ALU is free
    ("full_ps", "i8"),  # total time without a free slot
    ("full_since_ps", "i8"),  # -1: a slot is free
)

#: Turns of polls and random order of a CU's wavefronts; separate from CU, which fills a cache line.
CU_TURN = record_dtype(
    16,
    ("free_ps", "i8"),  # earliest turn of the next poll
    ("drawn", "i8"),  # the last number drawn
)

#: A line in flight.
LINE = record_dtype(
    32,
    ("wave", "i4"),
    ("op", "i4"),
    ("number", "i4"),
    ("reads", "i4"),  # still to return
    ("writes", "i4"),  # to issue
    ("unposted", "i4"),  # writes
    ("unacknowledged", "i4"),
    ("next", "i4"),  # in the queue of its CU, encoded like ``first_item``
)

#: A link inside a GPU, a slice of its L2, a channel of its memory, or a lane of a link of the fabric.
RESOURCE = record_dtype(
    64,
    ("free_ps", "i8"),
    ("messages", "2i8"),  # served: with data, without
    ("busy_ps", "i8"),
    ("service_ps", "2i8"),  # of links inside GPUs: time per message, then the latency behind
    ("after_ps", "i8"),
)

#: Queues of a lane out of a GPU with fair arbitration.
LANE_QUEUE = record_dtype(
    32,
    ("is_busy", "i4"),
    ("turn", "i4"),  # the kind to serve next: 0 with data, 1 without
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
    ("leaves", "i8"),  # 1: leads out of a GPU
    ("is_first", "i4"),  # in its path
    ("is_last", "i4"),
)

#: A path over the fabric.
PATH = record_dtype(
    16,
    ("first", "i4"),  # lane
    ("end", "i4"), ("port_out", "i4"), ("port_in", "i4"),
)  # fmt: skip

#: Requester and destination, at least one of them simulated; or a multimem operand: up to its switch, and down again.
PAIR = record_dtype(
    32,
    ("gpu", "i4"),  # the destination's simulated GPU; -1: replayed
    ("label", "i4"),  # 1 + distance
    ("first_out", "i4"),  # paths there and back
    ("end_out", "i4"),
    ("first_back", "i4"),
    ("end_back", "i4"),
    ("latency_ps", "i8"),  # of the links back
    ("first_member", "i4", "label"),  # of a multimem operand
    ("end_member", "i8", "latency_ps"),
)
#: Values of ``gpu`` for multimem operands, which go to a switch; the second adds to the members' memory.
TO_SWITCH, TO_SWITCH_ADDS = -2, -3

SEMAPHORE = record_dtype(
    16,
    ("amount", "i8"),
    ("first_waiting", "i4"),  # requests that wait at the memory; -1: none
    ("last_waiting", "i4"),
)

GROUP = record_dtype(
    16,
    ("waves_left", "i4"),  # running wavefronts
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
    ("next_cu", "i4"),  # to try first
    ("is_pending", "i4"),  # whether its dispatcher has an event
    ("ready_ps", "i8"),  # of the dispatcher
    ("num_armed", "i8"),  # used entries of its monitor table
    ("nic_free_ps", "i8"),  # earliest time of the next dma at a NIC
)

#: Dmas to a peer.
CHAIN = record_dtype(
    32,
    ("first", "i4"),  # the first undelivered dma; -1: none
    ("last", "i4"),
    ("entering", "i4"),  # the dma at the first link; -1: none
    ("initiation_ps", "i8"),  # from the operation to the first packet
    ("interval_ps", "i8"),  # between dmas of the GPU that cross NICs; 0: no NIC on the path
)

#: A place in an L2. stamp: 2 * number of the last access, + 1 if the line is dirty; 0: empty.
CACHE_LINE = record_dtype(16, ("tag", "i8"), ("stamp", "i8"))

#: Queue of acquires armed on a line with flags: requests; -1: none.
WATCHERS = record_dtype(8, ("first", "i4"), ("last", "i4"))

#: Counters of a GPU.
COUNTS = record_dtype(
    128,
    ("issued", "4i8"),  # loads, stores, acquires, releases (indexed by kind)
    ("polls", "i8"),
    ("load_ps", "i8"),  # latency of all loads
    ("packets", "i8"),
    ("hits", "i8"),  # in the L2
    ("misses", "i8"),
    ("flagged", "i8"),  # loads of lines with flags
    ("wakeups", "i8"),
    ("spurious", "i8"),  # wake-ups followed by a failed attempt
    ("monitor_full", "i8"),
)

#: An entry of the write tracking table: an arrival from a replayed peer.
PEER_WRITE = record_dtype(
    64,
    ("time_ps", "i8"), ("key", "i8"), ("address", "i8"), ("amount", "i8"), ("pair", "i4"),
    ("semaphore", "i4"),  # of all GPUs; -1: none
    ("kind", "i4"),
)  # fmt: skip

#: Range of the recorded answers for a wavefront slot, and the number of issued requests.
ANSWERS = record_dtype(32, ("first", "i8"), ("end", "i8"), ("issued", "i8"))
ANSWER = record_dtype(16, ("time_ps", "i8"), ("is_refused", "i8"))

#: Uncontended times of a message with data, and without.
SERVICE = record_dtype(16, ("message_ps", "2i8"))

#: A request arrives at the recorded GPU, a request leaves it for another GPU, or its answer is back.
LOG_ROW = record_dtype(
    64,
    ("what", "i8"),  # HAS_COME, SETS_OUT, IS_BACK
    ("time_ps", "i8"), ("key", "i8"), ("label", "i8"), ("kind", "i8"), ("address", "i8"), ("semaphore", "i8"),
    ("amount", "i8"),
)  # fmt: skip
HAS_COME, SETS_OUT, IS_BACK = range(3)

#: ``op_start`` of a workgroup's first acquire before its start, in a run that stops when all workgroups wait.
LOOKED_FOR = -2

#: Fields of the clock that name pending work, or are -1; see :func:`trine.gpu._loop.advance`.
REGISTERS = (
    "kick_cu", "wake", "inject", "inject_number", "inject_end", "copy_for_members", "deliver", "begin", "kick_gpu",
    "ready_line", "queue_poll", "free_line", "free_slot", "finish_item", "end_task", "next_segment", "new_event",
    "lane_event", "unrecorded",
)  # fmt: skip

#: State of a run between calls of the loop.
CLOCK = record_dtype(
    384,
    ("now", "i8"),  # ps
    ("bucket_bits", "i8"),  # buckets of the wheel are 2 ** bits ps wide
    ("open_bucket", "i8"),
    ("num_open", "i8"),  # events of the open bucket
    ("at_open", "i8"),  # index of the next one
    ("num_in_wheel", "i8"),
    ("num_queued", "i8"),  # entries of the heap
    ("num_to_do", "i8"),  # wavefronts in ``to_do``
    ("num_ready", "i8"),  # tasks in ``ready``
    ("num_done", "i8"),  # tasks that have ended
    ("num_free_requests", "i8"), ("num_free_lines", "i8"), ("num_events", "i8"),
    ("num_issued", "i8"),  # requests
    ("stop_ps", "i8"),  # the instant to stop at
    ("tick", "i8"),  # accesses of L2s
    ("num_pollers", "i8"),  # refused polls that will be repeated
    ("num_queued_polls", "i8"),  # refused polls that wait for their CU, or in the queue of a fair lane
    ("num_cu_events", "i8"),
    ("idle", "i8"),  # consecutive events of refused polls
    ("next_write", "i8"),  # of the write tracking table
    ("num_log", "i8"),  # rows of the log
    ("log_room", "i8"),  # maximum of ``num_log`` at the end of a turn
    ("not_waiting", "i8"),  # workgroups that do not wait yet, in a run that stops when all wait
    *((name, "i8") for name in REGISTERS),
)  # fmt: skip

#: Numbers of the GPU model and the system, read only.
MODEL = record_dtype(
    512,
    ("cus", "i8"),  # of a GPU
    ("first_host", "i8"),  # GPUs from this number on are hosts: only memory
    ("channels", "i8"), ("ports", "i8"),
    ("waves", "i8"),  # wavefront slots of a CU
    ("resources", "i8"),  # of a GPU
    ("line_bytes", "i8"), ("issue_ps", "i8"),
    ("max_slots", "i8"),  # of a CU
    ("unroll", "i8"),  # default slots of a wavefront
    ("is_posted", "i8"),  # stores
    ("memory_ps", "i8"),
    ("first_slice", "i8"),  # resource; -1: no L2
    ("first_channel", "i8"),
    ("channel_ps", "2i8"),  # time of a message with data, and without, at a memory channel
    ("slice_ps", "2i8"),  # and at a slice of the L2
    ("l2_ps", "i8"), ("far_ps", "i8"),
    ("sets", "i8"),  # of a slice
    ("ways", "i8"),  # of a set
    ("memory_interleave_bytes", "i8"), ("port_interleave_bytes", "i8"),
    ("is_hashed", "i8"),  # whether the port is chosen by a hash of the address
    ("is_fair", "i8"),  # 1: lanes out of a GPU serve data and control in turns
    ("launch_ps", "i8"), ("dispatch_ps", "i8"), ("barrier_ps", "i8"), ("fence_ps", "i8"),
    ("poll_ps", "i8"),  # -1: failed requests wait at the memory
    ("poll_turn_ps", "i8"),
    ("is_drawn", "i8"),  # 1: the order of a CU's wavefronts is random
    ("dma_ps", "i8"), ("packet_bytes", "i8"), ("packet_header_bytes", "i8"), ("cycle_ps", "i8"),
    ("reduce_bytes_per_cycle", "i8"),
    ("max_groups", "i8"),  # workgroups of a CU
    ("tasks", "i8"),  # of the task graph
    ("first_wave", "i8"),  # first entity of each kind
    ("first_dispatcher", "i8"), ("first_request", "i8"),
    ("cu_channel", "i8"),  # first path of each kind inside a GPU: from CUs to channels, ...
    ("cu_port", "i8"), ("channel_port", "i8"), ("port_channel", "i8"), ("channel_cu", "i8"), ("port_cu", "i8"),
    ("peers_begin", "i8"),  # start of incoming traffic: AT_MEMORY, ...
    ("recorded_gpu", "i8"),  # the GPU with logged arrivals; -1: none
    ("has_answers", "i8"),  # 1: answers of replayed peers come from a record
    ("uncached_first", "i8"),  # range of addresses that bypass the L2
    ("uncached_end", "i8"),
    ("monitors", "i8"),  # capacity of a GPU's monitor table; -1: no monitor
    ("wakeup_ps", "i8"),
)  # fmt: skip
#: Start of incoming traffic: at the memory, at the first link, out of the port.
AT_MEMORY, AT_LINK, AT_PORT = range(3)


class ProgramTable(NamedTuple):
    """The program, read only: the columns of a GpuProgram, without copies, and columns derived from them.

    op_reads: number of sources of each operation. operand_pair: -1: local. operand_semaphore: numbered over all GPUs,
    -1: none. rank_bits: rank of each GPU, as part of keys. flag_line: number of each semaphore's line; -1: not
    monitored. Operands are the rows of :class:`trine.gpu.multimem.OperandHeads`; member_pair, member_address,
    member_semaphore: members of multimem operands (PAIR has their range).
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
    """Hops, and the ranges of the paths among them. Read only, although numba requires writable arrays.

    noc_hops: 2 * link of a GPU, + 1 for the last hop of a path; path i, j of a kind is
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
    """One record per entity, modified in place. free_requests: stack.

    events, messages, requests, packets, flows: the same memory, read as EVENT, MESSAGE, REQUEST, PACKET, FLOW.
    next: the next entity in the same list: a bucket of the wheel, or the queue of a lane, a CU or a semaphore.
        Separate from the records, so that a walk along a bucket does not wait for each record's memory (1.3 times as
        fast).
    answer: in a replay of a record, the answer assigned to a request to a replayed peer; -1: none.
    """

    events: RecordArray
    messages: RecordArray
    requests: RecordArray
    packets: RecordArray
    flows: RecordArray
    next: Int32
    answer: Int32
    free_requests: Int32


class Wheel(NamedTuple):
    """Events in the order of time, modified in place.

    head: of each bucket, -1: empty. open_key, open_id: events of the open bucket, sorted from at_open to num_open.
    heap: events too distant for the wheel, and tasks.
    """

    head: Int32
    open_key: Int64
    open_id: Int32
    heap: RecordArray


class PeerWriteTable(NamedTuple):
    """Incoming traffic and stand-ins of replayed peers; empty if all GPUs are simulated. ``log``: in and out.

    writes: the write tracking table. answers_of: recorded answers by wavefront slot. fabric_ps (by path),
    there_ps (by port and channel), home_ps (by channel and port): uncontended times of parts outside the simulation.
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
    """GPUs, modified in place. free_lines: stack. to_do: stack of wavefronts to continue.

    lane_queues: by resource, with fair arbitration only. cache: places of all L2s. watchers: by line with flags.
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
    """Columns of GpuRecords, modified in place. state: int64[cus * states], ps."""

    op_start: Int64
    op_end: Int64
    group_start: Int64
    group_end: Int64
    group_cu: Int32
    state: Int64
    counts: RecordArray


class LoopTables(NamedTuple):
    """The data of the loop, without its clock and the numbers of the model."""

    work: TaskTables
    program: ProgramTable
    paths: PathTable
    peers: PeerWriteTable
    entities: Entities
    wheel: Wheel
    machine: MachineTables
    counters: RunCounters
