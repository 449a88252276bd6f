"""The FIFOs between the thread blocks of an MSCCL plan: messages, their slots, and who waits for which.

As NCCL and MSCCL lay them out (microsoft/msccl and the MSCCL of ROCm/rccl: init.cc, msccl.h, msccl_kernel_impl.h,
prims_simple.h): a connection has a buffer of 8 steps at the receiver, 4 MiB of them for Simple, 512 KiB for LL and
4800 KiB for LL128, both with their flags. Simple sends up to 4 steps at once, as two slices, the first not smaller than
a 32nd of two steps; LL and LL128 send one step. Messages longer than that are cut: the thread block goes through its
whole list of steps once for each piece of the chunks; counts of chunks that fit together go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from trine.collectives.kernels.lower_order import Semaphores
from trine.collectives.mscclpp.layout import Layout
from trine.collectives.mscclpp.plan import FIFO, KernelGpu, KernelOp, KernelPlan, Operand, ThreadBlock
from trine.errors import InputError

STEPS = 8
BUFFER_BYTES = {"Simple": 4 * 2**20, "LL": 512 * 2**10, "LL128": 4800 * 2**10}
#: of Simple: steps a message, slices a message
MESSAGE_STEPS, SLICES = 4, 2


class Shape(NamedTuple):
    """Of one protocol: bytes of data a message, bytes of a slot with flags, how many slots; slices a message."""

    message_bytes: int
    slot_bytes: int
    slots: int
    slices: int
    least_slice: int


def shape_of(protocol: str, payload: int, line_bytes: int) -> Shape:
    """FIFO of a protocol whose lines carry ``payload`` bytes."""
    step = BUFFER_BYTES[protocol] // STEPS
    if protocol == "Simple":
        slot = step * MESSAGE_STEPS // SLICES
        return Shape(step * MESSAGE_STEPS, slot, STEPS * SLICES // MESSAGE_STEPS, SLICES, slot // 32)
    return Shape(step // line_bytes * payload, step, STEPS, 1, 0)


class Piece(NamedTuple):
    """A part of one step: of its chunks those from ``chunk`` on, from byte ``offset`` on, ``length`` bytes."""

    chunk: int
    offset: int
    length: int


class Slice(NamedTuple):
    """What goes into one slot: number of its use, first byte in its piece, bytes."""

    use: int
    start: int
    length: int


@dataclass(slots=True)
class Fifo:
    """One connection. ``index``: among those into its receiver.

    ``tail``, ``credit``: semaphores that the sender gives at the receiver, and the receiver at the sender. ``sent``,
    ``received``, ``messages`` (how many) and ``ends`` (thread blocks): as either side has it. ``uses``: of all slices.
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
    """How steps are cut into loops, pieces and slices, of one message size."""

    def __init__(self, plan: KernelPlan, layout: Layout, payload: int, line_bytes: int) -> None:
        self.chunk_bytes = layout.at(1)
        self.payload = payload
        self.shape = shape_of(plan.protocol, payload, line_bytes)
        self.offsets = range(0, self.chunk_bytes, self.shape.message_bytes)
        self.most_chunks = max(1, self.shape.message_bytes // self.chunk_bytes)

    def pieces(self, op: KernelOp, offset: int) -> Iterator[Piece]:
        """The parts of one step in the loop that is at ``offset``."""
        count = max((operand.count for operand in (*op.sources, *op.targets)), default=0)
        bytes_of_one = min(self.shape.message_bytes, self.chunk_bytes - offset)
        for chunk in range(0, count, self.most_chunks):
            yield Piece(chunk, offset, bytes_of_one * min(self.most_chunks, count - chunk))

    def slices(self, length: int) -> list[tuple[int, int]]:
        """Start and bytes of the slices of a message."""
        lines, parts = length // self.payload, self.shape.slices
        least = -(-self.shape.least_slice // self.payload)
        size = max(-(-lines // parts), least) * self.payload
        return [(start, min(size, length - start)) for start in range(0, length, size)]


class Fifos:
    """All connections of a plan; ``of[source, target, channel]``."""

    def __init__(self, plan: KernelPlan, cutting: Cutting, semaphores: Semaphores) -> None:
        self.plan, self.cutting, self.semaphores = plan, cutting, semaphores
        self.of: dict[tuple[int, int, int], Fifo] = {}
        self.into = [0] * plan.num_ranks
        for gpu in plan.gpus:
            for block in gpu.blocks:
                self._collect(gpu, block)
        for fifo in self.of.values():
            self._check(fifo)
            fifo.uses = frozenset(slice_.use for slice_ in fifo.sent)

    def slot_lines(self) -> int:
        """Lines of the fullest slot."""
        longest = max((s.length for fifo in self.of.values() for s in fifo.sent), default=0)
        return -(-longest // self.cutting.payload)

    def _collect(self, gpu: KernelGpu, block: ThreadBlock) -> None:
        for offset in self.cutting.offsets:
            for op in block.operations:
                ends = [operand for operand in (*op.sources, *op.targets) if operand.buffer == FIFO]
                for piece in self.cutting.pieces(op, offset) if ends else ():
                    for operand in ends:
                        fifo, side = self.find(gpu, op, operand)
                        fifo.ends[side].add(block.id)
                        (fifo.sent, fifo.received)[side].extend(self._slices(fifo, side, piece))

    def find(self, gpu: KernelGpu, op: KernelOp, operand: Operand) -> tuple[Fifo, int]:
        """The connection of an operand; 0: this GPU sends, 1: it receives."""
        assert operand.connection is not None
        channel, receives = gpu.connections[operand.connection].pair, operand in op.sources
        ends = (operand.rank, gpu.rank) if receives else (gpu.rank, operand.rank)
        if (*ends, channel) not in self.of:
            tail, credit = self.semaphores.new(ends[1]), self.semaphores.new(ends[0])
            self.of[*ends, channel] = Fifo(*ends, channel, self.into[ends[1]], tail, credit)
            self.into[ends[1]] += 1
        return self.of[*ends, channel], int(receives)

    def _slices(self, fifo: Fifo, side: int, piece: Piece) -> list[Slice]:
        first = fifo.messages[side] * self.cutting.shape.slices
        fifo.messages[side] += 1
        return [Slice(first + n, *ends) for n, ends in enumerate(self.cutting.slices(piece.length))]

    def _check(self, fifo: Fifo) -> None:
        name = f"channel {fifo.channel} from rank {fifo.source} to rank {fifo.target}"
        for blocks, does in zip(fifo.ends, ("send", "receive"), strict=True):
            if len(blocks) > 1:
                raise InputError(f"thread blocks {sorted(blocks)} {does} on {name}: only one may", file=self.plan.file)
        if fifo.sent != fifo.received:
            raise InputError(
                f"{name}: {len(fifo.sent)} slices are sent and {len(fifo.received)} received, or their sizes differ",
                file=self.plan.file,
            )
