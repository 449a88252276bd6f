"""Operations whose own reads and writes overlap, so that no order of their lines is right."""

from __future__ import annotations

from collections.abc import Sequence

from trine.collectives.kernels.check_parts import Op, Operand
from trine.errors import InputError
from trine.gpu.program import DATA_OPS, DMA, OP_NAMES, GpuProgram


def refuse_overlaps(program: GpuProgram, ops: Sequence[Op]) -> None:
    """Raise InputError where a line of an operation writes what another line of it, or another target, touches."""
    for number, op in enumerate(ops):
        if op.kind not in DATA_OPS and op.kind != DMA:
            continue
        for i, target in enumerate(op.writes):
            for other in (*op.reads, *op.writes[:i]):
                if target.rank == other.rank and _overlap(op, target, other):
                    size = f"{op.amount} {'bytes' if op.kind == DMA else 'lines'}"
                    raise InputError(
                        f"{program.name}: operation {number} of the program ({OP_NAMES[op.kind]}) overlaps itself in "
                        f"the memory of rank {target.rank}: {size} at addresses {other.address} and {target.address}"
                    )


def _overlap(op: Op, target: Operand, other: Operand) -> bool:
    """Whether two operands share bytes; a line may be read and then written in its place."""
    if op.kind != DMA and other.step == target.step != 0:
        apart = (other.address - target.address) % abs(target.step)
        if op.width <= apart <= abs(target.step) - op.width:  # columns of one matrix
            return False
    if other in op.reads and (other.address, other.step) == (target.address, target.step):
        return False
    (low, high), (start, end) = _range(op, target), _range(op, other)
    return low < end and start < high


def _range(op: Op, operand: Operand) -> tuple[int, int]:
    if op.kind == DMA:
        return operand.address, operand.address + op.amount
    last = (op.amount - 1) * operand.step
    return operand.address + min(0, last), operand.address + max(0, last) + op.width
