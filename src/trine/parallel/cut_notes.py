"""What a user should know about where the pipeline is cut, and about what crosses the cuts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trine.graph.workload import FORWARD
from trine.parallel.blocks import has_blocks, units_of
from trine.units import format_bytes

if TYPE_CHECKING:
    from trine.parallel.context import JobContext
    from trine.parallel.stages import Crossing

#: Cuts that are named one by one; of more, the number.
MAX_NAMED = 3


def cut_rule(context: JobContext) -> str:
    """Where cuts lie, in words; empty without a pipeline."""
    plan, forward = context.plan, [op for op in context.workload.operators if op.phase == FORWARD]
    if plan.pp == 1:
        return ""
    if plan.cuts:
        return "where they were asked for"
    if has_blocks(forward):
        return "between layers, as the names of the operators tell them"
    return "between any two operators of different names up to the head, as names tell no layers"


def wide_crossings(context: JobContext) -> tuple[str, ...]:
    """A sentence for each cut that an activation crosses which is larger than what its layer puts out."""
    limit = _layer_outputs(context)
    tensors = context.workload.tensors
    widest: dict[int, Crossing] = {}  # target -> crossing
    for crossing in context.stages.crossings:
        size = tensors[crossing.tensor].size_bytes
        known = widest.get(crossing.target)
        if size > limit.get(crossing.producer, size) and (known is None or size > tensors[known.tensor].size_bytes):
            widest[crossing.target] = crossing
    batch, sentences = max(context.micro_batches), []
    for target, crossing in list(widest.items())[:MAX_NAMED]:
        sent = context.rank_bytes(crossing.tensor, batch)
        whole = tensors[crossing.tensor].size_bytes
        sentences.append(
            f"the cut at {context.stages.cuts[target - 1]!r} lies inside a layer: of each micro-batch tensor "
            f"{crossing.tensor}, the output of {context.operators[crossing.producer].layer!r}, crosses it with "
            f"{format_bytes(sent)}, {whole / limit[crossing.producer]:.3g} times what the layer puts out"
        )
    if len(widest) > MAX_NAMED:
        sentences.append(f"{len(widest) - MAX_NAMED} more cuts lie inside layers and send more than these put out")
    return tuple(sentences)


def _layer_outputs(context: JobContext) -> Mapping[int, int]:
    """Forward operator id -> the bytes of the largest activation that leaves its layer; empty without layers.

    What the last layer puts out is the output of its last operator (the loss).
    """
    tensors, forward = context.workload.tensors, [op for op in context.workload.operators if op.phase == FORWARD]
    if not has_blocks(forward):
        return {}
    starts = units_of(forward)
    found: dict[int, int] = {}
    layers = [forward[a:b] for a, b in zip(starts, [*starts[1:], len(forward)], strict=True)]
    layer_of = {op.id: number for number, layer in enumerate(layers) for op in layer}
    read_last: dict[int, int] = {}  # storage -> the last layer that reads it
    for op in forward:
        for tensor_id in op.inputs:
            read_last[tensors[tensor_id].storage] = layer_of[op.id]
    for number, layer in enumerate(layers):
        made = [tensors[t] for op in layer for t in op.outputs if tensors[t].role == "activation"]
        leaving = [tensor.size_bytes for tensor in made if read_last.get(tensor.storage, number) > number]
        last = [tensors[t].size_bytes for t in layer[-1].outputs]
        size = max(leaving, default=max(last, default=0))
        if size:
            found |= dict.fromkeys((op.id for op in layer), size)
    return found
