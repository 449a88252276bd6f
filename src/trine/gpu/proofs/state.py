"""State of a run of the checker: operations, wavefronts, semaphores."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from trine.gpu import program as isa
from trine.gpu.builder import Operand, operations_of
from trine.gpu.program import GpuProgram
from trine.gpu.proofs.memory import Clock, Values, line_widths


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseToken:
    """A released token: the releaser's clock (None for initial units); for a flagged line also the actor and epoch of
    the store, else -1."""

    clock: Clock | None
    actor: int = -1
    epoch: int = -1

    def added_to(self, knows: Clock) -> Clock:
        """Return the reader's clock after a flagged line: it learns of that line's store, but of no other line."""
        if self.actor < 0:
            return knows
        clock = knows.copy()
        clock[self.actor] = max(int(clock[self.actor]), self.epoch)
        return clock


#: Units that a semaphore starts with.
INITIAL = ReleaseToken(None)


@dataclass(frozen=True, slots=True)
class DecodedOp:
    """An operation with its rows; a multimem operand has one row per member, and the first row carries its role."""

    kind: int
    amount: int
    width: int
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]

    @property
    def adds(self) -> tuple[bool, ...]:
        """For each written row, whether the operation adds to the old contents."""
        flags: list[bool] = []
        for row in self.writes:
            flags.append(flags[-1] if row.role in isa.MEMBER_ROLES else row.role == isa.ADD_ALL)
        return tuple(flags)

    @property
    def flagged_reads(self) -> tuple[Operand, ...]:
        return tuple(operand for operand in self.reads if operand.role == isa.READ_FLAGGED)


@dataclass(slots=True, eq=False)
class ProofWavefront:
    """A running wavefront. heard: clocks it merges once its requests complete; line: progress of a flagged load."""

    actor: int
    rank: int
    workgroup: int
    number: int
    num_wavefronts: int
    ops: range
    next: int
    knows: Clock
    heard: list[Clock] = field(default_factory=list)
    line: int = 0
    arrived: bool = False
    registers: tuple[int, int, Values] | None = None

    @property
    def done(self) -> bool:
        return self.next == self.ops.stop

    @property
    def epoch(self) -> int:
        """Epoch of the current operation, from 1."""
        return self.next - self.ops.start + 1


class ProofSemaphore:
    """A semaphore. units: tokens and their unit counts, in order of release. queue: waiting actors, in order."""

    def __init__(self, initial: int) -> None:
        self.units: deque[tuple[ReleaseToken, int]] = deque()
        self.count = 0
        self.queue: deque[int] = deque()
        if initial:
            self.release(INITIAL, initial)

    @property
    def first(self) -> ReleaseToken:
        return self.units[0][0]

    def release(self, token: ReleaseToken, amount: int) -> None:
        self.units.append((token, amount))
        self.count += amount

    def take(self, amount: int) -> list[ReleaseToken]:
        """Remove ``amount`` units and return their tokens; the semaphore must hold at least that many."""
        tokens: list[ReleaseToken] = []
        self.count -= amount
        while amount:
            token, units = self.units.popleft()
            used = min(units, amount)
            amount -= used
            tokens.append(token)
            if used < units:
                self.units.appendleft((token, units - used))
        return tokens


def wavefronts_of(program: GpuProgram) -> list[tuple[int, int, int, int]]:
    """Return (rank, workgroup, wavefront, wavefronts per workgroup) of all wavefronts."""
    return [
        (int(rank), workgroup, number, int(of))
        for kernel, (rank, of) in enumerate(zip(program.kernel_rank, program.kernel_wavefronts, strict=True))
        for workgroup in range(int(program.kernel_ptr[kernel]), int(program.kernel_ptr[kernel + 1]))
        for number in range(int(of))
    ]


def ports_of(program: GpuProgram) -> list[tuple[int, int]]:
    """Return the (rank, peer) pairs of all copy-engine copies."""
    ranks, ports = program.op_rank, {}
    for op in np.flatnonzero(program.op_kind == isa.DMA).tolist():
        first, last = (int(i) for i in program.operand_ptr[op : op + 2])
        ports[int(ranks[op]), int(program.operand_rank[last - 1 if last > first else first])] = True
    return list(ports)


def decode(program: GpuProgram) -> list[DecodedOp]:
    """Return the operations as objects."""
    ops = []
    for (kind, amount, operands, *_), width in zip(operations_of(program), line_widths(program).tolist(), strict=True):
        reads = tuple(operand for operand in operands if operand.role in isa.READ_ROLES)
        writes = tuple(operand for operand in operands if operand.role not in isa.READ_ROLES)
        ops.append(DecodedOp(kind, amount, width, reads, writes))
    return ops


def is_flagged_write(operand: Operand) -> bool:
    """Return whether the lines that a data operation writes through ``operand`` carry flags."""
    return operand.role == isa.WRITE_FLAGGED or (
        operand.role in (isa.WRITE_ALL, isa.WRITE_MEMBER) and operand.semaphore >= 0
    )


def releases(op: DecodedOp, rank: int, number: int) -> bool:
    """Return whether an operation releases a semaphore, or stores a line with that flag."""
    for operand in (*op.writes, *(op.reads if op.kind == isa.DMA else ())):
        count = op.amount if op.kind in isa.DATA_OPS and is_flagged_write(operand) else 1
        if operand.rank == rank and operand.semaphore >= 0 and 0 <= number - operand.semaphore < count:
            return True
    return False
