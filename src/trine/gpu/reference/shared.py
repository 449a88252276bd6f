"""The plain-Python twin: the operations of a program, one object each, and what all compute units share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trine.gpu.program import DATA_OPS, READ_FLAGGED, WRITE, WRITE_FLAGGED
from trine.gpu.reference.packets import CopyEngines
from trine.gpu.reference.requests import Messages, RequestCounters
from trine.gpu.system import GpuSystem

#: More requests than a CU can have in flight.
NO_LIMIT = 1 << 30


class TwinOperand(NamedTuple):
    """As in GpuProgram; ``rank``: the simulated GPU, ``peer``: the rank that is meant."""

    rank: int
    peer: int
    address: int
    step: int
    semaphore: int
    is_flagged: bool


class TwinOperation(NamedTuple):
    """As in GpuProgram; ``unroll``: requests in flight of a wavefront, for data operations."""

    number: int
    kind: int
    amount: int
    unroll: int
    reads: tuple[TwinOperand, ...]
    writes: tuple[TwinOperand, ...]

    @property
    def issued_by_wavefronts(self) -> tuple[TwinOperand, ...]:
        """What a wavefront issues for each line; the rest follows when the reads are back."""
        return self.reads or self.writes


def _operations(system: GpuSystem) -> list[TwinOperation]:
    program = system.program
    operands = [
        (role in (WRITE, WRITE_FLAGGED), TwinOperand(rank, peer, address, step, semaphore, role >= READ_FLAGGED))
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
    for i, kind in enumerate(program.op_kind.tolist()):
        own = operands[program.operand_ptr[i] : program.operand_ptr[i + 1]]
        unroll = int(program.op_unroll[i]) or system.model.unroll
        found.append(
            TwinOperation(
                number=i,
                kind=kind,
                amount=int(program.op_amount[i]),
                unroll=unroll if kind in DATA_OPS else NO_LIMIT,
                reads=tuple(operand for is_write, operand in own if not is_write),
                writes=tuple(operand for is_write, operand in own if is_write),
            )
        )
    return found


class SharedState:
    """What all CUs share: operations, messages, copy engines, records of operations.

    is_futile: whether asking for semaphores again is all that still happens, and of no use. Set before the run.
    """

    def __init__(self, system: GpuSystem, messages: Messages, engines: CopyEngines) -> None:
        self.system, self.agenda, self.model = system, messages.agenda, system.model
        self.messages, self.engines = messages, engines
        self.operations = _operations(system)
        self.op_start_ps = [-1] * len(self.operations)
        self.op_end_ps = [-1] * len(self.operations)
        self.ranks = system.ranks.tolist()
        self.counters = [RequestCounters() for _ in self.ranks]
        self.requests_done = 0
        self.is_futile: Callable[[], bool]
