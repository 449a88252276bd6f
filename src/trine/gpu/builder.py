"""Builder of GPU programs: operations one by one or in blocks, for named ranks or for one rank that all others follow.

Only this module lays out the columns of a :class:`GpuProgram`. Operands are absolute (``rank`` is a rank) or, in a
program of ``ranks=``, relative to the rank that runs them (``rank`` is a distance).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int32, Int64, spans
from trine.gpu.program import (
    COLUMNS,
    KERNEL_COLUMNS,
    OP_COLUMNS,
    OPERAND_COLUMNS,
    POINTERS,
    READ_SUM,
    Buffer,
    GpuProgram,
)

#: Buffers begin at multiples of this.
ALIGN_BYTES = 1 << 20

#: One number for all rows, or one per row.
Column = Int64 | int


class Operand(NamedTuple):
    """One operand: memory of ``rank`` at ``address`` bytes; line i ``i * step`` bytes on; no semaphore if it is -1.

    Relative: rank r means memory of rank (r + ``rank``) modulo ranks, at ``address`` + ((r + ``chunk``) modulo ranks) *
    ``stride``. Absolute operands have no stride.
    """

    role: int
    rank: int
    address: int
    step: int = 0
    semaphore: int = -1
    chunk: int = 0
    stride: int = 0


class Operation(NamedTuple):
    """One operation with its operands, sources before targets: the arguments of :meth:`ProgramBuilder.add`."""

    kind: int
    amount: int
    operands: tuple[Operand, ...]
    label: str | None
    unroll: int


class OperandBlock(NamedTuple):
    """Operands of n operations, one or more each, as in :class:`Operand`: columns are numbers, int64[n] or [n, m]."""

    role: int
    rank: Column
    address: Column
    step: Column = 0
    semaphore: Column = -1
    chunk: Column = 0
    stride: Column = 0


_FIELDS = tuple(f"operand_{field}" for field in Operand._fields)


class Operations(NamedTuple):
    """n operations with m operands in the order of the program.

    ops: int64[n] by the names of OP_COLUMNS; missing columns are 0. num_operands: int64[n]. operands: int64[m] by the
    names of OPERAND_COLUMNS, plus ``operand_chunk`` and ``operand_stride`` if they are relative.
    """

    ops: Mapping[str, Int64]
    num_operands: Int64
    operands: Mapping[str, Int64]


class _OperationBlock(NamedTuple):
    """n operations of one kind with m operands each, in any order: operands int64[fields, n, m]."""

    kind: int
    label: int
    workgroup: Int64
    order: Int64
    amount: Int64
    operands: Int64


class ProgramBuilder:
    """A program under construction: buffers and semaphores, then operations by workgroup, workgroups by kernel."""

    def __init__(self, name: str, num_ranks: int, *, line_bytes: int = 128, num_hosts: int = 0) -> None:
        self.name, self.num_ranks, self.line_bytes, self.num_hosts = name, num_ranks, line_bytes, num_hosts
        self.buffers: list[Buffer] = []
        self.num_semaphores = 0
        self.num_ops = self.num_operands = 0
        self._labels: dict[str, int] = {}
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._operands: list[Operand] = []
        self._blocks: list[Operations] = []
        self._unsorted: list[_OperationBlock] = []
        self._workgroup_ptr = [0]
        self._kernels: list[tuple[int, int, str]] = []
        self._kernel_ptr = [0]

    def buffer(self, name: str, size_bytes: int, *, uncached: bool = False) -> int:
        """Add a buffer after the last one and return its first byte."""
        last = self.buffers[-1] if self.buffers else None
        base = 0 if last is None else -(-(last.base + last.size_bytes) // ALIGN_BYTES) * ALIGN_BYTES
        self.buffers.append(Buffer(name=name, base=base, size_bytes=size_bytes, uncached=uncached))
        return base

    def semaphores(self, count: int) -> int:
        """Add semaphores on every rank and return the number of the first."""
        first = self.num_semaphores
        self.num_semaphores += count
        return first

    @classmethod
    def like(cls, program: GpuProgram) -> ProgramBuilder:
        """Return a builder with the name, ranks, lines, buffers, labels and semaphores of a program, but no kernels."""
        hosts = program.num_hosts
        builder = cls(program.name, program.num_ranks, line_bytes=program.line_bytes, num_hosts=hosts)
        builder.buffers = list(program.buffers)
        builder.num_semaphores = program.semaphores.shape[1]
        builder._labels = {label: number for number, label in enumerate(program.labels)}
        return builder

    def label(self, text: str | None) -> int:
        """Return the number of a label, or -1 for None."""
        return -1 if text is None else self._labels.setdefault(text, len(self._labels))

    def add(
        self, kind: int, amount: int, operands: Iterable[Operand], label: str | None = None, unroll: int = 0
    ) -> None:
        """Add one operation to the current workgroup; sources come before targets."""
        first = len(self._operands)
        self._operands.extend(operands)
        added = len(self._operands) - first
        self._rows.append((kind, amount, unroll, self.label(label), added))
        self.num_ops += 1
        self.num_operands += added

    def add_block(
        self, kind: int, workgroup: Int64, order: Int64, amount: Column, operands: Sequence[OperandBlock], label: str
    ) -> None:
        """Add one operation at each (workgroup, order), both int64[n]; :meth:`end_workgroups` sorts them."""
        n = len(workgroup)
        if n == 0:
            return
        widths = []
        for block in operands:
            widths.append(max((np.shape(c)[1] for c in block if np.ndim(c) == 2), default=1))
        self.reserve(n * sum(widths))
        columns = np.empty((len(_FIELDS), n, sum(widths)), np.int64)
        first_column = 0
        for block, width in zip(operands, widths, strict=True):
            for row, column in enumerate(block):
                flat = isinstance(column, np.ndarray) and column.ndim == 1
                columns[row, :, first_column : first_column + width] = column[:, None] if flat else column  # type: ignore[index]
            first_column += width
        amounts = np.broadcast_to(np.asarray(amount, np.int64), n)
        self._unsorted.append(_OperationBlock(kind, self.label(label), workgroup, order, amounts, columns))
        self.num_ops += n
        self.num_operands += n * sum(widths)

    def reserve(self, num_operands: int) -> None:
        """Prepare for a block of ``num_operands`` operands; builders with a limit raise InputError here."""

    def extend(self, operations: Operations, sizes: Iterable[int]) -> None:
        """Add whole workgroups at once; ``sizes`` are their numbers of operations."""
        self._flush()
        self._blocks.append(operations)
        self.num_ops += len(operations.num_operands)
        self.num_operands += int(operations.num_operands.sum())
        for size in sizes:
            self._workgroup_ptr.append(self._workgroup_ptr[-1] + size)

    def end_workgroup(self) -> None:
        """End a workgroup, which holds the operations since the last one."""
        self._workgroup_ptr.append(self.num_ops)

    def end_workgroups(self, count: int) -> None:
        """End ``count`` workgroups made of the added blocks; operations of equal order stay in block order."""
        blocks, self._unsorted = self._unsorted, []
        counts = [len(block.workgroup) for block in blocks]
        workgroup = np.concatenate([block.workgroup for block in blocks])
        rows = np.lexsort((np.concatenate([block.order for block in blocks]), workgroup))
        widths = np.repeat([block.operands.shape[2] for block in blocks], counts)
        starts, lengths = (np.cumsum(widths) - widths)[rows], widths[rows]
        place = spans(starts, lengths)
        operands = np.concatenate([block.operands.reshape(len(_FIELDS), -1) for block in blocks], axis=1)[:, place]
        self._flush()
        kinds = [block.kind for block in blocks]
        amounts = [block.amount for block in blocks]
        labels = [block.label for block in blocks]
        ops = {
            "op_kind": np.repeat(kinds, counts)[rows],
            "op_amount": np.concatenate(amounts)[rows],
            "op_label": np.repeat(labels, counts)[rows],
        }
        self._blocks.append(Operations(ops, lengths, dict(zip(_FIELDS, operands, strict=True))))
        ends = np.searchsorted(workgroup[rows], np.arange(1, count + 1))
        self._workgroup_ptr += (self._workgroup_ptr[-1] + ends).tolist()

    def end_kernel(self, rank: int, wavefronts: int = 1, name: str = "") -> None:
        """End a kernel of ``rank``, which holds the workgroups since the last kernel."""
        self.end_kernels((rank,), wavefronts, name)

    def end_kernels(self, ranks: Sequence[int], wavefronts: int, name: str) -> None:
        """End one kernel per rank in ``ranks``; they share the workgroups since the last kernel equally."""
        first = self._kernel_ptr[-1]
        workgroups_per_rank = (len(self._workgroup_ptr) - 1 - first) // len(ranks)
        for number, rank in enumerate(ranks, 1):
            self._kernel_ptr.append(first + number * workgroups_per_rank)
            self._kernels.append((rank, wavefronts, name))

    def program(
        self,
        *,
        ranks: Sequence[int] | None = None,
        grid: Sequence[int] = (),
        semaphores: Sequence[Sequence[int]] | Int32 = (),
        payload_bytes: int = 0,
        notes: tuple[str, ...] = (),
        own_chunk_first: bool = False,
    ) -> GpuProgram:
        """Return the whole program.

        ranks: None: operands are absolute; else they are relative, and each of these ranks runs the kernels. grid: the
            sizes of the ranks' grid, row-major; distances and chunks are positions in it (modulo each size). The
            default is one ring.
        own_chunk_first: in a ring, the buffers of each rank begin with its own chunk, then that of the next rank, ...
            All ranks then use equal addresses, and the load-store level simulates one for all. Multimem operands
            need one address on all members: each rank takes rank 0's chunk.
        semaphores: for each rank, the initial values of its first semaphores; the others begin at 0.
        """
        self._flush()
        columns = {}
        for i, (name, dtype) in enumerate(KERNEL_COLUMNS.items()):
            columns[name] = np.array([kernel[i] for kernel in self._kernels], dtype)
        for name, dtype in OP_COLUMNS.items():
            columns[name] = self._column([(len(w.num_operands), w.ops.get(name)) for w in self._blocks], dtype)
        for name in _FIELDS:
            parts = [(int(w.num_operands.sum()), w.operands.get(name)) for w in self._blocks]
            columns[name] = self._column(parts, OPERAND_COLUMNS.get(name, np.int64))
        operand_ptr = np.concatenate([[0], *(written.num_operands for written in self._blocks)]).cumsum()
        pointers: list[Sequence[int] | Int64] = [self._kernel_ptr, self._workgroup_ptr, operand_ptr]
        names = tuple(name for *_, name in self._kernels)
        if ranks is not None:
            relative = columns
            columns = self._rotated(columns, np.array(ranks, np.int64)[:, None], grid or (self.num_ranks,))
            if own_chunk_first and len(grid) <= 1:
                columns["operand_address"] = np.tile(self._own_first(relative), len(ranks))
            pointers = [_repeated(pointer, len(ranks)) for pointer in pointers]
            names *= len(ranks)
        initial = np.zeros((self.num_ranks, self.num_semaphores), np.int32)
        for rank, values in enumerate(semaphores):
            initial[rank, : len(values)] = values
        arrays: dict[str, Any] = {name: columns[name] for name in COLUMNS}
        arrays |= {name: np.array(pointer, np.int64) for name, pointer in zip(POINTERS, pointers, strict=True)}
        return GpuProgram(
            name=self.name, num_ranks=self.num_ranks, **arrays, semaphores=initial, buffers=tuple(self.buffers),
            kernel_names=names if any(names) else (), labels=tuple(self._labels), line_bytes=self.line_bytes,
            payload_bytes=payload_bytes, notes=notes, num_hosts=self.num_hosts,
        )  # fmt: skip

    def _flush(self) -> None:
        """Convert the operations added one by one to columns."""
        if not self._rows:
            return
        *ops, num_operands = np.array(self._rows, np.int64).T
        operands = np.array(self._operands, np.int64).reshape(-1, len(_FIELDS)).T
        self._blocks.append(
            Operations(dict(zip(OP_COLUMNS, ops, strict=True)), num_operands, dict(zip(_FIELDS, operands, strict=True)))
        )
        self._rows, self._operands = [], []

    def _column(self, parts: Sequence[tuple[int, Int64 | None]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Concatenate the parts (length, values); None means all zeros."""
        values = []
        for length, part in parts:
            values.append(np.zeros(length, dtype) if part is None else part.astype(dtype))
        return np.concatenate([np.zeros(0, dtype), *values])

    def _own_first(self, columns: Mapping[str, npt.NDArray[Any]]) -> Int64:
        """Return the addresses of all ranks, from rank 0's columns, if buffers begin with the owner's chunk."""
        is_multimem = columns["operand_role"] >= READ_SUM
        distance = np.where(is_multimem, 0, columns["operand_rank"].astype(np.int64))
        chunk = (columns["operand_chunk"] - distance) % self.num_ranks
        addresses: Int64 = columns["operand_address"] + chunk * columns["operand_stride"]
        return addresses

    def _rotated(
        self, columns: Mapping[str, npt.NDArray[Any]], ranks: Int64, grid: Sequence[int]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of all ``ranks``, int64[n, 1], from the columns of rank 0."""
        rotated = {name: np.tile(column, len(ranks)) for name, column in columns.items()}
        chunk = _moved(columns["operand_chunk"], ranks, grid)
        rotated["operand_address"] = (columns["operand_address"] + chunk * columns["operand_stride"]).ravel()
        for name in ("kernel_rank", "operand_rank"):
            rotated[name] = _moved(columns[name].astype(np.int64), ranks, grid).astype(np.int32).ravel()
        return rotated


def _moved(places: Int64, offset: Int64, grid: Sequence[int]) -> Int64:
    """Return places in a row-major grid, moved along each of its dimensions."""
    moved, scale = np.zeros(np.broadcast_shapes(places.shape, offset.shape), np.int64), 1
    for size in reversed(grid):
        moved += (places + offset) % size * scale
        places, offset, scale = places // size, offset // size, scale * size
    return moved


def _repeated(ptr: Sequence[int] | Int64, times: int) -> Int64:
    """Return the pointers of ``times`` identical ranks from the pointers of one."""
    inner = np.asarray(ptr[:-1], np.int64) + np.arange(times, dtype=np.int64)[:, None] * int(ptr[-1])
    return np.append(inner.ravel(), int(ptr[-1]) * times)


def operations_of(program: GpuProgram) -> list[Operation]:
    """Return the operations of a program, one by one."""
    columns = [getattr(program, name).tolist() for name in OPERAND_COLUMNS]
    operands = [Operand(*row) for row in zip(*columns, strict=True)]
    labels, ptr = [*program.labels, None], program.operand_ptr.tolist()
    ops = zip(*(getattr(program, name).tolist() for name in OP_COLUMNS), strict=True)
    return [
        Operation(kind, amount, tuple(operands[ptr[i] : ptr[i + 1]]), labels[label], unroll)
        for i, (kind, amount, unroll, label) in enumerate(ops)
    ]
