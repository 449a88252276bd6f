"""What a file of a GPU's inside holds. Imports pydantic, so it is itself imported only when a file is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trine.gpu.model import FIELDS, L2, GpuModel, MemorySystem, Monitor, Noc, Ports
from trine.gpu.model.check import MAX_COUNT, MAX_SLEEPERS
from trine.spec import Bandwidth, Duration, Size, Spec
from trine.units import parse_cycle, parse_time

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
    groups: dict[str, dict[str, Any]] = {"": {}, "noc": {}, "memory": {}, "ports": {}, "l2": {}, "monitor": {}}
    for field in FIELDS:
        section, _, key = field.path.rpartition(".")
        holder = getattr(spec, section) if section else spec
        value = None if holder is None else getattr(holder, key)
        if value is not None:
            group, _, attribute = field.attribute.rpartition(".")
            groups[group][attribute] = value
    return GpuModel(
        name=name,
        noc=Noc(**groups["noc"]),
        memory=MemorySystem(**groups["memory"]),
        ports=Ports(**groups["ports"]),
        l2=None if spec.l2 is None else L2(**groups["l2"]),
        monitor=None if spec.monitor is None else Monitor(**groups["monitor"]),
        evidence=evidence,
        sources=sources,
        notes=spec.notes,
        **groups[""],
    )
