"""Memory of all ranks in cells: the contents of each, its last writer, and its readers since.

Order is tracked with vector clocks, as in data race detectors (Flanagan and Freund, "FastTrack", PLDI 2009). An actor
is a wavefront, the copy engine's queue from a rank to a peer, or a rank that enters with its input. Contents are
numbers that stand for parts of inputs. A reduce adds them modulo 2^64, so a sum with an extra, a missing or a
misplaced part is a different number (all but once in 2^64).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64
from trine.errors import InputError
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
