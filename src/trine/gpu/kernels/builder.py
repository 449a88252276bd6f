"""Builder of GPU programs for collectives that run alike on all ranks, relative to their own number.

Callers write the program of rank 0, operation by operation; the builder derives all ranks at once, as arrays. Peers
are distances (rank + d modulo ranks). Distances also number semaphores and scratch slots; only positions in the input
and the output are by rank. So each rank runs rank 0's program, rotated, and the load-store level can fold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.kernels.options import (
    CHANNEL_CYCLES,
    COUNT_CYCLES,
    DATA_CYCLES,
    FLAG_CYCLES,
    MAX_OPERANDS,
    SEEN_CYCLES,
    KernelOptions,
)
from trine.gpu.program import GpuProgram

#: Bytes per piece of a slice, if one piece is sent while the next is processed. 32 workgroups with a piece each keep a
#: 50 GB/s NIC busy for 10 us, about the time until a put is visible at the other node. So bandwidth alone limits later
#: pieces.
PIECE_BYTES = 16 << 10


class Region(NamedTuple):
    """Chunks of ``lines`` lines, ``step`` bytes apart, in one buffer of every rank.

    by_rank: chunk c of a rank is the chunk of rank + c (inputs and outputs), else slot c. flags: semaphore of the first
    line if lines are flagged, else -1.
    """

    base: int
    lines: int
    step: int
    by_rank: bool
    flags: int

    def operand(self, roles: tuple[int, int], distance: int, chunk: int, line: int) -> Operand:
        """Return the operand that starts at ``line`` of a chunk; ``roles``: plain, flagged."""
        stride = self.lines * self.step
        if self.by_rank:
            address = self.base + line * self.step
            return Operand(roles[0], distance, address, self.step, chunk=chunk, stride=stride)
        address = self.base + chunk * stride + line * self.step
        if self.flags < 0:
            return Operand(roles[0], distance, address, self.step)
        return Operand(roles[1], distance, address, self.step, self.flags + chunk * self.lines + line)


class PayloadEnds(NamedTuple):
    """Input and output of a collective, and the lines of a chunk."""

    source: Region
    result: Region
    lines: int


class CollectiveBuilder(ProgramBuilder):
    """Builder of rank 0's program: add regions first, then workgroups."""

    #: Maximum number of pieces of a workgroup's slice.
    max_pieces = 8

    def __init__(self, name: str, options: KernelOptions) -> None:
        super().__init__(name, options.num_ranks, line_bytes=options.line_bytes)
        self.options = options
        self._state_lines: Region | None = None

    def data(self, name: str, chunks: int, lines: int) -> Region:
        """Add a payload buffer of ``chunks`` chunks by rank, or of one; ``name``: ``input`` or ``output``."""
        step = self.options.step_bytes
        return Region(self.buffer(name, chunks * lines * step), lines, step, by_rank=chunks > 1, flags=-1)

    def ends(self, inputs: int, outputs: int) -> PayloadEnds:
        """Add input and output with these numbers of chunks; the larger one divides the payload."""
        lines = self.options.lines(max(inputs, outputs))
        return PayloadEnds(self.data("input", inputs, lines), self.data("output", outputs, lines), lines)

    def collective_ends(self) -> PayloadEnds:
        """Add input and output; the input of a reduction and the output of a gather have one chunk per rank."""
        ranks = self.options.num_ranks
        inputs = ranks if self.options.reduces else 1
        outputs = ranks if self.options.gathers else 1
        return self.ends(inputs, outputs)

    def slots(self, name: str, slots: int, lines: int) -> Region:
        """Add a scratch buffer that peers write to, with flags if the protocol has them."""
        region = self.scratch(name, slots, lines)
        return region._replace(flags=self.semaphores(slots * lines)) if self.options.flagged else region

    def scratch(self, name: str, slots: int, lines: int) -> Region:
        """Add a scratch buffer without flags."""
        base = self.buffer(name, slots * lines * self.line_bytes)
        return Region(base, lines, self.line_bytes, by_rank=False, flags=-1)

    def signals(self, per_workgroup: int) -> SignalTable:
        """Add ``per_workgroup`` semaphores for each workgroup."""
        count = per_workgroup * self.options.workgroups
        base = self.buffer(f"semaphores {self.num_semaphores}", count * self.line_bytes)
        return SignalTable(self.semaphores(count), per_workgroup, base, self.line_bytes)

    def workgroups(self, lines: int) -> Iterator[Workgroup]:
        """Yield the workgroups that have lines, with their slices of a chunk of ``lines`` lines.

        Workgroups without lines get no operations. Raises InputError above MAX_OPERANDS operands.
        """
        per_group, remainder = divmod(lines, self.options.workgroups)
        first = 0
        # With bookkeeping, one line per workgroup for the state that a library's kernels keep
        if self.options.bookkeeping and self._state_lines is None:
            self._state_lines = self.scratch("words", self.options.workgroups, 1)
        state_lines = self._state_lines
        for number in range(self.options.workgroups):
            count = per_group + (number < remainder)
            if count:
                group = Workgroup(self, number, first, count)
                group.enter(state_lines)
                yield group
                group.leave(state_lines)
            first += count
            self.end_workgroup()

    def end_workgroup(self) -> None:
        """End a workgroup: all operations since the last end. Raises InputError if the program is too large."""
        super().end_workgroup()
        if self.num_operands * self.num_ranks > MAX_OPERANDS:
            raise InputError(
                f"{self.name} on {self.num_ranks} ranks with {self.options.workgroups} workgroups has more "
                f"than {MAX_OPERANDS} operands: take fewer workgroups"
            )

    def num_pieces(self, lines: int) -> int:
        """Return the number of pieces of a slice of ``lines`` lines."""
        return max(1, min(self.max_pieces, lines * self.line_bytes // PIECE_BYTES))

    def finished(self, grid: Sequence[int] = ()) -> GpuProgram:
        """Return the program of all ranks; ``grid``: the shape that distances and chunks index, by default a ring."""
        self.end_kernel(0, self.options.wavefronts, self.name)
        return self._built(range(self.num_ranks), grid)

    def _built(self, ranks: Sequence[int] | None, grid: Sequence[int] = ()) -> GpuProgram:
        options = self.options
        notes = (f"protocol {options.protocol}, {options.workgroups} workgroups of {options.wavefronts} wavefronts",)
        is_part = options.part_of_bytes is not None
        return self.program(
            ranks=ranks, grid=grid, payload_bytes=options.size_bytes, notes=notes, own_chunk_first=is_part
        )


class SignalTable(NamedTuple):
    """``per_workgroup`` semaphores for each workgroup, one per line."""

    first: int
    per_workgroup: int
    base: int
    line_bytes: int

    def operand(self, role: int, distance: int, workgroup: int, index: int) -> Operand:
        number = workgroup * self.per_workgroup + index
        return Operand(role, distance, self.base + number * self.line_bytes, semaphore=self.first + number)


class Workgroup:
    """Operations of one workgroup on its slice of every chunk: ``lines`` lines from line ``first`` on."""

    def __init__(self, builder: CollectiveBuilder, number: int, first: int, lines: int) -> None:
        self.builder, self.number, self.first, self.lines = builder, number, first, lines

    def add(self, kind: int, amount: int, operands: Iterable[Operand], label: str) -> None:
        """Add one operation; ``options.unroll`` sets the requests in flight of data operations."""
        unroll = self.builder.options.unroll if kind in isa.DATA_OPS else 0
        self.builder.add(kind, amount, operands, label, unroll)

    def pieces(self) -> list[Workgroup]:
        """Return the slice cut into pieces."""
        count = self.builder.num_pieces(self.lines)
        ends = [self.lines * number // count for number in range(count + 1)]
        cuts = pairwise(ends)
        return [Workgroup(self.builder, self.number, self.first + first, end - first) for first, end in cuts]

    def rotated(self, distances: Sequence[int]) -> list[int]:
        """Return the distances rotated by workgroup number, so that workgroups do not all start with one peer."""
        start = self.number % len(distances)
        return [*distances[start:], *distances[:start]]

    def read(self, region: Region, distance: int = 0, chunk: int = 0) -> Operand:
        """Return the slice of a chunk in the memory of rank + distance, as a source."""
        return region.operand((isa.READ, isa.READ_FLAGGED), distance, chunk, self.first)

    def write(self, region: Region, distance: int = 0, chunk: int = 0) -> Operand:
        """Return the slice of a chunk in the memory of rank + distance, as a target."""
        return region.operand((isa.WRITE, isa.WRITE_FLAGGED), distance, chunk, self.first)

    def read_sum(self, region: Region, chunk: int = 0) -> list[Operand]:
        """Return the slice of this rank's chunk (``chunk`` further) in all memories, as a source the switch sums."""
        return self._multimem((isa.READ_SUM, isa.READ_MEMBER), region, chunk)

    def write_all(self, region: Region, chunk: int = 0) -> list[Operand]:
        """Return the same slice in all memories, as a target that the switch multicasts to."""
        return self._multimem((isa.WRITE_ALL, isa.WRITE_MEMBER), region, chunk)

    def _multimem(self, roles: tuple[int, int], region: Region, chunk: int) -> list[Operand]:
        """Return the rows of a multimem operand: this rank first, then the others by distance."""
        distances = range(self.builder.num_ranks)
        rows = (region.operand((roles[0], roles[0]), distance, chunk, self.first) for distance in distances)
        return [row._replace(role=roles[min(distance, 1)]) for distance, row in enumerate(rows)]

    def copy(self, source: Operand | Sequence[Operand], *targets: Operand, label: str) -> None:
        """Copy the slice from ``source``, one operand or the rows of a multimem operand, to ``targets``."""
        rows = (source,) if isinstance(source, Operand) else source
        self.add(isa.COPY, self.lines, (*rows, *targets), label)

    def reduce(self, sources: Iterable[Operand], *targets: Operand, label: str) -> None:
        self.add(isa.REDUCE, self.lines, (*sources, *targets), label)

    def put(self, source: Operand, target: Operand, semaphore: int = -1) -> None:
        """Put the slice over a NIC; ``semaphore`` is signalled after it."""
        ends = source._replace(step=0), target._replace(step=0, semaphore=semaphore)
        self.add(isa.DMA, self.lines * self.builder.line_bytes, ends, "rail put")

    def finish(self, label: str) -> None:
        """Wait until all earlier reads and writes of all wavefronts are complete."""
        self.add(isa.WAITCNT, 0, (), label)
        self.add(isa.BARRIER, 0, (), label)

    def enter(self, state_lines: Region | None) -> None:
        """Add a library kernel's prologue, before the first access; ``state_lines``: one per workgroup, or None."""
        if state_lines is None:
            return
        for cycles, label in ((FLAG_CYCLES, "flag"), (CHANNEL_CYCLES, "channels")):
            self.add(isa.DELAY, cycles, (), label)
            self.add(isa.LOAD, 1, [state_lines.operand((isa.READ, isa.READ), 0, self.number, 0)], label)
            self.add(isa.WAITCNT, 0, (), label)
        self.add(isa.DELAY, DATA_CYCLES, (), "channels")

    def leave(self, state_lines: Region | None) -> None:
        """Add a library kernel's epilogue: a barrier, then one thread increments the flag for the next launch."""
        if state_lines is not None:
            self.barrier("next flag")
            self.add(isa.STORE, 1, [state_lines.operand((isa.WRITE, isa.WRITE), 0, self.number, 0)], "next flag")

    def count(self, label: str) -> None:
        """Add a library kernel's increment, in memory, of the number of signals to wait for."""
        if self.builder.options.bookkeeping:
            self.add(isa.DELAY, COUNT_CYCLES, (), label)

    def delay_after_wait(self, label: str) -> None:
        """Add a library kernel's delay after the signals have arrived."""
        if self.builder.options.bookkeeping:
            self.add(isa.DELAY, SEEN_CYCLES, (), label)

    def settle(self, label: str = "settle") -> None:
        """Make this workgroup's earlier writes visible to all, NICs included; a library's kernel adds a fence."""
        self.finish(label)
        if self.builder.options.bookkeeping:
            self.add(isa.FENCE, 0, (), label)

    def signal(self, signals: SignalTable, peers: Iterable[tuple[int, int]], label: str) -> None:
        """Release a semaphore at each (distance, index)."""
        self.add(isa.RELEASE, 1, [signals.operand(isa.WRITE, d, self.number, index) for d, index in peers], label)

    def wait(self, signals: SignalTable, index: int, amount: int, label: str) -> None:
        """Acquire ``amount`` of a semaphore; the other wavefronts do not wait with wavefront 0."""
        self.add(isa.ACQUIRE, amount, (signals.operand(isa.READ, 0, self.number, index),), label)

    def barrier(self, label: str) -> None:
        self.add(isa.BARRIER, 0, (), label)
