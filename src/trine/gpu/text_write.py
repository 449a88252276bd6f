"""Prints a GPU program as text: kernels of several ranks, and workgroups, that follow one rule are printed once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.errors import InputError
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    DATA_OPS,
    DMA,
    NOP,
    OP_NAMES,
    READ,
    READ_FLAGGED,
    RELEASE,
    WAITCNT,
    WRITE_FLAGGED,
    GpuProgram,
)
from trine.gpu.text_fit import Peers, Rules, fit, fit_peers
from trine.gpu.text_line import in_quotes
from trine.gpu.text_pieces import (
    buffer_name,
    head_lines,
    peer_text,
    places_of_semaphores,
    size_text,
    terms,
    value_text,
)

MAX_PRINTED = 100_000


def format_program(program: GpuProgram, *, max_lines: int = MAX_PRINTED) -> str:
    """The text form of a well-formed program; :func:`trine.gpu.text.parse_program` makes the same program of it.

    Loops are not found again: each operation is a line, except that workgroups, and kernels of consecutive ranks, are
    one where addresses, peers and semaphores follow one rule.

    Raises
    ------
    InputError: the text would have more than ``max_lines`` lines.
    """
    lines: list[str] = []
    for line in _Writer(program).lines():
        lines.append(line)
        if len(lines) > max_lines:
            raise InputError(
                f"GPU program {program.name!r}, {program.num_ops} operations: its text has more than {max_lines} lines"
            )
    return "\n".join(lines) + "\n"


class _Kernels(NamedTuple):
    """Kernels ``first`` to ``end``, of consecutive ranks."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the operands of a run of workgroups are."""

    address: Rules
    semaphore: Rules
    peers: Peers


class _Writer:
    def __init__(self, program: GpuProgram) -> None:
        self._program = program
        self._buffers = sorted(program.buffers, key=lambda buffer: (buffer.base, buffer.size_bytes))
        self._base, self._step = places_of_semaphores(program)
        self._counts = np.diff(program.operand_ptr)
        self._has_semaphore = program.operand_semaphore >= 0

    def lines(self) -> Iterator[str]:
        yield from head_lines(self._program, self._base, self._step)
        at = 0
        while at < self._program.num_kernels:
            end = self._alike(at)
            together = self._together(_Kernels(at, end)) if end > at + 1 else None
            if together is not None:
                yield from together
            else:
                for kernel in range(at, end):
                    yield from self._alone(_Kernels(kernel, kernel + 1))
            at = end

    def _alike(self, first: int) -> int:
        """The end of the kernels from ``first`` on whose ranks follow each other and which have the same operations."""
        program, end = self._program, first + 1
        names, waves = program.kernel_names, program.kernel_wavefronts
        while end < program.num_kernels:
            if (
                (names and names[end] != names[first])
                or waves[end] != waves[first]
                or program.kernel_rank[end] != program.kernel_rank[end - 1] + 1
                or not np.array_equal(self._groups(first), self._groups(end))
                or not self._same(_operations_of(program, first), _operations_of(program, end))
            ):
                break
            end += 1
        return end

    def _groups(self, kernel: int) -> Int64:
        """Where the workgroups of a kernel begin, from its first operation."""
        first, end = self._program.kernel_ptr[kernel : kernel + 2].tolist()
        offsets: Int64 = self._program.workgroup_ptr[first : end + 1] - self._program.workgroup_ptr[first]
        return offsets

    def _same(self, one: slice, other: slice) -> bool:
        """Whether two ranges of operations are alike but for whom and what they reach."""
        program = self._program
        if one.stop - one.start != other.stop - other.start:
            return False
        left, right = _operands_of(program, one), _operands_of(program, other)
        of_operations = (program.op_kind, program.op_amount, program.op_unroll, program.op_label, self._counts)
        of_operands = (program.operand_role, program.operand_step, self._has_semaphore)
        return all(np.array_equal(column[one], column[other]) for column in of_operations) and all(
            np.array_equal(column[left], column[right]) for column in of_operands
        )

    def _title(self, kernels: _Kernels) -> list[str]:
        program = self._program
        first, last = (int(program.kernel_rank[i]) for i in (kernels.first, kernels.end - 1))
        ranks = f"ranks {first}..{last}" if last > first else f"rank {first}"
        if last > first and last - first + 1 == program.num_ranks:
            ranks = "ranks all"
        name = program.kernel_names[kernels.first] if program.kernel_names else ""
        title = f"kernel {in_quotes(name)} {ranks}" if name else f"kernel {ranks}"
        return ["", f"{title} wavefronts {program.kernel_wavefronts[kernels.first]}"]

    def _together(self, kernels: _Kernels) -> list[str] | None:
        """The text of kernels that are one; None where they follow no rule."""
        text = self._title(kernels)
        for block in self._blocks(kernels):
            if block is None:
                return None
            text += block
        return text

    def _alone(self, kernels: _Kernels) -> Iterator[str]:
        yield from self._title(kernels)
        for block in self._blocks(kernels):
            if block is None:
                raise AssertionError("a workgroup of one kernel can always be printed")
            yield from block

    def _blocks(self, kernels: _Kernels) -> Iterator[list[str] | None]:
        """The text of the kernels' workgroups; None, and then no more, where one workgroup follows no rule."""
        count = int(self._program.kernel_ptr[kernels.first + 1] - self._program.kernel_ptr[kernels.first])
        at = 0
        while at < count:
            end = self._alike_groups(kernels.first, at, count)
            together = self._workgroups(kernels, at, end)
            if together is not None:
                yield [f"workgroups {end - at}", *together]
            elif end == at + 1:
                yield None
                return
            else:
                yield from self._one_by_one(kernels, at, end)
            at = end

    def _one_by_one(self, kernels: _Kernels, first: int, end: int) -> Iterator[list[str] | None]:
        """As :meth:`_blocks`, of workgroups that follow no common rule; equal ones are still one."""
        texts = (self._workgroups(kernels, group, group + 1) for group in range(first, end))
        for text, equal in itertools.groupby(texts):
            yield None if text is None else [f"workgroups {sum(1 for _ in equal)}", *text]
            if text is None:
                return

    def _alike_groups(self, kernel: int, first: int, count: int) -> int:
        """The end of the workgroups of a kernel from ``first`` on that have the same operations."""
        group = int(self._program.kernel_ptr[kernel])
        end = first + 1
        while end < count and self._same(self._group(group + first), self._group(group + end)):
            end += 1
        return end

    def _group(self, group: int) -> slice:
        return slice(*self._program.workgroup_ptr[group : group + 2].tolist())

    def _workgroups(self, kernels: _Kernels, first: int, end: int) -> list[str] | None:
        program = self._program
        ranks = program.kernel_rank[kernels.first : kernels.end].astype(np.int64)
        wg = np.arange(first, end, dtype=np.int64)
        starts = program.kernel_ptr[kernels.first : kernels.end, None] + wg
        ops = self._group(int(starts[0, 0]))
        operands = _operands_of(program, ops)
        begins = program.operand_ptr[program.workgroup_ptr[starts]]
        index = begins[:, :, None] + np.arange(operands.stop - operands.start)
        rule = self._rule(index, ranks, wg)
        if rule is None:
            return None
        return [f"  {self._operation(op, rule, operands.start)}" for op in range(ops.start, ops.stop)]

    def _rule(self, index: Int64, ranks: Int64, wg: Int64) -> _Rule | None:
        """The rule of operands ``index`` int64[ranks, workgroups, m]."""
        program, num_ranks = self._program, self._program.num_ranks
        peers = fit_peers(program.operand_rank[index].astype(np.int64), ranks, wg, num_ranks)
        address = None if peers is None else fit(program.operand_address[index], ranks, wg, num_ranks)
        semaphores = program.operand_semaphore[index].astype(np.int64)
        semaphore = None if address is None else fit(semaphores, ranks, wg, num_ranks)
        return None if peers is None or address is None or semaphore is None else _Rule(address, semaphore, peers)

    # one operation

    def _operation(self, op: int, rule: _Rule, first: int) -> str:
        program = self._program
        kind, amount = int(program.op_kind[op]), int(program.op_amount[op])
        at = [number - first for number in range(*program.operand_ptr[op : op + 2].tolist())]
        roles = program.operand_role[first:]
        words = [OP_NAMES[kind]]
        if kind in DATA_OPS:
            words.append(f"{amount} lines")
            words.append(self._sides(at, roles, lambda i: self._line_operand(i, rule, first)))
        elif kind == DMA:
            words += [size_text(amount)] if len(at) > 1 else []
            words.append(self._sides(at, roles, lambda i: self._dma_operand(i, rule, len(at) > 1)))
        elif kind in (ACQUIRE, RELEASE):
            words.append(", ".join(self._semaphore_operand(i, rule, kind == RELEASE) for i in at))
            words += [f"by {amount}"] if amount != 1 else []
        elif kind in (WAITCNT, COMPUTE):
            words.append(f"{amount} cycles" if kind == COMPUTE else f"{amount}")
        elif kind not in (BARRIER, NOP):
            raise AssertionError(f"kind {kind}")
        words += [f"unroll {program.op_unroll[op]}"] if program.op_unroll[op] else []
        words += [f"label {in_quotes(program.labels[program.op_label[op]])}"] if program.op_label[op] >= 0 else []
        return " ".join(words)

    def _sides(self, at: Sequence[int], roles: npt.NDArray[np.int8], say: Callable[[int], str]) -> str:
        sources = [say(i) for i in at if roles[i] in (READ, READ_FLAGGED)]
        targets = [say(i) for i in at if roles[i] not in (READ, READ_FLAGGED)]
        return " ".join([*([", ".join(sources)] if sources else []), *(["->", ", ".join(targets)] if targets else [])])

    def _line_operand(self, i: int, rule: _Rule, first: int) -> str:
        program = self._program
        step, role = int(program.operand_step[first + i]), int(program.operand_role[first + i])
        text = f"{peer_text(rule.peers, i)}:{self._address(rule.address, i)}"
        if step != program.line_bytes:
            text += f" step {step}"
        return f"{text} flagged sem {value_text(rule.semaphore, i)}" if role in (READ_FLAGGED, WRITE_FLAGGED) else text

    def _dma_operand(self, i: int, rule: _Rule, moves: bool) -> str:
        if not moves:
            return self._semaphore_operand(i, rule, True)
        text = f"{peer_text(rule.peers, i)}:{self._address(rule.address, i)}"
        return f"{text} sem {value_text(rule.semaphore, i)}" if rule.semaphore.first[i] >= 0 else text

    def _semaphore_operand(self, i: int, rule: _Rule, peer: bool) -> str:
        text = f"{peer_text(rule.peers, i)} " if peer else ""
        text += f"sem {value_text(rule.semaphore, i)}"
        where, number = rule.address, rule.semaphore
        implied = (
            where.base[i] == self._base + self._step * number.base[i]
            and where.slope[i] == self._step * number.slope[i]
            and where.rise[i] == self._step * number.rise[i]
            and (where.shift[i] == number.shift[i] or not where.slope[i])
        )
        return text if implied else f"{text} at {self._address(where, i)}"

    def _address(self, rules: Rules, i: int) -> str:
        base, first = int(rules.base[i]), int(rules.first[i])
        for buffer in self._buffers:
            if buffer.base <= first < buffer.base + buffer.size_bytes:
                return terms(buffer_name(buffer), base - buffer.base, rules, i)
        return terms("", base, rules, i)


def _operations_of(program: GpuProgram, kernel: int) -> slice:
    groups = program.kernel_ptr[kernel : kernel + 2]
    return slice(*program.workgroup_ptr[groups].tolist())


def _operands_of(program: GpuProgram, ops: slice) -> slice:
    return slice(int(program.operand_ptr[ops.start]), int(program.operand_ptr[ops.stop]))
