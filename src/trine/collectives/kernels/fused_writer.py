"""Writes a GPU program in which many workgroups do the same on other tiles: one operation of all of them at a time.

As in ``draft.py`` rank 0 is written, and all ranks follow from it, or one of them; but here as arrays from the start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.collectives.kernels.draft import ALIGN_BYTES
from trine.collectives.kernels.fused_options import FusedOptions
from trine.collectives.kernels.fused_tiles import MAX_OPERANDS, too_large
from trine.gpu.program import Buffer, GpuProgram

Column = Int64 | int


class Part(NamedTuple):
    """Operands of n operations, one or more each: columns are numbers, [n], or [n, m].

    Memory of rank + ``distance``, at ``address`` + ((rank + chunk) modulo ranks) * stride; line i ``step`` bytes on.
    """

    role: int
    distance: Column
    address: Column
    chunk: Column = 0
    stride: Column = 0
    step: Column = 0
    semaphore: Column = -1


class _Written(NamedTuple):
    """n operations with m operands each: int64[n]; operands int64[7, n, m], as in Part."""

    kind: int
    label: int
    workgroup: Int64
    order: Int64
    amount: Int64
    operands: Int64


class Writer:
    """The program of rank 0 as it is written: buffers, then operations in any order."""

    def __init__(self, options: FusedOptions, workgroups: int) -> None:
        self.options, self.workgroups = options, workgroups
        self.buffers: list[Buffer] = []
        self.num_semaphores = 0
        self.num_operands = 0
        self._labels: dict[str, int] = {}
        self._written: list[_Written] = []

    def buffer(self, name: str, size_bytes: int, *, uncached: bool = False) -> int:
        """A new buffer; returns where it begins."""
        last = self.buffers[-1] if self.buffers else None
        base = 0 if last is None else -(-(last.base + last.size_bytes) // ALIGN_BYTES) * ALIGN_BYTES
        self.buffers.append(Buffer(name=name, base=base, size_bytes=size_bytes, uncached=uncached))
        return base

    def add(
        self, kind: int, workgroup: Int64, order: Int64, amount: Column, parts: tuple[Part, ...], label: str
    ) -> None:
        """One operation at each (workgroup, order), both int64[n].

        Raises
        ------
        InputError: more than MAX_OPERANDS operands on all ranks.
        """
        n = len(workgroup)
        if n == 0:
            return
        widths = [
            max((c.shape[1] for c in part if isinstance(c, np.ndarray) and c.ndim == 2), default=1) for part in parts
        ]
        ranks = 1 if self.options.only_rank is not None else self.options.num_ranks
        self.num_operands += n * sum(widths)
        if self.num_operands * ranks > MAX_OPERANDS:
            raise too_large(self.options)
        operands = np.empty((7, n, sum(widths)), np.int64)
        at = 0
        for part, width in zip(parts, widths, strict=True):
            for row, column in enumerate(part):
                flat = isinstance(column, np.ndarray) and column.ndim == 1
                operands[row, :, at : at + width] = column[:, None] if flat else column  # type: ignore[index]
            at += width
        label_number = self._labels.setdefault(label, len(self._labels))
        amounts = np.broadcast_to(np.asarray(amount, np.int64), n)
        self._written.append(_Written(kind, label_number, workgroup, order, amounts, operands))

    def program(self, name: str) -> GpuProgram:
        """The program of all ranks, or of ``options.only_rank``."""
        options, written = self.options, self._written
        counts = [len(w.workgroup) for w in written]
        workgroup = np.concatenate([w.workgroup for w in written])
        sorted_ops = np.lexsort((np.concatenate([w.order for w in written]), workgroup))
        widths = np.repeat([w.operands.shape[2] for w in written], counts)
        starts = np.cumsum(widths) - widths
        lengths = widths[sorted_ops]
        ptr = np.append(0, np.cumsum(lengths))
        place = np.arange(ptr[-1]) + np.repeat(starts[sorted_ops] - ptr[:-1], lengths)
        columns = np.concatenate([w.operands.reshape(7, -1) for w in written], axis=1)[:, place]
        role, distance, address, chunk, stride, step, semaphore = columns
        ranks = np.arange(options.num_ranks) if options.only_rank is None else np.array([options.only_rank])
        k, turned = len(ranks), (chunk + ranks[:, None]) % options.num_ranks
        groups = np.searchsorted(workgroup[sorted_ops], np.arange(self.workgroups))
        num_ops = len(workgroup)
        return GpuProgram(
            name=name,
            num_ranks=options.num_ranks,
            kernel_rank=ranks.astype(np.int32),
            kernel_wavefronts=np.full(k, options.wavefronts, np.int32),
            kernel_ptr=np.arange(k + 1, dtype=np.int64) * self.workgroups,
            workgroup_ptr=_of_all(groups, num_ops, k),
            op_kind=np.tile(np.repeat([w.kind for w in written], counts)[sorted_ops].astype(np.int8), k),
            op_amount=np.tile(np.concatenate([w.amount for w in written])[sorted_ops], k),
            op_unroll=np.zeros(num_ops * k, np.int32),
            op_label=np.tile(np.repeat([w.label for w in written], counts)[sorted_ops].astype(np.int32), k),
            operand_ptr=_of_all(ptr[:-1], int(ptr[-1]), k),
            operand_role=np.tile(role.astype(np.int8), k),
            operand_rank=((distance + ranks[:, None]) % options.num_ranks).astype(np.int32).ravel(),
            operand_address=(address + turned * stride).ravel(),
            operand_step=np.tile(step.astype(np.int32), k),
            operand_semaphore=np.tile(semaphore.astype(np.int32), k),
            semaphores=np.zeros((options.num_ranks, self.num_semaphores), np.int32),
            buffers=tuple(self.buffers),
            kernel_names=(name,) * k,
            labels=tuple(self._labels),
            line_bytes=options.line_bytes,
        )


def _of_all(starts: npt.NDArray[np.integer], total: int, ranks: int) -> Int64:
    """CSR offsets of one rank (without the last) -> of all."""
    rows = starts.astype(np.int64) + np.arange(ranks, dtype=np.int64)[:, None] * total
    return np.append(rows.ravel(), total * ranks)
