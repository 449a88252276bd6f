"""State of the network as arrays: flows in flight, links, and the component that is being shared out anew."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]

#: Fields of an edge, which is one crossing of a link by a flow: ``edges[EDGE * e + field]``.
EDGE = 4
NEXT, PREVIOUS, SLOT, LINK = 0, 1, 2, 3


class Links(NamedTuple):
    """One entry a link. Everything but ``capacity`` is modified in place by the kernels.

    capacity: float64, bytes/s. head: int32, first edge of the list of edges that cross the link, or -1. count: int32,
    number of these edges. dirty: int32, the first so many (a scalar of the loop) are links whose flows have changed at
    this instant. is_dirty: int32. mark: int64, last sweep that has visited the link. Scratch of the models: left:
    int32, edges not yet frozen; fresh: int32, edges frozen at this level; used, share: float64, bytes/s; touched: int32.
    found: int32, links of the component.
    """

    capacity: Float64
    head: Int32
    count: Int32
    dirty: Int32
    is_dirty: Int32
    mark: Int64
    left: Int32
    fresh: Int32
    used: Float64
    share: Float64
    touched: Int32
    found: Int32


class Flows(NamedTuple):
    """One entry a slot; a flow has a slot while it is in flight. All modified in place by the kernels.

    hops: edges that a slot has; those of slot s begin at s * hops. edges: int32[slots * hops * EDGE]. num_edges: int64.
    task: int64. remaining: float64, bytes left at since_ps. rate, new_rate: float64, bytes/s. since_ps: int64, when the
    rate last changed. end_ps: int64, foreseen end; -1 in a free slot. queued_ps: int64, end_ps when it was last put on
    the heap. mark: int64, as of a link. free: int32, stack of free slots. found: int32, flows of the component.
    """

    hops: int
    edges: Int32
    num_edges: Int64
    task: Int64
    remaining: Float64
    rate: Float64
    new_rate: Float64
    since_ps: Int64
    end_ps: Int64
    queued_ps: Int64
    mark: Int64
    free: Int32
    found: Int32


def new_links(bytes_per_s: Int64) -> Links:
    """Links without flows."""
    n = len(bytes_per_s)
    return Links(
        capacity=bytes_per_s.astype(np.float64),
        head=np.full(n, -1, np.int32),
        count=np.zeros(n, np.int32),
        dirty=np.zeros(n, np.int32),
        is_dirty=np.zeros(n, np.int32),
        mark=np.zeros(n, np.int64),
        left=np.zeros(n, np.int32),
        fresh=np.zeros(n, np.int32),
        used=np.zeros(n),
        share=np.zeros(n),
        touched=np.zeros(n, np.int32),
        found=np.zeros(n, np.int32),
    )


def new_flows(slots: int, hops: int) -> Flows:
    """``slots`` free slots; ``free`` is a full stack."""
    return Flows(
        hops=hops,
        edges=np.zeros(slots * hops * EDGE, np.int32),
        num_edges=np.zeros(slots, np.int64),
        task=np.zeros(slots, np.int64),
        remaining=np.zeros(slots),
        rate=np.zeros(slots),
        new_rate=np.zeros(slots),
        since_ps=np.zeros(slots, np.int64),
        end_ps=np.full(slots, -1, np.int64),
        queued_ps=np.full(slots, -1, np.int64),
        mark=np.zeros(slots, np.int64),
        free=np.arange(slots, dtype=np.int32),
        found=np.zeros(slots, np.int32),
    )


def grown_flows(flows: Flows, slots: int) -> Flows:
    """A copy of ``flows``, none of whose slots is free, with ``slots`` slots; the new ones lie first in ``free``."""
    grown = new_flows(slots, flows.hops)
    for name, old, new in zip(Flows._fields, flows, grown, strict=True):
        if name not in ("hops", "free", "found"):
            new[: len(old)] = old
    before = len(flows.task)
    grown.free[: slots - before] = np.arange(before, slots, dtype=np.int32)
    return grown
