"""Conversion of writes by name and address to engine input: the semaphore each one changes, or plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Bool, Int64
from trine.errors import InputError, nearest
from trine.gpu.peers import FABRICS, IDEAL, PeerWrites
from trine.gpu.program import GpuProgram
from trine.gpu.replay.flags import (
    SHOWN,
    Places,
    buffer_list,
    check_flags,
    flag_count,
    flag_name,
    flag_places,
    listed,
    outside_buffers,
    place_name,
)
from trine.gpu.replay.writes import SEMAPHORE, WriteTable

#: Maximum cache lines of all writes; each is an event.
MAX_LINES = 2**28
#: Maximum bytes of a flag on today's GPUs.
FLAG_BYTES = 8


class Resolved(NamedTuple):
    """Engine input and warnings for the user; ``writes`` by time, peer, address, semaphore, value, size.

    This order makes the result independent of the order of registration.
    """

    writes: PeerWrites
    warnings: tuple[str, ...]


def peer_writes(table: WriteTable, program: GpuProgram, target: int, fabric: str = IDEAL) -> Resolved:
    """Resolve each write for the kernels of rank ``target``.

    A write to the address of one of the target's semaphores is a flag; all others are data. Warnings name flags without
    a waiter, values without a reader, and data that covers the bytes of flags.

    Raises InputError: an unknown fabric, target, peer, buffer or flag; a write outside the buffers; a flag larger than
    a line; waits of the target that no write satisfies. Names file and line of the write, or the flags.
    """
    _check_choice(program, target, fabric)
    _check_peers(table, program, target)
    places = flag_places(program, target)
    address = _absolute(table, program, places, target)
    semaphore = _semaphores(table, address, places)
    _check_places(table, program, address, semaphore)
    columns = table.columns
    is_flag = semaphore >= 0
    flags = check_flags(program, target, semaphore[is_flag], columns.value[is_flag], places)
    warnings = (
        *_unread_values(table, program, address, is_flag),
        *_covered_flags(table, program, address, is_flag, places),
        *flags,
    )
    value = np.where(is_flag, columns.value, 0)
    order = np.lexsort((columns.size_bytes, value, semaphore, address, columns.peer, columns.time_ps))
    writes = PeerWrites(
        peer=columns.peer[order],
        address=address[order],
        size_bytes=columns.size_bytes[order],
        semaphore=semaphore[order].astype(np.int32),
        value=value[order],
        time_ps=columns.time_ps[order],
        fabric=fabric,
    )
    return Resolved(writes, warnings)


def _check_choice(program: GpuProgram, target: int, fabric: str) -> None:
    if fabric not in FABRICS:
        raise InputError(f"unknown fabric {fabric!r}{nearest(fabric, FABRICS)}", field="fabric")
    if not 0 <= target < program.num_ranks:
        raise InputError(f"there is no rank {target}: the program has 0 to {program.num_ranks - 1}", field="target")


def _check_peers(table: WriteTable, program: GpuProgram, target: int) -> None:
    peer = table.columns.peer
    wrong = (peer >= program.num_ranks) | (peer == target)
    if not wrong.any():
        return
    row = int(wrong.argmax())
    problem = "is the target itself" if peer[row] == target else "is no rank of the program"
    raise InputError(
        f"rank {peer[row]} {problem}; peers are 0 to {program.num_ranks - 1} without {target}",
        file=table.where(row),
        field="peer",
    )


def _absolute(table: WriteTable, program: GpuProgram, places: Places, target: int) -> Int64:
    """Return each write's address in the target's memory: int64[writes]."""
    columns = table.columns
    address = columns.address.copy()
    buffers = {buffer.name: buffer for buffer in program.buffers}
    for number, name in enumerate(table.names):
        in_buffer = columns.base == number
        if not in_buffer.any():
            continue
        if name not in buffers:
            row = int(in_buffer.argmax())
            raise InputError(f"unknown buffer {name!r}{nearest(name, buffers)}", file=table.where(row), field="address")
        end = columns.address + columns.size_bytes
        if (is_too_long := in_buffer & (end > buffers[name].size_bytes)).any():
            row = int(is_too_long.argmax())
            raise InputError(
                f"{table.address_text(row)} and {columns.size_bytes[row]} bytes are more than the "
                f"{buffers[name].size_bytes} bytes of the buffer",
                file=table.where(row),
                field="address",
            )
        address[in_buffer] += buffers[name].base
    is_semaphore = columns.base == SEMAPHORE
    address[is_semaphore] = _flag_addresses(table, is_semaphore, places, target)
    return address


def _flag_addresses(table: WriteTable, is_semaphore: Bool, places: Places, target: int) -> Int64:
    semaphores = table.columns.address[is_semaphore]
    order = np.argsort(places.semaphore, kind="stable")
    known_semaphores = places.semaphore[order]
    place = np.searchsorted(known_semaphores, semaphores)
    index = np.minimum(place, max(len(known_semaphores) - 1, 0))
    is_missing = (known_semaphores[index] != semaphores) if len(known_semaphores) else np.ones(len(semaphores), bool)
    if is_missing.any():
        row = int(np.flatnonzero(is_semaphore)[is_missing.argmax()])
        span = f"; those that do are {known_semaphores[0]} to {known_semaphores[-1]}" if len(known_semaphores) else ""
        raise InputError(
            f"no operation of the program waits for or releases semaphore {table.columns.address[row]} of rank "
            f"{target}{span}",
            file=table.where(row),
            field="address",
        )
    return places.address[order][index]


def _semaphores(table: WriteTable, address: Int64, places: Places) -> Int64:
    """Return the semaphore at the address of each write, or -1: int64[writes]."""
    columns = table.columns
    first = np.searchsorted(places.address, address, "left")
    number = np.searchsorted(places.address, address, "right") - first
    is_semaphore = columns.base == SEMAPHORE
    if (is_ambiguous := (number > 1) & ~is_semaphore).any():
        row = int(is_ambiguous.argmax())
        flags = places.semaphore[first[row] : first[row] + 2].tolist()
        raise InputError(
            f"{table.address_text(row)} is the address of semaphores {flags[0]} and {flags[1]}: say 'sem {flags[0]}'",
            file=table.where(row),
            field="address",
        )
    if not len(places.address):
        return np.full(len(address), -1, np.int64)
    semaphores = np.where(number > 0, places.semaphore[np.minimum(first, len(places.address) - 1)], -1)
    return np.where(is_semaphore, columns.address, semaphores)


def _check_places(table: WriteTable, program: GpuProgram, address: Int64, semaphore: Int64) -> None:
    size = table.columns.size_bytes
    if (is_too_large := (semaphore >= 0) & (size > program.line_bytes)).any():
        row = int(is_too_large.argmax())
        raise InputError(
            f"{size[row]} bytes to semaphore {semaphore[row]}: a flag is at most a line of {program.line_bytes} "
            "bytes; write the data by itself",
            file=table.where(row),
            field="bytes",
        )
    if (is_outside := (semaphore < 0) & outside_buffers(program, address, size)).any():
        row = int(is_outside.argmax())
        raise InputError(
            f"{table.address_text(row)} and {size[row]} bytes are outside the buffers of the target"
            f"{buffer_list(program)}",
            file=table.where(row),
            field="address",
        )
    lines = int(((address + size - 1) // program.line_bytes - address // program.line_bytes + 1).sum())
    if lines > MAX_LINES:
        raise InputError(f"the writes have {lines} cache lines, more than {MAX_LINES}", field="bytes")


def _unread_values(table: WriteTable, program: GpuProgram, address: Int64, is_flag: Bool) -> Iterator[str]:
    """Warn about writes of a value, as small as a flag, to addresses without one: likely a flag at a wrong address."""
    columns = table.columns
    rows = np.flatnonzero((columns.value != 0) & ~is_flag & (columns.size_bytes <= FLAG_BYTES))
    if len(rows):
        distinct = np.unique(address[rows])
        names = [place_name(program, place) for place in distinct[:SHOWN].tolist()]
        yield (
            f"peers write flag values to addresses without a waiter ({len(distinct)} addresses); they are data: "
            f"{listed(names, len(distinct))}"
        )


def _covered_flags(
    table: WriteTable, program: GpuProgram, address: Int64, is_flag: Bool, places: Places
) -> Iterator[str]:
    """Warn about data over the bytes of a flag: likely meant for its neighbour, or for the flag."""
    size = table.columns.size_bytes
    first = np.searchsorted(places.address, address - FLAG_BYTES, "right")
    end = np.searchsorted(places.address, address + size, "left")
    rows = np.flatnonzero(~is_flag & (end > first))
    if len(rows):
        steps = np.zeros(len(places.address) + 1, np.int64)
        np.add.at(steps, first[rows], 1)
        np.add.at(steps, end[rows], -1)
        flags = np.unique(places.semaphore[np.cumsum(steps)[:-1] > 0])
        names = [flag_name(program, places, s) for s in flags[:SHOWN].tolist()]
        yield (f"peers write data over {flag_count(len(flags))}, which it does not change: {listed(names, len(flags))}")
