"""A message between two ranks as kernels: one puts, the other waits."""

from __future__ import annotations

from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.program import ACQUIRE, BARRIER, COPY, DMA, READ, RELEASE, WAITCNT, WRITE, GpuProgram

SENDER, RECEIVER = 0, 1
#: Kernels of a message.
SEND_KERNEL, RECEIVE_KERNEL = 0, 1
_NAME, _PUT, _SIGNAL, _WAIT = "send_recv", "put", "signal", "wait"


def message_program(
    size_bytes: int, *, workgroups: int, wavefronts: int, line_bytes: int, through_nic: bool
) -> GpuProgram:
    """Rank 0 writes into memory of rank 1 and signals behind the data; rank 1 waits for that. Two kernels.

    through_nic: the copy engine moves the bytes, and its last packet signals; else each workgroup stores
    a part of the lines.
    """
    builder = ProgramBuilder(_NAME, 2, line_bytes=line_bytes)
    lines = -(-size_bytes // line_bytes)
    signal_address = lines * line_bytes  # the line behind the data
    groups = 1
    if through_nic:
        _by_nic(builder, size_bytes, signal_address)
    else:
        groups = max(1, min(workgroups, lines))
        for group in range(groups):
            first, last = lines * group // groups, lines * (group + 1) // groups
            _by_stores(builder, first * line_bytes, last - first, line_bytes, signal_address)
    builder.end_kernel(SENDER, 1 if through_nic else wavefronts, "send")
    operand = Operand(READ, RECEIVER, signal_address, semaphore=builder.semaphores(1))
    builder.add(ACQUIRE, groups, [operand], _WAIT)
    builder.end_workgroup()
    builder.end_kernel(RECEIVER, 1, "receive")
    return builder.program()


def _by_nic(builder: ProgramBuilder, size_bytes: int, signal_address: int) -> None:
    """One workgroup that hands all bytes to the copy engine; without any, its packet only signals."""
    target = Operand(WRITE, RECEIVER, 0 if size_bytes else signal_address, semaphore=0)
    sources = [Operand(READ, SENDER, 0)] if size_bytes else []
    builder.add(DMA, size_bytes, [*sources, target], _PUT)
    builder.add(WAITCNT, 0, (), _PUT)
    builder.end_workgroup()


def _by_stores(builder: ProgramBuilder, address: int, lines: int, line_bytes: int, signal_address: int) -> None:
    """One workgroup that stores its lines, and signals when they are there."""
    if lines:
        ends = [Operand(READ, SENDER, address, line_bytes), Operand(WRITE, RECEIVER, address, line_bytes)]
        builder.add(COPY, lines, ends, _PUT)
        builder.add(WAITCNT, 0, (), _SIGNAL)
        builder.add(BARRIER, 0, (), _SIGNAL)
    builder.add(RELEASE, 1, [Operand(WRITE, RECEIVER, signal_address, semaphore=0)], _SIGNAL)
    builder.end_workgroup()
