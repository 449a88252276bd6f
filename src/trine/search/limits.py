"""Limits that need no search: the least memory of a model's weights, however its layout divides them."""

from __future__ import annotations

from trine.common.units import format_bytes
from trine.errors import PlanError
from trine.graph.workload import Workload


def weight_bytes(workload: Workload) -> int:
    """Return the bytes of all weights of a model, each storage once."""
    sizes = {tensor.storage: tensor.size_bytes for tensor in workload.tensors.values() if tensor.role == "weight"}
    return sum(sizes.values())


def check_weights(workload: Workload, gpus: int, capacity_bytes: int, with_gradients: bool) -> None:
    """Raise PlanError, with the number of GPUs, if all of them together cannot hold the model.

    with_gradients: no layout moves gradients to the host; a gradient takes at least the bytes of its weight.
    capacity_bytes: memory of a GPU, 0 if it is unknown.
    """
    weights = weight_bytes(workload)
    least = weights * (2 if with_gradients else 1)
    if not capacity_bytes or least <= gpus * capacity_bytes:
        return
    parts = "weights and gradients" if with_gradients else "weights"
    needed = -(-least // capacity_bytes)
    raise PlanError(
        f"no layout is valid: the {parts} take {format_bytes(least)}, and {gpus:,} GPUs have "
        f"{format_bytes(gpus * capacity_bytes)}; they need at least {needed:,} GPUs, and a training step needs more"
    )
