"""From a draft to a workload: roles, batch dimensions, forward links, layers and parameters, for every format alike."""

from __future__ import annotations

from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Tensor, Workload
from trine.workload.batch import Layouts
from trine.workload.draft import Draft
from trine.workload.links import forward_links
from trine.workload.names import call_kind
from trine.workload.parameters import find_parameters
from trine.workload.roles import find_batch, find_roles


def analyse(draft: Draft, *, batch: int | None = None) -> Workload:
    """Return the workload that ``draft`` records. ``batch`` overrides the inferred batch size.

    Raises TraceError if ``batch`` does not fit the trace's input data.
    """
    links = forward_links(draft)
    roles = find_roles(draft, batch)
    size, seeds, assumed = find_batch(draft, roles, batch)
    parameters = find_parameters(draft, roles, links)
    layouts = Layouts(draft, roles, seeds, size, links)
    layers = _layers(draft, links)
    used = dict.fromkeys(i for op in draft.operators for i in (*op.inputs, *op.outputs))
    for parameter in parameters:
        used[parameter.weight] = None
        if parameter.gradient is not None:
            used[parameter.gradient] = None
    tensors = {i: _tensor(draft, i, roles.of(draft, i), layouts.batch_dims(i)) for i in sorted(used)}
    operators = tuple(
        Operator(
            id=op.id, name=op.name, phase=op.phase, inputs=op.inputs, outputs=op.outputs, gpu_time_ps=op.gpu_time_ps,
            launch_start_ps=op.launch_start_ps, launch_duration_ps=op.launch_duration_ps,
            forward_id=None if link is None else draft.operators[link].id, layer=layer,
            kernel_times_ps=op.kernel_times_ps, attributes=op.attributes,
        )
        for op, link, layer in zip(draft.operators, links, layers, strict=True)
    )  # fmt: skip
    return Workload(
        name=draft.name, source=draft.source, format=draft.format, gpu=draft.gpu, batch=size, operators=operators,
        tensors=tensors, parameters=parameters, missing=draft.missing, assumptions=(*assumed, *draft.assumptions),
        unprofiled_step_ps=draft.unprofiled_step_ps, metadata=draft.metadata,
    )  # fmt: skip


def _tensor(draft: Draft, tensor: int, role: str, batch_dims: tuple[int, ...]) -> Tensor:
    known = draft.tensors[tensor]
    return Tensor(
        id=tensor, shape=known.shape, dtype=known.dtype, size_bytes=known.size_bytes, storage=known.storage, role=role,
        batch_dims=batch_dims,
    )  # fmt: skip


def _layers(draft: Draft, links: tuple[int | None, ...]) -> list[str]:
    """``conv2d.3`` for the third such forward operator; backward operators take the layer of their forward operator.

    A backward operator without one (the sum of two gradients) belongs to the layer of the backward operator before it.
    """
    counts: dict[str, int] = {}

    def new_layer(name: str) -> str:
        kind = call_kind(name)
        counts[kind] = counts.get(kind, 0) + 1
        return f"{kind}.{counts[kind]}"

    layers = ["optimizer" if op.phase == OPTIMIZER else "" for op in draft.operators]
    for index, op in enumerate(draft.operators):
        if op.phase == FORWARD:
            layers[index] = new_layer(op.name)
    before = ""
    for index, (op, link) in enumerate(zip(draft.operators, links, strict=True)):
        if op.phase == BACKWARD:
            before = layers[link] if link is not None else before or new_layer(op.name)
            layers[index] = before
    return layers
