"""A matrix product as a GPU kernel: workgroups that load tiles of both operands, multiply them, and store the result.

After the persistent kernels of CUTLASS 3 (docs.nvidia.com/cutlass, "Efficient GEMM"): one workgroup per compute unit
computes output tiles in turn. Each step of the inner loop loads one cache line of each row of A and of each column of
B, some steps ahead of the arithmetic. Neighbouring workgroups share the loads of B on GPUs with multicast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from trine.common.shown import OneLine
from trine.common.units import PS_PER_S
from trine.gpu import program as isa
from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.model import GpuModel
from trine.gpu.operators.tensor_cores import TensorCores
from trine.gpu.program import GpuProgram

#: Steps of the inner loop whose loads are in flight at a time, and wavefronts of a workgroup.
STAGES, WAVEFRONTS = 3, 8
#: Rows and columns of a tile (CUTLASS's tiles for tensor cores), and parts of the inner loop on several workgroups.
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
SPLITS = (1, 2, 4, 8)
#: Rows of tiles that follow each other before the next column, so that workgroups share operands in the L2.
_GROUP_ROWS = 8
_FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmShape(OneLine):
    """``batch`` products (m, k) x (k, n).

    item_bytes: of an operand's element, below 1 for 4-bit numbers. out_bytes: of the result's. accumulates: the result
    is added to what is there.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    item_bytes: float = 2.0
    out_bytes: int = 2
    accumulates: bool = False

    @property
    def flops(self) -> int:
        """FLOPs of all products; a multiply-add is two."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def size_bytes(self) -> int:
        """Bytes of both operands, once, and of the result."""
        operands = math.ceil(self.item_bytes * self.k * (self.m + self.n))
        passes = 2 if self.accumulates else 1
        return self.batch * (operands + passes * self.out_bytes * self.m * self.n)

    @property
    def words(self) -> str:
        """The shape in one line."""
        times = f"{self.batch} x " if self.batch > 1 else ""
        return f"{times}({self.m:,} x {self.k:,}) x ({self.k:,} x {self.n:,})"


class Unit(NamedTuple):
    """Work of a workgroup at a time: a tile of the result, or one part of its inner loop."""

    batch: int
    row: int
    column: int
    part: int


class GemmPart(NamedTuple):
    """The first ``units`` units of a kernel, each with ``steps`` steps of its inner loop."""

    units: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class GemmKernel:
    """A product in tiles of ``rows`` x ``columns`` on one GPU. splits: parts of the inner loop, as separate units."""

    shape: GemmShape
    rows: int
    columns: int
    splits: int
    model: GpuModel
    cores: TensorCores

    # Sizes

    @property
    def depth(self) -> int:
        """Elements of the inner dimension in a step: one cache line."""
        return max(1, round(self.model.line_bytes / self.shape.item_bytes))

    @property
    def total_steps(self) -> int:
        """Steps over the whole inner dimension."""
        return -(-self.shape.k // self.depth)

    @property
    def steps(self) -> int:
        """Steps of each unit."""
        return -(-self.total_steps // self.splits)

    @property
    def tile_rows(self) -> int:
        return -(-self.shape.m // self.rows)

    @property
    def tile_columns(self) -> int:
        return -(-self.shape.n // self.columns)

    @property
    def num_units(self) -> int:
        """Tiles of all products, times the parts of the inner loop."""
        return self.shape.batch * self.tile_rows * self.tile_columns * self.splits

    @property
    def workgroups(self) -> int:
        """Workgroups of the whole kernel: one per compute unit, at most one per unit."""
        return min(self.model.num_cus, self.num_units)

    @property
    def waves(self) -> int:
        """Units of the busiest workgroup."""
        return -(-self.num_units // self.model.num_cus)

    @property
    def whole(self) -> GemmPart:
        """All units with all steps."""
        return GemmPart(self.num_units, self.steps)

    @property
    def wavefront_cycles(self) -> int:
        """Cycles of one wavefront's share of a step; the matrix cores serve the wavefronts one by one."""
        return -(-self.cores.cycles(2 * self.rows * self.columns * self.depth) // WAVEFRONTS)

    @property
    def step_ps(self) -> int:
        """Time of a step's arithmetic on one compute unit."""
        return WAVEFRONTS * self.wavefront_cycles * self.model.cycle_ps

    @property
    def step_lines(self) -> int:
        """Cache lines that a workgroup loads in a step, with its share of a common operand."""
        shares = self.cores.multicast if self.tile_rows > 1 else 1
        return self.rows + self.columns // shares

    @property
    def arithmetic_ps(self) -> int:
        """Time of all tiles' arithmetic: whole waves of padded tiles."""
        return self.waves * self.steps * self.step_ps

    @property
    def least_ps(self) -> int:
        """Lower bound of the time: arithmetic, loads out of the L2 and into compute units, memory traffic."""
        message_bytes = self.model.line_bytes + self.model.header_bytes
        moved = self.waves * self.steps * self.step_lines * message_bytes
        loads_ps = moved * PS_PER_S // self.model.noc.bytes_per_s
        if self.model.l2 is not None:
            slices_rate = self.model.memory.num_channels * min(self.model.l2.bytes_per_s, self.model.noc.bytes_per_s)
            loads_ps = max(loads_ps, self.num_lines * message_bytes * PS_PER_S // slices_rate)
        partial = 0
        if self.splits > 1:
            partial = 2 * _FLOAT32_BYTES * self.shape.batch * self.shape.m * self.shape.n * self.splits
        memory = self.model.memory
        memory_ps = (self.shape.size_bytes + partial) * PS_PER_S // (memory.num_channels * memory.bytes_per_s)
        return max(self.arithmetic_ps, loads_ps, memory_ps)

    @property
    def num_lines(self) -> int:
        """About the number of cache lines that the kernel loads."""
        return self.num_units * self.steps * self.step_lines

    @property
    def words(self) -> str:
        """Tiles and waves in one line."""
        split = f", inner loop in {self.splits} parts" if self.splits > 1 else ""
        return (
            f"{self.num_units:,} tiles of {self.rows} x {self.columns}{split} on {self.workgroups} compute units: "
            f"{self.waves:,} wave{'s' if self.waves > 1 else ''}"
        )

    # Program

    @cached_property
    def units(self) -> list[Unit]:
        """All units, in order: groups of tile rows, column by column."""
        found: list[Unit] = []
        for batch in range(self.shape.batch):
            for first in range(0, self.tile_rows, _GROUP_ROWS):
                for column in range(self.tile_columns):
                    for row in range(first, min(first + _GROUP_ROWS, self.tile_rows)):
                        found.extend(Unit(batch, row, column, part) for part in range(self.splits))
        return found

    @property
    def reuses_operands(self) -> bool:
        """Whether the operands of one wave, over the whole inner dimension, stay in the L2 for the next wave."""
        if self.model.l2 is None:
            return False
        rows = min(self.tile_rows, _GROUP_ROWS)
        columns = -(-self.workgroups // rows)
        lines = (rows * self.rows + columns * self.columns) * self.total_steps
        return lines * self.model.line_bytes <= self.model.l2.capacity_bytes

    def program(self, part: GemmPart) -> GpuProgram:
        """Return the kernel, or a part of it; ``part`` = :attr:`whole` for all."""
        return _Writer(self, part).program()


def gemm_kernel(shape: GemmShape, model: GpuModel, cores: TensorCores) -> GemmKernel:
    """Return the product in the tiles with the smallest lower bound of the time; of equal ones, the first in TILES."""
    best: GemmKernel | None = None
    for rows, columns in TILES:
        for splits in SPLITS:
            kernel = GemmKernel(
                shape=shape, rows=rows, columns=columns, splits=splits, model=model, cores=cores,
            )  # fmt: skip
            if splits > 1 and (kernel.num_units > model.num_cus or splits > kernel.total_steps):
                continue
            if best is None or kernel.least_ps < best.least_ps:
                best = kernel
    assert best is not None
    return best


class _Buffers(NamedTuple):
    """First bytes of the operands, the result, and partial results."""

    a: int
    b: int
    out: int
    partial: int


class _Writer:
    """Writes the program of a part of a kernel, workgroup by workgroup."""

    def __init__(self, kernel: GemmKernel, part: GemmPart) -> None:
        self.kernel, self.part = kernel, part
        self.line = kernel.model.line_bytes
        self.builder = ProgramBuilder("gemm", 1, line_bytes=self.line)
        self.out_lines = -(-kernel.rows * kernel.columns * kernel.shape.out_bytes // self.line)
        self.partial_lines = kernel.rows * kernel.columns * _FLOAT32_BYTES // self.line
        self.buffers = self._buffers()
        self.unroll = STAGES * kernel.step_lines
        self.semaphores = self.builder.semaphores(kernel.num_units) if kernel.splits > 1 else 0

    def _buffers(self) -> _Buffers:
        kernel, batch = self.kernel, self.kernel.shape.batch
        tiles = batch * kernel.tile_rows * kernel.tile_columns
        steps = kernel.total_steps
        a = self.builder.buffer("A", batch * kernel.tile_rows * kernel.rows * steps * self.line)
        b = self.builder.buffer("B", batch * kernel.tile_columns * kernel.columns * steps * self.line)
        out = self.builder.buffer("result", tiles * self.out_lines * self.line)
        partial = 0
        if kernel.splits > 1:
            partial = self.builder.buffer("partial results", kernel.num_units * self.partial_lines * self.line)
        return _Buffers(a, b, out, partial)

    def program(self) -> GpuProgram:
        units = self.kernel.units[: self.part.units]
        for number in range(min(self.kernel.workgroups, len(units))):
            self._workgroup(units[number :: self.kernel.workgroups])
            self.builder.end_workgroup()
        self.builder.end_kernel(0, WAVEFRONTS, "gemm")
        shape = self.kernel.shape
        return self.builder.program(payload_bytes=shape.size_bytes, notes=(shape.words, self.kernel.words))

    def _workgroup(self, units: list[Unit]) -> None:
        """Add the units of one workgroup as one chain of steps, with loads STAGES - 1 steps ahead of the arithmetic."""
        chain = list(self._chain(units))
        waiting = [self._load(*step) for step in chain[: STAGES - 1]]
        for place, (unit, _) in enumerate(chain):
            ahead = place + STAGES - 1
            if ahead < len(chain):
                waiting.append(self._load(*chain[ahead]))
            self.builder.add(isa.WAITCNT, sum(waiting[place + 1 :]), (), "wait for operands")
            self.builder.add(isa.COMPUTE, self.kernel.wavefront_cycles, (), "multiply")
            is_last = place + 1 == len(chain) or chain[place + 1][0] is not unit
            if is_last:
                self._finish(unit)

    def _chain(self, units: list[Unit]) -> Iterator[tuple[Unit, int]]:
        """Yield each unit's steps: (unit, step of the whole inner dimension).

        In a part of a kernel, each wave takes other steps if the whole kernel's operands do not stay in the L2.
        """
        kernel = self.kernel
        for wave, unit in enumerate(units):
            first = unit.part * kernel.steps
            offset = 0 if kernel.reuses_operands else wave * self.part.steps
            for step in range(self.part.steps):
                yield unit, (first + offset + step) % kernel.total_steps

    def _load(self, unit: Unit, step: int) -> int:
        """Add the loads of a step; return the least number of lines that one wavefront loads."""
        kernel, shape = self.kernel, self.kernel.shape
        rows = min(kernel.rows, shape.m - unit.row * kernel.rows)
        columns = min(kernel.columns, shape.n - unit.column * kernel.columns)
        a_tile = (unit.batch * kernel.tile_rows + unit.row) * kernel.total_steps + step
        b_tile = (unit.batch * kernel.tile_columns + unit.column) * kernel.total_steps + step
        first_column = 0
        if self._is_shared(unit):
            half = columns // kernel.cores.multicast
            first_column = half if unit.row % 2 else 0
            columns = columns - half if unit.row % 2 else half
        a = Operand(isa.READ, 0, self.buffers.a + a_tile * kernel.rows * self.line, self.line)
        b_line = b_tile * kernel.columns + first_column
        b = Operand(isa.READ, 0, self.buffers.b + b_line * self.line, self.line)
        loaded = 0
        for operand, lines, label in ((a, rows, "load A"), (b, columns, "load B")):
            if lines:
                self.builder.add(isa.LOAD, lines, (operand,), label, self.unroll)
            loaded += lines // WAVEFRONTS
        return loaded

    def _is_shared(self, unit: Unit) -> bool:
        """Return whether the workgroup of the neighbouring row loads a part of B for this one."""
        if self.kernel.cores.multicast == 1:
            return False
        return (unit.row ^ 1) < self.kernel.tile_rows

    def _finish(self, unit: Unit) -> None:
        """Add the stores of a tile; parts of an inner loop are stored as float32 and added up by the first part."""
        kernel = self.kernel
        tile = (unit.batch * kernel.tile_rows + unit.row) * kernel.tile_columns + unit.column
        first = tile * kernel.splits
        if unit.part:
            partial = self._partial(isa.WRITE, first + unit.part)
            self.builder.add(isa.STORE, self.partial_lines, (partial,), "store partial result", self.unroll)
            self.builder.add(isa.WAITCNT, 0, (), "store partial result")
            self.builder.add(isa.BARRIER, 0, (), "store partial result")
            self.builder.add(isa.RELEASE, 1, (self._semaphore(isa.WRITE, first),), "partial result ready")
            return
        if kernel.splits > 1 and self.part.units >= kernel.num_units:
            self._add_partials(first)
        out = self.buffers.out + tile * self.out_lines * self.line
        if kernel.shape.accumulates:
            # Each line is stored as soon as its old value has come; the next tile's loads do not wait for that.
            operands = (Operand(isa.READ, 0, out, self.line), Operand(isa.WRITE, 0, out, self.line))
            self.builder.add(isa.COPY, self.out_lines, operands, "add to result", self.unroll)
            return
        self.builder.add(isa.STORE, self.out_lines, (Operand(isa.WRITE, 0, out, self.line),), "store", self.unroll)

    def _add_partials(self, first: int) -> None:
        amount = self.kernel.splits - 1
        self.builder.add(isa.ACQUIRE, amount, (self._semaphore(isa.READ, first),), "wait for partial results")
        self.builder.add(isa.BARRIER, 0, (), "wait for partial results")
        for part in range(1, self.kernel.splits):
            partial = self._partial(isa.READ, first + part)
            self.builder.add(isa.LOAD, self.partial_lines, (partial,), "load partial result", self.unroll)
        self.builder.add(isa.WAITCNT, 0, (), "load partial result")

    def _partial(self, role: int, number: int) -> Operand:
        address = self.buffers.partial + number * self.partial_lines * self.line
        return Operand(role, 0, address, self.line)

    def _semaphore(self, role: int, number: int) -> Operand:
        address = self.buffers.partial + number * self.partial_lines * self.line
        return Operand(role, 0, address, semaphore=self.semaphores + number)
