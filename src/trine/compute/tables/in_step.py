"""How much slower operators are inside a training step than alone.

Alone, a product runs on operands that the cache holds and on a chip that has rested; in a step it follows others, at
the clock that the power limit leaves, and the gradient of a weight is added to one in float32. SimuMax publishes what
its GPUs reached in training shapes on B200 and on A100 PCIe (in_step.npz). The ratio to what the tables say of the same
shape alone is kriged over the shape on those two, and its median is used on the others of a generation (an A100 module
is taken to reach the share of the peak that the card reached); Hopper, at its power limit too, takes B200's. Nothing of
this is fitted on the time of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trine.arrays import Float64
from trine.compute.tables.files import read_arrays
from trine.compute.tables.kriging import kriged, nearest_few
from trine.compute.tables.machine import generation_of

#: The three products of a linear layer: result, gradient of the input, gradient of the weight.
FORWARD_PRODUCT, INPUT_PRODUCT, WEIGHT_PRODUCT = range(3)
#: Generations -> the GPU whose in-step measurements stand for them. Others take those of A100 PCIe.
_OF = {"blackwell": "b200", "hopper": "b200"}
_DEFAULT = "a100-pcie-80gb"
MEASURED_IN_STEP = ("a100-pcie-80gb", "b200")
_OCTAVES, _NUGGET, _NEIGHBOURS = 8.0, 0.1, 16
#: What of a product's time is launch and start, and no slower in a step.
LAUNCH_US = 2.0


def in_step_source(gpu: str) -> str:
    """The GPU whose measurements inside steps are used for ``gpu``."""
    return gpu if gpu in MEASURED_IN_STEP else _OF.get(generation_of(gpu), _DEFAULT)


@dataclass(frozen=True)
class InStep:
    """Ratios of times in a step to times alone, as one GPU has them.

    points: log2 of (m, n, k) of products measured; logs: logarithms of their ratios, both for each of three products.
    groups: of grouped products, to as many single ones. blocks, forward, backward: of attention by log2 of blocks of
    queries a compute unit: time in a step over the table's, and backward over forward.
    """

    gpu: str
    points: tuple[Float64, ...]
    logs: tuple[Float64, ...]
    groups: tuple[float, ...]
    blocks: Float64
    forward: Float64
    backward: Float64

    def product(self, product: int, shape: tuple[float, float, float] | None = None) -> float:
        """Time in a step over time alone; at ``shape`` (m, n, k) where the GPU itself was measured, else the median."""
        points, logs = self.points[product], self.logs[product]
        if shape is None:
            return math.exp(sorted(logs.tolist())[len(logs) // 2])
        query = np.log2(np.maximum(np.array([shape], float), 1.0))
        few = nearest_few(((points - query) ** 2).sum(-1)[None, :], _NEIGHBOURS)
        return math.exp(float(kriged(points[few] / _OCTAVES, logs[few], query / _OCTAVES, _NUGGET)[0]))

    def attention(self, blocks: float) -> tuple[float, float]:
        """Forward and backward ratio at so many blocks a compute unit; those of the ends beyond them."""
        x = math.log2(max(blocks, 1e-3))
        return float(np.interp(x, self.blocks, self.forward)), float(np.interp(x, self.blocks, self.backward))


@lru_cache(maxsize=8)
def load_in_step(gpu: str) -> InStep:
    """The ratios of one of MEASURED_IN_STEP."""
    arrays = read_arrays("in_step")
    rows, logs = (np.asarray(arrays[f"{gpu}/{name}"], dtype=float) for name in ("gemm", "gemm_logs"))
    parts = [rows[:, 0] == product for product in range(3)]
    curve = np.asarray(arrays[f"{gpu}/attention_curve"], dtype=float)
    return InStep(
        gpu=gpu,
        points=tuple(np.log2(rows[part, 1:4]) for part in parts),
        logs=tuple(logs[part] for part in parts),
        groups=tuple(np.asarray(arrays[f"{gpu}/groups"], dtype=float).tolist()),
        blocks=curve[:, 0], forward=curve[:, 1], backward=curve[:, 2],
    )  # fmt: skip
