"""Records of the GPUs of a load-store run. Frozen data without logic.

A run may simulate fewer GPUs than ranks: if ranks behave the same (folding), each GPU stands for several ranks, listed
in ``GpuRecords.gpu_of``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Generic, NamedTuple, TypeVar

from trine.common.arrays import Int32, Int64
from trine.common.shown import OneLine
from trine.gpu.peers import Arrivals
from trine.graph.taskgraph import Records

#: States of a wavefront: computing (in the CU's ALU or waiting for it), waiting to issue a request (the CU issues for
#: other wavefronts), waiting for memory (request slots, waitcnt), for a semaphore, at a barrier.
COMPUTING, ISSUE, MEMORY, SEMAPHORE, BARRIER = range(5)
STATE_NAMES = ("compute", "issue", "memory", "semaphore", "barrier")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceNames:
    """Names and kinds of the resources of one GPU.

    names: ``cu3.out``, ``router0->router1``, ``channel5``, ``l2.5``, ... kinds: ``cu``, ``noc``, ``memory``, ``l2``.
    source, target: for mesh links, the routers that they join (row * cols + column), else -1.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]


Count = TypeVar("Count", int, Int64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GpuCounters(Generic[Count]):
    """Counters of one GPU (int), or of each simulated GPU (int64[g]).

    loads, stores, acquires, releases: requests issued by wavefronts. polls: repeated acquires and flagged loads,
    included in the former. load_latency_ps: sum over loads, from issue to answer. packets: sent through copy engines
    and NICs. flagged_loads: loads of lines with a flag inside. wakeups: wavefronts woken by a monitor;
    spurious_wakeups: those whose value was still too low. monitor_full: acquires that found the monitor's table full.
    """

    loads: Count
    stores: Count
    acquires: Count
    releases: Count
    polls: Count
    load_latency_ps: Count
    packets: Count
    l2_hits: Count
    l2_misses: Count
    flagged_loads: Count
    wakeups: Count
    spurious_wakeups: Count
    monitor_full: Count


#: Names of all counters.
COUNTERS = tuple(field.name for field in fields(GpuCounters))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GpuRecords(GpuCounters[Int64], OneLine):
    """Columns of a run; times in ps from the start of the run, -1 for events that never happened. Hosts have no rows.

    Simulated GPUs 0..g-1: ranks int32[g], the rank that each was simulated as; gpu_of int32[ranks], the GPU that stands
        for each rank.
    Workgroups and operations of the simulated GPUs' program: workgroup_start_ps, workgroup_end_ps int64[w];
        workgroup_cu int32[w], the CU on its GPU; op_start_ps, op_end_ps int64[n]: from the first wavefront's start
        until the last wavefront is done (for a data operation: has issued it).
    state_ps: int64[g, cus, 5], time of wavefronts in each state; the sum is their total time on the CU.
    resource_data, resource_control: int64[g, r], messages with data and without that each resource has served;
        resource_busy_ps int64[g, r].
    Used lanes 0..l-1 of fabric links: lane_link int32[l], index into the cluster's links (in a folded run: the first of
        its orbit); lane_number int32[l]; lane_data, lane_control, lane_busy_ps int64[l].
    """

    ranks: Int32
    gpu_of: Int32
    workgroup_start_ps: Int64
    workgroup_end_ps: Int64
    workgroup_cu: Int32
    op_start_ps: Int64
    op_end_ps: Int64
    state_ps: Int64
    resource_data: Int64
    resource_control: Int64
    resource_busy_ps: Int64
    lane_link: Int32
    lane_number: Int32
    lane_data: Int64
    lane_control: Int64
    lane_busy_ps: Int64
    resources: ResourceNames
    end_ps: int
    num_events: int
    engine: str


def without_hosts(records: GpuRecords, num_hosts: int) -> GpuRecords:
    """Return the records without the rows of the last GPUs, which are hosts and have no CUs."""
    if not num_hosts:
        return records
    gpus = len(records.ranks) - num_hosts
    return replace(records, **{name: getattr(records, name)[:gpus] for name in ("ranks", "gpu_of", *OF_GPU)})


class GpuOutcome(NamedTuple):
    """Result of a run. ``finished``: False if it stopped early (``until_ps``, Ctrl-C, stuck); missing times are -1.

    arrivals: only if the system has ``record`` set.
    """

    records: Records
    gpu: GpuRecords
    finished: bool
    arrivals: Arrivals | None = None


#: Columns with a row for each simulated GPU, workgroup, operation and lane.
OF_GPU = ("state_ps", "resource_data", "resource_control", "resource_busy_ps", *COUNTERS)
OF_WORKGROUP = ("workgroup_start_ps", "workgroup_end_ps", "workgroup_cu")
OF_OPERATION = ("op_start_ps", "op_end_ps")
OF_LANE = ("lane_link", "lane_number", "lane_data", "lane_control", "lane_busy_ps")
