"""CUDA graphs: the launches of captured operators are replaced by one launch of their graph.

A framework captures the kernels of a part of the step once, and replays them with one launch (NVIDIA, CUDA programming
guide, CUDA graphs). Megatron-core captures modules of a layer (``--cuda-graph-impl transformer_engine`` with the scopes
``attn``, ``moe_router`` and ``moe_preprocess``; megatron/core/transformer/cuda_graphs.py), whole layers, or the forward
and backward passes of a step (``full_iteration``; megatron/core/full_cuda_graph.py). The optimizer is launched as
without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trine.graph.workload import OPTIMIZER, Operator, Workload

#: The part of a step that is all of its passes.
STEP = "step"
#: Parts of a layer that a graph captures -> the names of their operators.
_NAMES: Mapping[str, str] = {
    "attention": r"(attention|linear|mamba)\.",
    "router": r"moe\.(norm|router|softmax|topk)\b",
    "layers": "",
}
#: A layer's number in the names of its operators.
_LAYER = re.compile(r"(?:.*\.)?layers\.\d+\.")


def captured_operators(workload: Workload, parts: Sequence[str]) -> dict[int, float]:
    """Return the captured operators of a step: their ids, and the graphs that start with them (0 or 1).

    parts: of :data:`trine.software.profile.GRAPHS`. Adjacent operators of one layer and pass are one graph. A graph of
    the whole step has no launch in the passes.
    """
    found: dict[int, float] = {}
    if not parts:
        return found
    pattern = re.compile("|".join(_NAMES[part] for part in parts if part != STEP))
    before = None
    for op in workload.operators:
        if op.phase == OPTIMIZER:
            continue
        if STEP in parts:
            found[op.id] = 0.0
            continue
        place = _place(op, pattern)
        if place is not None:
            found[op.id] = 0.0 if place == before else 1.0
        before = place
    return found


def _place(op: Operator, pattern: re.Pattern[str]) -> tuple[str, str] | None:
    """Return the layer and the phase of a captured operator; None if it is not captured."""
    layer = _LAYER.match(op.layer)
    if layer is None or not pattern.match(op.layer, layer.end()):
        return None
    return layer[0], op.phase
