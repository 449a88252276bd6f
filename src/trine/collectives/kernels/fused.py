"""Builds kernels that compute and communicate at once, and their counterparts: two kernels, one after the other.

After Eidola's workload (arXiv 2606.12638) and the fused operators of Punniyamurthy, Hamidouche and Beckmann,
"Optimizing Distributed ML Communication with Fused Computation-Collective Operations" (SC 2024).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trine.arrays import Int32
from trine.collectives.kernels.fused_compute import compute, num_steps
from trine.collectives.kernels.fused_exchange import exchange
from trine.collectives.kernels.fused_join import behind, collective_kernel
from trine.collectives.kernels.fused_options import FUSED, FusedOptions, fused_options
from trine.collectives.kernels.fused_plan import Plan, Target
from trine.collectives.kernels.fused_tiles import Grid, make_grid, make_tiles, refuse_large
from trine.collectives.kernels.fused_writer import Writer
from trine.gpu.program import GpuProgram
from trine.graph.taskgraph import TaskGraph


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FusedProgram:
    """A program and the order of its kernels. after: int32[kernels], the kernel that must end before each, -1: none."""

    program: GpuProgram
    after: Int32
    options: FusedOptions


def known_fused() -> tuple[str, ...]:
    """Names of the fused kernels."""
    return tuple(FUSED)


def build_fused(
    name: str,
    num_ranks: int,
    *,
    rows: int,
    cols: int,
    inner: int = 1,
    dtype_bytes: int = 4,
    tile: tuple[int, ...] | None = None,
    workgroups: int | None = None,
    wavefronts: int = 4,
    line_bytes: int = 64,
    fused: bool = True,
    algorithm: str | None = None,
    waits: str | None = None,
    flag_spacing: int | None = None,
    macs_per_cycle: int | None = None,
    table_rows: int | None = None,
    seed: int | None = None,
    collective_workgroups: int | None = None,
    only_rank: int | None = None,
) -> FusedProgram:
    """Build a fused kernel of all ranks, or (``fused=False``) its two kernels a rank.

    What they do: docs/background/fused-kernels.md.

    Parameters
    ----------
    name: one of :func:`known_fused`.
    rows, cols, inner: of each rank's own matrices. GEMV: rows x cols times a vector. GEMM: rows x inner times inner x
        cols. Embedding: ``rows`` sums of ``inner`` rows of a table, ``cols`` wide. But for an all-reduce in one step
        ``rows`` must be a multiple of the ranks.
    dtype_bytes: of all elements: 1, 2, 4 or 8.
    tile: of the result, and of what is loaded at once; GEMV (rows, cols), GEMM (rows, cols, inner), embedding (rows,).
        What lies side by side must be whole lines.
    workgroups: None: one for each tile; fewer take several each.
    wavefronts: of a workgroup. line_bytes: of the GPU model.
    algorithm: of all-reduces: ``oneshot`` (GEMV unless told otherwise) or ``twoshot`` (GEMM).
    waits: ``single``: a flag for each peer, waited for one after the other (fused, unless told otherwise); ``joint``:
        the peers' flags add up on one.
    flag_spacing: bytes between flags (8): with less than a line several share one.
    macs_per_cycle: multiply-adds of a CU a cycle; None: AMD CDNA 2's by dtype_bytes. See :func:`cu_macs_per_cycle`.
    table_rows, seed: of embeddings: size of the table (2^20), and of the draw of what is looked up (0).
    collective_workgroups: of the collective of the unfused form (32).
    only_rank: kernels of this rank alone, in a program of ``num_ranks`` ranks.

    Raises
    ------
    InputError: an unknown name, numbers out of range or that do not go together, options that cannot matter, a program
        with more than 2^25 operands.
    """
    options = fused_options(
        name,
        num_ranks,
        rows=rows,
        cols=cols,
        inner=inner,
        dtype_bytes=dtype_bytes,
        tile=tile,
        workgroups=workgroups,
        wavefronts=wavefronts,
        line_bytes=line_bytes,
        fused=fused,
        algorithm=algorithm,
        waits=waits,
        flag_spacing=flag_spacing,
        macs_per_cycle=macs_per_cycle,
        table_rows=table_rows,
        seed=seed,
        collective_workgroups=collective_workgroups,
        only_rank=only_rank,
    )
    return build(options)


def build(options: FusedOptions) -> FusedProgram:
    """As :func:`build_fused`."""
    grid = make_grid(options)
    refuse_large(options, grid)
    plan = Plan(options, grid, make_tiles(grid), Writer(options, grid.workgroups), num_steps(options))
    if options.fused:
        exchange(plan)
        program = plan.writer.program(options.name)
        after = np.full(program.num_kernels, -1, np.int32)
    else:
        program = _two_kernels(plan)
        count = program.num_kernels // 2
        after = np.append(np.full(count, -1), np.arange(count)).astype(np.int32)
    payload = _payload_bytes(options, grid)
    return FusedProgram(
        program=replace(program, payload_bytes=payload, notes=(_note(options, grid),)), after=after, options=options
    )


def fused_tasks(built: FusedProgram) -> tuple[TaskGraph, Int32]:
    """(tasks, the kernel that each carries), for :func:`trine.gpu.run.run_gpus`: a task for each kernel."""
    from trine.gpu.run import kernel_tasks

    waits = built.after >= 0
    graph = replace(
        kernel_tasks(built.program),
        need=waits.astype(np.int32),
        predecessor_ptr=np.append(0, np.cumsum(waits)).astype(np.int64),
        predecessor_idx=built.after[waits],
        task_names=built.program.kernel_names,
    )
    return graph, np.arange(len(waits), dtype=np.int32)


def cu_macs_per_cycle(flop_per_s: float, num_cus: int, cycle_ps: int) -> int:
    """Multiply-adds (two FLOP) a cycle of one CU of a GPU with that peak; at least 1."""
    return max(1, round(flop_per_s / 2 / num_cus * cycle_ps / 1e12))


def _two_kernels(plan: Plan) -> GpuProgram:
    """The result into the own memory; then the collective of it."""
    options, grid = plan.options, plan.grid
    chunk_bytes = grid.chunk_lines * options.line_bytes
    result = plan.writer.buffer("result", grid.chunks * chunk_bytes)
    compute(plan, Target(result, 0, plan.tiles.chunk, plan.stride(chunk_bytes)))
    first = plan.writer.program(options.kind.compute)
    return behind(first, collective_kernel(options, grid), {"input": "result"}, f"{options.name} unfused")


def _payload_bytes(options: FusedOptions, grid: Grid) -> int:
    """What the collective moves as nccl-tests counts it: the result of a rank, in whole lines."""
    return grid.chunks * grid.chunk_lines * options.line_bytes


def _note(options: FusedOptions, grid: Grid) -> str:
    tiles = grid.chunks * grid.chunk_tiles
    size = " x ".join(str(n) for n in options.tile)
    steps = {"oneshot": ", in one step", "twoshot": ", in two steps"}.get(options.algorithm, "")
    form = f"fused{steps}" if options.fused else f"a kernel that computes, then {options.kind.op}{steps}"
    return f"{form}; {tiles} tiles of {size}, {grid.workgroups} workgroups of {options.wavefronts} wavefronts"
