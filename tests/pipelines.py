"""Models of equal layers with two backward operators per layer, for tests of pipelines."""

from __future__ import annotations

import trine
from trine.cluster import build_topology
from trine.graph.workload import Operator, Parameter, Tensor, Workload

US = 10**6


def stack(
    layers: int, forward_ps: int, input_ps: int, weight_ps: int, *, size_bytes: int = 8, fused: bool = False
) -> Workload:
    """Return ``layers`` equal layers y = x W for a micro-batch of one sample; each activation has ``size_bytes``.

    The activation's gradient takes ``input_ps``, the weight's ``weight_ps``; ``fused`` puts both in one operator.
    """
    tensors: dict[int, Tensor] = {}
    operators: list[Operator] = []

    def tensor(role: str, batched: bool = True, size_bytes: int = size_bytes) -> int:
        number = len(tensors) + 1
        tensors[number] = Tensor(
            id=number, shape=(1, size_bytes // 4) if batched else (size_bytes // 4,), dtype="float32",
            size_bytes=size_bytes, storage=number, role=role, batch_dims=(0,) if batched else (),
        )  # fmt: skip
        return number

    def operator(name: str, phase: str, inputs: list[int], outputs: list[int], time: int, layer: int, of: int | None):
        operators.append(
            Operator(
                id=len(operators) + 1,
                name=name,
                phase=phase,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                gpu_time_ps=time,
                layer=f"layers.{layer}.linear",
                forward_id=of,
            )
        )
        return len(operators)

    weights = [tensor("weight", False) for _ in range(layers)]
    activations = [tensor("input"), *(tensor("activation") for _ in range(layers))]
    for i in range(layers):
        operator("aten::linear", "forward", [activations[i], weights[i]], [activations[i + 1]], forward_ps, i, None)
    gradients, upstream = {}, tensor("activation", size_bytes=8)  # of the loss
    operators[-1] = Operator(**{**fields(operators[-1]), "outputs": (activations[-1], upstream)})
    for i in reversed(range(layers)):
        down, gradient = tensor("activation"), tensor("gradient", False)
        if fused:
            made = [down, gradient]
            operator("aten::linear_backward", "backward", [upstream, activations[i], weights[i]], made,
                     input_ps + weight_ps, i, i + 1)  # fmt: skip
        else:
            operator("aten::mm_backward", "backward", [upstream, weights[i]], [down], input_ps, i, i + 1)
            operator("aten::mm_backward", "backward", [upstream, activations[i]], [gradient], weight_ps, i, i + 1)
        gradients[i] = (gradient, len(operators))
        upstream = down
    parameters = tuple(
        Parameter(weight=w, size_bytes=size_bytes, gradient=gradients[i][0], gradient_operator=gradients[i][1])
        for i, w in enumerate(weights)
    )
    return Workload(
        name="stack", source="tests/pipelines.py", format="by hand", gpu=None, batch=1, operators=tuple(operators),
        tensors=tensors, parameters=parameters,
    )  # fmt: skip


def fields(operator: Operator) -> dict[str, object]:
    return {name: getattr(operator, name) for name in operator.__dataclass_fields__}


def run(workload: Workload, microbatches: int, **plan):
    """Return the result of one step on nearly free wires (a picosecond per message)."""
    made = trine.Plan(batch=microbatches, micro_batch=1, **plan)
    cluster = build_topology("full", "1000000 TB/s", 0, made.num_ranks) if made.num_ranks > 1 else None
    return trine.simulate(workload, made, cluster=cluster, fold="off", software="none")
