"""The precisions of a model's weights that a GPU computes in."""

from __future__ import annotations

from trine.cluster.presets import GpuSpec
from trine.inference.precision import precision_name, served_precisions
from trine.workload.architecture.blocks import Mixture
from trine.workload.architecture.model import Architecture


def has_experts(model: Architecture) -> bool:
    """Return whether a layer of the model has routed experts."""
    return any(isinstance(layer.feed_forward, Mixture) for layer in model.layers)


def precisions_of(model: Architecture, gpu: GpuSpec, name: str) -> list[str]:
    """Return the precisions to try: ``name``, or without a name all that the GPU computes in.

    Weights are not widened: precisions with more bits than the stored weights are left out, and integers that are
    multiplied in 16 bits unless they are stored. Precisions of experts need experts. Raises InputError for an unknown
    name.
    """
    if name:
        return [precision_name(name, "")]
    known = served_precisions()
    stored = known[precision_name("", model.stored)]
    found = []
    for each, precision in known.items():
        if precision.on_request and precision != stored:
            continue
        is_useful = precision.dense or has_experts(model)
        if precision.is_computed_by(gpu) and is_useful and precision.weight_bits <= stored.weight_bits:
            found.append(each)
    return found
