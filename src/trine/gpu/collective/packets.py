"""A collective's transfers as packets that queue at every link, like in scale-out networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trine.cluster.cluster import Cluster
from trine.collectives.bus_bandwidth import bus_factor
from trine.collectives.expand import expand
from trine.collectives.run import schedule_graph
from trine.collectives.schedule import ExpandedSchedule, Schedule
from trine.common.arrays import Int64
from trine.common.units import PS_PER_S
from trine.errors import InputError
from trine.gpu.builder import ProgramBuilder
from trine.gpu.model import GpuModel
from trine.gpu.model.files import load_gpu_model
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.system import KernelTasks

#: An InfiniBand packet: its largest payload, and its headers with some margin (assumed).
PACKET_BYTES, HEADER_BYTES = 4096, 64
MAX_PACKET_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PacketRun:
    """Result of a run that all ranks enter at 0.

    end_ps: end of the last transfer. bus_bytes_per_s: as in nccl-tests, 0 without data to send. flow_start_ps,
    flow_end_ps, flow_alone_ps: int64[transfers], in the order of the expanded schedule: when each may begin (so waiting
    for its sender's link counts), its arrival, and its duration on an empty network.
    """

    end_ps: int
    bus_bytes_per_s: float
    flow_start_ps: Int64
    flow_end_ps: Int64
    flow_alone_ps: Int64

    @property
    def flow_ps(self) -> Int64:
        """Duration of each transfer: int64[transfers]."""
        return self.flow_end_ps - self.flow_start_ps


def packet_collective(
    schedule: Schedule,
    cluster: Cluster,
    group: Sequence[int],
    *,
    packet_bytes: int = PACKET_BYTES,
    header_bytes: int = HEADER_BYTES,
) -> PacketRun:
    """Simulate every transfer of ``schedule`` packet by packet; all ranks enter at 0.

    A transfer's packets enter the first link of its route one after the other. At every link they queue, first come
    first served, with the packets of other transfers (docs/design/gpu-model.md). Queues have no limit, so packets are
    never dropped and senders never slow down.

    Parameters
    ----------
    group: the device index of each rank, all of them GPUs. packet_bytes: payload of a packet; header_bytes: extra.

    Raises
    ------
    InputError: devices that do not match the schedule, switches that reduce, packets of no size.
    SpecError: no route between ranks that exchange data.
    """
    model = _with_packets(packet_bytes, header_bytes)
    expanded = expand(schedule)
    ends = _ends(expanded, cluster, group, model)
    end_ps = int(ends.max(initial=0))
    sent_bytes = schedule.size_bytes * bus_factor(schedule.kind, schedule.num_ranks)
    return PacketRun(
        end_ps=end_ps,
        bus_bytes_per_s=sent_bytes * PS_PER_S / end_ps if end_ps else 0.0,
        flow_start_ps=_starts(expanded, ends),
        flow_end_ps=ends,
        flow_alone_ps=_alone_ps(expanded, cluster, group, model),
    )


def _with_packets(packet_bytes: int, header_bytes: int) -> GpuModel:
    if not 1 <= packet_bytes <= MAX_PACKET_BYTES:
        raise InputError(f"must be from 1 to {MAX_PACKET_BYTES}, got {packet_bytes}", field="packet_bytes")
    if not 0 <= header_bytes <= MAX_PACKET_BYTES:
        raise InputError(f"must be from 0 to {MAX_PACKET_BYTES}, got {header_bytes}", field="header_bytes")
    base_model = load_gpu_model("astra3-generic")
    return replace(  # no kernel runs: the chip's inside makes no difference, and the smallest has the smallest tables
        base_model,
        packet_bytes=packet_bytes,
        packet_header_bytes=header_bytes,
        num_cus=1,
        noc=replace(base_model.noc, rows=1, cols=1),
        memory=replace(base_model.memory, num_channels=1),
        ports=replace(base_model.ports, count=1),
    )


def _ends(expanded: ExpandedSchedule, cluster: Cluster, group: Sequence[int], model: GpuModel) -> Int64:
    """Return the arrival of each transfer: int64[transfers]."""
    graph, _ = schedule_graph(expanded, cluster, group)
    task_kernel = np.full(graph.num_tasks, -1, np.int32)
    run = run_gpus(
        ProgramBuilder("transfers", len(group)).program(), cluster, group, model, tasks=KernelTasks(graph, task_kernel),
        options=GpuRunOptions(fold="off"),
    )  # fmt: skip
    return run.whole().records.end_ps[: expanded.num_transfers]


def _starts(expanded: ExpandedSchedule, ends: Int64) -> Int64:
    """Return the latest end among each transfer's dependencies: int64[transfers]."""
    starts = np.zeros(expanded.num_transfers, np.int64)
    waits = np.flatnonzero(np.diff(expanded.predecessor_ptr))
    if len(waits):
        predecessor_ends = ends[expanded.predecessor_idx]
        starts[waits] = np.maximum.reduceat(predecessor_ends, expanded.predecessor_ptr[waits])
    return starts


def _alone_ps(expanded: ExpandedSchedule, cluster: Cluster, group: Sequence[int], model: GpuModel) -> Int64:
    """Return the duration of each transfer by itself: int64[transfers]; equal ones are simulated once."""
    kinds = np.stack((expanded.src.astype(np.int64), expanded.dst.astype(np.int64), expanded.size_bytes), axis=1)
    _, examples, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    times = [int(_ends(_single_transfer(expanded, int(row)), cluster, group, model)[0]) for row in examples]
    return np.array(times, np.int64)[kind.reshape(-1)]


def _single_transfer(expanded: ExpandedSchedule, row: int) -> ExpandedSchedule:
    """Return one transfer of the schedule, without dependencies."""
    single = slice(row, row + 1)
    names = ("src", "dst", "step", "chunk", "size_bytes", "reduce", "entry_src", "entry_dst")
    return replace(
        expanded, **{name: getattr(expanded, name)[single] for name in names}, predecessor_ptr=np.zeros(2, np.int64),
        predecessor_idx=np.zeros(0, np.int32), completion_ptr=np.zeros_like(expanded.completion_ptr),
        completion_idx=np.zeros(0, np.int32), chunk_ranges=None,
    )  # fmt: skip
