"""Checks that a GPU program is well formed (gpu/program.py) and a GPU model can run it. All checks use whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64
from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.model import GpuModel
from trine.gpu.multimem import multimem_checks
from trine.gpu.program import GpuProgram, has_multimem, is_flagged, is_member, is_read

#: Limits that keep addresses, and lines times a step, within int64.
MAX_ADDRESS, MAX_AMOUNT = 2**61, 2**31 - 1
Bounds: TypeAlias = Mapping[int, tuple[int, int]]
MAX_RANKS, MAX_WAVEFRONTS = 4096, 2**15
_MANY = 2**31
#: kind -> (min, max) operands that are read, and that are written.
_READS: Bounds = {
    isa.LOAD: (1, _MANY),
    isa.STORE: (0, 0),
    isa.COPY: (1, 1),
    isa.REDUCE: (1, _MANY),
    isa.DMA: (0, 1),
    isa.ACQUIRE: (1, 1),
}
_WRITES: Bounds = {
    isa.STORE: (1, _MANY),
    isa.COPY: (1, _MANY),
    isa.REDUCE: (0, _MANY),
    isa.DMA: (1, 1),
    isa.RELEASE: (1, _MANY),
}
#: kind -> (min, max) of op_amount
_AMOUNTS: Bounds = {
    **dict.fromkeys((*isa.DATA_OPS, isa.WAITCNT), (0, MAX_AMOUNT)),
    **dict.fromkeys((isa.ACQUIRE, isa.RELEASE), (1, MAX_AMOUNT)),
    **dict.fromkeys((isa.BARRIER, isa.NOP, isa.FENCE), (0, 0)),
    **dict.fromkeys((isa.COMPUTE, isa.DELAY), (0, 2**40)),
    isa.DMA: (0, MAX_ADDRESS),
}
_DTYPES = {**isa.COLUMNS, **dict.fromkeys(isa.POINTERS, np.int64), "semaphores": np.int32}


@dataclass(frozen=True, slots=True)
class ProgramFault:
    """A fault of a program; ``op``: the operation, -1: not at an operation."""

    message: str
    op: int = -1


def validate_program(program: GpuProgram, model: GpuModel | None = None, num_ranks: int | None = None) -> None:
    """Check that ``program`` conforms to gpu/program.py.

    Parameters
    ----------
    model: the GPU to run it: line sizes agree, and a CU has room for a workgroup of each kernel.
    num_ranks: the number of ranks to run it.

    Raises
    ------
    InputError: names the program, kernel, rank, workgroup (of the kernel) and operation (of the workgroup).
    """
    fault = find_fault(program)
    if fault is None and model is not None:
        fault = _model_fault(program, model)
    if fault is None and num_ranks not in (None, program.num_ranks):
        fault = ProgramFault(f"is for {program.num_ranks} ranks, not for {num_ranks}")
    if fault is not None:
        location = f", {place_of(program, fault.op)}" if fault.op >= 0 else ""
        raise InputError(f"GPU program {program.name!r}{location}: {fault.message}")


def find_fault(program: GpuProgram) -> ProgramFault | None:
    """Return the first fault of a program, independent of the GPU."""
    for check in (_shapes, _kernels, _semaphores, _operations):
        fault = check(program)
        if fault is not None:
            return fault
    return next(operand_faults(program), None) or uncached_fault(program)


def place_of(program: GpuProgram, op: int) -> str:
    """Describe the position of operation ``op``."""
    group = int(np.searchsorted(program.workgroup_ptr, op, side="right")) - 1
    kernel = int(np.searchsorted(program.kernel_ptr, group, side="right")) - 1
    name = f" {program.kernel_names[kernel]!r}" if program.kernel_names else ""
    return (
        f"kernel {kernel}{name} of rank {int(program.kernel_rank[kernel])}, workgroup "
        f"{group - int(program.kernel_ptr[kernel])}, operation {op - int(program.workgroup_ptr[group])} "
        f"({_kind_name(int(program.op_kind[op]))})"
    )


def _kind_name(kind: int) -> str:
    return isa.OP_NAMES[kind] if 0 <= kind < len(isa.OP_NAMES) else f"kind {kind}"


def _model_fault(program: GpuProgram, model: GpuModel) -> ProgramFault | None:
    if program.line_bytes != model.line_bytes:
        return ProgramFault(
            f"has lines of {program.line_bytes} B, but GPU {model.name!r} has lines of {model.line_bytes}"
        )
    wide = np.flatnonzero(program.kernel_wavefronts > model.wavefronts_per_cu)
    if len(wide):
        count = int(program.kernel_wavefronts[wide[0]])
        return ProgramFault(
            f"kernel {wide[0]}: its workgroups have {count} wavefronts, and a CU of GPU {model.name!r} holds no more "
            f"than {model.wavefronts_per_cu}"
        )
    return None


def first_fault(wrong: Bool, say: Callable[[int], str]) -> ProgramFault | None:
    """Return a fault for the first operation in ``wrong``, bool[operations]; ``say`` returns its message."""
    if not wrong.any():
        return None
    op = int(wrong.argmax())
    return ProgramFault(say(op), op)


def first_operand_fault(program: GpuProgram, wrong: Bool, say: Callable[[int], str]) -> ProgramFault | None:
    """Return a fault for the first operand in ``wrong``, bool[operands]; ``say`` returns its message."""
    if not wrong.any():
        return None
    operand = int(wrong.argmax())
    op = int(np.searchsorted(program.operand_ptr, operand, side="right")) - 1
    return ProgramFault(say(operand), op)


def has_lines(program: GpuProgram) -> Bool:
    """Return bool[operations]: whether each moves lines."""
    moves_lines = np.zeros(len(isa.OP_NAMES), bool)
    moves_lines[list(isa.DATA_OPS)] = True
    return moves_lines[program.op_kind]


def _shapes(program: GpuProgram) -> ProgramFault | None:
    for name, dtype in _DTYPES.items():
        array = getattr(program, name)
        dimensions = 2 if name == "semaphores" else 1
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != dimensions:
            return ProgramFault(f"{name} must be an array of {np.dtype(dtype)} with {dimensions} dimension(s)")
    for names, length in (
        (isa.KERNEL_COLUMNS, program.num_kernels),
        (isa.OP_COLUMNS, program.num_ops),
        (isa.OPERAND_COLUMNS, len(program.operand_role)),
    ):
        for name in names:
            if len(getattr(program, name)) != length:
                return ProgramFault(f"{name} has {len(getattr(program, name))} entries instead of {length}")
    if len(program.kernel_names) not in (0, program.num_kernels):
        return ProgramFault(f"has {len(program.kernel_names)} names of {program.num_kernels} kernels")
    for name, count, end in (
        ("kernel_ptr", program.num_kernels, program.num_workgroups),
        ("workgroup_ptr", program.num_workgroups, program.num_ops),
        ("operand_ptr", program.num_ops, len(program.operand_role)),
    ):
        fault = _offsets(name, getattr(program, name), count, end)
        if fault is not None:
            return fault
    return None


def _offsets(name: str, offsets: Int64, count: int, end: int) -> ProgramFault | None:
    if len(offsets) != count + 1:
        return ProgramFault(f"{name} has {len(offsets)} entries instead of {count + 1}")
    if offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        return ProgramFault(f"{name} must rise from 0 to {end}")
    return None


def _kernels(program: GpuProgram) -> ProgramFault | None:
    if not 1 <= program.num_ranks <= MAX_RANKS:
        return ProgramFault(f"must be for 1 to {MAX_RANKS} ranks, got {program.num_ranks}")
    if not 0 <= program.num_hosts < program.num_ranks:
        return ProgramFault(f"of {program.num_ranks} ranks {program.num_hosts} cannot be hosts")
    if program.line_bytes < 1 or program.payload_bytes < 0:
        return ProgramFault(f"line_bytes {program.line_bytes} or payload_bytes {program.payload_bytes} is out of range")
    for values, low, high, noun in (
        (
            program.kernel_rank,
            0,
            program.num_gpus - 1,
            "the rank (hosts run no kernels)" if program.num_hosts else "the rank",
        ),
        (program.kernel_wavefronts, 1, MAX_WAVEFRONTS, "the number of wavefronts of a workgroup"),
        (np.diff(program.kernel_ptr), 1, 2**31, "the number of workgroups"),
    ):
        wrong = np.flatnonzero((values < low) | (values > high))
        if len(wrong):
            return ProgramFault(f"kernel {wrong[0]}: {noun} must be from {low} to {high}, got {int(values[wrong[0]])}")
    return _buffers(program)


def _buffers(program: GpuProgram) -> ProgramFault | None:
    names = [buffer.name for buffer in program.buffers]
    for buffer in program.buffers:
        if buffer.base < 0 or buffer.size_bytes < 0 or buffer.base + buffer.size_bytes > MAX_ADDRESS:
            return ProgramFault(f"buffer {buffer.name!r}: {buffer.size_bytes} B at {buffer.base} are no addresses")
        if names.count(buffer.name) > 1:
            return ProgramFault(f"there are two buffers {buffer.name!r}")
    return None


def _semaphores(program: GpuProgram) -> ProgramFault | None:
    if len(program.semaphores) != program.num_ranks:
        return ProgramFault(f"has semaphores of {len(program.semaphores)} ranks instead of {program.num_ranks}")
    wrong = np.argwhere(program.semaphores < 0)
    if len(wrong):
        rank, number = wrong[0].tolist()
        return ProgramFault(f"semaphore {number} of rank {rank} must not begin with {program.semaphores[rank, number]}")
    return None


def _operations(program: GpuProgram) -> ProgramFault | None:
    kind = program.op_kind
    fault = first_fault(
        (kind < 0) | (kind >= len(isa.OP_NAMES)), lambda op: f"there is no kind of operation {kind[op]}"
    )
    if fault is not None:
        return fault
    roles = program.operand_role
    is_head = ~is_member(program)
    fault = first_operand_fault(
        program, (roles < 0) | (roles >= len(isa.ROLE_NAMES)), lambda i: f"there is no role of an operand {roles[i]}"
    )
    if fault is not None:
        return fault
    reads = is_read(program)
    return (
        _within(program.op_amount, _AMOUNTS, kind, "the amount")
        or _within(_count(program, reads & is_head), _READS, kind, "operands read")
        or _within(_count(program, ~reads & is_head), _WRITES, kind, "operands written")
        or first_fault(
            (program.op_unroll < 0) | ((program.op_unroll > 0) & ~has_lines(program)),
            lambda op: f"unroll is of operations with lines, and not negative; got {program.op_unroll[op]}",
        )
        or first_fault(
            (program.op_label < -1) | (program.op_label >= len(program.labels)),
            lambda op: f"there is no label {program.op_label[op]}",
        )
        or first_fault(
            (kind == isa.DMA) & (_count(program, reads) == 0) & (program.op_amount != 0),
            lambda op: "a dma without a source is of 0 bytes",
        )
    )


def _count(program: GpuProgram, chosen: Bool) -> Int64:
    """Return int64[operations]: the number of operands of each that are among ``chosen``, bool[operands]."""
    sums = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(chosen, out=sums[1:])
    return np.asarray(np.diff(sums[program.operand_ptr]))


def _within(values: Int64, bounds: Bounds, kind: npt.NDArray[np.int8], quantity: str) -> ProgramFault | None:
    """Return a fault for the first of ``values``, int64[operations], outside its kind's bounds (default: 0)."""
    table = np.array([bounds.get(each, (0, 0)) for each in range(len(isa.OP_NAMES))], np.int64)
    low, high = table[kind, 0], table[kind, 1]

    def say(op: int) -> str:
        upper_bound = "" if high[op] >= _MANY else f" and at most {high[op]}"
        return f"{quantity}: {values[op]}, must be at least {low[op]}{upper_bound}"

    return first_fault((values < low) | (values > high), say)


def operand_faults(program: GpuProgram) -> Iterator[ProgramFault]:
    """Yield faults of operands, assuming well-formed operations."""
    role, rank, address = program.operand_role, program.operand_rank, program.operand_address
    op_of = program.operand_op
    kind = program.op_kind[op_of]
    flagged = is_flagged(program)
    reads = is_read(program)
    late = np.zeros(len(role), bool)
    late[1:] = reads[1:] & ~reads[:-1] & (op_of[1:] == op_of[:-1])
    owner = program.op_rank[op_of]
    stays = (kind == isa.ACQUIRE) | ((kind == isa.DMA) & reads)
    checks: list[tuple[Bool, Callable[[int], str]]] = [
        (late, lambda i: "operands that are read come before those that are written"),
        (flagged & ~has_lines(program)[op_of], lambda i: "only operations with lines have flagged operands"),
        ((rank < 0) | (rank >= program.num_ranks), lambda i: f"there is no rank {rank[i]}"),
        (stays & (rank != owner), lambda i: f"must be of the own rank {owner[i]}, not of rank {rank[i]}"),
        ((address < 0) | (address > MAX_ADDRESS), lambda i: f"{address[i]} is no address"),
        *(multimem_checks(program, op_of, owner) if has_multimem(program) else ()),
    ]
    for wrong, say in checks:
        fault = first_operand_fault(program, wrong, say)
        if fault is not None:
            yield fault
    yield from _semaphore_faults(program, op_of, kind, flagged)
    yield from _address_faults(program, op_of, kind)


def _semaphore_faults(
    program: GpuProgram, op_of: Int64, kind: npt.NDArray[np.int8], flagged: Bool
) -> Iterator[ProgramFault]:
    first, count = program.operand_semaphore, program.semaphores.shape[1]
    needs = flagged | (kind == isa.ACQUIRE) | (kind == isa.RELEASE)
    may = needs | ((kind == isa.DMA) & (program.operand_role == isa.WRITE))
    amount, alone = program.op_amount[op_of], np.diff(program.operand_ptr)[op_of] == 1
    last = first + np.where(flagged, np.maximum(amount, 1) - 1, 0)
    checks: list[tuple[Bool, Callable[[int], str]]] = [
        (~may & (first != -1), lambda i: f"semaphore {first[i]} of an operand without semaphores"),
        (needs & (first == -1), lambda i: "has no semaphore"),
        ((kind == isa.DMA) & (amount == 0) & alone & (first == -1), lambda i: "moves nothing and releases nothing"),
        ((first < -1) | (last >= count), lambda i: _no_semaphore(int(first[i]), int(last[i]), count)),
    ]
    for wrong, say in checks:
        fault = first_operand_fault(program, wrong, say)
        if fault is not None:
            yield fault


def _no_semaphore(first: int, last: int, count: int) -> str:
    missing = f"is no semaphore {first}" if first == last else f"are no semaphores {first} to {last}"
    return f"there {missing}: each rank has {count}, from 0"


def _address_faults(program: GpuProgram, op_of: Int64, kind: npt.NDArray[np.int8]) -> Iterator[ProgramFault]:
    """Yield faults of lines that do not begin inside one named buffer, and of dma bytes outside of one.

    The last line of a buffer may reach beyond it: whole lines move, and with a step below a line they overlap.
    """
    in_lines = has_lines(program)[op_of]
    amount = program.op_amount[op_of]
    first = program.operand_address
    moves = (in_lines | (kind == isa.DMA)) & (amount > 0)
    span = np.where(in_lines, (amount - 1) * np.where(in_lines, program.operand_step, 0), amount - 1)
    last = first + span
    fault = first_operand_fault(
        program, moves & ((last < 0) | (last > MAX_ADDRESS)), lambda i: f"{last[i]} is no address"
    )
    if fault is not None:
        yield fault
    if not program.buffers:
        return
    fits = ~moves
    for buffer in program.buffers:
        low, high = np.minimum(first, last), np.maximum(first, last)
        fits |= (low >= buffer.base) & (high < buffer.base + buffer.size_bytes)
    names = ", ".join(f"{b.name} ({b.base} to {b.base + b.size_bytes})" for b in program.buffers[:8])
    fault = first_operand_fault(
        program, ~fits, lambda i: f"addresses {first[i]} to {last[i]} leave one buffer of {names}"
    )
    if fault is not None:
        yield fault


def uncached_fault(program: GpuProgram) -> ProgramFault | None:
    """Return the first fault of uncached buffers: a cached buffer or semaphore between them or in a shared line."""
    uncached = [buffer for buffer in program.buffers if buffer.uncached]
    if not uncached:
        return None
    line = program.line_bytes
    first = min(b.base for b in uncached)
    end = max(b.base + b.size_bytes for b in uncached)
    low, high = first // line * line, -(-end // line) * line
    for buffer in program.buffers:
        if not buffer.uncached and buffer.size_bytes and buffer.base < high and buffer.base + buffer.size_bytes > low:
            return ProgramFault(
                f"buffer {buffer.name!r} is cached, and lies between uncached buffers, or in a line with one: "
                f"the lines of {', '.join(b.name for b in uncached[:8])}, {low} to {high}, must be of no other buffers"
            )
    return _semaphore_fault(program, low, high)


def _semaphore_fault(program: GpuProgram, low: int, high: int) -> ProgramFault | None:
    """Return a fault for a semaphore between uncached buffers, outside all of them."""
    address = program.operand_address
    is_flag = ~np.isin(program.op_kind, isa.DATA_OPS).repeat(np.diff(program.operand_ptr)) & (
        program.operand_semaphore >= 0
    )
    astray = is_flag & (address >= low) & (address < high)
    for buffer in program.buffers:
        if buffer.uncached:
            astray &= (address < buffer.base) | (address >= buffer.base + buffer.size_bytes)
    return first_operand_fault(
        program,
        astray,
        lambda i: f"semaphore {program.operand_semaphore[i]} at {address[i]} lies among uncached buffers, in none",
    )
