"""What a file of a GPU's inside holds. Imports pydantic, so it is itself imported only when a file is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trine.gpu.check_model import MAX_SLEEPERS
from trine.gpu.model import L2, GpuModel, MemorySystem, Monitor, Noc, Ports
from trine.spec import Bandwidth, Duration, Size, Spec
from trine.units import parse_cycle, parse_time

#: More of anything is taken for a mistake.
MAX_COUNT = 1 << 14

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Cycle = Annotated[int, BeforeValidator(lambda value: parse_cycle(value))]
Evidence = Literal["measured", "modelled", "assumed"]


def _absent(value: Any) -> Any:
    """``none`` in a file takes away what its base has."""
    return None if value == "none" else value


def _poll(value: Any) -> int | None:
    return None if value in (None, "none") else parse_time(value)


class CusSpec(Spec):
    """Compute units."""

    count: Count
    workgroups: Count
    wavefronts: Count
    unroll: Count
    max_outstanding: Count
    issue_cycles: Count
    reduce_per_cycle: Size
    posted_stores: bool


class NocSpec(Spec):
    """The network inside; ``rows`` and ``cols`` of a mesh only."""

    kind: Literal["mesh", "crossbar"]
    rows: Count | None = None
    cols: Count | None = None
    bandwidth: Bandwidth
    hop: Duration


class MemorySpec(Spec):
    """``bandwidth`` is that of a channel."""

    channels: Count
    bandwidth: Bandwidth
    latency: Duration
    interleave: Size


class L2Spec(Spec):
    """``capacity`` of all slices, ``bandwidth`` of one."""

    capacity: Size
    ways: Count
    bandwidth: Bandwidth
    latency: Duration


class PortsSpec(Spec):
    """I/O ports; their bandwidth is that of the cluster's links."""

    count: Count
    latency: Duration
    interleave: Size
    choice: Literal["interleaved", "hashed"] = "interleaved"
    arbitration: Literal["fifo", "fair"] = "fifo"


class KernelsSpec(Spec):
    """What starting and synchronising costs."""

    launch: Duration
    dispatch: Duration
    barrier: Duration
    poll: Annotated[int | None, BeforeValidator(_poll)] = None


class MonitorSpec(Spec):
    """The table of lines whose writes wake wavefronts."""

    capacity: Annotated[int, Field(ge=0, le=MAX_SLEEPERS)]
    wakeup: Duration


class DmaSpec(Spec):
    """Copy engines and NICs."""

    latency: Duration
    packet: Size
    header: Size


class GpuModelFile(Spec):
    """A whole file, after what it inherits from its ``base`` has been filled in."""

    name: str | None = None
    base: str | None = None
    notes: str = ""
    clock: Cycle
    line: Size
    header: Size
    cus: CusSpec
    noc: NocSpec
    memory: MemorySpec
    l2: Annotated[L2Spec | None, BeforeValidator(_absent)] = None
    ports: PortsSpec
    kernels: KernelsSpec
    monitor: Annotated[MonitorSpec | None, BeforeValidator(_absent)] = None
    dma: DmaSpec
    sources: dict[str, str] = Field(default_factory=dict)
    evidence: dict[str, Evidence] = Field(default_factory=dict)


def to_model(spec: GpuModelFile, name: str, evidence: dict[str, str], sources: dict[str, str]) -> GpuModel:
    """The model that a file describes; ``evidence`` and ``sources`` by path, worked out by the caller."""
    cus, noc, kernels = spec.cus, spec.noc, spec.kernels
    return GpuModel(
        name=name,
        cycle_ps=spec.clock,
        num_cus=cus.count,
        workgroups_per_cu=cus.workgroups,
        wavefronts_per_cu=cus.wavefronts,
        line_bytes=spec.line,
        header_bytes=spec.header,
        unroll=cus.unroll,
        max_outstanding=cus.max_outstanding,
        issue_cycles=cus.issue_cycles,
        reduce_bytes_per_cycle=cus.reduce_per_cycle,
        posted_stores=cus.posted_stores,
        noc=Noc(kind=noc.kind, bytes_per_s=noc.bandwidth, hop_ps=noc.hop, rows=noc.rows or 0, cols=noc.cols or 0),
        memory=_memory(spec.memory),
        ports=_ports(spec.ports),
        launch_ps=kernels.launch,
        dispatch_ps=kernels.dispatch,
        barrier_ps=kernels.barrier,
        poll_ps=kernels.poll,
        dma_ps=spec.dma.latency,
        packet_bytes=spec.dma.packet,
        packet_header_bytes=spec.dma.header,
        l2=None if spec.l2 is None else _l2(spec.l2),
        monitor=None if spec.monitor is None else _monitor(spec.monitor),
        evidence=evidence,
        sources=sources,
        notes=spec.notes,
    )


def _memory(spec: MemorySpec) -> MemorySystem:
    return MemorySystem(
        num_channels=spec.channels,
        bytes_per_s=spec.bandwidth,
        latency_ps=spec.latency,
        interleave_bytes=spec.interleave,
    )


def _l2(spec: L2Spec) -> L2:
    return L2(capacity_bytes=spec.capacity, ways=spec.ways, bytes_per_s=spec.bandwidth, latency_ps=spec.latency)


def _monitor(spec: MonitorSpec) -> Monitor:
    return Monitor(capacity=spec.capacity, wakeup_ps=spec.wakeup)


def _ports(spec: PortsSpec) -> Ports:
    return Ports(
        count=spec.count,
        latency_ps=spec.latency,
        interleave_bytes=spec.interleave,
        choice=spec.choice,
        arbitration=spec.arbitration,
    )
