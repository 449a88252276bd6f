"""From the parts of a text program to its arrays: ranks, workgroups and turns of loops are written out, all at once.

Every workgroup of a block has the same operations at the same places (how often loops turn is the same everywhere). So
a line becomes one assignment to an array over ranks x workgroups x operations; its values are arrays that broadcast
over ranks x workgroups x turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.gpu.program import DATA_OPS, GpuProgram
from trine.gpu.text.line import MAX_VALUE, SourceLine, Value, constant, work_out
from trine.gpu.text.operations import OperandText, OperationText
from trine.gpu.text.parse import KernelText, Loop, ProgramHeader, Statement, Workgroups

MAX_OPS = 2_000_000
MAX_OPERANDS = 8_000_000
MAX_WORKGROUPS = 2**20
MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Placed:
    """An operation, its places in the workgroup, one a turn of the loops around it, and the counters of these."""

    operation: OperationText
    at: Int64
    counters: dict[str, Int64]


@dataclass(slots=True)
class _KernelColumns:
    """Columns of a kernel's ranks x its operations so far, or x its operands."""

    ops: dict[str, list[Int64]] = field(default_factory=dict)
    operands: dict[str, list[Int64]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    def add(self, columns: dict[str, Int64], to: dict[str, list[Int64]]) -> None:
        for name, values in columns.items():
            to.setdefault(name, []).append(values.reshape(values.shape[0], -1))


_OPS = {"kind": np.int8, "amount": np.int64, "unroll": np.int32, "label": np.int32, "count": np.int64, "line": np.int32}
_OPERANDS = {"role": np.int8, "rank": np.int32, "address": np.int64, "step": np.int32, "semaphore": np.int32}


class TextCompiler:
    """Collects the kernels of one program. ``lines`` are those of its operations: ``op_line[i]`` counts them."""

    def __init__(self, head: ProgramHeader) -> None:
        self._head = head
        self._names: dict[str, Value] = {buffer.name: buffer.base for buffer in head.buffers}
        self._names["ranks"] = head.num_ranks
        self._labels: dict[str, int] = {}
        self._total = _KernelColumns()
        self._num_ops = self._num_operands = self._num_workgroups = 0
        self._kernels: list[tuple[int, int, int, str]] = []
        self.lines: list[SourceLine] = []

    def kernel(self, kernel: KernelText) -> None:
        """Add a kernel for each of its ranks.

        Raises
        ------
        SpecError: a value out of range, or too many operations; names file and line.
        """
        line, most = kernel.line, self._head.num_ranks - 1
        first = constant(kernel.first, self._names, line, "the rank", 0, most)
        last = constant(kernel.last, self._names, line, "the last rank", first, most)
        wavefronts = constant(kernel.wavefronts, self._names, line, "the number of wavefronts", 1, MAX_INT32)
        if not kernel.workgroups:
            raise line.fail("the kernel has no workgroups")
        counts = [
            constant(block.count, self._names, block.line, "the number of workgroups", 1, MAX_WORKGROUPS)
            for block in kernel.workgroups
        ]
        ranks = np.arange(first, last + 1, dtype=np.int64)
        self._num_workgroups += len(ranks) * sum(counts)
        if self._num_workgroups > MAX_WORKGROUPS:
            raise line.fail(f"the program has more than {MAX_WORKGROUPS} workgroups")
        columns, done = _KernelColumns(), 0
        for block, count in zip(kernel.workgroups, counts, strict=True):
            self._workgroups(block, ranks, np.arange(done, done + count), sum(counts), columns)
            done += count
        self._kernels += [(rank, wavefronts, sum(counts), kernel.name) for rank in ranks.tolist()]
        self._join(columns, len(ranks))

    def _join(self, columns: _KernelColumns, num_ranks: int) -> None:
        """The kernel's columns behind those of the kernels before: rank after rank."""
        for total, added in ((self._total.ops, columns.ops), (self._total.operands, columns.operands)):
            for name, parts in added.items():
                total.setdefault(name, []).append(np.concatenate(parts, axis=1).ravel())
        self._total.sizes += columns.sizes * num_ranks

    def _workgroups(self, block: Workgroups, ranks: Int64, wg: Int64, total: int, columns: _KernelColumns) -> None:
        names = self._names | {"workgroups": total}
        shape, size = (len(ranks), len(wg)), self._size(block.body, names)
        self._num_ops += shape[0] * shape[1] * size
        if self._num_ops > MAX_OPS:
            raise block.line.fail(f"the program has more than {MAX_OPS} operations")
        placed = list(self._place(block.body, np.zeros(1, np.int64), {}, names))
        names |= {"rank": ranks[:, None, None], "wg": wg[None, :, None]}
        counts = np.zeros(size, np.int64)
        for each in placed:
            counts[each.at] = len(each.operation.operands)
        self._num_operands += shape[0] * shape[1] * int(counts.sum())
        if self._num_operands > MAX_OPERANDS:
            raise block.line.fail(f"the program has more than {MAX_OPERANDS} operands")
        ops = {name: np.zeros((*shape, size), np.int64) for name in _OPS}
        ops["count"][...] = counts
        operands = {name: np.zeros((*shape, int(counts.sum())), np.int64) for name in _OPERANDS}
        starts = np.cumsum(counts) - counts
        for each in placed:
            self._fill(each, names, ops, operands, starts)
        columns.sizes += [size] * len(wg)
        columns.add(ops, columns.ops)
        columns.add(operands, columns.operands)

    def _size(self, body: Sequence[Statement], names: dict[str, Value]) -> int:
        """How many operations a body has, loops written out."""
        size = 0
        for part in body:
            size += (
                1 if isinstance(part, OperationText) else self._size(part.body, names) * len(self._turns(part, names))
            )
            if size > MAX_OPS:
                raise part.line.fail(f"the program has more than {MAX_OPS} operations")
        return size

    def _turns(self, loop: Loop, names: dict[str, Value]) -> range:
        first = constant(loop.first, names, loop.line, "the first number", -MAX_VALUE, MAX_VALUE)
        last = constant(loop.last, names, loop.line, "the last number", first - 1, first + MAX_OPS - 1)
        return range(first, last + 1)

    def _place(
        self, body: Sequence[Statement], at: Int64, counters: dict[str, Int64], names: dict[str, Value]
    ) -> Iterator[_Placed]:
        """The operations of a body that begins at each of ``at``."""
        done = 0
        for part in body:
            if isinstance(part, OperationText):
                yield _Placed(part, at + done, counters)
                done += 1
                continue
            turns, size = self._turns(part, names), self._size(part.body, names)
            if len(turns) * size:  # turns of nothing may be more than there is memory for
                starts = (at[:, None] + done + np.arange(len(turns)) * size).ravel()
                inside = {name: np.repeat(values, len(turns)) for name, values in counters.items()}
                inside |= {part.name: np.tile(np.array(turns, np.int64), len(at))} if part.name else {}
                yield from self._place(part.body, starts, inside, names)
            done += size * len(turns)

    def _fill(
        self, placed: _Placed, names: dict[str, Value], ops: dict[str, Int64], operands: dict[str, Int64], starts: Int64
    ) -> None:
        operation, line = placed.operation, placed.operation.line
        known = names | placed.counters
        at = placed.at
        amount = self._amount(operation, known)
        ops["kind"][:, :, at] = operation.kind
        ops["amount"][:, :, at] = amount
        if operation.unroll is not None:
            unroll = work_out(operation.unroll, known, line)
            ops["unroll"][:, :, at] = _within(unroll, 1, MAX_INT32, "unroll", line)
        ops["label"][:, :, at] = -1 if operation.label is None else self._labels.setdefault(
            operation.label, len(self._labels)
        )  # fmt: skip
        ops["line"][:, :, at] = len(self.lines)
        self.lines.append(line)
        for number, operand in enumerate(operation.operands):
            for name, values in self._operand(operation, operand, known).items():
                operands[name][:, :, starts[at] + number] = values

    def _amount(self, operation: OperationText, names: dict[str, Value]) -> Value:
        line = operation.line
        amount = _within(work_out(operation.amount, names, line), 0, MAX_VALUE, "how much", line)
        if not operation.amount_is_bytes:
            return amount
        size = self._head.line_bytes
        if np.any(np.not_equal(amount % size, 0)):
            raise line.fail(f"the size must be whole lines of {size} B")
        return amount // size

    def _operand(self, operation: OperationText, operand: OperandText, names: dict[str, Value]) -> dict[str, Value]:
        line, head = operation.line, self._head
        rank = self._rank(operand, names, line)
        if operand.role == operation.must_leave and np.any(np.equal(rank, names["rank"])):
            raise line.fail("put copies to another rank, and get from another: use copy inside a rank")
        semaphore: Value = -1
        if operand.semaphore is not None:
            most = head.num_semaphores - 1
            semaphore = _within(work_out(operand.semaphore, names, line), 0, most, "the semaphore", line)
        address = head.semaphore_base + head.semaphore_step * semaphore
        if operand.address is not None:
            address = work_out(operand.address, names, line)
        step: Value = head.line_bytes if operation.kind in DATA_OPS else 0
        if operand.step is not None:
            step = _within(work_out(operand.step, names, line), -MAX_INT32, MAX_INT32, "the step", line)
        found: dict[str, Value] = {"role": operand.role, "rank": rank, "step": step, "semaphore": semaphore}
        return found | {"address": _within(address, 0, MAX_VALUE, "the address", line)}

    def _rank(self, operand: OperandText, names: dict[str, Value], line: SourceLine) -> Value:
        if operand.rank is None:
            return names["rank"]
        rank = work_out(operand.rank, names, line)
        if operand.relative:
            return rank % self._head.num_ranks
        return _within(rank, 0, self._head.num_ranks - 1, "the rank", line)

    def _column(self, name: str) -> npt.NDArray[Any]:
        columns, dtypes = (self._total.ops, _OPS) if name in _OPS else (self._total.operands, _OPERANDS)
        parts = columns.get(name, [])
        return np.concatenate(parts).astype(dtypes[name]) if parts else np.zeros(0, dtypes[name])

    @property
    def op_line(self) -> npt.NDArray[np.int32]:
        """int32[operations]: index into ``lines``."""
        return self._column("line")

    def program(self) -> GpuProgram:
        """All kernels that were added."""
        head, kernels = self._head, self._kernels
        names = tuple(name for *_, name in kernels)
        return GpuProgram(
            name=head.name,
            num_ranks=head.num_ranks,
            kernel_rank=np.array([rank for rank, *_ in kernels], np.int32),
            kernel_wavefronts=np.array([wavefronts for _, wavefronts, *_ in kernels], np.int32),
            kernel_ptr=_offsets([count for *_, count, _ in kernels]),
            workgroup_ptr=_offsets(self._total.sizes),
            operand_ptr=_offsets(self._column("count")),
            semaphores=self._semaphores(),
            buffers=head.buffers,
            kernel_names=names if any(names) else (),
            labels=tuple(self._labels),
            line_bytes=head.line_bytes,
            payload_bytes=head.payload_bytes,
            notes=head.notes,
            **{f"op_{name}": self._column(name) for name in ("kind", "amount", "unroll", "label")},
            **{f"operand_{name}": self._column(name) for name in _OPERANDS},
        )

    def _semaphores(self) -> npt.NDArray[np.int32]:
        head = self._head
        values = np.zeros((head.num_ranks, head.num_semaphores), np.int32)
        for each in head.initially:
            values[each.ranks[0] : each.ranks[1] + 1, each.semaphores[0] : each.semaphores[1] + 1] = each.value
        return values


def _offsets(sizes: Sequence[int] | Int64) -> Int64:
    return np.concatenate(([0], np.cumsum(np.asarray(sizes, np.int64)))).astype(np.int64)


def _within(value: Value, low: int, high: int, what: str, line: SourceLine) -> Value:
    """``value``, all of which must be from ``low`` to ``high``."""
    values = np.atleast_1d(np.asarray(value, np.int64))
    outside = (values < low) | (values > high)
    if outside.any():
        found = int(values[outside][0])
        if high < low:
            raise line.fail(f"there is none: {what} is {found}")
        raise line.fail(f"{what} must be from {low} to {high}, got {found}")
    return value
