"""The unfused form: a kernel that computes, and behind it one that is a collective of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trine.collectives.kernels.build import build_kernel
from trine.collectives.kernels.draft import ALIGN_BYTES
from trine.collectives.kernels.fused_options import TWOSHOT, FusedOptions
from trine.collectives.kernels.fused_tiles import Grid
from trine.gpu.program import ACQUIRE, RELEASE, GpuProgram
from trine.gpu.rank_kernels import kernels_of_rank


def collective_kernel(options: FusedOptions, grid: Grid) -> GpuProgram:
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
    by_name = {buffer.name: buffer for buffer in first.buffers}
    buffers = list(first.buffers)
    moved = np.zeros(len(second.buffers), np.int64)
    for i, buffer in enumerate(second.buffers):
        if buffer.name in same:
            moved[i] = by_name[same[buffer.name]].base - buffer.base
            continue
        end = max((b.base + b.size_bytes for b in buffers), default=0)
        base = -(-end // ALIGN_BYTES) * ALIGN_BYTES
        moved[i] = base - buffer.base
        buffers.append(replace(buffer, base=base))
    which = np.searchsorted([b.base for b in second.buffers], second.operand_address, "right") - 1
    shift, labels = first.semaphores.shape[1], len(first.labels)
    semaphore = np.where(second.operand_semaphore >= 0, second.operand_semaphore + shift, -1).astype(np.int32)
    label = np.where(second.op_label >= 0, second.op_label + labels, -1).astype(np.int32)
    second = replace(
        second, operand_address=second.operand_address + moved[which], operand_semaphore=semaphore, op_label=label
    )
    joined: dict[str, Any] = {
        c: np.concatenate([getattr(first, c), getattr(second, c)]) for c in (*_KERNELS, *_OPS, *_OPERANDS)
    }
    for column in ("kernel_ptr", "workgroup_ptr", "operand_ptr"):
        one, two = getattr(first, column), getattr(second, column)
        joined[column] = np.append(one, two[1:] + one[-1])
    return replace(
        first,
        **joined,
        name=name,
        semaphores=np.concatenate([first.semaphores, second.semaphores], axis=1),
        buffers=tuple(buffers),
        kernel_names=first.kernel_names + second.kernel_names,
        labels=first.labels + second.labels,
        payload_bytes=second.payload_bytes,
    )


_KERNELS = ("kernel_rank", "kernel_wavefronts")
_OPS = ("op_kind", "op_amount", "op_unroll", "op_label")
_OPERANDS = ("operand_role", "operand_rank", "operand_address", "operand_step", "operand_semaphore")
