"""State of the network as arrays: flows in flight, links, and the component that is being shared out anew."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.arrays import Float64, Int32, Int64

#: Fields of an edge, which is one crossing of a link by a flow: ``edges[EDGE * e + field]``.
EDGE = 4
NEXT, PREVIOUS, SLOT, LINK = 0, 1, 2, 3

#: Fields of a flow. In ``real[FIELDS * slot + field]``: bytes left at SINCE_PS, bytes/s, and bytes/s from now on.
FIELDS = 8
REMAINING, RATE, NEW_RATE = 0, 1, 2
#: In ``whole[...]``: when the rate last changed; the foreseen end, -1 in a free slot; the end that was last put on the
#: heap; the last sweep that has visited the flow; its task.
SINCE_PS, FLOW_END_PS, QUEUED_PS, MARK, FLOW_TASK = 3, 4, 5, 6, 7


class Links(NamedTuple):
    """One entry a link. Everything but ``capacity`` and ``latency_ps`` is modified in place by the kernels.

    capacity: float64, bytes/s. latency_ps: int64. free_ps: int64, when the link has carried all messages that it has
    taken; these two may be empty in networks of flows. head: int32, first edge of the list of edges that cross the
    link, or -1. crossings: int64, sum of the counts of these edges. dirty: int32, the first so many (a scalar of the
    loop) are links whose flows have changed at this instant. is_dirty: int32. mark: int64, last sweep that has visited
    the link. Scratch of the models:
    left: int64, crossings not yet frozen; fresh: int64, crossings frozen at this level; used, share: float64, bytes/s;
    touched: int32. found: int32, links of the component.
    """

    capacity: Float64
    latency_ps: Int64
    free_ps: Int64
    head: Int32
    crossings: Int64
    dirty: Int32
    is_dirty: Int32
    mark: Int64
    left: Int64
    fresh: Int64
    used: Float64
    share: Float64
    touched: Int32
    found: Int32


class Flows(NamedTuple):
    """One record a slot; a flow has a slot while it is in flight. All modified in place by the kernels.

    real, whole: float64 and int64 views of the same memory, FIELDS words a slot: a flow is one cache line (0.9
    times the time of one array a field). hops: edges that a slot has; those of slot s begin at s * hops. num_edges:
    int32. edges: int32[slots * hops * EDGE]. counts: int32[slots * hops], how often each edge counts; empty where all
    count once. free: int32, stack of free slots. found: int32, flows of the component.
    """

    hops: int
    real: Float64
    whole: Int64
    num_edges: Int32
    edges: Int32
    counts: Int32
    free: Int32
    found: Int32


def new_links(bytes_per_s: Int64, latency_ps: Int64) -> Links:
    """Links without flows or messages; ``latency_ps``: int64[links], or empty where the network has no use for it."""
    n = len(bytes_per_s)
    return Links(
        capacity=bytes_per_s.astype(np.float64),
        latency_ps=latency_ps,
        free_ps=np.zeros(len(latency_ps), np.int64),
        head=np.full(n, -1, np.int32),
        crossings=np.zeros(n, np.int64),
        dirty=np.zeros(n, np.int32),
        is_dirty=np.zeros(n, np.int32),
        mark=np.zeros(n, np.int64),
        left=np.zeros(n, np.int64),
        fresh=np.zeros(n, np.int64),
        used=np.zeros(n),
        share=np.zeros(n),
        touched=np.zeros(n, np.int32),
        found=np.zeros(n, np.int32),
    )


def new_flows(slots: int, hops: int, *, counted: bool = False) -> Flows:
    """``slots`` free slots; ``free`` is a full stack. ``counted``: flows may stand for several."""
    # 64-byte aligned, so that a record never lies across two cache lines.
    raw = np.zeros(slots * FIELDS + FIELDS, np.int64)
    first = -(raw.ctypes.data // 8) % FIELDS
    whole = raw[first : first + slots * FIELDS]
    whole[FLOW_END_PS::FIELDS] = -1
    return Flows(
        hops=hops,
        real=whole.view(np.float64),
        whole=whole,
        num_edges=np.zeros(slots, np.int32),
        edges=np.zeros(slots * hops * EDGE, np.int32),
        counts=np.zeros(slots * hops if counted else 0, np.int32),
        free=np.arange(slots, dtype=np.int32),
        found=np.zeros(slots, np.int32),
    )


def grown_flows(flows: Flows, slots: int) -> Flows:
    """A copy of ``flows``, none of whose slots is free, with ``slots`` slots; the new ones lie first in ``free``."""
    grown = new_flows(slots, flows.hops, counted=len(flows.counts) > 0)
    before = num_slots(flows)
    grown.whole[: len(flows.whole)] = flows.whole
    grown.num_edges[:before] = flows.num_edges
    grown.edges[: len(flows.edges)] = flows.edges
    grown.counts[: len(flows.counts)] = flows.counts
    grown.free[: slots - before] = np.arange(before, slots, dtype=np.int32)
    return grown


def num_slots(flows: Flows) -> int:
    return len(flows.free)
