"""What one rank of a program runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trine.arrays import Int64
from trine.gpu.program import KERNEL_COLUMNS, OP_COLUMNS, OPERAND_COLUMNS, POINTERS, GpuProgram


def members(ptr: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """The members of some rows of a CSR, in order, and the pointers of these rows alone."""
    length = ptr[rows + 1] - ptr[rows]
    new_ptr = np.concatenate(([0], np.cumsum(length))).astype(np.int64)
    return np.arange(new_ptr[-1], dtype=np.int64) + np.repeat(ptr[rows] - new_ptr[:-1], length), new_ptr


def kernels_of_rank(program: GpuProgram, rank: int) -> GpuProgram:
    """The kernels of one rank alone, in their order; ranks, semaphores and buffers stay those of the whole program."""
    chosen = np.flatnonzero(program.kernel_rank == rank)
    kernels = chosen
    columns: dict[str, Any] = {name: getattr(program, name)[chosen] for name in KERNEL_COLUMNS}
    for pointer, names in zip(POINTERS, ((), OP_COLUMNS, OPERAND_COLUMNS), strict=True):
        chosen, columns[pointer] = members(getattr(program, pointer), chosen)
        columns |= {name: getattr(program, name)[chosen] for name in names}
    names = tuple(program.kernel_names[i] for i in kernels.tolist()) if program.kernel_names else ()
    return replace(program, kernel_names=names, **columns)
