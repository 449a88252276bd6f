"""Join GPU programs into one; each part gets separate ranks, addresses and semaphores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int32, Int64
from trine.errors import InputError
from trine.gpu.program import COLUMNS, POINTERS, Buffer, GpuProgram
from trine.gpu.validate import MAX_ADDRESS, MAX_RANKS

#: Maximum number of initial semaphore values over all ranks: 1 GiB.
MAX_SEMAPHORES = 2**28


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlacedProgram:
    """A program and its placement in the joined program.

    ranks: the joined program's rank for each of the program's ranks. address_shift: added to all addresses, bytes.
    semaphore_shift: added to the numbers of its semaphores. name: prefix of its buffers and labels; empty: no prefix.

    Raises InputError: a wrong number of ranks, a repeated rank, or a shift below 0.
    """

    program: GpuProgram
    ranks: tuple[int, ...]
    address_shift: int = 0
    semaphore_shift: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.ranks) != self.program.num_ranks:
            raise InputError(
                f"program {self.program.name!r} is for {self.program.num_ranks} ranks, got {len(self.ranks)}",
                field="ranks",
            )
        if len(set(self.ranks)) != len(self.ranks):
            raise InputError(f"program {self.program.name!r} is given a rank twice: {self.ranks}", field="ranks")
        for field in ("address_shift", "semaphore_shift"):
            if getattr(self, field) < 0:
                raise InputError(f"must not be negative, got {getattr(self, field)}", field=field)

    @property
    def semaphores_end(self) -> int:
        """One more than the number of the last semaphore."""
        return self.semaphore_shift + int(self.program.semaphores.shape[1])


def join_programs(parts: Sequence[PlacedProgram], num_ranks: int, name: str = "joined") -> GpuProgram:
    """Return one program with the kernels of all parts, part by part, each in its order.

    Parts may share memory (the output of one part is the input of another), but never semaphores of a rank. The result
    has named buffers if all parts have them, and a payload if it has a single part.

    Raises InputError: no parts, a rank out of range, different line sizes, semaphores shared by two parts, or more
    semaphores than MAX_SEMAPHORES.
    """
    if not parts:
        raise InputError("there is nothing to join", field="parts")
    if any(part.program.num_hosts for part in parts):
        raise InputError("programs that load from or store to hosts are not joined", field="parts")
    if not 1 <= num_ranks <= MAX_RANKS:
        raise InputError(f"must be from 1 to {MAX_RANKS}, got {num_ranks}", field="num_ranks")
    _check(parts, num_ranks)
    labels, renamed = _labels(parts)
    programs = [part.program for part in parts]
    moved = [_moved(part, label) for part, label in zip(parts, renamed, strict=True)]
    arrays: dict[str, Any] = {name: np.concatenate([part[name] for part in moved]) for name in COLUMNS}
    arrays |= {pointer: _offsets([getattr(program, pointer) for program in programs]) for pointer in POINTERS}
    payload = programs[0].payload_bytes if len(parts) == 1 else 0
    part_notes = dict.fromkeys(note for program in programs for note in program.notes)
    return GpuProgram(
        name=name, num_ranks=num_ranks, **arrays, semaphores=_semaphores(parts, num_ranks), buffers=_buffers(parts),
        kernel_names=_kernel_names(programs), labels=labels, line_bytes=programs[0].line_bytes, payload_bytes=payload,
        notes=tuple(part_notes),
    )  # fmt: skip


def _moved(part: PlacedProgram, label: Int32) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a part, moved to its placement; ``label``: the new number of each of its labels."""
    program, ranks = part.program, np.array(part.ranks, np.int32)
    semaphore = program.operand_semaphore
    return {name: getattr(program, name) for name in COLUMNS} | {
        "kernel_rank": ranks[program.kernel_rank],
        "op_label": label[program.op_label],
        "operand_rank": ranks[program.operand_rank],
        "operand_address": program.operand_address + part.address_shift,
        "operand_semaphore": np.where(semaphore >= 0, semaphore + np.int32(part.semaphore_shift), semaphore),
    }


def _check(parts: Sequence[PlacedProgram], num_ranks: int) -> None:
    line_bytes = parts[0].program.line_bytes
    for part in parts:
        program = part.program
        if program.line_bytes != line_bytes:
            raise InputError(
                f"program {program.name!r} has lines of {program.line_bytes} B, "
                f"{parts[0].program.name!r} of {line_bytes}"
            )
        wrong = [rank for rank in part.ranks if not 0 <= rank < num_ranks]
        if wrong:
            raise InputError(
                f"program {program.name!r} is put on rank {wrong[0]}, there are ranks 0 to {num_ranks - 1}",
                field="ranks",
            )
        if int(program.operand_address.max(initial=0)) + part.address_shift > MAX_ADDRESS:
            raise InputError(f"program {program.name!r} is put beyond the last address", field="address_shift")
    total = max(part.semaphores_end for part in parts) * num_ranks
    if total > MAX_SEMAPHORES:
        raise InputError(f"{total:,} semaphores of all ranks are more than {MAX_SEMAPHORES:,}", field="semaphore_shift")
    _check_semaphores(parts)


def _check_semaphores(parts: Sequence[PlacedProgram]) -> None:
    """Refuse a semaphore of a rank that belongs to two parts."""
    owner: dict[int, tuple[int, PlacedProgram]] = {}
    for part in sorted(parts, key=lambda part: part.semaphore_shift):
        if part.semaphores_end == part.semaphore_shift:
            continue
        for rank in part.ranks:
            end, owning_part = owner.get(rank, (0, part))
            if part.semaphore_shift < end:
                raise InputError(
                    f"programs {owning_part.program.name!r} and {part.program.name!r} both have semaphore "
                    f"{part.semaphore_shift} of rank {rank}",
                    field="semaphore_shift",
                )
            owner[rank] = part.semaphores_end, part


def _offsets(pointers: Sequence[Int64]) -> Int64:
    """Concatenate the parts' CSR offsets."""
    starts = np.cumsum([0, *(pointer[-1] for pointer in pointers)])
    inner = [pointer[:-1] + start for pointer, start in zip(pointers, starts[:-1], strict=True)]
    return np.append(np.concatenate(inner), starts[-1]).astype(np.int64)


def _labels(parts: Sequence[PlacedProgram]) -> tuple[tuple[str, ...], list[Int32]]:
    """Return all labels, and for each part the new number of each label; the last entry maps -1 (no label)."""
    numbers: dict[str, int] = {}
    renamed = []
    for part in parts:
        renamed.append(
            np.array(
                [numbers.setdefault(_named(part, label), len(numbers)) for label in part.program.labels] + [-1],
                np.int32,
            )
        )
    return tuple(numbers), renamed


def _named(part: PlacedProgram, name: str) -> str:
    return f"{part.name} {name}" if part.name else name


def _semaphores(parts: Sequence[PlacedProgram], num_ranks: int) -> Int32:
    values = np.zeros((num_ranks, max(part.semaphores_end for part in parts)), np.int32)
    for part in parts:
        values[list(part.ranks), part.semaphore_shift : part.semaphores_end] = part.program.semaphores
    return values


def _buffers(parts: Sequence[PlacedProgram]) -> tuple[Buffer, ...]:
    """Return the buffers of all parts, equal ones once; repeated names get a number."""
    if not all(part.program.buffers for part in parts):
        return ()
    by_name: dict[str, Buffer] = {}
    uses: dict[str, int] = {}
    unique: set[Buffer] = set()
    for part in parts:
        for buffer in part.program.buffers:
            moved = replace(buffer, name=_named(part, buffer.name), base=buffer.base + part.address_shift)
            if moved in unique:
                continue
            unique.add(moved)
            name = moved.name
            while name in by_name:
                uses[moved.name] = uses.get(moved.name, 1) + 1
                name = f"{moved.name} {uses[moved.name]}"
            by_name[name] = replace(moved, name=name)
    return tuple(by_name.values())


def _kernel_names(programs: Sequence[GpuProgram]) -> tuple[str, ...]:
    return tuple(name for program in programs for name in program.kernel_names or (program.name,) * program.num_kernels)
