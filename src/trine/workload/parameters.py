"""The trained weights in the order of registration, with their gradients and the operators that finish those."""

from __future__ import annotations

from trine.graph.workload import BACKWARD, OPTIMIZER, Parameter
from trine.workload.draft import Draft
from trine.workload.roles import Roles


def find_parameters(draft: Draft, roles: Roles, links: tuple[int | None, ...]) -> tuple[Parameter, ...]:
    """List the weights and mark the storages of their gradients in ``roles``.

    The order is that of the optimizer's lists, which hold the parameters as the model registered them; weights that no
    optimizer operator lists follow in the order of first use. An optimizer operator that takes several lists of one
    length pairs each weight with its gradient.
    """
    weights = _weights(draft, roles)
    gradients = _paired(draft, weights)
    by_operator = _from_operators(draft, weights, links)
    last_writer = _last_writers(draft)
    parameters = []
    for weight in weights:
        gradient, operator = gradients.get(weight), by_operator.get(weight, (None, None))[1]
        if gradient is None:
            gradient = by_operator.get(weight, (None, None))[0]
        if gradient is not None:
            storage = draft.tensors[gradient].storage
            roles.of_storage[storage] = "gradient"
            operator = last_writer.get(storage, operator)
        id_number = None if operator is None else draft.operators[operator].id
        parameters.append(Parameter(weight=weight, size_bytes=draft.tensors[weight].size_bytes, gradient=gradient,
                                    gradient_operator=id_number))  # fmt: skip
    return tuple(parameters)


def _weights(draft: Draft, roles: Roles) -> list[int]:
    """One tensor for each weight storage: the first that was seen, so never a view of it."""
    first: dict[int, int] = {}
    for call in draft.calls:
        for i in (*call.inputs, *call.outputs):
            if i is not None and roles.of(draft, i) == "weight":
                first.setdefault(draft.tensors[i].storage, i)
    order: dict[int, int] = {}
    for op in draft.operators:
        if op.phase == OPTIMIZER:
            for i in op.inputs:
                storage = draft.tensors[i].storage
                if storage in first:
                    order.setdefault(storage, first[storage])
    return list({**order, **first}.values())


def _paired(draft: Draft, weights: list[int]) -> dict[int, int]:
    """Weight -> gradient from optimizer operators whose inputs are lists of one length, one of them of gradients."""
    backward = {draft.tensors[i].storage for op in draft.operators if op.phase == BACKWARD for i in op.outputs}
    backward |= {draft.tensors[kept].storage for _, kept in draft.accumulated}
    touched = {draft.tensors[i].storage for op in draft.operators if op.phase == OPTIMIZER for i in op.inputs}
    listed = [w for w in weights if draft.tensors[w].storage in touched]
    count = len(listed)
    pairs: dict[int, int] = {}
    for op in draft.operators:
        if op.phase != OPTIMIZER or not count or len(op.inputs) % count:
            continue
        for start in range(0, len(op.inputs), count):
            part = op.inputs[start : start + count]
            fits = all(draft.tensors[g].shape == draft.tensors[w].shape for g, w in zip(part, listed, strict=True))
            own = any(draft.tensors[g].storage == draft.tensors[w].storage for g, w in zip(part, listed, strict=True))
            if fits and not own and any(draft.tensors[g].storage in backward for g in part):
                for weight, gradient in zip(listed, part, strict=True):
                    pairs.setdefault(weight, gradient)
    return pairs


def _from_operators(
    draft: Draft, weights: list[int], links: tuple[int | None, ...]
) -> dict[int, tuple[int | None, int | None]]:
    """Weight -> (gradient, operator): outputs of the backward operators whose forward operators read the weight.

    Outputs pair with the forward operator's weights of the same shape in the order of both.
    """
    by_storage = {draft.tensors[w].storage: w for w in weights}
    accumulated = {draft.tensors[incoming].storage: kept for incoming, kept in draft.accumulated}
    found: dict[int, tuple[int | None, int | None]] = {}
    for index, (op, link) in enumerate(zip(draft.operators, links, strict=True)):
        if op.phase != BACKWARD or link is None:
            continue
        forward = draft.operators[link]
        mine = [by_storage[s] for i in forward.inputs if (s := draft.tensors[i].storage) in by_storage]
        free = [i for i in op.outputs if draft.tensors[i].storage in accumulated or not accumulated]
        for weight in mine:
            count = draft.tensors[weight].size_bytes
            match = next((i for i in free if draft.tensors[i].size_bytes == count
                          and draft.tensors[i].storage not in by_storage), None)  # fmt: skip
            if match is not None:
                free.remove(match)
                match = accumulated.get(draft.tensors[match].storage, match)
            found[weight] = (match if match is not None else found.get(weight, (None, None))[0], index)
    return found


def _last_writers(draft: Draft) -> dict[int, int]:
    """Storage -> the last backward operator that has it among its outputs."""
    writers: dict[int, int] = {}
    for index, op in enumerate(draft.operators):
        if op.phase == BACKWARD:
            for i in op.outputs:
                writers[draft.tensors[i].storage] = index
    return writers
