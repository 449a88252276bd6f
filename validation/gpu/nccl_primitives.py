"""NCCL's primitives inside a ring all-reduce through host memory, and their times as NPKit reports them.

Source: NCCL 2.20.5 (src/enqueue.cc, src/device/all_reduce.h, prims_ll.h, prims_simple.h, common_kernel.h); facts, no
code. GPUs without peer access put their data into buffers in the host's memory, and the next GPU reads it there
(src/transport/shm.cc). For NPKit's measurements and the source of the cycles, see docs/background/gpu-models.md,
"NPKit's primitives".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from trine.cluster import load_cluster
from trine.gpu import program as isa
from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.model.files import load_gpu_model
from trine.gpu.program import GpuProgram
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.system import host_group

LL, SIMPLE = "LL", "Simple"
SEND, RECV_REDUCE_SEND, RECV_REDUCE_COPY_SEND, RECV_COPY_SEND, RECV = PRIMITIVES = (
    "SEND", "RECV_REDUCE_SEND", "DIRECT_RECV_REDUCE_COPY_SEND", "DIRECT_RECV_COPY_SEND", "DIRECT_RECV",
)  # fmt: skip
#: GPUs of the ring; the rank behind them is their host.
GPUS = HOST = 4
LINE, WARP = 128, 32
#: Steps and bytes of a channel's buffer (NCCL_STEPS). LL: half a step is flags. Simple: 2 steps per slice, 4 per chunk.
STEPS, LL_STEP, SIMPLE_STEP = 8, 64 << 10, 512 << 10
SLICE_STEPS, SMALLEST_SLICE = 2, 32 << 10
#: Bytes that a warp copies at a time: eight accesses of 16 bytes per lane, or one access for a smaller remainder.
HUNK, SMALL_HUNK = 4096, 512
#: Cycles of a jump to code that has not run yet: a load from memory, plus 45 that code takes more than data.
COLD_JUMP = 525
#: Messages that the primitives of each size come from: bytes of the primitive -> bytes of the all-reduce.
MESSAGES = {
    LL: {**{1 << i: 4 << i for i in (10, 11)}, **{1 << i: 8 << i for i in (12, 13, 14)}, 32 << 10: 1 << 20},
    SIMPLE: {**{1 << i: 1 << i for i in (10, 11)}, **{1 << i: 8 << i for i in (12, 13, 14)},
             **{1 << i: 16 << i for i in range(15, 21)}},
}  # fmt: skip


#: Names of measured rows -> protocol and primitive.
PRIMITIVE_PROGRAMS = {
    f"{protocol} {primitive}": (protocol, primitive) for protocol in MESSAGES for primitive in PRIMITIVES
}


class LLCode(NamedTuple):
    """Cycles of the instructions of an LL primitive: ``before`` its first memory access; from the load of input data,
    if any, to the ``look`` at flags; from data to ``store``; from the store to the next ``trip``, and to the ``end``.
    """

    before: int
    look: int
    store: int
    trip: int
    end: int


class SimpleCode(NamedTuple):
    """Cycles of a Simple primitive: ``before`` the first load, from data to ``store``, from the store to the next
    ``hunk`` and to the ``end``. Small hunks have ``small_before`` and ``small_end``.

    rounds: lines of a hunk that one round reads from the host together; registers limit it, so each round waits for
    the one before. jumps: far jumps with small hunks; with full hunks there is one.
    """

    before: int
    store: int
    hunk: int
    end: int
    small_before: int
    small_end: int
    rounds: tuple[int, ...] = ()
    jumps: int = 1


#: Counted in the machine code of NPKit's build: sm_80, 96 registers, ptxas 11.8.
LL_CODE = {
    SEND: LLCode(66, 7, 0, 17, 34),
    RECV_REDUCE_SEND: LLCode(66, 39, 26, 16, 33),
    RECV_REDUCE_COPY_SEND: LLCode(75, 39, 32, 36, 52),
    RECV_COPY_SEND: LLCode(78, 0, 30, 45, 50),
    RECV: LLCode(69, 0, 3, 49, 54),
}
SIMPLE_CODE = {
    SEND: SimpleCode(309, 4, 13, 74, 390, 97),
    RECV_REDUCE_SEND: SimpleCode(345, 36, 21, 75, 430, 95, rounds=(12, 20), jumps=2),
    RECV_REDUCE_COPY_SEND: SimpleCode(304, 60, 16, 79, 429, 100, rounds=(8, 8, 8, 8), jumps=2),
    RECV_COPY_SEND: SimpleCode(310, 8, 31, 94, 403, 100, rounds=(32,)),
    RECV: SimpleCode(267, 10, 19, 80, 376, 91, rounds=(32,)),
}


def _sends(primitive: str) -> bool:
    return primitive.endswith("SEND")


def _receives(primitive: str) -> bool:
    return "RECV" in primitive


def _reads_input(primitive: str) -> bool:
    return primitive == SEND or "REDUCE" in primitive


def _writes_output(primitive: str) -> bool:
    return primitive.startswith("DIRECT")


class RingShape(NamedTuple):
    """Shape of an all-reduce in NCCL: channels, data-moving warps per channel, and bytes of the chunks of each loop."""

    channels: int
    warps: int
    loops: tuple[tuple[int, ...], ...]


def ring_shape(protocol: str, size_bytes: int) -> RingShape:
    """Return enqueue.cc's choice for four GPUs with two channels of 512 threads (Simple: 256)."""
    threads, per_thread, largest = (512, 8 * GPUS, LL_STEP // 2) if protocol == LL else (256, 64, 4 * SIMPLE_STEP)
    channels = 2 if size_bytes >= 2 * threads * per_thread else 1
    while size_bytes < channels * threads * per_thread and threads % 128 == 0:
        threads //= 2
    if protocol == LL:
        threads = max(threads, 3 * WARP)
    align = threads * 8 if protocol == LL else HUNK
    remaining, loops = size_bytes // channels, list[tuple[int, ...]]()
    while remaining > 0:
        chunk = min(largest, -(-remaining // (GPUS * align)) * align)
        loops.append(tuple(min(chunk, max(0, remaining - i * chunk)) for i in range(GPUS)))
        remaining -= sum(loops[-1])
    return RingShape(channels, threads // WARP, tuple(loops))


def slices(chunk_bytes: int) -> list[int]:
    """Return the bytes of the slices that Simple cuts a chunk into: one or two."""
    slice_bytes = max(-(-chunk_bytes // 32) * 16, SMALLEST_SLICE)
    return [min(slice_bytes, chunk_bytes - first) for first in range(0, chunk_bytes, slice_bytes)]


class Stretch(NamedTuple):
    """Start and end of a primitive, and the stretches left out, as operations of wavefront 0."""

    primitive: str
    num_bytes: int
    begin: int
    end: int
    left_out: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A primitive on a GPU: place of its chunk, number of receives and sends before it; is_cold: its first call."""

    primitive: str
    num_bytes: int
    place: int
    received: int
    sent: int
    is_cold: bool


class ChannelWriter:
    """Writer of the program of a GPU's channel; ``into``, ``out``: edges of the ring, numbered over all channels."""

    def __init__(self, ring: RingProgram, rank: int, channel: int) -> None:
        self.ring, self.builder, self.rank = ring, ring.builder, rank
        shape, self.waves = ring.shape, ring.wavefronts
        self.into = (rank - 1) % GPUS * shape.channels + channel
        self.out = rank * shape.channels + channel
        self.events, self.event, self.num_marks = ring.events + 2 * channel * LINE, ring.event + channel, 0
        self.first = channel * sum(map(sum, shape.loops))

    def calls(self) -> Iterator[Call]:
        """Yield the primitives of all loops, in order; empty chunks have no primitives."""
        seen_primitives: set[str] = set()
        received, sent, place = 0, 0, self.first
        for loop in self.ring.shape.loops:
            for step in range(2 * GPUS - 1):
                primitive, chunk = _primitive(step), (self.rank - 1 - step) % GPUS
                if loop[chunk]:
                    yield Call(
                        primitive=primitive, num_bytes=loop[chunk], place=place + chunk * loop[0], received=received,
                        sent=sent, is_cold=primitive not in seen_primitives,
                    )  # fmt: skip
                    seen_primitives.add(primitive)
                received, sent = received + _receives(primitive), sent + _sends(primitive)
            place += sum(loop)

    # LL: half of each 16 bytes is flags

    def ll(self, call: Call) -> None:
        primitive, code, left_out = call.primitive, LL_CODE[call.primitive], []
        if _sends(primitive):
            self._add(isa.BARRIER)
        self._npkit_event()
        begin = self._mark()
        self._delay(code.before)
        per_trip = self.waves * WARP * 8
        for offset in range(0, call.num_bytes, per_trip):
            lines = -(-min(per_trip, call.num_bytes - offset) // LINE)
            if offset:
                self._delay(code.trip)
            if _reads_input(primitive):
                self._move(isa.LOAD, lines, self.ring.input + call.place + offset)
                self._delay(code.look)
            looks = self._mark() if _receives(primitive) else -1
            if _receives(primitive):
                self._flagged(isa.LOAD, isa.READ_FLAGGED, self.into, call.received, offset, lines)
            self._add(isa.WAITCNT)
            if _receives(primitive):
                left_out.append((looks, self._mark()))
            self._delay(code.store)
            if _sends(primitive):
                self._flagged(isa.STORE, isa.WRITE_FLAGGED, self.out, call.sent, offset, lines)
            if _writes_output(primitive):
                self._move(isa.STORE, lines, self.ring.output + call.place + offset)
        self._delay(code.end)
        self.ring.stretches.append(Stretch(primitive, call.num_bytes, begin, self._mark(), tuple(left_out)))
        self._npkit_event()
        if _receives(primitive):
            self._add(isa.BARRIER)

    def _flagged(self, kind: int, role: int, edge: int, step: int, offset: int, lines: int) -> None:
        """Access ``lines`` of payload in the buffer, which uses two lines for each."""
        line = (edge * STEPS + step % STEPS) * LL_STEP // LINE + 2 * offset // LINE
        operand = Operand(role, HOST, self.ring.fifo + line * LINE, LINE, self.ring.flags + line)
        self.builder.add(kind, 2 * lines, [operand])

    # Simple: slices, each followed by a count

    def simple(self, call: Call) -> None:
        ends = accumulate(slices(call.num_bytes))
        for number, (end, num_bytes) in enumerate(zip(ends, slices(call.num_bytes), strict=True)):
            self._wait_for_peers(call.primitive)
            self._npkit_event()
            begin = self._mark()
            self._slice(call, number, end - num_bytes, num_bytes)
            self.ring.stretches.append(Stretch(call.primitive, num_bytes, begin, self._mark()))
            self._npkit_event()
            self._add(isa.WAITCNT)
            self._add(isa.BARRIER)
            if _sends(call.primitive):
                self._count(isa.RELEASE, isa.WRITE, self.ring.tails + self.out)
            if _receives(call.primitive):
                self._count(isa.RELEASE, isa.WRITE, self.ring.heads + self.into)

    def _wait_for_peers(self, primitive: str) -> None:
        """Wait for a slice that has arrived, and for room for an outgoing one."""
        if _receives(primitive):
            self._count(isa.LOAD, isa.READ_FLAGGED, self.ring.tails + self.into)
        if _sends(primitive):
            self._count(isa.LOAD, isa.READ_FLAGGED, self.ring.heads + self.out)
        self._add(isa.WAITCNT)
        self._add(isa.BARRIER)

    def _count(self, kind: int, role: int, semaphore: int) -> None:
        address = self.ring.counts + (semaphore - self.ring.heads) * LINE
        self.builder.add(kind, 1, [Operand(role, HOST, address, semaphore=semaphore)])

    def _slice(self, call: Call, number: int, first: int, num_bytes: int) -> None:
        """Move a slice in hunks of one warp each: all loads of a hunk, then its stores."""
        code, is_small = SIMPLE_CODE[call.primitive], num_bytes < HUNK
        hunk = SMALL_HUNK if is_small else HUNK
        jumps = (code.jumps if is_small else 1) * call.is_cold * (number == 0)
        self._delay((code.small_before if is_small else code.before) + jumps * COLD_JUMP)
        rounds = (hunk // LINE,) if is_small and code.rounds else code.rounds
        for offset in range(0, num_bytes, self.waves * hunk):
            if offset:
                self._delay(code.hunk)
            warps = min(self.waves, (num_bytes - offset) // hunk)
            place = call.place + first + offset
            if _reads_input(call.primitive):
                self._move(isa.LOAD, warps * hunk // LINE, self.ring.input + place)
            address = self._slot(self.into, call.received, number) + offset
            for lines in rounds:
                self._move(isa.LOAD, warps * lines, address, HOST)
                self._add(isa.WAITCNT)
                address += warps * lines * LINE
            if not rounds:
                self._add(isa.WAITCNT)
            self._delay(code.store)
            if _sends(call.primitive):
                self._move(isa.STORE, warps * hunk // LINE, self._slot(self.out, call.sent, number) + offset, HOST)
            if _writes_output(call.primitive):
                self._move(isa.STORE, warps * hunk // LINE, self.ring.output + place)
        self._delay(code.small_end if is_small else code.end)

    def _slot(self, edge: int, step: int, number: int) -> int:
        """Return the address of slice ``number`` of a chunk in the buffer of an edge."""
        return self.ring.fifo + (edge * STEPS + (2 * step + number) * SLICE_STEPS % STEPS) * SIMPLE_STEP

    # Both

    def _add(self, kind: int, amount: int = 0) -> None:
        self.builder.add(kind, amount, ())

    def _delay(self, cycles: int) -> None:
        if cycles:
            self._add(isa.DELAY, cycles)

    def _move(self, kind: int, lines: int, address: int, rank: int = -1) -> None:
        """Move lines of this GPU's memory, or of another rank's."""
        role = isa.READ if kind == isa.LOAD else isa.WRITE
        self.builder.add(kind, lines, [Operand(role, self.rank if rank < 0 else rank, address, LINE)])

    def _mark(self) -> int:
        """Add an operation that wavefront 0 reaches at this point; return its number."""
        self.num_marks += 1
        self.builder.add(isa.RELEASE, 1, [Operand(isa.WRITE, self.rank, self.events, semaphore=self.event)])
        return self.builder.num_ops - 1

    def end(self) -> None:
        """Reset the semaphore of the marks and end the workgroup."""
        self.builder.add(isa.ACQUIRE, self.num_marks, [Operand(isa.READ, self.rank, self.events, semaphore=self.event)])
        self.builder.end_workgroup()

    def _npkit_event(self) -> None:
        """Model an NPKit event: thread 0 reads its next slot and writes it, while the other warps go on."""
        self._move(isa.LOAD, 1, self.events)
        self._add(isa.WAITCNT)
        self._move(isa.STORE, 1, self.events + LINE)


def _primitive(step: int) -> str:
    """Return the primitive that the ring runs on the chunk of this step."""
    if step == 0:
        return SEND
    if step < GPUS - 1:
        return RECV_REDUCE_SEND
    if step == GPUS - 1:
        return RECV_REDUCE_COPY_SEND
    return RECV_COPY_SEND if step < 2 * GPUS - 2 else RECV


class RingProgram:
    """A ring all-reduce with one workgroup per channel, and the stretches of its primitives."""

    def __init__(self, protocol: str, size_bytes: int) -> None:
        self.shape, is_ll = ring_shape(protocol, size_bytes), protocol == LL
        self.wavefronts = self.shape.warps if is_ll else self._busy_warps()
        edges = GPUS * self.shape.channels
        self.builder = builder = ProgramBuilder(f"ring all-reduce, {protocol}", GPUS + 1, num_hosts=1)
        self.stretches: list[Stretch] = []
        self.input, self.output = builder.buffer("input", size_bytes), builder.buffer("output", size_bytes)
        self.events = builder.buffer("events", 2 * self.shape.channels * LINE)
        self.fifo = builder.buffer("fifo", edges * STEPS * (LL_STEP if is_ll else SIMPLE_STEP))
        self.counts = builder.buffer("counts", 2 * edges * LINE)
        self.event = builder.semaphores(self.shape.channels)
        self.heads, self.tails = builder.semaphores(edges), builder.semaphores(edges)
        self.flags = builder.semaphores(edges * STEPS * LL_STEP // LINE if is_ll else 0)
        for rank in range(GPUS):
            for channel in range(self.shape.channels):
                writer = ChannelWriter(self, rank, channel)
                for call in writer.calls():
                    (writer.ll if is_ll else writer.simple)(call)
                writer.end()
            builder.end_kernel(rank, self.wavefronts)

    def _busy_warps(self) -> int:
        """Return the number of warps that have a hunk of a slice."""
        largest = max(slices(max(map(max, self.shape.loops))))
        return min(self.shape.warps, largest // (HUNK if largest >= HUNK else SMALL_HUNK))

    @property
    def program(self) -> GpuProgram:
        """The program. A buffer has room for two chunks; NCCL counts a chunk's second slice even if it is empty."""
        semaphores = np.zeros((GPUS + 1, self.builder.num_semaphores), np.int32)
        semaphores[HOST, self.heads : self.tails] = 2 * len(slices(max(map(max, self.shape.loops))))
        return self.builder.program(semaphores=semaphores)


class PrimitiveTime(NamedTuple):
    """Time of one call as NPKit would report it."""

    primitive: str
    num_bytes: int
    time_ps: int


@cache
def primitive_times(protocol: str, size_bytes: int) -> tuple[PrimitiveTime, ...]:
    """Return the times of all primitives, GPUs and channels of an all-reduce of ``size_bytes`` on ``rtx3090-pcie``."""
    ring, cluster = RingProgram(protocol, size_bytes), load_cluster("rtx3090-pcie")
    program, model = ring.program, load_gpu_model("rtx3090")
    run = run_gpus(program, cluster, host_group(cluster, program), model, options=GpuRunOptions(fold="off")).whole()
    start = run.gpu.op_start_ps.tolist()
    primitive_times = []
    for part in ring.stretches:
        primitive_times.append(
            PrimitiveTime(
                part.primitive,
                part.num_bytes,
                start[part.end] - start[part.begin] - sum(start[end] - start[begin] for begin, end in part.left_out),
            )
        )
    return tuple(primitive_times)


def primitive_time_ps(protocol: str, primitive: str, num_bytes: int) -> int:
    """Return the median time of sends of ``num_bytes``; for receives the 10th percentile (the others wait longer)."""
    times_ps = [
        time.time_ps
        for time in primitive_times(protocol, MESSAGES[protocol][num_bytes])
        if time.primitive == primitive and time.num_bytes == num_bytes
    ]
    return round(float(np.percentile(times_ps, 50 if primitive == SEND else 10)))
