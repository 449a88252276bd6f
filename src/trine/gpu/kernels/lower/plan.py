"""Conversion of MSCCL++ plans and MSCCL XML to GPU programs (docs/guides/plans-on-gpus.md)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.kernels.lower.emit import MAX_OPERATIONS, Emitter
from trine.gpu.kernels.lower.memory import (
    Addresses,
    AddressSpan,
    LoweredStep,
    block_steps,
    line_layout,
    num_rounds,
    payload_of_line,
)
from trine.gpu.kernels.lower.msccl import Cutting, Fifos, FifoWiring, StepDependencies, StepLowering
from trine.gpu.kernels.lower.semaphores import Barriers, Dependencies, Packets, Semaphores, Signals, Take, Turn
from trine.gpu.plans import plan as ir
from trine.gpu.plans.cells import ChunkLayout, operations
from trine.gpu.plans.plan import PIPELINE, KernelGpu, KernelOperand, KernelPlan
from trine.gpu.plans.reading import walk
from trine.gpu.program import GpuProgram
from trine.gpu.validate import MAX_WAVEFRONTS

# One thread block of an MSCCL++ plan as the operations of a workgroup.


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

    def __init__(self, wiring: BlockWiring, emitter: Emitter, block: int) -> None:
        self.wiring, self.emitter, self.block = wiring, emitter, block
        self.addresses = wiring.addresses
        self.barriers_passed: Counter[int] = Counter()

    def run(self, steps: list[LoweredStep]) -> None:
        for number, step in enumerate(steps):
            self.emitter.label = step.label
            self._step(Turn(self.block, number), step)
            rank = step.gpu.rank
            semaphores = self.wiring.dependencies.gives.get((rank, step.block.id, step.number))
            if semaphores:
                self.emitter.settle()
                self.emitter.release((rank, semaphore) for semaphore in semaphores)

    def _step(self, turn: Turn, step: LoweredStep) -> None:
        op, emitter, rank = step.op, self.emitter, step.gpu.rank
        if turn in self.wiring.dependencies.takes:
            emitter.acquire(self.wiring.dependencies.takes[turn])
        if op.action == ir.SYNC:
            emitter.sync()
        elif op.action == ir.BARRIER:
            self._barrier(step)
        elif op.action == ir.SIGNAL:
            self._signal(turn, step)
        elif op.action == ir.WAIT:
            self._acquire(self.wiring.signals.takes[turn])
        elif op.action == ir.FLUSH:
            emitter.flush()
        elif op.action == ir.ACQUIRE:
            self._acquire([Take(self.wiring.plan_semaphores[rank][number], 1) for number in op.semaphores])
        elif op.action == ir.RELEASE:
            emitter.settle()
            emitter.release((rank, self.wiring.plan_semaphores[rank][number]) for number in op.semaphores)
        else:
            self._move(turn, step)

    def _acquire(self, takes: list[Take]) -> None:
        for take in takes:
            self.emitter.acquire(take)

    def _barrier(self, step: LoweredStep) -> None:
        """Signal all other thread blocks and wait for them; turns alternate between two semaphores."""
        rank, own_block, number = step.gpu.rank, step.block.id, step.op.barrier
        self.emitter.sync()
        members = self.wiring.barriers.semaphores.get((rank, number))
        if members is None:
            return
        parity = self.barriers_passed[number] % 2
        self.barriers_passed[number] += 1
        self.emitter.release((rank, pair[parity]) for block, pair in members.items() if block != own_block)
        self.emitter.acquire(Take(members[own_block][parity], len(members) - 1))
        self.emitter.meet()

    def _signal(self, turn: Turn, step: LoweredStep) -> None:
        """Signal peers: with a release through memory, or through a port behind the data already put there."""
        if not step.op.relaxed:
            self.emitter.settle()
        gives = [
            (step.gpu.connections[connection], self.wiring.signals.gives[turn, number])
            for number, connection in enumerate(step.op.connections)
        ]
        self.emitter.release((end.peer, semaphore) for end, semaphore in gives if end.kind != ir.PORT)
        for end, semaphore in gives:
            if end.kind == ir.PORT:
                self.emitter.dma_signal(end.peer, semaphore)

    # -- data ----------------------------------------------------------------------------------------------------

    def _move(self, turn: Turn, step: LoweredStep) -> None:
        op, packets = step.op, self.wiring.packets
        for number in range(len(op.sources)):
            if (turn, number) in packets.takes:
                self.emitter.acquire(packets.takes[turn, number])
        if any(operand.via == ir.PORT for operand in op.targets):
            self._put_through_ports(turn, step)
        elif op.action == ir.PAIRS:
            for number in range(len(op.sources)):
                self._data(turn, step, [number], [number])
        else:
            self._data(turn, step, list(range(len(op.sources))), list(range(len(op.targets))))
        targets = [
            (operand.rank, semaphore)
            for number, operand in enumerate(op.targets)
            if operand.via != ir.PORT
            for semaphore in packets.gives.get((turn, number), ())
        ]
        if targets:
            self.emitter.settle()
            self.emitter.release(targets)

    def _data(self, turn: Turn, step: LoweredStep, sources: list[int], targets: list[int]) -> None:
        op = step.op
        read_operands = [op.sources[n] for n in sources]
        written_operands = [op.targets[n] for n in targets]
        operands = read_operands + written_operands
        spans = [self.addresses.spans(step, operand) for operand in operands]
        length = self._length(step, [span for each in spans for span in each])
        if length == 0:
            return
        payload, line = self.addresses.payload, self.addresses.line_bytes
        small = any(operand.packet for operand in operands) or length % line
        step_bytes = payload if small else line
        packets = self.wiring.packets
        reads = []
        for n, each in zip(sources, spans, strict=False):
            role = isa.READ_FLAGGED if (turn, n) in packets.flagged_reads else isa.READ
            reads.extend(self._rows(role, op.sources[n], each, step_bytes))
        writes = []
        for n, each in zip(targets, spans[len(sources) :], strict=True):
            role = isa.WRITE_FLAGGED if (turn, n) in packets.flagged_writes else isa.WRITE
            writes.extend(self._rows(role, op.targets[n], each, step_bytes))
        self.emitter.data(length // step_bytes, reads, writes)

    def _length(self, step: LoweredStep, spans: list[AddressSpan]) -> int:
        lengths = {span.length for span in spans}
        if len(lengths) > 1:
            raise self.addresses.plan.fault(
                f"ranges of {sorted(lengths)} bytes in one operation, {step.op.name!r}", place_of(step)
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
            raise self.addresses.plan.fault("a sum cannot go through a port", place_of(step))
        polled = [number for number in range(len(op.sources)) if (turn, number) in wiring.packets.flagged_reads]
        if polled:
            self._data(turn, step, polled, [])
        if any(operand.polls for operand in op.sources):
            self.emitter.settle()
        for number, target in enumerate(op.targets):
            source = op.sources[number if op.action == ir.PAIRS else 0]
            if source.packet != target.packet:
                raise self.addresses.plan.fault(
                    "a port does not convert packets: source and target must both be packets, or neither",
                    place_of(step),
                )
            self._put(turn, step, source, number)
        if op.flushes:
            self.emitter.flush()

    def _put(self, turn: Turn, step: LoweredStep, source: KernelOperand, number: int) -> None:
        target, wiring = step.op.targets[number], self.wiring
        signals = list(wiring.packets.gives.get((turn, number), ()))
        if step.op.signals:
            signals.append(wiring.signals.gives[turn, number])
        read_span, write_span = self.addresses.span(step, source), self.addresses.span(step, target)
        length = self._length(step, [read_span, write_span])
        if length:
            size = length // self.addresses.payload * self.addresses.line_bytes if source.packet else length
            write = Operand(isa.WRITE, write_span.rank, write_span.address, semaphore=signals[0] if signals else -1)
            self.emitter.dma(size, Operand(isa.READ, read_span.rank, read_span.address), write)
            signals = signals[1:]
        for semaphore in signals:
            self.emitter.dma_signal(target.rank, semaphore)


def place_of(step: LoweredStep) -> str:
    """Return the place of the operation in the file."""
    return f"gpus[{step.gpu.rank}].threadblocks[{step.block.id}].{step.place.replace('op ', 'ops ')}"


#: threads per wavefront on the plans' GPUs
WARP_THREADS = 32
#: wavefronts per workgroup if the plan does not state the threads per block
DEFAULT_WAVEFRONTS = 8
MAX_SEMAPHORES = 2**26


def lower_plan(
    plan: KernelPlan, size_bytes: int, *, line_bytes: int = 128, wavefronts: int | None = None
) -> GpuProgram:
    """Return the program of all GPUs for one message.

    Parameters
    ----------
    size_bytes: by nccl-tests' convention; chunks are rounded up to whole lines.
    line_bytes: of a wavefront's request.
    wavefronts: of a workgroup; None: the plan's threads per block / 32, or 8 if it does not state them.

    Raises
    ------
    InputError: the plan does not allow this size, multicasts packets, or becomes too large; or the plan is wrong:
        packets without a writer, a barrier whose thread blocks change, sends that do not match the receives.
    """
    _check_options(line_bytes, wavefronts)
    _refuse_packets_to_all(plan)
    payload = payload_of_line(plan, line_bytes)
    layout = line_layout(plan, size_bytes, payload)
    if wavefronts is None:
        wavefronts = -(-plan.threads_per_block // WARP_THREADS) if plan.threads_per_block else DEFAULT_WAVEFRONTS
    lowering = _Lowering(plan, layout, line_bytes, payload, wavefronts)
    if not any(gpu.blocks for gpu in plan.gpus):
        raise plan.fault("no GPU has a thread block")
    if plan.format == "msccl":
        lowering.fifos()
    else:
        lowering.blocks()
    return lowering.program(size_bytes)


def padded_bytes(plan: KernelPlan, size_bytes: int, *, line_bytes: int = 128) -> int:
    """Return the bytes that the program moves for a message: every chunk is rounded up to whole lines."""
    return line_layout(plan, size_bytes, payload_of_line(plan, line_bytes)).at(plan.chunks_of_size)


def _check_options(line_bytes: int, wavefronts: int | None) -> None:
    if line_bytes < 16 or line_bytes & (line_bytes - 1):
        raise InputError(f"must be a power of two of at least 16 bytes, got {line_bytes}", field="line_bytes")
    if wavefronts is not None and wavefronts < 1:
        raise InputError(f"a workgroup needs at least one, got {wavefronts}", field="wavefronts")
    if wavefronts is not None and wavefronts > MAX_WAVEFRONTS:
        problem = f"a workgroup of a program has no more than {MAX_WAVEFRONTS}, got {wavefronts}"
        raise InputError(problem, field="wavefronts")


def _refuse_packets_to_all(plan: KernelPlan) -> None:
    for gpu in plan.gpus:
        for block in gpu.blocks:
            for place, op in walk(block):
                if any(o.packet and o.group is not None for o in (*op.sources, *op.targets)):
                    raise plan.fault(
                        f"{op.name!r} multicasts packets, but a line with flags can have one reader "
                        "only; use --fidelity operator for this plan",
                        f"gpus[{gpu.rank}].threadblocks[{block.id}].{place}",
                    )


class _Lowering:
    """The state of one program under construction."""

    def __init__(self, plan: KernelPlan, layout: ChunkLayout, line_bytes: int, payload: int, wavefronts: int) -> None:
        self.plan, self.layout, self.line_bytes, self.payload = plan, layout, line_bytes, payload
        self.wavefronts = wavefronts
        self.builder = ProgramBuilder(plan.name, plan.num_ranks, line_bytes=line_bytes)
        self.semaphores = Semaphores(plan.num_ranks)
        self.notes = list(plan.notes)
        self.num_flags = 0

    def addresses(self, fifo_bytes: int = 0) -> Addresses:
        """Return the addresses; call this once all semaphores except the flagged lines' are numbered."""
        self.num_control = max(map(len, self.semaphores.initial))
        return Addresses(self.plan, self.layout, self.line_bytes, self.payload, fifo_bytes, self.num_control)

    # -- MSCCL++ -------------------------------------------------------------------------------------------------

    def blocks(self) -> None:
        """Lower every thread block of an MSCCL++ plan."""
        plan, semaphores = self.plan, self.semaphores
        steps = self._steps()
        plan_semaphores = []
        for gpu in plan.gpus:
            plan_semaphores.append([semaphores.new(gpu.rank, value) for value in gpu.semaphores])
        signals, barriers = Signals(steps, semaphores), Barriers(plan, semaphores)
        dependencies = Dependencies(steps, semaphores)
        packets = Packets(plan, self.layout, steps, semaphores)
        self.address_map = self.addresses()
        if packets.flagged_reads:
            self.num_flags = self.address_map.num_packet_lines
        wiring = BlockWiring(
            addresses=self.address_map, signals=signals, barriers=barriers, dependencies=dependencies, packets=packets,
            plan_semaphores=plan_semaphores, first_flag=self.num_control,
        )  # fmt: skip
        self._run_blocks(steps, wiring)
        self._note_blocks(wiring)

    def _steps(self) -> list[list[LoweredStep]]:
        rounds = sum(
            num_rounds(op, self.layout, self.payload) * len(op.operations)
            for op in operations(self.plan)
            if op.action == PIPELINE
        )
        if rounds > MAX_OPERATIONS:
            raise self.plan.fault(
                f"its pipelines are more than {MAX_OPERATIONS} operations for this message; give a smaller size, or "
                "use --fidelity operator"
            )
        return [
            list(block_steps(gpu, block, self.layout, self.payload)) for gpu in self.plan.gpus for block in gpu.blocks
        ]

    def _run_blocks(self, steps: list[list[LoweredStep]], wiring: BlockWiring) -> None:
        number, waits_early = 0, False
        for gpu in self.plan.gpus:
            for _ in gpu.blocks:
                emitter = Emitter(self.builder, self.address_map, gpu.rank)
                BlockLowering(wiring, emitter, number).run(steps[number])
                self.builder.end_workgroup()
                waits_early |= emitter.waits_early
                number += 1
            self._end_kernel(gpu)
        if waits_early:
            self.notes.append(
                "thread blocks that wait for their loads and stores wait for their puts through ports too, before the "
                "plan flushes them"
            )

    def _note_blocks(self, wiring: BlockWiring) -> None:
        if wiring.packets.gated:
            self.notes.append(
                "packets that several thread blocks poll, or that come through ports, are waited for as a whole, not "
                "line by line"
            )
        if wiring.dependencies.takes:
            self.notes.append("dependencies of nop on other thread blocks are kept; MSCCL++ runs nop as __syncthreads")

    # -- MSCCL ---------------------------------------------------------------------------------------------------

    def fifos(self) -> None:
        """Lower every thread block of an MSCCL plan."""
        plan = self.plan
        cutting = Cutting(plan, self.layout, self.payload, self.line_bytes)
        steps = sum(len(block.operations) for gpu in plan.gpus for block in gpu.blocks)
        if steps * len(cutting.offsets) > MAX_OPERATIONS:
            raise plan.fault(
                f"{steps} steps {len(cutting.offsets)} times are more than {MAX_OPERATIONS} operations; give a smaller "
                "size, or use --fidelity operator"
            )
        fifos = Fifos(plan, cutting, self.semaphores)
        dependencies = StepDependencies(plan, len(cutting.offsets), self.semaphores)
        slots = max(fifos.num_incoming, default=0) * cutting.shape.slots
        self.address_map = self.addresses(slots * cutting.shape.slot_bytes)
        flagged = plan.protocol != "Simple"
        slot_lines = fifos.slot_lines()
        self.num_flags = slots * slot_lines if flagged else 0
        wiring = FifoWiring(
            addresses=self.address_map, cutting=cutting, fifos=fifos, dependencies=dependencies, flagged=flagged,
            first_flag=self.num_control, slot_lines=slot_lines,
        )  # fmt: skip
        for gpu in plan.gpus:
            for block in gpu.blocks:
                StepLowering(wiring, Emitter(self.builder, self.address_map, gpu.rank), gpu, block).run()
                self.builder.end_workgroup()
            self._end_kernel(gpu)

    def _end_kernel(self, gpu: KernelGpu) -> None:
        if gpu.blocks:
            self.builder.end_kernel(gpu.rank, self.wavefronts, self.plan.name)

    # -- the end -------------------------------------------------------------------------------------------------

    def program(self, size_bytes: int) -> GpuProgram:
        count = self.num_control + self.num_flags
        if count * self.plan.num_ranks > MAX_SEMAPHORES:
            raise self.plan.fault(
                f"this message needs {count} flags and semaphores on each of {self.plan.num_ranks} GPUs, more than "
                f"{MAX_SEMAPHORES} in all; give a smaller size, or use --fidelity operator"
            )
        padded = self.layout.at(self.plan.chunks_of_size)
        if padded != size_bytes:
            self.notes.append(f"chunks are rounded up to whole lines: {padded} bytes are moved as {size_bytes}")
        self.builder.num_semaphores = count
        self.builder.buffers = self.address_map.buffers
        return self.builder.program(
            semaphores=self.semaphores.initial, payload_bytes=size_bytes, notes=tuple(self.notes)
        )
