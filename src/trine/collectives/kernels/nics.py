"""Programs that put, for groups that NICs join: what is written to a rank behind a NIC goes through copy engines.

Loads and stores stay inside a scale-up domain. So a copy to another one becomes a dma, a reduce one into own memory and
a dma from there, a release a dma of no bytes. Dmas to one peer arrive in order: such a release waits for no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trine.errors import InputError
from trine.gpu.program import (
    BARRIER,
    COPY,
    DATA_OPS,
    DMA,
    READ,
    READ_FLAGGED,
    RELEASE,
    STORE,
    WAITCNT,
    WRITE,
    WRITE_FLAGGED,
    Buffer,
    GpuProgram,
)

#: Whether a message from one rank to another leaves its scale-up domain.
Crosses = Callable[[int, int], bool]

STAGING = "staging"
_ALIGN_BYTES = 1 << 20


class _Operand(NamedTuple):
    role: int
    rank: int
    address: int
    step: int
    semaphore: int


class _Operation(NamedTuple):
    kind: int
    amount: int
    unroll: int
    label: int
    operands: tuple[_Operand, ...]


def through_nics(program: GpuProgram, crosses: Crosses) -> GpuProgram:
    """The same program, with dmas for all that leaves a scale-up domain.

    Raises
    ------
    InputError: it reads from behind a NIC, has flags in lines that cross one, or releases more than 1 there.
    """
    rewriter = _Rewriter(program, crosses)
    groups = [list(rewriter.workgroup(group)) for group in range(program.num_workgroups)]
    operations = [operation for group in groups for operation in group]
    operands = [operand for operation in operations for operand in operation.operands]
    kinds = np.array([operation[:4] for operation in operations], np.int64).reshape(-1, 4).T
    role, rank, address, step, semaphore = np.array(operands, np.int64).reshape(-1, len(_Operand._fields)).T
    return replace(
        program,
        workgroup_ptr=_offsets([len(group) for group in groups]),
        op_kind=kinds[0].astype(np.int8),
        op_amount=kinds[1].copy(),
        op_unroll=kinds[2].astype(np.int32),
        op_label=kinds[3].astype(np.int32),
        operand_ptr=_offsets([len(operation.operands) for operation in operations]),
        operand_role=role.astype(np.int8),
        operand_rank=rank.astype(np.int32),
        operand_address=address.copy(),
        operand_step=step.astype(np.int32),
        operand_semaphore=semaphore.astype(np.int32),
        buffers=rewriter.buffers(),
        notes=(*program.notes, "copy engines move what crosses NICs"),
    )


class _Rewriter:
    """Rewrites workgroup by workgroup; sums that are sent on lie in a buffer behind all others."""

    def __init__(self, program: GpuProgram, crosses: Crosses) -> None:
        self._program, self._crosses = program, crosses
        last = max((buffer.base + buffer.size_bytes for buffer in program.buffers), default=0)
        self._base = -(-(last + program.line_bytes) // _ALIGN_BYTES) * _ALIGN_BYTES
        self._staged = [0] * program.num_ranks
        self._rank = np.repeat(program.kernel_rank, np.diff(program.kernel_ptr)).tolist()

    def buffers(self) -> tuple[Buffer, ...]:
        """Those of the program, and that of sums that are sent on."""
        most = max(self._staged)
        own = (Buffer(name=STAGING, base=self._base, size_bytes=most),) if most else ()
        return (*self._program.buffers, *own)

    def workgroup(self, group: int) -> Iterator[_Operation]:
        """Its operations."""
        rank = self._rank[group]
        operations = [self._operation(op) for op in range(*self._program.workgroup_ptr[group : group + 2].tolist())]
        has_lines = False
        for place, operation in enumerate(operations):
            if operation.kind == WAITCNT and not has_lines and self._signals_by_nic(rank, operations[place + 1 :]):
                continue
            for made in self._rewritten(rank, operation):
                has_lines = made.kind in DATA_OPS or (has_lines and made.kind != WAITCNT)
                yield made

    def _operation(self, op: int) -> _Operation:
        program = self._program
        chosen = slice(*program.operand_ptr[op : op + 2].tolist())
        columns = (
            program.operand_role, program.operand_rank, program.operand_address, program.operand_step,
            program.operand_semaphore,
        )  # fmt: skip
        operands = tuple(_Operand(*row) for row in zip(*(column[chosen].tolist() for column in columns), strict=True))
        return _Operation(
            int(program.op_kind[op]), int(program.op_amount[op]), int(program.op_unroll[op]),
            int(program.op_label[op]), operands,
        )  # fmt: skip

    def _signals_by_nic(self, rank: int, following: Sequence[_Operation]) -> bool:
        """Whether the next thing behind barriers is a release whose targets are all behind NICs."""
        after = next((operation for operation in following if operation.kind != BARRIER), None)
        if after is None or after.kind != RELEASE:
            return False
        return all(self._leaves(rank, operand) for operand in after.operands)

    def _leaves(self, rank: int, operand: _Operand) -> bool:
        return operand.rank != rank and self._crosses(rank, operand.rank)

    def _rewritten(self, rank: int, operation: _Operation) -> Iterator[_Operation]:
        reads = tuple(operand for operand in operation.operands if operand.role in (READ, READ_FLAGGED))
        writes = operation.operands[len(reads) :]
        away = tuple(operand for operand in writes if self._leaves(rank, operand))
        if any(self._leaves(rank, operand) for operand in reads):
            raise self._refused("reads from behind a NIC, and loads do not cross one: take an algorithm that puts")
        if not away or operation.kind == DMA:
            yield operation
            return
        if any(operand.role == WRITE_FLAGGED for operand in away):
            raise self._refused("has flags in lines that cross a NIC: take protocol 'simple'")
        near = tuple(operand for operand in writes if operand not in away)
        if operation.kind == RELEASE:
            yield from self._release(operation, near, away)
        else:
            yield from self._data(rank, operation, (reads, near, away))

    def _release(
        self, operation: _Operation, near: tuple[_Operand, ...], away: tuple[_Operand, ...]
    ) -> Iterator[_Operation]:
        if operation.amount != 1:
            raise self._refused(f"releases {operation.amount} behind a NIC, where a dma adds 1")
        if near:
            yield operation._replace(operands=near)
        for target in away:
            yield operation._replace(kind=DMA, amount=0, operands=(target,))

    def _data(self, rank: int, operation: _Operation, parts: tuple[tuple[_Operand, ...], ...]) -> Iterator[_Operation]:
        """A copy from own memory is sent from there; any other, and sums, from where they are put first."""
        reads, near, away = parts
        if operation.kind == STORE:
            raise self._refused("stores to behind a NIC what is in no memory")
        if operation.kind == COPY and reads[0].rank == rank and reads[0].role == READ:
            source = reads[0]
            if near:
                yield operation._replace(operands=(source, *near))
        else:
            own = next((operand for operand in near if operand.rank == rank and operand.role == WRITE), None)
            source = own or self._staging(rank, operation.amount)
            yield operation._replace(operands=(*reads, *near, *(() if own else (source,))))
            yield operation._replace(kind=WAITCNT, amount=0, unroll=0, operands=())
            yield operation._replace(kind=BARRIER, amount=0, unroll=0, operands=())
        for target in away:
            yield self._dma(operation, source, target)

    def _staging(self, rank: int, lines: int) -> _Operand:
        line_bytes = self._program.line_bytes
        address = self._base + self._staged[rank]
        self._staged[rank] += lines * line_bytes
        return _Operand(WRITE, rank, address, line_bytes, -1)

    def _dma(self, operation: _Operation, source: _Operand, target: _Operand) -> _Operation:
        line_bytes = self._program.line_bytes
        if source.step != line_bytes or target.step != line_bytes:
            raise self._refused("moves lines that do not lie behind each other")
        ends = (source._replace(role=READ, step=0), target._replace(step=0))
        return operation._replace(kind=DMA, amount=operation.amount * line_bytes, unroll=0, operands=ends)

    def _refused(self, why: str) -> InputError:
        return InputError(f"GPU program {self._program.name!r} {why}")


def _offsets(sizes: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.cumsum([0, *sizes], dtype=np.int64)
