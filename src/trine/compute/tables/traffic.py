"""Memory traffic of PyTorch operators beyond their tensors.

Counted from the algorithm: batch norm in training reads x for the statistics and again to normalise; backward reads
x and dy twice each. It uses one block per channel, so that few channels leave compute units idle. 1.2 blocks per unit
fill the H100: in the bundled ResNet-50 trace, 64 channels move less than half the bytes per second of 256. Max
pooling writes an 8-byte index per output. Its backward walks over the windows of each input, which takes as long as
moving the gradient it writes 8 times: measured in the bundled traces of VGG-13 (7.8 times) and ResNet-50 (8.9).
"""

from __future__ import annotations

from trine.compute.cost import (
    elements,
    is_gradient,
)
from trine.compute.resize import Resized

#: Passes over a tensor of the data's size, relative to the passes that its tensors count: forward, backward.
_BATCH_NORM = (3 / 2, 5 / 3)
_BLOCKS_A_UNIT = 1.2
_INDEX_BYTES = 8
_POOL_BACKWARD = 8


def traffic(sizes: Resized, family: str, num_bytes: int, compute_units: int) -> float:
    """Return the ratio of the bytes an operator moves to ``num_bytes``, the size of its tensors; usually 1."""
    if family == "batch_norm" and sizes.inputs:
        shape = sizes.inputs[0].shape
        channels = shape[1] if len(shape) > 1 else 1
        return _BATCH_NORM[is_gradient(sizes)] * max(1.0, _BLOCKS_A_UNIT * compute_units / max(1, channels))
    if family == "max_pool" and sizes.outputs and num_bytes:
        if is_gradient(sizes):
            return _POOL_BACKWARD * sizes.outputs[0].size_bytes / num_bytes
        indices = sum(1 for tensor in sizes.outputs if "int" in tensor.dtype)
        return 1.0 if indices else 1 + _INDEX_BYTES * elements(sizes.outputs[0]) / num_bytes
    return 1.0
