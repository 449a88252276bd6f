"""What a text program says, line by line, before ranks, workgroups and loops are written out. Data without logic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from trine.gpu.program import Buffer
from trine.gpu.text_line import Line
from trine.gpu.text_values import Expression


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """``rank``: None is the own one; ``relative``: it is ``rank`` modulo ranks. ``address`` None: of the semaphore."""

    role: int
    rank: Expression | None
    relative: bool = False
    address: Expression | None = None
    step: Expression | None = None
    semaphore: Expression | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One line of a workgroup.

    amount_is_bytes: of a data operation, whole lines. must_leave: role of the operand that must be of another rank
    (put, get), -1: none.
    """

    line: Line
    kind: int
    amount: Expression
    amount_is_bytes: bool = False
    operands: tuple[Operand, ...] = ()
    unroll: Expression | None = None
    label: str | None = None
    must_leave: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """``for name in first..last``, both included."""

    line: Line
    name: str
    first: Expression
    last: Expression
    body: list[Part]


Part: TypeAlias = "Operation | Loop"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workgroups:
    """So many workgroups that do the same, but for ``wg``."""

    line: Line
    count: Expression
    body: list[Part]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """Of ranks ``first`` to ``last``, both included: one each."""

    line: Line
    name: str
    first: Expression
    last: Expression
    wavefronts: Expression
    workgroups: list[Workgroups] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Initially:
    """Semaphores ``first`` to ``last`` of some ranks begin with ``value``."""

    ranks: tuple[int, int]
    semaphores: tuple[int, int]
    value: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What stands before the first kernel. ``semaphore_base``, ``semaphore_step``: where semaphores are in memory."""

    name: str
    num_ranks: int
    line_bytes: int
    payload_bytes: int
    buffers: tuple[Buffer, ...]
    num_semaphores: int
    semaphore_base: int
    semaphore_step: int
    initially: tuple[Initially, ...]
    notes: tuple[str, ...]
