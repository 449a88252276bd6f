"""A collective's transfers as packets, each of which queues at every link: the network as scale-out fabrics work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.collectives.expand import expand
from trine.collectives.run import schedule_graph
from trine.errors import InputError
from trine.gpu.presets import load_gpu_model
from trine.gpu.run import run_gpus
from trine.model.gpumodel import GpuModel
from trine.model.gpuprogram import GpuProgram
from trine.model.schedule import ExpandedSchedule, Schedule
from trine.model.taskgraph import TaskGraph
from trine.units import PS_PER_S

Int64 = npt.NDArray[np.int64]
#: Where nothing else is asked for: packets of a NIC.
USUAL = "astra3-generic"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PacketRun:
    """What happened when all ranks entered at 0.

    end_ps: when the last transfer ended. bus_bytes_per_s: busbw of nccl-tests; None where the collective has none.
    flow_start_ps, flow_end_ps: int64[transfers], in the order of the expanded schedule: from when a transfer could
    begin, so that waiting for its sender's link is in it. standalone_ps: int64[transfers], what each takes on an empty
    network. packets: of all transfers.
    """

    end_ps: int
    bus_bytes_per_s: float | None
    flow_start_ps: Int64
    flow_end_ps: Int64
    standalone_ps: Int64
    packets: int
    graph: TaskGraph

    @property
    def flow_ps(self) -> Int64:
        """How long each transfer took."""
        return self.flow_end_ps - self.flow_start_ps


def packet_collective(
    schedule: Schedule | ExpandedSchedule,
    cluster: Cluster,
    group: Sequence[int],
    *,
    packet_bytes: int | None = None,
    header_bytes: int | None = None,
    bus_factor: float | None = None,
) -> PacketRun:
    """Simulate every transfer of ``schedule`` packet by packet; all ranks enter at 0.

    Each transfer is cut into packets that enter the first link of its route one after the other; at each further link
    they queue, first come first served, with those of others (docs/design/gpu-model.md, Wavefronts, dma). Queues have
    no limit: nothing is dropped, and nobody slows down.

    Parameters
    ----------
    group: the device index of each rank. packet_bytes, header_bytes: of a packet and beside it; None: those of an
        InfiniBand packet, 4096 and 64 (assumed). bus_factor: busbw / algbw.

    Raises
    ------
    InputError: devices that do not match the schedule, packets of no bytes. SpecError: ranks that no route joins.
    """
    model = _with_packets(load_gpu_model(USUAL), packet_bytes, header_bytes)
    expanded = expand(schedule) if isinstance(schedule, Schedule) else schedule
    graph, _ = schedule_graph(expanded, cluster, group)
    ends = _ends(graph, cluster, group, model)[: expanded.num_transfers]
    starts = _starts(expanded, ends)
    end_ps = int(ends.max(initial=0))
    payload = schedule.size_bytes if isinstance(schedule, Schedule) else None
    bus = None if None in (payload, bus_factor) or not end_ps else payload * bus_factor * PS_PER_S / end_ps
    return PacketRun(
        end_ps=end_ps,
        bus_bytes_per_s=bus,
        flow_start_ps=starts,
        flow_end_ps=ends,
        standalone_ps=standalone(graph, expanded, cluster, group, model),
        packets=0,
        graph=graph,
    )
