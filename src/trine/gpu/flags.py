"""Lines that have flags: what a monitor watches (docs/design/replay.md, ways to wait)."""

from __future__ import annotations

import numpy as np

from trine.arrays import Int32, Int64
from trine.errors import InputError
from trine.gpu.peers import PUT, PeerWrites
from trine.gpu.peers import RELEASE as ARRIVED_RELEASE
from trine.gpu.program import ACQUIRE, DATA_OPS, DMA, RELEASE, is_read
from trine.gpu.system import GpuSystem
from trine.gpu.validate import place_of


def flag_lines(system: GpuSystem) -> Int32:
    """int32[semaphores of all GPUs]: the line that each lies in, numbered from 0; -1: none, or not one.

    It is that of the acquires; of a semaphore that nobody waits for, that of what releases it.

    Raises
    ------
    InputError: the GPU has a monitor, and the program stores data to a line that has a flag.
    """
    program, count = system.program, system.program.semaphores.shape[1]
    if system.model.monitor is None:
        return np.full(system.num_gpus * count, -1, np.int32)
    kind = np.repeat(program.op_kind, np.diff(program.operand_ptr))
    semaphore = program.operand_semaphore + program.operand_rank.astype(np.int64) * count
    line = program.operand_address // system.model.line_bytes
    is_own = system.gpu_of[system.operand_peer] >= 0
    acquires = kind == ACQUIRE
    of_acquires = _line_of(semaphore[acquires], line[acquires], system.num_gpus * count)
    adds = np.isin(kind, (RELEASE, DMA)) & ~is_read(program)
    releases = adds & is_own & (program.operand_semaphore >= 0)
    others, other_lines = semaphore[releases], line[releases]
    if isinstance(system.outside, PeerWrites):
        is_flag = system.outside.semaphore >= 0
        others = np.append(others, system.outside.semaphore[is_flag])
        other_lines = np.append(other_lines, system.outside.address[is_flag] // system.model.line_bytes)
    elif system.outside is not None:
        is_flag = np.isin(system.outside.kind, (ARRIVED_RELEASE, PUT))
        others = np.append(others, system.outside.semaphore[is_flag])
        other_lines = np.append(other_lines, system.outside.address[is_flag] // system.model.line_bytes)
    of_releases = _line_of(others, other_lines, system.num_gpus * count)
    waited_for = np.zeros(system.num_gpus * count, np.bool_)
    waited_for[semaphore[acquires]] = True
    found = np.where(waited_for, of_acquires, of_releases)
    gpu = np.repeat(np.arange(system.num_gpus), count)
    _refuse_data(system, np.unique(np.stack([gpu, found])[:, found >= 0], axis=1))
    numbered = np.full(len(found), -1, np.int32)
    has_line = found >= 0
    _, number = np.unique(np.stack([gpu[has_line], found[has_line]]), axis=1, return_inverse=True)
    numbered[has_line] = number.reshape(-1)
    return numbered


def _line_of(semaphore: Int64, line: Int64, count: int) -> Int64:
    """int64[count]: the line of each semaphore, -1: it has none or several."""
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(least, semaphore, line)
    np.maximum.at(most, semaphore, line)
    return np.where(least == most, least, -1)


def _refuse_data(system: GpuSystem, flags: Int64) -> None:
    """flags: int64[2, n], GPUs and lines that have flags, sorted."""
    program, line_bytes = system.program, system.model.line_bytes
    op = program.operand_op
    lines = np.where(np.isin(program.op_kind[op], DATA_OPS), program.op_amount[op], 0)
    stores = ~is_read(program) & (lines > 0)
    stores &= system.gpu_of[system.operand_peer] >= 0
    first = program.operand_address
    last = first + (lines - 1) * program.operand_step
    for gpu in range(system.num_gpus):
        flag = flags[1, flags[0] == gpu]
        low = np.searchsorted(flag, np.minimum(first, last) // line_bytes)
        high = np.searchsorted(flag, np.maximum(first, last) // line_bytes, "right")
        for i in np.flatnonzero(stores & (program.operand_rank == gpu) & (high > low)).tolist():
            touched = (first[i] + np.arange(lines[i]) * program.operand_step[i]) // line_bytes
            hit = np.intersect1d(touched, flag)
            if len(hit):
                raise InputError(
                    f"GPU program {program.name!r}, {place_of(program, int(op[i]))}: stores data to the line at "
                    f"{hit[0] * line_bytes:#x}, in which a semaphore lies that the monitor watches"
                )
