"""The narrow waist: compute, transfer and join tasks with their dependencies, as flat arrays.

Every feature either emits tasks (before the waist) or reads records (after it). Frozen data without logic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int8, Int32, Int64
from trine.common.shown import OneLine, titled
from trine.common.units import format_time

if TYPE_CHECKING:
    from trine.graph.program import Collective

COMPUTE, TRANSFER, JOIN = 0, 1, 2
KIND_NAMES = ("compute", "transfer", "join")


@dataclass(frozen=True, slots=True)
class TaskColumn:
    """A column with one entry per task: its type, its default value, and whether it may be absent."""

    dtype: type[np.signedinteger[Any]]
    fill: int = -1
    optional: bool = False


_INT8, _INT32 = {"column": TaskColumn(np.int8)}, {"column": TaskColumn(np.int32)}
_INT64 = {"column": TaskColumn(np.int64, 0)}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Labels(OneLine):
    """Labels of the tasks; every array has one entry per task, -1 if it does not apply.

    ``phase``: 0 forward, 1 backward, 2 optimizer, 3 input copy. ``operator``, ``layer``, ``collective``: indices into
    the graph's ``operator_names``, ``layer_names`` and ``collectives``. ``stage``, ``microbatch``, ``step``: numbers.
    """

    phase: Int8 = field(metadata=_INT8)
    operator: Int32 = field(metadata=_INT32)
    layer: Int32 = field(metadata=_INT32)
    collective: Int32 = field(metadata=_INT32)
    stage: Int32 = field(metadata=_INT32)
    microbatch: Int32 = field(metadata=_INT32)
    step: Int32 = field(metadata=_INT32)


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveLabel(OneLine):
    """One collective operation: ``size_bytes`` is the payload as nccl-tests counts it, ``ranks`` its group.

    If a graph contains only some ranks, ``ranks`` lists the group's ranks in it, and ``group_size`` counts all.
    """

    kind: str
    algorithm: str
    size_bytes: int
    ranks: tuple[int, ...]
    axis: str
    step: int = 0
    group_size: int = 0

    @classmethod
    def of(cls, step: Collective, algorithm: str, ranks: tuple[int, ...]) -> CollectiveLabel:
        """Return the label of a program's step that ``ranks`` run by ``algorithm``."""
        return cls(
            kind=step.kind, algorithm=algorithm, size_bytes=step.size_bytes, ranks=ranks, axis=step.axis,
            step=step.label.step,
        )  # fmt: skip

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return self.group_size or len(self.ranks)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TaskGraph(OneLine):
    """Tasks 0..n-1, their predecessors, streams and routes.

    kind: int8[n], COMPUTE, TRANSFER or JOIN.
    rank: int32[n]; the rank of a compute or join task (-1: none), the sender of a transfer.
    peer: int32[n]; the receiver of a transfer, else -1.
    stream: int32[n]; in-order queue of a compute task, -1 for transfers and joins. Tasks of one stream run one at a
        time, in the order of their numbers.
    duration_ps: int64[n], of compute tasks; 0 otherwise.
    size_bytes: int64[n], of transfers; 0 otherwise.
    route: int32[n], of transfers: index into route_ptr; -1 otherwise.
    num_required: int32[n]; a task is ready when this many of its predecessors have ended. Equals the number of
        predecessors except for joins, which may need fewer (k of n).
    predecessor_ptr, predecessor_idx: CSR: predecessors of task i are idx[ptr[i]:ptr[i+1]].
    route_ptr, route_links: CSR: links of route r are links[ptr[r]:ptr[r+1]], in path order.
    route_latency_ps: int64[routes], sum of the latencies of its links, plus the software delay before a message
        enters the first link.
    route_cap_bytes_per_s: int64[routes], upper limit of each transfer's rate on the route, whatever its links allow;
        0: no limit. None if no route has one. Only flow-level networks can respect it.
    link_bytes_per_s: int64[links].
    link_latency_ps: int64[links]; None if unknown. Only networks that carry messages link by link need it.
    route_counts: int32, parallel to route_links; None: one each. In a folded graph a transfer represents a class of
        flows and a link a class of links; this is the number of those flows that cross each link of the class.
    pressure_ppm, pressure_stream: int32[n]; None if no task slows compute down. When task i ends, the stream
        pressure_stream[i] (-1: none) loses pressure_ppm[i] millionths of its full speed (gains them back if negative);
        a compute task on it continues at the remaining speed.
    stream_names, rank_names, link_names: display names.
    """

    kind: Int8 = field(metadata=_INT8)
    rank: Int32 = field(metadata=_INT32)
    peer: Int32 = field(metadata=_INT32)
    stream: Int32 = field(metadata=_INT32)
    duration_ps: Int64 = field(metadata=_INT64)
    size_bytes: Int64 = field(metadata=_INT64)
    route: Int32 = field(metadata=_INT32)
    num_required: Int32 = field(metadata=_INT32)
    predecessor_ptr: Int64
    predecessor_idx: Int32
    route_ptr: Int64
    route_links: Int32
    route_latency_ps: Int64
    link_bytes_per_s: Int64
    stream_names: tuple[str, ...]
    stream_ranks: tuple[int, ...]
    rank_names: tuple[str, ...]
    link_names: Sequence[str]
    labels: Labels
    operator_names: tuple[str, ...] = ()
    layer_names: tuple[str, ...] = ()
    collectives: tuple[CollectiveLabel, ...] = ()
    task_names: tuple[str, ...] = ()
    link_latency_ps: Int64 | None = None
    route_counts: Int32 | None = None
    route_cap_bytes_per_s: Int64 | None = None
    pressure_ppm: Int32 | None = field(default=None, metadata={"column": TaskColumn(np.int32, 0, optional=True)})
    pressure_stream: Int32 | None = field(default=None, metadata={"column": TaskColumn(np.int32, optional=True)})

    @property
    def num_tasks(self) -> int:
        return len(self.kind)

    def predecessors(self, task: int) -> Int32:
        """Return the predecessors of a task."""
        return self.predecessor_idx[self.predecessor_ptr[task] : self.predecessor_ptr[task + 1]]

    def links_of(self, route: int) -> Int32:
        """Return the links of a route."""
        return self.route_links[self.route_ptr[route] : self.route_ptr[route + 1]]

    def __repr__(self) -> str:
        return titled(
            self, f"{self.num_tasks:,} tasks on {len(self.rank_names):,} ranks, {len(self.link_names):,} links"
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Records(OneLine):
    """Times of the simulated tasks, one row per task, in the order of the task graph.

    ready_ps: its predecessors have ended. start_ps: its stream (compute) or network (transfer) begins it, after any
    queueing for the stream or the first link. end_ps: it ends. All int64[n], picoseconds from the start of the run.
    ``num_events`` counts the engine's events.
    """

    ready_ps: Int64
    start_ps: Int64
    end_ps: Int64
    num_events: int
    engine: str
    network: str

    def __repr__(self) -> str:
        end = format_time(int(self.end_ps.max(initial=0)))
        return titled(self, f"{len(self.end_ps):,} tasks, {self.num_events:,} events, end {end} ({self.network})")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Snapshot(OneLine):
    """A paused run that can resume, perhaps on a graph that splits the same work into more tasks.

    All events at ``now_ps`` have been processed, except that the network has not yet reallocated link bandwidth and
    held tasks have not started.
    ready_ps, start_ps, end_ps: int64[n] as in Records, -1 for the future. A held task that is ready has only ready_ps.
    active: int32[k], ascending: tasks that have started and not ended. The next five arrays have one entry per active
        task, int64 ps unless noted, -1 if not applicable.
    due_ps: end of a compute task, or of the latency of a transfer, if nothing changes.
    since_ps, remaining_bytes (float64), bytes_per_s (float64), flow_end_ps: for a transfer in flight, the time its rate
        last changed, the bytes left then, its rate since, and its predicted end (-1: none yet).
    speed_ppm: int64[streams], speed of each stream under pressure in millionths of full speed, before the lower limit
        of 10 000 applies. stream_left_as: int64[streams], remaining time at full speed, at now_ps, of the compute task
        on it, in attoseconds (millionths of a ps). Both are None if no task slows compute down.
    is_finished: whether every task has ended. num_events: number of engine events so far.
    """

    now_ps: int
    ready_ps: Int64
    start_ps: Int64
    end_ps: Int64
    active: Int32
    due_ps: Int64
    since_ps: Int64
    remaining_bytes: npt.NDArray[np.float64]
    bytes_per_s: npt.NDArray[np.float64]
    flow_end_ps: Int64
    is_finished: bool
    num_events: int
    speed_ppm: Int64 | None = None
    stream_left_as: Int64 | None = None
