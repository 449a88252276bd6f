"""Which kernels, workgroups and operations of a program the records of a load-store run are of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.errors import InputError
from trine.gpu.program import GpuProgram
from trine.gpu.records import GpuRecords


class Shown(NamedTuple):
    """Of the simulated GPUs, in the order of the records.

    workgroup, op: int64, their numbers in the program of all ranks; workgroup_kernel: the kernel of each;
    workgroup_gpu: the simulated GPU of each; op_row: the row in ``workgroup`` of each operation.
    """

    workgroup: Int64
    workgroup_kernel: Int64
    workgroup_gpu: Int64
    op: Int64
    op_row: Int64


def shown(program: GpuProgram, records: GpuRecords) -> Shown:
    """Find what was simulated: the kernels whose rank was, in the program's order.

    Raises
    ------
    InputError: the records are not those of this program.
    """
    number = np.full(program.num_ranks, -1, np.int64)
    number[records.ranks] = np.arange(len(records.ranks))
    kernels = np.flatnonzero(number[program.kernel_rank] >= 0)
    workgroup, row_kernel = members(program.kernel_ptr, kernels)
    op, op_row = members(program.workgroup_ptr, workgroup)
    for what, found, wanted in (
        ("ranks", len(records.gpu_of), program.num_ranks),
        ("workgroups", len(records.workgroup_start_ps), len(workgroup)),
        ("operations", len(records.op_start_ps), len(op)),
    ):
        if found != wanted:
            raise InputError(f"these are not the records of program {program.name!r}: {found} {what}, not {wanted}")
    kernel = kernels[row_kernel]
    return Shown(workgroup, kernel, number[program.kernel_rank[kernel]], op, op_row)


def members(ptr: Int64, owners: Int64) -> tuple[Int64, Int64]:
    """Return the members of some owners in CSR, and the row in ``owners`` of each."""
    counts = ptr[owners + 1] - ptr[owners]
    row = np.repeat(np.arange(len(owners)), counts)
    first = np.repeat(ptr[owners] - (np.cumsum(counts) - counts), counts)
    return first + np.arange(len(row)), row


def peers(program: GpuProgram, ops: Int64, own: Int64) -> Int64:
    """Return the rank that each operation reaches, the first that is not its own: int64[ops]; its own: none other.

    own: int64[ops], the rank that runs each.
    """
    operand, row = members(program.operand_ptr, ops)
    rank = program.operand_rank[operand].astype(np.int64)
    other = np.flatnonzero(rank != own[row])[::-1]
    found = own.copy()
    found[row[other]] = rank[other]  # last write wins: the first operand stays
    return found
