"""Compiler from a text program's statements to arrays: expands ranks, workgroups and loops, all at once.

Every workgroup of a block has the same operations at the same positions, because loop counts are the same everywhere.
So a line becomes one assignment to an array over ranks x workgroups x operations; its values are arrays that broadcast
over ranks x workgroups x turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.gpu import program as isa
from trine.gpu.builder import Operations, ProgramBuilder
from trine.gpu.program import GpuProgram
from trine.gpu.text.line import MAX_VALUE, BinaryExpression, Name, Number, SourceLine, Value, constant, work_out
from trine.gpu.text.operations import OperandText, OperationText
from trine.gpu.text.parse import KernelText, Loop, ProgramHeader, Statement, Workgroups

MAX_OPS = 2_000_000
MAX_OPERANDS = 8_000_000
MAX_WORKGROUPS = 2**20
MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Placed:
    """An operation, its positions in the workgroup (one per turn of its loops), and the loop counters there."""

    operation: OperationText
    positions: Int64
    counters: dict[str, Int64]


@dataclass(slots=True)
class _KernelColumns:
    """Growing columns of a kernel: ranks x operations, or ranks x operands."""

    ops: dict[str, list[Int64]] = field(default_factory=dict)
    operands: dict[str, list[Int64]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    def add(self, columns: dict[str, Int64], to: dict[str, list[Int64]]) -> None:
        for name, values in columns.items():
            to.setdefault(name, []).append(values.reshape(values.shape[0], -1))


#: Further columns of operations: number of operands, and line.
_COUNT, _LINE = "count", "line"


class TextCompiler:
    """Collector of the kernels of one program. ``lines``: source lines of operations, indexed by ``op_line[i]``."""

    def __init__(self, head: ProgramHeader) -> None:
        self._head = head
        self._names: dict[str, Value] = {buffer.name: buffer.base for buffer in head.buffers}
        self._names["ranks"] = head.num_ranks
        total = head.num_ranks + head.num_hosts
        self._builder = ProgramBuilder(head.name, total, line_bytes=head.line_bytes, num_hosts=head.num_hosts)
        self._builder.buffers += head.buffers
        self._builder.semaphores(head.num_semaphores)
        self._num_ops = self._num_operands = self._num_workgroups = 0
        self._op_lines: list[Int64] = []
        self.lines: list[SourceLine] = []

    def kernel(self, kernel: KernelText) -> None:
        """Add a kernel for each of its ranks.

        Raises SpecError: a value out of range, or too many operations; names file and line.
        """
        line, last_rank = kernel.line, self._head.num_ranks - 1
        first = constant(kernel.first, self._names, line, "the rank", 0, last_rank)
        last = constant(kernel.last, self._names, line, "the last rank", first, last_rank)
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
        columns, num_placed = _KernelColumns(), 0
        for block, count in zip(kernel.workgroups, counts, strict=True):
            self._workgroups(block, ranks, np.arange(num_placed, num_placed + count), sum(counts), columns)
            num_placed += count
        self._join(columns, len(ranks))
        self._builder.end_kernels(ranks.tolist(), wavefronts, kernel.name)

    def _join(self, columns: _KernelColumns, num_ranks: int) -> None:
        """Append the kernel's columns to the program, rank after rank."""
        ops, operands = (
            {name: np.concatenate(parts, axis=1).ravel() for name, parts in added.items()}
            for added in (columns.ops, columns.operands)
        )
        self._op_lines.append(ops.pop(_LINE))
        self._builder.extend(Operations(ops, ops.pop(_COUNT), operands), columns.sizes * num_ranks)

    def _workgroups(self, block: Workgroups, ranks: Int64, wg: Int64, total: int, columns: _KernelColumns) -> None:
        names = self._names | {"workgroups": total}
        shape, size = (len(ranks), len(wg)), self._size(block.body, names)
        self._num_ops += shape[0] * shape[1] * size
        if self._num_ops > MAX_OPS:
            raise block.line.fail(f"the program has more than {MAX_OPS} operations")
        placed = list(self._place(block.body, np.zeros(1, np.int64), {}, names))
        names |= {"rank": ranks[:, None, None], "wg": wg[None, :, None]}
        counts = np.zeros(size, np.int64)
        for operation in placed:
            counts[operation.positions] = len(operation.operation.operands)
        self._num_operands += shape[0] * shape[1] * int(counts.sum())
        if self._num_operands > MAX_OPERANDS:
            raise block.line.fail(f"the program has more than {MAX_OPERANDS} operands")
        ops = {name: np.zeros((*shape, size), np.int64) for name in (*isa.OP_COLUMNS, _COUNT, _LINE)}
        ops[_COUNT][...] = counts
        operands = {name: np.zeros((*shape, int(counts.sum())), np.int64) for name in isa.OPERAND_COLUMNS}
        starts = np.cumsum(counts) - counts
        for operation in placed:
            self._fill(operation, names, ops, operands, starts)
        columns.sizes += [size] * len(wg)
        columns.add(ops, columns.ops)
        columns.add(operands, columns.operands)

    def _size(self, body: Sequence[Statement], names: dict[str, Value]) -> int:
        """Return the number of operations of a body, with loops expanded."""
        size = 0
        for statement in body:
            size += (
                1
                if isinstance(statement, OperationText)
                else self._size(statement.body, names) * len(self._turns(statement, names))
            )
            if size > MAX_OPS:
                raise statement.line.fail(f"the program has more than {MAX_OPS} operations")
        return size

    def _turns(self, loop: Loop, names: dict[str, Value]) -> range:
        first = constant(loop.first, names, loop.line, "the first number", -MAX_VALUE, MAX_VALUE)
        last = constant(loop.last, names, loop.line, "the last number", first - 1, first + MAX_OPS - 1)
        return range(first, last + 1)

    def _place(
        self, body: Sequence[Statement], starts: Int64, counters: dict[str, Int64], names: dict[str, Value]
    ) -> Iterator[_Placed]:
        """Yield the operations of a body that starts at each of ``starts``."""
        placed = 0
        for statement in body:
            if isinstance(statement, OperationText):
                yield _Placed(self._with_members(statement), starts + placed, counters)
                placed += 1
                continue
            turns, size = self._turns(statement, names), self._size(statement.body, names)
            if len(turns) * size:  # an empty body may have more turns than fit into memory
                turn_starts = (starts[:, None] + placed + np.arange(len(turns)) * size).ravel()
                nested = {name: np.repeat(values, len(turns)) for name, values in counters.items()}
                nested |= {statement.name: np.tile(np.array(turns, np.int64), len(starts))} if statement.name else {}
                yield from self._place(statement.body, turn_starts, nested, names)
            placed += size * len(turns)

    def _with_members(self, operation: OperationText) -> OperationText:
        """Expand operands of all ranks into a row for each rank."""
        if not any(operand.everyone for operand in operation.operands):
            return operation
        rows: list[OperandText] = []
        for operand in operation.operands:
            rows.append(operand)
            for distance in range(1, self._head.num_ranks) if operand.everyone else ():
                rank = BinaryExpression("+", Name("rank"), Number(distance))
                role = isa.READ_MEMBER if operand.role == isa.READ_SUM else isa.WRITE_MEMBER
                rows.append(replace(operand, role=role, rank=rank, relative=True, everyone=False))
        return replace(operation, operands=tuple(rows))

    def _fill(
        self, placed: _Placed, names: dict[str, Value], ops: dict[str, Int64], operands: dict[str, Int64], starts: Int64
    ) -> None:
        operation, line = placed.operation, placed.operation.line
        values_of_names = names | placed.counters
        positions = placed.positions
        amount = self._amount(operation, values_of_names)
        ops["op_kind"][:, :, positions] = operation.kind
        ops["op_amount"][:, :, positions] = amount
        if operation.unroll is not None:
            unroll = work_out(operation.unroll, values_of_names, line)
            ops["op_unroll"][:, :, positions] = _within(unroll, 1, MAX_INT32, "unroll", line)
        ops["op_label"][:, :, positions] = self._builder.label(operation.label)
        ops[_LINE][:, :, positions] = len(self.lines)
        self.lines.append(line)
        for number, operand in enumerate(operation.operands):
            for name, values in self._operand(operation, operand, values_of_names).items():
                operands[f"operand_{name}"][:, :, starts[positions] + number] = values

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
            last_semaphore = head.num_semaphores - 1
            semaphore = _within(work_out(operand.semaphore, names, line), 0, last_semaphore, "the semaphore", line)
        address = head.semaphore_base + head.semaphore_step * semaphore
        if operand.address is not None:
            address = work_out(operand.address, names, line)
        step: Value = head.line_bytes if operation.kind in isa.DATA_OPS else 0
        if operand.step is not None:
            step = _within(work_out(operand.step, names, line), -MAX_INT32, MAX_INT32, "the step", line)
        columns: dict[str, Value] = {"role": operand.role, "rank": rank, "step": step, "semaphore": semaphore}
        return columns | {"address": _within(address, 0, MAX_VALUE, "the address", line)}

    def _rank(self, operand: OperandText, names: dict[str, Value], line: SourceLine) -> Value:
        if operand.rank is None:
            return names["rank"]
        rank = work_out(operand.rank, names, line)
        if operand.relative:
            return rank % self._head.num_ranks
        return _within(rank, 0, self._builder.num_ranks - 1, "the rank", line)

    @property
    def op_line(self) -> Int64:
        """int64[operations]: index into ``lines``."""
        return np.concatenate([np.zeros(0, np.int64), *self._op_lines])

    def program(self) -> GpuProgram:
        """Return the program of all added kernels."""
        head = self._head
        return self._builder.program(semaphores=self._semaphores(), payload_bytes=head.payload_bytes, notes=head.notes)

    def _semaphores(self) -> npt.NDArray[np.int32]:
        head = self._head
        values = np.zeros((self._builder.num_ranks, head.num_semaphores), np.int32)
        for rule in head.initially:
            values[rule.ranks[0] : rule.ranks[1] + 1, rule.semaphores[0] : rule.semaphores[1] + 1] = rule.value
        return values


def _within(value: Value, low: int, high: int, noun: str, line: SourceLine) -> Value:
    """Return ``value`` if all of it is from ``low`` to ``high``; raise SpecError otherwise."""
    values = np.atleast_1d(np.asarray(value, np.int64))
    outside = (values < low) | (values > high)
    if outside.any():
        value_outside = int(values[outside][0])
        if high < low:
            raise line.fail(f"{noun} is {value_outside}, but the program has none")
        raise line.fail(f"{noun} must be from {low} to {high}, got {value_outside}")
    return value
