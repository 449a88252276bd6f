"""The flags of a program's rank: where they lie, what its waits take from them, and what it gives to them itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.arrays import Bool, Int64
from trine.collectives.kernels.count import op_ranks, operand_ops
from trine.errors import InputError
from trine.gpu.program import ACQUIRE, DMA, READ_FLAGGED, RELEASE, WRITE_FLAGGED, GpuProgram

#: Lines with flags of their own that a program may name.
MAX_FLAGGED_LINES = 2**25


class Places(NamedTuple):
    """Where semaphores of a rank lie, by address: int64[n] each; a semaphore may lie at several addresses."""

    address: Int64
    semaphore: Int64


def flag_places(program: GpuProgram, rank: int) -> Places:
    """Addresses of the semaphores of ``rank`` that an operation names, its own or another rank's.

    Raises
    ------
    InputError: more than 2^25 flagged lines.
    """
    op = operand_ops(program)
    chosen = (program.operand_semaphore >= 0) & (program.operand_rank == rank) & (program.op_kind[op] != DMA)
    flagged = np.isin(program.operand_role, (READ_FLAGGED, WRITE_FLAGGED))
    single, many = np.flatnonzero(chosen & ~flagged), np.flatnonzero(chosen & flagged)
    lines = program.op_amount[op[many]]
    if lines.sum() > MAX_FLAGGED_LINES:
        raise InputError(f"{program.name!r} has more than {MAX_FLAGGED_LINES} lines with flags of their own")
    which, number = np.repeat(many, lines), _counted(lines)
    address = np.concatenate(
        [program.operand_address[single], program.operand_address[which] + number * program.operand_step[which]]
    )
    semaphore = np.concatenate([program.operand_semaphore[single], program.operand_semaphore[which] + number])
    order = np.lexsort((semaphore, address))
    address, semaphore = address[order], semaphore[order].astype(np.int64)
    new = np.ones(len(address), bool)
    new[1:] = (np.diff(address) != 0) | (np.diff(semaphore) != 0)
    return Places(address[new], semaphore[new])


def takes_of(program: GpuProgram, rank: int) -> Int64:
    """int64[semaphores]: what the acquires and flagged loads of ``rank`` take from its own semaphores in all."""
    op, own = _own_operands(program, rank)
    acquired = own & (program.op_kind[op] == ACQUIRE)
    return _sums(program, op, acquired) + _line_sums(program, op, own & (program.operand_role == READ_FLAGGED))


def gives_of(program: GpuProgram, rank: int) -> Int64:
    """int64[semaphores]: what ``rank`` adds to its own semaphores in all."""
    op, own = _own_operands(program, rank)
    copied = own & (program.op_kind[op] == DMA) & (program.operand_semaphore >= 0)
    copies = np.bincount(program.operand_semaphore[copied], minlength=program.semaphores.shape[1])
    released = own & (program.op_kind[op] == RELEASE)
    stored = own & (program.operand_role == WRITE_FLAGGED)
    return _sums(program, op, released) + _line_sums(program, op, stored) + copies


def waiting_workgroup(program: GpuProgram, rank: int, semaphore: int) -> str:
    """Who of ``rank`` waits for the semaphore: ``workgroup 3 of kernel 'gemv'``; "" where nobody does."""
    op, own = _own_operands(program, rank)
    lines = np.where(program.operand_role == READ_FLAGGED, program.op_amount[op], 1)
    first = program.operand_semaphore
    waits = own & ((program.op_kind[op] == ACQUIRE) | (program.operand_role == READ_FLAGGED))
    found = np.flatnonzero(waits & (first <= semaphore) & (semaphore < first + lines))
    if not len(found):
        return ""
    group = int(np.searchsorted(program.workgroup_ptr, op[found[0]], "right")) - 1
    kernel = int(np.searchsorted(program.kernel_ptr, group, "right")) - 1
    name = program.kernel_names[kernel] if program.kernel_names else str(kernel)
    return f"workgroup {group - int(program.kernel_ptr[kernel])} of kernel {name!r}"


def _own_operands(program: GpuProgram, rank: int) -> tuple[Int64, Bool]:
    """The operation of each operand, and which operands are of ``rank``'s operations on its own memory."""
    op = operand_ops(program)
    return op, (op_ranks(program)[op] == rank) & (program.operand_rank == rank)


def _sums(program: GpuProgram, op: Int64, chosen: Bool) -> Int64:
    total = np.zeros(program.semaphores.shape[1], np.int64)
    np.add.at(total, program.operand_semaphore[chosen], program.op_amount[op[chosen]])
    return total


def _line_sums(program: GpuProgram, op: Int64, chosen: Bool) -> Int64:
    """One for each line: semaphores ``first`` to ``first + lines``."""
    steps = np.zeros(program.semaphores.shape[1] + 1, np.int64)
    first = program.operand_semaphore[chosen].astype(np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, first + program.op_amount[op[chosen]], -1)
    return np.cumsum(steps)[:-1]


def _counted(lengths: Int64) -> Int64:
    """0..lengths[0], 0..lengths[1], ..."""
    return np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
