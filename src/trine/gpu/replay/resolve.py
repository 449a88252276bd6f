"""Conversion of writes by name and address to engine input: the semaphore each one changes, or plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64, spans
from trine.errors import InputError, nearest
from trine.gpu.peers import FABRICS, IDEAL, PeerWrites
from trine.gpu.program import ACQUIRE, DMA, READ_FLAGGED, RELEASE, GpuProgram, is_flagged, is_read
from trine.gpu.replay.writes import SEMAPHORE, WriteTable

# Flags of a rank: their addresses, and the amounts that its waits take and that it adds itself.

#: Maximum number of individually flagged lines in a program.
MAX_FLAGGED_LINES = 2**25


class Places(NamedTuple):
    """Addresses of a rank's semaphores, sorted by address: int64[n] each; a semaphore may have several addresses."""

    address: Int64
    semaphore: Int64


def flag_places(program: GpuProgram, rank: int) -> Places:
    """Return addresses of the semaphores of ``rank`` that operations of any rank name.

    Raises InputError: more than 2^25 flagged lines.
    """
    op = program.operand_op
    is_flag = (program.operand_semaphore >= 0) & (program.operand_rank == rank) & (program.op_kind[op] != DMA)
    flagged = is_flagged(program)
    single, ranges = np.flatnonzero(is_flag & ~flagged), np.flatnonzero(is_flag & flagged)
    lines = program.op_amount[op[ranges]]
    if lines.sum() > MAX_FLAGGED_LINES:
        raise InputError(f"{program.name!r} has more than {MAX_FLAGGED_LINES} lines with flags")
    operand, number = np.repeat(ranges, lines), spans(0, lines)
    address = np.concatenate(
        [program.operand_address[single], program.operand_address[operand] + number * program.operand_step[operand]]
    )
    semaphore = np.concatenate([program.operand_semaphore[single], program.operand_semaphore[operand] + number])
    order = np.lexsort((semaphore, address))
    address, semaphore = address[order], semaphore[order].astype(np.int64)
    is_new = np.ones(len(address), bool)
    is_new[1:] = (np.diff(address) != 0) | (np.diff(semaphore) != 0)
    return Places(address[is_new], semaphore[is_new])


def takes_of(program: GpuProgram, rank: int) -> Int64:
    """Return the total that acquires and flagged loads of ``rank`` take from its semaphores: int64[semaphores]."""
    op, is_own = _own_operands(program, rank)
    acquired = is_own & (program.op_kind[op] == ACQUIRE)
    return _sums(program, op, acquired) + _line_sums(program, op, is_own & (program.operand_role == READ_FLAGGED))


def gives_of(program: GpuProgram, rank: int) -> Int64:
    """Return the total that ``rank`` adds to its semaphores itself: int64[semaphores]."""
    op, is_own = _own_operands(program, rank)
    copied = is_own & (program.op_kind[op] == DMA) & (program.operand_semaphore >= 0)
    copies = np.bincount(program.operand_semaphore[copied], minlength=program.semaphores.shape[1])
    released = is_own & (program.op_kind[op] == RELEASE)
    stored = is_own & is_flagged(program) & ~is_read(program)
    return _sums(program, op, released) + _line_sums(program, op, stored) + copies


def waiting_workgroup(program: GpuProgram, rank: int, semaphore: int) -> str:
    """Return who of ``rank`` waits for the semaphore: ``workgroup 3 of kernel 'gemv'``; "" if nobody waits."""
    op, is_own = _own_operands(program, rank)
    lines = np.where(program.operand_role == READ_FLAGGED, program.op_amount[op], 1)
    first = program.operand_semaphore
    waits = is_own & ((program.op_kind[op] == ACQUIRE) | (program.operand_role == READ_FLAGGED))
    acquires = np.flatnonzero(waits & (first <= semaphore) & (semaphore < first + lines))
    if not len(acquires):
        return ""
    group = int(np.searchsorted(program.workgroup_ptr, op[acquires[0]], "right")) - 1
    kernel = int(np.searchsorted(program.kernel_ptr, group, "right")) - 1
    name = program.kernel_names[kernel] if program.kernel_names else str(kernel)
    return f"workgroup {group - int(program.kernel_ptr[kernel])} of kernel {name!r}"


def _own_operands(program: GpuProgram, rank: int) -> tuple[Int64, Bool]:
    """Return each operand's operation, and a mask of the operands of ``rank``'s operations on its own memory."""
    op = program.operand_op
    return op, (program.op_rank[op] == rank) & (program.operand_rank == rank)


def _sums(program: GpuProgram, op: Int64, mask: Bool) -> Int64:
    total = np.zeros(program.semaphores.shape[1], np.int64)
    np.add.at(total, program.operand_semaphore[mask], program.op_amount[op[mask]])
    return total


def _line_sums(program: GpuProgram, op: Int64, mask: Bool) -> Int64:
    """Count one per line: semaphores ``first`` to ``first + lines`` of each chosen operand."""
    steps = np.zeros(program.semaphores.shape[1] + 1, np.int64)
    first = program.operand_semaphore[mask].astype(np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, first + program.op_amount[op[mask]], -1)
    return np.cumsum(steps)[:-1]


#: Maximum number of flags, buffers and places named in a message; the rest are counted.
SHOWN = 8


def covered(program: GpuProgram) -> tuple[Int64, Int64]:
    """Return starts and ends of the buffers, int64 each; touching or overlapping buffers are merged."""
    merged: list[list[int]] = []
    for base, end in sorted((buffer.base, buffer.base + buffer.size_bytes) for buffer in program.buffers):
        if merged and base <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([base, end])
    ranges = np.array(merged, np.int64).reshape(-1, 2)
    return ranges[:, 0], ranges[:, 1]


def outside_buffers(program: GpuProgram, address: Int64, size: Int64 | int) -> npt.NDArray[np.bool_]:
    """Return a mask of the ranges that are not entirely inside the program's buffers."""
    starts, ends = covered(program)
    buffer = np.searchsorted(starts, address, "right") - 1
    return (buffer < 0) | (address + size > np.append(ends, 0)[buffer])


def buffer_list(program: GpuProgram) -> str:
    """Return ``: input 0x0 to 0x1000, ...``, to follow "outside the buffers"."""
    if not program.buffers:
        return ", which the program does not name any of"
    texts = [f"{b.name} 0x{b.base:x} to 0x{b.base + b.size_bytes:x}" for b in program.buffers[:SHOWN]]
    return f": {', '.join(texts)}{', ...' if len(program.buffers) > SHOWN else ''}"


def check_flags(
    program: GpuProgram, target: int, semaphore: Int64, value: Int64, places: Places | None = None
) -> tuple[str, ...]:
    """Compare the values that peers add to ``target``'s semaphores with its waits; return warnings about the excess.

    Raises InputError for waits that no write satisfies, with the flags, the missing amounts and the waiting workgroups.
    """
    places = flag_places(program, target) if places is None else places
    added = np.zeros(program.semaphores.shape[1], np.int64)
    np.add.at(added, semaphore, value)
    takes = takes_of(program, target)
    available = added + gives_of(program, target) + program.semaphores[target]
    _check_waits(program, target, takes, available, places)
    return tuple(_unwaited(program, target, takes, available, places, np.unique(semaphore)))


def flag_name(program: GpuProgram, places: Places, semaphore: int) -> str:
    """Return ``sem 5 at flags+0x140``."""
    rows = np.flatnonzero(places.semaphore == semaphore)
    if not len(rows):
        return f"sem {semaphore}"
    return f"sem {semaphore} at {place_name(program, int(places.address[rows[0]]))}"


def place_name(program: GpuProgram, address: int) -> str:
    """Return ``flags+0x140``, or the plain address outside buffers."""
    for buffer in program.buffers:
        if buffer.base <= address < buffer.base + buffer.size_bytes:
            return f"{buffer.name}+0x{address - buffer.base:x}"
    return f"0x{address:x}"


def listed(names: Sequence[str], number: int) -> str:
    """Return the first SHOWN names, and the number of further ones."""
    return ", ".join(names[:SHOWN]) + (f" and {number - SHOWN} more" if number > SHOWN else "")


def flag_count(number: int) -> str:
    return "1 flag" if number == 1 else f"{number} flags"


def _check_waits(program: GpuProgram, target: int, takes: Int64, available: Int64, places: Places) -> None:
    unmet = np.flatnonzero(takes > available)
    if not len(unmet):
        return
    texts = [
        f"{flag_name(program, places, s)} lacks {takes[s] - available[s]} of {takes[s]}{_waiter(program, target, s)}"
        for s in unmet[:SHOWN].tolist()
    ]
    raise InputError(
        f"rank {target} waits for {flag_count(len(unmet))} that no write satisfies: {listed(texts, len(unmet))}",
        field="writes",
    )


def _waiter(program: GpuProgram, target: int, semaphore: int) -> str:
    waiter = waiting_workgroup(program, target, semaphore)
    return f" ({waiter} waits)" if waiter else ""


def _unwaited(
    program: GpuProgram, target: int, takes: Int64, available: Int64, places: Places, semaphores: Int64
) -> Iterator[str]:
    idle = semaphores[takes[semaphores] == 0]
    extra = semaphores[(takes[semaphores] > 0) & (available[semaphores] > takes[semaphores])]
    if len(idle):
        names = [flag_name(program, places, s) for s in idle[:SHOWN].tolist()]
        yield f"rank {target} never waits for {flag_count(len(idle))} that peers write: {listed(names, len(idle))}"
    if len(extra):
        names = [flag_name(program, places, s) for s in extra[:SHOWN].tolist()]
        extra_flags = flag_count(len(extra))
        yield f"more comes to {extra_flags} than the waits of rank {target} take: {listed(names, len(extra))}"


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
        peer=columns.peer[order], address=address[order], size_bytes=columns.size_bytes[order],
        semaphore=semaphore[order].astype(np.int32), value=value[order], time_ps=columns.time_ps[order], fabric=fabric,
    )  # fmt: skip
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
