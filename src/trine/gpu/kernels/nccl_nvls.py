"""NCCL's NVLS kernels for one node, modelled on their source code (src/device/all_reduce.h, all_gather.h,
reduce_scatter.h, prims_simple.h, common.h, src/enqueue.cc, src/transport/nvls.cc of github.com/NVIDIA/nccl, 2.30).

User buffers are not multicast memory, so data goes through staging buffers. Each channel is a thread block with three
groups of warps, each a separate workgroup here. *scatter* copies a chunk for each rank from the input to the rank's own
staging buffer. *reduce* loads the rank's chunk of the sum through the switch and multicasts it. *gather* copies the
chunks of all ranks to the output. A reduce-scatter has no gather, an all-gather no scatter. The groups work on
different chunks at a time: a staging buffer holds STEPS chunks, and the group that fills it waits for a credit.

The cycles between two accesses of a thread were counted in nvcc 13.0's machine code of these files for sm_90 and
float32: stall counts and scoreboard waits along the path (docs/background/gpu-models.md, *Instructions*). Scatter and
gather have a 4 KiB copy of their code for each of up to 32 ranks, so a rank's first copy costs a fetch from the L2.

Simplifications: a small size is divided among all ranks, while NCCL gives 16 KiB per channel to the first ranks. Each
group has a compute unit. A wait for a flag of all ranks gets a signal from each rank, while NCCL polls their memory
through the switch (multimem.ld_reduce.min), which takes up to half a round trip longer. Scatter and reduce each have a
warp that fences and signals while the others continue, so they are two alternating workgroups each here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.builder import Operand
from trine.gpu.kernels.builder import CollectiveBuilder, Region, Workgroup
from trine.gpu.kernels.options import FETCH_CYCLES, JOINT, KernelOptions
from trine.gpu.program import GpuProgram

#: Channels on Hopper (NVLS_NCHANNELS_SM90); Blackwell has 24 and more.
CHANNELS = 16
#: Chunks per staging buffer (NCCL_STEPS).
STEPS = 8
#: (bytes of a chunk, minimum rounds): a message uses the largest chunk that still gives this number of rounds over all
#: channels and ranks (ncclNvlsTuning and calcCollChunking).
_CHUNKS = ((131_072, 64), (65_536, 8), (32_768, 2), (16_384, 0))
#: Copying warps among the 20 of a block: 8 scatter and 5 reduce, minus one each that fences and signals; 7 gather.
_SCATTER, _REDUCE, _GATHER = 7, 4, 7
#: Lines that a warp has in flight: 8 accesses of 16 bytes a lane (ncclCollUnroll).
_LINES = 32
#: Semaphores of a channel, one per chunk of a staging buffer: all ranks have staged this rank's chunk; the sum has been
#: read; the chunks of all ranks have arrived; all ranks have copied them.
_READY, _FREE, _SENT, _TAKEN = (STEPS * which for which in range(4))
#: Semaphores for the turns of the two scatter workgroups, and of the two reduce workgroups.
_SCATTERS, _REDUCES = 4 * STEPS, 4 * STEPS + 2

#: Cycles to the first barrier of a block's threads, which copy the parameters to shared memory; to the second, with the
#: work of the block; from there, with the channel's part, to the group's code.
_START, _WORK, _RUN = 247, 913, 248 + 770
#: Cycles of a group's connections, besides three or four loads in sequence: receive, send; cycles of the checks after.
_RECEIVE, _SEND, _CHECKS = 456, 203, 141 + 465
#: Cycles from an observed flag to the group's next barrier, by group.
_SEEN = {"scatter": 286, "reduce": 377, "gather": 316}


class _CopyCost(NamedTuple):
    """Cycles of a copy for one rank: (besides the accesses, from a load to its store). Parts smaller than one access of
    all warps take the code path ``small``."""

    small: tuple[int, int]
    whole: tuple[int, int]


_SCATTERED = _CopyCost((446, 27), (346, 15))
_REDUCED = _CopyCost((948 - 377 + 128, 11), (809 - 377 + 151, 11))
_GATHERED = _CopyCost((407, 21), (326, 15))


def nccl_nvls(options: KernelOptions) -> GpuProgram:
    """Build NCCL's NVLS kernel of an all-reduce, all-gather or reduce-scatter. ``workgroups``: channels.

    Raises InputError if the options set how ranks wait, because the kernel determines that itself.
    """
    for field, default in (("sync", "auto"), ("waits", JOINT)):
        if getattr(options, field) != default:
            raise InputError(f"NCCL's NVLS waits as it needs to: leave it at {default!r}", field=field)
    return _Kernel(options).built()


def chunk_bytes(size_bytes: int, channels: int, ranks: int) -> int:
    """Return the maximum bytes that a channel processes for each rank at a time."""
    return next(chunk for chunk, rounds in _CHUNKS if size_bytes >= rounds * channels * ranks * chunk)


def round_bytes(size_bytes: int, channels: int, ranks: int) -> int:
    """Return the bytes of a message that all channels move at a time for all ranks."""
    return channels * ranks * chunk_bytes(size_bytes, channels, ranks)


class _Kernel:
    """The program under construction."""

    def __init__(self, options: KernelOptions) -> None:
        self.options, self.ranks, self.channels = options, options.num_ranks, options.workgroups
        self.builder = CollectiveBuilder(f"{options.op}/nvls", options)
        self.lines = lines = options.lines(self.ranks)
        self.scatters, self.gathers = options.op != "all_gather", options.op != "reduce_scatter"
        self.source = self.builder.data("input", self.ranks if self.scatters else 1, lines)
        self.result = self.builder.data("output", self.ranks if self.gathers else 1, lines)
        chunk = chunk_bytes(options.whole_bytes, self.channels, self.ranks) // options.line_bytes
        self.chunk = max(1, min(chunk, -(-lines // self.channels)))
        slots = self.channels * STEPS * self.ranks
        self.up = self.builder.scratch("to be added up", slots, self.chunk)
        self.down = self.builder.scratch("multicast", slots, self.chunk)
        self.state_lines = self.builder.scratch("words", 5 * self.channels, 1)
        self.signals = self.builder.signals(4 * STEPS + 4)
        self.rounds = 0

    def built(self) -> GpuProgram:
        """Return the program: scatter, reduce and gather of each channel, each with its rounds."""
        per_channel, remainder = divmod(self.lines, self.channels)
        first = 0
        for channel in range(self.channels):
            count = per_channel + (channel < remainder)
            parts = [
                Workgroup(self.builder, channel, first + offset, min(self.chunk, count - offset))
                for offset in range(0, count, self.chunk)
            ]
            first, self.rounds = first + count, len(parts)
            for number, (has, name, group, turns) in enumerate(
                (
                    (self.scatters, "scatter", self._scatter, (0, 1)),
                    (True, "reduce", self._reduce, (0, 1)),
                    (self.gathers, "gather", self._gather, (0,)),
                )
            ):
                for turn in turns:
                    steps = list(enumerate(parts))[turn :: len(turns)] if has else []
                    if steps:
                        program = Workgroup(self.builder, 5 * channel + 2 * number + turn, 0, 0)
                        self._enter(program, name)
                        for step, part in steps:
                            group(step, part)
                        program.leave(self.state_lines)
                    self.builder.end_workgroup()
        return self.builder.finished()

    def _enter(self, group: Workgroup, name: str) -> None:
        """Add the work from the kernel's start to the first step. Four pieces of code are fetched from the L2: second
        barrier, function (whose address is loaded), group, and the code after the connections."""
        group.add(isa.DELAY, _START, (), "start")
        group.barrier("start")
        group.add(isa.DELAY, _WORK + FETCH_CYCLES, (), "work")
        group.barrier("work")
        self._load_word(group, "function")
        group.add(isa.DELAY, _RUN + 2 * FETCH_CYCLES, (), "connect")
        loads = {"scatter": (_SEND, 3), "gather": (_RECEIVE, 4), "reduce": (_RECEIVE + _SEND, 7)}
        cycles, num_loads = loads[name]
        for _ in range(num_loads):
            self._load_word(group, "connect")
        group.add(isa.DELAY, cycles, (), "connect")
        self._step(group, name)
        group.add(isa.DELAY, _CHECKS + FETCH_CYCLES, (), "connect")
        group.barrier("connect")

    def _step(self, group: Workgroup, name: str) -> None:
        """Load the step counters of the connections: in reduce from all ranks through the switch, for receives and for
        sends; in other groups this rank's only."""
        if name != "reduce":
            self._load_word(group, "step")
            return
        rows = [
            self.state_lines.operand(((isa.READ_SUM, isa.READ_MEMBER)[d > 0],) * 2, d, group.number, 0)
            for d in range(self.ranks)
        ]
        for has in (self.scatters, self.gathers):
            if has:
                group.add(isa.LOAD, 1, rows, "step")
                group.add(isa.WAITCNT, 0, (), "step")

    def _load_word(self, group: Workgroup, label: str) -> None:
        """Load a word from memory and wait for it."""
        group.add(isa.LOAD, 1, [self.state_lines.operand((isa.READ, isa.READ), 0, group.number, 0)], label)
        group.add(isa.WAITCNT, 0, (), label)

    def _scatter(self, step: int, part: Workgroup) -> None:
        """Copy a chunk for each rank to this rank's staging buffer."""
        if step >= STEPS:
            self._wait(part, _FREE + step % STEPS)
        self._begin(step, part, _SCATTERS)
        part.add(isa.DELAY, _SEEN["scatter"], (), "wait")
        for d in range(self.ranks):
            for at, piece in self._pieces(part, _SCATTER):
                target = self.up.operand((isa.WRITE, isa.WRITE), 0, self._slot(step, part, d), at)
                self._copy(piece, [piece.read(self.source, chunk=d)], [target], _SCATTERED, 0 if at else 1 + (not step))
        self._end(step, part, _SCATTERS)
        part.settle("staged")
        self._signal(part, _READY + step % STEPS)

    def _reduce(self, step: int, part: Workgroup) -> None:
        """Move this rank's chunk of the sum, or of the input, to the staging buffers of all ranks, or to the output."""
        if self.scatters:
            self._wait(part, _READY + step % STEPS)
        if self.gathers and step >= STEPS:
            self._wait(part, _TAKEN + step % STEPS)
        self._begin(step, part, _REDUCES)
        part.add(isa.DELAY, _SEEN["reduce"], (), "wait")
        for at, piece in self._pieces(part, _REDUCE):
            reads, writes = [piece.read(self.source)], [piece.write(self.result)]
            if self.scatters:
                reads = self._of_all((isa.READ_SUM, isa.READ_MEMBER), self.up, step, part, at)
            if self.gathers:
                writes = self._of_all((isa.WRITE_ALL, isa.WRITE_MEMBER), self.down, step, part, at)
            self._copy(piece, reads, writes, _REDUCED, 0 if at else 1 + (not step))
        self._end(step, part, _REDUCES)
        part.settle("reduced")
        if self.gathers:
            self._multicast(part, _SENT + step % STEPS)
        if self.scatters and step + STEPS < self.rounds:
            self._multicast(part, _FREE + step % STEPS)

    def _gather(self, step: int, part: Workgroup) -> None:
        """Copy the chunks of all ranks to the output."""
        self._wait(part, _SENT + step % STEPS)
        part.add(isa.DELAY, _SEEN["gather"], (), "wait")
        for d in range(self.ranks):
            for at, piece in self._pieces(part, _GATHER):
                source = self.down.operand((isa.READ, isa.READ), 0, self._slot(step, part, d), at)
                self._copy(piece, [source], [piece.write(self.result, chunk=d)], _GATHERED, 0 if at else 1 + (not step))
        if step + STEPS < self.rounds:
            part.finish("gathered")
            self._signal(part, _TAKEN + step % STEPS)

    def _slot(self, step: int, part: Workgroup, distance: int) -> int:
        """Return the slot of a staging buffer for the chunk of the rank at a distance."""
        return (part.number * STEPS + step % STEPS) * self.ranks + distance

    def _of_all(self, roles: tuple[int, int], region: Region, step: int, part: Workgroup, line: int) -> list[Operand]:
        """Return multimem rows: this rank's chunk in the staging buffers of all ranks, from ``line`` on."""
        return [
            region.operand((roles[d > 0],) * 2, d, self._slot(step, part, -d % self.ranks), line)
            for d in range(self.ranks)
        ]

    def _pieces(self, part: Workgroup, warps: int) -> list[tuple[int, Workgroup]]:
        """Split a part into (first line, piece); a piece is the data that a group has in flight at once."""
        max_lines = warps * _LINES
        return [
            (offset, Workgroup(self.builder, part.number, part.first + offset, min(max_lines, part.lines - offset)))
            for offset in range(0, part.lines, max_lines)
        ]

    def _copy(
        self, piece: Workgroup, reads: Sequence[Operand], writes: Sequence[Operand], cost: _CopyCost, begins: int
    ) -> None:
        """Add loads, a wait, and stores. ``begins``: 1 at a rank's first piece of a step, 2 in the first step."""
        first_cycles, store_cycles = cost.whole if piece.lines >= _LINES else cost.small
        if begins:
            piece.add(isa.DELAY, first_cycles + (begins - 1) * FETCH_CYCLES, (), "copy")
        unroll = -(-piece.lines // self.options.wavefronts)
        self.builder.add(isa.LOAD, piece.lines, reads, "copy", unroll)
        piece.add(isa.WAITCNT, 0, (), "copy")
        piece.add(isa.DELAY, store_cycles, (), "copy")
        self.builder.add(isa.STORE, piece.lines, writes, "copy", unroll)

    def _begin(self, step: int, part: Workgroup, semaphore: int) -> None:
        """Wait until the stores of the previous step are issued."""
        if step:
            part.wait(self.signals, semaphore + step % 2, 1, "turn")
            part.barrier("turn")

    def _end(self, step: int, part: Workgroup, semaphore: int) -> None:
        """Let the next step begin once the stores of this one are issued, while this one is fenced. The first step
        fetches the code after the copies."""
        if step + 1 < self.rounds:
            part.signal(self.signals, [(0, semaphore + (step + 1) % 2)], "turn")
        if step == 0:
            part.add(isa.DELAY, FETCH_CYCLES, (), "signal")

    def _signal(self, part: Workgroup, semaphore: int) -> None:
        """Signal each rank, from the threads that serve it."""
        part.signal(self.signals, [(d, semaphore) for d in range(self.ranks)], "signal")

    def _multicast(self, part: Workgroup, semaphore: int) -> None:
        """Signal all ranks at once through the switch."""
        rows = [
            self.signals.operand((isa.WRITE_ALL, isa.WRITE_MEMBER)[d > 0], d, part.number, semaphore)
            for d in range(self.ranks)
        ]
        part.add(isa.RELEASE, 1, rows, "signal")

    def _wait(self, part: Workgroup, semaphore: int) -> None:
        """Wait for the signals of all ranks."""
        part.wait(self.signals, semaphore, self.ranks, "wait")
        part.barrier("wait")
