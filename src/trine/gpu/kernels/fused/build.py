"""Builds fused kernels, which compute and communicate at once, and their unfused form of two sequential kernels.

After Eidola's workload (arXiv 2606.12638) and the fused operators of Punniyamurthy, Hamidouche and Beckmann,
"Optimizing Distributed ML Communication with Fused Computation-Collective Operations" (SC 2024).

The communicating half writes flags after the tiles, waits for the flags of all peers, and sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from trine.common.arrays import Int32, Int64, pointers, spans
from trine.gpu.builder import Column, OperandBlock, ProgramBuilder
from trine.gpu.join import PlacedProgram, join_programs
from trine.gpu.kernels.build import build_kernel
from trine.gpu.kernels.fused.options import ALL_TO_ALL, EMBEDDING, FUSED, GEMM, GEMV, INDEX_BYTES, TWOSHOT, FusedOptions
from trine.gpu.kernels.fused.tiles import (
    MAX_OPERANDS,
    TileGrid,
    Tiles,
    make_grid,
    make_tiles,
    refuse_large,
    strip_shapes,
    too_large,
)
from trine.gpu.kernels.options import JOINT
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    LOAD,
    READ,
    REDUCE,
    RELEASE,
    STORE,
    WAITCNT,
    WRITE,
    GpuProgram,
    kernels_of_rank,
)
from trine.gpu.system import KernelTasks, kernel_tasks

# The compute half of fused kernels: the lines that workgroups load for their tiles, and their compute time.

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
            blocks = shape.blocks
            address = block.address[blocks][:, None] + shape.offsets(block.pitch, line)
            chunk = np.broadcast_to(block.chunk, len(block.address))[blocks]
            operands = OperandBlock(role, 0, address, shape.step(block.pitch, line), -1, chunk, block.stride)
            self.builder.add_block(kind, block.workgroup[blocks], order[blocks], shape.amount, (operands,), label)

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
    tile, step, depth = _steps(plan, options.cols)
    offset, order = step * options.tile[-1] * options.dtype_bytes, plan.order(tiles.turn[tile], step, 0)
    wide = -(-depth // options.line_elements)
    group = tiles.workgroup[tile]
    plan.load(LOAD, order, LineBlock(group, vector + offset, np.ones_like(wide), wide, pitch), READ, "load vector")
    _load_a(plan, tile, order + 1, matrix + first[tile] * pitch + offset, rows[tile], wide, pitch)
    _multiply(plan, tile, order + 2, rows[tile] * depth)
    _put(plan, target)


def _gemm(plan: FusedPlan, target: TileTarget) -> None:
    """Load lines of the rows of A and of the columns of B, a slice of the inner dimension at a time, and multiply."""
    options, tiles = plan.options, plan.tiles
    pitches = [options.lines(n) * options.line_bytes for n in (options.inner, options.cols)]
    a = plan.builder.buffer("a", options.rows * pitches[0])
    b = plan.builder.buffer("b", options.inner * pitches[1])
    tile, step, depth = _steps(plan, options.inner)
    offset, order = step * options.tile[-1] * options.dtype_bytes, plan.order(tiles.turn[tile], step, 0)
    wide = -(-depth // options.line_elements)
    _load_a(plan, tile, order, a + tiles.down[tile] * pitches[0] + offset, tiles.tall[tile], wide, pitches[0])
    below = b + step * options.tile[-1] * pitches[1] + tiles.across[tile] * options.line_bytes
    right = LineBlock(tiles.workgroup[tile], below, depth, tiles.wide[tile], pitches[1])
    plan.load(LOAD, order + 1, right, READ, "load b")
    columns = np.minimum(tiles.wide * options.line_elements, options.cols - tiles.across * options.line_elements)
    _multiply(plan, tile, order + 2, tiles.tall[tile] * columns[tile] * depth)
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
    tile = np.repeat(np.arange(len(tiles.chunk)), tiles.tall)
    row = spans(0, tiles.tall)
    lookups = np.random.default_rng(options.seed).integers(0, options.table_rows, (len(tile), options.inner), np.int64)
    source = OperandBlock(READ, 0, table + lookups * pitch, line)
    address = target.base + (tiles.down[tile] + row) * pitch
    chunk = np.broadcast_to(target.chunk, len(tiles.chunk))[tile]
    distance = np.broadcast_to(target.distance, len(tiles.chunk))[tile]
    destination = OperandBlock(WRITE, distance, address, line, -1, chunk, target.stride)
    # These operations may share an order number: the program's sort is stable, and they are added row by row.
    plan.builder.add_block(
        REDUCE, tiles.workgroup[tile], order[tile] + 3, plan.grid.width, (source, destination), "add up and put"
    )


_COMPUTE: dict[str, Callable[[FusedPlan, TileTarget], None]] = {GEMV: _gemv, GEMM: _gemm, EMBEDDING: _embedding}


class _TileSteps(NamedTuple):
    """All steps of all tiles, int64[tiles * steps] each; ``depth``: elements of the inner dimension in the step."""

    tile: Int64
    step: Int64
    depth: Int64


def _steps(plan: FusedPlan, depth: int) -> _TileSteps:
    """Return the steps of each tile over the inner dimension of ``depth`` elements."""
    tile, step = (a.ravel().astype(np.int64) for a in np.mgrid[0 : len(plan.tiles.chunk), 0 : plan.steps])
    return _TileSteps(tile, step, np.minimum(plan.options.tile[-1], depth - step * plan.options.tile[-1]))


def _load_a(plan: FusedPlan, tile: Int64, order: Int64, address: Int64, rows: Int64, wide: Int64, pitch: int) -> None:
    """Load from the matrix with the result's rows: ``wide`` lines of ``rows`` rows from byte ``address`` on."""
    tiles, stride = plan.tiles, plan.stride(plan.options.chunk_rows * pitch)
    block = LineBlock(tiles.workgroup[tile], address, rows, wide, pitch, tiles.chunk[tile], stride)
    plan.load(LOAD, order, block, READ, "load a" if plan.options.kind.compute == GEMM else "load matrix")


def _multiply(plan: FusedPlan, tile: Int64, order: Int64, macs: Int64) -> None:
    """Wait for the lines of all wavefronts; then each computes its share, one after the other on the CU's units."""
    group, options = plan.tiles.workgroup[tile], plan.options
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
    tile_address = target.base + tiles.down * pitch + tiles.across * line
    for shape in strip_shapes(tiles.tall, tiles.wide, plan.grid.width):
        blocks = shape.blocks
        address = tile_address[blocks][:, None] + shape.offsets(pitch, line)
        chunk, distance = (np.broadcast_to(c, len(tile_address))[blocks] for c in (target.chunk, target.distance))
        operands = OperandBlock(WRITE, distance, address, shape.step(pitch, line), -1, chunk, target.stride)
        plan.builder.add_block(STORE, tiles.workgroup[blocks], order[blocks], shape.amount, (operands,), "put")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FusedProgram:
    """A program and its kernel order. after: int32[kernels], the kernel that must end before each, -1: none."""

    program: GpuProgram
    after: Int32
    options: FusedOptions


def known_fused() -> tuple[str, ...]:
    """Return the names of the fused kernels."""
    return tuple(FUSED)


def build_fused(name: str, num_ranks: int, **choices: Any) -> FusedProgram:
    """Build a fused kernel for all ranks, or (``fused=False``) two kernels per rank.

    Described in docs/background/fused-kernels.md. name: one of :func:`known_fused`. choices: fields of
    :class:`trine.gpu.kernels.fused.options.FusedOptions`; ``rows`` and ``cols`` are needed.

    Raises InputError: an unknown name, numbers out of range or inconsistent, options without effect, a program with
    more than 2^25 operands.
    """
    return build(FusedOptions(name=name, num_ranks=num_ranks, **choices))


def build(options: FusedOptions) -> FusedProgram:
    """Build the program for ``options``, see :func:`build_fused`."""
    grid = make_grid(options)
    refuse_large(options, grid)
    name = options.name if options.fused else options.kind.compute
    builder = FusedBuilder(name, options)
    plan = FusedPlan(options, grid, make_tiles(grid), builder, num_steps(options))
    if options.fused:
        exchange(plan)
        program = plan.builder.finished(plan.grid.workgroups)
        after = np.full(program.num_kernels, -1, np.int32)
    else:
        program = _two_kernels(plan)
        count = program.num_kernels // 2
        after = np.append(np.full(count, -1), np.arange(count)).astype(np.int32)
    # counted as in nccl-tests: the result of a rank, in whole lines
    payload = grid.chunks * grid.chunk_lines * options.line_bytes
    return FusedProgram(
        program=replace(program, payload_bytes=payload, notes=(_note(options, grid),)), after=after, options=options
    )


def fused_tasks(built: FusedProgram) -> KernelTasks:
    """Return one task per kernel for :func:`trine.gpu.run.run_gpus`, with the dependencies between kernels."""
    tasks, waits = kernel_tasks(built.program), built.after >= 0
    graph = replace(
        tasks.graph, num_required=waits.astype(np.int32), predecessor_ptr=pointers(waits),
        predecessor_idx=built.after[waits], task_names=built.program.kernel_names,
    )  # fmt: skip
    return tasks._replace(graph=graph)


def _two_kernels(plan: FusedPlan) -> GpuProgram:
    """Build a kernel that writes the result to local memory, then the collective on it."""
    options, grid = plan.options, plan.grid
    chunk_bytes = grid.chunk_lines * options.line_bytes
    result = plan.builder.buffer("result", grid.chunks * chunk_bytes)
    compute(plan, TileTarget(result, 0, plan.tiles.chunk, plan.stride(chunk_bytes)))
    return chain_programs(
        plan.builder.finished(plan.grid.workgroups),
        collective_kernel(options, grid),
        {"input": "result"},
        f"{options.name} unfused",
    )


def _note(options: FusedOptions, grid: TileGrid) -> str:
    tiles = grid.chunks * grid.chunk_tiles
    size = " x ".join(str(n) for n in options.tile)
    steps = {"oneshot": ", in one step", "twoshot": ", in two steps"}.get(options.algorithm, "")
    form = f"fused{steps}" if options.fused else f"a kernel that computes, then {options.kind.op}{steps}"
    return f"{form}; {tiles} tiles of {size}, {grid.workgroups} workgroups of {options.wavefronts} wavefronts"


def collective_kernel(options: FusedOptions, grid: TileGrid) -> GpuProgram:
    """Return the collective on the result, which moves the same lines as the fused kernel.

    Its flags are in uncached memory, like the fused kernel's.

    Raises InputError like :func:`trine.gpu.kernels.build.build_kernel`.
    """
    algorithm = f"{options.algorithm or 'put'}{'-put' if options.algorithm == TWOSHOT else ''}"
    program = build_kernel(
        options.kind.op, options.num_ranks, grid.chunks * grid.chunk_lines * options.line_bytes, algorithm=algorithm,
        workgroups=options.collective_workgroups, wavefronts=options.wavefronts, waits=options.waits,
        line_bytes=options.line_bytes,
    )  # fmt: skip
    program = _flags_uncached(program)
    return program if options.only_rank is None else kernels_of_rank(program, options.only_rank)


def _flags_uncached(program: GpuProgram) -> GpuProgram:
    """Return the program with all buffers uncached that hold released or acquired semaphores."""
    is_flag = np.isin(program.op_kind, (ACQUIRE, RELEASE)).repeat(np.diff(program.operand_ptr))
    # buffers are sorted by base address
    buffer_index = np.searchsorted([b.base for b in program.buffers], program.operand_address[is_flag], "right") - 1
    has_flags = set(buffer_index.tolist())
    return replace(program, buffers=tuple(replace(b, uncached=i in has_flags) for i, b in enumerate(program.buffers)))


def chain_programs(first: GpuProgram, second: GpuProgram, shared_names: dict[str, str], name: str) -> GpuProgram:
    """Return the kernels of ``first``, then of ``second``, in one memory.

    shared_names: buffers of ``second`` -> buffers of ``first``. Its other buffers and its semaphores come last.
    """
    first_bases = {buffer.name: buffer.base for buffer in first.buffers}
    builder = ProgramBuilder.like(first)
    bases = []
    for buffer in second.buffers:
        bases.append(
            first_bases[shared_names[buffer.name]]
            if buffer.name in shared_names
            else builder.buffer(buffer.name, buffer.size_bytes, uncached=buffer.uncached)
        )
    index = np.searchsorted([buffer.base for buffer in second.buffers], second.operand_address, "right") - 1
    address = (
        second.operand_address + np.array([base - b.base for base, b in zip(bases, second.buffers, strict=True)])[index]
    )
    ranks = tuple(range(first.num_ranks))
    parts = [
        PlacedProgram(program=first, ranks=ranks),
        PlacedProgram(
            program=replace(second, operand_address=address), ranks=ranks, semaphore_shift=first.semaphores.shape[1]
        ),
    ]
    return replace(join_programs(parts, first.num_ranks, name), buffers=tuple(builder.buffers))


#: Offsets after RECEIVE in the order: the sums; the signals after the sums.
_SUMS, _DONE = 1 << 20, 1 << 50
_PER_TILE = 1 << 25


class Flags(NamedTuple):
    """``per_crew`` flags per crew: one per peer, or one in total; they start at ``base``, ``spacing`` bytes apart."""

    first: int
    per_crew: int
    base: int
    spacing: int

    def operands(self, role: int, distance: Int64 | int, crew: Int64, peer: Int64) -> OperandBlock:
        """Return operands for a crew's flags at rank + ``distance``, for the peer at distance -``peer``."""
        number = self.first + crew * self.per_crew + ((peer - 1) if self.per_crew > 1 else np.zeros_like(peer))
        return OperandBlock(role, distance, self.base + number * self.spacing, semaphore=number)


def exchange(plan: FusedPlan) -> None:
    """Compute all tiles, put each at its destination, wait for the tiles of all peers, and sum them if needed."""
    twoshot = plan.options.algorithm == TWOSHOT
    ready, done = _flags(plan, 2 if twoshot else 1)
    adds_up = plan.options.kind.op != ALL_TO_ALL
    slots, output = _buffers(plan, adds_up)
    compute(plan, _target(plan, slots, output, adds_up))
    _signal_tiles(plan, ready)
    crew = np.arange(plan.grid.crews, dtype=np.int64)
    group = plan.grid.workgroup(crew, np.zeros_like(crew))
    if adds_up:
        # All wavefronts of this workgroup must see its writes to local memory, too.
        plan.builder.add_block(WAITCNT, group, np.full_like(group, RECEIVE - 1), 0, (), "wait")
    _wait(plan, ready, group, RECEIVE, "wait")
    if not adds_up:
        return
    plan.builder.add_block(BARRIER, group, np.full_like(group, RECEIVE + _SUMS - 1), 0, (), "wait")
    _add_up(plan, slots, output, twoshot)
    if twoshot:
        order = RECEIVE + _DONE
        plan.finish(group, np.full_like(group, order), "signal sums")
        peers = _rotated(plan, crew)
        flag = done.operands(WRITE, peers, crew[:, None], peers)
        plan.builder.add_block(RELEASE, group, np.full_like(group, order + 2), 1, (flag,), "signal sums")
        _wait(plan, done, group, order + 3, "wait for sums")


def _buffers(plan: FusedPlan, adds_up: bool) -> tuple[TileTarget, TileTarget]:
    """Allocate slots for partial results, if they are summed, and the output: both in local memory."""
    options, grid, builder = plan.options, plan.grid, plan.builder
    slot, chunk_bytes = grid.tile_lines * options.line_bytes, grid.chunk_lines * options.line_bytes
    partials = builder.buffer("partials", options.num_ranks * grid.chunk_tiles * slot) if adds_up else 0
    # A reduce-scatter's output is one chunk; a two-step all-reduce and an all-to-all have one chunk per rank.
    num_chunks = grid.chunks if options.algorithm or not adds_up else 1
    output = builder.buffer("output", num_chunks * chunk_bytes)
    return TileTarget(partials, 0, slot_bytes=slot), TileTarget(output, 0, 0, chunk_bytes if num_chunks > 1 else 0)


def _target(plan: FusedPlan, slots: TileTarget, output: TileTarget, adds_up: bool) -> TileTarget:
    """Return the destination of the tiles: slots, numbered by distance, or the outputs of their ranks."""
    if not adds_up:
        return output._replace(distance=plan.tiles.chunk)
    if plan.grid.chunks > 1:
        return slots._replace(distance=plan.tiles.chunk)
    return slots._replace(distance=_everyone(plan, plan.tiles.crew))


def _flags(plan: FusedPlan, phases: int) -> tuple[Flags, Flags]:
    options, builder = plan.options, plan.builder
    per_crew = 1 if options.waits == JOINT else options.num_ranks - 1
    count = plan.grid.crews * per_crew
    base = builder.buffer("flags", phases * count * options.flag_spacing, uncached=True)
    ready = Flags(builder.semaphores(phases * count), per_crew, base, options.flag_spacing)
    return ready, ready._replace(first=ready.first + count)


def _rotated(plan: FusedPlan, crew: Int64) -> Int64:
    """Return distances of all peers, int64[n, peers]; crews start with different peers to spread their traffic."""
    peers = plan.options.num_ranks - 1
    return 1 + (np.arange(peers, dtype=np.int64) + crew[:, None]) % peers


def _everyone(plan: FusedPlan, crew: Int64) -> Int64:
    """Return distances as _rotated does, followed by 0 for the rank itself."""
    return np.append(_rotated(plan, crew), np.zeros((len(crew), 1), np.int64), axis=1)


def _signal_tiles(plan: FusedPlan, ready: Flags) -> None:
    """Signal a rank after a crew's last tile for it: one flag (to all peers if all need all tiles)."""
    is_last = plan.tiles.number + plan.grid.crews >= plan.grid.chunk_tiles
    tiles = plan.tiles.where(is_last & ((plan.tiles.chunk > 0) | (plan.grid.chunks == 1)))
    order = plan.order(tiles.turn, plan.steps + 1, 0)
    plan.finish(tiles.workgroup, order, "signal")
    peers = tiles.chunk[:, None] if plan.grid.chunks > 1 else _rotated(plan, tiles.crew)
    flag = ready.operands(WRITE, peers, tiles.crew[:, None], peers)
    plan.builder.add_block(RELEASE, tiles.workgroup, order + 2, 1, (flag,), "signal")


def _wait(plan: FusedPlan, flags: Flags, group: Int64, order: int, label: str) -> None:
    """Add one acquire per peer, in sequence, or one for all peers."""
    crew = np.arange(plan.grid.crews, dtype=np.int64)
    if flags.per_crew == 1:
        amount = plan.options.num_ranks - 1
        flag = flags.operands(READ, 0, crew, np.ones_like(crew))
        plan.builder.add_block(ACQUIRE, group, np.full_like(group, order), amount, (flag,), label)
        return
    peers = _rotated(plan, crew)
    num_peers = peers.shape[1]
    flag = flags.operands(READ, 0, np.repeat(crew, num_peers), peers.ravel())
    orders = order + np.tile(np.arange(num_peers, dtype=np.int64), len(crew))
    plan.builder.add_block(ACQUIRE, np.repeat(group, num_peers), orders, 1, (flag,), label)


def _add_up(plan: FusedPlan, slots: TileTarget, output: TileTarget, to_all: bool) -> None:
    """Sum the partial results of all ranks into the local output, or into all outputs if ``to_all``."""
    grid, line, pitch = plan.grid, plan.options.line_bytes, plan.result_pitch
    tiles = plan.tiles.where(plan.tiles.chunk == 0)
    order = RECEIVE + _SUMS + tiles.number // grid.crews * _PER_TILE
    for shape in strip_shapes(tiles.tall, tiles.wide, grid.width):
        tile = np.repeat(shape.blocks, shape.strips)
        strip = np.tile(np.arange(shape.strips), len(shape.blocks))
        packed = shape.wide * line
        sources = np.roll(_everyone(plan, tiles.crew[tile]), 1, axis=1)
        slot = slots.base + (sources * grid.chunk_tiles + tiles.number[tile][:, None]) * slots.slot_bytes
        read = OperandBlock(READ, 0, slot + shape.offsets(packed, line)[strip][:, None], shape.step(packed, line))
        address = output.base + tiles.down[tile] * pitch + tiles.across[tile] * line + shape.offsets(pitch, line)[strip]
        targets = _everyone(plan, tiles.crew[tile]) if to_all else 0
        write = OperandBlock(WRITE, targets, address, shape.step(pitch, line), stride=output.stride)
        plan.builder.add_block(
            REDUCE, tiles.workgroup[tile], order[tile] + strip, shape.amount, (read, write), "add up"
        )
