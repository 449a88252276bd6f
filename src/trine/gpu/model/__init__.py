"""GPU model of the load-store level: sizes, latencies and rates inside a GPU, and their names in files.

Meaning of each number: docs/design/gpu-model.md. Times are picoseconds, rates bytes/s. Submodules: ``files`` (presets,
reading and writing), ``options`` (overrides), ``check`` (consistency), ``derived`` (closed-form estimates).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from trine.common.shown import OneLine
from trine.common.units import format_bandwidth, format_bytes, format_clock, format_time

MESH, CROSSBAR = "mesh", "crossbar"
FIFO, FAIR = "fifo", "fair"
INTERLEAVED, HASHED = "interleaved", "hashed"
#: Initiator of dmas that cross NICs.
BY_GPU, BY_PROXY = "gpu", "proxy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Noc:
    """On-chip network between CUs, memory channels and I/O ports.

    ``mesh``: ``rows`` x ``cols`` routers, XY routing (first along the row), one link each way between neighbours.
    CUs are spread evenly over all routers in order. Channels attach to the routers of the top and bottom row, ports to
    the left and right column (both alternately in order). ``crossbar``: one hop; each CU, channel and port has a link
    in and a link out.
    ``bytes_per_s``: of each link; ``hop_ps``: latency of a router and its outgoing wire, or of the crossbar.
    """

    kind: str
    bytes_per_s: int
    hop_ps: int
    rows: int = 0
    cols: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySystem:
    """``num_channels`` channels of ``bytes_per_s`` each; an access takes ``latency_ps`` plus its serialisation.

    Addresses change channel every ``interleave_bytes``.
    """

    num_channels: int
    bytes_per_s: int
    latency_ps: int
    interleave_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class L2:
    """L2 cache, one slice per memory channel: ``capacity_bytes`` in total, ``ways`` lines per set, LRU replacement.

    A hit takes ``latency_ps`` plus its serialisation at ``bytes_per_s`` (per slice); a miss adds the memory access.
    Stores write back and allocate; a write-back only uses bandwidth of its memory channel.
    ``far_ps``: extra time of semaphores, flagged lines and stores if the line's home is in the half far from the CU.
    """

    capacity_bytes: int
    ways: int
    bytes_per_s: int
    latency_ps: int
    far_ps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """I/O ports to the fabric. ``latency_ps``: each passage, out or in. ``interleave_bytes``: consecutive bytes per
    port. ``choice``: ``interleaved`` (address / interleave_bytes modulo ports) or ``hashed``.
    ``arbitration``: order of requests waiting for a port out of the GPU: ``fifo``, or ``fair`` (control and data take
    turns).
    """

    count: int
    latency_ps: int
    interleave_bytes: int
    choice: str = INTERLEAVED
    arbitration: str = FIFO


@dataclass(frozen=True, kw_only=True, slots=True)
class Monitor:
    """Monitor that lets waiting wavefronts sleep until a semaphore's line is written (SyncMon; docs/design/replay.md).

    capacity: sleeping wavefronts of a GPU at a time; the others poll. wakeup_ps: from the write to the next request.
    """

    capacity: int
    wakeup_ps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Nic:
    """Submission of puts to a NIC. ``initiator``: with ``gpu``, a GPU thread writes the descriptor and rings the
    doorbell; with ``proxy``, a CPU thread does so on the GPU's request.

    latency_ps, proxy_ps: from the dma operation to the first packet at the GPU's first link, for either initiator.
    interval_ps, proxy_interval_ps: between two dmas of one GPU, for either initiator.
    """

    latency_ps: int
    interval_ps: int
    proxy_ps: int
    proxy_interval_ps: int
    initiator: str = BY_GPU

    @property
    def times_ps(self) -> tuple[int, int]:
        """Latency and interval of the initiator."""
        if self.initiator == BY_GPU:
            return self.latency_ps, self.interval_ps
        return self.proxy_ps, self.proxy_interval_ps


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuModel(OneLine):
    """Model of one GPU.

    cycle_ps: clock cycle of the CUs. num_cus: number of CUs; workgroups_per_cu, wavefronts_per_cu: capacity of each CU.
    line_bytes: a wavefront request. header_bytes: added to the data of each message; a message without data has only
    the header. unroll: requests of a wavefront in flight, unless the program sets them. max_outstanding: requests of a
    CU in flight. issue_cycles: between requests of a CU. reduce_bytes_per_cycle: per CU. posted_stores: a store frees
    its slot when it leaves through the port (or the local memory channel accepts it); False: when it is acknowledged.
    launch_ps: from a kernel's release to its first workgroup. dispatch_ps: between workgroups that the GPU starts.
    barrier_ps: of the wavefronts of a workgroup. fence_ps: of a fence, besides its wait. poll_ps: delay from an
    unsuccessful read of a semaphore to the next read; None: the memory answers a wait when the semaphore is released.
    poll_turn_ps: loop instructions around each repeated read, serialised within a CU. issue_seed: seed of a random
    issue order among a CU's ready wavefronts; None: round robin. monitor: needs poll_ps for wavefronts that find it
    full. packet_bytes, packet_header_bytes: of NICs and copy engines. dma_ps: from the request to the first packet.
    nic: for dmas that cross NICs; None: as copy engines. evidence: ``measured``, ``modelled`` or ``assumed`` per field
    or group of fields. sources: text per field or group. notes: effects that the model leaves out.
    """

    name: str
    cycle_ps: int
    num_cus: int
    workgroups_per_cu: int
    wavefronts_per_cu: int
    line_bytes: int
    header_bytes: int
    unroll: int
    max_outstanding: int
    issue_cycles: int
    reduce_bytes_per_cycle: int
    posted_stores: bool
    noc: Noc
    memory: MemorySystem
    ports: Ports
    launch_ps: int
    dispatch_ps: int
    barrier_ps: int
    dma_ps: int
    packet_bytes: int
    packet_header_bytes: int
    fence_ps: int = 0
    poll_ps: int | None = None
    poll_turn_ps: int = 0
    issue_seed: int | None = None
    l2: L2 | None = None
    monitor: Monitor | None = None
    nic: Nic | None = None
    evidence: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""


class ModelField(NamedTuple):
    """Field of the model. ``path``: name in files, errors, evidence and sources; ``attribute``: of :class:`GpuModel`;
    ``unit``: time, bytes, rate, clock, or empty for plain values."""

    path: str
    attribute: str
    unit: str
    meaning: str


FIELDS = (
    ModelField("clock", "cycle_ps", "clock", "of the compute units"),
    ModelField("line", "line_bytes", "bytes", "a request of a wavefront"),
    ModelField("header", "header_bytes", "bytes", "header of each message"),
    ModelField("cus.count", "num_cus", "", "compute units (SMs)"),
    ModelField("cus.workgroups", "workgroups_per_cu", "", "room for workgroups (thread blocks) in each"),
    ModelField("cus.wavefronts", "wavefronts_per_cu", "", "room for wavefronts (warps) in each"),
    ModelField("cus.unroll", "unroll", "", "requests of a wavefront in flight, unless the program sets them"),
    ModelField("cus.max_outstanding", "max_outstanding", "", "requests of a compute unit in flight"),
    ModelField("cus.issue_cycles", "issue_cycles", "", "cycles between requests of a compute unit"),
    ModelField("cus.issue_seed", "issue_seed", "", "seed of a random issue order; none: round robin"),
    ModelField("cus.reduce_per_cycle", "reduce_bytes_per_cycle", "bytes", "reduced by a compute unit per cycle"),
    ModelField("cus.posted_stores", "posted_stores", "", "stores free their request slot on departure"),
    ModelField("noc.kind", "noc.kind", "", "network between compute units, memory and ports"),
    ModelField("noc.rows", "noc.rows", "", "of routers"),
    ModelField("noc.cols", "noc.cols", "", "of routers"),
    ModelField("noc.bandwidth", "noc.bytes_per_s", "rate", "of each link, one direction"),
    ModelField("noc.hop", "noc.hop_ps", "time", "one router and its wire, or one crossbar passage"),
    ModelField("memory.channels", "memory.num_channels", "", "of the memory"),
    ModelField("memory.bandwidth", "memory.bytes_per_s", "rate", "of each channel"),
    ModelField("memory.latency", "memory.latency_ps", "time", "of an access, without its bytes"),
    ModelField("memory.interleave", "memory.interleave_bytes", "bytes", "before the next channel"),
    ModelField("l2.capacity", "l2.capacity_bytes", "bytes", "of all slices, one per channel"),
    ModelField("l2.ways", "l2.ways", "", "lines of a set"),
    ModelField("l2.bandwidth", "l2.bytes_per_s", "rate", "of each slice"),
    ModelField("l2.latency", "l2.latency_ps", "time", "of a hit, without its bytes"),
    ModelField("l2.far", "l2.far_ps", "time", "added if the line's home is in the far half"),
    ModelField("ports.count", "ports.count", "", "to the fabric"),
    ModelField("ports.latency", "ports.latency_ps", "time", "each passage, out or in"),
    ModelField("ports.interleave", "ports.interleave_bytes", "bytes", "before the next port"),
    ModelField("ports.choice", "ports.choice", "", "of the port, from the address"),
    ModelField("ports.arbitration", "ports.arbitration", "", "between control and data waiting for a port"),
    ModelField("kernels.launch", "launch_ps", "time", "until the first workgroup of a kernel"),
    ModelField("kernels.dispatch", "dispatch_ps", "time", "between workgroups that the GPU starts"),
    ModelField("kernels.barrier", "barrier_ps", "time", "of the wavefronts of a workgroup"),
    ModelField("kernels.fence", "fence_ps", "time", "of a memory fence, besides its wait"),
    ModelField("kernels.poll", "poll_ps", "time", "between reads of a semaphore; none: the memory answers"),
    ModelField("kernels.poll_turn", "poll_turn_ps", "time", "of each repeated read, one by one in a CU"),
    ModelField("monitor.capacity", "monitor.capacity", "", "wavefronts that can sleep until a flag write"),
    ModelField("monitor.wakeup", "monitor.wakeup_ps", "time", "from the write to the next request"),
    ModelField("dma.latency", "dma_ps", "time", "of a copy engine, to its first packet"),
    ModelField("dma.packet", "packet_bytes", "bytes", "of payload"),
    ModelField("dma.header", "packet_header_bytes", "bytes", "per packet, without payload"),
    ModelField("nic.initiator", "nic.initiator", "", "posts dmas across NICs: the GPU or a proxy thread"),
    ModelField("nic.latency", "nic.latency_ps", "time", "of a dma that the GPU posts, to its first packet"),
    ModelField("nic.interval", "nic.interval_ps", "time", "between dmas of one GPU that it posts"),
    ModelField("nic.proxy", "nic.proxy_ps", "time", "of a dma that a proxy thread posts, to its first packet"),
    ModelField("nic.proxy_interval", "nic.proxy_interval_ps", "time", "between dmas that a proxy thread posts"),
)
PATHS = tuple(entry.path for entry in FIELDS)
#: Optional parts of a GPU; ``none`` in a file.
OPTIONAL = ("l2", "monitor", "nic")
#: ``memory`` stands for all of ``memory.channels``, ``memory.bandwidth``, ...
GROUPS = tuple(dict.fromkeys(path.split(".")[0] for path in PATHS if "." in path))

#: Default values of fields that most models do not use; defaults are not shown.
_RARE = {"noc.rows": 0, "noc.cols": 0, "l2.far": 0, "cus.issue_seed": None, "kernels.poll_turn": 0}
_FORMATS = {"time": format_time, "bytes": format_bytes, "rate": format_bandwidth, "clock": format_clock}


def values(model: GpuModel) -> Iterator[tuple[ModelField, int | str | bool | None]]:
    """Yield the fields of this model, in order, with their values."""
    for entry in FIELDS:
        group = entry.path.partition(".")[0]
        if group in OPTIONAL and getattr(model, group) is None:
            continue
        value = attrgetter(entry.attribute)(model)
        if entry.path not in _RARE or value != _RARE[entry.path]:
            yield entry, value


def shown(field: ModelField, value: int | str | bool | None) -> str:
    """Return a value as text with its unit."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _FORMATS[field.unit](int(value)) if field.unit else str(value)
