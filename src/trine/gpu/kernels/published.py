"""Published and measured communication kernels as GPU programs, written after their source code.

Sources read: MSCCL++ (github.com/microsoft/mscclpp): tutorials/03-memory-channel, allreduce_packet.cu,
allreduce_allpair_packet.cu, allreduce_nvls_packet.cu, allreduce_rsag_zero_copy.cu, execution_kernel.hpp,
semaphore_device.hpp, concurrency_device.hpp, language/tests/single_node/allreduce_nvls_zero_copy.py; TensorRT-LLM's
all-reduces as sglang had them in January 2025 (sgl-kernel/src/sgl-kernel/csrc/trt_reduce_internal.cu); and vLLM's
csrc/custom_all_reduce.cuh from 0.6.2 on (pull request 8558), whose blocks count their barriers. No code is copied.
Threads map to wavefronts as follows:

- A warp that accesses 16 bytes per lane touches four lines of 128 bytes per access, so ``unroll`` is a multiple of 4.
- A lane waits for one packet's flag at a time: it waits for packets of different peers one after the other. So a line
  of packets (8 lanes of 16 bytes) is one wavefront with one request in flight.
- Counters, flags and channel handles are in global memory: reading one is a load that the next operations wait for.
- Instructions between two accesses of a warp are a ``delay``. Its cycles are counted in the machine code that nvcc
  13.0 makes of the kernel for sm_90: the stall counts of the instructions on the way, plus scoreboard waits (shared
  memory 29 cycles, arXiv 2402.13499; special registers and constants 21, a further line of parameters 105, mt4g; a
  reciprocal and conversions 14 to 18, assumed). Most of them are divisions by the numbers of ranks and blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trine.errors import InputError, nearest
from trine.gpu import program as isa
from trine.gpu.builder import Operand
from trine.gpu.kernels.builder import CollectiveBuilder, Region, SignalTable, Workgroup
from trine.gpu.kernels.options import FETCH_CYCLES, LL, SIMPLE, KernelOptions
from trine.gpu.program import GpuProgram

WARP = 32
PACKET_LANES = 8
MAX_WAVEFRONTS = 64
COPIES = ("put", "get", "packets")
#: Cycles of a load or an atomic that hits in the L2: H100 and A100 (docs/background/gpu-models.md).
L2_CYCLES = 262
#: Additional cycles if the line is in the far half (l2.far of the H100).
FAR_CYCLES = 156
#: Cycles of a load that hits in the L1 (arXiv 2402.13499), and of further lines of a kernel's parameters (as above).
L1_CYCLES, PARAMETER_LINES = 33, 105
#: TensorRT-LLM's kernels in sglang (sgl-kernel trt_reduce_internal.cuh): maximum blocks, maximum threads.
COPIED_BLOCKS, COPIED_THREADS = 36, 512
#: Lines that a block of vLLM's 512 threads reads from each rank at once.
READING_LINES = 64
#: Lines of a plan that each block copies into its shared memory: 12 272 bytes (execution_common.hpp).
PLAN_LINES = 96
#: Cycles of the plan executor for a barrier: to the signal, to the count of the wait, to its poll, and after it. They
#: include the way through its operations, whose types it compares one after the other.
_EXECUTOR = (309, 406, 37, 140)
#: The same the first time, when its 200 KB of code are fetched: the no-operation case, comparisons from the third type
#: on, the signal and its memory-channel case; the wait and its case.
_EXECUTOR_FETCHED = (309 + 4 * FETCH_CYCLES, 406 + 2 * FETCH_CYCLES, 37, 140)


class PacketCode(NamedTuple):
    """Cycles that a two-step packet kernel executes.

    loads: up to each word that the next instructions wait for. put: from there to the put. reduce: from the put to the
    first packet. packet: per packet. peer_write: from the last packet to the write to a single peer, and per further
    peer. unpack: from there to the sums of other ranks. counts: only block 0 increments a flag, which it loads.
    """

    loads: tuple[tuple[int, str], ...]
    put: int
    reduce: int
    packet: int
    peer_write: tuple[int, int]
    unpack: int
    counts: bool = False


#: allreducePacket of MSCCL++'s library: flags and handles are in memory.
ALLREDUCE_PACKET = PacketCode(((140, "flag"), (704, "channels")), 176, 163, 103, (288, 50), 100)
#: allreduce6 of mscclpp-test: handles are constants, fetched like instructions: its own handle and two groups of all
#: peers' handles; only the put waits for the flag; three divisions.
ALLREDUCE_6 = PacketCode(
    (), 393 + 3 * 46 + 2 * 21 + PARAMETER_LINES + FETCH_CYCLES, 117, 76, (120 + 2 * FETCH_CYCLES, 20), 153, counts=True
)


def copy_kernel(kind: str, size_bytes: int, *, blocks: int = 32, threads: int = 1024) -> GpuProgram:
    """Build the kernels of MSCCL++'s memory channel tutorial: two GPUs copy ``size_bytes`` to each other at once.

    Thread 0 signals its peer and waits for it, then all blocks meet at a barrier. ``put`` then stores, ``get`` loads,
    and ``packets`` stores lines with flags and unpacks the peer's lines. After a put all blocks meet again, and thread
    0 signals after the data and waits. Raises InputError for another kind.
    """
    if kind not in COPIES:
        raise InputError(f"unknown copy {kind!r}{nearest(kind, COPIES)}", field="kind")
    builder = _builder(f"memory channel {kind}", 2, size_bytes, blocks, threads, LL if kind == "packets" else SIMPLE)
    lines = builder.options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    slots = builder.slots("packets", 1, lines) if kind == "packets" else None
    words = builder.scratch("words", blocks, 1)
    starts, ends = builder.signals(1), builder.signals(1)
    grids = builder.signals(1), builder.signals(1)
    for block in _blocks(builder, words):
        if block.number == 0:
            block.word("handle", 57)
            block.meet(starts, [1], (11, 38, 71, 33))
        block.grid_barrier(grids[0])
        block.handle()
        part = block.share(lines, builder.options.wavefronts * 4)
        if part.lines:
            if slots is not None:
                part.copy(part.read(source), part.write(slots, 1, 0), label="put")
                block.delay(95, "unpack")
                part.copy(part.read(slots, chunk=0), part.write(result), label="unpack")
            else:
                peers = (1, 0) if kind == "get" else (0, 1)
                part.copy(part.read(source, peers[0]), part.write(result, peers[1]), label=kind)
        if kind == "put":
            block.grid_barrier(grids[1])
            if block.number == 0:
                block.word("signal")
                builder.add(isa.FENCE, 0, (), "signal")
                block.meet(ends, [1], (11, 38, 71, 33))
    return builder.finished()


def oneshot_packets(size_bytes: int, ranks: int, *, blocks: int = 28, threads: int = 512) -> GpuProgram:
    """Build an all-reduce in one step (allreduceAllPairs): a few blocks per peer send it the whole input as packets;
    then all blocks sum their share of the received packets. Its packets have 8 bytes, so a line is 16 lanes."""
    builder = _builder("one-shot packets", ranks, size_bytes, blocks, threads // 2, LL)
    lines = builder.options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    slots = builder.slots("scratch", ranks - 1, lines)
    words = builder.scratch("words", blocks, 1)
    for block in _blocks(builder, words):
        block.word("flag", 139)
        block.word("channel", 234)
        block.delay(46, "put")
        distance, part = block.of_peer(lines, ranks)
        if part.lines:
            part.copy(part.read(source), part.write(slots, distance, distance - 1), label="put")
        block.delay(99, "reduce")
        share = block.share(lines)
        if share.lines:
            block.add_up(share, share.read(source), slots, [share.write(result)], (100, 20))
        block.next_flag()
    return builder.finished()


def nvls_packets(size_bytes: int, ranks: int, *, blocks: int = 8, threads: int = 1024) -> GpuProgram:
    """Build an all-reduce in one step (allreduceNvlsPacket): all blocks write their share of the input to all ranks as
    packets of 8 bytes, which the switch multicasts; then they sum the received packets. Divisions overlap the flag's
    load; the load of the handle waits for it."""
    builder = _builder("NVLS packets", ranks, size_bytes, blocks, threads // 2, LL)
    lines = builder.options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    slots = builder.slots("scratch", ranks, lines)
    words = builder.scratch("words", blocks, 1)
    roles = [isa.WRITE_ALL, *[isa.WRITE_MEMBER] * (ranks - 1)]
    for block in _blocks(builder, words):
        block.word("flag", 139)
        block.word("channel", 8)
        block.delay(20, "put")
        share = block.share(lines)
        if share.lines:
            # The last slot has this rank's packets, which the switch sends back; the real kernel reads the input.
            rows = [slots.operand((role, role), d, (d - 1) % ranks, share.first) for d, role in enumerate(roles)]
            share.copy(share.read(source), *rows, label="put")
            block.delay(112, "reduce")
            block.add_up(share, share.read(slots, chunk=ranks - 1), slots, [share.write(result)], (92, 32))
        block.next_flag()
    return builder.finished()


def twoshot_packets(
    size_bytes: int, ranks: int, *, blocks: int = 28, threads: int = 512, code: PacketCode = ALLREDUCE_PACKET
) -> GpuProgram:
    """Build an all-reduce in two steps (allreducePacket): a few blocks per peer send it its part as packets; all blocks
    sum their share of this rank's part and send the sum to all as packets; then each peer's blocks unpack its sum."""
    builder = _builder("two-shot packets", ranks, size_bytes, blocks, threads, LL)
    lines = builder.options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", ranks, lines)
    slots, sums = builder.slots("scratch", ranks - 1, lines), builder.slots("sums", ranks - 1, lines)
    words = builder.scratch("words", blocks, 1)
    for block in _blocks(builder, words):
        for cycles, word in code.loads:
            block.word(word, cycles)
        block.delay(code.put, "put")
        distance, part = block.of_peer(lines, ranks)
        if part.lines:
            part.copy(part.read(source, chunk=distance), part.write(slots, distance, distance - 1), label="put")
        block.delay(code.reduce, "reduce")
        share = block.share(lines)
        if share.lines:
            targets = [share.write(result), *(share.write(sums, d, d - 1) for d in range(1, ranks))]
            executed = code.packet, code.peer_write[0] + code.peer_write[1] * (ranks - 2)
            block.add_up(share, share.read(source), slots, targets, executed)
        block.delay(code.unpack, "unpack")
        if part.lines:
            part.copy(part.read(sums, chunk=distance - 1), part.write(result, chunk=-distance), label="unpack")
        if code.counts and block.number == 0:
            block.word("next flag", 20 + 21)
        if not code.counts or block.number == 0:
            block.next_flag()
    return builder.finished()


def twoshot_between_meetings(size_bytes: int, ranks: int, *, blocks: int = 8, threads: int = 1024) -> GpuProgram:
    """Build an in-place two-step all-reduce between two barriers: each block signals all peers and waits for them,
    reads its part of this rank's chunk from all, writes the sum to all, then signals and waits again.

    This is the plan allreduce_nvls_zero_copy without NVLS: with it, one load returns the switch's sum and one store
    reaches all. Latencies are the same; each link carries 1.75 times the payload each way here, 1.1 times with NVLS.
    The plan's signals are relaxed. Here blocks wait for their stores before the second barrier, so that no rank can
    see old data; that takes 0.15 us on H100.
    """
    builder = _builder("two-shot between meetings", ranks, size_bytes, blocks, threads, SIMPLE, accesses=8)
    lines = builder.options.lines(ranks)
    memory = builder.data("input", ranks, lines)
    words = builder.scratch("words", blocks, 1)
    plan = builder.scratch("plan", blocks, PLAN_LINES)
    before, after = builder.signals(1), builder.signals(1)
    peers = list(range(1, ranks))
    for block in _blocks(builder, words):
        block.delay(196, "plan")
        block.add(isa.LOAD, PLAN_LINES, [plan.operand((isa.READ, isa.READ), 0, block.number, 0)], "plan")
        block.finish("plan")
        block.delay(234, "plan")
        block.meet(before, peers, _EXECUTOR_FETCHED)
        block.delay(176, "meet")
        block.barrier("meet")
        block.delay(1006 + FETCH_CYCLES, "reduce")
        part = block.share(lines, 1)
        if part.lines:
            targets = [part.write(memory), *(part.write(memory, d) for d in peers)]
            part.reduce([part.read(memory), *(part.read(memory, d) for d in peers)], *targets, label="reduce")
        block.delay(114 + 176, "meet")
        block.finish("meet")
        block.meet(after, peers, _EXECUTOR)
    return builder.finished()


def nvls_between_meetings(size_bytes: int, ranks: int) -> GpuProgram:
    """Build the plan allreduce_nvls_zero_copy: as :func:`twoshot_between_meetings`, but the switch sums for one load
    and multicasts one store."""
    program = twoshot_between_meetings(size_bytes, ranks)
    kind, role = program.op_kind.copy(), program.operand_role.copy()
    for op in np.flatnonzero(kind == isa.REDUCE).tolist():
        rows = np.arange(*program.operand_ptr[op : op + 2])
        kind[op], role[rows[:ranks]], role[rows[ranks:]] = isa.COPY, isa.READ_MEMBER, isa.WRITE_MEMBER
        role[rows[0]], role[rows[ranks]] = isa.READ_SUM, isa.WRITE_ALL
    return replace(program, op_kind=kind, operand_role=role)


def oneshot_copied(size_bytes: int, ranks: int) -> GpuProgram:
    """Build an all-reduce in one step (TensorRT-LLM, oneShotAllReduceKernel): each block copies its input part to a
    buffer that all can read, signals the blocks of its number, waits for theirs, and sums all parts. The kernel
    signals at once; here blocks first wait for their stores, so that no rank can see old data."""
    packs = WARP * -(-size_bytes // (16 * WARP))
    threads = min(COPIED_THREADS, packs)
    blocks = min(COPIED_BLOCKS, -(-packs // threads))
    builder = _builder("one-shot copied", ranks, size_bytes, blocks, threads, SIMPLE, accesses=ranks)
    lines = builder.options.lines()
    source, shared = builder.data("input", 1, lines), builder.data("shared", 1, lines)
    result, copied = builder.data("output", 1, lines), builder.signals(1)
    words = builder.scratch("words", blocks, 1)
    for block in _blocks(builder, words):
        part = block.share(lines, 1)
        block.word("copy", 98 + 21 + PARAMETER_LINES)
        if part.lines:
            block.in_turn(part, part.read(source), part.write(shared), "copy")
        block.finish("copied")
        block.delay(54 + PARAMETER_LINES, "copied")
        block.signal(copied, [(d, 0) for d in range(1, ranks)], "copied")
        block.wait(copied, 0, ranks - 1, "wait")
        block.delay(34, "wait")
        block.barrier("wait")
        block.delay(28 + L1_CYCLES + 6, "reduce")
        if part.lines:
            part.reduce([part.read(shared, d) for d in range(ranks)], part.write(result), label="reduce")
    return builder.finished()


def twoshot_copied(size_bytes: int, ranks: int) -> GpuProgram:
    """Build an all-reduce in two steps (TensorRT-LLM, twoShotAllReduceKernel): as in one step, but a rank sums only its
    part, signals once more after a fence, and reads all sums, one rank after the other, as the compiler moves no load
    over the store before it."""
    packs = WARP * -(-size_bytes // (ranks * 16 * WARP))
    blocks = next(n for n in range(1, packs + 1) if packs % n == 0 and packs // n <= COPIED_THREADS)
    threads = packs // blocks
    blocks //= next(n for n in range(1, blocks + 1) if blocks % n == 0 and blocks // n <= COPIED_BLOCKS)
    builder = _builder("two-shot copied", ranks, size_bytes, blocks, threads, SIMPLE, accesses=ranks)
    lines = builder.options.lines(ranks)
    source, shared = builder.data("input", ranks, lines), builder.data("shared", ranks, lines)
    result, sums = builder.data("output", ranks, lines), builder.data("sums", 1, lines)
    copied, summed, words = builder.signals(1), builder.signals(1), builder.scratch("words", blocks, 1)
    peers = list(range(1, ranks))
    for block in _blocks(builder, words):
        part = block.share(lines, 1)
        block.word("copy", 129 + 21 + PARAMETER_LINES)
        for chunk in range(ranks):
            block.in_turn(part, part.read(source, chunk=chunk), part.write(shared, chunk=chunk), "copy")
        block.finish("copied")
        block.delay(69 + PARAMETER_LINES, "copied")
        block.signal(copied, [(d, 0) for d in peers], "copied")
        block.wait(copied, 0, len(peers), "wait")
        block.delay(34, "wait")
        block.barrier("wait")
        block.delay(41, "reduce")
        part.reduce([part.read(shared, d) for d in range(ranks)], part.write(sums), label="reduce")
        block.ready(summed, peers)
        for d in range(ranks):
            block.in_turn(part, part.read(sums, d), part.write(result, chunk=d), "gather")
    return builder.finished()


def _sum_inputs(block: _Block, source: Region, target: Region, lines: int, ranks: int) -> Workgroup:
    """Write the loads and the sum of the block's share of all inputs, and return the share."""
    part = block.share(lines, READING_LINES)
    block.delay(40 + 21, "reduce")
    if part.lines:
        part.reduce([part.read(source, d) for d in range(ranks)], part.write(target), label="reduce")
    block.finish("reduce")
    return part


def reads_between_meetings(size_bytes: int, ranks: int) -> GpuProgram:
    """Build an all-reduce in one step (vLLM, cross_device_reduce_1stage): blocks of the same number meet, read and sum
    all inputs, and meet again. Barriers are counted in memory; the second finds the count in the L1. Meanwhile the
    kernel reads the pointers to the inputs."""
    builder, blocks = _reading("one-stage reads", size_bytes, ranks)
    lines = builder.options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    before, after, words = builder.signals(1), builder.signals(1), builder.scratch("words", blocks, 1)
    for block in _blocks(builder, words):
        block.word("count", 104 + 21 + PARAMETER_LINES)
        block.meet_at_once(before, ranks)
        _sum_inputs(block, source, result, lines, ranks)
        block.delay(32 + 21 + L1_CYCLES, "count")
        block.meet_at_once(after, ranks)
    return builder.finished()


def reads_in_two_stages(size_bytes: int, ranks: int) -> GpuProgram:
    """Build an all-reduce in two steps (vLLM, cross_device_reduce_2stage): blocks of the same number meet, read and sum
    the rank's part of all inputs, meet after a fence, and read all sums, one rank after the other: the loads are
    conditional, and the compiler moves none over the store before it."""
    builder, blocks = _reading("two-stage reads", size_bytes, ranks)
    lines = builder.options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", ranks, lines)
    sums, words = builder.data("sums", 1, lines), builder.scratch("words", blocks, 1)
    before, after = builder.signals(1), builder.signals(1)
    for block in _blocks(builder, words):
        block.word("count", 205 + 21 + PARAMETER_LINES)
        block.meet_at_once(before, ranks)
        part = _sum_inputs(block, source, sums, lines, ranks)
        block.delay(25 + 21 + L1_CYCLES, "count")
        block.add(isa.FENCE, 0, (), "reduce")
        block.meet_at_once(after, ranks)
        block.delay(60, "gather")
        for d in range(ranks):
            if part.lines:
                block.in_turn(part, part.read(sums, d), part.write(result, chunk=d), "gather")
    return builder.finished()


def twoshot_zero_copy(size_bytes: int, ranks: int, *, blocks: int = 32, threads: int = 256) -> GpuProgram:
    """Build an all-reduce in two steps (MSCCL++, allreduceRsAgZeroCopy): blocks of the same number meet, read their
    part of this rank's chunk from all, and write the sum to all. Then all blocks meet, and the first signals all peers
    after the data and waits for them."""
    builder = _builder("two-shot zero copy", ranks, size_bytes, blocks, threads, SIMPLE, accesses=ranks)
    lines = builder.options.lines(ranks)
    memory, result = builder.data("input", ranks, lines), builder.data("output", ranks, lines)
    words = builder.scratch("words", blocks, 1)
    before, grid, after = builder.signals(1), builder.signals(1), builder.signals(1)
    peers = list(range(1, ranks))
    for block in _blocks(builder, words):
        block.word("handle", 57)
        block.meet(before, peers, (11, 38, 71, 33))
        block.barrier("meet")
        part = block.share(lines, 1)
        block.word("pointers", 61)
        if part.lines:
            targets = [part.write(result), *(part.write(result, d) for d in peers)]
            part.reduce([part.read(memory), *(part.read(memory, d) for d in peers)], *targets, label="reduce")
        block.grid_barrier(grid)
        if block.number == 0:
            block.word("signal")
            block.add(isa.FENCE, 0, (), "signal")
            block.meet(after, peers, (11, 38, 71, 33))
    return builder.finished()


class _Block(Workgroup):
    """A thread block: its control operations, and the parts of the data that its threads process."""

    def __init__(self, builder: CollectiveBuilder, number: int, words: Region) -> None:
        super().__init__(builder, number, 0, 0)
        self.words = words

    def word(self, label: str, cycles: int = 0) -> None:
        """Load a word from global memory and wait for it, after ``cycles`` of instructions."""
        if cycles:
            self.delay(cycles, label)
        self.add(isa.LOAD, 1, [self._word(isa.READ)], label)
        self.add(isa.WAITCNT, 0, (), label)

    def next_flag(self) -> None:
        """Synchronise the threads; the first increments the block's flag for the next launch."""
        self.finish("next flag")
        self.add(isa.STORE, 1, [self._word(isa.WRITE)], "next flag")

    def delay(self, cycles: int, label: str) -> None:
        """Execute instructions before the next access."""
        self.add(isa.DELAY, cycles, (), label)

    def handle(self) -> None:
        """Load the two parts of a channel's handle that a copy needs; they are in different sectors of a line."""
        self.word("handle", 9)
        self.word("handle", 57)

    def meet(self, signals: SignalTable, distances: Sequence[int], cycles: tuple[int, int, int, int]) -> None:
        """Signal each peer and wait for their signals, which are counted in memory. ``cycles``: to the signal, to the
        count, to the poll, and after it. The count does not wait for the signals' arrival, so it is a delay; of
        several counters, each on a separate line, one is in the far half of the L2."""
        self.delay(cycles[0], "signal")
        self.signal(signals, [(d, 0) for d in distances], "signal")
        count = L2_CYCLES + (FAR_CYCLES if len(distances) > 1 else 0)
        self.delay(cycles[1] + count + cycles[2], "wait")
        self.wait(signals, 0, len(distances), "wait")
        self.delay(cycles[3], "wait")

    def in_turn(self, part: Workgroup, source: Operand, target: Operand, label: str) -> None:
        """Copy 16 bytes per lane before the next copy starts: no load passes the store before it."""
        wavefronts = self.builder.options.wavefronts
        unroll = max(1, min(4, -(-part.lines // wavefronts)))
        self.builder.add(isa.COPY, part.lines, (source, target), label, unroll)

    def meet_at_once(self, signals: SignalTable, ranks: int) -> None:
        """Signal each peer with the count of barriers, which is already loaded, and wait for their signals."""
        self.delay(23, "signal")
        self.signal(signals, [(d, 0) for d in range(1, ranks)], "signal")
        self.delay(15, "wait")
        self.wait(signals, 0, ranks - 1, "wait")
        self.delay(23, "wait")
        self.barrier("wait")

    def ready(self, signals: SignalTable, peers: Sequence[int]) -> None:
        """Publish this block's writes to the blocks of the same number, and wait until theirs are visible."""
        self.finish("copied")
        self.delay(101, "copied")
        self.add(isa.FENCE, 0, (), "copied")
        self.signal(signals, [(d, 0) for d in peers], "copied")
        self.wait(signals, 0, len(peers), "wait")
        self.delay(76, "wait")
        self.barrier("wait")

    def add_up(
        self, share: Workgroup, own_input: Operand, slots: Region, targets: Sequence[Operand], cycles: tuple[int, int]
    ) -> None:
        """Sum this rank's input and the packets of all peers. A lane waits for one peer's packets before it asks for
        the next peer's. With the last peer's, the sum re-reads the others at once; the kernel has them in registers.

        ``cycles``: per packet; from the last packet to the write to the last peer.
        """
        packets, last = slots._replace(flags=-1), self.builder.options.num_ranks - 2
        if last:
            self.add(isa.LOAD, share.lines, [share.read(slots, chunk=slot) for slot in range(last)], "reduce")
            self.add(isa.WAITCNT, 0, (), "reduce")
        self.delay((last + 1) * cycles[0] + cycles[1], "reduce")
        read_again = [share.read(packets, chunk=slot) for slot in range(last)]
        reads = [own_input, *read_again, share.read(slots, chunk=last)]
        unroll = len(reads) * self.builder.options.unroll
        self.builder.add(isa.REDUCE, share.lines, [*reads, *targets], "reduce", unroll)

    def grid_barrier(self, signals: SignalTable) -> None:
        """Synchronise all blocks of the GPU: each adds to a counter that all poll; here, each block has its counter."""
        blocks = self.builder.options.workgroups
        self.add(isa.WAITCNT, 0, (), "grid")
        self.barrier("grid")
        self.word("grid", 78)
        self.delay(52, "grid")
        self.add(isa.FENCE, 0, (), "grid")
        self.add(isa.RELEASE, 1, [_signal_operand(signals, number, isa.WRITE) for number in range(blocks)], "grid")
        self.add(isa.ACQUIRE, blocks, [_signal_operand(signals, self.number, isa.READ)], "grid")
        self.delay(48, "grid")
        self.barrier("grid")

    def part(self, lines: int, parts: int, index: int, unit: int = 0) -> Workgroup:
        """Return part ``index`` of the lines, in units of ``unit`` lines; 0: one line per wavefront of the block."""
        unit = unit or self.builder.options.wavefronts
        units = -(-lines // unit)
        lines_per_part = -(-units // parts) * unit
        first = min(lines, index * lines_per_part)
        return Workgroup(self.builder, self.number, first, min(lines, first + lines_per_part) - first)

    def share(self, lines: int, unit: int = 0) -> Workgroup:
        """Return the block's part of lines that all blocks share."""
        return self.part(lines, self.builder.options.workgroups, self.number, unit)

    def of_peer(self, lines: int, ranks: int) -> tuple[int, Workgroup]:
        """Return the peer that the block serves, and its part of the lines for it."""
        per_peer, remainder = divmod(self.builder.options.workgroups, ranks - 1)
        if remainder:
            blocks = self.builder.options.workgroups
            raise InputError(f"must be a multiple of the {ranks - 1} peers, got {blocks}", field="blocks")
        return self.number // per_peer + 1, self.part(lines, per_peer, self.number % per_peer)

    def _word(self, role: int) -> Operand:
        return self.words.operand((role, role), 0, self.number, 0)


def _blocks(builder: CollectiveBuilder, words: Region) -> Iterator[_Block]:
    """Yield the thread blocks; end the workgroup of each after its operations."""
    for number in range(builder.options.workgroups):
        yield _Block(builder, number, words)
        builder.end_workgroup()


def _signal_operand(signals: SignalTable, number: int, role: int) -> Operand:
    return signals.operand(role, 0, number, 0)


def _reading(name: str, size_bytes: int, ranks: int) -> tuple[CollectiveBuilder, int]:
    """Return a builder with vLLM's number of blocks: 512 threads with 16 bytes each, at most 36 blocks."""
    threads = 512
    blocks = min(36, -(-size_bytes // (16 * threads)))
    return _builder(name, ranks, size_bytes, blocks, threads, SIMPLE, accesses=ranks), blocks


def _builder(
    name: str, ranks: int, size_bytes: int, blocks: int, threads: int, protocol: str, accesses: int = 1
) -> CollectiveBuilder:
    """Return a builder; ``accesses``: accesses of 16 bytes in flight per lane, for lines without flags."""
    packet_warps = threads // PACKET_LANES
    wavefronts = min(packet_warps, MAX_WAVEFRONTS) if protocol == LL else max(1, threads // WARP)
    options = KernelOptions(
        op="all_reduce", num_ranks=ranks, size_bytes=size_bytes, workgroups=blocks, wavefronts=wavefronts,
        protocol=protocol, unroll=max(1, packet_warps // wavefronts) if protocol == LL else 4 * accesses,
    )  # fmt: skip
    return CollectiveBuilder(name, options)
