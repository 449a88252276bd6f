"""One thread block of an MSCCL plan as the operations of a workgroup."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from trine.collectives.kernels.lower_emit import Emitter
from trine.collectives.kernels.lower_fifos import Cutting, Fifo, Fifos, Piece, Slice
from trine.collectives.kernels.lower_memory import FIFOS, Addresses
from trine.collectives.kernels.lower_order import Semaphores, Take
from trine.collectives.kernels.lower_writer import Place
from trine.collectives.mscclpp.memory import in_place
from trine.collectives.mscclpp.plan import FIFO, KernelGpu, KernelOp, KernelPlan, Operand, ThreadBlock
from trine.gpu.program import READ, READ_FLAGGED, WRITE, WRITE_FLAGGED

#: rank, thread block, step, loop
At = tuple[int, int, int, int]


class StepDependencies:
    """``takes[at]``: before this step; ``gives[at]``: semaphores of the own rank behind it.

    A ``nop`` hands what it depends on to the step behind it, as MSCCL's interpreter polls for all of them at once.
    """

    def __init__(self, plan: KernelPlan, num_loops: int, semaphores: Semaphores) -> None:
        self.takes: dict[At, Take] = {}
        self.gives: dict[At, list[int]] = defaultdict(list)
        for gpu in plan.gpus:
            for block in gpu.blocks:
                self._block(gpu.rank, block, num_loops, semaphores)

    def _block(self, rank: int, block: ThreadBlock, num_loops: int, semaphores: Semaphores) -> None:
        carried: list[tuple[int, int]] = []
        for number, op in enumerate(block.operations):
            carried += [other for other in op.dependencies if other[0] != block.id]
            last = number == len(block.operations) - 1
            if not carried or (not op.sources and not last):
                continue
            semaphore = semaphores.new(rank)
            for loop in range(num_loops):
                if loop and len(carried) > 1:
                    semaphore = semaphores.new(rank)
                self.takes[rank, block.id, number, loop] = Take(semaphore, len(carried))
                for other in carried:
                    self.gives[(rank, *other, loop)].append(semaphore)
            carried = []


@dataclass(frozen=True, kw_only=True, slots=True)
class FifoWiring:
    """Where everything lies, and which semaphores order it; ``slot_lines``: semaphores a slot with flags."""

    addresses: Addresses
    cutting: Cutting
    fifos: Fifos
    dependencies: StepDependencies
    flagged: bool
    first_flag: int
    slot_lines: int


class StepLowering:
    """Goes through the steps of one thread block, once for each piece of the chunks."""

    def __init__(self, wiring: FifoWiring, out: Emitter, gpu: KernelGpu, block: ThreadBlock) -> None:
        self.wiring, self.out, self.gpu, self.block = wiring, out, gpu, block
        self.next_slice: dict[tuple[int, int, int, int], int] = defaultdict(int)

    def run(self) -> None:
        for loop, offset in enumerate(self.wiring.cutting.offsets):
            for number, op in enumerate(self.block.operations):
                self.out.label = f"step {number} {op.name}"
                self._step(op, (self.gpu.rank, self.block.id, number, loop), offset)

    def _step(self, op: KernelOp, at: At, offset: int) -> None:
        dependencies = self.wiring.dependencies
        if at in dependencies.takes:
            self.out.acquire(dependencies.takes[at])
        for piece in self.wiring.cutting.pieces(op, offset):
            if any(operand.buffer == FIFO for operand in (*op.sources, *op.targets)):
                for start, length in self.wiring.cutting.slices(piece.length):
                    self._slice(op, piece, start, length)
            else:
                self._data(op, piece, 0, piece.length, {})
        if at in dependencies.gives:
            self.out.settle()
            self.out.release((self.gpu.rank, semaphore) for semaphore in dependencies.gives[at])

    def _slice(self, op: KernelOp, piece: Piece, start: int, length: int) -> None:
        """Wait for the data and for room, move, then tell both sides."""
        slots = self.wiring.cutting.shape.slots
        ends: dict[int, tuple[Fifo, int, Slice]] = {}
        for operand in (*op.sources, *op.targets):
            if operand.buffer == FIFO:
                ends[id(operand)] = found = self._next(op, operand)
                fifo, side, slice_ = found
                if side == 1 and not self.wiring.flagged:
                    self.out.acquire(Take(fifo.tail, 1))
                if side == 0 and slice_.use - slots in fifo.uses:
                    self.out.acquire(Take(fifo.credit, 1))
        self._data(op, piece, start, length, ends)
        given = [
            (fifo.target, fifo.tail) if side == 0 else (fifo.source, fifo.credit)
            for fifo, side, slice_ in ends.values()
            if (side == 0 and not self.wiring.flagged) or (side == 1 and slice_.use + slots in fifo.uses)
        ]
        if given:
            self.out.settle()
            self.out.release(given)

    def _next(self, op: KernelOp, operand: Operand) -> tuple[Fifo, int, Slice]:
        fifo, side = self.wiring.fifos.find(self.gpu, op, operand)
        key = (fifo.source, fifo.target, fifo.channel, side)
        number = self.next_slice[key]
        self.next_slice[key] += 1
        return fifo, side, (fifo.sent, fifo.received)[side][number]

    # -- data ----------------------------------------------------------------------------------------------------

    def _data(
        self, op: KernelOp, piece: Piece, start: int, length: int, ends: dict[int, tuple[Fifo, int, Slice]]
    ) -> None:
        line, payload = self.wiring.addresses.line_bytes, self.wiring.addresses.payload
        step = payload if (ends and self.wiring.flagged) or length % line else line
        sides = [
            [
                self._slot(*ends[id(operand)])
                if operand.buffer == FIFO
                else self._place(operand, piece, start, step, reads)
                for operand in operands
            ]
            for operands, reads in ((op.sources, True), (op.targets, False))
        ]
        self.out.data(length // step, *sides)

    def _place(self, operand: Operand, piece: Piece, start: int, step: int, reads: bool) -> Place:
        addresses = self.wiring.addresses
        plan, layout = addresses.plan, addresses.layout
        first = layout.at(operand.index + piece.chunk) + piece.offset + start
        buffer, first = in_place(plan, layout, operand.rank, operand.buffer, first)
        return Place(READ if reads else WRITE, operand.rank, addresses.base[buffer] + first, step)

    def _slot(self, fifo: Fifo, side: int, slice_: Slice) -> Place:
        """A slot of the FIFO in the memory of its receiver."""
        wiring, shape = self.wiring, self.wiring.cutting.shape
        slot = fifo.index * shape.slots + slice_.use % shape.slots
        address = wiring.addresses.base[FIFOS] + slot * shape.slot_bytes
        line = wiring.addresses.line_bytes
        if not wiring.flagged:
            return Place(WRITE if side == 0 else READ, fifo.target, address, line)
        role = WRITE_FLAGGED if side == 0 else READ_FLAGGED
        return Place(role, fifo.target, address, line, wiring.first_flag + slot * wiring.slot_lines)
