"""The inside of a GPU as the load-store level sees it: sizes, latencies and rates. Frozen data without logic.

What each number does: docs/design/gpu-model.md. Times are picoseconds, rates bytes/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MESH, CROSSBAR = "mesh", "crossbar"
FIFO, FAIR = "fifo", "fair"
INTERLEAVED, HASHED = "interleaved", "hashed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Noc:
    """What joins CUs, memory channels and I/O ports inside the GPU.

    ``mesh``: ``rows`` x ``cols`` routers, XY routing (first along the row), one link each way between neighbours.
    CUs are dealt out evenly over all routers in order; channels to the routers of the top and bottom row, ports to
    those of the left and right column (both alternately in order). ``crossbar``: one hop; each CU, channel and port
    has a link in and a link out.
    ``bytes_per_s``: of each link; ``hop_ps``: latency of a router and the wire behind it, or of the crossbar.
    """

    kind: str
    bytes_per_s: int
    hop_ps: int
    rows: int = 0
    cols: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySystem:
    """``num_channels`` channels of ``bytes_per_s`` each; an access takes ``latency_ps`` beside its serialisation.

    Addresses change channel every ``interleave_bytes``.
    """

    num_channels: int
    bytes_per_s: int
    latency_ps: int
    interleave_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class L2:
    """One slice at each memory channel: ``capacity_bytes`` in all, ``ways`` lines a set, least recently used replaced.

    A hit takes ``latency_ps`` beside its serialisation at ``bytes_per_s`` (of a slice); a miss takes that and the
    memory access. Stores write back and allocate; lines written back cost their memory channel bandwidth only.
    """

    capacity_bytes: int
    ways: int
    bytes_per_s: int
    latency_ps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """I/O ports to the fabric. ``latency_ps``: each passage, out or in. ``interleave_bytes``: how often consecutive
    addresses change port. ``choice``: ``interleaved`` (address / interleave_bytes modulo ports) or ``hashed``.
    ``arbitration``: of requests that wait for a port out of the GPU, ``fifo``, or ``fair``: control and data in turns.
    """

    count: int
    latency_ps: int
    interleave_bytes: int
    choice: str = INTERLEAVED
    arbitration: str = FIFO


@dataclass(frozen=True, kw_only=True, slots=True)
class Monitor:
    """Wavefronts that wait for a semaphore sleep until its line is written (SyncMon; docs/design/replay.md).

    capacity: wavefronts of a GPU that may sleep at a time, others poll. wakeup_ps: from the write to the next request.
    """

    capacity: int
    wakeup_ps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuModel:
    """One GPU.

    cycle_ps: of the CUs' clock. num_cus; workgroups_per_cu, wavefronts_per_cu: room of each. line_bytes: a wavefront
    request. header_bytes: beside the data of each message; a message without data has only that. unroll: requests of a
    wavefront in flight, where the program does not say. max_outstanding: requests of a CU in flight. issue_cycles:
    between requests that a CU issues. reduce_bytes_per_cycle: of a CU. posted_stores: a store gives its place back
    when it has left through the port (or been accepted by the memory channel of its own GPU); False: when it is
    acknowledged. launch_ps: from when a kernel may start to its first workgroup; dispatch_ps: between workgroups that
    the GPU starts; barrier_ps: of the wavefronts of a workgroup; poll_ps: None: a wait for a semaphore is answered by
    the memory when it is released; else the wavefront reads it again that long after each answer that was not enough.
    monitor: needs poll_ps, for those that find it full. packet_bytes, packet_header_bytes: of NICs and copy engines;
    dma_ps: from the request to the first packet.
    evidence: of each field or group of fields, ``measured``, ``modelled`` or ``assumed``; sources: in words; notes:
    what the model leaves out.
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
    poll_ps: int | None = None
    l2: L2 | None = None
    monitor: Monitor | None = None
    evidence: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
