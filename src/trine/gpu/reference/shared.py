"""The plain-Python twin: the operations of a program, one object each, and the state shared by all compute units."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trine.gpu.program import ADD_ALL, DATA_OPS, MEMBER_ROLES, READ_ROLES, is_flagged
from trine.gpu.reference.messages import Messages
from trine.gpu.reference.packets import CopyEngines
from trine.gpu.reference.requests import RequestCounters
from trine.gpu.system import GpuSystem

#: More requests than a CU can have in flight.
NO_LIMIT = 1 << 30


class TwinOperand(NamedTuple):
    """An operand of GpuProgram; ``rank``: the simulated GPU, ``peer``: the rank that the program names.

    members: all members of a multimem operand, this one included; else empty. adds: members add the written data.
    """

    rank: int
    peer: int
    address: int
    step: int
    semaphore: int
    is_flagged: bool
    members: tuple[TwinOperand, ...] = ()
    adds: bool = False


class TwinOperation(NamedTuple):
    """An operation of GpuProgram; ``unroll``: requests in flight of a wavefront, for data operations."""

    number: int
    kind: int
    amount: int
    unroll: int
    reads: tuple[TwinOperand, ...]
    writes: tuple[TwinOperand, ...]

    @property
    def issued_by_wavefronts(self) -> tuple[TwinOperand, ...]:
        """Operands that a wavefront issues for each line; the writes follow when all reads are back."""
        return self.reads or self.writes


def _operations(system: GpuSystem) -> list[TwinOperation]:
    program = system.program
    roles = program.operand_role.tolist()
    rows = [
        TwinOperand(rank, peer, address, step, semaphore, flagged)
        for flagged, rank, peer, address, step, semaphore in zip(
            is_flagged(program).tolist(), program.operand_rank.tolist(), system.operand_peer.tolist(),
            program.operand_address.tolist(), program.operand_step.tolist(), program.operand_semaphore.tolist(),
            strict=True,
        )
    ]  # fmt: skip
    operations = []
    for i, kind in enumerate(program.op_kind.tolist()):
        operand_rows = range(*program.operand_ptr[i : i + 2].tolist())
        unroll = int(program.op_unroll[i]) or system.model.unroll
        in_flight = unroll if kind in DATA_OPS else NO_LIMIT
        read_rows = [row for row in operand_rows if roles[row] in READ_ROLES]
        write_rows = [row for row in operand_rows if roles[row] not in READ_ROLES]
        operations.append(
            TwinOperation(
                number=i, kind=kind, amount=int(program.op_amount[i]), unroll=in_flight,
                reads=_operands(rows, roles, read_rows), writes=_operands(rows, roles, write_rows),
            )
        )  # fmt: skip
    return operations


def _operands(rows: list[TwinOperand], roles: list[int], operand_rows: list[int]) -> tuple[TwinOperand, ...]:
    """Return the operands in ``operand_rows``; members of a multimem operand follow its first row."""
    groups: list[list[int]] = []
    for row in operand_rows:
        if roles[row] in MEMBER_ROLES:
            groups[-1].append(row)
        else:
            groups.append([row])
    operands = []
    for first, *member_rows in groups:
        operand = rows[first]
        if member_rows:
            members = tuple(rows[row] for row in (first, *member_rows))
            operand = operand._replace(members=members, adds=roles[first] == ADD_ALL)
        operands.append(operand)
    return tuple(operands)


class SharedState:
    """State shared by all CUs: operations, messages, copy engines, records of operations.

    is_futile: whether only polls remain that can never succeed. Set before the run.
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
