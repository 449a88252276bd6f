"""Options of a built GPU program: collective, size, workgroups, protocol. Checked on construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.common.arguments import check_whole
from trine.errors import InputError, nearest

if TYPE_CHECKING:
    from trine.gpu.kernels.moe.options import MoeOptions

# Work of a library's kernel besides moving data: it reads flags and channels, computes addresses, counts signals.
#
# The numbers are MSCCL++'s (src/ext/collectives/allreduce/allreduce_packet.cu, include/mscclpp/semaphore_device.hpp),
# counted in nvcc 13.0's machine code for sm_90 by the method of :mod:`trine.gpu.kernels.published`. trine uses them
# for all libraries; :class:`trine.gpu.kernels.builder.Workgroup` adds them to programs.

#: Cycles from the start to the launch flag, including a second line of parameters; from the flag to the channels,
#: including divisions by the numbers of ranks, blocks and scratch buffers; from the channels to the first data access.
FLAG_CYCLES, CHANNEL_CYCLES, DATA_CYCLES = 140, 704, 176
#: Cycles from a signal to the first poll of the peers' signals: one atomic in the L2 for the local count, 262 cycles,
#: plus the code around it; cycles after the last poll.
COUNT_CYCLES, SEEN_CYCLES = 371, 33
#: Cycles of a jump to instructions that are not yet cached: a kernel starts with empty instruction and constant caches.
#: Lines come from the L2 (262 cycles, including 33 for the data L1) through a separate L1, 39 cycles away each way, and
#: bring the next eight lines of 128 bytes along (Huerta et al., MICRO 2025, arXiv 2503.20481: their simulator's
#: configurations of Turing, Ampere, Blackwell).
FETCH_CYCLES = 262 - 33 + 2 * 39


#: How ranks signal the arrival of data. ``simple``: semaphores after the data; all bytes of a line are data. ``ll``,
#: ``ll128``: each line carries flags; the data are half, or 15/16, of it (NCCL's LL and LL128).
SIMPLE, LL, LL128 = "simple", "ll", "ll128"
PROTOCOLS = (SIMPLE, LL, LL128)

#: Barriers besides the signals that belong to an algorithm's data: before the first remote access, after the last one,
#: both, or neither; ``auto``: the algorithm's usual choice.
SYNCS = ("auto", "none", "start", "end", "both")

#: How a workgroup waits for several peers. ``joint``: their signals add up on one semaphore, which it acquires once, as
#: in kernels with one polling thread per peer; ``single``: one semaphore per peer, one wait after another.
JOINT, SINGLE = "joint", "single"
WAITS = (JOINT, SINGLE)

#: Defaults: workgroups of a kernel as in case 1 of ASTRA-sim 3.0 (arXiv 2606.10440); wavefronts per workgroup, assumed.
WORKGROUPS, WAVEFRONTS = 32, 8

MAX_SIZE_BYTES = 1 << 40
MAX_OPERANDS = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelOptions:
    """Options of a kernel builder.

    num_ranks: at least 2. num_nodes: scale-up domains with equal numbers of consecutive ranks, used by programs across
    nodes. size_bytes: as in nccl-tests: for all_gather a rank's output, for reduce_scatter its input, for
    all_reduce and all_to_all its buffer. workgroups: per rank; wavefronts: per workgroup. protocol:
    one of PROTOCOLS. sync: one of SYNCS. waits: one of WAITS. line_bytes: a cache line of the GPU model. unroll:
    requests of a wavefront in flight, 0: the GPU model's. bookkeeping: whether kernels do a library's other work
    besides moving data (:mod:`trine.gpu.kernels.options`). matrix: for all_to_all_v, bytes from
    each rank (row) to each rank (column). moe: for moe_dispatch and moe_combine, the tokens and experts exchanged.
    part_of_bytes: size of the message that this one is the first part of, by which a library chooses its chunks; each
        rank's buffers begin with its own chunk, so that all ranks are alike. None: the message is whole.

    Raises InputError: a number out of range, an unknown protocol, sync or waits.
    """

    op: str
    num_ranks: int
    size_bytes: int
    workgroups: int = WORKGROUPS
    wavefronts: int = WAVEFRONTS
    protocol: str = SIMPLE
    sync: str = "auto"
    waits: str = JOINT
    line_bytes: int = 128
    unroll: int = 0
    bookkeeping: bool = False
    num_nodes: int = 1
    matrix: Sequence[Sequence[int]] | None = None
    moe: MoeOptions | None = None
    part_of_bytes: int | None = None

    def __post_init__(self) -> None:
        from trine.gpu.validate import MAX_WAVEFRONTS

        check_whole("num_ranks", self.num_ranks, 2, 4096)
        check_whole("num_nodes", self.num_nodes, 1, self.num_ranks)
        if self.num_ranks % self.num_nodes:
            raise InputError(f"{self.num_ranks} ranks do not divide over {self.num_nodes} nodes", field="num_nodes")
        check_whole("size_bytes", self.size_bytes, 1, MAX_SIZE_BYTES)
        if self.part_of_bytes is not None:
            check_whole("part_of_bytes", self.part_of_bytes, self.size_bytes, MAX_SIZE_BYTES)
        check_whole("workgroups", self.workgroups, 1, 4096)
        check_whole("wavefronts", self.wavefronts, 1, MAX_WAVEFRONTS)
        check_whole("line_bytes", self.line_bytes, 16, 4096)
        check_whole("unroll", self.unroll, 0, 4096)
        if self.line_bytes % 16:
            raise InputError(f"must be a multiple of 16, got {self.line_bytes}", field="line_bytes")
        for field, value, choices in (
            ("protocol", self.protocol, PROTOCOLS),
            ("sync", self.sync, SYNCS),
            ("waits", self.waits, WAITS),
        ):
            if value not in choices:
                raise InputError(f"unknown {field} {value!r}{nearest(value, choices)}", field=field)

    @property
    def whole_bytes(self) -> int:
        """Size of the message by which a library chooses its chunks."""
        return self.size_bytes if self.part_of_bytes is None else self.part_of_bytes

    @property
    def flagged(self) -> bool:
        """Whether lines carry flags, so that no semaphores are needed after the data."""
        return self.protocol != SIMPLE

    @property
    def reduces(self) -> bool:
        """Whether the collective begins with a reduce-scatter."""
        return self.op in ("reduce_scatter", "all_reduce")

    @property
    def gathers(self) -> bool:
        """Whether the collective ends with an all-gather."""
        return self.op in ("all_gather", "all_reduce")

    @property
    def step_bytes(self) -> int:
        """Payload of a line."""
        return {SIMPLE: self.line_bytes, LL: self.line_bytes // 2, LL128: self.line_bytes * 15 // 16}[self.protocol]

    @property
    def distances(self) -> range:
        """Distances d of all other ranks: rank + d modulo ranks."""
        return range(1, self.num_ranks)

    def lines(self, parts: int = 1) -> int:
        """Return the lines of one part of the payload; a partial line costs a line."""
        part_bytes = -(-self.size_bytes // parts)
        return -(-part_bytes // self.step_bytes)

    def syncs(self, default: str) -> tuple[bool, bool]:
        """Return whether ranks synchronise at the start and at the end; ``default``: the algorithm's default."""
        sync = default if self.sync == "auto" else self.sync
        return sync in ("start", "both"), sync in ("end", "both")
