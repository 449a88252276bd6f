"""The computing half of fused kernels: which lines workgroups load for their tiles, and how long they compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trine.arrays import Int64
from trine.collectives.kernels.fused_blocks import shapes
from trine.collectives.kernels.fused_options import EMBEDDING, GEMM, GEMV, INDEX_BYTES, FusedOptions
from trine.collectives.kernels.fused_plan import Block, Plan, Target
from trine.collectives.kernels.fused_writer import Part
from trine.gpu.program import BARRIER, COMPUTE, LOAD, READ, REDUCE, STORE, WAITCNT, WRITE


def num_steps(options: FusedOptions) -> int:
    """How many pieces of the matrices a workgroup loads, one after the other, for one tile."""
    if options.kind.compute == EMBEDDING:
        return 1
    depth = options.cols if options.kind.compute == GEMV else options.inner
    return -(-depth // options.tile[-1])


def compute(plan: Plan, target: Target) -> None:
    """Compute all tiles and put each to its ``target``: it is there after the next ``waitcnt 0``."""
    _COMPUTE[plan.options.kind.compute](plan, target)


def _gemv(plan: Plan, target: Target) -> None:
    """Lines of x and of the rows of A, a few columns at a time."""
    options, tiles = plan.options, plan.tiles
    rows = np.minimum(tiles.tall * options.line_elements, options.chunk_rows - tiles.down * options.line_elements)
    first = tiles.down * options.line_elements
    pitch = options.lines(options.cols) * options.line_bytes
    matrix = plan.writer.buffer("matrix", options.rows * pitch)
    vector = plan.writer.buffer("vector", pitch)
    which, step, depth = _steps(plan, options.cols)
    at, order = step * options.tile[-1] * options.dtype_bytes, plan.order(tiles.turn[which], step, 0)
    wide = -(-depth // options.line_elements)
    group = tiles.workgroup[which]
    plan.load(LOAD, order, Block(group, vector + at, np.ones_like(wide), wide, pitch), READ, "load vector")
    _left(plan, matrix, first[which], rows[which], which, at, wide, pitch, order + 1)
    _multiply(plan, which, order + 2, rows[which] * depth)
    _put(plan, target)


def _gemm(plan: Plan, target: Target) -> None:
    """Lines of the rows of A and of the columns of B, a few deep at a time."""
    options, tiles = plan.options, plan.tiles
    pitches = [options.lines(n) * options.line_bytes for n in (options.inner, options.cols)]
    a = plan.writer.buffer("a", options.rows * pitches[0])
    b = plan.writer.buffer("b", options.inner * pitches[1])
    which, step, depth = _steps(plan, options.inner)
    at, order = step * options.tile[-1] * options.dtype_bytes, plan.order(tiles.turn[which], step, 0)
    wide = -(-depth // options.line_elements)
    _left(plan, a, tiles.down[which], tiles.tall[which], which, at, wide, pitches[0], order)
    below = b + step * options.tile[-1] * pitches[1] + tiles.across[which] * options.line_bytes
    right = Block(tiles.workgroup[which], below, depth, tiles.wide[which], pitches[1])
    plan.load(LOAD, order + 1, right, READ, "load b")
    columns = np.minimum(tiles.wide * options.line_elements, options.cols - tiles.across * options.line_elements)
    _multiply(plan, which, order + 2, tiles.tall[which] * columns[which] * depth)
    _put(plan, target)


def _embedding(plan: Plan, target: Target) -> None:
    """Indices, then rows of the table, added up as they arrive and put line by line.

    Which rows is drawn from the seed, for each chunk by its distance, so that it is the same on all ranks.
    """
    options, tiles = plan.options, plan.tiles
    pitch, line = plan.result_pitch, options.line_bytes
    table = plan.writer.buffer("table", options.table_rows * pitch)
    room = -(-plan.grid.tall * options.inner * INDEX_BYTES // line) * line
    chunk_bytes = room * plan.grid.chunk_tiles
    indices = plan.writer.buffer("indices", options.num_ranks * chunk_bytes)
    order = plan.order(tiles.turn, 0, 0)
    wide = -(-tiles.tall * options.inner * INDEX_BYTES // line)
    block = Block(
        tiles.workgroup, indices + tiles.number * room, np.ones_like(wide), wide, room, tiles.chunk, chunk_bytes
    )
    plan.load(LOAD, order, block, READ, "load indices")
    plan.finish(tiles.workgroup, order + 1, "load indices")
    which = np.repeat(np.arange(len(tiles.chunk)), tiles.tall)
    row = np.arange(len(which)) - np.repeat(np.cumsum(tiles.tall) - tiles.tall, tiles.tall)
    drawn = np.random.default_rng(options.seed).integers(0, options.table_rows, (len(which), options.inner), np.int64)
    source = Part(READ, 0, table + drawn * pitch, step=line)
    there = target.base + (tiles.down[which] + row) * pitch
    chunk = np.broadcast_to(target.chunk, len(tiles.chunk))[which]
    distance = np.broadcast_to(target.distance, len(tiles.chunk))[which]
    written = Part(WRITE, distance, there, chunk, target.stride, line)
    # Their order may be shared: the sort of the program is stable, and they are written row by row.
    plan.writer.add(
        REDUCE, tiles.workgroup[which], order[which] + 3, plan.grid.width, (source, written), "add up and put"
    )


_COMPUTE: dict[str, Callable[[Plan, Target], None]] = {GEMV: _gemv, GEMM: _gemm, EMBEDDING: _embedding}


def _steps(plan: Plan, depth: int) -> tuple[Int64, Int64, Int64]:
    """For each tile and each of its steps: which tile, which step, how many elements deep. int64[tiles * steps]."""
    which, step = (a.ravel().astype(np.int64) for a in np.mgrid[0 : len(plan.tiles.chunk), 0 : plan.steps])
    return which, step, np.minimum(plan.options.tile[-1], depth - step * plan.options.tile[-1])


def _left(
    plan: Plan, base: int, first: Int64, rows: Int64, which: Int64, at: Int64, wide: Int64, pitch: int, order: Int64
) -> None:
    """Load a piece of the matrix that has the result's rows: ``wide`` lines from byte ``at`` of ``rows`` rows."""
    tiles, stride = plan.tiles, plan.stride(plan.options.chunk_rows * pitch)
    block = Block(tiles.workgroup[which], base + first * pitch + at, rows, wide, pitch, tiles.chunk[which], stride)
    plan.load(LOAD, order, block, READ, "load a" if plan.options.kind.compute == GEMM else "load matrix")


def _multiply(plan: Plan, which: Int64, order: Int64, macs: Int64) -> None:
    """When all wavefronts have their lines, each computes its share, one after the other on the CU's units."""
    group, options = plan.tiles.workgroup[which], plan.options
    plan.writer.add(WAITCNT, group, order, 0, (), "multiply")
    plan.writer.add(BARRIER, group, order + 1, 0, (), "multiply")
    cycles = -(-macs // (options.wavefronts * options.macs_per_cycle))
    plan.writer.add(COMPUTE, group, order + 2, cycles, (), "multiply")


def _put(plan: Plan, target: Target) -> None:
    """Store each tile when all of it has been computed: the wavefronts, which a CU serves in turn, end together."""
    tiles, line, pitch = plan.tiles, plan.options.line_bytes, plan.result_pitch
    order = plan.order(tiles.turn, plan.steps, 1)
    plan.writer.add(BARRIER, tiles.workgroup, order - 1, 0, (), "put")
    if target.slot_bytes:
        number = tiles.number[:, None] if np.ndim(target.distance) == 2 else tiles.number
        slot = target.base + (target.distance * plan.grid.chunk_tiles + number) * target.slot_bytes
        packed = Part(WRITE, target.distance, slot, step=line)
        plan.writer.add(STORE, tiles.workgroup, order, tiles.tall * tiles.wide, (packed,), "put")
        return
    first = target.base + tiles.down * pitch + tiles.across * line
    for shape in shapes(tiles.tall, tiles.wide, plan.grid.width):
        chosen = shape.chosen
        address = first[chosen][:, None] + shape.offsets(pitch, line)
        chunk, distance = (np.broadcast_to(c, len(first))[chosen] for c in (target.chunk, target.distance))
        part = Part(WRITE, distance, address, chunk, target.stride, shape.step(pitch, line))
        plan.writer.add(STORE, tiles.workgroup[chosen], order[chosen], shape.amount, (part,), "put")
