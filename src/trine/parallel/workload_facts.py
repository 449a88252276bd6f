"""Facts of a workload that no plan changes: all jobs of the workload share them. Receivers must not change them."""

from __future__ import annotations

from trine.common.kept import keep
from trine.graph.workload import FORWARD, Operator, Tensor, Workload


@keep
def operators_by_id(workload: Workload) -> dict[int, Operator]:
    """Return operator id -> operator."""
    return {op.id: op for op in workload.operators}


@keep
def layer_names(workload: Workload) -> tuple[str, ...]:
    """Return the names of layers, in the order of their first operators."""
    return tuple(dict.fromkeys(op.layer for op in workload.operators))


@keep
def name_indices(workload: Workload) -> dict[int, tuple[int, int]]:
    """Return operator id -> the indices of its name among the operators, and of its layer's name."""
    layers = {name: i for i, name in enumerate(layer_names(workload))}
    return {op.id: (i, layers[op.layer]) for i, op in enumerate(workload.operators)}


@keep
def storage_of_tensors(workload: Workload) -> dict[int, int]:
    """Return tensor id -> its storage."""
    return {number: tensor.storage for number, tensor in workload.tensors.items()}


@keep
def made_storages(workload: Workload) -> set[int]:
    """Return the storages that any operator writes."""
    storage_of = storage_of_tensors(workload)
    return {storage_of[t] for op in workload.operators for t in op.outputs}


@keep
def tensors_of_role(workload: Workload) -> dict[str, list[Tensor]]:
    """Return role -> its tensors, in the workload's order."""
    tensors: dict[str, list[Tensor]] = {}
    for tensor in workload.tensors.values():
        tensors.setdefault(tensor.role, []).append(tensor)
    return tensors


#: Roles of tensors that last beyond a micro-batch, outside what its operators allocate and free.
LASTING_ROLES = ("weight", "gradient", "optimizer_state")


@keep
def lasting_storages(workload: Workload) -> set[int]:
    """Return the storages of weights, gradients and optimizer states that no other tensor shares."""
    lasting: set[int] = set()
    others: set[int] = set()
    for tensor in workload.tensors.values():
        (lasting if tensor.role in LASTING_ROLES else others).add(tensor.storage)
    return lasting - others


@keep
def gradient_of_weights(workload: Workload) -> dict[int, int]:
    """Return weight -> gradient, as tensor ids."""
    return {p.weight: p.gradient for p in workload.parameters if p.gradient is not None}


@keep
def cast_copies(workload: Workload) -> dict[int, float]:
    """Return weight -> bytes of its copies for cast products, relative to its own (attribute ``weight_copies``)."""
    copies_of: dict[int, float] = {}
    for op in workload.operators:
        copies = op.attributes.get("weight_copies")
        if op.phase == FORWARD and isinstance(copies, float):
            copies_of.update({t: copies for t in op.inputs if workload.tensors[t].role == "weight"})
    return copies_of


@keep
def readers_of_storages(workload: Workload) -> dict[int, dict[int, None]]:
    """Return storage -> ids of the forward operators that read it, in order."""
    readers: dict[int, dict[int, None]] = {}
    for op in workload.operators:
        if op.phase == FORWARD:
            for tensor_id in op.inputs:
                readers.setdefault(workload.tensors[tensor_id].storage, {})[op.id] = None
    return readers
