"""Positions in a model's forward operators: layers and blocks, by name, and what an operator sends if cut there."""

from __future__ import annotations

from collections.abc import Sequence

from trine.compute import kind_of
from trine.compute.kinds import layer_of
from trine.graph.workload import Operator, Workload


def has_layers(operators: Sequence[Operator]) -> bool:
    """Return whether any name in ``operators`` contains a layer."""
    return any(layer_of(op.layer) for op in operators)


def layer_starts(forward: Sequence[Operator]) -> list[int]:
    """Return the positions in ``forward`` of the model's units: prologue before the blocks, each block, epilogue.

    Operators between two blocks belong to the earlier block. A model without blocks is one unit.
    """
    blocks = [layer_of(op.layer) for op in forward]
    places = [i for i, block in enumerate(blocks) if block]
    if not places:
        return [0]
    starts = [i for before, i in zip([-1, *places], places, strict=False) if before < 0 or blocks[before] != blocks[i]]
    epilogue = places[-1] + 1
    prologue = [0] if starts[0] else []
    ending = [epilogue] if epilogue < len(forward) else []
    return [*prologue, *starts, *ending]


def places_of(workload: Workload, forward: Sequence[Operator]) -> list[int]:
    """Return the positions in ``forward`` at which a stage may begin, including the first.

    If names contain layers, a stage may begin with a layer (:func:`layer_starts`); otherwise
    wherever the name changes. The loss always stays with the head, the last operator that reads a weight, because
    the head's output is the largest tensor of most models.
    """
    if has_layers(forward):
        places = layer_starts(forward)
    else:
        places = [i for i, op in enumerate(forward) if not i or not op.layer or op.layer != forward[i - 1].layer]
    head = _head(workload, forward)
    return [place for place in places if place <= head]


def _head(workload: Workload, forward: Sequence[Operator]) -> int:
    """Return the position of the last operator that reads a weight if a loss follows it, else of the last operator."""
    last = len(forward) - 1
    weights = (i for i in range(last, -1, -1) if any(workload.tensors[t].role == "weight" for t in forward[i].inputs))
    head = next(weights, last)
    has_loss = any(kind_of(op) == "loss" for op in forward[head + 1 :])
    return head if has_loss else last


def block_places(workload: Workload, forward: Sequence[Operator]) -> list[int]:
    """Return the first positions of the model's blocks, by the names of their operators."""
    return [place for place in places_of(workload, forward) if layer_of(forward[place].layer)]


def sendable(workload: Workload, op: Operator) -> list[int]:
    """Return the tensors to send after ``op`` if the trace does not link it to its successors."""
    outputs = (workload.tensors[t] for t in op.outputs)
    return [tensor.id for tensor in outputs if tensor.role == "activation" and tensor.size_bytes]
