"""State of the event loop: records of tasks, streams, routes, links and flows, and the clock of a run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.common._records import RecordArray, new_records, record_dtype
from trine.common.arrays import Bool, Float64, Int32, Int64

#: Reasons for the loop to return: no event is left; the task budget is spent; the flow slots or the heap are full; a
#: task would end after MAX_PS; a held task has become ready; a stream got back more speed than it had lost.
FINISHED, PAUSED, FLOWS_FULL, HEAP_FULL, OVERFLOW, HELD_BACK, TOO_FAST = 0, 1, 2, 3, 4, 5, 6

#: Kinds of tasks. A HELD task does not start when it becomes ready: the loop returns to its caller.
COMPUTE, TRANSFER, JOIN, HELD = 0, 1, 2, 3

#: Built-in network models. From FIRST_QUEUE on, models carry whole messages from link to link; the others assign rates
#: to flows. A new model is a branch in ``_flows.py`` or ``_loop.py``.
FAIR, EQUAL, CIRCUIT, FIFO = 0, 1, 2, 3
MODELS = {"fair": FAIR, "equal": EQUAL, "circuit": CIRCUIT, "fifo": FIFO}
FIRST_QUEUE = FIFO

#: One cache line holds all fields of a task that an event needs: 1.7 times as fast as one array per field, at 3.5
#: million tasks.
TASK = record_dtype(
    64,
    ("amount", "i8"),  # duration in ps of a compute task, size in bytes of a transfer
    ("ready_ps", "i8"),  # this and the next two: times, -1 until they are reached
    ("start_ps", "i8"),
    ("end_ps", "i8"),
    ("first_successor", "i8"),  # index of its first successor in ``successors``
    ("num_awaited", "i4"),  # predecessors that must still end; negative: surplus predecessors of a join
    ("gates", "i4"),  # compute tasks: 1 until it is ready + 1 until the previous task of its stream ends
    ("hop", "i4", "gates"),  # transfers in queue networks: 1 + the number of links entered
    ("kind", "i4"),  # COMPUTE, TRANSFER, JOIN or HELD
    ("route", "i4"),  # transfers
    ("stream", "i4", "route"),  # compute tasks; -1: none
    ("next_in_stream", "i4"),  # compute tasks; -1: none
    ("num_successors", "i4"),
)

STREAM = record_dtype(
    64,
    ("taken_ppm", "i8"),  # slowdown, in millionths of full speed
    ("speed_ppm", "i8"),  # speed since ``since_ps``, in millionths of full speed
    ("since_ps", "i8"),
    ("left_as", "i8"),  # remaining work of its task at ``since_ps``, in attoseconds at full speed
    ("due_ps", "i8"),  # the predicted end of its task
    ("running", "i8"),  # the task that runs; -1: none
    ("is_changed", "i8"),  # whether it is in ``changed_streams``
)

ROUTE = record_dtype(
    32,
    ("first", "i8"),  # its links are route_links[first:last]
    ("last", "i8"),
    ("latency_ps", "i8"),
    ("software_latency_ps", "i8"),  # part of the latency before the first link
)

LINK = record_dtype(
    64,
    ("bytes_per_s", "f8"),
    ("num_crossings", "i8"),  # flows that cross it, counted once per crossing
    ("sweep", "i8"),  # the last sweep over a component that has visited it
    ("num_unfrozen", "i8"),  # while rates are found: crossings whose rate is not known yet
    ("num_new", "i8"),  # crossings frozen at this level; queues: messages that arrived at this instant
    ("used", "f8"),  # bytes/s of the frozen crossings
    ("free_ps", "i8", "used"),  # queues: when it has carried all accepted messages
    ("share", "f8"),  # bytes/s for each crossing that is not frozen
    ("latency_ps", "i8", "share"),  # queues
    ("first_edge", "i4"),  # head of the list of edges that cross it; -1: none
    ("is_dirty", "i4"),  # whether it is in ``dirty_links``
)

#: A flow has a slot while it is in flight.
FLOW = record_dtype(
    64,
    ("remaining", "f8"),  # bytes left at ``since_ps``
    ("rate", "f8"),  # bytes/s since then
    ("new_rate", "f8"),  # bytes/s from now on; -1 while it is not known
    ("since_ps", "i8"),
    ("end_ps", "i8"),  # the predicted end; -1 in a free slot
    ("queued_ps", "i8"),  # the end last pushed on the heap
    ("sweep", "i8"),  # the last sweep over a component that has visited it
    ("task", "i8"),
)

#: One crossing of a link by a flow. Slot s owns num_edges[s] edges from edges[s * max_hops] on.
EDGE = record_dtype(
    16,
    ("next", "i4"),  # in the list of edges that cross its link; -1: none
    ("previous", "i4"),
    ("slot", "i4"),
    ("link", "i4"),
)

#: An entry of a heap of events.
ENTRY = record_dtype(16, ("time_ps", "i8"), ("payload", "i8"))

#: Progress of a run; persists between calls of the loop.
CLOCK = record_dtype(
    128,
    ("now", "i8"),  # ps
    ("num_queued", "i8"),  # entries of the heap
    ("num_ready", "i8"),  # tasks in ``ready``
    ("num_done", "i8"),  # tasks that have ended
    ("num_flows", "i8"),  # flows started; queues: links crossed by messages
    ("num_free", "i8"),  # slots in ``free_slots``
    ("num_dirty", "i8"),  # links in ``dirty_links``
    ("num_arrived", "i8"),  # queues: messages in ``arrived``
    ("num_changed", "i8"),  # streams in ``changed_streams``
    ("num_held", "i8"),  # held tasks that have become ready
    ("sweep", "i8"),  # the last sweep over components
    ("late_task", "i8"),  # a task that would end after MAX_PS; -1: none
    ("fast_stream", "i8"),  # a stream that is faster than at full speed; -1: none
)


#: State of a transfer over a circuit. NONE: it needs no circuit. LATENCY, SETUP, SENDING, UNDERWAY: its next event ends
#: the latency of its route, its circuit's set-up, sending, the travel of its last byte. ASKING, LISTED: it waits for a
#: circuit (LISTED: and retries at this instant). IN_LINE, SETTER: it waits in line (SETTER: on its own set-up).
NONE, LATENCY, SETUP, SENDING, UNDERWAY, ASKING, LISTED, IN_LINE, SETTER = range(9)

CIRCUIT_TASK = record_dtype(
    64,
    ("sender", "i4"),  # ranks
    ("receiver", "i4"),
    ("step", "i4"),  # NONE, ...
    ("line", "i4"),  # 2 * circuit + direction
    ("next_in_line", "i4"),  # -1: none
    ("next_for_room", "i4"),
    ("order", "i4"),  # its position in ``requests``
    ("next_asking", "2i4"),  # in the lists at the sender and at the receiver: 2 * task + end, -1: none
    ("previous_asking", "2i4"),
)

CIRCUIT_RANK = record_dtype(
    64,
    ("reserved_bytes", "i8"),  # of the receive buffer
    ("num_circuits", "i4"),
    ("num_busy", "i4"),  # circuits that transfers use
    ("first_asking", "i4"),  # queue for a circuit: 2 * task + end, -1: empty
    ("last_asking", "i4"),
    ("first_for_room", "i4"),  # queue for room in its buffer: task, -1: empty
    ("last_for_room", "i4"),
    ("is_changed", "i4"),  # whether it is in ``changed_ranks``
    ("has_room", "i4"),  # whether it is in ``ranks_with_room``
)

CIRCUIT_JOINT = record_dtype(
    64,
    ("ends", "2i8"),  # ranks, the lower one first
    ("num_users", "i8"),  # transfers
    ("is_up", "i8"),
    ("idle_since_ps", "i8"),
    ("last_task", "i8"),  # the last task before it became idle
)

#: The transfers in one direction of a circuit: 2 * circuit from the lower end, 2 * circuit + 1 from the upper.
CIRCUIT_LINE = record_dtype(
    16,
    ("first", "i4"),  # transfers; -1: none
    ("last", "i4"),
    ("is_busy", "i4"),  # whether the first sends or waits for room
    ("is_open", "i4"),  # whether it is in ``open_lines``
)

SWITCH = record_dtype(
    128,
    ("setup_ps", "i8"),  # this and the next two: properties of circuits
    ("bytes_per_s", "i8"),
    ("latency_ps", "i8"),
    ("buffer_bytes", "i8"),  # 0: there is always room
    ("ports", "i8"),  # circuits that a rank can hold
    ("num_arrived", "i8"),  # this and the next five: entries in use in the lists of CircuitTables
    ("num_changed", "i8"),
    ("num_open", "i8"),
    ("num_with_room", "i8"),
    ("num_free", "i8"),
    ("num_requests", "i8"),
    ("has_changed", "i8"),  # whether something has happened at this instant
)


class TaskTables(NamedTuple):
    """Tasks and streams, modified in place except ``successors`` and the two slowdown columns.

    ready: stack of ready tasks. arrived: messages that reached their next link at this instant; empty unless the
    network has queues. slowdown_ppm, slowdown_stream: how far the end of each task slows a stream down, and the
    stream, as in the TaskGraph. Both, ``streams`` and ``changed_streams`` are empty unless a task slows a stream down.
    """

    tasks: RecordArray
    successors: Int32
    ready: Int32
    arrived: Int32
    streams: RecordArray
    slowdown_ppm: Int32
    slowdown_stream: Int32
    changed_streams: Int32


class NetworkTables(NamedTuple):
    """Routes (read only), links, and flows in flight.

    route_counts: how often a flow crosses each link, parallel to route_links; edge_counts: the same, parallel to edges;
    both are empty if all cross once. route_caps, flow_caps: float64, maximum bytes/s of each transfer of a route and of
    the flow in each slot; infinite means no limit. capped_flows: flows of the component with a limit and no rate yet.
    These three are empty if no route has a limit. free_slots: stack. dirty_links: links whose flows changed at this
    instant. found_links, found_flows: the component whose rates are being computed. frozen_links: its links frozen at
    the current level.
    """

    max_hops: int
    routes: RecordArray
    route_links: Int32
    route_counts: Int32
    route_caps: Float64
    links: RecordArray
    flows: RecordArray
    num_edges: Int32
    edges: RecordArray
    edge_counts: Int32
    flow_caps: Float64
    capped_flows: Int32
    free_slots: Int32
    dirty_links: Int32
    found_links: Int32
    found_flows: Int32
    frozen_links: Int32


class CircuitTables(NamedTuple):
    """All circuits of a run, modified in place.

    switch: one record. ports: int32[ranks * ports], the circuits of each rank. free_circuits: stack. requests: tasks
    in the order of their requests for a circuit. Lists of one instant: arrived (tasks that request a circuit),
    changed_ranks (a circuit of theirs became idle), open_lines (may send), ranks_with_room (may be sent to). askers,
    heads: scratch.
    """

    switch: RecordArray
    tasks: RecordArray
    ranks: RecordArray
    joints: RecordArray
    lines: RecordArray
    ports: Int32
    free_circuits: Int32
    requests: Int32
    arrived: Int32
    changed_ranks: Int32
    open_lines: Int32
    ranks_with_room: Int32
    askers: Int32
    heads: Int32


def new_links(bytes_per_s: Int64, latency_ps: Int64 | None) -> RecordArray:
    """Return links without flows or messages; ``latency_ps`` is given if messages travel from link to link."""
    links = new_records(len(bytes_per_s), LINK)
    links["bytes_per_s"] = bytes_per_s
    links["first_edge"] = -1
    if latency_ps is not None:
        links["latency_ps"] = latency_ps
    return links


def with_slots(network: NetworkTables, slots: int) -> NetworkTables:
    """Return the network without flows and with ``slots`` slots, all free and in ``free_slots``."""
    flows = new_records(slots, FLOW)
    flows["end_ps"] = -1
    capped = slots if len(network.route_caps) else 0
    return network._replace(
        flows=flows,
        num_edges=np.zeros(slots, np.int32),
        edges=new_records(slots * network.max_hops, EDGE),
        edge_counts=np.zeros(slots * network.max_hops if len(network.route_counts) else 0, np.int32),
        flow_caps=np.zeros(capped, np.float64),
        capped_flows=np.zeros(capped, np.int32),
        free_slots=np.arange(slots, dtype=np.int32),
        found_flows=np.zeros(slots, np.int32),
    )


def with_more_slots(network: NetworkTables, slots: int) -> NetworkTables:
    """Return a full network grown to ``slots`` slots; the new slots come first in ``free_slots``."""
    grown = with_slots(network, slots)
    num_old_slots = len(network.flows)
    for new, old in (
        (grown.flows, network.flows),
        (grown.num_edges, network.num_edges),
        (grown.edges, network.edges),
        (grown.edge_counts, network.edge_counts),
        (grown.flow_caps, network.flow_caps),
    ):
        new[: len(old)] = old
    grown.free_slots[: slots - num_old_slots] = np.arange(num_old_slots, slots, dtype=np.int32)
    return grown


def new_circuits(
    switch: RecordArray, sender: Int32, receiver: Int32, needs_circuit: Bool, num_ranks: int
) -> CircuitTables:
    """Return tables without circuits. switch: one record of circuit properties. needs_circuit: bool[tasks]."""
    num_transfers = int(needs_circuit.sum())
    ports = min(int(switch["ports"][0]), max(num_ranks - 1, 1))  # at most one circuit per pair of ranks
    num_circuits = num_ranks * ports // 2
    switch["ports"], switch["num_free"] = ports, num_circuits
    tasks = new_records(len(sender), CIRCUIT_TASK)
    tasks["sender"], tasks["receiver"] = sender, receiver
    tasks["step"] = np.where(needs_circuit, LATENCY, NONE)
    ranks = new_records(num_ranks, CIRCUIT_RANK)
    for field in ("first_asking", "last_asking", "first_for_room", "last_for_room"):
        ranks[field] = -1
    lines = new_records(2 * num_circuits, CIRCUIT_LINE)
    lines["first"] = lines["last"] = -1
    return CircuitTables(
        switch=switch,
        tasks=tasks,
        ranks=ranks,
        joints=new_records(num_circuits, CIRCUIT_JOINT),
        lines=lines,
        ports=np.zeros(num_ranks * ports, np.int32),
        free_circuits=np.arange(num_circuits, dtype=np.int32)[::-1].copy(),
        requests=np.zeros(num_transfers, np.int32),
        arrived=np.zeros(num_transfers, np.int32),
        changed_ranks=np.zeros(num_ranks, np.int32),
        open_lines=np.zeros(2 * num_circuits, np.int32),
        ranks_with_room=np.zeros(num_ranks, np.int32),
        askers=np.zeros(num_transfers, np.int32),
        heads=np.zeros(2 * num_circuits, np.int32),
    )
