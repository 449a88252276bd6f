"""Operations of one workgroup, with the waits and barriers that make its data visible to all its wavefronts.

An operation does not wait for earlier operations to complete, and only wavefront 0 runs control operations. Therefore:

- Before data is published or reused, and at the plan's thread barriers, all wavefronts wait for their outstanding
  operations and meet at a barrier (*settle*).
- After wavefront 0 has acquired a semaphore, the other wavefronts meet it at a barrier before they continue (*meet*).

Both are skipped when no earlier operation requires them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trine.gpu import program as isa
from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.kernels.lower.memory import Addresses
from trine.gpu.kernels.lower.semaphores import Take

MAX_OPERATIONS = 2_000_000

#: rank, first byte, end byte (exclusive), whether it is written
Access = tuple[int, int, int, bool]


class Emitter:
    """Emitter of the operations of one workgroup of ``rank``."""

    def __init__(self, builder: ProgramBuilder, addresses: Addresses, rank: int) -> None:
        self.builder, self.addresses, self.rank = builder, addresses, rank
        self.label = ""
        self.waits_early = False
        self._pending: list[Access] = []
        self._has_acquired = False
        self._dmas = 0

    # -- waiting -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Complete the outstanding operations of all wavefronts, then meet at a barrier."""
        if self._pending:
            self.sync()
        self.meet()

    def sync(self) -> None:
        """Give the guarantee of ``__syncthreads``; threads meet even without outstanding operations."""
        if self._pending:
            self._wait()
            self._pending.clear()
        self._add(isa.BARRIER)
        self._has_acquired = False

    def _wait(self) -> None:
        self.waits_early |= self._dmas > 0
        self._add(isa.WAITCNT)
        self._dmas = 0

    def meet(self) -> None:
        """Make the other wavefronts wait for the semaphores that wavefront 0 has acquired."""
        if self._has_acquired:
            self._add(isa.BARRIER)
            self._has_acquired = False

    # -- control -------------------------------------------------------------------------------------------------

    def acquire(self, take: Take) -> None:
        operand = Operand(isa.READ, self.rank, self.addresses.semaphore(take.semaphore), semaphore=take.semaphore)
        self._add(isa.ACQUIRE, take.amount, [operand])
        self._has_acquired = True

    def release(self, targets: Iterable[tuple[int, int]]) -> None:
        """Add one to each of these (rank, semaphore)."""
        operands = [
            Operand(isa.WRITE, rank, self.addresses.semaphore(number), semaphore=number) for rank, number in targets
        ]
        if operands:
            self._add(isa.RELEASE, 1, operands)

    def flush(self) -> None:
        """Wait for all transfers of the copy engine."""
        if self._dmas:
            self._add(isa.WAITCNT)
            self._dmas, self._has_acquired = 0, True

    # -- data ----------------------------------------------------------------------------------------------------

    def data(self, lines: int, sources: Sequence[Operand], targets: Sequence[Operand]) -> None:
        """Add a copy, a sum (several sources) or a load (no targets). Multimem operands have several rows."""
        self._settle_conflicts(lines, (*sources, *targets))
        sources = self._one_by_one(lines, sources)
        is_sum = sum(operand.role not in isa.MEMBER_ROLES for operand in sources) > 1
        if is_sum:
            kind = isa.REDUCE
        elif targets:
            kind = isa.COPY
        else:
            kind = isa.LOAD
        self._add(kind, lines, (*sources, *targets))

    def _one_by_one(self, lines: int, sources: Sequence[Operand]) -> Sequence[Operand]:
        """Load flagged sources one by one, as an MSCCL++ lane waits for each packet (execution_kernel.hpp). Return the
        sum's operands: it reads all again with the last packet, where hardware keeps the others in registers."""
        flagged = [number for number, operand in enumerate(sources) if operand.role == isa.READ_FLAGGED]
        operands = list(sources)
        for number in flagged[:-1]:
            self._add(isa.LOAD, lines, [sources[number]])
            self._wait()
            operands[number] = sources[number]._replace(role=isa.READ, semaphore=-1)
        return operands

    def dma(self, size_bytes: int, source: Operand, target: Operand) -> None:
        """Hand a transfer to the copy engine."""
        accesses = [(source.rank, source.address, source.address + size_bytes, False)]
        if self._conflict(accesses):
            self.settle()
        self._add(isa.DMA, size_bytes, [source, target])
        self._dmas += 1

    def dma_signal(self, rank: int, semaphore: int) -> None:
        """Signal a semaphore after all transfers of the copy engine to that rank."""
        operand = Operand(isa.WRITE, rank, self.addresses.semaphore(semaphore), semaphore=semaphore)
        self._add(isa.DMA, 0, [operand])
        self._dmas += 1

    def _settle_conflicts(self, lines: int, operands: Iterable[Operand]) -> None:
        """Settle if an outstanding operation touches the same bytes; others may stay in flight."""
        accesses = [(p.rank, p.address, p.address + lines * p.step, p.role not in isa.READ_ROLES) for p in operands]
        if self._conflict(accesses):
            self.settle()
        self.meet()
        self._pending += accesses

    def _conflict(self, accesses: Iterable[Access]) -> bool:
        return any(
            rank == other and low < end and start < high and (writes or wrote)
            for rank, low, high, writes in accesses
            for other, start, end, wrote in self._pending
        )

    def _add(self, kind: int, amount: int = 0, operands: Iterable[Operand] = ()) -> None:
        """Add an operation; raise InputError if the program is too large."""
        if self.builder.num_ops == MAX_OPERATIONS:
            raise self.addresses.plan.fault(
                f"this message needs more than {MAX_OPERATIONS} operations; give a smaller size, or use "
                "--fidelity operator"
            )
        self.builder.add(kind, amount, operands, self.label)
