"""Memory layout of a plan's chunks in a GPU program: whole lines, one buffer after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from trine.gpu.plans import plan as ir
from trine.gpu.plans.cells import PACKETS, ChunkLayout, in_place, message_layout, operations
from trine.gpu.plans.plan import KernelGpu, KernelOp, KernelOperand, KernelPlan, ThreadBlock
from trine.gpu.plans.reading import buffer_chunks
from trine.gpu.program import Buffer

#: alignment of buffers, in bytes
BUFFER_ALIGNMENT = 2**20
#: additional buffers outside the plan: FIFOs of MSCCL, and the semaphores
FIFOS, SEMAPHORES = "fifos", "semaphores"


class LoweredStep(NamedTuple):
    """One execution of a thread block's operation; ``offset`` and ``unit`` (bytes): the round of its pipeline."""

    op: KernelOp
    gpu: KernelGpu
    block: ThreadBlock
    number: int
    place: str
    offset: int = 0
    unit: int | None = None

    @property
    def label(self) -> str:
        return f"{self.place} {self.op.name}"


def payload_of_line(plan: KernelPlan, line_bytes: int) -> int:
    """Return the bytes of data per line in the plan's protocol.

    LL: each 8 bytes hold 4 of data and 4 of flag. MSCCL++'s 16-byte packets are half flag too. LL128: 120 of 128 bytes.
    """
    if plan.format == "msccl":
        return {"Simple": line_bytes, "LL": line_bytes // 2, "LL128": line_bytes * 15 // 16}[plan.protocol]
    packets = any(operand.packet for op in operations(plan) for operand in (*op.sources, *op.targets))
    return line_bytes // 2 if packets else line_bytes


def line_layout(plan: KernelPlan, size_bytes: int, payload: int) -> ChunkLayout:
    """Return the plan's layout for this message, with chunks rounded up to whole lines of ``payload`` bytes.

    Raises InputError: the plan does not allow this size, or pipeline rounds cross the end of reused scratch.
    """
    exact = message_layout(plan, size_bytes)
    largest = max(exact.at(chunk + 1) - exact.at(chunk) for chunk in range(exact.group_chunks))
    window = exact.window
    if window is not None:
        window = _round_up(window, payload)
        for op in operations(plan):
            if op.action == ir.PIPELINE and window % _round_up(op.unit_bytes, payload):
                raise plan.fault(
                    f"rounds of {op.unit_bytes} bytes run over the end of the {window} bytes of scratch that a chunk "
                    "reuses"
                )
    return dataclasses.replace(
        exact, group_units=exact.group_chunks * _round_up(largest, payload), alignment=payload, window=window
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def block_steps(gpu: KernelGpu, block: ThreadBlock, layout: ChunkLayout, payload: int) -> Iterator[LoweredStep]:
    """Yield the steps of one thread block, with pipelines unrolled."""
    for number, op in enumerate(block.operations):
        if op.action != ir.PIPELINE:
            yield LoweredStep(op, gpu, block, number, f"op {number}")
            continue
        unit = _round_up(op.unit_bytes, payload)
        for turn in range(num_rounds(op, layout, payload)):
            for inner, body in enumerate(op.operations):
                yield LoweredStep(body, gpu, block, number, f"op {number}.{inner}", turn * unit, unit)


class DataRange(NamedTuple):
    """A range of a buffer in bytes of data; packets lie in PACKETS."""

    buffer: str
    start: int
    length: int


def data_range(
    plan: KernelPlan, layout: ChunkLayout, step: LoweredStep, operand: KernelOperand, rank: int | None = None
) -> DataRange:
    """Return the range of an operand. rank: a group member."""
    start, length = layout.span(step.op, operand, step.offset, step.unit)
    if operand.packet:
        return DataRange(PACKETS, start, length)
    owner = operand.rank if rank is None else rank
    return DataRange(*in_place(plan, layout, owner, operand.buffer, start), length)


def num_rounds(pipeline: KernelOp, layout: ChunkLayout, payload: int) -> int:
    """Return the number of rounds of a pipeline."""
    return -(-pipeline.num_chunks * layout.at(1) // _round_up(pipeline.unit_bytes, payload))


@dataclass(frozen=True, slots=True)
class AddressSpan:
    """``length`` bytes of data from ``address`` on; as packets they occupy twice the space."""

    rank: int
    address: int
    length: int


class Addresses:
    """Base addresses of all buffers, the same on every rank, and the addresses of operands.

    ``fifo_bytes``, ``num_semaphores``: sizes on the rank with the largest need.
    """

    def __init__(
        self, plan: KernelPlan, layout: ChunkLayout, line_bytes: int, payload: int, fifo_bytes: int, num_semaphores: int
    ) -> None:
        self.plan, self.layout, self.line_bytes, self.payload = plan, layout, line_bytes, payload
        self.num_packet_lines = 0
        sizes = self._plan_buffers() | {FIFOS: fifo_bytes, SEMAPHORES: num_semaphores * line_bytes}
        self.base: dict[str, int] = {}
        self.buffers: list[Buffer] = []
        end = 0
        for name, size in sizes.items():
            self.base[name] = end
            if size:
                self.buffers.append(Buffer(name=name, base=end, size_bytes=size))
                end = _round_up(end + size, BUFFER_ALIGNMENT)

    def _plan_buffers(self) -> dict[str, int]:
        """Return buffer -> bytes on the rank with the largest need."""
        plan, layout = self.plan, self.layout
        sizes = dict.fromkeys((ir.INPUT, ir.OUTPUT, ir.SCRATCH, PACKETS), 0)
        for gpu in plan.gpus:
            for name in (ir.INPUT, ir.OUTPUT):
                chunks = buffer_chunks(plan, gpu.rank, name)
                buffer, start = in_place(plan, layout, gpu.rank, name, 0)
                num_chunks = gpu.input_chunks if name == ir.INPUT else gpu.output_chunks
                length = layout.at(chunks if buffer == name else num_chunks)
                sizes[buffer] = max(sizes[buffer], start + length)
        accesses = [
            (o.packet, o.buffer) for op in operations(plan) for o in (*op.sources, *op.targets) if o.buffer != ir.FIFO
        ]
        scratch = max(self._scratch(gpu.scratch_chunks) for gpu in plan.gpus)
        if (False, ir.SCRATCH) in accesses:
            sizes[ir.SCRATCH] = scratch
        if any(packet for packet, _ in accesses):
            self.num_packet_lines = -(-scratch // self.payload)
            sizes[PACKETS] = self.num_packet_lines * self.line_bytes
        return sizes

    def _scratch(self, chunks: int) -> int:
        window = self.layout.window
        return chunks * window if window is not None and window < self.layout.at(1) else self.layout.at(chunks)

    def span(self, step: LoweredStep, operand: KernelOperand, member: int | None = None) -> AddressSpan:
        """Return the addresses of an operand; for a multicast group, on one member."""
        buffer, start, length = data_range(self.plan, self.layout, step, operand, member)
        if operand.packet:
            start = start // self.payload * self.line_bytes
        return AddressSpan(operand.rank if member is None else member, self.base[buffer] + start, length)

    def spans(self, step: LoweredStep, operand: KernelOperand) -> list[AddressSpan]:
        """Return the addresses of an operand; for a multicast group, on each member, from this rank upwards."""
        if operand.group is None:
            return [self.span(step, operand)]
        reader, ranks = step.gpu.rank, self.plan.num_ranks
        members = sorted(self.plan.groups[operand.group].ranks, key=lambda rank: (rank - reader) % ranks)
        return [self.span(step, operand, member) for member in members]

    def semaphore(self, number: int) -> int:
        """Return the address of a semaphore; each has a separate line."""
        return self.base[SEMAPHORES] + number * self.line_bytes

    def packet_line(self, address: int) -> int:
        """Return the number of a line among the packets of its rank."""
        return (address - self.base[PACKETS]) // self.line_bytes
