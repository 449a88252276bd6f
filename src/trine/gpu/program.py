"""GPU programs at the load-store level: kernels of workgroups of operations. Frozen data without logic.

After ASTRA-sim 3.0 (arXiv 2606.10440): a workgroup is a list of operations that its wavefronts execute; data moves
one cache line at a time. Timing: docs/design/gpu-model.md. NVIDIA's terms: SM (CU), thread block, warp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int8, Int32, Int64, members, row_of
from trine.common.shown import OneLine

#: Kinds of operations. Data (all wavefronts share the lines): LOAD, STORE, COPY, REDUCE. DMA: the copy engine or NIC
#: moves bytes. Control (wavefront 0 alone): ACQUIRE, RELEASE. All wavefronts: WAITCNT, FENCE, BARRIER, COMPUTE,
#: DELAY, NOP.
LOAD, STORE, COPY, REDUCE, DMA, ACQUIRE, RELEASE, WAITCNT, BARRIER, COMPUTE, NOP, FENCE, DELAY = range(13)
OP_NAMES = ("load", "store", "copy", "reduce", "dma", "acquire", "release", "waitcnt", "barrier", "compute", "nop",
            "fence", "delay")  # fmt: skip
DATA_OPS = (LOAD, STORE, COPY, REDUCE)

#: Roles of operands. A FLAGGED line carries its own flag (LL, LL128): a load waits until the line has been stored;
#: line i of the operand has semaphore ``operand_semaphore + i``. Multimem (done by a switch, one request per line):
#: READ_SUM reads the sum of a line of each member (ld_reduce); WRITE_ALL writes a line to each member (st), with a flag
#: if its rows have semaphores; ADD_ALL adds a line to each member (red). Such a row is the operand's first member; the
#: rows of the other members follow it (READ_MEMBER, WRITE_MEMBER).
(READ, WRITE, READ_FLAGGED, WRITE_FLAGGED, READ_SUM, WRITE_ALL, ADD_ALL, READ_MEMBER, WRITE_MEMBER) = range(9)
ROLE_NAMES = (
    "read", "write", "read flagged", "write flagged", "read sum", "write all", "add all", "read member", "write member",
)  # fmt: skip
READ_ROLES = (READ, READ_FLAGGED, READ_SUM, READ_MEMBER)
MULTIMEM_ROLES = (READ_SUM, WRITE_ALL, ADD_ALL)
MEMBER_ROLES = (READ_MEMBER, WRITE_MEMBER)

#: The columns of a program and their types; pointers delimit the members of each level.
KERNEL_COLUMNS: Mapping[str, npt.DTypeLike] = {"kernel_rank": np.int32, "kernel_wavefronts": np.int32}
OP_COLUMNS: Mapping[str, npt.DTypeLike] = {
    "op_kind": np.int8, "op_amount": np.int64, "op_unroll": np.int32, "op_label": np.int32,
}  # fmt: skip
OPERAND_COLUMNS: Mapping[str, npt.DTypeLike] = {
    "operand_role": np.int8, "operand_rank": np.int32, "operand_address": np.int64, "operand_step": np.int32,
    "operand_semaphore": np.int32,
}  # fmt: skip
COLUMNS = {**KERNEL_COLUMNS, **OP_COLUMNS, **OPERAND_COLUMNS}
POINTERS = ("kernel_ptr", "workgroup_ptr", "operand_ptr")


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """A range of addresses on every rank: bytes ``base`` to ``base + size_bytes`` of the rank's memory.

    uncached: requests to it bypass the L2.
    """

    name: str
    base: int
    size_bytes: int
    uncached: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GpuProgram(OneLine):
    """The kernels of all ranks as arrays.

    Kernels: kernel_rank int32[k]; kernel_wavefronts int32[k], wavefronts per workgroup; kernel_ptr int64[k + 1]: kernel
        i has workgroups kernel_ptr[i] to kernel_ptr[i + 1]; kernel_names.
    Workgroups: workgroup_ptr int64[w + 1]: the operations of each.
    Operations: op_kind int8[n]; op_amount int64[n]: lines (data operations: total cache lines, shared by the
        wavefronts), bytes (DMA), cycles (COMPUTE, DELAY), the semaphore's decrease (ACQUIRE) or increase (RELEASE),
        requests that may remain unfinished (WAITCNT); 0 for BARRIER, FENCE and NOP. op_unroll int32[n]: requests in
        flight per wavefront, for data operations; 0: the GPU model's value. op_label int32[n]: index into labels or -1.
    Operands, CSR by operand_ptr int64[n + 1], sources before targets: operand_role int8; operand_rank int32, the rank
        of the memory; operand_address int64, bytes; operand_step int32: line i of a data operation is at address
        + i * step; operand_semaphore int32: the semaphore of an ACQUIRE or RELEASE, of a DMA that releases one when
        its bytes have arrived (-1: none), of the first line of a flagged operand; else -1.
        LOAD: READs. STORE: WRITEs. COPY: one READ, WRITEs. REDUCE: READs, then any number of WRITEs (without any, the
        result stays in registers). DMA: a READ and a WRITE, or only a WRITE (of 0 bytes: it only releases). ACQUIRE: a
        READ of the same rank. RELEASE: WRITEs. READs of DMA are local. Data operations and RELEASEs may have multimem
        operands in place of READs and WRITEs: a row for each member, the operation's rank included, each once.
    semaphores: int32[ranks, s]: initial values; numbered from 0 on each rank. Each ACQUIRE or flagged load decreases
        its semaphore.
    payload_bytes: the collective's payload as nccl-tests counts it, 0 if not applicable.
    num_hosts: the last ``num_hosts`` ranks are hosts, which run no kernels: memory for the loads and stores of the
        other ranks.
    """

    name: str
    num_ranks: int
    kernel_rank: Int32
    kernel_wavefronts: Int32
    kernel_ptr: Int64
    workgroup_ptr: Int64
    op_kind: Int8
    op_amount: Int64
    op_unroll: Int32
    op_label: Int32
    operand_ptr: Int64
    operand_role: Int8
    operand_rank: Int32
    operand_address: Int64
    operand_step: Int32
    operand_semaphore: Int32
    semaphores: Int32
    buffers: tuple[Buffer, ...] = ()
    kernel_names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    line_bytes: int = 128
    payload_bytes: int = 0
    notes: tuple[str, ...] = ()
    num_hosts: int = 0

    @property
    def num_gpus(self) -> int:
        """Number of ranks without hosts."""
        return self.num_ranks - self.num_hosts

    @property
    def num_kernels(self) -> int:
        return len(self.kernel_rank)

    @property
    def num_workgroups(self) -> int:
        return len(self.workgroup_ptr) - 1

    @property
    def num_ops(self) -> int:
        return len(self.op_kind)

    # Indices from rows to their parents; computed on each access.

    @property
    def workgroup_kernel(self) -> Int64:
        """The kernel of each workgroup."""
        return row_of(self.kernel_ptr)

    @property
    def op_workgroup(self) -> Int64:
        """The workgroup of each operation."""
        return row_of(self.workgroup_ptr)

    @property
    def op_rank(self) -> Int32:
        """The rank of each operation."""
        return self.kernel_rank[self.workgroup_kernel[self.op_workgroup]]

    @property
    def operand_op(self) -> Int64:
        """The operation of each row of operands."""
        return row_of(self.operand_ptr)


def is_member(program: GpuProgram) -> Bool:
    """Return bool[operands]: rows of further members of a multimem operand, which are not separate operands."""
    return np.isin(program.operand_role, MEMBER_ROLES)


def is_read(program: GpuProgram) -> Bool:
    """Return bool[operands]: rows that are read, not written."""
    return np.isin(program.operand_role, READ_ROLES)


def is_flagged(program: GpuProgram) -> Bool:
    """Return bool[operands]: rows whose lines carry flags."""
    role, lined = program.operand_role, np.isin(program.op_kind, DATA_OPS)
    multicast = np.isin(role, (WRITE_ALL, WRITE_MEMBER)) & (program.operand_semaphore >= 0)
    return np.isin(role, (READ_FLAGGED, WRITE_FLAGGED)) | (multicast & np.repeat(lined, np.diff(program.operand_ptr)))


def has_multimem(program: GpuProgram) -> bool:
    """Return whether a switch reduces or multicasts any operand."""
    return bool((program.operand_role >= READ_SUM).any())


def same_program(left: GpuProgram, right: GpuProgram) -> bool:
    """Return whether two programs have the same operations and names.

    Labels are compared by text, not by number; steps of operations without lines are ignored.
    """
    plain = ("name", "num_ranks", "num_hosts", "buffers", "line_bytes", "payload_bytes", "notes")
    arrays = (
        "kernel_rank", "kernel_wavefronts", "kernel_ptr", "workgroup_ptr", "op_kind", "op_amount", "op_unroll",
        "operand_ptr", "operand_role", "operand_rank", "operand_address", "operand_semaphore", "semaphores",
    )  # fmt: skip
    have_equal_fields = all(getattr(left, name) == getattr(right, name) for name in plain)
    return (
        have_equal_fields
        and all(np.array_equal(getattr(left, name), getattr(right, name)) for name in arrays)
        and _steps(left) == _steps(right)
        and (left.kernel_names == right.kernel_names or not any(left.kernel_names + right.kernel_names))
        and _labels(left) == _labels(right)
    )


def _steps(program: GpuProgram) -> list[int]:
    has_lines = np.repeat(np.isin(program.op_kind, DATA_OPS), np.diff(program.operand_ptr))
    steps: list[int] = np.where(has_lines, program.operand_step, 0).tolist()
    return steps


def _labels(program: GpuProgram) -> list[str]:
    names = np.array([*program.labels, ""], object)
    labels: list[str] = names[program.op_label].tolist()
    return labels


def of_kernels(program: GpuProgram, kernels: Int64) -> tuple[GpuProgram, Int64]:
    """Return a program of these kernels, in this order, and the numbers of their operands in ``program``.

    Ranks, semaphores and buffers of the whole program remain.
    """
    chosen = kernels
    columns: dict[str, Any] = {name: getattr(program, name)[chosen] for name in KERNEL_COLUMNS}
    for pointer, names in zip(POINTERS, ((), OP_COLUMNS, OPERAND_COLUMNS), strict=True):
        chosen, columns[pointer] = members(getattr(program, pointer), chosen)
        columns |= {name: getattr(program, name)[chosen] for name in names}
    if program.kernel_names:
        names = tuple(program.kernel_names[i] for i in kernels.tolist())
    else:
        names = ()
    return replace(program, kernel_names=names, **columns), chosen


def kernels_of_rank(program: GpuProgram, rank: int) -> GpuProgram:
    """Return a program of one rank's kernels, in their order."""
    return of_kernels(program, np.flatnonzero(program.kernel_rank == rank))[0]
