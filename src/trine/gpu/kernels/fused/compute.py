"""The compute half of fused kernels: the lines that workgroups load for their tiles, and their compute time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64, spans
from trine.gpu.builder import Column, OperandBlock, ProgramBuilder
from trine.gpu.kernels.fused.options import EMBEDDING, GEMM, GEMV, INDEX_BYTES, FusedOptions
from trine.gpu.kernels.fused.tiles import MAX_OPERANDS, TileGrid, Tiles, strip_shapes, too_large
from trine.gpu.program import BARRIER, COMPUTE, LOAD, READ, REDUCE, STORE, WAITCNT, WRITE, GpuProgram

#: Maximum number of operations in one step of a tile.
_PER_STEP = 8
#: Order number after all operations of a workgroup that precede its wait for peers.
RECEIVE = 1 << 58


class TileTarget(NamedTuple):
    """Destination of tiles: memory of rank + ``distance``, at ``base`` + ((rank + chunk) modulo ranks) * stride.

    slot_bytes: 0: tiles lie in a matrix as wide as the result. Otherwise each tile is packed into a slot of this size;
    a chunk's tiles form a group of slots, and group d holds the tiles sent or received over distance d.
    """

    base: int
    distance: Column
    chunk: Column = 0
    stride: int = 0
    slot_bytes: int = 0


class FusedBuilder(ProgramBuilder):
    """A builder for many workgroups that do the same on different tiles; it adds one operation to all at a time."""

    def __init__(self, name: str, options: FusedOptions) -> None:
        super().__init__(name, options.num_ranks, line_bytes=options.line_bytes)
        self.options = options
        self.ranks = range(options.num_ranks) if options.only_rank is None else [options.only_rank]

    def reserve(self, num_operands: int) -> None:
        """Raise InputError for a program with too many operands."""
        if (self.num_operands + num_operands) * len(self.ranks) > MAX_OPERANDS:
            raise too_large(self.options)

    def finished(self, workgroups: int) -> GpuProgram:
        """Return the program of all ranks, or of ``options.only_rank``."""
        self.end_workgroups(workgroups)
        self.end_kernel(0, self.options.wavefronts, self.name)
        return self.program(ranks=self.ranks)


@dataclass(frozen=True, slots=True, eq=False)
class FusedPlan:
    """Options, tiles and builder of a fused kernel. steps: loads and computations of a workgroup per tile."""

    options: FusedOptions
    grid: TileGrid
    tiles: Tiles
    builder: FusedBuilder
    steps: int

    def order(self, turn: Int64, step: Column, part: int) -> Int64:
        """Return the order number of an operation in its workgroup; steps from ``steps`` on put the tile and signal."""
        return (turn * (self.steps + 2) + step) * _PER_STEP + part

    @property
    def result_pitch(self) -> int:
        """Bytes from one row of lines of the result to the next."""
        return self.grid.width * self.options.line_bytes

    def stride(self, size_bytes: int) -> int:
        """Return the bytes from a rank's chunk to the next rank's; without chunks, all ranks use the same addresses."""
        return size_bytes if self.grid.chunks > 1 else 0

    def load(self, kind: int, order: Int64, block: LineBlock, role: int, label: str) -> None:
        """Add a data operation of each workgroup on a block of local memory."""
        line = self.options.line_bytes
        for shape in strip_shapes(block.tall, block.wide, block.pitch // line):
            chosen = shape.chosen
            address = block.address[chosen][:, None] + shape.offsets(block.pitch, line)
            chunk = np.broadcast_to(block.chunk, len(block.address))[chosen]
            operands = OperandBlock(role, 0, address, shape.step(block.pitch, line), -1, chunk, block.stride)
            self.builder.add_block(kind, block.workgroup[chosen], order[chosen], shape.amount, (operands,), label)

    def finish(self, workgroup: Int64, order: Int64, label: str) -> None:
        """Wait until all reads and writes of all wavefronts are complete."""
        self.builder.add_block(WAITCNT, workgroup, order, 0, (), label)
        self.builder.add_block(BARRIER, workgroup, order + 1, 0, (), label)


class LineBlock(NamedTuple):
    """n blocks of lines in local memory, in matrices with rows ``pitch`` bytes apart: int64[n]."""

    workgroup: Int64
    address: Int64
    tall: Int64
    wide: Int64
    pitch: int
    chunk: Column = 0
    stride: int = 0


def num_steps(options: FusedOptions) -> int:
    """Return the number of matrix pieces that a workgroup loads, one after the other, for one tile."""
    if options.kind.compute == EMBEDDING:
        return 1
    depth = options.cols if options.kind.compute == GEMV else options.inner
    return -(-depth // options.tile[-1])


def compute(plan: FusedPlan, target: TileTarget) -> None:
    """Compute all tiles and put each to its ``target``; the puts complete by the next ``waitcnt 0``."""
    _COMPUTE[plan.options.kind.compute](plan, target)


def _gemv(plan: FusedPlan, target: TileTarget) -> None:
    """Load lines of x and of the rows of A, a few columns at a time, and multiply."""
    options, tiles = plan.options, plan.tiles
    rows = np.minimum(tiles.tall * options.line_elements, options.chunk_rows - tiles.down * options.line_elements)
    first = tiles.down * options.line_elements
    pitch = options.lines(options.cols) * options.line_bytes
    matrix = plan.builder.buffer("matrix", options.rows * pitch)
    vector = plan.builder.buffer("vector", pitch)
    which, step, depth = _steps(plan, options.cols)
    at, order = step * options.tile[-1] * options.dtype_bytes, plan.order(tiles.turn[which], step, 0)
    wide = -(-depth // options.line_elements)
    group = tiles.workgroup[which]
    plan.load(LOAD, order, LineBlock(group, vector + at, np.ones_like(wide), wide, pitch), READ, "load vector")
    _left(plan, which, order + 1, matrix + first[which] * pitch + at, rows[which], wide, pitch)
    _multiply(plan, which, order + 2, rows[which] * depth)
    _put(plan, target)


def _gemm(plan: FusedPlan, target: TileTarget) -> None:
    """Load lines of the rows of A and of the columns of B, a slice of the inner dimension at a time, and multiply."""
    options, tiles = plan.options, plan.tiles
    pitches = [options.lines(n) * options.line_bytes for n in (options.inner, options.cols)]
    a = plan.builder.buffer("a", options.rows * pitches[0])
    b = plan.builder.buffer("b", options.inner * pitches[1])
    which, step, depth = _steps(plan, options.inner)
    at, order = step * options.tile[-1] * options.dtype_bytes, plan.order(tiles.turn[which], step, 0)
    wide = -(-depth // options.line_elements)
    _left(plan, which, order, a + tiles.down[which] * pitches[0] + at, tiles.tall[which], wide, pitches[0])
    below = b + step * options.tile[-1] * pitches[1] + tiles.across[which] * options.line_bytes
    right = LineBlock(tiles.workgroup[which], below, depth, tiles.wide[which], pitches[1])
    plan.load(LOAD, order + 1, right, READ, "load b")
    columns = np.minimum(tiles.wide * options.line_elements, options.cols - tiles.across * options.line_elements)
    _multiply(plan, which, order + 2, tiles.tall[which] * columns[which] * depth)
    _put(plan, target)


def _embedding(plan: FusedPlan, target: TileTarget) -> None:
    """Load indices, then rows of the table, added up on arrival and put line by line.

    The seed determines the rows, for each chunk by its distance, so that they are the same on all ranks.
    """
    options, tiles = plan.options, plan.tiles
    pitch, line = plan.result_pitch, options.line_bytes
    table = plan.builder.buffer("table", options.table_rows * pitch)
    room = -(-plan.grid.tall * options.inner * INDEX_BYTES // line) * line
    chunk_bytes = room * plan.grid.chunk_tiles
    indices = plan.builder.buffer("indices", options.num_ranks * chunk_bytes)
    order = plan.order(tiles.turn, 0, 0)
    wide = -(-tiles.tall * options.inner * INDEX_BYTES // line)
    block = LineBlock(
        tiles.workgroup, indices + tiles.number * room, np.ones_like(wide), wide, room, tiles.chunk, chunk_bytes
    )
    plan.load(LOAD, order, block, READ, "load indices")
    plan.finish(tiles.workgroup, order + 1, "load indices")
    which = np.repeat(np.arange(len(tiles.chunk)), tiles.tall)
    row = spans(0, tiles.tall)
    drawn = np.random.default_rng(options.seed).integers(0, options.table_rows, (len(which), options.inner), np.int64)
    source = OperandBlock(READ, 0, table + drawn * pitch, line)
    there = target.base + (tiles.down[which] + row) * pitch
    chunk = np.broadcast_to(target.chunk, len(tiles.chunk))[which]
    distance = np.broadcast_to(target.distance, len(tiles.chunk))[which]
    written = OperandBlock(WRITE, distance, there, line, -1, chunk, target.stride)
    # These operations may share an order number: the program's sort is stable, and they are added row by row.
    plan.builder.add_block(
        REDUCE, tiles.workgroup[which], order[which] + 3, plan.grid.width, (source, written), "add up and put"
    )


_COMPUTE: dict[str, Callable[[FusedPlan, TileTarget], None]] = {GEMV: _gemv, GEMM: _gemm, EMBEDDING: _embedding}


def _steps(plan: FusedPlan, depth: int) -> tuple[Int64, Int64, Int64]:
    """Return tile, step and depth in elements for each step of each tile: int64[tiles * steps] each."""
    which, step = (a.ravel().astype(np.int64) for a in np.mgrid[0 : len(plan.tiles.chunk), 0 : plan.steps])
    return which, step, np.minimum(plan.options.tile[-1], depth - step * plan.options.tile[-1])


def _left(plan: FusedPlan, which: Int64, order: Int64, address: Int64, rows: Int64, wide: Int64, pitch: int) -> None:
    """Load from the matrix with the result's rows: ``wide`` lines of ``rows`` rows from byte ``address`` on."""
    tiles, stride = plan.tiles, plan.stride(plan.options.chunk_rows * pitch)
    block = LineBlock(tiles.workgroup[which], address, rows, wide, pitch, tiles.chunk[which], stride)
    plan.load(LOAD, order, block, READ, "load a" if plan.options.kind.compute == GEMM else "load matrix")


def _multiply(plan: FusedPlan, which: Int64, order: Int64, macs: Int64) -> None:
    """Wait for the lines of all wavefronts; then each computes its share, one after the other on the CU's units."""
    group, options = plan.tiles.workgroup[which], plan.options
    plan.builder.add_block(WAITCNT, group, order, 0, (), "multiply")
    plan.builder.add_block(BARRIER, group, order + 1, 0, (), "multiply")
    cycles = -(-macs // (options.wavefronts * options.macs_per_cycle))
    plan.builder.add_block(COMPUTE, group, order + 2, cycles, (), "multiply")


def _put(plan: FusedPlan, target: TileTarget) -> None:
    """Store each tile once it is complete: the wavefronts, which a CU serves in turn, end together."""
    tiles, line, pitch = plan.tiles, plan.options.line_bytes, plan.result_pitch
    order = plan.order(tiles.turn, plan.steps, 1)
    plan.builder.add_block(BARRIER, tiles.workgroup, order - 1, 0, (), "put")
    if target.slot_bytes:
        number = tiles.number[:, None] if np.ndim(target.distance) == 2 else tiles.number
        slot = target.base + (target.distance * plan.grid.chunk_tiles + number) * target.slot_bytes
        packed = OperandBlock(WRITE, target.distance, slot, line)
        plan.builder.add_block(STORE, tiles.workgroup, order, tiles.tall * tiles.wide, (packed,), "put")
        return
    first = target.base + tiles.down * pitch + tiles.across * line
    for shape in strip_shapes(tiles.tall, tiles.wide, plan.grid.width):
        chosen = shape.chosen
        address = first[chosen][:, None] + shape.offsets(pitch, line)
        chunk, distance = (np.broadcast_to(c, len(first))[chosen] for c in (target.chunk, target.distance))
        operands = OperandBlock(WRITE, distance, address, shape.step(pitch, line), -1, chunk, target.stride)
        plan.builder.add_block(STORE, tiles.workgroup[chosen], order[chosen], shape.amount, (operands,), "put")
