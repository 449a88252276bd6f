"""Faults of the operands of a GPU program: whose memory, which addresses and semaphores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.arrays import Bool, Int64
from trine.gpu.program import (
    ACQUIRE,
    DATA_OPS,
    DMA,
    OP_NAMES,
    READ,
    READ_FLAGGED,
    RELEASE,
    WRITE,
    WRITE_FLAGGED,
    GpuProgram,
)

#: So that an address, and lines times a step, stay within int64.
MAX_ADDRESS, MAX_AMOUNT = 2**61, 2**31 - 1


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong; ``op``: at which operation, -1: at none."""

    message: str
    op: int = -1


def has_lines(program: GpuProgram) -> Bool:
    """bool[operations]: whether each moves lines."""
    which = np.zeros(len(OP_NAMES), bool)
    which[list(DATA_OPS)] = True
    return which[program.op_kind]


def first_fault(wrong: Bool, say: Callable[[int], str]) -> Fault | None:
    """The first of the operations where ``wrong`` bool[operations]; ``say`` says what is wrong with it."""
    if not wrong.any():
        return None
    op = int(wrong.argmax())
    return Fault(say(op), op)


def first_operand_fault(program: GpuProgram, wrong: Bool, say: Callable[[int], str]) -> Fault | None:
    """As :func:`first_fault`, of operands: ``wrong`` bool[operands]."""
    if not wrong.any():
        return None
    at = int(wrong.argmax())
    op = int(np.searchsorted(program.operand_ptr, at, side="right")) - 1
    return Fault(say(at), op)


def operand_faults(program: GpuProgram) -> Iterator[Fault]:
    """Faults of operands, of operations that are well formed by themselves."""
    role, rank, address = program.operand_role, program.operand_rank, program.operand_address
    op_of = np.repeat(np.arange(program.num_ops), np.diff(program.operand_ptr))
    kind = program.op_kind[op_of]
    flagged = (role == READ_FLAGGED) | (role == WRITE_FLAGGED)
    reads = (role == READ) | (role == READ_FLAGGED)
    late = np.zeros(len(role), bool)
    late[1:] = reads[1:] & ~reads[:-1] & (op_of[1:] == op_of[:-1])
    own = _rank_of_operations(program)[op_of]
    stays = (kind == ACQUIRE) | ((kind == DMA) & reads)
    checks: list[tuple[Bool, Callable[[int], str]]] = [
        (late, lambda at: "operands that are read come before those that are written"),
        (flagged & ~has_lines(program)[op_of], lambda at: "only operations with lines have flagged operands"),
        ((rank < 0) | (rank >= program.num_ranks), lambda at: f"there is no rank {rank[at]}"),
        (stays & (rank != own), lambda at: f"must be of the own rank {own[at]}, not of rank {rank[at]}"),
        ((address < 0) | (address > MAX_ADDRESS), lambda at: f"{address[at]} is no address"),
    ]
    for wrong, say in checks:
        fault = first_operand_fault(program, wrong, say)
        if fault is not None:
            yield fault
    yield from _semaphore_faults(program, op_of, kind, flagged)
    yield from _address_faults(program, op_of, kind)


def _rank_of_operations(program: GpuProgram) -> npt.NDArray[np.int32]:
    groups = np.repeat(program.kernel_rank, np.diff(program.kernel_ptr))
    return np.repeat(groups, np.diff(program.workgroup_ptr))


def _semaphore_faults(program: GpuProgram, op_of: Int64, kind: npt.NDArray[np.int8], flagged: Bool) -> Iterator[Fault]:
    first, count = program.operand_semaphore, program.semaphores.shape[1]
    needs = flagged | (kind == ACQUIRE) | (kind == RELEASE)
    may = needs | ((kind == DMA) & (program.operand_role == WRITE))
    amount, alone = program.op_amount[op_of], np.diff(program.operand_ptr)[op_of] == 1
    last = first + np.where(flagged, np.maximum(amount, 1) - 1, 0)
    checks: list[tuple[Bool, Callable[[int], str]]] = [
        (~may & (first != -1), lambda at: f"semaphore {first[at]} of an operand that has none"),
        (needs & (first == -1), lambda at: "has no semaphore"),
        ((kind == DMA) & (amount == 0) & alone & (first == -1), lambda at: "moves nothing and releases nothing"),
        ((first < -1) | (last >= count), lambda at: _no_semaphore(int(first[at]), int(last[at]), count)),
    ]
    for wrong, say in checks:
        fault = first_operand_fault(program, wrong, say)
        if fault is not None:
            yield fault


def _no_semaphore(first: int, last: int, count: int) -> str:
    which = f"is no semaphore {first}" if first == last else f"are no semaphores {first} to {last}"
    return f"there {which}: each rank has {count}, from 0"


def _address_faults(program: GpuProgram, op_of: Int64, kind: npt.NDArray[np.int8]) -> Iterator[Fault]:
    """Lines that do not begin inside one buffer, where the program names buffers; bytes of a dma outside of one.

    The last line of a buffer may reach beyond it: whole lines move, and with a step below a line they overlap.
    """
    in_lines = has_lines(program)[op_of]
    amount = program.op_amount[op_of]
    first = program.operand_address
    moves = (in_lines | (kind == DMA)) & (amount > 0)
    span = np.where(in_lines, (amount - 1) * np.where(in_lines, program.operand_step, 0), amount - 1)
    last = first + span
    fault = first_operand_fault(
        program, moves & ((last < 0) | (last > MAX_ADDRESS)), lambda at: f"{last[at]} is no address"
    )
    if fault is not None:
        yield fault
    if not program.buffers:
        return
    inside = ~moves
    for buffer in program.buffers:
        low, high = np.minimum(first, last), np.maximum(first, last)
        inside |= (low >= buffer.base) & (high < buffer.base + buffer.size_bytes)
    known = ", ".join(f"{b.name} ({b.base} to {b.base + b.size_bytes})" for b in program.buffers[:8])
    fault = first_operand_fault(
        program, ~inside, lambda at: f"addresses {first[at]} to {last[at]} are not inside one buffer of {known}"
    )
    if fault is not None:
        yield fault
