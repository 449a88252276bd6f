"""What one rank of a program runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trine.arrays import Int64
from trine.gpu.program import GpuProgram


def members(ptr: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """The members of some rows of a CSR, in order, and the pointers of these rows alone."""
    length = ptr[rows + 1] - ptr[rows]
    new_ptr = np.concatenate(([0], np.cumsum(length))).astype(np.int64)
    return np.arange(new_ptr[-1], dtype=np.int64) + np.repeat(ptr[rows] - new_ptr[:-1], length), new_ptr


def kernels_of_rank(program: GpuProgram, rank: int) -> GpuProgram:
    """The kernels of one rank alone, in their order; ranks, semaphores and buffers stay those of the whole program."""
    kernels = np.flatnonzero(program.kernel_rank == rank)
    workgroups, kernel_ptr = members(program.kernel_ptr, kernels)
    operations, workgroup_ptr = members(program.workgroup_ptr, workgroups)
    operands, operand_ptr = members(program.operand_ptr, operations)
    return replace(
        program,
        kernel_rank=program.kernel_rank[kernels],
        kernel_wavefronts=program.kernel_wavefronts[kernels],
        kernel_ptr=kernel_ptr,
        workgroup_ptr=workgroup_ptr,
        op_kind=program.op_kind[operations],
        op_amount=program.op_amount[operations],
        op_unroll=program.op_unroll[operations],
        op_label=program.op_label[operations],
        operand_ptr=operand_ptr,
        operand_role=program.operand_role[operands],
        operand_rank=program.operand_rank[operands],
        operand_address=program.operand_address[operands],
        operand_step=program.operand_step[operands],
        operand_semaphore=program.operand_semaphore[operands],
        kernel_names=tuple(program.kernel_names[i] for i in kernels.tolist()) if program.kernel_names else (),
    )
