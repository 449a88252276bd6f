"""Memory of all ranks in cells: the contents of each, its last writer, and its readers since.

Order is tracked with vector clocks, as in data race detectors (Flanagan and Freund, "FastTrack", PLDI 2009). An actor
is a wavefront, the copy engine's queue from a rank to a peer, or a rank that enters with its input. Contents are
numbers that stand for parts of inputs. A reduce adds them modulo 2^64, so a sum with an extra, a missing or a
misplaced part is a different number (all but once in 2^64).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64
from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.builder import Operand, operations_of
from trine.gpu.program import COPY, DATA_OPS, DMA, LOAD, READ_FLAGGED, Buffer, GpuProgram, is_flagged, is_read

Clock = npt.NDArray[np.int32]
Values = npt.NDArray[np.uint64]
Index = npt.NDArray[np.intp]

#: Maximum entries in the table of reads: cells times actors.
MAX_ENTRIES = 1 << 28
#: Value of a cell without any part of an input, such as a store without a load before it.
NOTHING = 0x9E3779B97F4A7C15


class Race(Exception):
    """An access (``does``: reads, writes) to a cell while an earlier access (``what``: read, write) may not be over."""

    def __init__(self, does: str, cell: int, what: str, actor: int, epoch: int) -> None:
        super().__init__(does, cell, what, actor, epoch)
        self.does, self.cell, self.what, self.actor, self.epoch = does, cell, what, actor, epoch


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Cell numbers of addresses: the ranges that programs touch, equal on all ranks, in cells of ``size`` bytes.

    starts, first: int64: address and first cell of each range. count: cells of one rank.
    """

    size: int
    starts: Int64
    first: Int64
    count: int

    def at(self, rank: int, address: int) -> int:
        """Return the cell of an address that some operation touches."""
        i = int(np.searchsorted(self.starts, address, "right")) - 1
        return rank * self.count + int(self.first[i]) + (address - int(self.starts[i])) // self.size

    def place(self, cell: int) -> tuple[int, int]:
        """Return (rank, address) of a cell."""
        rank, cell = divmod(cell, self.count)
        i = int(np.searchsorted(self.first, cell, "right")) - 1
        return rank, int(self.starts[i]) + (cell - int(self.first[i])) * self.size

    def span(self, rank: int, address: int, size_bytes: int) -> Index:
        """Return the cells of a range."""
        first = self.at(rank, address) if size_bytes else 0
        return np.arange(first, first + size_bytes // self.size)


def line_widths(program: GpuProgram) -> Int64:
    """Return each operation's payload per line: the smallest step of its operands, at most a line. int64[n].

    A load of flagged lines has no other operand, so it uses the smallest payload of the flagged stores.
    """
    op = program.operand_op
    step = np.abs(program.operand_step.astype(np.int64))
    widths = np.full(program.num_ops, program.line_bytes, np.int64)
    np.minimum.at(widths, op, np.where(step > 0, step, program.line_bytes))
    store_widths = widths[op[is_flagged(program) & ~is_read(program)]]
    loads = op[(program.operand_role == READ_FLAGGED) & (program.op_kind[op] == LOAD)]
    if len(store_widths):
        widths[loads] = np.minimum(widths[loads], store_widths.min())
    return widths


def make_cells(program: GpuProgram, spans: list[tuple[int, int]]) -> Cells:
    """Return cells small enough for every operand, and each (address, bytes) of ``spans``, to have whole ones."""
    op = program.operand_op
    kind, amount = program.op_kind[op], program.op_amount[op]
    moves = np.isin(kind, (*DATA_OPS, DMA)) & (amount > 0)
    widths = line_widths(program)[op]
    address, step = program.operand_address, program.operand_step.astype(np.int64)
    last = np.where(kind == DMA, 0, (amount - 1) * step)
    low = (address + np.minimum(last, 0))[moves]
    high = (address + np.maximum(last, 0) + np.where(kind == DMA, amount, widths))[moves]
    steps = np.where((kind != DMA) & (amount > 1), np.abs(step), 0)[moves]
    numbers = np.concatenate([low, high - low, steps, widths[moves & (kind != DMA)], np.ravel(spans).astype(np.int64)])
    size = math.gcd(program.line_bytes, *(int(n) for n in np.unique(numbers)))
    low = np.append(low, [start for start, length in spans if length])
    high = np.append(high, [start + length for start, length in spans if length])
    starts, ends = _merged(low.astype(np.int64), high.astype(np.int64))
    counts = (ends - starts) // size
    first = np.cumsum(counts) - counts
    return Cells(size=size, starts=starts, first=first, count=int(counts.sum()))


def _merged(low: Int64, high: Int64) -> tuple[Int64, Int64]:
    """Return the smallest number of ranges that cover the same addresses, in order."""
    if not len(low):
        return low, high
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    begins = np.append(True, low[1:] > reach[:-1])
    return low[begins], reach[np.append(begins[1:], True)]


def buffer_of(program: GpuProgram, address: int) -> Buffer | None:
    """Return the buffer that contains an address, or None."""
    return next((b for b in program.buffers if b.base <= address < b.base + b.size_bytes), None)


class CellMemory:
    """Contents and access history of the cells of all ranks.

    wrote_by, wrote_at: actor and epoch of the last write, -1 for no write. taken_by, taken_at: who took its flag, and
    when; the write is over for all who know of that. read_at: int32[cells, actors]: epoch of each actor's last read.
    """

    def __init__(self, cells: Cells, num_ranks: int, num_actors: int, file: str) -> None:
        total = cells.count * num_ranks
        if total * num_actors > MAX_ENTRIES:
            raise InputError(
                f"{file}: too large to check: {total} cells of {cells.size} bytes and {num_actors} wavefronts and "
                f"copy engines, more than {MAX_ENTRIES} together: take fewer bytes, workgroups or wavefronts"
            )
        self.cells = cells
        self.values = np.full(total, NOTHING, np.uint64)
        self.wrote_by = np.full(total, -1, np.int32)
        self.wrote_at = np.zeros(total, np.int32)
        self.taken_by = np.full(total, -1, np.int32)
        self.taken_at = np.zeros(total, np.int32)
        self.read_at = np.zeros((total, num_actors), np.int32)

    def check_read(self, cells: Index, knows: Clock, blank: bool) -> None:
        """Raise Race unless all writes of ``cells`` are known; ``blank``: also raise it for cells never written."""
        self._check_written("reads", cells, knows, blank)

    def check_write(self, cells: Index, knows: Clock) -> None:
        """Raise Race unless all writes and reads of ``cells`` are known."""
        self._check_written("writes", cells, knows, blank=False)
        flat = cells.ravel()
        late = self.read_at[flat] > knows
        if late.any():
            i, actor = (int(n) for n in np.argwhere(late)[0])
            raise Race("writes", int(flat[i]), "read", actor, int(self.read_at[flat[i], actor]))

    def _check_written(self, does: str, cells: Index, knows: Clock, blank: bool) -> None:
        bad = self.unknown(cells, knows)
        if blank:
            bad |= self.wrote_by[cells] < 0
        if bad.any():
            cell = int(cells.flat[int(np.argmax(bad))])
            raise Race(does, cell, "write", int(self.wrote_by[cell]), int(self.wrote_at[cell]))

    def unknown(self, cells: Index | slice, knows: Clock) -> Bool:
        """Return which cells have a last write that ``knows`` does not prove to be over."""
        bad = self.wrote_at[cells] > knows[self.wrote_by[cells]]
        if bad.any():
            taken_epoch = self.taken_at[cells]
            bad &= (taken_epoch == 0) | (taken_epoch > knows[self.taken_by[cells]])
        return bad

    def note_read(self, cells: Index, actor: int, epoch: int) -> None:
        self.read_at[cells.ravel(), actor] = epoch

    def write(self, cells: Index, values: Values | np.uint64, actor: int, epoch: int) -> None:
        self.values[cells] = values
        self.wrote_by[cells] = actor
        self.wrote_at[cells] = epoch
        self.taken_at[cells] = 0

    def take(self, cells: Index, actor: int, epoch: int) -> None:
        """Record that an actor has taken the flags of these cells."""
        self.taken_by[cells] = actor
        self.taken_at[cells] = epoch


def combine(kind: int, parts: list[Values]) -> Values:
    """Return the value that an operation makes from the values it has read."""
    if kind == COPY or len(parts) == 1:
        return parts[0]
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


# State of a run of the checker: operations, wavefronts, semaphores.


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseToken:
    """A released token: the releaser's clock (None for initial units); for a flagged line also the actor and epoch of
    the store, else -1."""

    clock: Clock | None
    actor: int = -1
    epoch: int = -1

    def added_to(self, knows: Clock) -> Clock:
        """Return the reader's clock after a flagged line: it learns of that line's store, but of no other line."""
        if self.actor < 0:
            return knows
        clock = knows.copy()
        clock[self.actor] = max(int(clock[self.actor]), self.epoch)
        return clock


#: Units that a semaphore starts with.
INITIAL = ReleaseToken(None)


@dataclass(frozen=True, slots=True)
class DecodedOp:
    """An operation with its rows; a multimem operand has one row per member, and the first row carries its role."""

    kind: int
    amount: int
    width: int
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]

    @property
    def adds(self) -> tuple[bool, ...]:
        """For each written row, whether the operation adds to the old contents."""
        flags: list[bool] = []
        for row in self.writes:
            flags.append(flags[-1] if row.role in isa.MEMBER_ROLES else row.role == isa.ADD_ALL)
        return tuple(flags)

    @property
    def flagged_reads(self) -> tuple[Operand, ...]:
        return tuple(operand for operand in self.reads if operand.role == isa.READ_FLAGGED)


@dataclass(slots=True, eq=False)
class ProofWavefront:
    """A running wavefront. heard: clocks it merges once its requests complete; line: progress of a flagged load."""

    actor: int
    rank: int
    workgroup: int
    number: int
    num_wavefronts: int
    ops: range
    next: int
    knows: Clock
    heard: list[Clock] = field(default_factory=list)
    line: int = 0
    arrived: bool = False
    registers: tuple[int, int, Values] | None = None

    @property
    def done(self) -> bool:
        return self.next == self.ops.stop

    @property
    def epoch(self) -> int:
        """Epoch of the current operation, from 1."""
        return self.next - self.ops.start + 1


class ProofSemaphore:
    """A semaphore. units: tokens and their unit counts, in order of release. queue: waiting actors, in order."""

    def __init__(self, initial: int) -> None:
        self.units: deque[tuple[ReleaseToken, int]] = deque()
        self.count = 0
        self.queue: deque[int] = deque()
        if initial:
            self.release(INITIAL, initial)

    @property
    def first(self) -> ReleaseToken:
        return self.units[0][0]

    def release(self, token: ReleaseToken, amount: int) -> None:
        self.units.append((token, amount))
        self.count += amount

    def take(self, amount: int) -> list[ReleaseToken]:
        """Remove ``amount`` units and return their tokens; the semaphore must hold at least that many."""
        tokens: list[ReleaseToken] = []
        self.count -= amount
        while amount:
            token, units = self.units.popleft()
            used = min(units, amount)
            amount -= used
            tokens.append(token)
            if used < units:
                self.units.appendleft((token, units - used))
        return tokens


def wavefronts_of(program: GpuProgram) -> list[tuple[int, int, int, int]]:
    """Return (rank, workgroup, wavefront, wavefronts per workgroup) of all wavefronts."""
    return [
        (int(rank), workgroup, number, int(of))
        for kernel, (rank, of) in enumerate(zip(program.kernel_rank, program.kernel_wavefronts, strict=True))
        for workgroup in range(int(program.kernel_ptr[kernel]), int(program.kernel_ptr[kernel + 1]))
        for number in range(int(of))
    ]


def ports_of(program: GpuProgram) -> list[tuple[int, int]]:
    """Return the (rank, peer) pairs of all copy-engine copies."""
    ranks, ports = program.op_rank, {}
    for op in np.flatnonzero(program.op_kind == isa.DMA).tolist():
        first, last = (int(i) for i in program.operand_ptr[op : op + 2])
        ports[int(ranks[op]), int(program.operand_rank[last - 1 if last > first else first])] = True
    return list(ports)


def decode(program: GpuProgram) -> list[DecodedOp]:
    """Return the operations as objects."""
    ops = []
    for (kind, amount, operands, *_), width in zip(operations_of(program), line_widths(program).tolist(), strict=True):
        reads = tuple(operand for operand in operands if operand.role in isa.READ_ROLES)
        writes = tuple(operand for operand in operands if operand.role not in isa.READ_ROLES)
        ops.append(DecodedOp(kind, amount, width, reads, writes))
    return ops


def is_flagged_write(operand: Operand) -> bool:
    """Return whether the lines that a data operation writes through ``operand`` carry flags."""
    return operand.role == isa.WRITE_FLAGGED or (
        operand.role in (isa.WRITE_ALL, isa.WRITE_MEMBER) and operand.semaphore >= 0
    )


def releases(op: DecodedOp, rank: int, number: int) -> bool:
    """Return whether an operation releases a semaphore, or stores a line with that flag."""
    for operand in (*op.writes, *(op.reads if op.kind == isa.DMA else ())):
        count = op.amount if op.kind in isa.DATA_OPS and is_flagged_write(operand) else 1
        if operand.rank == rank and operand.semaphore >= 0 and 0 <= number - operand.semaphore < count:
            return True
    return False
