"""Slowdown of operators inside a training step, relative to the same operator alone.

A GEMM measured alone has its operands in the cache and runs on a cool GPU. In a step it follows other kernels, its
clock is limited by power, and a weight gradient is accumulated in float32. SimuMax publishes the achieved performance
of training shapes on B200 and A100 PCIe (in_step.npz). On those two GPUs, trine kriges the ratio to the tables' time
of the same shape over the shape; other GPUs of a generation use the median (assumption: an A100 SXM module reaches
the same share of its peak as the PCIe card). GPUs with known clocks (Hopper) use no ratio: the clock of the step
decides (trine.compute.clock), and only the part that float32 accumulation adds to a weight gradient applies. No ratio
is fitted to step times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trine.common.arrays import Float64
from trine.compute.tables.files import read_arrays
from trine.compute.tables.gemm import OCTAVES
from trine.compute.tables.kriging import kriged, nearest_few
from trine.compute.tables.machine import generation_of

#: The three products of a linear layer: result, gradient of the input, gradient of the weight.
FORWARD_PRODUCT, INPUT_PRODUCT, WEIGHT_PRODUCT = range(3)
#: GPU whose in-step measurements each generation uses; other generations use A100 PCIe. Of B200's, Hopper uses the
#: float32 accumulation, the grouped over single GEMMs, and attention's backward over forward.
_OF = {"blackwell": "b200", "hopper": "b200"}
_DEFAULT = "a100-pcie-80gb"
MEASURED_IN_STEP = ("a100-pcie-80gb", "b200")
_STEP_NUGGET, _STEP_NEIGHBOURS = 0.1, 16
#: Time of one MXFP8 kernel for all experts over single GEMMs of the tables, for the three products of a linear layer.
#: Kernels for DeepSeek-V3's experts on a B200 (8 experts, 16,384 tokens each, 2,048 x 7,168) take 1,838, 1,838 and
#: 2,412 us without casts (pytorch/ao at 0b1bb11, torchao/prototype/moe_training/README.md, "MXFP8 Kernel Breakdown by
#: Pass"), 8 single GEMMs of the tables 1,533, 1,396 and 1,437 us. Forward kernels of other shapes take 1.00 to 1.24
#: times as long as single ones (pytorch/pytorch pull request 174699). InStep.groups is for one launch per expert.
ONE_KERNEL = 1.20, 1.32, 1.68
#: Launch and start-up part of a GEMM's time, which is no slower in a step.
LAUNCH_US = 2.0


def in_step_source(gpu: str) -> str:
    """Return the GPU whose in-step measurements apply to ``gpu``."""
    return gpu if gpu in MEASURED_IN_STEP else _OF.get(generation_of(gpu), _DEFAULT)


@dataclass(frozen=True)
class InStep:
    """Ratios of in-step time to time alone, for one GPU.

    points: log2 of (m, n, k) of the measured GEMMs; logs: logarithms of their ratios; both for each of three products.
    groups: ratios of a grouped GEMM to the same number of single GEMMs. blocks, forward, backward: attention ratios by
    log2 of query blocks per compute unit: in-step time over the table's time, and backward over forward.
    """

    gpu: str
    points: tuple[Float64, ...]
    logs: tuple[Float64, ...]
    groups: tuple[float, ...]
    blocks: Float64
    forward: Float64
    backward: Float64

    @property
    def accumulation(self) -> float:
        """Time of a weight gradient accumulated in float32 over an input gradient's, medians."""
        return self.product(WEIGHT_PRODUCT) / self.product(INPUT_PRODUCT)

    def product(self, product: int, shape: tuple[float, float, float] | None = None) -> float:
        """Return in-step time over time alone, at ``shape`` (m, n, k) for a measured GPU; without it, the median."""
        points, logs = self.points[product], self.logs[product]
        if shape is None:
            return math.exp(sorted(logs.tolist())[len(logs) // 2])
        query = np.log2(np.maximum(np.array([shape], float), 1.0))
        nearest = nearest_few(((points - query) ** 2).sum(-1)[None, :], _STEP_NEIGHBOURS)
        return math.exp(float(kriged(points[nearest] / OCTAVES, logs[nearest], query / OCTAVES, _STEP_NUGGET)[0]))

    def attention(self, blocks: float) -> tuple[float, float]:
        """Return the forward and backward ratio at ``blocks`` per compute unit, constant beyond the measured range."""
        x = math.log2(max(blocks, 1e-3))
        return float(np.interp(x, self.blocks, self.forward)), float(np.interp(x, self.blocks, self.backward))


@lru_cache(maxsize=8)
def load_in_step(gpu: str) -> InStep:
    """Load the ratios of a GPU in MEASURED_IN_STEP."""
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
