"""A message between two ranks as kernels: one puts, the other waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trine.collectives.kernels.lower_writer import Place, Writer
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
    writer = Writer(_NAME)
    lines = -(-size_bytes // line_bytes)
    signal_address = lines * line_bytes  # the line behind the data
    groups = 1
    if through_nic:
        _by_nic(writer, size_bytes, signal_address)
    else:
        groups = max(1, min(workgroups, lines))
        for group in range(groups):
            first, last = lines * group // groups, lines * (group + 1) // groups
            _by_stores(writer, first * line_bytes, last - first, line_bytes, signal_address)
    writer.end_kernel(SENDER)
    writer.add(ACQUIRE, groups, [Place(READ, RECEIVER, signal_address, semaphore=0)], _WAIT)
    writer.end_workgroup()
    writer.end_kernel(RECEIVER)
    program = writer.program(
        name=_NAME, initial=[[0], [0]], num_semaphores=1, buffers=(), wavefronts=1, line_bytes=line_bytes,
        payload_bytes=0, notes=(),
    )  # fmt: skip
    waves = np.array([1 if through_nic else wavefronts, 1], np.int32)
    return replace(program, kernel_wavefronts=waves, kernel_names=("send", "receive"))


def _by_nic(writer: Writer, size_bytes: int, signal_address: int) -> None:
    """One workgroup that hands all bytes to the copy engine; without any, its packet only signals."""
    target = Place(WRITE, RECEIVER, 0 if size_bytes else signal_address, semaphore=0)
    sources = [Place(READ, SENDER, 0)] if size_bytes else []
    writer.add(DMA, size_bytes, [*sources, target], _PUT)
    writer.add(WAITCNT, 0, (), _PUT)
    writer.end_workgroup()


def _by_stores(writer: Writer, address: int, lines: int, line_bytes: int, signal_address: int) -> None:
    """One workgroup that stores its lines, and signals when they are there."""
    if lines:
        ends = [Place(READ, SENDER, address, line_bytes), Place(WRITE, RECEIVER, address, line_bytes)]
        writer.add(COPY, lines, ends, _PUT)
        writer.add(WAITCNT, 0, (), _SIGNAL)
        writer.add(BARRIER, 0, (), _SIGNAL)
    writer.add(RELEASE, 1, [Place(WRITE, RECEIVER, signal_address, semaphore=0)], _SIGNAL)
    writer.end_workgroup()
