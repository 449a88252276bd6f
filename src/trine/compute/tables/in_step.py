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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trine.arrays import Float64
from trine.cluster.presets import GpuSpec
from trine.compute.tables.files import read_arrays
from trine.compute.tables.kriging import kriged, nearest_few
from trine.compute.tables.machine import generation_of, peak_of

#: The three products of a linear layer: result, gradient of the input, gradient of the weight.
FORWARD_PRODUCT, INPUT_PRODUCT, WEIGHT_PRODUCT = range(3)
#: Generations -> the GPU whose in-step measurements stand for them. Others take those of A100 PCIe.
_OF = {"blackwell": "b200", "hopper": "b200"}
_DEFAULT = "a100-pcie-80gb"
MEASURED_IN_STEP = ("a100-pcie-80gb", "b200")
_OCTAVES, _NUGGET, _NEIGHBOURS = 8.0, 0.1, 16
#: What of a product's time is launch and start, and no slower in a step.
LAUNCH_US = 2.0
#: Microseconds of (rows, columns) shapes alone.
Alone = Callable[[Float64], Float64]


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


def in_step_ratios(spec: GpuSpec, products_us: Alone, attentions_us: Alone) -> Mapping[str, Float64]:
    """The arrays that :func:`load_in_step` reads, from the shares of the peak measured on ``spec`` and times alone."""
    return {
        f"{spec.name}/gemm_logs": _product_logs(spec, products_us),
        f"{spec.name}/groups": _group_ratios(spec, products_us),
        f"{spec.name}/attention_curve": _attention_curve(spec, attentions_us),
    }


def _product_logs(spec: GpuSpec, alone_us: Alone) -> Float64:
    rows = np.asarray(read_arrays("in_step")[f"{spec.name}/gemm"], dtype=float)
    shapes = rows[:, 1:4]
    took = 2e6 * shapes.prod(axis=1) / (rows[:, 4] / 1e4 * peak_of(spec, "bfloat16"))
    ratios = np.maximum(took - LAUNCH_US, 1.0) / np.maximum(alone_us(shapes) - LAUNCH_US, 1.0)
    return np.asarray(np.log(ratios))


def _group_ratios(spec: GpuSpec, alone_us: Alone) -> Float64:
    rows = np.asarray(read_arrays("in_step")[f"{spec.name}/grouped"], dtype=float)
    groups, shapes = rows[:, 1], rows[:, 2:5]
    took = 2e6 * groups * shapes.prod(axis=1) / (rows[:, 5] / 1e4 * peak_of(spec, "bfloat16"))
    ratios = took / (groups * np.maximum(alone_us(shapes) - LAUNCH_US, 1.0))
    return np.array([np.median(ratios[rows[:, 0] == product]) for product in range(3)])


def _attention_curve(spec: GpuSpec, alone_us: Alone) -> Float64:
    """(blocks, 3). SimuMax counts FLOPs of whole scores, masked or not, and backward 2.5 x those forward."""
    rows = np.asarray(read_arrays("in_step")[f"{spec.name}/attention"], dtype=float)
    rows = rows[rows[:, 4] == rows[:, 5]]
    forward, backward = (rows[rows[:, 6] == way] for way in (0, 1))
    batch, length, heads, kv_heads, size = forward[:, :5].T
    shapes = np.stack([size, np.zeros_like(size), heads, kv_heads, batch, length], axis=1)
    took = 4e6 * batch * heads * length**2 * size / (forward[:, 7] / 1e4 * peak_of(spec, "bfloat16"))
    blocks = np.round(np.log2(batch * heads * np.ceil(length / 128) / spec.num_compute_units), 3)
    ratios = took / alone_us(shapes), 2.5 * forward[:, 7] / backward[:, 7]
    steps = np.unique(blocks)
    means = [[np.median(ratio[blocks == step]) for step in steps] for ratio in ratios]
    return np.column_stack([steps, *means])
