"""One thread block of an MSCCL++ plan as the operations of a workgroup."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.builder import Operand
from trine.gpu.kernels.lower.emit import Emitter
from trine.gpu.kernels.lower.memory import Addresses, AddressSpan, LoweredStep
from trine.gpu.kernels.lower.semaphores import Barriers, Dependencies, Packets, Signals, Take, Turn
from trine.gpu.plans import plan as ir
from trine.gpu.plans.plan import KernelOperand


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockWiring:
    """Where everything lies, and which semaphores order it. ``plan_semaphores[rank]``: those that the file has."""

    addresses: Addresses
    signals: Signals
    barriers: Barriers
    dependencies: Dependencies
    packets: Packets
    plan_semaphores: list[list[int]]
    first_flag: int


class BlockLowering:
    """Goes through the steps of one thread block, number ``block`` of all."""

    def __init__(self, wiring: BlockWiring, out: Emitter, block: int) -> None:
        self.wiring, self.out, self.block = wiring, out, block
        self.addresses = wiring.addresses
        self.barriers_passed: Counter[int] = Counter()

    def run(self, steps: list[LoweredStep]) -> None:
        for number, step in enumerate(steps):
            self.out.label = step.label
            self._step(Turn(self.block, number), step)
            rank = step.gpu.rank
            waiting = self.wiring.dependencies.gives.get((rank, step.block.id, step.number))
            if waiting:
                self.out.settle()
                self.out.release((rank, semaphore) for semaphore in waiting)

    def _step(self, turn: Turn, step: LoweredStep) -> None:
        op, out, rank = step.op, self.out, step.gpu.rank
        if turn in self.wiring.dependencies.takes:
            out.acquire(self.wiring.dependencies.takes[turn])
        if op.action == ir.SYNC:
            out.sync()
        elif op.action == ir.BARRIER:
            self._barrier(step)
        elif op.action == ir.SIGNAL:
            self._signal(turn, step)
        elif op.action == ir.WAIT:
            self._acquire(self.wiring.signals.takes[turn])
        elif op.action == ir.FLUSH:
            out.flush()
        elif op.action == ir.ACQUIRE:
            self._acquire([Take(self.wiring.plan_semaphores[rank][number], 1) for number in op.semaphores])
        elif op.action == ir.RELEASE:
            out.settle()
            out.release((rank, self.wiring.plan_semaphores[rank][number]) for number in op.semaphores)
        else:
            self._move(turn, step)

    def _acquire(self, takes: list[Take]) -> None:
        for take in takes:
            self.out.acquire(take)

    def _barrier(self, step: LoweredStep) -> None:
        """Signal all other thread blocks and wait for them; turns alternate between two semaphores."""
        rank, own, number = step.gpu.rank, step.block.id, step.op.barrier
        self.out.sync()
        members = self.wiring.barriers.semaphores.get((rank, number))
        if members is None:
            return
        parity = self.barriers_passed[number] % 2
        self.barriers_passed[number] += 1
        self.out.release((rank, pair[parity]) for block, pair in members.items() if block != own)
        self.out.acquire(Take(members[own][parity], len(members) - 1))
        self.out.meet()

    def _signal(self, turn: Turn, step: LoweredStep) -> None:
        """Signal peers: with a release through memory, or through a port behind the data already put there."""
        if not step.op.relaxed:
            self.out.settle()
        gives = [
            (step.gpu.connections[connection], self.wiring.signals.gives[turn, number])
            for number, connection in enumerate(step.op.connections)
        ]
        self.out.release((end.peer, semaphore) for end, semaphore in gives if end.kind != ir.PORT)
        for end, semaphore in gives:
            if end.kind == ir.PORT:
                self.out.dma_signal(end.peer, semaphore)

    # -- data ----------------------------------------------------------------------------------------------------

    def _move(self, turn: Turn, step: LoweredStep) -> None:
        op, packets = step.op, self.wiring.packets
        for number in range(len(op.sources)):
            if (turn, number) in packets.takes:
                self.out.acquire(packets.takes[turn, number])
        if any(operand.via == ir.PORT for operand in op.targets):
            self._put_through_ports(turn, step)
        elif op.action == ir.PAIRS:
            for number in range(len(op.sources)):
                self._data(turn, step, [number], [number])
        else:
            self._data(turn, step, list(range(len(op.sources))), list(range(len(op.targets))))
        waiting = [
            (operand.rank, semaphore)
            for number, operand in enumerate(op.targets)
            if operand.via != ir.PORT
            for semaphore in packets.gives.get((turn, number), ())
        ]
        if waiting:
            self.out.settle()
            self.out.release(waiting)

    def _data(self, turn: Turn, step: LoweredStep, sources: list[int], targets: list[int]) -> None:
        op = step.op
        operands = [op.sources[n] for n in sources] + [op.targets[n] for n in targets]
        spans = [self.addresses.spans(step, operand) for operand in operands]
        length = self._length(step, [span for each in spans for span in each])
        if length == 0:
            return
        payload, line = self.addresses.payload, self.addresses.line_bytes
        small = any(operand.packet for operand in operands) or length % line
        step_bytes = payload if small else line
        packets = self.wiring.packets
        reads = [
            row
            for n, each in zip(sources, spans, strict=False)
            for row in self._rows(
                isa.READ_FLAGGED if (turn, n) in packets.flagged_reads else isa.READ, op.sources[n], each, step_bytes
            )
        ]
        writes = [
            row
            for n, each in zip(targets, spans[len(sources) :], strict=True)
            for row in self._rows(
                isa.WRITE_FLAGGED if (turn, n) in packets.flagged_writes else isa.WRITE, op.targets[n], each, step_bytes
            )
        ]
        self.out.data(length // step_bytes, reads, writes)

    def _length(self, step: LoweredStep, spans: list[AddressSpan]) -> int:
        lengths = {span.length for span in spans}
        if len(lengths) > 1:
            raise InputError(
                f"ranges of {sorted(lengths)} bytes in one operation, {step.op.name!r}",
                file=self.addresses.plan.file,
                field=where(step),
            )
        return lengths.pop()

    def _rows(self, role: int, operand: KernelOperand, spans: list[AddressSpan], step_bytes: int) -> list[Operand]:
        """Return the operand's rows: one, or one per member of a multicast group."""
        if operand.group is None:
            return [self._place(role, operand, spans[0], step_bytes)]
        roles = (isa.READ_SUM, isa.READ_MEMBER) if role == isa.READ else (isa.WRITE_ALL, isa.WRITE_MEMBER)
        return [
            Operand(roles[min(number, 1)], span.rank, span.address, step_bytes) for number, span in enumerate(spans)
        ]

    def _place(self, role: int, operand: KernelOperand, span: AddressSpan, step_bytes: int) -> Operand:
        """Return an operand with ``step_bytes`` of data per line; a packet takes a whole line for them."""
        if not operand.packet:
            return Operand(role, span.rank, span.address, step_bytes)
        line = self.addresses.line_bytes
        semaphore = -1
        if role in (isa.READ_FLAGGED, isa.WRITE_FLAGGED):
            semaphore = self.wiring.first_flag + self.addresses.packet_line(span.address)
        return Operand(role, span.rank, span.address, line, semaphore)

    def _put_through_ports(self, turn: Turn, step: LoweredStep) -> None:
        """Wait for polled packets, then let the copy engine (or NIC) read memory."""
        op, wiring = step.op, self.wiring
        if op.action == ir.REDUCE and len(op.sources) > 1:
            raise InputError("a sum cannot go through a port", file=self.addresses.plan.file, field=where(step))
        polled = [number for number in range(len(op.sources)) if (turn, number) in wiring.packets.flagged_reads]
        if polled:
            self._data(turn, step, polled, [])
        if any(operand.polls for operand in op.sources):
            self.out.settle()
        for number, target in enumerate(op.targets):
            source = op.sources[number if op.action == ir.PAIRS else 0]
            if source.packet != target.packet:
                raise InputError(
                    "a port does not convert packets: source and target must both be packets, or neither",
                    file=self.addresses.plan.file,
                    field=where(step),
                )
            self._put(turn, step, source, number)
        if op.flushes:
            self.out.flush()

    def _put(self, turn: Turn, step: LoweredStep, source: KernelOperand, number: int) -> None:
        target, wiring = step.op.targets[number], self.wiring
        given = list(wiring.packets.gives.get((turn, number), ()))
        if step.op.signals:
            given.append(wiring.signals.gives[turn, number])
        here, there = self.addresses.span(step, source), self.addresses.span(step, target)
        length = self._length(step, [here, there])
        if length:
            size = length // self.addresses.payload * self.addresses.line_bytes if source.packet else length
            write = Operand(isa.WRITE, there.rank, there.address, semaphore=given[0] if given else -1)
            self.out.dma(size, Operand(isa.READ, here.rank, here.address), write)
            given = given[1:]
        for semaphore in given:
            self.out.dma_signal(target.rank, semaphore)


def where(step: LoweredStep) -> str:
    """Return the place of the operation in the file."""
    return f"gpus[{step.gpu.rank}].threadblocks[{step.block.id}].{step.place.replace('op ', 'ops ')}"
