"""Conversion of an MSCCL plan's thread blocks to operations of workgroups, and the FIFOs between them.

The FIFOs follow NCCL and MSCCL (microsoft/msccl and the MSCCL of ROCm/rccl: init.cc, msccl.h, msccl_kernel_impl.h,
prims_simple.h). A connection has a buffer of 8 steps at the receiver: 4 MiB for Simple, 512 KiB for LL and 4800 KiB for
LL128, the latter two including flags. Simple sends up to 4 steps at once, as two slices, the first at least a 32nd of
two steps; LL and LL128 send one step. Longer messages are cut: the thread block runs its whole list of steps once for
each piece of the chunks; chunks of a count that fit into one message go together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from trine.gpu.builder import Operand
from trine.gpu.kernels.lower.emit import Emitter
from trine.gpu.kernels.lower.memory import FIFOS, Addresses
from trine.gpu.kernels.lower.semaphores import Semaphores, Take
from trine.gpu.plans.cells import ChunkLayout, in_place
from trine.gpu.plans.plan import FIFO, KernelGpu, KernelOp, KernelOperand, KernelPlan, ThreadBlock
from trine.gpu.program import READ, READ_FLAGGED, WRITE, WRITE_FLAGGED

#: rank, thread block, step, loop
StepKey = tuple[int, int, int, int]

STEPS = 8
BUFFER_BYTES = {"Simple": 4 * 2**20, "LL": 512 * 2**10, "LL128": 4800 * 2**10}
#: Simple: steps per message, slices per message
MESSAGE_STEPS, SLICES = 4, 2


class FifoShape(NamedTuple):
    """FIFO of one protocol: data bytes per message, bytes per slot with flags, slots, slices per message."""

    message_bytes: int
    slot_bytes: int
    slots: int
    slices: int
    min_slice: int


def shape_of(protocol: str, payload: int, line_bytes: int) -> FifoShape:
    """Return the FIFO shape of a protocol whose lines carry ``payload`` bytes."""
    step = BUFFER_BYTES[protocol] // STEPS
    if protocol == "Simple":
        slot = step * MESSAGE_STEPS // SLICES
        return FifoShape(step * MESSAGE_STEPS, slot, STEPS * SLICES // MESSAGE_STEPS, SLICES, slot // 32)
    return FifoShape(step // line_bytes * payload, step, STEPS, 1, 0)


class StepRange(NamedTuple):
    """A part of one step: ``length`` bytes from byte ``offset`` of its chunk ``chunk`` on."""

    chunk: int
    offset: int
    length: int


class Slice(NamedTuple):
    """The content of one slot: number of the slot's use, first byte in the part, bytes."""

    use: int
    start: int
    length: int


@dataclass(slots=True)
class Fifo:
    """One connection. ``index``: its number among the receiver's incoming connections.

    ``tail``, ``credit``: semaphores that the sender releases at the receiver, and the receiver at the sender. ``sent``,
    ``received``, ``messages`` (counts) and ``ends`` (thread blocks): of each side. ``uses``: of all slices.
    """

    source: int
    target: int
    channel: int
    index: int
    tail: int
    credit: int
    sent: list[Slice] = field(default_factory=list)
    received: list[Slice] = field(default_factory=list)
    messages: list[int] = field(default_factory=lambda: [0, 0])
    ends: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    uses: frozenset[int] = frozenset()


class Cutting:
    """The division of steps into loops, pieces and slices, for one message size."""

    def __init__(self, plan: KernelPlan, layout: ChunkLayout, payload: int, line_bytes: int) -> None:
        self.chunk_bytes = layout.at(1)
        self.payload = payload
        self.shape = shape_of(plan.protocol, payload, line_bytes)
        self.offsets = range(0, self.chunk_bytes, self.shape.message_bytes)
        self.max_chunks = max(1, self.shape.message_bytes // self.chunk_bytes)

    def ranges(self, op: KernelOp, offset: int) -> Iterator[StepRange]:
        """Yield the parts of one step in the loop at ``offset``."""
        count = max((operand.count for operand in (*op.sources, *op.targets)), default=0)
        bytes_of_one = min(self.shape.message_bytes, self.chunk_bytes - offset)
        for chunk in range(0, count, self.max_chunks):
            yield StepRange(chunk, offset, bytes_of_one * min(self.max_chunks, count - chunk))

    def slices(self, length: int) -> list[tuple[int, int]]:
        """Return start and bytes of the slices of a message."""
        lines, parts = length // self.payload, self.shape.slices
        min_lines = -(-self.shape.min_slice // self.payload)
        size = max(-(-lines // parts), min_lines) * self.payload
        return [(start, min(size, length - start)) for start in range(0, length, size)]


class Fifos:
    """All connections of a plan; ``by_ends[source, target, channel]``."""

    def __init__(self, plan: KernelPlan, cutting: Cutting, semaphores: Semaphores) -> None:
        self.plan, self.cutting, self.semaphores = plan, cutting, semaphores
        self.by_ends: dict[tuple[int, int, int], Fifo] = {}
        self.num_incoming = [0] * plan.num_ranks
        for gpu in plan.gpus:
            for block in gpu.blocks:
                self._collect(gpu, block)
        for fifo in self.by_ends.values():
            self._check(fifo)
            fifo.uses = frozenset(slice_.use for slice_ in fifo.sent)

    def slot_lines(self) -> int:
        """Return the lines of the fullest slot."""
        longest = max((s.length for fifo in self.by_ends.values() for s in fifo.sent), default=0)
        return -(-longest // self.cutting.payload)

    def _collect(self, gpu: KernelGpu, block: ThreadBlock) -> None:
        for offset in self.cutting.offsets:
            for op in block.operations:
                ends = [operand for operand in (*op.sources, *op.targets) if operand.buffer == FIFO]
                for part in self.cutting.ranges(op, offset) if ends else ():
                    for operand in ends:
                        fifo, side = self.find(gpu, op, operand)
                        fifo.ends[side].add(block.id)
                        (fifo.sent, fifo.received)[side].extend(self._slices(fifo, side, part))

    def find(self, gpu: KernelGpu, op: KernelOp, operand: KernelOperand) -> tuple[Fifo, int]:
        """Return the connection of an operand, and 0 if this GPU sends or 1 if it receives."""
        assert operand.connection is not None
        channel, receives = gpu.connections[operand.connection].pair, operand in op.sources
        ends = (operand.rank, gpu.rank) if receives else (gpu.rank, operand.rank)
        if (*ends, channel) not in self.by_ends:
            tail, credit = self.semaphores.new(ends[1]), self.semaphores.new(ends[0])
            self.by_ends[*ends, channel] = Fifo(*ends, channel, self.num_incoming[ends[1]], tail, credit)
            self.num_incoming[ends[1]] += 1
        return self.by_ends[*ends, channel], int(receives)

    def _slices(self, fifo: Fifo, side: int, part: StepRange) -> list[Slice]:
        first_use = fifo.messages[side] * self.cutting.shape.slices
        fifo.messages[side] += 1
        return [Slice(first_use + n, *ends) for n, ends in enumerate(self.cutting.slices(part.length))]

    def _check(self, fifo: Fifo) -> None:
        name = f"channel {fifo.channel} from rank {fifo.source} to rank {fifo.target}"
        for blocks, does in zip(fifo.ends, ("send", "receive"), strict=True):
            if len(blocks) > 1:
                raise self.plan.fault(f"thread blocks {sorted(blocks)} {does} on {name}: only one may")
        if fifo.sent != fifo.received:
            raise self.plan.fault(
                f"{name}: {len(fifo.sent)} slices are sent and {len(fifo.received)} received, or their sizes differ"
            )


class StepDependencies:
    """``takes[key]``: acquire before this step; ``gives[key]``: semaphores of the same rank to release after it.

    A ``nop`` passes its dependencies to the next step, because MSCCL's interpreter polls for all of them at once.
    """

    def __init__(self, plan: KernelPlan, num_loops: int, semaphores: Semaphores) -> None:
        self.takes: dict[StepKey, Take] = {}
        self.gives: dict[StepKey, list[int]] = defaultdict(list)
        for gpu in plan.gpus:
            for block in gpu.blocks:
                self._block(gpu.rank, block, num_loops, semaphores)

    def _block(self, rank: int, block: ThreadBlock, num_loops: int, semaphores: Semaphores) -> None:
        dependencies: list[tuple[int, int]] = []
        for number, op in enumerate(block.operations):
            dependencies += [dependency for dependency in op.dependencies if dependency[0] != block.id]
            is_last = number == len(block.operations) - 1
            if not dependencies or (not op.sources and not is_last):
                continue
            semaphore = semaphores.new(rank)
            for loop in range(num_loops):
                if loop and len(dependencies) > 1:
                    semaphore = semaphores.new(rank)
                self.takes[rank, block.id, number, loop] = Take(semaphore, len(dependencies))
                for dependency in dependencies:
                    self.gives[(rank, *dependency, loop)].append(semaphore)
            dependencies = []


@dataclass(frozen=True, kw_only=True, slots=True)
class FifoWiring:
    """Addresses and semaphores of the whole program; ``slot_lines``: semaphores per slot with flags."""

    addresses: Addresses
    cutting: Cutting
    fifos: Fifos
    dependencies: StepDependencies
    flagged: bool
    first_flag: int
    slot_lines: int


class _FifoEnd(NamedTuple):
    """One end of a FIFO and its next slice; ``side``: 0 at the sender, 1 at the receiver."""

    fifo: Fifo
    side: int
    slice: Slice


class StepLowering:
    """Converter of the steps of one thread block, which run once for each piece of the chunks."""

    def __init__(self, wiring: FifoWiring, emitter: Emitter, gpu: KernelGpu, block: ThreadBlock) -> None:
        self.wiring, self.emitter, self.gpu, self.block = wiring, emitter, gpu, block
        self.next_slice: dict[tuple[int, int, int, int], int] = defaultdict(int)

    def run(self) -> None:
        for loop, offset in enumerate(self.wiring.cutting.offsets):
            for number, op in enumerate(self.block.operations):
                self.emitter.label = f"step {number} {op.name}"
                self._step(op, (self.gpu.rank, self.block.id, number, loop), offset)

    def _step(self, op: KernelOp, key: StepKey, offset: int) -> None:
        dependencies = self.wiring.dependencies
        if key in dependencies.takes:
            self.emitter.acquire(dependencies.takes[key])
        for part in self.wiring.cutting.ranges(op, offset):
            if any(operand.buffer == FIFO for operand in (*op.sources, *op.targets)):
                for start, length in self.wiring.cutting.slices(part.length):
                    self._slice(op, part, start, length)
            else:
                self._data(op, part, 0, part.length, {})
        if key in dependencies.gives:
            self.emitter.settle()
            self.emitter.release((self.gpu.rank, semaphore) for semaphore in dependencies.gives[key])

    def _slice(self, op: KernelOp, part: StepRange, start: int, length: int) -> None:
        """Wait for the data and for free slots, move the data, then signal both sides."""
        slots = self.wiring.cutting.shape.slots
        ends: dict[int, _FifoEnd] = {}
        for operand in (*op.sources, *op.targets):
            if operand.buffer == FIFO:
                ends[id(operand)] = end = self._next(op, operand)
                fifo, side, slice_ = end
                if side == 1 and not self.wiring.flagged:
                    self.emitter.acquire(Take(fifo.tail, 1))
                if side == 0 and slice_.use - slots in fifo.uses:
                    self.emitter.acquire(Take(fifo.credit, 1))
        self._data(op, part, start, length, ends)
        targets = []
        for other_fifo, other_side, other_slice in ends.values():
            if (other_side == 0 and not self.wiring.flagged) or (
                other_side == 1 and other_slice.use + slots in other_fifo.uses
            ):
                targets.append(
                    (other_fifo.target, other_fifo.tail) if other_side == 0 else (other_fifo.source, other_fifo.credit)
                )
        if targets:
            self.emitter.settle()
            self.emitter.release(targets)

    def _next(self, op: KernelOp, operand: KernelOperand) -> _FifoEnd:
        fifo, side = self.wiring.fifos.find(self.gpu, op, operand)
        key = (fifo.source, fifo.target, fifo.channel, side)
        number = self.next_slice[key]
        self.next_slice[key] += 1
        return _FifoEnd(fifo, side, (fifo.sent, fifo.received)[side][number])

    # -- data ----------------------------------------------------------------------------------------------------

    def _data(self, op: KernelOp, part: StepRange, start: int, length: int, ends: dict[int, _FifoEnd]) -> None:
        line, payload = self.wiring.addresses.line_bytes, self.wiring.addresses.payload
        step = payload if (ends and self.wiring.flagged) or length % line else line
        sides = [
            [
                self._slot(ends[id(operand)])
                if operand.buffer == FIFO
                else self._place(operand, part, start, step, reads)
                for operand in operands
            ]
            for operands, reads in ((op.sources, True), (op.targets, False))
        ]
        self.emitter.data(length // step, *sides)

    def _place(self, operand: KernelOperand, part: StepRange, start: int, step: int, reads: bool) -> Operand:
        addresses = self.wiring.addresses
        plan, layout = addresses.plan, addresses.layout
        start_byte = layout.at(operand.index + part.chunk) + part.offset + start
        buffer, start_byte = in_place(plan, layout, operand.rank, operand.buffer, start_byte)
        return Operand(READ if reads else WRITE, operand.rank, addresses.base[buffer] + start_byte, step)

    def _slot(self, end: _FifoEnd) -> Operand:
        """Return a slot of the FIFO in the memory of its receiver."""
        wiring, shape = self.wiring, self.wiring.cutting.shape
        slot = end.fifo.index * shape.slots + end.slice.use % shape.slots
        address = wiring.addresses.base[FIFOS] + slot * shape.slot_bytes
        line = wiring.addresses.line_bytes
        if not wiring.flagged:
            return Operand(WRITE if end.side == 0 else READ, end.fifo.target, address, line)
        role = WRITE_FLAGGED if end.side == 0 else READ_FLAGGED
        return Operand(role, end.fifo.target, address, line, wiring.first_flag + slot * wiring.slot_lines)
