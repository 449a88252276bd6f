"""What software does in a step besides the model's operators, as operators of the optimizer phase.

Attributes: ``cost`` (its name in the profile), ``when`` (``step`` or ``micro-batch``), ``cpu_us``, ``kernels``,
``by_weight`` (kernels go with the number of a rank's weights), ``whole`` (of all of a stage's parameters, also where
replicas share them), ``all_reduces`` and ``axis``.
"""

from __future__ import annotations

from trine.graph.workload import Tensor
from trine.software.profile import FixedCost, Software
from trine.workload.synthesis.graph import Graph

MICRO_BATCH = "micro-batch"


def fixed_costs(graph: Graph, *, before: bool) -> None:
    """Add the costs of the graph's software: those on gradients ``before`` the optimizer, on parameters after it."""
    software = graph.software
    if software is None:
        return
    if before and _accumulates_apart(graph):
        _accumulation(graph, software)
    for cost in software.step:
        if before == (cost.parameter_passes == 0):
            _add(graph, cost)


def _accumulates_apart(graph: Graph) -> bool:
    writes = graph.writes
    return writes.accumulation == "separate" and writes.gradient_dtype == "float32" and graph.dtype != "float32"


def _accumulation(graph: Graph, software: Software) -> None:
    """Gradients of a micro-batch are read, and added to float32 sums: 10 bytes a parameter of a two-byte dtype.

    The weights stand for the gradients of their dtype, of which no more is known than their bytes.
    """
    weights, sums = _trained(graph)
    launches = software.operators.kernels.get("accumulation", [1.0, 1.0])[1] * len(weights)
    kept = {"cost": "accumulation", "when": MICRO_BATCH, "kernels": launches, "by_weight": True}
    graph.optimizer("aten::_foreach_add_", (*sums, *weights), sums, kept)


def _trained(graph: Graph) -> tuple[list[Tensor], list[Tensor]]:
    weights = [weight for weight in graph.weights.values() if weight.id in graph.gradients]
    return weights, [graph.gradients[weight.id] for weight in weights]


def _add(graph: Graph, cost: FixedCost) -> None:
    weights, gradients = _trained(graph)
    kernels = cost.kernels_per_weight * len(weights)
    kept: dict[str, object] = {"cost": cost.name, "when": cost.when, "cpu_us": cost.cpu_us, "kernels": kernels}
    if cost.kernels_per_weight:
        kept["by_weight"] = True
    if cost.whole:
        kept["whole"] = True
    if cost.all_reduces:
        kept |= {"all_reduces": cost.all_reduces, "axis": cost.axis}
    passes, tensors = cost.gradient_passes, gradients
    if cost.parameter_passes:
        passes, tensors = cost.parameter_passes, weights
    if not passes:
        graph.optimizer(f"{_word(cost)}_", (), (), kept)
        return
    one = graph.tensor((), role="optimizer_state", dtype="float32", batch_dims=())
    graph.optimizer(f"aten::_foreach_{_word(cost)}", tensors, (one,), {**kept, "passes": passes})


def _word(cost: FixedCost) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in cost.name.lower()).split())
