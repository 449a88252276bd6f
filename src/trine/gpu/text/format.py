"""Printer of GPU programs as text: kernels of several ranks, and workgroups, that follow one rule are printed once.

Numbers are fitted to ``base + slope * ((rank + shift) % ranks) + rise * wg``, ranks of operands to distances.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.program import Buffer, GpuProgram, is_flagged
from trine.gpu.text.line import in_quotes, quoted
from trine.gpu.text.parse import RESERVED, aligned


@dataclass(frozen=True, slots=True)
class NumberRules:
    """Rules of m columns of numbers, int64[m] each. ``shift`` -1: the plain rank; ``first``: one of the numbers."""

    first: Int64
    base: Int64
    slope: Int64
    shift: Int64
    rise: Int64


def fit(values: Int64, ranks: Int64, wg: Int64, num_ranks: int) -> NumberRules | None:
    """Return the rules of ``values`` int64[ranks, workgroups, m], or None if any of the m columns follows no rule."""
    rise = values[0, 1] - values[0, 0] if len(wg) > 1 else np.zeros(values.shape[2], np.int64)
    level = values - rise * wg[None, :, None]
    if (level != level[:, :1]).any():
        return None
    rules = NumberRules(values[0, 0], level[0, 0].copy(), np.zeros_like(rise), np.full_like(rise, -1), rise)
    by_rank = level[:, 0]
    for column in np.flatnonzero((by_rank != by_rank[0]).any(axis=0)).tolist():
        rule = _by_rank(by_rank[:, column], ranks, num_ranks)
        if rule is None:
            return None
        rules.base[column], rules.slope[column], rules.shift[column] = rule
    return rules


def _by_rank(values: Int64, ranks: Int64, num_ranks: int) -> tuple[int, int, int] | None:
    slope = int(values[1] - values[0])
    base = int(values[0]) - slope * int(ranks[0])
    if (values == base + slope * ranks).all():
        return base, slope, -1
    if len(values) != num_ranks:
        return None
    for first in (int(values.argmin()), int(values.argmax())):
        base, slope = int(values[first]), int(values[(first + 1) % num_ranks] - values[first])
        shift = (num_ranks - first) % num_ranks
        if (values == base + slope * ((ranks + shift) % num_ranks)).all():
            return base, slope, shift
    return None


@dataclass(frozen=True, slots=True)
class PeerRules:
    """Rules of m columns of ranks, int64[m] each: (rank + distance + rise * wg) % ranks, or ``rank`` if not -1."""

    distance: Int64
    rise: Int64
    rank: Int64


def fit_peers(values: Int64, ranks: Int64, wg: Int64, num_ranks: int) -> PeerRules | None:
    """Return the rules of ranks ``values`` int64[ranks, workgroups, m], or None if any column follows no rule.

    A single kernel names other ranks by number; several kernels name them by distance if it is the same. The distance
    changes by at most one from a workgroup to the next: with two workgroups, any change would fit a rule.
    """
    fixed = (values == values[:1, :1]).all(axis=(0, 1))
    distance = (values - ranks[:, None, None]) % num_ranks
    relative = distance[0]
    rise = (relative[1] - relative[0]) % num_ranks if len(wg) > 1 else np.zeros(values.shape[2], np.int64)
    base = (relative[0] - rise * wg[0]) % num_ranks
    moving = (distance == (base + rise * wg[None, :, None]) % num_ranks).all(axis=(0, 1))
    moving &= ((rise <= 1) | (rise == num_ranks - 1)) & (values < num_ranks).all(axis=(0, 1))  # hosts come last
    is_own = moving & (base == 0) & (rise == 0)
    absolute = fixed & ~is_own if len(ranks) == 1 else fixed & ~moving
    if not (absolute | moving).all():
        return None
    return PeerRules(base, rise, np.where(absolute, values[0, 0], -1))


def size_text(size: int) -> str:
    """Return a number of bytes in the largest unit that keeps it whole: ``64 KiB``, ``100 B``."""
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def buffer_name(buffer: Buffer) -> str:
    return in_quotes(buffer.name) if buffer.name in RESERVED else quoted(buffer.name)


def peer_text(peers: PeerRules, i: int) -> str:
    if peers.rank[i] >= 0:
        return f"rank {peers.rank[i]}"
    distance, rise = int(peers.distance[i]), int(peers.rise[i])
    if not distance and not rise:
        return "own"
    text = f"rank+{distance}" if distance or not rise else "rank"
    if not rise:
        shift = ""
    elif rise == 1:
        shift = "+wg"
    else:
        shift = "-wg"
    return text + shift


def value_text(rules: NumberRules, i: int) -> str:
    return terms("", int(rules.base[i]), rules, i, plain=True)


def terms(name: str, offset: int, rules: NumberRules, i: int, plain: bool = False) -> str:
    """Return ``name + offset + slope * rank + rise * wg`` without zero terms; sizes have units unless ``plain``."""
    slope, shift, rise = int(rules.slope[i]), int(rules.shift[i]), int(rules.rise[i])
    rank = "rank" if shift < 0 else f"((rank + {shift}) % ranks)"
    parts = [(1, name)] if name else []
    for factor, variable in ((slope, rank), (rise, "wg")):
        if factor:
            scale = "" if abs(factor) == 1 else f"{_size(abs(factor), plain)} * "
            parts.append((-1 if factor < 0 else 1, scale + variable))
    if offset or not parts:
        place = 1 if name or offset < 0 else 0
        sign = -1 if offset < 0 else 1
        parts.insert(place, (sign, _size(abs(offset), plain)))
    terms = []
    for sign, part in parts:
        terms.append(("+ " if sign > 0 else "- ") + part)
    text = " ".join(terms)
    return text.removeprefix("+ ") if parts[0][0] > 0 else f"0 {text}"


def _size(size: int, plain: bool) -> str:
    return str(size) if plain or size % 1024 or not size else size_text(size)


def head_lines(program: GpuProgram, base: int, step: int) -> Iterator[str]:
    yield f"program {quoted(program.name)}"
    yield from (f"note {in_quotes(note)}" for note in program.notes)
    yield f"ranks {program.num_gpus}"
    if program.num_hosts:
        yield f"hosts {program.num_hosts}"
    yield f"line {program.line_bytes} B"
    if program.payload_bytes:
        yield f"payload {size_text(program.payload_bytes)}"
    end = 0
    for buffer in program.buffers:
        if buffer.base == aligned(end):
            position = ""
        else:
            position = f" at {size_text(buffer.base) if buffer.base else 0}"
        kind = " uncached" if buffer.uncached else ""
        yield f"buffer {buffer_name(buffer)} {size_text(buffer.size_bytes)}{position}{kind}"
        end = max(end, buffer.base + buffer.size_bytes)
    if program.semaphores.shape[1]:
        position = "" if (base, step) == (aligned(end), program.line_bytes) else f" at {base}"
        position += "" if step == program.line_bytes else f" step {step}"
        yield f"semaphores {program.semaphores.shape[1]}{position}"
        yield from _initial_values(program.semaphores)


def _initial_values(semaphores: npt.NDArray[np.int32]) -> Iterator[str]:
    if (semaphores == semaphores[:1]).all():
        yield from (f"initially sem {text}" for text in _runs(semaphores[0]))
        return
    for rank, values in enumerate(semaphores):
        yield from (f"initially rank {rank} sem {text}" for text in _runs(values))


def _runs(values: npt.NDArray[np.int32]) -> Iterator[str]:
    """Yield runs of equal nonzero numbers, as ``0..7 = 1``."""
    ends = np.flatnonzero(np.diff(values)) + 1
    for first, end in zip([0, *ends.tolist()], [*ends.tolist(), len(values)], strict=True):
        if values[first]:
            yield f"{first} = {values[first]}" if end == first + 1 else f"{first}..{end - 1} = {values[first]}"


def _semaphore_layout(program: GpuProgram) -> tuple[int, int]:
    """Return base and step of the addresses of most semaphores without lines or data; these need no ``at``."""
    end = max((buffer.base + buffer.size_bytes for buffer in program.buffers), default=0)
    default = aligned(end), program.line_bytes
    kind = np.repeat(program.op_kind, np.diff(program.operand_ptr))
    alone = np.repeat(np.diff(program.operand_ptr), np.diff(program.operand_ptr)) == 1
    chosen = ((kind == isa.ACQUIRE) | (kind == isa.RELEASE) | ((kind == isa.DMA) & alone)) & (
        program.operand_semaphore >= 0
    )
    numbers = program.operand_semaphore[chosen].astype(np.int64)
    addresses = program.operand_address[chosen]
    if not len(numbers) or (addresses == default[0] + default[1] * numbers).all():
        return default
    different = np.flatnonzero(numbers != numbers[0])
    if not len(different):
        return int(addresses[0]) - default[1] * int(numbers[0]), default[1]
    step, rest = divmod(int(addresses[different[0]] - addresses[0]), int(numbers[different[0]] - numbers[0]))
    fits = not rest and abs(step) < 2**31
    return (int(addresses[0]) - step * int(numbers[0]), step) if fits else default


MAX_PRINTED = 100_000


def format_program(program: GpuProgram, *, max_lines: int = MAX_PRINTED) -> str:
    """Return the text form of a well-formed program; :func:`trine.gpu.text.parse_program` restores the program.

    Loops are not recovered: each operation is a line. Workgroups, and kernels of consecutive ranks, are printed once
    if their addresses, peers and semaphores follow one rule.

    Raises InputError for a text of more than ``max_lines`` lines.
    """
    lines: list[str] = []
    for line in _TextPrinter(program).lines():
        lines.append(line)
        if len(lines) > max_lines:
            raise InputError(
                f"GPU program {program.name!r}, {program.num_ops} operations: its text has more than {max_lines} lines"
            )
    return "\n".join(lines) + "\n"


class _KernelRun(NamedTuple):
    """Kernels ``first`` to ``end``, of consecutive ranks."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class _OperandRules:
    """Rules of the operands of a run of workgroups."""

    address: NumberRules
    semaphore: NumberRules
    peers: PeerRules


class _TextPrinter:
    def __init__(self, program: GpuProgram) -> None:
        self._program = program
        self._buffers = sorted(program.buffers, key=lambda buffer: (buffer.base, buffer.size_bytes))
        self._base, self._step = _semaphore_layout(program)
        self._counts = np.diff(program.operand_ptr)
        self._has_semaphore, self._flagged = program.operand_semaphore >= 0, is_flagged(program)

    def lines(self) -> Iterator[str]:
        yield from head_lines(self._program, self._base, self._step)
        first = 0
        while first < self._program.num_kernels:
            end = self._end_of_kernels(first)
            together = self._together(_KernelRun(first, end)) if end > first + 1 else None
            if together is not None:
                yield from together
            else:
                for kernel in range(first, end):
                    yield from self._alone(_KernelRun(kernel, kernel + 1))
            first = end

    def _end_of_kernels(self, first: int) -> int:
        """Return the end of the run of kernels from ``first`` on with consecutive ranks and the same operations."""
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
        """Return the start of each workgroup of a kernel, counted from the kernel's first operation."""
        first, end = self._program.kernel_ptr[kernel : kernel + 2].tolist()
        offsets: Int64 = self._program.workgroup_ptr[first : end + 1] - self._program.workgroup_ptr[first]
        return offsets

    def _same(self, one_range: slice, other_range: slice) -> bool:
        """Return whether two ranges of operations are the same except for peers, addresses and semaphores."""
        program = self._program
        if one_range.stop - one_range.start != other_range.stop - other_range.start:
            return False
        rows, other_rows = _operands_of(program, one_range), _operands_of(program, other_range)
        of_operations = (program.op_kind, program.op_amount, program.op_unroll, program.op_label, self._counts)
        of_operands = (program.operand_role, program.operand_step, self._has_semaphore)
        are_equal = all(np.array_equal(column[one_range], column[other_range]) for column in of_operations)
        return are_equal and all(np.array_equal(column[rows], column[other_rows]) for column in of_operands)

    def _title(self, kernels: _KernelRun) -> list[str]:
        program = self._program
        first, last = (int(program.kernel_rank[i]) for i in (kernels.first, kernels.end - 1))
        ranks = f"ranks {first}..{last}" if last > first else f"rank {first}"
        if last > first and last - first + 1 == program.num_gpus:
            ranks = "ranks all"
        name = program.kernel_names[kernels.first] if program.kernel_names else ""
        title = f"kernel {in_quotes(name)} {ranks}" if name else f"kernel {ranks}"
        return ["", f"{title} wavefronts {program.kernel_wavefronts[kernels.first]}"]

    def _together(self, kernels: _KernelRun) -> list[str] | None:
        """Return the text of kernels printed once, or None if they follow no common rule."""
        text = self._title(kernels)
        for block in self._blocks(kernels):
            if block is None:
                return None
            text += block
        return text

    def _alone(self, kernels: _KernelRun) -> Iterator[str]:
        yield from self._title(kernels)
        for block in self._blocks(kernels):
            if block is None:
                raise AssertionError("a workgroup of one kernel can always be printed")
            yield from block

    def _blocks(self, kernels: _KernelRun) -> Iterator[list[str] | None]:
        """Yield the text of the kernels' workgroups; yield None and stop if a workgroup follows no rule."""
        count = int(self._program.kernel_ptr[kernels.first + 1] - self._program.kernel_ptr[kernels.first])
        first = 0
        while first < count:
            # Find the end of the workgroups from ``at`` on with the same operations
            group = int(self._program.kernel_ptr[kernels.first])
            end = first + 1
            while end < count and self._same(self._group(group + first), self._group(group + end)):
                end += 1
            together = self._workgroups(kernels, first, end)
            if together is not None:
                yield [f"workgroups {end - first}", *together]
            elif end == first + 1:
                yield None
                return
            else:
                yield from self._one_by_one(kernels, first, end)
            first = end

    def _one_by_one(self, kernels: _KernelRun, first: int, end: int) -> Iterator[list[str] | None]:
        """Yield as :meth:`_blocks`, for workgroups without a common rule; equal ones are still printed once."""
        texts = (self._workgroups(kernels, group, group + 1) for group in range(first, end))
        for text, equal in itertools.groupby(texts):
            yield None if text is None else [f"workgroups {sum(1 for _ in equal)}", *text]
            if text is None:
                return

    def _group(self, group: int) -> slice:
        return slice(*self._program.workgroup_ptr[group : group + 2].tolist())

    def _workgroups(self, kernels: _KernelRun, first: int, end: int) -> list[str] | None:
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

    def _rule(self, index: Int64, ranks: Int64, wg: Int64) -> _OperandRules | None:
        """Return the rules of operands ``index`` int64[ranks, workgroups, m], or None if they follow no rule."""
        program, num_ranks = self._program, self._program.num_gpus
        peers = fit_peers(program.operand_rank[index].astype(np.int64), ranks, wg, num_ranks)
        address = None if peers is None else fit(program.operand_address[index], ranks, wg, num_ranks)
        semaphores = program.operand_semaphore[index].astype(np.int64)
        semaphore = None if address is None else fit(semaphores, ranks, wg, num_ranks)
        return (
            None if peers is None or address is None or semaphore is None else _OperandRules(address, semaphore, peers)
        )

    # one operation

    def _operation(self, op: int, rule: _OperandRules, first: int) -> str:
        program = self._program
        kind, amount = int(program.op_kind[op]), int(program.op_amount[op])
        rows = [number - first for number in range(*program.operand_ptr[op : op + 2].tolist())]
        roles = program.operand_role[first:]
        words = [isa.OP_NAMES[kind]]
        if kind in isa.DATA_OPS:
            words.append(f"{amount} lines")
            words.append(self._sides(rows, roles, rule, lambda i: self._line_operand(i, rule, first)))
        elif kind == isa.DMA:
            words += [size_text(amount)] if len(rows) > 1 else []
            words.append(self._sides(rows, roles, rule, lambda i: self._dma_operand(i, rule, len(rows) > 1)))
        elif kind in (isa.ACQUIRE, isa.RELEASE):
            words.append(self._list(rows, roles, rule, lambda i: self._semaphore_operand(i, rule, kind == isa.RELEASE)))
            words += [f"by {amount}"] if amount != 1 else []
        elif kind in (isa.WAITCNT, isa.COMPUTE, isa.DELAY):
            words.append(f"{amount}" if kind == isa.WAITCNT else f"{amount} cycles")
        elif kind not in (isa.BARRIER, isa.FENCE, isa.NOP):
            raise AssertionError(f"kind {kind}")
        words += [f"unroll {program.op_unroll[op]}"] if program.op_unroll[op] else []
        words += [f"label {in_quotes(program.labels[program.op_label[op]])}"] if program.op_label[op] >= 0 else []
        return " ".join(words)

    def _sides(
        self, rows: Sequence[int], roles: npt.NDArray[np.int8], rule: _OperandRules, say: Callable[[int], str]
    ) -> str:
        sources = self._list([i for i in rows if roles[i] in isa.READ_ROLES], roles, rule, say)
        targets = self._list([i for i in rows if roles[i] not in isa.READ_ROLES], roles, rule, say)
        source_words = [sources] if sources else []
        target_words = ["->", targets] if targets else []
        return " ".join([*source_words, *target_words])

    def _list(
        self, numbers: Sequence[int], roles: npt.NDArray[np.int8], rule: _OperandRules, say: Callable[[int], str]
    ) -> str:
        """Return operands as text; a multimem operand has a row for each member."""
        rows: list[list[int]] = []
        for i in numbers:
            if roles[i] in isa.MEMBER_ROLES:
                rows[-1].append(i)
            else:
                rows.append([i])
        groups = []
        for group in rows:
            groups.append(say(group[0]) if len(group) == 1 else self._members(group, roles, rule, say))
        return ", ".join(groups)

    def _members(
        self, rows: Sequence[int], roles: npt.NDArray[np.int8], rule: _OperandRules, say: Callable[[int], str]
    ) -> str:
        word = "multimem add" if roles[rows[0]] == isa.ADD_ALL else "multimem"
        peers = [peer_text(rule.peers, i) for i in rows]
        places = {say(i)[len(peer) :] for i, peer in zip(rows, peers, strict=True)}
        everyone = ["own", *(f"rank+{distance}" for distance in range(1, self._program.num_gpus))]
        if peers == everyone and len(places) == 1:
            return f"{word} all{places.pop()}"
        return f"{word} {' & '.join(say(i) for i in rows)}"

    def _line_operand(self, i: int, rule: _OperandRules, first: int) -> str:
        program = self._program
        step = int(program.operand_step[first + i])
        text = f"{peer_text(rule.peers, i)}:{self._address(rule.address, i)}"
        if step != program.line_bytes:
            text += f" step {step}"
        return f"{text} flagged sem {value_text(rule.semaphore, i)}" if self._flagged[first + i] else text

    def _dma_operand(self, i: int, rule: _OperandRules, moves: bool) -> str:
        if not moves:
            return self._semaphore_operand(i, rule, True)
        text = f"{peer_text(rule.peers, i)}:{self._address(rule.address, i)}"
        return f"{text} sem {value_text(rule.semaphore, i)}" if rule.semaphore.first[i] >= 0 else text

    def _semaphore_operand(self, i: int, rule: _OperandRules, peer: bool) -> str:
        text = f"{peer_text(rule.peers, i)} " if peer else ""
        text += f"sem {value_text(rule.semaphore, i)}"
        address, number = rule.address, rule.semaphore
        implied = (
            address.base[i] == self._base + self._step * number.base[i]
            and address.slope[i] == self._step * number.slope[i]
            and address.rise[i] == self._step * number.rise[i]
            and (address.shift[i] == number.shift[i] or not address.slope[i])
        )
        return text if implied else f"{text} at {self._address(address, i)}"

    def _address(self, rules: NumberRules, i: int) -> str:
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
