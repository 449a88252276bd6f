"""Turn a raw trace of any format into a workload: roles, batch dimensions, forward links, layers, parameters.

If the trace does not link a backward operator to its forward operator (TrioSim's CSV), names and order decide.
Parameters are in order of registration, with their gradients and the last operators that write those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from trine.common.units import format_bytes
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Parameter, Tensor, Workload
from trine.workload.analysis.aten_schema import MAKERS
from trine.workload.analysis.shape_rules import (
    RULES,
    Layout,
    OperatorCall,
    batch_dims,
    default,
    has_batch,
    plain,
    reshape,
    seeded,
    shape_of,
)
from trine.workload.analysis.tensor_roles import Roles, find_batch, find_roles
from trine.workload.raw_trace import RawCall, RawTrace, call_kind

# Batch dimensions of each tensor, found by carrying layouts from the input data through the calls.

_FILLED = frozenset({"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full"})
_FIXED = frozenset({"weight", "buffer", "table", "gradient", "optimizer_state"})


class Layouts:
    """Layouts of all tensors of a raw trace, found in one pass over its calls."""

    def __init__(
        self, raw: RawTrace, roles: Roles, seeds: Mapping[int, int], batch: int, links: tuple[int | None, ...]
    ) -> None:
        self._raw = raw
        self._roles = roles
        self._links = links
        self._batch = batch
        self._layouts: dict[int, Layout] = {}
        self._weak: set[int] = set()
        self._holder: dict[int, int] = {}  # storage -> the tensor that last described it
        for tensor, dim in seeds.items():
            self._set(tensor, seeded(raw.tensors[tensor].shape, dim, batch))
        for call in raw.calls:
            if call.phase != OPTIMIZER:  # no output of the optimizer scales with the batch
                self._visit(call)

    def batch_dims(self, tensor: int) -> tuple[int, ...]:
        """Return the batch dimensions of ``tensor``: () if its role never scales or its layout is unknown."""
        if self._roles.of(self._raw, tensor) in _FIXED or not self._raw.tensors[tensor].size_bytes:
            return ()
        layout = self._layouts.get(tensor)
        return batch_dims(layout) if layout is not None else ()

    def _set(self, tensor: int, layout: Layout) -> None:
        self._layouts[tensor] = layout
        self._holder[self._raw.tensors[tensor].storage] = tensor

    def _visit(self, call: RawCall) -> None:
        tensors = self._raw.tensors
        inputs_in_order = []
        for i in call.inputs:
            inputs_in_order.append(None if i is None else self._input(i, call))
        inputs = tuple(inputs_in_order)
        if not call.outputs:
            return
        if call.kind in MAKERS and (call.inner or not call.inputs):
            self._lay_out_new(call)
            return
        output_shapes = []
        for i in call.outputs:
            output_shapes.append(None if i is None else tensors[i].shape)
        outputs = tuple(output_shapes)
        operator = OperatorCall(inputs, outputs, call.values, self._batch)
        rule = RULES.get(call.kind)
        ruled = rule(operator) if rule is not None else [None] * len(outputs)
        fallback = None
        doubtful = any(i in self._weak for i in call.inputs if i is not None)
        for place, tensor in enumerate(call.outputs):
            if tensor is None:
                continue
            layout = ruled[place] if place < len(ruled) else None
            strong = layout is not None and shape_of(layout) == tensors[tensor].shape
            earlier = self._layouts.get(tensor)
            if earlier is not None and tensor not in self._weak:
                continue
            if not strong:
                fallback = fallback or default(operator)
                layout = fallback[place]
                if earlier is not None and (layout is None or batch_dims(earlier) or not batch_dims(layout)):
                    continue  # one guess against another: only one that finds the batch is better
                self._weak.add(tensor)
            elif doubtful:
                self._weak.add(tensor)
            else:
                self._weak.discard(tensor)
            if layout is not None:
                self._set(tensor, layout)

    def _lay_out_new(self, call: RawCall) -> None:
        """Give new memory the layout of an input with its shape, or the batch at the one dimension of that size.

        The second case covers the zeros of a recurrent network's first state.
        """
        like = [self._layouts[i] for i in call.inputs if i is not None and i in self._layouts]
        for tensor in call.outputs:
            if tensor is None or (tensor in self._layouts and tensor not in self._weak):
                continue
            shape = self._raw.tensors[tensor].shape
            layout = next((layout for layout in like if shape_of(layout) == shape), None)
            is_unique = len(shape) > 1 and self._batch > 1 and shape.count(self._batch) == 1
            if layout is None and is_unique and call.kind in _FILLED and not call.inner:
                layout = seeded(shape, shape.index(self._batch), self._batch)
            if layout is not None:
                self._set(tensor, layout)
                self._weak.add(tensor)

    def _input(self, tensor: int, call: RawCall) -> Layout:
        layout = self._layouts.get(tensor)
        if layout is not None:
            if tensor in self._weak and not batch_dims(layout) and (better := self._saved(tensor, call)) is not None:
                self._set(tensor, better)  # the gradient of a sum is an expanded scalar: its consumer knows its shape
                return better
            return layout
        shape = self._raw.tensors[tensor].shape
        if self._roles.of(self._raw, tensor) in _FIXED:
            return plain(shape)
        layout = self._alias(tensor) or self._saved(tensor, call)
        if layout is None:
            layout = plain(shape)
            self._weak.add(tensor)
        self._set(tensor, layout)
        return layout

    def _alias(self, tensor: int) -> Layout | None:
        """Return the layout for a view that the trace does not list: its storage's contents, reshaped or permuted."""
        holder = self._holder.get(self._raw.tensors[tensor].storage)
        if holder is None:
            return None
        layout, shape = self._layouts[holder], self._raw.tensors[tensor].shape
        if sorted(shape) == sorted(shape_of(layout)) and shape != shape_of(layout):
            pool = list(layout)
            order = [pool.pop(next(i for i, d in enumerate(pool) if shape_of((d,)) == (size,))) for size in shape]
            return tuple(order)
        return reshape(layout, shape)

    def _saved(self, tensor: int, call: RawCall) -> Layout | None:
        """Return the layout of an unlisted backward input: a saved tensor or a gradient of its forward operator."""
        if call.phase != BACKWARD or call.operator is None or (link := self._links[call.operator]) is None:
            return None
        shape = self._raw.tensors[tensor].shape
        forward = self._raw.operators[link]
        for candidate in (*forward.outputs, *forward.inputs):
            layout = self._layouts.get(candidate)
            if layout is not None and shape_of(layout) == shape and any(map(has_batch, layout)):
                return layout
        return None


def find_parameters(raw: RawTrace, roles: Roles, links: tuple[int | None, ...]) -> tuple[Parameter, ...]:
    """List the weights and mark the storages of their gradients in ``roles``.

    The order comes from the optimizer's lists, which hold the parameters as the model registered them; weights that no
    optimizer operator lists follow in the order of first use. An optimizer operator with several lists of one length
    pairs each weight with its gradient.
    """
    weights = _weights(raw, roles)
    gradients = _paired(raw, weights)
    by_operator = _from_operators(raw, weights, links)
    last_writer = _last_writers(raw)
    parameters = []
    for weight in weights:
        gradient, operator = gradients.get(weight), by_operator.get(weight, (None, None))[1]
        if gradient is None:
            gradient = by_operator.get(weight, (None, None))[0]
        if gradient is not None:
            storage = raw.tensors[gradient].storage
            roles.of_storage[storage] = "gradient"
            operator = last_writer.get(storage, operator)
        id_number = None if operator is None else raw.operators[operator].id
        parameters.append(Parameter(weight=weight, size_bytes=raw.tensors[weight].size_bytes, gradient=gradient,
                                    gradient_operator=id_number))  # fmt: skip
    return tuple(parameters)


def _without_tables(raw: RawTrace, roles: Roles, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Remove embedding tables that each rank of the recorded job has for itself, and mark their storages.

    Such a job exchanges rows (all-to-all), and its all-reduces are too small for the tables' gradients.
    """
    exchanges = any(each.operation == "all_to_all" for each in raw.collectives)
    reduced = [each.size_bytes for each in raw.collectives if each.operation in ("all_reduce", "reduce_scatter")]
    rows = {
        raw.tensors[i].storage
        for op in raw.operators
        if op.phase == FORWARD and call_kind(op.name) in ("embedding", "embedding_bag")
        for i in op.inputs[:1]
    }
    tables = [p for p in parameters if raw.tensors[p.weight].storage in rows]
    size = sum(p.size_bytes for p in tables)
    other_bytes = sum(p.size_bytes for p in parameters if p.gradient_operator is not None and p not in tables)
    if not exchanges or not tables or None in reduced or sum(each or 0 for each in reduced) > other_bytes + size // 2:
        return parameters
    roles.of_storage.update(dict.fromkeys((raw.tensors[p.weight].storage for p in tables), "table"))
    return tuple(p for p in parameters if p not in tables)


def _sharded_tables(raw: RawTrace, roles: Roles) -> tuple[str, ...]:
    """Return the assumption about embedding tables that ranks do not share."""
    sizes: dict[int, int] = {}
    for tensor in raw.tensors.values():
        if roles.of_storage.get(tensor.storage) == "table":
            sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), tensor.size_bytes)
    if not sum(sizes.values()):
        return ()
    return (
        f"embedding tables and their states ({format_bytes(sum(sizes.values()))}) are parts that each rank has for "
        "itself: they are neither broadcast nor reduced, and their exchange (all-to-all) is not simulated",
    )


def _weights(raw: RawTrace, roles: Roles) -> list[int]:
    """Return one tensor for each weight storage: the first one seen, so never a view of it."""
    first: dict[int, int] = {}
    for call in raw.calls:
        for i in (*call.inputs, *call.outputs):
            if i is not None and roles.of(raw, i) == "weight":
                first.setdefault(raw.tensors[i].storage, i)
    order: dict[int, int] = {}
    for op in raw.operators:
        if op.phase == OPTIMIZER:
            for i in op.inputs:
                storage = raw.tensors[i].storage
                if storage in first:
                    order.setdefault(storage, first[storage])
    return list({**order, **first}.values())


def _paired(raw: RawTrace, weights: list[int]) -> dict[int, int]:
    """Return weight -> gradient from optimizer operators with equally long input lists, one of them of gradients."""
    backward = {raw.tensors[i].storage for op in raw.operators if op.phase == BACKWARD for i in op.outputs}
    backward |= {raw.tensors[result].storage for _, result in raw.accumulated}
    touched = {raw.tensors[i].storage for op in raw.operators if op.phase == OPTIMIZER for i in op.inputs}
    listed = [w for w in weights if raw.tensors[w].storage in touched]
    count = len(listed)
    pairs: dict[int, int] = {}
    for op in raw.operators:
        if op.phase != OPTIMIZER or not count or len(op.inputs) % count:
            continue
        for start in range(0, len(op.inputs), count):
            part = op.inputs[start : start + count]
            fits = all(raw.tensors[g].shape == raw.tensors[w].shape for g, w in zip(part, listed, strict=True))
            is_self = any(raw.tensors[g].storage == raw.tensors[w].storage for g, w in zip(part, listed, strict=True))
            if fits and not is_self and any(raw.tensors[g].storage in backward for g in part):
                for weight, gradient in zip(listed, part, strict=True):
                    pairs.setdefault(weight, gradient)
    return pairs


def _from_operators(
    raw: RawTrace, weights: list[int], links: tuple[int | None, ...]
) -> dict[int, tuple[int | None, int | None]]:
    """Return weight -> (gradient, operator): outputs of backward operators whose forward operators read the weight.

    Outputs pair with the forward operator's weights of the same shape in the order of both.
    """
    by_storage = {raw.tensors[w].storage: w for w in weights}
    accumulated = {raw.tensors[incoming].storage: gradient for incoming, gradient in raw.accumulated}
    pairs: dict[int, tuple[int | None, int | None]] = {}
    for index, (op, link) in enumerate(zip(raw.operators, links, strict=True)):
        if op.phase != BACKWARD or link is None:
            continue
        forward = raw.operators[link]
        weights_read = []
        for i in forward.inputs:
            if (s := raw.tensors[i].storage) in by_storage:
                weights_read.append(by_storage[s])
        free = [i for i in op.outputs if raw.tensors[i].storage in accumulated or not accumulated]
        for weight in weights_read:
            count = raw.tensors[weight].size_bytes
            match = next((i for i in free if raw.tensors[i].size_bytes == count
                          and raw.tensors[i].storage not in by_storage), None)  # fmt: skip
            if match is not None:
                free.remove(match)
                match = accumulated.get(raw.tensors[match].storage, match)
            pairs[weight] = (match if match is not None else pairs.get(weight, (None, None))[0], index)
    return pairs


def _last_writers(raw: RawTrace) -> dict[int, int]:
    """Return storage -> the last backward operator with the storage among its outputs."""
    writers: dict[int, int] = {}
    for index, op in enumerate(raw.operators):
        if op.phase == BACKWARD:
            for i in op.outputs:
                writers[raw.tensors[i].storage] = index
    return writers


#: Backward nodes of autograd whose name differs from the forward call's.
_FORWARD_KINDS: dict[str, frozenset[str]] = {
    "Addmm": frozenset({"linear", "addmm"}),
    "Mm": frozenset({"linear", "matmul", "mm"}),
    "Bmm": frozenset({"matmul", "bmm"}),
    "Convolution": frozenset({"conv1d", "conv2d", "conv3d", "convolution", "conv_transpose2d"}),
    "Threshold": frozenset({"relu"}),
    "NllLoss": frozenset({"cross_entropy_loss", "nll_loss", "nll_loss_nd"}),
    "LogSoftmax": frozenset({"cross_entropy_loss", "log_softmax"}),
    "NativeDropout": frozenset({"dropout", "native_dropout"}),
    "Mean": frozenset({"mean", "adaptive_avg_pool2d"}),
}
_PREFIXES = ("native", "cudnn", "miopen", "mkldnn", "fused", "scaleddotproductflash", "scaleddotproductefficient")


@lru_cache(maxsize=4096)
def _matches(stem: str, kind: str) -> bool:
    kinds = _FORWARD_KINDS.get(stem)
    if kinds is not None:
        return kind in kinds
    flat = kind.replace("_", "")
    name = stem.lower()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name in (flat, f"{flat}withindices") or (name == "attention" and flat.endswith("attention"))


def forward_links(raw: RawTrace) -> tuple[int | None, ...]:
    """Return for each operator the index of the forward operator that it differentiates, or None.

    Candidates are forward operators of the right kind not yet matched by this kind of backward operator. The candidate
    with most shared storages wins (its weight, its saved output); among equals the latest, as backward runs in reverse
    order. A backward operator whose name fits no forward operator goes to one that it shares a storage with.
    """
    operators = raw.operators
    kinds = [call_kind(op.name) for op in operators]
    storages = []
    for op in operators:
        storages.append(frozenset(raw.tensors[i].storage for i in (*op.inputs, *op.outputs)))
    forward: dict[str, list[int]] = {}
    for i, op in enumerate(operators):
        if op.phase == FORWARD:
            forward.setdefault(kinds[i], []).append(i)
    used_by_stem: dict[str, set[int]] = {}
    numbers = {op.id: index for index, op in enumerate(operators)}
    links: list[int | None] = []
    for index, op in enumerate(operators):
        link = None if op.forward_id is None else numbers[op.forward_id]
        if link is None and op.phase == BACKWARD and kinds[index].endswith("'"):
            stem = kinds[index][:-1]
            linked = used_by_stem.setdefault(stem, set())
            fitting = [i for kind, those in forward.items() if _matches(stem, kind) for i in those if i not in linked]
            if not fitting and not any(_matches(stem, kind) for kind in forward):
                anywhere = sorted(i for those in forward.values() for i in those if i not in linked)
                fitting = [i for i in anywhere if storages[i] & storages[index]]
            shared = [(len(storages[i] & storages[index]), i) for i in fitting]
            link = max(shared)[1] if shared else None
            if link is not None:
                linked.add(link)
        links.append(link)
    return tuple(links)


def analyse(raw: RawTrace, *, batch: int | None = None) -> Workload:
    """Return the workload that ``raw`` records. ``batch`` overrides the inferred batch size.

    Raises TraceError if ``batch`` does not fit the trace's input data.
    """
    links = forward_links(raw)
    roles = find_roles(raw, batch)
    size, seeds, assumed = find_batch(raw, roles, batch)
    parameters = find_parameters(raw, roles, links)
    parameters = _without_tables(raw, roles, parameters)
    layouts = Layouts(raw, roles, seeds, size, links)
    layers = _layers(raw, links)
    tensor_ids = dict.fromkeys(i for op in raw.operators for i in (*op.inputs, *op.outputs))
    for parameter in parameters:
        tensor_ids[parameter.weight] = None
        if parameter.gradient is not None:
            tensor_ids[parameter.gradient] = None
    tensors = {i: _tensor(raw, i, roles.of(raw, i), layouts.batch_dims(i)) for i in sorted(tensor_ids)}
    linked = []
    for op, link, layer in zip(raw.operators, links, layers, strict=True):
        linked.append(replace(op, forward_id=None if link is None else raw.operators[link].id, layer=layer))
    operators = tuple(linked)
    return Workload(
        name=raw.name, source=raw.source, format=raw.format, gpu=raw.gpu, batch=size, operators=operators,
        tensors=tensors, parameters=parameters, missing=raw.missing,
        assumptions=(*assumed, *_sharded_tables(raw, roles), *raw.assumptions),
        unprofiled_step_ps=raw.unprofiled_step_ps, metadata=raw.metadata, collectives=raw.collectives,
    )  # fmt: skip


def _tensor(raw: RawTrace, tensor: int, role: str, batch_dims: tuple[int, ...]) -> Tensor:
    entry = raw.tensors[tensor]
    return Tensor(
        id=tensor, shape=entry.shape, dtype=entry.dtype, size_bytes=entry.size_bytes, storage=entry.storage, role=role,
        batch_dims=batch_dims,
    )  # fmt: skip


def _layers(raw: RawTrace, links: tuple[int | None, ...]) -> list[str]:
    """Name layers: ``conv2d.3`` is the third such forward operator; backward operators take their forward's layer.

    The path of the calling module goes before the name: ``layers.0.mlp.linear.5``.
    A backward operator without one (the sum of two gradients) belongs to the layer of the backward operator before it.
    """
    counts: dict[str, int] = {}

    def new_layer(op: Operator) -> str:
        kind = call_kind(op.name)
        counts[kind] = counts.get(kind, 0) + 1
        return f"{op.layer}.{kind}.{counts[kind]}" if op.layer else f"{kind}.{counts[kind]}"

    layers = []
    for op in raw.operators:
        layers.append("optimizer" if op.phase == OPTIMIZER else "")
    for index, op in enumerate(raw.operators):
        if op.phase == FORWARD:
            layers[index] = new_layer(op)
    before = ""
    for index, (op, link) in enumerate(zip(raw.operators, links, strict=True)):
        if op.phase == BACKWARD:
            before = layers[link] if link is not None else before or new_layer(op)
            layers[index] = before
    return layers
