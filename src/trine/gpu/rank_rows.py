"""Conversion of a program to one row per rank, and back to a program for the simulated ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int32, Int64
from trine.gpu.program import DATA_OPS, DMA, GpuProgram, of_kernels
from trine.gpu.system import GpuSystem, kernel_tasks
from trine.gpu.translations import Translations


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankRows:
    """Program with one row per rank, in the order of the rank's kernels.

    kernels, workgroups, operations, operands: int64[ranks, m], numbers in the program. op_kind: int8[ranks, ops].
    operand_op: int64[ranks, operands], each operand's operation (numbered within its rank). peer, address, semaphore,
    step: int64[ranks, operands]. is_dma, has_lines: bool[ranks, operands]; lines: int64[ranks, operands], if has_lines.
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
        """Yield the columns that must be equal within an orbit, with names for messages."""
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
        """Yield (rank, peer) and (peer, rank) for each of ``ranks`` and each peer it loads from or stores to."""
        for rank in ranks.tolist():
            for peer in np.unique(self.peer[rank][~self.is_dma[rank]]).tolist():
                if peer != rank:
                    yield rank, peer
                    yield peer, rank


def rows_of(system: GpuSystem) -> tuple[RankRows | None, str | None]:
    """Return (program by ranks, None), or (None, why) if a rank runs more or less than rank 0."""
    program, ranks = system.program, system.num_ranks
    operand_op, op_rank = program.operand_op, program.op_rank
    orders = []
    owners = (
        ("kernels", program.kernel_rank),
        ("workgroups", program.kernel_rank[program.workgroup_kernel]),
        ("operations", op_rank),
        ("operands", op_rank[operand_op]),
    )
    for name, owner in owners:
        count = np.bincount(owner, minlength=ranks)
        odd = np.flatnonzero(count != count[0])
        if len(odd):
            return None, f"rank {odd[0]} has {count[odd[0]]} {name}, rank 0 has {count[0]}"
        orders.append(np.argsort(owner, kind="stable").reshape(ranks, -1))
    kernels, workgroups, operations, operands = orders
    number = np.empty(program.num_ops, np.int64)
    number[operations] = np.arange(operations.shape[1])[None, :]
    op = operand_op[operands]
    kind = program.op_kind[op]
    return (
        RankRows(
            program=program, kernels=kernels, workgroups=workgroups, operations=operations, operands=operands,
            op_kind=program.op_kind[operations], operand_op=number[op],
            peer=program.operand_rank[operands].astype(np.int64), address=program.operand_address[operands],
            semaphore=program.operand_semaphore[operands].astype(np.int64),
            step=program.operand_step[operands].astype(np.int64), is_dma=kind == DMA,
            has_lines=np.isin(kind, DATA_OPS) & (program.op_amount[op] > 0), lines=program.op_amount[op],
        ),
        None,
    )  # fmt: skip


def folded_system(system: GpuSystem, rows: RankRows, group: Translations, link_image: Int32) -> GpuSystem:
    ranks = np.arange(system.num_ranks, dtype=np.int64)
    translation, origin = group.split(ranks)
    firsts = np.unique(origin)
    gpu_of = np.searchsorted(firsts, origin).astype(np.int32)
    peer = rows.peer[firsts]
    # rank whose same operand is the image of this one in the memory of the orbit's first rank
    mirror = group.moved(firsts[:, None], translation[peer], -1)
    address = rows.address[mirror, np.arange(peer.shape[1])[None, :]]
    program, operand_peer = _simulated_program(system.program, rows, firsts, gpu_of, peer, address)
    tasks = kernel_tasks(program)
    graph = replace(tasks.graph, rank=firsts[program.kernel_rank].astype(np.int32), rank_names=system.graph.rank_names)
    return replace(
        system, program=program, ranks=firsts.astype(np.int32), gpu_of=gpu_of, operand_peer=operand_peer,
        link_image=link_image, graph=graph, task_kernel=tasks.task_kernel,
    )  # fmt: skip


def _simulated_program(
    program: GpuProgram, rows: RankRows, ranks: Int64, gpu_of: npt.NDArray[np.int32], peer: Int64, address: Int64
) -> tuple[GpuProgram, npt.NDArray[np.int32]]:
    """Return the program of the simulated GPUs ``ranks``, and the rank that each of its operands refers to.

    peer, address: int64[ranks, operands]. Kernels keep their order in ``program``.
    """
    row = np.full(program.num_ranks, -1, np.int64)
    row[ranks] = np.arange(len(ranks))
    chosen, operands = of_kernels(program, np.sort(rows.kernels[ranks].ravel()))
    place = np.empty(len(program.operand_role), np.int64)
    place[rows.operands] = np.arange(rows.operands.shape[1])[None, :]
    owner = np.empty(len(program.operand_role), np.int64)
    owner[rows.operands] = row[:, None]
    position = owner[operands], place[operands]
    simulated = replace(
        chosen, num_ranks=len(ranks), kernel_rank=row[chosen.kernel_rank].astype(np.int32),
        operand_rank=gpu_of[peer[position]].astype(np.int32), operand_address=address[position],
        semaphores=program.semaphores[ranks],
    )  # fmt: skip
    return simulated, peer[position].astype(np.int32)
