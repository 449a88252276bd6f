"""The plain-Python twin: the operations of a program, one object each."""

from __future__ import annotations

from typing import NamedTuple

from trine.gpu.program import ACQUIRE, DATA_OPS, DMA, READ_FLAGGED, RELEASE, WRITE, WRITE_FLAGGED
from trine.gpu.system import GpuSystem

CONTROL_OPS = (ACQUIRE, RELEASE, DMA)
#: More places than a CU can have.
NO_LIMIT = 1 << 30


class Operand(NamedTuple):
    rank: int
    peer: int
    address: int
    step: int
    semaphore: int
    is_flagged: bool


class Operation(NamedTuple):
    """As in GpuProgram; ``unroll`` is the model's where the program says nothing."""

    number: int
    kind: int
    amount: int
    unroll: int
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]

    @property
    def issued_by_wavefronts(self) -> tuple[Operand, ...]:
        """What a wavefront issues for each line; the rest follows when the reads are back."""
        return self.reads or self.writes


def operations(system: GpuSystem) -> list[Operation]:
    program = system.program
    operands = [
        (role in (WRITE, WRITE_FLAGGED), Operand(rank, peer, address, step, semaphore, role >= READ_FLAGGED))
        for role, rank, peer, address, step, semaphore in zip(
            program.operand_role.tolist(),
            program.operand_rank.tolist(),
            system.operand_peer.tolist(),
            program.operand_address.tolist(),
            program.operand_step.tolist(),
            program.operand_semaphore.tolist(),
            strict=True,
        )
    ]
    found = []
    for i in range(program.num_ops):
        own = operands[program.operand_ptr[i] : program.operand_ptr[i + 1]]
        found.append(
            Operation(
                number=i,
                kind=int(program.op_kind[i]),
                amount=int(program.op_amount[i]),
                unroll=_places(system, i),
                reads=tuple(operand for is_write, operand in own if not is_write),
                writes=tuple(operand for is_write, operand in own if is_write),
            )
        )
    return found


def _places(system: GpuSystem, op: int) -> int:
    """Places of the wavefront at which it waits for one: control operations wait for those of the CU only."""
    if int(system.program.op_kind[op]) not in DATA_OPS:
        return NO_LIMIT
    return int(system.program.op_unroll[op]) or system.model.unroll
