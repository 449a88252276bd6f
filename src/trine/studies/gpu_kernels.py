"""Communication kernels that others have published and measured, as GPU programs: what their source code does.

Written from reading MSCCL++ (github.com/microsoft/mscclpp): tutorials/03-memory-channel, allreduce_packet.cu,
allreduce_allpair_packet.cu, language/tests/single_node/allreduce_nvls_zero_copy.py, semaphore_device.hpp,
concurrency_device.hpp. No code is taken over. How its threads become wavefronts:

- A warp that accesses 16 bytes a lane has four lines of 128 bytes in one access, so ``unroll`` is a multiple of 4.
- A lane that waits for a packet's flag waits for nothing else: packets of different peers are waited for one after
  the other. So a line of packets (8 lanes of 16 bytes) is a wavefront of its own with one request in flight.
- Counters, flags and channel handles lie in global memory: reading one is a load that what follows waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

from trine.collectives.kernels.builder import CollectiveBuilder, Region, SignalTable, Workgroup
from trine.collectives.kernels.options import LL, SIMPLE, KernelOptions
from trine.errors import InputError, nearest
from trine.gpu.builder import Operand
from trine.gpu.program import ACQUIRE, LOAD, READ, RELEASE, STORE, WAITCNT, WRITE, GpuProgram

WARP = 32
PACKET_LANES = 8
MOST_WAVEFRONTS = 64
COPIES = ("put", "get", "packets")


def copy_kernel(kind: str, size_bytes: int, *, blocks: int = 32, threads: int = 1024) -> GpuProgram:
    """Two GPUs copy ``size_bytes`` to each other at the same time: the kernels of MSCCL++'s memory channel tutorial.

    Thread 0 signals its peer and waits for it, then all blocks meet; then ``put`` stores and ``get`` loads, and
    ``packets`` stores lines with flags and unpacks those of the peer. After a put all blocks meet again and thread 0
    signals behind the data and waits. Raises InputError for another kind.
    """
    if kind not in COPIES:
        raise InputError(f"unknown copy {kind!r}{nearest(kind, COPIES)}", field="kind")
    builder = _builder(f"memory channel {kind}", 2, size_bytes, blocks, threads, LL if kind == "packets" else SIMPLE)
    lines = builder.options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    slots = builder.slots("packets", 1, lines) if kind == "packets" else None
    words = builder.scratch("words", blocks, 1)
    met, sent = builder.signals(1), builder.signals(1)
    grids = builder.signals(1), builder.signals(1)
    for number in range(blocks):
        block = _Block(builder, number, words)
        if number == 0:
            block.word("handle")
            block.meet(met, [1])
        block.grid_barrier(grids[0])
        block.word("handle")
        part = block.part(lines, blocks, number, builder.options.wavefronts * 4)
        if part.lines:
            if slots is not None:
                part.copy(part.read(source), part.write(slots, 1, 0), label="put")
                part.copy(part.read(slots, chunk=0), part.write(result), label="unpack")
            else:
                far = (1, 0) if kind == "get" else (0, 1)
                part.copy(part.read(source, far[0]), part.write(result, far[1]), label=kind)
        if kind == "put":
            block.grid_barrier(grids[1])
            if number == 0:
                builder.add(WAITCNT, 0, (), "signal")
                block.meet(sent, [1])
        builder.end_workgroup()
    return builder.finished()


def oneshot_packets(size_bytes: int, ranks: int, *, blocks: int = 28, threads: int = 512) -> GpuProgram:
    """All-reduce in one step (allreduceAllPairs): a few blocks for each peer send it all of the input as packets; then
    all blocks add up their share of what has come. Its packets have 8 bytes, so a line is 16 lanes."""
    builder = _builder("one-shot packets", ranks, size_bytes, blocks, threads // 2, LL)
    lines = builder.options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    slots = builder.slots("scratch", ranks - 1, lines)
    words = builder.scratch("words", blocks, 1)
    for number in range(blocks):
        block = _Block(builder, number, words)
        block.word("flag, channel")
        distance, part = block.of_peer(lines, ranks)
        if part.lines:
            part.copy(part.read(source), part.write(slots, distance, distance - 1), label="put")
        share = block.part(lines, blocks, number)
        if share.lines:
            block.add_up(share, source, slots, [share.write(result)])
        block.leave()
    return builder.finished()


def twoshot_packets(size_bytes: int, ranks: int, *, blocks: int = 28, threads: int = 512) -> GpuProgram:
    """All-reduce in two steps (allreducePacket): a few blocks for each peer send it its part as packets; all blocks add
    up their share of the own part and send the sum to all as packets; then those of each peer unpack its sum."""
    builder = _builder("two-shot packets", ranks, size_bytes, blocks, threads, LL)
    lines = builder.options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", ranks, lines)
    slots, sums = builder.slots("scratch", ranks - 1, lines), builder.slots("sums", ranks - 1, lines)
    words = builder.scratch("words", blocks, 1)
    for number in range(blocks):
        block = _Block(builder, number, words)
        block.word("flag, channel")
        distance, part = block.of_peer(lines, ranks)
        if part.lines:
            part.copy(part.read(source, chunk=distance), part.write(slots, distance, distance - 1), label="put")
        share = block.part(lines, blocks, number)
        if share.lines:
            targets = [share.write(result), *(share.write(sums, d, d - 1) for d in range(1, ranks))]
            block.add_up(share, source, slots, targets)
        if part.lines:
            part.copy(part.read(sums, chunk=distance - 1), part.write(result, chunk=-distance), label="unpack")
        block.leave()
    return builder.finished()


def twoshot_between_meetings(size_bytes: int, ranks: int, *, blocks: int = 8, threads: int = 1024) -> GpuProgram:
    """All-reduce in two steps between two meetings, in place: each block signals all peers and waits for them, reads
    its part of the own chunk from all, writes the sum to all, signals and waits again.

    That is the plan allreduce_nvls_zero_copy, but for what NVLS does in the switch: there one load returns the sum
    and one store reaches all. Latencies are the same; of 1.75 times the payload that each link carries here each way,
    NVLS needs 1.1. Unlike the plan, whose signals are relaxed, blocks wait for their stores before the second meeting,
    so that nobody can see old data; that takes 0.15 us on H100.
    """
    builder = _builder("two-shot between meetings", ranks, size_bytes, blocks, threads, SIMPLE, accesses=8)
    lines = builder.options.lines(ranks)
    memory = builder.data("input", ranks, lines)
    words = builder.scratch("words", blocks, 1)
    before, after = builder.signals(1), builder.signals(1)
    peers = list(range(1, ranks))
    for number in range(blocks):
        block = _Block(builder, number, words)
        block.word("plan")
        block.barrier("plan")
        block.meet(before, peers)
        block.barrier("meet")
        part = block.part(lines, blocks, number, 1)
        if part.lines:
            targets = [part.write(memory), *(part.write(memory, d) for d in peers)]
            part.reduce([part.read(memory), *(part.read(memory, d) for d in peers)], *targets, label="reduce")
        block.finish("meet")
        block.meet(after, peers)
        builder.end_workgroup()
    return builder.finished()


class _Block(Workgroup):
    """A thread block: its control operations, and the parts of the data that its threads work on."""

    def __init__(self, builder: CollectiveBuilder, number: int, words: Region) -> None:
        super().__init__(builder, number, 0, 0)
        self.words = words

    def word(self, label: str) -> None:
        """A word in global memory that what follows depends on."""
        self.add(LOAD, 1, [self._word(READ)], label)
        self.add(WAITCNT, 0, (), label)

    def leave(self) -> None:
        """The threads meet, and the first counts the block's flag up for the next launch."""
        self.finish("next flag")
        self.add(STORE, 1, [self._word(WRITE)], "next flag")
        self.builder.end_workgroup()

    def meet(self, signals: SignalTable, distances: Sequence[int]) -> None:
        """A signal to each peer, whose number is counted in memory, and a wait for theirs, likewise."""
        self.word("signal")
        self.signal(signals, [(d, 0) for d in distances], "signal")
        self.word("wait")
        self.wait(signals, 0, len(distances), "wait")

    def add_up(self, share: Workgroup, source: Region, slots: Region, targets: Sequence[Operand]) -> None:
        """The own input and the packets of all peers. A lane waits for those of one peer before it asks for the next's;
        the reduction then reads once more what is in registers in truth, beside the last peer's."""
        seen, last = slots._replace(flags=-1), self.builder.options.num_ranks - 2
        for slot in range(last):
            self.add(LOAD, share.lines, [share.read(slots, chunk=slot)], "reduce")
            self.add(WAITCNT, 0, (), "reduce")
        known = [share.read(seen, chunk=slot) for slot in range(last)]
        share.reduce([share.read(source), *known, share.read(slots, chunk=last)], *targets, label="reduce")

    def grid_barrier(self, signals: SignalTable) -> None:
        """All blocks of the GPU meet: each adds to a counter that all poll; here, one for each."""
        blocks = self.builder.options.workgroups
        self.barrier("grid")
        self.add(WAITCNT, 0, (), "grid")
        self.add(RELEASE, 1, [_at(signals, number, WRITE) for number in range(blocks)], "grid")
        self.add(ACQUIRE, blocks, [_at(signals, self.number, READ)], "grid")
        self.barrier("grid")

    def part(self, lines: int, parts: int, which: int, unit: int = 0) -> Workgroup:
        """Part ``which`` of ``lines`` lines, in units of ``unit`` lines, 0: what the block's threads take at once."""
        unit = unit or self.builder.options.wavefronts
        units = -(-lines // unit)
        each = -(-units // parts) * unit
        first = min(lines, which * each)
        return Workgroup(self.builder, self.number, first, min(lines, first + each) - first)

    def of_peer(self, lines: int, ranks: int) -> tuple[int, Workgroup]:
        """The peer that the block serves, and its part of the lines for it."""
        per_peer = self.builder.options.workgroups // (ranks - 1)
        return self.number // per_peer + 1, self.part(lines, per_peer, self.number % per_peer)

    def _word(self, role: int) -> Operand:
        return self.words.operand((role, role), 0, self.number, 0)


def _at(signals: SignalTable, number: int, role: int) -> Operand:
    return signals.operand(role, 0, number, 0)


def _builder(
    name: str, ranks: int, size_bytes: int, blocks: int, threads: int, protocol: str, accesses: int = 1
) -> CollectiveBuilder:
    """``accesses``: of 16 bytes that a lane has in flight where lines carry no flags."""
    if protocol == LL and ranks > 2 and blocks % (ranks - 1):
        raise InputError(f"must be a multiple of the {ranks - 1} peers, got {blocks}", field="blocks")
    waiting = threads // PACKET_LANES
    wavefronts = min(waiting, MOST_WAVEFRONTS) if protocol == LL else max(1, threads // WARP)
    options = KernelOptions(
        op="all_reduce",
        num_ranks=ranks,
        size_bytes=size_bytes,
        workgroups=blocks,
        wavefronts=wavefronts,
        protocol=protocol,
        unroll=max(1, waiting // wavefronts) if protocol == LL else 4 * accesses,
    )
    return CollectiveBuilder(name, options)
