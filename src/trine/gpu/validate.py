"""Is a GPU program well formed (gpu/program.py), and can a GPU model run it? All checks are over whole arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trine.arrays import Bool, Int64
from trine.errors import InputError
from trine.gpu.model import GpuModel
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COLUMNS,
    COMPUTE,
    COPY,
    DATA_OPS,
    DMA,
    KERNEL_COLUMNS,
    LOAD,
    NOP,
    OP_COLUMNS,
    OP_NAMES,
    OPERAND_COLUMNS,
    POINTERS,
    READ,
    READ_FLAGGED,
    REDUCE,
    RELEASE,
    ROLE_NAMES,
    STORE,
    WAITCNT,
    GpuProgram,
)
from trine.gpu.validate_memory import uncached_fault
from trine.gpu.validate_operands import (
    MAX_ADDRESS,
    MAX_AMOUNT,
    Fault,
    first_fault,
    first_operand_fault,
    has_lines,
    operand_faults,
)

Bounds: TypeAlias = Mapping[int, tuple[int, int]]

MAX_RANKS = 4096
_MANY = 2**31

#: kind -> least and most operands that are read, and that are written.
_READS: Bounds = {LOAD: (1, _MANY), STORE: (0, 0), COPY: (1, 1), REDUCE: (1, _MANY), DMA: (0, 1), ACQUIRE: (1, 1)}
_WRITES: Bounds = {STORE: (1, _MANY), COPY: (1, _MANY), REDUCE: (0, _MANY), DMA: (1, 1), RELEASE: (1, _MANY)}
#: kind -> least and most of op_amount
_AMOUNTS: Bounds = {
    **dict.fromkeys((*DATA_OPS, WAITCNT), (0, MAX_AMOUNT)), ACQUIRE: (1, MAX_AMOUNT), RELEASE: (1, MAX_AMOUNT),
    DMA: (0, MAX_ADDRESS), COMPUTE: (0, 2**40), BARRIER: (0, 0), NOP: (0, 0),
}  # fmt: skip
_DTYPES = {**COLUMNS, **dict.fromkeys(POINTERS, np.int64), "semaphores": np.int32}


def validate_program(program: GpuProgram, model: GpuModel | None = None, num_ranks: int | None = None) -> None:
    """Check that ``program`` is what gpu/program.py says.

    Parameters
    ----------
    model: the GPU that shall run it: line sizes agree, and a CU has room for a workgroup of each kernel.
    num_ranks: that it shall be run by.

    Raises
    ------
    InputError: names the program, kernel, rank, workgroup (of the kernel) and operation (of the workgroup).
    """
    fault = find_fault(program)
    if fault is None and model is not None:
        fault = _model_fault(program, model)
    if fault is None and num_ranks not in (None, program.num_ranks):
        fault = Fault(f"is for {program.num_ranks} ranks, not for {num_ranks}")
    if fault is not None:
        where = f", {place_of(program, fault.op)}" if fault.op >= 0 else ""
        raise InputError(f"GPU program {program.name!r}{where}: {fault.message}")


def place_of(program: GpuProgram, op: int) -> str:
    """Where operation ``op`` stands, in words."""
    group = int(np.searchsorted(program.workgroup_ptr, op, side="right")) - 1
    kernel = int(np.searchsorted(program.kernel_ptr, group, side="right")) - 1
    name = f" {program.kernel_names[kernel]!r}" if program.kernel_names else ""
    return (
        f"kernel {kernel}{name} of rank {int(program.kernel_rank[kernel])}, workgroup "
        f"{group - int(program.kernel_ptr[kernel])}, operation {op - int(program.workgroup_ptr[group])} "
        f"({_kind_name(int(program.op_kind[op]))})"
    )


def find_fault(program: GpuProgram) -> Fault | None:
    """The first fault of a program, whatever GPU runs it."""
    for check in (_shapes, _kernels, _semaphores, _operations):
        fault = check(program)
        if fault is not None:
            return fault
    return next(operand_faults(program), None) or uncached_fault(program)


def _kind_name(kind: int) -> str:
    return OP_NAMES[kind] if 0 <= kind < len(OP_NAMES) else f"kind {kind}"


def _shapes(program: GpuProgram) -> Fault | None:
    for name, dtype in _DTYPES.items():
        array = getattr(program, name)
        dimensions = 2 if name == "semaphores" else 1
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != dimensions:
            return Fault(f"{name} must be an array of {np.dtype(dtype)} with {dimensions} dimension(s)")
    for names, length in (
        (KERNEL_COLUMNS, program.num_kernels),
        (OP_COLUMNS, program.num_ops),
        (OPERAND_COLUMNS, len(program.operand_role)),
    ):
        for name in names:
            if len(getattr(program, name)) != length:
                return Fault(f"{name} has {len(getattr(program, name))} entries instead of {length}")
    if len(program.kernel_names) not in (0, program.num_kernels):
        return Fault(f"has {len(program.kernel_names)} names of {program.num_kernels} kernels")
    for name, count, end in (
        ("kernel_ptr", program.num_kernels, program.num_workgroups),
        ("workgroup_ptr", program.num_workgroups, program.num_ops),
        ("operand_ptr", program.num_ops, len(program.operand_role)),
    ):
        fault = _offsets(name, getattr(program, name), count, end)
        if fault is not None:
            return fault
    return None


def _offsets(name: str, offsets: Int64, count: int, end: int) -> Fault | None:
    if len(offsets) != count + 1:
        return Fault(f"{name} has {len(offsets)} entries instead of {count + 1}")
    if offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        return Fault(f"{name} must rise from 0 to {end}")
    return None


def _kernels(program: GpuProgram) -> Fault | None:
    if not 1 <= program.num_ranks <= MAX_RANKS:
        return Fault(f"must be for 1 to {MAX_RANKS} ranks, got {program.num_ranks}")
    if program.line_bytes < 1 or program.payload_bytes < 0:
        return Fault(f"line_bytes {program.line_bytes} or payload_bytes {program.payload_bytes} is out of range")
    for values, low, high, what in (
        (program.kernel_rank, 0, program.num_ranks - 1, "the rank"),
        (program.kernel_wavefronts, 1, 2**15, "the number of wavefronts of a workgroup"),
        (np.diff(program.kernel_ptr), 1, 2**31, "the number of workgroups"),
    ):
        wrong = np.flatnonzero((values < low) | (values > high))
        if len(wrong):
            return Fault(f"kernel {wrong[0]}: {what} must be from {low} to {high}, got {int(values[wrong[0]])}")
    return _buffers(program)


def _buffers(program: GpuProgram) -> Fault | None:
    names = [buffer.name for buffer in program.buffers]
    for buffer in program.buffers:
        if buffer.base < 0 or buffer.size_bytes < 0 or buffer.base + buffer.size_bytes > MAX_ADDRESS:
            return Fault(f"buffer {buffer.name!r}: {buffer.size_bytes} B at {buffer.base} are no addresses")
        if names.count(buffer.name) > 1:
            return Fault(f"there are two buffers {buffer.name!r}")
    return None


def _semaphores(program: GpuProgram) -> Fault | None:
    if len(program.semaphores) != program.num_ranks:
        return Fault(f"has semaphores of {len(program.semaphores)} ranks instead of {program.num_ranks}")
    wrong = np.argwhere(program.semaphores < 0)
    if len(wrong):
        rank, number = wrong[0].tolist()
        return Fault(f"semaphore {number} of rank {rank} must not begin with {program.semaphores[rank, number]}")
    return None


def _operations(program: GpuProgram) -> Fault | None:
    kind = program.op_kind
    fault = first_fault((kind < 0) | (kind >= len(OP_NAMES)), lambda op: f"there is no kind of operation {kind[op]}")
    if fault is not None:
        return fault
    roles = program.operand_role
    fault = first_operand_fault(
        program, (roles < 0) | (roles >= len(ROLE_NAMES)), lambda at: f"there is no role of an operand {roles[at]}"
    )
    if fault is not None:
        return fault
    reads = (roles == READ) | (roles == READ_FLAGGED)
    return (
        _within(program.op_amount, _AMOUNTS, kind, "the amount")
        or _within(_count(program, reads), _READS, kind, "operands read")
        or _within(_count(program, ~reads), _WRITES, kind, "operands written")
        or first_fault(
            (program.op_unroll < 0) | ((program.op_unroll > 0) & ~has_lines(program)),
            lambda op: f"unroll is of operations with lines, and not negative; got {program.op_unroll[op]}",
        )
        or first_fault(
            (program.op_label < -1) | (program.op_label >= len(program.labels)),
            lambda op: f"there is no label {program.op_label[op]}",
        )
        or first_fault(
            (kind == DMA) & (_count(program, reads) == 0) & (program.op_amount != 0),
            lambda op: "a dma without a source is of 0 bytes",
        )
    )


def _count(program: GpuProgram, which: Bool) -> Int64:
    """int64[operations]: how many of the operands of each are among ``which``."""
    before = np.zeros(len(which) + 1, np.int64)
    np.cumsum(which, out=before[1:])
    counts: Int64 = np.diff(before[program.operand_ptr])
    return counts


def _within(values: Int64, bounds: Bounds, kind: npt.NDArray[np.int8], what: str) -> Fault | None:
    """The first of ``values`` int64[operations] that is not within the bounds of its kind; without any: 0."""
    table = np.array([bounds.get(each, (0, 0)) for each in range(len(OP_NAMES))], np.int64)
    low, high = table[kind, 0], table[kind, 1]

    def say(op: int) -> str:
        most = "" if high[op] >= _MANY else f" and at most {high[op]}"
        return f"{what}: {values[op]}, must be at least {low[op]}{most}"

    return first_fault((values < low) | (values > high), say)


def _model_fault(program: GpuProgram, model: GpuModel) -> Fault | None:
    if program.line_bytes != model.line_bytes:
        return Fault(f"has lines of {program.line_bytes} B, and those of GPU {model.name!r} have {model.line_bytes}")
    wide = np.flatnonzero(program.kernel_wavefronts > model.wavefronts_per_cu)
    if len(wide):
        count = int(program.kernel_wavefronts[wide[0]])
        return Fault(
            f"kernel {wide[0]}: its workgroups have {count} wavefronts, and a CU of GPU {model.name!r} holds no more "
            f"than {model.wavefronts_per_cu}"
        )
    return None
