"""Layout of chunks: in bytes for a message of a given size, or in units of a small grid for proofs without a size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trine.errors import InputError
from trine.gpu.plans.plan import PIPELINE, SCRATCH, KernelOp, KernelOperand, KernelPlan
from trine.gpu.plans.reading import walk

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
                raise InputError(
                    "its thread block groups cut chunks into more than 4096 kinds of parts", file=plan.file
                )
    return grid


def message_layout(plan: KernelPlan, size_bytes: int) -> ChunkLayout:
    """Return the layout of a message of ``size_bytes`` by nccl-tests' convention.

    Raises InputError: the plan does not allow this size; names the allowed ones.
    """
    _check_limits(plan, size_bytes)
    chunks = plan.chunks_of_size
    if chunks == 0:
        raise InputError("its buffers have no chunks", file=plan.file)
    if plan.format == "msccl":
        return ChunkLayout(group_chunks=1, group_units=-(-size_bytes // chunks))
    groups = 1
    if plan.format == "mscclpp-1":
        inputs = plan.gpus[0].input_chunks or chunks
        groups = plan.gpus[0].chunk_groups * (chunks // inputs)
        if groups == 0 or chunks % groups:
            raise InputError(f"{chunks} chunks do not fall into {groups} groups", file=plan.file, field="chunkGroups")
    multiple = plan.alignment * (chunks if plan.format == "mscclpp-2" else groups)
    if size_bytes % multiple:
        next_size = -(-size_bytes // multiple) * multiple
        raise InputError(
            f"this plan needs a multiple of {multiple} bytes, not {size_bytes}; the next is {next_size}", file=plan.file
        )
    layout = ChunkLayout(
        group_chunks=1 if plan.format == "mscclpp-2" else chunks // groups,
        group_units=size_bytes // (chunks if plan.format == "mscclpp-2" else groups),
        alignment=plan.alignment,
        window=reused_chunk_bytes(plan),
    )
    _check_scratch(plan, layout)
    return layout


def _check_limits(plan: KernelPlan, size_bytes: int) -> None:
    if size_bytes <= 0:
        raise InputError(f"a message must have a size, got {size_bytes} bytes", file=plan.file)
    if size_bytes < plan.min_bytes or (plan.max_bytes is not None and size_bytes > plan.max_bytes):
        limit = "any size" if plan.max_bytes is None else f"{plan.max_bytes} bytes"
        raise InputError(
            f"this plan is for messages of {plan.min_bytes} bytes to {limit}, got {size_bytes}", file=plan.file
        )


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
                        raise InputError(
                            f"a chunk of {layout.at(1)} bytes does not fit into the {layout.window} bytes of scratch "
                            "that this plan reuses",
                            file=plan.file,
                        )
