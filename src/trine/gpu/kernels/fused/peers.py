"""Peer writes to one rank (flags and lines of data), derived from that rank's kernels alone.

They allow the replay of peers that are not simulated. All ranks of these programs do the same, rotated: a rank receives
over each distance the same data that it sends over that distance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int32, Int64, spans
from trine.errors import InputError
from trine.gpu.kernels.fused.build import FusedProgram
from trine.gpu.kernels.fused.options import ALL_TO_ALL, TWOSHOT
from trine.gpu.kernels.fused.tiles import MAX_OPERANDS
from trine.gpu.program import ACQUIRE, DATA_OPS, RELEASE, WRITE, GpuProgram


class PeerFlags(NamedTuple):
    """Flags that peers write to a rank, by semaphore, then peer.

    semaphore: int32[n], of the rank. address: int64[n], bytes. peer: int32[n], the writer. workgroup: int32[n], the
    rank's waiting workgroup in the program's numbering, -1: none. value: int64[n], amount added.
    """

    semaphore: Int32
    address: Int64
    peer: Int32
    workgroup: Int32
    value: Int64


class PeerData(NamedTuple):
    """Lines that peers write to a rank, by peer, workgroup and address; consecutive lines are merged.

    peer: int32[n], the writer. workgroup: int32[n], the rank's workgroup that waits for the data's flag, -1: none.
    address, size_bytes: int64[n], whole lines.
    """

    peer: Int32
    workgroup: Int32
    address: Int64
    size_bytes: Int64


def flags_of(program: GpuProgram, rank: int) -> PeerFlags:
    """Return all flags that the peers of ``rank`` write to it.

    They come from the peers' kernels if the program has any, else from the kernels of ``rank`` by rotation.

    Raises InputError: the program has no kernel of ``rank``.
    """
    writes = _peer_writes(program, rank, np.array([RELEASE], np.int8))
    semaphore = program.operand_semaphore[writes.operand]
    order = np.lexsort((writes.peer, semaphore))
    semaphore = semaphore[order]
    return PeerFlags(
        semaphore,
        program.operand_address[writes.operand][order],
        writes.peer[order],
        _waiting(program, rank)[semaphore],
        program.op_amount[writes.op][order],
    )


def peer_writes_of(built: FusedProgram, rank: int) -> PeerData:
    """Return all data that the peers of ``rank`` write to it.

    Like :func:`flags_of`, but only for a fused kernel or its unfused form; the parts of their outputs are ordered by
    writing rank.

    Raises InputError: the program has no kernel of ``rank``; more than 2^25 non-consecutive lines.
    """
    program = built.program
    line = program.line_bytes
    writes = _peer_writes(program, rank, np.array(DATA_OPS, np.int8))
    address, step = program.operand_address[writes.operand], program.operand_step[writes.operand].astype(np.int64)
    if writes.mirrored:
        address = _rotated(built, address, writes.peer - rank)
    lines = program.op_amount[writes.op]
    runs = np.where(step == line, 1, lines)
    if runs.sum() > MAX_OPERANDS:
        raise InputError(f"the peers of rank {rank} write more than {MAX_OPERANDS} lines apart: take larger tiles")
    row = np.repeat(np.arange(len(runs)), runs)
    number = spans(0, runs)
    spread = PeerData(
        writes.peer[row],
        _receivers(program, rank, writes)[row],
        address[row] + number * step[row],
        np.where(step == line, lines, 1)[row] * line,
    )
    return _merged(spread, [buffer.base for buffer in program.buffers])


class _PeerWrites(NamedTuple):
    """Write operands from peers to a rank, or (mirrored) from the rank to its peers: int64[n]. peer: int32[n]."""

    operand: Int64
    op: Int64
    peer: Int32
    mirrored: bool


def _peer_writes(program: GpuProgram, rank: int, kinds: npt.NDArray[np.int8]) -> _PeerWrites:
    if rank not in program.kernel_rank:
        raise InputError(f"{program.name} has no kernel of rank {rank}", field="rank")
    op = program.operand_op
    sender, target = program.op_rank[op], program.operand_rank
    mirrored = bool((program.kernel_rank == rank).all())
    is_peer_write = np.isin(program.op_kind[op], kinds) & (program.operand_role == WRITE) & (sender != target)
    if not mirrored:
        is_peer_write &= target == rank
    operand = np.flatnonzero(is_peer_write)
    peer = (2 * rank - target[operand]) % program.num_ranks if mirrored else sender[operand]
    return _PeerWrites(operand, op[operand], peer.astype(np.int32), mirrored)


def _waiting(program: GpuProgram, rank: int) -> Int32:
    """Return the workgroup of ``rank`` that acquires each semaphore, int32[semaphores]; -1: none."""
    waiting = np.full(program.semaphores.shape[1], -1, np.int32)
    op = np.flatnonzero((program.op_kind == ACQUIRE) & (program.op_rank == rank))
    waiting[program.operand_semaphore[program.operand_ptr[op]]] = _workgroups(program, op)
    return waiting


def _workgroups(program: GpuProgram, op: Int64) -> Int64:
    """Return the workgroup of each operation; ``op`` may be in any order."""
    return np.searchsorted(program.workgroup_ptr, op, "right") - 1


def _receivers(program: GpuProgram, rank: int, data: _PeerWrites) -> Int32:
    """Return the workgroup that waits for each data row's flag, from the same sender to the same rank: int32[n]."""
    flags = _peer_writes(program, rank, np.array([RELEASE], np.int8))
    flag_keys, data_keys = (_workgroups(program, rows.op) * program.num_ranks + rows.peer for rows in (flags, data))
    keys, first = np.unique(flag_keys, return_index=True)
    if not len(keys):
        return np.full(len(data_keys), -1, np.int32)
    place = np.minimum(np.searchsorted(keys, data_keys), len(keys) - 1)
    semaphore = program.operand_semaphore[flags.operand[first]][place]
    return np.where(keys[place] == data_keys, _waiting(program, rank)[semaphore], -1).astype(np.int32)


def _rotated(built: FusedProgram, address: Int64, ranks_on: Int32) -> Int64:
    """Return the address that the rank ``ranks_on`` further uses for this rank's writes to ``address``."""
    options, program = built.options, built.program
    if options.kind.op != ALL_TO_ALL and options.algorithm != TWOSHOT:
        return address
    output = next(buffer for buffer in program.buffers if buffer.name == "output")
    offset = address - output.base
    is_inside = (offset >= 0) & (offset < output.size_bytes)
    rotated_offset = (offset + ranks_on * (output.size_bytes // options.num_ranks)) % output.size_bytes
    return np.where(is_inside, output.base + rotated_offset, address)


def _merged(data: PeerData, bases: list[int]) -> PeerData:
    """Return the data sorted, with consecutive rows of one buffer merged; buffers begin at ``bases``."""
    order = np.lexsort((data.address, data.workgroup, data.peer))
    peer, workgroup = data.peer[order], data.workgroup[order]
    address, size_bytes = data.address[order], data.size_bytes[order]
    is_first = np.append(True, address[1:] != address[:-1] + size_bytes[:-1]) | np.isin(address, bases)
    is_first[1:] |= (np.diff(peer) != 0) | (np.diff(workgroup) != 0)
    starts = np.flatnonzero(is_first[: len(order)])
    return PeerData(peer[starts], workgroup[starts], address[starts], np.add.reduceat(size_bytes, starts))
