"""A message between two ranks as kernels: one puts, the other waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trine.model.gpuprogram import ACQUIRE, BARRIER, COPY, DMA, READ, RELEASE, WAITCNT, WRITE, GpuProgram

SENDER, RECEIVER = 0, 1
#: Kernels of a message.
SEND_KERNEL, RECEIVE_KERNEL = 0, 1


class _Operand(NamedTuple):
    role: int
    rank: int
    address: int
    step: int = 0
    semaphore: int = -1


class _Operation(NamedTuple):
    kind: int
    amount: int
    label: int
    operands: tuple[_Operand, ...] = ()


_LABELS = ("put", "signal", "wait")
_PUT, _SIGNAL, _WAIT = range(3)


def message_program(
    size_bytes: int, *, workgroups: int, wavefronts: int, line_bytes: int, through_nic: bool
) -> GpuProgram:
    """Rank 0 writes into memory of rank 1 and signals behind the data; rank 1 waits for that. Two kernels.

    through_nic: the copy engine moves the bytes, and its last packet signals; else each workgroup stores
    a part of the lines.
    """
    if through_nic:
        groups, waves = [_by_nic(size_bytes, line_bytes)], 1
    else:
        groups, waves = _by_stores(size_bytes, workgroups, line_bytes), wavefronts
    wait = _Operation(
        ACQUIRE, len(groups), _WAIT, (_Operand(READ, RECEIVER, _signal_address(size_bytes, line_bytes), 0, 0),)
    )
    return _program([groups, [[wait]]], (waves, 1), line_bytes)


def _lines(size_bytes: int, line_bytes: int) -> int:
    return -(-size_bytes // line_bytes)


def _signal_address(size_bytes: int, line_bytes: int) -> int:
    """The line behind the data."""
    return _lines(size_bytes, line_bytes) * line_bytes


def _by_nic(size_bytes: int, line_bytes: int) -> list[_Operation]:
    target = _Operand(WRITE, RECEIVER, 0 if size_bytes else _signal_address(size_bytes, line_bytes), 0, 0)
    sources = (_Operand(READ, SENDER, 0),) if size_bytes else ()
    return [_Operation(DMA, size_bytes, _PUT, (*sources, target)), _Operation(WAITCNT, 0, _PUT)]


def _by_stores(size_bytes: int, workgroups: int, line_bytes: int) -> list[list[_Operation]]:
    lines = _lines(size_bytes, line_bytes)
    signal = _Operand(WRITE, RECEIVER, _signal_address(size_bytes, line_bytes), 0, 0)
    count = max(1, min(workgroups, lines))
    groups = []
    for group in range(count):
        first, last = lines * group // count, lines * (group + 1) // count
        ends = [
            _Operand(role, rank, first * line_bytes, line_bytes) for role, rank in ((READ, SENDER), (WRITE, RECEIVER))
        ]
        data = [
            _Operation(COPY, last - first, _PUT, tuple(ends)),
            _Operation(WAITCNT, 0, _SIGNAL),
            _Operation(BARRIER, 0, _SIGNAL),
        ]
        groups.append([*(data if lines else ()), _Operation(RELEASE, 1, _SIGNAL, (signal,))])
    return groups


def _program(
    kernels: Sequence[Sequence[Sequence[_Operation]]], wavefronts: tuple[int, int], line_bytes: int
) -> GpuProgram:
    """Kernels of workgroups of operations as arrays; kernel i is of rank i."""
    groups = [group for kernel in kernels for group in kernel]
    operations = [operation for group in groups for operation in group]
    operands = [operand for operation in operations for operand in operation.operands]
    role, rank, address, step, semaphore = np.array(operands, np.int64).reshape(-1, len(_Operand._fields)).T
    n = len(operations)
    return GpuProgram(
        name="send_recv",
        num_ranks=len(kernels),
        kernel_rank=np.arange(len(kernels), dtype=np.int32),
        kernel_wavefronts=np.array(wavefronts, np.int32),
        kernel_ptr=_offsets([len(kernel) for kernel in kernels]),
        workgroup_ptr=_offsets([len(group) for group in groups]),
        op_kind=np.array([operation.kind for operation in operations], np.int8),
        op_amount=np.array([operation.amount for operation in operations], np.int64),
        op_unroll=np.zeros(n, np.int32),
        op_label=np.array([operation.label for operation in operations], np.int32),
        operand_ptr=_offsets([len(operation.operands) for operation in operations]),
        operand_role=role.astype(np.int8),
        operand_rank=rank.astype(np.int32),
        operand_address=address.copy(),
        operand_step=step.astype(np.int32),
        operand_semaphore=semaphore.astype(np.int32),
        semaphores=np.zeros((len(kernels), 1), np.int32),
        kernel_names=("send", "receive"),
        labels=_LABELS,
        line_bytes=line_bytes,
    )


def _offsets(sizes: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.cumsum([0, *sizes], dtype=np.int64)
