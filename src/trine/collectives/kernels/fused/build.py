"""Builds kernels that compute and communicate at once, and their counterparts: two kernels, one after the other.

After Eidola's workload (arXiv 2606.12638) and the fused operators of Punniyamurthy, Hamidouche and Beckmann,
"Optimizing Distributed ML Communication with Fused Computation-Collective Operations" (SC 2024).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trine.arrays import Int32, pointers
from trine.collectives.kernels.build import build_kernel
from trine.collectives.kernels.fused.compute import FusedBuilder, FusedPlan, TileTarget, compute, num_steps
from trine.collectives.kernels.fused.exchange import exchange
from trine.collectives.kernels.fused.options import FUSED, TWOSHOT, FusedOptions
from trine.collectives.kernels.fused.tiles import TileGrid, make_grid, make_tiles, refuse_large
from trine.gpu.builder import ProgramBuilder
from trine.gpu.join import PlacedProgram, join_programs
from trine.gpu.program import ACQUIRE, RELEASE, GpuProgram, kernels_of_rank
from trine.gpu.system import KernelTasks, kernel_tasks


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FusedProgram:
    """A program and the order of its kernels. after: int32[kernels], the kernel that must end before each, -1: none."""

    program: GpuProgram
    after: Int32
    options: FusedOptions


def known_fused() -> tuple[str, ...]:
    """Names of the fused kernels."""
    return tuple(FUSED)


def build_fused(name: str, num_ranks: int, **choices: Any) -> FusedProgram:
    """Build a fused kernel of all ranks, or (``fused=False``) its two kernels a rank.

    What they do: docs/background/fused-kernels.md. name: one of :func:`known_fused`. choices: fields of
    :class:`trine.collectives.kernels.fused.options.FusedOptions`; ``rows`` and ``cols`` are needed.

    Raises
    ------
    InputError: an unknown name, numbers out of range or that do not go together, options that make no difference, a
        program with more than 2^25 operands.
    """
    return build(FusedOptions(name=name, num_ranks=num_ranks, **choices))


def build(options: FusedOptions) -> FusedProgram:
    """As :func:`build_fused`."""
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
    payload = _payload_bytes(options, grid)
    return FusedProgram(
        program=replace(program, payload_bytes=payload, notes=(_note(options, grid),)), after=after, options=options
    )


def fused_tasks(built: FusedProgram) -> KernelTasks:
    """A task for each kernel, for :func:`trine.gpu.run.run_gpus`, in the order in which they wait for each other."""
    tasks, waits = kernel_tasks(built.program), built.after >= 0
    graph = replace(
        tasks.graph,
        num_required=waits.astype(np.int32),
        predecessor_ptr=pointers(waits),
        predecessor_idx=built.after[waits],
        task_names=built.program.kernel_names,
    )
    return tasks._replace(graph=graph)


def _two_kernels(plan: FusedPlan) -> GpuProgram:
    """The result into the own memory; then the collective of it."""
    options, grid = plan.options, plan.grid
    chunk_bytes = grid.chunk_lines * options.line_bytes
    result = plan.builder.buffer("result", grid.chunks * chunk_bytes)
    compute(plan, TileTarget(result, 0, plan.tiles.chunk, plan.stride(chunk_bytes)))
    return behind(
        plan.builder.finished(plan.grid.workgroups),
        collective_kernel(options, grid),
        {"input": "result"},
        f"{options.name} unfused",
    )


def _payload_bytes(options: FusedOptions, grid: TileGrid) -> int:
    """What the collective moves as nccl-tests counts it: the result of a rank, in whole lines."""
    return grid.chunks * grid.chunk_lines * options.line_bytes


def _note(options: FusedOptions, grid: TileGrid) -> str:
    tiles = grid.chunks * grid.chunk_tiles
    size = " x ".join(str(n) for n in options.tile)
    steps = {"oneshot": ", in one step", "twoshot": ", in two steps"}.get(options.algorithm, "")
    form = f"fused{steps}" if options.fused else f"a kernel that computes, then {options.kind.op}{steps}"
    return f"{form}; {tiles} tiles of {size}, {grid.workgroups} workgroups of {options.wavefronts} wavefronts"


def collective_kernel(options: FusedOptions, grid: TileGrid) -> GpuProgram:
    """The collective that the result goes through: it moves the same lines as the fused kernel does.

    Its flags are in uncached memory, as those of the fused kernel.

    Raises InputError as :func:`trine.collectives.kernels.build.build_kernel`.
    """
    algorithm = f"{options.algorithm or 'put'}{'-put' if options.algorithm == TWOSHOT else ''}"
    program = build_kernel(
        options.kind.op,
        options.num_ranks,
        grid.chunks * grid.chunk_lines * options.line_bytes,
        algorithm=algorithm,
        workgroups=options.collective_workgroups,
        wavefronts=options.wavefronts,
        waits=options.waits,
        line_bytes=options.line_bytes,
    )
    program = _flags_uncached(program)
    return program if options.only_rank is None else kernels_of_rank(program, options.only_rank)


def _flags_uncached(program: GpuProgram) -> GpuProgram:
    """With every buffer uncached that has semaphores which are released or acquired."""
    is_flag = np.isin(program.op_kind, (ACQUIRE, RELEASE)).repeat(np.diff(program.operand_ptr))
    # buffers come in the order of their bases
    which = np.searchsorted([b.base for b in program.buffers], program.operand_address[is_flag], "right") - 1
    has_flags = set(which.tolist())
    return replace(program, buffers=tuple(replace(b, uncached=i in has_flags) for i, b in enumerate(program.buffers)))


def behind(first: GpuProgram, second: GpuProgram, same: dict[str, str], name: str) -> GpuProgram:
    """The kernels of ``first``, then those of ``second``, in one memory.

    same: buffers of ``second`` that are buffers of ``first``, by name; its others come behind. Semaphores likewise.
    """
    shared = {buffer.name: buffer.base for buffer in first.buffers}
    builder = ProgramBuilder.like(first)
    moved = [
        shared[same[buffer.name]] if buffer.name in same
        else builder.buffer(buffer.name, buffer.size_bytes, uncached=buffer.uncached)
        for buffer in second.buffers
    ]  # fmt: skip
    which = np.searchsorted([buffer.base for buffer in second.buffers], second.operand_address, "right") - 1
    address = (
        second.operand_address + np.array([to - b.base for to, b in zip(moved, second.buffers, strict=True)])[which]
    )
    ranks = tuple(range(first.num_ranks))
    parts = [
        PlacedProgram(program=first, ranks=ranks),
        PlacedProgram(
            program=replace(second, operand_address=address), ranks=ranks, semaphore_shift=first.semaphores.shape[1]
        ),
    ]
    return replace(join_programs(parts, first.num_ranks, name), buffers=tuple(builder.buffers))
