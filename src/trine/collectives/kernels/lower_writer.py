"""Collects the operations of a program one by one, where a plan's file already lists them one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trine.errors import InputError
from trine.gpu.program import READ, READ_FLAGGED, Buffer, GpuProgram

MAX_OPERATIONS = 2_000_000
MAX_SEMAPHORES = 2**26


class Place(NamedTuple):
    """An operand: role, whose memory, address, bytes from line to line, semaphore (-1: none)."""

    role: int
    rank: int
    address: int
    step: int = 0
    semaphore: int = -1

    @property
    def reads(self) -> bool:
        return self.role in (READ, READ_FLAGGED)


@dataclass(slots=True)
class Writer:
    """Columns of the program so far; ``file`` for messages."""

    file: str
    kinds: list[int] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)
    label_of: list[int] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    operand_ptr: list[int] = field(default_factory=lambda: [0])
    workgroup_ptr: list[int] = field(default_factory=lambda: [0])
    kernel_ptr: list[int] = field(default_factory=lambda: [0])
    kernel_ranks: list[int] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def add(self, kind: int, amount: int, places: Iterable[Place], label: str) -> None:
        """One operation; sources come before targets.

        Raises
        ------
        InputError: the program has become too large.
        """
        if len(self.kinds) == MAX_OPERATIONS:
            raise InputError(
                f"this message needs more than {MAX_OPERATIONS} operations; give a smaller size, or use "
                "--fidelity operator",
                file=self.file,
            )
        self.kinds.append(kind)
        self.amounts.append(amount)
        self.label_of.append(self.labels.setdefault(label, len(self.labels)))
        self.places.extend(places)
        self.operand_ptr.append(len(self.places))

    def end_workgroup(self) -> None:
        self.workgroup_ptr.append(len(self.kinds))

    def end_kernel(self, rank: int) -> None:
        """The workgroups since the last kernel are one of this rank; none, no kernel."""
        if len(self.workgroup_ptr) - 1 > self.kernel_ptr[-1]:
            self.kernel_ptr.append(len(self.workgroup_ptr) - 1)
            self.kernel_ranks.append(rank)

    def program(
        self,
        *,
        name: str,
        initial: list[list[int]],
        num_semaphores: int,
        buffers: tuple[Buffer, ...],
        wavefronts: int,
        line_bytes: int,
        payload_bytes: int,
        notes: tuple[str, ...],
    ) -> GpuProgram:
        """The whole program; ``initial``: of each rank, the values of its first semaphores, the others begin at 0."""
        columns = list(zip(*self.places, strict=True)) or [()] * 5
        semaphores = np.zeros((len(initial), num_semaphores), dtype=np.int32)
        for rank, values in enumerate(initial):
            semaphores[rank, : len(values)] = values
        return GpuProgram(
            name=name,
            num_ranks=len(initial),
            kernel_rank=np.array(self.kernel_ranks, dtype=np.int32),
            kernel_wavefronts=np.full(len(self.kernel_ranks), wavefronts, dtype=np.int32),
            kernel_ptr=np.array(self.kernel_ptr, dtype=np.int64),
            workgroup_ptr=np.array(self.workgroup_ptr, dtype=np.int64),
            op_kind=np.array(self.kinds, dtype=np.int8),
            op_amount=np.array(self.amounts, dtype=np.int64),
            op_unroll=np.zeros(len(self.kinds), dtype=np.int32),
            op_label=np.array(self.label_of, dtype=np.int32),
            operand_ptr=np.array(self.operand_ptr, dtype=np.int64),
            operand_role=np.array(columns[0], dtype=np.int8),
            operand_rank=np.array(columns[1], dtype=np.int32),
            operand_address=np.array(columns[2], dtype=np.int64),
            operand_step=np.array(columns[3], dtype=np.int32),
            operand_semaphore=np.array(columns[4], dtype=np.int32),
            semaphores=semaphores,
            buffers=buffers,
            kernel_names=(name,) * len(self.kernel_ranks),
            labels=tuple(self.labels),
            line_bytes=line_bytes,
            payload_bytes=payload_bytes,
            notes=notes,
        )
