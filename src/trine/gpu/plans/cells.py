"""The cells of all buffers of a plan, and their symbolic content: rank, position in its input, and multiplicity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

from trine.gpu.plans.plan import INPUT, OUTPUT, PIPELINE, SCRATCH, KernelOp, KernelOperand, KernelPlan
from trine.gpu.plans.reading import buffer_chunks, walk

# Layout of chunks: in bytes for a message of a given size, or in units of a small grid for proofs without a size.

#: MSCCL++ gives plans that reuse resources a scratch buffer of this size, whatever the message (executor.cc, 1f5f065)
REUSED_SCRATCH_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkLayout:
    """Ranges of operands, in units (bytes, or cells of a grid).

    ``group_units`` units hold ``group_chunks`` chunks; if they do not divide, the first chunks of a group are one
    ``alignment`` longer. ``window``: distance between scratch chunks, and modulus of a pipeline's offset into scratch;
    None without reuse. ``unit_scale``: units per byte of a pipeline's unit_bytes, as (numerator, denominator).
    """

    group_chunks: int
    group_units: int
    alignment: int = 1
    window: int | None = None
    unit_scale: tuple[int, int] = (1, 1)

    def at(self, chunk: int) -> int:
        """Return the start of a chunk."""
        group, chunk_in_group = divmod(chunk, self.group_chunks)
        return group * self.group_units + self._split(self.group_units, chunk_in_group, self.group_chunks)

    def _split(self, units: int, part: int, num_parts: int) -> int:
        part_units, remainder = divmod(units // self.alignment, num_parts)
        return (part * part_units + min(part, remainder)) * self.alignment

    def unit(self, pipeline: KernelOp) -> int:
        return pipeline.unit_bytes * self.unit_scale[0] // self.unit_scale[1]

    def iterations(self, pipeline: KernelOp) -> int:
        return -(-pipeline.num_chunks * self.at(1) // self.unit(pipeline))

    def span(self, op: KernelOp, operand: KernelOperand, offset: int = 0, unit: int | None = None) -> tuple[int, int]:
        """Return start and length of an operand in its buffer, for this thread block and round of its pipeline."""
        start, size = self.at(operand.index), self.at(operand.index + operand.count) - self.at(operand.index)
        low = self._split(size, op.part, op.num_parts)
        size = self._split(size, op.part + 1, op.num_parts) - low
        if operand.buffer == SCRATCH and self.window is not None:
            start = operand.index * self.window if self.window < self.at(1) else start
            start += offset % self.window
        else:
            start += offset
        return start + low, size if unit is None else max(0, min(size - offset, unit))


def operations(plan: KernelPlan) -> Iterator[KernelOp]:
    """Yield every operation of a plan."""
    for gpu in plan.gpus:
        for block in gpu.blocks:
            for _, op in walk(block):
                yield op


def pipelines(plan: KernelPlan) -> list[KernelOp]:
    return [op for op in operations(plan) if op.action == PIPELINE]


def reused_chunk_bytes(plan: KernelPlan) -> int | None:
    """Return the bytes of a reused scratch chunk, or None if scratch grows with the message."""
    chunks = max(gpu.scratch_chunks for gpu in plan.gpus)
    if not plan.reuse_scratch or chunks == 0:
        return None
    space = REUSED_SCRATCH_BYTES // 2 if plan.double_scratch else REUSED_SCRATCH_BYTES
    return -(-space // chunks // plan.alignment) * plan.alignment


def parts_grid(plan: KernelPlan) -> int:
    """Return the smallest number of cells per chunk that makes every thread block's part a whole number of cells.

    Raises InputError: the parts of the plan's thread block groups have no common measure of reasonable size.
    """
    grid = 1
    for op in operations(plan):
        for operand in (*op.sources, *op.targets):
            grid = math.lcm(grid, op.num_parts // math.gcd(op.num_parts, operand.count))
            if grid > 4096:
                raise plan.fault("its thread block groups cut chunks into more than 4096 kinds of parts")
    return grid


def message_layout(plan: KernelPlan, size_bytes: int) -> ChunkLayout:
    """Return the layout of a message of ``size_bytes`` by nccl-tests' convention.

    Raises InputError: the plan does not allow this size; names the allowed ones.
    """
    _check_limits(plan, size_bytes)
    chunks = plan.chunks_of_size
    if chunks == 0:
        raise plan.fault("its buffers have no chunks")
    if plan.format == "msccl":
        return ChunkLayout(group_chunks=1, group_units=-(-size_bytes // chunks))
    groups = 1
    if plan.format == "mscclpp-1":
        inputs = plan.gpus[0].input_chunks or chunks
        groups = plan.gpus[0].chunk_groups * (chunks // inputs)
        if groups == 0 or chunks % groups:
            raise plan.fault(f"{chunks} chunks do not fall into {groups} groups", "chunkGroups")
    multiple = plan.alignment * (chunks if plan.format == "mscclpp-2" else groups)
    if size_bytes % multiple:
        next_size = -(-size_bytes // multiple) * multiple
        raise plan.fault(f"this plan needs a multiple of {multiple} bytes, not {size_bytes}; the next is {next_size}")
    group_chunks = 1 if plan.format == "mscclpp-2" else chunks // groups
    units = chunks if plan.format == "mscclpp-2" else groups
    layout = ChunkLayout(
        group_chunks=group_chunks,
        group_units=size_bytes // units,
        alignment=plan.alignment,
        window=reused_chunk_bytes(plan),
    )
    _check_scratch(plan, layout)
    return layout


def _check_limits(plan: KernelPlan, size_bytes: int) -> None:
    if size_bytes <= 0:
        raise plan.fault(f"a message must have a size, got {size_bytes} bytes")
    if size_bytes < plan.min_bytes or (plan.max_bytes is not None and size_bytes > plan.max_bytes):
        limit = "any size" if plan.max_bytes is None else f"{plan.max_bytes} bytes"
        raise plan.fault(f"this plan is for messages of {plan.min_bytes} bytes to {limit}, got {size_bytes}")


def _check_scratch(plan: KernelPlan, layout: ChunkLayout) -> None:
    """Check that scratch of a fixed size holds a chunk; pipelines are exempt because they reuse it in rounds."""
    if layout.window is None:
        return
    for gpu in plan.gpus:
        for block in gpu.blocks:
            for op in block.operations:
                for operand in (*op.sources, *op.targets):
                    need = layout.at(1) * (2 if operand.packet else 1)
                    if operand.buffer == SCRATCH and need > layout.window:
                        raise plan.fault(
                            f"a chunk of {layout.at(1)} bytes does not fit into the {layout.window} bytes of scratch "
                            "that this plan reuses"
                        )


MAX_CELLS = 2**23
#: scratch for packets, separate from scratch for plain data
PACKETS = "packets"


def in_place(plan: KernelPlan, layout: ChunkLayout, rank: int, buffer: str, start: int) -> tuple[str, int]:
    """Return buffer and start of a range's memory; in-place plans share it between input and output."""
    if not plan.in_place or buffer not in (INPUT, OUTPUT):
        return buffer, start
    gpu, rank_chunks = plan.gpus[rank], plan.chunks_of_size // plan.num_ranks
    if plan.collective == "all_gather":
        return OUTPUT, start + (layout.at((gpu.input_chunks or rank_chunks) * rank) if buffer == INPUT else 0)
    if plan.collective == "reduce_scatter":
        return INPUT, start + (layout.at((gpu.output_chunks or rank_chunks) * rank) if buffer == OUTPUT else 0)
    return INPUT, start


class PlanMemory:
    """Cell numbers of all buffers; in-place plans share them between input and output."""

    def __init__(self, plan: KernelPlan, layout: ChunkLayout) -> None:
        self.plan, self.layout = plan, layout
        self.base: dict[tuple[int, str], int] = {}
        self.owner: list[tuple[int, int, str]] = []
        total = 0
        for rank in range(plan.num_ranks):
            for buffer in (INPUT, OUTPUT, SCRATCH, PACKETS):
                chunks = buffer_chunks(plan, rank, SCRATCH if buffer == PACKETS else buffer)
                units = self._units(chunks, buffer)
                self.base[rank, buffer] = total
                self.owner.append((total, rank, buffer))
                total += units
        if total > MAX_CELLS:
            raise plan.fault(f"needs {total} cells to be followed, more than {MAX_CELLS}")
        self.num_cells = total

    def _units(self, chunks: int, buffer: str) -> int:
        window = self.layout.window
        if buffer == SCRATCH and window is not None and window < self.layout.at(1):
            return chunks * window
        return self.layout.at(chunks)

    def cells(self, rank: int, buffer: str, start: int, length: int) -> range:
        """Return the cells of a range of one rank's buffer."""
        buffer, start = in_place(self.plan, self.layout, rank, buffer, start)
        first = self.base[rank, buffer] + start
        return range(first, first + length)

    def describe(self, cell: int) -> str:
        """Return a readable name of a cell: buffer, chunk and rank."""
        base, rank, buffer = max(entry for entry in self.owner if entry[0] <= cell)
        chunk = self._chunk_of(cell - base, buffer)
        return (
            f"chunk {chunk} of the {buffer} of rank {rank}" if buffer != PACKETS else f"packet {chunk} of rank {rank}"
        )

    def _chunk_of(self, unit: int, buffer: str) -> int:
        window = self.layout.window
        if buffer == SCRATCH and window is not None and window < self.layout.at(1):
            return unit // window
        chunk = unit * self.layout.group_chunks // max(1, self.layout.group_units)
        while self.layout.at(chunk + 1) <= unit:
            chunk += 1
        return chunk


#: (unit of the input, multiplicity of each rank's input: 16 bits per rank); unit MIXED for sums of different units
Value = tuple[int, int]
MIXED = -1
_BITS = 16


def single(rank: int, unit: int) -> Value:
    """Return the value of one rank's input at one unit."""
    return unit, 1 << (_BITS * rank)


def add(values: list[Value]) -> Value:
    """Return the sum."""
    return reduce(lambda a, b: (a[0] if a[0] == b[0] else MIXED, a[1] + b[1]), values)


def describe(value: Value | None, plan: KernelPlan) -> str:
    """Return a readable text for a value."""
    if value is None:
        return "nothing"
    unit, packed = value
    counts = [(rank, packed >> (_BITS * rank) & 0xFFFF) for rank in range(plan.num_ranks)]
    texts = []
    for rank, count in counts:
        if count:
            texts.append(f"{rank}" if count == 1 else f"{rank} x {count}")
    ranks = ", ".join(texts)
    where = "different places" if unit == MIXED else f"place {unit}"
    return f"the input of ranks {ranks} at {where}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanGoal:
    """The cells of a rank that must hold ``expected`` at the end, one value per cell."""

    rank: int
    cells: range
    expected: list[Value]


def input_range(plan: KernelPlan, memory: PlanMemory, rank: int) -> range:
    """Return the cells of a rank's input."""
    chunks = plan.gpus[rank].input_chunks
    if not chunks:
        chunks = plan.chunks_of_size // (plan.num_ranks if plan.collective == "all_gather" else 1)
    return memory.cells(rank, INPUT, 0, memory.layout.at(chunks))


def goals(plan: KernelPlan, memory: PlanMemory, root: int = 0) -> list[PlanGoal]:
    """Return the required result of every rank.

    Raises InputError: the collective's result is not defined here (custom collectives), or its buffers do not fit it.
    """
    units = {len(input_range(plan, memory, rank)) for rank in range(plan.num_ranks)}
    if len(units) != 1:
        raise plan.fault(f"ranks have inputs of different sizes: {sorted(units)} units")
    size = units.pop()
    return [_goal(plan, memory, rank, size, root) for rank in range(plan.num_ranks)]


def _goal(plan: KernelPlan, memory: PlanMemory, rank: int, size: int, root: int) -> PlanGoal:
    ranks = plan.num_ranks
    all_inputs = sum(1 << (_BITS * source) for source in range(ranks))
    if plan.collective in ("all_reduce", "reduce_scatter"):
        start, length = (0, size) if plan.collective == "all_reduce" else (rank * (size // ranks), size // ranks)
        expected = [(start + unit, all_inputs) for unit in range(length)]
    elif plan.collective == "all_gather":
        expected = [single(source, unit) for source in range(ranks) for unit in range(size)]
    elif plan.collective == "all_to_all":
        chunk_units = size // ranks
        expected = [single(source, rank * chunk_units + unit) for source in range(ranks) for unit in range(chunk_units)]
    elif plan.collective == "send_recv":
        expected = [single((rank - 1) % ranks, unit) for unit in range(size)]
    elif plan.collective == "broadcast":
        expected = [single(root, unit) for unit in range(size)]
    else:
        raise plan.fault(f"no proof for {plan.collective!r}: its result is not defined")
    return PlanGoal(rank=rank, cells=_result_cells(plan, memory, rank, len(expected)), expected=expected)


def _result_cells(plan: KernelPlan, memory: PlanMemory, rank: int, length: int) -> range:
    gpu = plan.gpus[rank]
    if not plan.in_place and memory.layout.at(gpu.output_chunks) < length:
        raise plan.fault(f"rank {rank} has {gpu.output_chunks} output chunks, too few for the result")
    return memory.cells(rank, OUTPUT, 0, length)
