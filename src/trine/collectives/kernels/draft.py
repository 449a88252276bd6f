"""Writes the GPU program of a collective in which all ranks do the same, relative to their own number.

What rank 0 does is written operation by operation; all ranks follow from it at once, as arrays. Peers are distances
(rank + d modulo ranks), semaphores and scratch slots are numbered by distance, and only places in the input and the
output are by rank; so a program of any rank is that of rank 0, turned, and the load-store level can fold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.collectives.kernels.options import MAX_OPERANDS, KernelOptions
from trine.errors import InputError
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COPY,
    DATA_OPS,
    READ,
    READ_FLAGGED,
    REDUCE,
    RELEASE,
    WAITCNT,
    WRITE,
    WRITE_FLAGGED,
    Buffer,
    GpuProgram,
)

#: Buffers begin on multiples of this.
ALIGN_BYTES = 1 << 20


class Operand(NamedTuple):
    """One operand of rank 0: memory of rank + ``distance``, at ``address`` + ((rank + chunk) modulo ranks) * stride."""

    role: int
    distance: int
    address: int
    chunk: int = 0
    stride: int = 0
    step: int = 0
    semaphore: int = -1


class Region(NamedTuple):
    """Chunks of ``lines`` lines, ``step`` bytes apart, in one buffer of every rank.

    by_rank: chunk c of a rank means the one of rank + c (inputs and outputs), else slot c. flags: semaphore of the
    first line where lines are flagged, else -1.
    """

    base: int
    lines: int
    step: int
    by_rank: bool
    flags: int

    def operand(self, roles: tuple[int, int], distance: int, chunk: int, line: int) -> Operand:
        """From ``line`` of a chunk on; ``roles``: plain, flagged."""
        stride = self.lines * self.step
        if self.by_rank:
            return Operand(roles[0], distance, self.base + line * self.step, chunk, stride, self.step)
        address = self.base + chunk * stride + line * self.step
        if self.flags < 0:
            return Operand(roles[0], distance, address, step=self.step)
        return Operand(roles[1], distance, address, step=self.step, semaphore=self.flags + chunk * self.lines + line)


class Draft:
    """The program of rank 0 as it is written: first regions, then workgroups."""

    def __init__(self, name: str, options: KernelOptions) -> None:
        self.name, self.options = name, options
        self.buffers: list[Buffer] = []
        self.num_semaphores = 0
        self.kinds: list[int] = []
        self.amounts: list[int] = []
        self.labels: list[int] = []
        self.operands: list[Operand] = []
        self.operand_ptr: list[int] = [0]
        self.workgroup_ptr: list[int] = [0]
        self.label_names: dict[str, int] = {}

    def data(self, name: str, chunks: int, lines: int) -> Region:
        """A buffer for payload: ``chunks`` chunks by rank, or one; ``name``: ``input`` or ``output``."""
        step = self.options.step_bytes
        return Region(self._buffer(name, chunks * lines * step), lines, step, by_rank=chunks > 1, flags=-1)

    def slots(self, name: str, slots: int, lines: int) -> Region:
        """A scratch buffer that peers write to, with flags if the protocol has them."""
        options = self.options
        base = self._buffer(name, slots * lines * options.line_bytes)
        flags = self._semaphores(slots * lines) if options.flagged else -1
        return Region(base, lines, options.line_bytes, by_rank=False, flags=flags)

    def scratch(self, name: str, slots: int, lines: int) -> Region:
        """A scratch buffer without flags."""
        options = self.options
        base = self._buffer(name, slots * lines * options.line_bytes)
        return Region(base, lines, options.line_bytes, by_rank=False, flags=-1)

    def signals(self, per_workgroup: int) -> Signals:
        """Semaphores of each workgroup."""
        count = per_workgroup * self.options.workgroups
        base = self._buffer(f"semaphores {self.num_semaphores}", count * self.options.line_bytes)
        return Signals(self._semaphores(count), per_workgroup, base, self.options.line_bytes)

    def workgroups(self, lines: int) -> Iterator[Workgroup]:
        """The workgroups with their slices of a chunk of ``lines`` lines; those without lines get no operations.

        Raises
        ------
        InputError: the program gets more than MAX_OPERANDS operands.
        """
        each, more = divmod(lines, self.options.workgroups)
        first = 0
        for number in range(self.options.workgroups):
            count = each + (number < more)
            if count:
                yield Workgroup(self, number, first, count)
            first += count
            self.end_workgroup()

    def end_workgroup(self) -> None:
        """What has been added since the last one is one workgroup. Raises InputError for too large a program."""
        self.workgroup_ptr.append(len(self.kinds))
        if len(self.operands) * self.options.num_ranks > MAX_OPERANDS:
            raise InputError(
                f"{self.name} on {self.options.num_ranks} ranks with {self.options.workgroups} workgroups has more "
                f"than {MAX_OPERANDS} operands: take fewer workgroups"
            )

    def add(self, kind: int, amount: int, operands: Iterable[Operand], label: str) -> None:
        """One operation of the workgroup at work."""
        self.kinds.append(kind)
        self.amounts.append(amount)
        self.labels.append(self.label_names.setdefault(label, len(self.label_names)))
        self.operands.extend(operands)
        self.operand_ptr.append(len(self.operands))

    def program(self) -> GpuProgram:
        """The program of all ranks."""
        ranks, options = self.options.num_ranks, self.options
        num_ops = len(self.kinds)
        rank = np.arange(ranks, dtype=np.int32)
        columns = np.array(self.operands, np.int64).reshape(-1, len(Operand._fields))
        role, distance, address, chunk, stride, step, semaphore = np.ascontiguousarray(columns.T)
        place = (chunk + rank[:, None]) % ranks
        return GpuProgram(
            name=self.name,
            num_ranks=ranks,
            kernel_rank=rank,
            kernel_wavefronts=np.full(ranks, options.wavefronts, np.int32),
            kernel_ptr=np.arange(ranks + 1, dtype=np.int64) * options.workgroups,
            workgroup_ptr=_repeat_ptr(self.workgroup_ptr, num_ops, ranks),
            op_kind=np.tile(np.array(self.kinds, np.int8), ranks),
            op_amount=np.tile(np.array(self.amounts, np.int64), ranks),
            op_unroll=np.tile(np.where(np.isin(self.kinds, DATA_OPS), options.unroll, 0).astype(np.int32), ranks),
            op_label=np.tile(np.array(self.labels, np.int32), ranks),
            operand_ptr=_repeat_ptr(self.operand_ptr, len(self.operands), ranks),
            operand_role=np.tile(role.astype(np.int8), ranks),
            operand_rank=((distance + rank[:, None]) % ranks).astype(np.int32).ravel(),
            operand_address=(address + place * stride).ravel(),
            operand_step=np.tile(step.astype(np.int32), ranks),
            operand_semaphore=np.tile(semaphore.astype(np.int32), ranks),
            semaphores=np.zeros((ranks, self.num_semaphores), np.int32),
            buffers=tuple(self.buffers),
            kernel_names=(self.name,) * ranks,
            labels=tuple(self.label_names),
            line_bytes=options.line_bytes,
            payload_bytes=options.size_bytes,
            notes=(f"protocol {options.protocol}, {options.workgroups} workgroups of {options.wavefronts} wavefronts",),
        )

    def _buffer(self, name: str, size_bytes: int) -> int:
        last = self.buffers[-1] if self.buffers else None
        base = 0 if last is None else -(-(last.base + last.size_bytes) // ALIGN_BYTES) * ALIGN_BYTES
        self.buffers.append(Buffer(name=name, base=base, size_bytes=size_bytes))
        return base

    def _semaphores(self, count: int) -> int:
        first = self.num_semaphores
        self.num_semaphores += count
        return first


class Signals(NamedTuple):
    """``per_workgroup`` semaphores of each workgroup, each on a line of its own."""

    first: int
    per_workgroup: int
    base: int
    line_bytes: int

    def operand(self, role: int, distance: int, workgroup: int, which: int) -> Operand:
        number = workgroup * self.per_workgroup + which
        return Operand(role, distance, self.base + number * self.line_bytes, semaphore=self.first + number)


class Workgroup:
    """Operations of one workgroup on its slice of every chunk: ``lines`` lines from line ``first`` on."""

    def __init__(self, draft: Draft, number: int, first: int, lines: int) -> None:
        self.draft, self.number, self.first, self.lines = draft, number, first, lines

    def turned(self, distances: Sequence[int]) -> list[int]:
        """The same distances, each workgroup beginning with another, so that they do not all go to one peer at once."""
        start = self.number % len(distances)
        return [*distances[start:], *distances[:start]]

    def read(self, region: Region, distance: int = 0, chunk: int = 0) -> Operand:
        """The slice of a chunk in the memory of rank + distance, as a source."""
        return region.operand((READ, READ_FLAGGED), distance, chunk, self.first)

    def write(self, region: Region, distance: int = 0, chunk: int = 0) -> Operand:
        """The slice of a chunk in the memory of rank + distance, as a target."""
        return region.operand((WRITE, WRITE_FLAGGED), distance, chunk, self.first)

    def copy(self, source: Operand, *targets: Operand, label: str) -> None:
        self.draft.add(COPY, self.lines, (source, *targets), label)

    def reduce(self, sources: Iterable[Operand], *targets: Operand, label: str) -> None:
        self.draft.add(REDUCE, self.lines, (*sources, *targets), label)

    def finish(self, label: str) -> None:
        """Until what all wavefronts have read and written so far is done."""
        self.draft.add(WAITCNT, 0, (), label)
        self.draft.add(BARRIER, 0, (), label)

    def signal(self, signals: Signals, peers: Iterable[tuple[int, int]], label: str) -> None:
        """Release a semaphore at each (distance, which)."""
        self.draft.add(RELEASE, 1, [signals.operand(WRITE, d, self.number, which) for d, which in peers], label)

    def wait(self, signals: Signals, which: int, amount: int, label: str) -> None:
        """Acquire so much of a semaphore; the other wavefronts do not wait with wavefront 0."""
        self.draft.add(ACQUIRE, amount, (signals.operand(READ, 0, self.number, which),), label)

    def barrier(self, label: str) -> None:
        self.draft.add(BARRIER, 0, (), label)


def _repeat_ptr(ptr: list[int], total: int, ranks: int) -> npt.NDArray[np.int64]:
    """CSR of one rank -> of all ranks."""
    inner = np.array(ptr[:-1], np.int64) + np.arange(ranks, dtype=np.int64)[:, None] * total
    return np.append(inner.ravel(), total * ranks)
