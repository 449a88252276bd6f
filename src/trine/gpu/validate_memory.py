"""Faults of the buffers of a GPU program that are not cached: engines know one range of such memory."""

from __future__ import annotations

import numpy as np

from trine.gpu.program import DATA_OPS, GpuProgram
from trine.gpu.validate_operands import Fault, first_operand_fault


def uncached_fault(program: GpuProgram) -> Fault | None:
    """The first fault of uncached buffers: one of others between them or in a line with them, or a semaphore there."""
    uncached = [buffer for buffer in program.buffers if buffer.uncached]
    if not uncached:
        return None
    line = program.line_bytes
    first, end = min(b.base for b in uncached), max(b.base + b.size_bytes for b in uncached)
    low, high = first // line * line, -(-end // line) * line
    for buffer in program.buffers:
        if not buffer.uncached and buffer.size_bytes and buffer.base < high and buffer.base + buffer.size_bytes > low:
            return Fault(
                f"buffer {buffer.name!r} is cached, and lies between uncached buffers, or in a line with one: "
                f"the lines of {', '.join(b.name for b in uncached[:8])}, {low} to {high}, must be of no other buffers"
            )
    return _semaphore_fault(program, low, high)


def _semaphore_fault(program: GpuProgram, low: int, high: int) -> Fault | None:
    """A semaphore that lies among uncached buffers, but in none of them."""
    address = program.operand_address
    is_flag = ~np.isin(program.op_kind, DATA_OPS).repeat(np.diff(program.operand_ptr)) & (
        program.operand_semaphore >= 0
    )
    astray = is_flag & (address >= low) & (address < high)
    for buffer in program.buffers:
        if buffer.uncached:
            astray &= (address < buffer.base) | (address >= buffer.base + buffer.size_bytes)
    return first_operand_fault(
        program,
        astray,
        lambda at: f"semaphore {program.operand_semaphore[at]} at {address[at]} lies among uncached buffers, in none",
    )
