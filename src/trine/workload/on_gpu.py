"""Convert a step recorded on a CPU to its GPU form: launches per operator, foreach or fused optimizer kernels.

On a CPU, PyTorch's optimizers loop over the weights. On a GPU the same code uses lists of tensors (``foreach``), or
the software requests one fused kernel (``fused``). Step counters stay on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trine.compute.cost import num_lists
from trine.compute.kinds import family_of, kind_of
from trine.graph.workload import BACKWARD, OPTIMIZER, SYNTHESISED, Operator, Parameter, Tensor, Workload
from trine.software.profile import Software

#: Limits of one launch of a foreach operator: tensors by the number of lists (1 to 5), blocks, elements per block
#: (depth_to_max_tensors, depth_to_max_blocks and kChunkSize of aten/src/ATen/native/cuda/MultiTensorApply.cuh).
_TENSORS, _BLOCKS, _BLOCK_ELEMENTS = (110, 64, 48, 36, 30), 320, 65536


def on_gpu(workload: Workload, software: Software | None) -> Workload:
    """Return ``workload`` with the operators that ``software`` runs on a GPU; unchanged if it has GPU times.

    Drop calls without kernels and merge per-tensor optimizer steps. The changes are listed as assumptions.
    """
    if workload.format == SYNTHESISED or workload.has_gpu_times:
        return workload
    differentiated = {op.forward_id for op in workload.operators if not _is_idle(op)}
    has_backward = any(op.phase == BACKWARD and not _is_idle(op) for op in workload.operators)
    launching = [
        op for op in workload.operators
        if not _is_idle(op) or op.id in differentiated or (op.phase == BACKWARD and not has_backward)
    ]  # fmt: skip
    steps = [op for op in launching if op.phase == OPTIMIZER]
    loops = []
    for step in steps:
        if family_of(kind_of(step)) != "optimizer" and (lists := _lists(step, workload)):
            loops.append(replace(step, inputs=lists))
    style = "fused" if software is None else software.operators.optimizer
    merged = _fused(loops, workload) if style == "fused" else []
    if not merged:
        style, merged = "foreach", _foreach(loops, workload)
    single = []
    for step in loops:
        if not any(step.name == other.name for other in loops if other is not step):
            single.append(step)
    looped = [_as_lists(op, workload) for op in steps if family_of(kind_of(op)) == "optimizer"]
    unmerged = single if style == "foreach" else ()
    optimizer = sorted([*merged, *unmerged, *looped], key=lambda op: op.id)
    operators = (*(op for op in launching if op.phase != OPTIMIZER), *optimizer)
    notes = list(workload.assumptions)
    if len(loops) > len(merged) + len(single):
        launches = sum(float(str(op.attributes.get("kernels", 1))) for op in merged)
        source = "without a software profile" if software is None else f"as {software.name} runs them on a GPU"
        notes.append(
            f"{len(steps)} optimizer operators, one for each tensor as a CPU runs them, became "
            f"{len(merged)} {style} operator{'s' * (len(merged) > 1)} ({launches:g} kernel launches), {source}"
        )
    return replace(workload, operators=operators, parameters=_relinked(workload, operators), assumptions=tuple(notes))


def _is_idle(op: Operator) -> bool:
    """Return whether an operator launches no kernel on a GPU."""
    return op.attributes.get("kernels") == 0


def _lists(op: Operator, workload: Workload) -> tuple[int, ...]:
    """Return the inputs of an optimizer operator except scalars (factors, counts of steps), which stay on the CPU."""
    return tuple(i for i in op.inputs if workload.tensors[i].shape)


def _foreach(loops: list[Operator], workload: Workload) -> list[Operator]:
    """Return one foreach operator for each name that several operators share."""
    groups: dict[str, list[Operator]] = {}
    for op in loops:
        groups.setdefault(op.name, []).append(op)
    operators = []
    for name, group in groups.items():
        if len(group) < 2:
            continue
        depth = max(len(op.inputs) for op in group)
        inputs = tuple(op.inputs[place] for place in range(depth) for op in group if place < len(op.inputs))
        outputs = tuple(i for op in group for i in (op.outputs or op.inputs[:1]))
        tensors = [workload.tensors[i] for i in outputs]
        in_place = name.endswith("_")
        from trine.workload.raw_trace import call_kind

        merged = f"aten::_foreach_{call_kind(name)}{'_' if in_place else ''}"
        operators.append(_merged(group, merged, inputs, outputs, _launches(tensors, depth + (not in_place))))
    return operators


def _fused(loops: list[Operator], workload: Workload) -> list[Operator]:
    """Return the whole step as one operator on weights, gradients and states; [] if the trace links no weights."""
    made_here = {workload.tensors[i].storage for op in loops for i in op.outputs if i not in op.inputs}
    unique: dict[int, int] = {}
    for op in loops:
        for i in op.inputs:
            if workload.tensors[i].storage not in made_here:
                unique.setdefault(workload.tensors[i].storage, i)
    tensors = [workload.tensors[i] for i in unique.values()]
    weights = [tensor for tensor in tensors if tensor.role == "weight"]
    if len(loops) < 2 or not weights:
        return []
    is_adam = any("addcdiv" in op.name for op in loops)
    name = "adam" if is_adam else "sgd"
    launches = _launches(weights, min(5, max(1, round(len(tensors) / len(weights)))))
    return [_merged(loops, f"aten::_fused_{name}_", tuple(unique.values()), (), launches)]


def _merged(
    group: list[Operator], name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], launches: int
) -> Operator:
    attributes = {} if launches == 1 else {"kernels": launches}
    time = sum(op.gpu_time_ps for op in group)
    return replace(group[0], name=name, inputs=inputs, outputs=outputs, gpu_time_ps=time, attributes=attributes)


def _as_lists(op: Operator, workload: Workload) -> Operator:
    """Return a foreach or fused operator with its launches on a GPU; on a CPU it loops inside.

    Its inputs are several lists of one length; the first list's tensors are those that it updates.
    """
    inputs = [workload.tensors[i] for i in _lists(op, workload)] or [workload.tensors[i] for i in op.outputs]
    weights = sum(tensor.role == "weight" for tensor in inputs)
    if "fused" in op.name and weights:
        depth = len(inputs) // weights
    else:
        from trine.workload.raw_trace import call_kind

        depth = num_lists(tuple(inputs), call_kind(op.name).removeprefix("foreach_"))
    return replace(op, attributes={**op.attributes, "kernels": _launches(inputs[: len(inputs) // depth], depth)})


def _launches(tensors: list[Tensor], depth: int) -> int:
    """Return the launches of one foreach operator with ``depth`` lists like ``tensors``."""
    blocks = sum(-(-math.prod(tensor.shape) // _BLOCK_ELEMENTS) for tensor in tensors)
    most = _TENSORS[min(max(depth, 1), len(_TENSORS)) - 1]
    return max(1, -(-len(tensors) // most), -(-blocks // _BLOCKS))


def _relinked(workload: Workload, operators: tuple[Operator, ...]) -> tuple[Parameter, ...]:
    """Return the parameters; if a gradient's last operator launches no kernel, the one before it finishes it."""
    ids = {op.id for op in operators}
    before: dict[int, int] = {}
    latest: int | None = None
    for op in workload.operators:
        if op.phase == BACKWARD and op.id in ids:
            latest = op.id
        if latest is not None:
            before[op.id] = latest
    parameters = []
    for p in workload.parameters:
        parameters.append(
            p
            if (last := p.gradient_operator) is None or last in ids
            else replace(p, gradient_operator=before.get(last))
        )
    return tuple(parameters)
