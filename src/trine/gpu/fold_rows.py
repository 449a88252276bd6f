"""A program as one row a rank, to compare ranks; and back again, for some of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trine.arrays import Bool, Int64
from trine.gpu.program import DATA_OPS, DMA, GpuProgram
from trine.gpu.system import GpuSystem


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Everything that rank r runs in row r, in the order of its kernels.

    kernels, workgroups, operations, operands: int64[ranks, m], their numbers in the program. op_kind: int8[ranks, ops].
    operand_op: int64[ranks, operands], the operation (of its rank) that each belongs to. peer, address, semaphore,
    step: int64[ranks, operands]. is_dma, has_lines: bool[ranks, operands]; lines: int64[ranks, operands], where it has.
    """

    program: GpuProgram
    kernels: Int64
    workgroups: Int64
    operations: Int64
    operands: Int64
    op_kind: npt.NDArray[np.int8]
    operand_op: Int64
    peer: Int64
    address: Int64
    semaphore: Int64
    step: Int64
    is_dma: Bool
    has_lines: Bool
    lines: Int64

    def shape_columns(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """What must be equal of ranks that behave alike, with names for people."""
        program = self.program
        yield "the size of their workgroups", program.kernel_wavefronts[self.kernels]
        yield "the number of their workgroups", np.diff(program.kernel_ptr)[self.kernels]
        yield "the number of operations of a workgroup", np.diff(program.workgroup_ptr)[self.workgroups]
        yield "their operations", self.op_kind
        yield "the sizes of operations", program.op_amount[self.operations]
        yield "the unrolling of operations", program.op_unroll[self.operations]
        yield "the operands of operations", np.diff(program.operand_ptr)[self.operations]
        yield "what operands are for", program.operand_role[self.operands]
        yield "the steps of operands", program.operand_step[self.operands]

    def pairs(self, ranks: Int64) -> Iterator[tuple[int, int]]:
        """``ranks``, each with the peers that it loads from or stores to, and these with it."""
        for rank in ranks.tolist():
            for peer in np.unique(self.peer[rank][~self.is_dma[rank]]).tolist():
                if peer != rank:
                    yield rank, peer
                    yield peer, rank


def rows_of(system: GpuSystem) -> tuple[Rows | None, str | None]:
    """The program by ranks, and None; or None, and which ranks do not run as much as others."""
    program, ranks = system.program, system.num_ranks
    kernel_rank = program.kernel_rank.astype(np.int64)
    group_kernel = np.repeat(np.arange(program.num_kernels), np.diff(program.kernel_ptr))
    op_group = np.repeat(np.arange(program.num_workgroups), np.diff(program.workgroup_ptr))
    operand_op = np.repeat(np.arange(program.num_ops), np.diff(program.operand_ptr))
    group_rank = kernel_rank[group_kernel]
    op_rank = group_rank[op_group]
    found = []
    owners = (
        ("kernels", kernel_rank),
        ("workgroups", group_rank),
        ("operations", op_rank),
        ("operands", op_rank[operand_op]),
    )
    for name, owner in owners:
        count = np.bincount(owner, minlength=ranks)
        odd = np.flatnonzero(count != count[0])
        if len(odd):
            return None, f"rank {odd[0]} has {count[odd[0]]} {name}, rank 0 has {count[0]}"
        found.append(np.argsort(owner, kind="stable").reshape(ranks, -1))
    kernels, workgroups, operations, operands = found
    number = np.empty(program.num_ops, np.int64)
    number[operations] = np.arange(operations.shape[1])[None, :]
    op = operand_op[operands]
    kind = program.op_kind[op]
    return (
        Rows(
            program=program,
            kernels=kernels,
            workgroups=workgroups,
            operations=operations,
            operands=operands,
            op_kind=program.op_kind[operations],
            operand_op=number[op],
            peer=program.operand_rank[operands].astype(np.int64),
            address=program.operand_address[operands],
            semaphore=program.operand_semaphore[operands].astype(np.int64),
            step=program.operand_step[operands].astype(np.int64),
            is_dma=kind == DMA,
            has_lines=np.isin(kind, DATA_OPS) & (program.op_amount[op] > 0),
            lines=program.op_amount[op],
        ),
        None,
    )


def simulated_program(
    program: GpuProgram,
    rows: Rows,
    ranks: Int64,
    gpu_of: npt.NDArray[np.int32],
    peer: Int64,
    address: Int64,
) -> tuple[GpuProgram, npt.NDArray[np.int32]]:
    """The program of the GPUs that are simulated for ``ranks``, and the rank that each of its operands means.

    peer, address: int64[ranks, operands]. Kernels keep the order that they have in ``program``.
    """
    row = np.full(program.num_ranks, -1, np.int64)
    row[ranks] = np.arange(len(ranks))
    kernels = np.sort(rows.kernels[ranks].ravel())
    workgroups = _spread(program.kernel_ptr, kernels)
    operations = _spread(program.workgroup_ptr, workgroups)
    operands = _spread(program.operand_ptr, operations)
    place = np.empty(len(program.operand_role), np.int64)
    place[rows.operands] = np.arange(rows.operands.shape[1])[None, :]
    owner = np.empty(len(program.operand_role), np.int64)
    owner[rows.operands] = row[:, None]
    at = owner[operands], place[operands]
    simulated = replace(
        program,
        num_ranks=len(ranks),
        kernel_rank=row[program.kernel_rank[kernels]].astype(np.int32),
        kernel_wavefronts=program.kernel_wavefronts[kernels],
        kernel_ptr=_lengths(program.kernel_ptr, kernels),
        workgroup_ptr=_lengths(program.workgroup_ptr, workgroups),
        op_kind=program.op_kind[operations],
        op_amount=program.op_amount[operations],
        op_unroll=program.op_unroll[operations],
        op_label=program.op_label[operations],
        operand_ptr=_lengths(program.operand_ptr, operations),
        operand_role=program.operand_role[operands],
        operand_rank=gpu_of[peer[at]].astype(np.int32),
        operand_address=address[at],
        operand_step=program.operand_step[operands],
        operand_semaphore=program.operand_semaphore[operands],
        semaphores=program.semaphores[ranks],
        kernel_names=tuple(program.kernel_names[i] for i in kernels.tolist()) if program.kernel_names else (),
    )
    return simulated, peer[at].astype(np.int32)


def _spread(ptr: Int64, chosen: Int64) -> Int64:
    """The members of ``chosen`` rows of a CSR, in order."""
    length = ptr[chosen + 1] - ptr[chosen]
    ends = np.cumsum(length)
    members: Int64 = np.arange(int(length.sum()), dtype=np.int64) + np.repeat(ptr[chosen] - (ends - length), length)
    return members


def _lengths(ptr: Int64, chosen: Int64) -> Int64:
    return np.concatenate(([0], np.cumsum(ptr[chosen + 1] - ptr[chosen]))).astype(np.int64)
