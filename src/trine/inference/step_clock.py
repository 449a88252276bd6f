"""The clock of steps with many tokens, on GPUs whose power decides it (Hopper).

The tables of GEMMs and attention were measured in short runs on a cool GPU. A step that keeps the tensor cores busy
for longer draws the power limit, and the GPU lowers its clock with the time constant of its controller. Power, clocks
and time constant are those of training steps (:mod:`trine.compute.power`, docs/background/operator-time.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.cluster.presets import GpuSpec
from trine.common.arrays import Float64
from trine.compute.power import CLOCKED, StepLoad
from trine.compute.power_curve import CONTROL_S, PowerCurve, curve_of, has_tensor_clocks
from trine.compute.tables.machine import peak_of
from trine.inference.products import TOKENS

#: Fewest tokens of a step whose clock is computed: below, GEMMs wait for memory.
_FEWEST_TOKENS = 256
#: Share of the peak of a GEMM that nothing but its arithmetic limits (large GEMMs on H100).
_PEAK_SHARE = 0.74


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one step on one GPU at each of :data:`TOKENS`: microseconds of products and of all else, and FLOPs.

    dtype: of most products.
    """

    products_us: Float64
    others_us: Float64
    flops: Float64
    dtype: str


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Time over the tables' time at each of :data:`TOKENS`, of products and of attention of prompts."""

    products: Float64
    attention: Float64

    def attention_at(self, tokens: float) -> float:
        """Return the slowdown of attention of a prompt in a step of so many tokens."""
        return float(np.interp(tokens, TOKENS, self.attention))


NO_SLOWDOWN = Slowdown(np.ones(TOKENS.shape), np.ones(TOKENS.shape))


def slowdown_of(gpu: GpuSpec, work: StepWork) -> Slowdown:
    """Return the slowdown of a step; none on GPUs whose clocks in tables and steps are unknown."""
    if not has_tensor_clocks(gpu) or gpu.power_w is None:
        return NO_SLOWDOWN
    curve = curve_of(gpu)
    products, attention = np.ones(TOKENS.shape), np.ones(TOKENS.shape)
    for index in np.flatnonzero(TOKENS >= _FEWEST_TOKENS):
        busy_us, flops = work.products_us[index], work.flops[index]
        all_us = busy_us + work.others_us[index]
        bound_us = min(busy_us, 1e6 * flops / (_PEAK_SHARE * peak_of(gpu, work.dtype)))
        clock = _clock(curve, gpu.power_w, bound_us, all_us, flops, work.dtype)
        share = bound_us / busy_us
        products[index] = 1 + share * (curve.table_clock(work.dtype) / min(clock, curve.ceiling) - 1)
        attention[index] = 1 / clock
    return Slowdown(products, attention)


def _clock(curve: PowerCurve, limit_w: float, bound_us: float, all_us: float, flops: float, dtype: str) -> float:
    """Return the mean clock of a step, as a fraction of the maximum.

    It starts at the clock of GEMMs between other kernels, and approaches the clock that the power limit allows.
    """
    picojoules = curve.pj_per_flop.get(dtype, curve.pj_per_flop["bfloat16"])
    memory_s = 1e-6 * (all_us - bound_us)
    memory_j = curve.memory_w * memory_s
    load = StepLoad(
        compute_s=0.0, memory_s=memory_s, clocked_j=CLOCKED * memory_j, steady_j=(1 - CLOCKED) * memory_j,
        gemm_s=1e-6 * bound_us * curve.table_clock(dtype), gemm_j=1e-12 * flops * picojoules,
    )  # fmt: skip
    last = min(load.clock_at(curve, limit_w), curve.ceiling)
    waits = 1e-6 * all_us / CONTROL_S
    return last + (curve.ceiling - last) * (1 - float(np.exp(-waits))) / waits
