"""Builds the GPU program of a collective in which all ranks do the same, relative to their own number.

What rank 0 does is written operation by operation; all ranks follow from it at once, as arrays. Peers are distances
(rank + d modulo ranks), semaphores and scratch slots are numbered by distance, and only places in the input and the
output are by rank; so a program of any rank is that of rank 0, rotated, and the load-store level can fold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from trine.collectives.kernels.bookkeeping import (
    CHANNEL_CYCLES,
    COUNT_CYCLES,
    DATA_CYCLES,
    FLAG_CYCLES,
    SEEN_CYCLES,
)
from trine.collectives.kernels.options import MAX_OPERANDS, KernelOptions
from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.program import GpuProgram

#: Bytes of a piece of a slice, where one piece is sent while the next is worked on. 32 workgroups with a piece each
#: keep a NIC of 50 GB/s busy for 10 us, about what a put takes to be seen at the other node; so later pieces wait for
#: bytes alone.
PIECE_BYTES = 16 << 10


class Region(NamedTuple):
    """Chunks of ``lines`` lines, ``step`` bytes apart, in one buffer of every rank.

    by_rank: chunk c of a rank means the one of rank + c (inputs and outputs), else slot c. flags: semaphore of the
    first line where lines are flagged, else -1.
    """

    base: int
    lines: int
    step: int
    by_rank: bool
    flags: int

    def operand(self, roles: tuple[int, int], distance: int, chunk: int, line: int) -> Operand:
        """From ``line`` of a chunk on; ``roles``: plain, flagged."""
        stride = self.lines * self.step
        if self.by_rank:
            address = self.base + line * self.step
            return Operand(roles[0], distance, address, self.step, chunk=chunk, stride=stride)
        address = self.base + chunk * stride + line * self.step
        if self.flags < 0:
            return Operand(roles[0], distance, address, self.step)
        return Operand(roles[1], distance, address, self.step, self.flags + chunk * self.lines + line)


class CollectiveBuilder(ProgramBuilder):
    """The program of rank 0 as it is written: first regions, then workgroups."""

    #: Of a workgroup's slice, at most.
    max_pieces = 8

    def __init__(self, name: str, options: KernelOptions) -> None:
        super().__init__(name, options.num_ranks, line_bytes=options.line_bytes)
        self.options = options
        self._words: Region | None = None

    def data(self, name: str, chunks: int, lines: int) -> Region:
        """A buffer for payload: ``chunks`` chunks by rank, or one; ``name``: ``input`` or ``output``."""
        step = self.options.step_bytes
        return Region(self.buffer(name, chunks * lines * step), lines, step, by_rank=chunks > 1, flags=-1)

    def ends(self, inputs: int, outputs: int) -> tuple[Region, Region, int]:
        """Input and output of so many chunks, and the lines of a chunk: the payload is cut into the larger number."""
        lines = self.options.lines(max(inputs, outputs))
        return self.data("input", inputs, lines), self.data("output", outputs, lines), lines

    def slots(self, name: str, slots: int, lines: int) -> Region:
        """A scratch buffer that peers write to, with flags if the protocol has them."""
        region = self.scratch(name, slots, lines)
        return region._replace(flags=self.semaphores(slots * lines)) if self.options.flagged else region

    def scratch(self, name: str, slots: int, lines: int) -> Region:
        """A scratch buffer without flags."""
        base = self.buffer(name, slots * lines * self.line_bytes)
        return Region(base, lines, self.line_bytes, by_rank=False, flags=-1)

    def signals(self, per_workgroup: int) -> SignalTable:
        """Semaphores of each workgroup."""
        count = per_workgroup * self.options.workgroups
        base = self.buffer(f"semaphores {self.num_semaphores}", count * self.line_bytes)
        return SignalTable(self.semaphores(count), per_workgroup, base, self.line_bytes)

    def workgroups(self, lines: int) -> Iterator[Workgroup]:
        """The workgroups with their slices of a chunk of ``lines`` lines; those without lines get no operations.

        Raises InputError: the program gets more than MAX_OPERANDS operands.
        """
        each, more = divmod(lines, self.options.workgroups)
        first = 0
        # With bookkeeping, a line of each workgroup for what a library's kernels keep
        if self.options.bookkeeping and self._words is None:
            self._words = self.scratch("words", self.options.workgroups, 1)
        words = self._words
        for number in range(self.options.workgroups):
            count = each + (number < more)
            if count:
                group = Workgroup(self, number, first, count)
                group.enter(words)
                yield group
                group.leave(words)
            first += count
            self.end_workgroup()

    def end_workgroup(self) -> None:
        """What has been added since the last one is one workgroup. Raises InputError for too large a program."""
        super().end_workgroup()
        if self.num_operands * self.num_ranks > MAX_OPERANDS:
            raise InputError(
                f"{self.name} on {self.num_ranks} ranks with {self.options.workgroups} workgroups has more "
                f"than {MAX_OPERANDS} operands: take fewer workgroups"
            )

    def num_pieces(self, lines: int) -> int:
        """Of a slice of so many lines."""
        return max(1, min(self.max_pieces, lines * self.line_bytes // PIECE_BYTES))

    def finished(self, grid: Sequence[int] = ()) -> GpuProgram:
        """The program of all ranks; ``grid``: what distances and chunks are places in, where that is no ring."""
        self.end_kernel(0, self.options.wavefronts, self.name)
        return self._built(range(self.num_ranks), grid)

    def _built(self, ranks: Sequence[int] | None, grid: Sequence[int] = ()) -> GpuProgram:
        options = self.options
        notes = (f"protocol {options.protocol}, {options.workgroups} workgroups of {options.wavefronts} wavefronts",)
        return self.program(ranks=ranks, grid=grid, payload_bytes=options.size_bytes, notes=notes)


class SignalTable(NamedTuple):
    """``per_workgroup`` semaphores of each workgroup, each on a line of its own."""

    first: int
    per_workgroup: int
    base: int
    line_bytes: int

    def operand(self, role: int, distance: int, workgroup: int, which: int) -> Operand:
        number = workgroup * self.per_workgroup + which
        return Operand(role, distance, self.base + number * self.line_bytes, semaphore=self.first + number)


class Workgroup:
    """Operations of one workgroup on its slice of every chunk: ``lines`` lines from line ``first`` on."""

    def __init__(self, builder: CollectiveBuilder, number: int, first: int, lines: int) -> None:
        self.builder, self.number, self.first, self.lines = builder, number, first, lines

    def add(self, kind: int, amount: int, operands: Iterable[Operand], label: str) -> None:
        """One operation; data operations have as many requests in flight as the options say."""
        unroll = self.builder.options.unroll if kind in isa.DATA_OPS else 0
        self.builder.add(kind, amount, operands, label, unroll)

    def pieces(self) -> list[Workgroup]:
        """The slice, cut."""
        count = self.builder.num_pieces(self.lines)
        ends = [self.lines * number // count for number in range(count + 1)]
        cuts = pairwise(ends)
        return [Workgroup(self.builder, self.number, self.first + first, end - first) for first, end in cuts]

    def rotated(self, distances: Sequence[int]) -> list[int]:
        """The same distances, each workgroup beginning with another, so that they do not all go to one peer at once."""
        start = self.number % len(distances)
        return [*distances[start:], *distances[:start]]

    def read(self, region: Region, distance: int = 0, chunk: int = 0) -> Operand:
        """The slice of a chunk in the memory of rank + distance, as a source."""
        return region.operand((isa.READ, isa.READ_FLAGGED), distance, chunk, self.first)

    def write(self, region: Region, distance: int = 0, chunk: int = 0) -> Operand:
        """The slice of a chunk in the memory of rank + distance, as a target."""
        return region.operand((isa.WRITE, isa.WRITE_FLAGGED), distance, chunk, self.first)

    def read_sum(self, region: Region, chunk: int = 0) -> list[Operand]:
        """The slice of a chunk of this rank (``chunk`` further) in the memories of all, which the switch adds up."""
        return self._multimem((isa.READ_SUM, isa.READ_MEMBER), region, chunk)

    def write_all(self, region: Region, chunk: int = 0) -> list[Operand]:
        """The same slice in the memories of all, as a target that the switch multicasts to."""
        return self._multimem((isa.WRITE_ALL, isa.WRITE_MEMBER), region, chunk)

    def _multimem(self, roles: tuple[int, int], region: Region, chunk: int) -> list[Operand]:
        """As rows of a multimem operand: the own rank first, then the others by distance."""
        distances = range(self.builder.num_ranks)
        rows = (region.operand((roles[0], roles[0]), distance, chunk, self.first) for distance in distances)
        return [row._replace(role=roles[min(distance, 1)]) for distance, row in enumerate(rows)]

    def copy(self, source: Operand | Sequence[Operand], *targets: Operand, label: str) -> None:
        """``source``: one operand, or the rows of a multimem one."""
        rows = (source,) if isinstance(source, Operand) else source
        self.add(isa.COPY, self.lines, (*rows, *targets), label)

    def reduce(self, sources: Iterable[Operand], *targets: Operand, label: str) -> None:
        self.add(isa.REDUCE, self.lines, (*sources, *targets), label)

    def put(self, source: Operand, target: Operand, semaphore: int = -1) -> None:
        """The slice, by a NIC; ``semaphore``: signalled behind it."""
        ends = source._replace(step=0), target._replace(step=0, semaphore=semaphore)
        self.add(isa.DMA, self.lines * self.builder.line_bytes, ends, "rail put")

    def finish(self, label: str) -> None:
        """Until what all wavefronts have read and written so far is done."""
        self.add(isa.WAITCNT, 0, (), label)
        self.add(isa.BARRIER, 0, (), label)

    def enter(self, words: Region | None) -> None:
        """As a library's kernel, before the first access to data; ``words``: a line of each workgroup; or nothing."""
        if words is None:
            return
        for cycles, label in ((FLAG_CYCLES, "flag"), (CHANNEL_CYCLES, "channels")):
            self.add(isa.DELAY, cycles, (), label)
            self.add(isa.LOAD, 1, [words.operand((isa.READ, isa.READ), 0, self.number, 0)], label)
            self.add(isa.WAITCNT, 0, (), label)
        self.add(isa.DELAY, DATA_CYCLES, (), "channels")

    def leave(self, words: Region | None) -> None:
        """As a library's kernel: the threads meet, and one counts the flag up for the next launch."""
        if words is not None:
            self.barrier("next flag")
            self.add(isa.STORE, 1, [words.operand((isa.WRITE, isa.WRITE), 0, self.number, 0)], "next flag")

    def count(self, label: str) -> None:
        """As a library's kernel: the number of signals to wait for is counted up in memory."""
        if self.builder.options.bookkeeping:
            self.add(isa.DELAY, COUNT_CYCLES, (), label)

    def seen(self, label: str) -> None:
        """As a library's kernel: the signals are there."""
        if self.builder.options.bookkeeping:
            self.add(isa.DELAY, SEEN_CYCLES, (), label)

    def settle(self, label: str = "settle") -> None:
        """What this workgroup has written so far is there for all, NICs too; a library's kernel fences for that."""
        self.finish(label)
        if self.builder.options.bookkeeping:
            self.add(isa.FENCE, 0, (), label)

    def signal(self, signals: SignalTable, peers: Iterable[tuple[int, int]], label: str) -> None:
        """Release a semaphore at each (distance, which)."""
        self.add(isa.RELEASE, 1, [signals.operand(isa.WRITE, d, self.number, which) for d, which in peers], label)

    def wait(self, signals: SignalTable, which: int, amount: int, label: str) -> None:
        """Acquire ``amount`` of a semaphore; the other wavefronts do not wait with wavefront 0."""
        self.add(isa.ACQUIRE, amount, (signals.operand(isa.READ, 0, self.number, which),), label)

    def barrier(self, label: str) -> None:
        self.add(isa.BARRIER, 0, (), label)
