"""Works out how much longer operators take inside steps than alone, for presets/operators/in_step.npz."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trine.cluster.presets import GpuSpec
from trine.common.arrays import Float64
from trine.compute.tables.files import read_arrays
from trine.compute.tables.in_step import LAUNCH_US
from trine.compute.tables.machine import peak_of

#: Microseconds of (rows, columns) shapes alone.
Alone = Callable[[Float64], Float64]


def in_step_ratios(spec: GpuSpec, products_us: Alone, attentions_us: Alone) -> Mapping[str, Float64]:
    """Return the arrays that :func:`load_in_step` reads, from peak shares measured on ``spec`` and times alone."""
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
