"""Common parts of the plan readers: checks of keys, names of collectives, the check of a whole plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trine.common.key_reader import KeyReader, named, whole
from trine.errors import SpecError
from trine.gpu.plans import plan as ir

MAX_RANKS = 4096
MAX_CHUNKS = 2**20
MAX_OPERATIONS = 2_000_000
MAX_BYTES = 2**64 - 1
#: Check of the number of a chunk, a step or an entry of a list.
INDEX = whole(0, MAX_CHUNKS)
#: Check of a number of chunks or thread blocks.
COUNT = whole(1, MAX_CHUNKS)


def pick(item: KeyReader, items: tuple[int, ...], index: int, what: str, name: str) -> int:
    """Return ``items[index]``, or raise an error with the number of items."""
    if not 0 <= index < len(items):
        raise item.fail(f"there is no {what} {index} here, there are {len(items)}", name)
    return items[index]


BUFFER_LETTERS = {"i": ir.INPUT, "o": ir.OUTPUT, "s": ir.SCRATCH}
_letter = named(BUFFER_LETTERS)


def buffer_of_letter(value: Any) -> str:
    """Return the buffer that a value names by its letter: the check of a key. Raises Fault."""
    return BUFFER_LETTERS[_letter(value)]


#: name of a collective in the file -> trine's name
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "custom": "custom",
    "test": "custom",
}


def chunks_of_size(collective: str, gpus: tuple[ir.KernelGpu, ...]) -> int:
    """Return the chunks in the message whose size nccl-tests prints: the output of an all-gather, else the input."""
    first = gpus[0]
    if collective in ("all_gather", "gather"):
        return first.output_chunks or len(gpus) * first.input_chunks
    return first.input_chunks or first.output_chunks


def walk(block: ir.ThreadBlock) -> Iterator[tuple[str, ir.KernelOp]]:
    """Yield every operation of a block with its place, including the bodies of pipelines."""
    for number, op in enumerate(block.operations):
        yield f"ops[{number}]", op
        for inner, body in enumerate(op.operations):
            yield f"ops[{number}].ops[{inner}]", body


def _wrong(plan: ir.KernelPlan, message: str, field: str | None = None) -> SpecError:
    return SpecError(message, file=plan.file, field=field)


def check_plan_shape(plan: ir.KernelPlan) -> None:
    """Check properties that involve all GPUs.

    Raises SpecError: ranges beyond a buffer, chunk numbers that differ between ranks, or a barrier that cannot be
    passed.
    """
    shapes = {(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus}
    if len(shapes) > 1 and plan.collective not in ("send_recv", "custom", "gather", "scatter", "broadcast", "reduce"):
        raise _wrong(plan, f"ranks disagree on the number of chunks: {sorted(shapes)}", "gpus")
    if sum(len(list(walk(block))) for gpu in plan.gpus for block in gpu.blocks) > MAX_OPERATIONS:
        raise _wrong(plan, f"more than {MAX_OPERATIONS} operations")
    for gpu in plan.gpus:
        _check_groups(plan, gpu)
        blocks = {block.id for block in gpu.blocks}
        for number, block in enumerate(gpu.blocks):
            for place, op in walk(block):
                where = f"gpus[{gpu.rank}].threadblocks[{number}].{place}"
                _check_op(plan, gpu, op, blocks, where)


def _check_groups(plan: ir.KernelPlan, gpu: ir.KernelGpu) -> None:
    for number in gpu.groups:
        for rank in plan.groups[number].ranks:
            if number not in plan.gpus[rank].groups:
                raise _wrong(
                    plan,
                    f"GPU {gpu.rank} is in a multicast group with rank {rank}, which does not list that group",
                    f"gpus[{rank}].channels",
                )


def _check_op(plan: ir.KernelPlan, gpu: ir.KernelGpu, op: ir.KernelOp, blocks: set[int], where: str) -> None:
    for operand in (*op.sources, *op.targets):
        _check_operand(plan, operand, where)
    if op.action == ir.BARRIER and not 1 <= op.num_blocks <= len(blocks):
        raise _wrong(plan, f"waits for {op.num_blocks} thread blocks, GPU {gpu.rank} has {len(blocks)}", where)
    if any(operand.packet for body in op.operations for operand in (*body.sources, *body.targets)):
        raise _wrong(plan, "packets in a pipeline: rounds would read the first round's packets", where)
    for block, _ in op.dependencies:
        if block not in blocks:
            raise _wrong(plan, f"there is no thread block {block} on GPU {gpu.rank}", where)


def _check_operand(plan: ir.KernelPlan, operand: ir.KernelOperand, where: str) -> None:
    if operand.buffer == ir.FIFO:
        return
    ranks = plan.groups[operand.group].ranks if operand.group is not None else (operand.rank,)
    for rank in ranks:
        chunks = buffer_chunks(plan, rank, operand.buffer)
        if operand.index + operand.count > chunks:
            raise _wrong(
                plan,
                f"chunks {operand.index} to {operand.index + operand.count - 1} of the {operand.buffer} of rank "
                f"{rank}, which has {chunks}",
                where,
            )


def buffer_chunks(plan: ir.KernelPlan, rank: int, buffer: str) -> int:
    """Return the chunks in one buffer; in place, input and output may lie in the larger of the two."""
    assert buffer in ir.BUFFERS
    gpu = plan.gpus[rank]
    if buffer == ir.SCRATCH:
        return gpu.scratch_chunks
    chunks, partner_chunks = gpu.input_chunks, gpu.output_chunks
    if buffer == ir.OUTPUT:
        chunks, partner_chunks = partner_chunks, chunks
    if not plan.in_place:
        return chunks
    if plan.collective in ("all_reduce", "all_to_all", "broadcast", "reduce", "send_recv", "custom"):
        return max(chunks, partner_chunks)
    return chunks or plan.chunks_of_size
