"""Cross-validation of the tables: five-fold over shapes, and over whole held-out GPUs.

Each function returns predicted and measured microseconds. The fold of a shape is the SHA-256 hash of its text, as a
number, modulo 5. The text is ``m,n,k`` of a GEMM, ``batch,length,heads,kv_heads,head_size,window`` of attention, in
decimal digits, or ``shape_text`` of files.py. The fold of a shape is the same on every GPU and for all its
rows, across frameworks and kernels. ``every``: predict only every n-th shape of each fold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from trine.cluster.presets import load_gpu
from trine.common.arrays import Float64, Int64
from trine.compute.tables.attention import load_attention
from trine.compute.tables.convolutions import bench, bench_rows
from trine.compute.tables.fp32 import asked, surface
from trine.compute.tables.fp32_files import FOLDS, NEUSIGHT, fold_of, folds, measured
from trine.compute.tables.gemm import GemmTable, load_gemm
from trine.compute.tables.machine import Machine, sustained_ratio

Times = tuple[Float64, Float64]
#: (held-out GPU, GPU whose tables predict it, relation of the two).
GPUS_LEFT_OUT = (
    ("h200", "h100-sxm", "same generation"), ("h100-sxm", "h200", "same generation"),
    ("gb300", "b300", "same generation"), ("b300", "gb300", "same generation"),
    ("h100-sxm", "a100-80gb", "next generation"), ("h200", "a100-80gb", "next generation"),
    ("b300", "h200", "next generation"), ("gb300", "h200", "next generation"),
    ("l40s", "rtx-pro-6000", "one rate"), ("rtx-pro-6000", "l40s", "one rate"),
)  # fmt: skip
_LARGE = (1024, 1024, 512)


def _by_folds(fold: Int64, every: int, predict: Callable[[int, Int64], Float64]) -> tuple[Int64, Float64]:
    """Return the rows, fold after fold, and the prediction of each fold's rows from the other folds."""
    rows = [np.flatnonzero(fold == number)[::every] for number in range(FOLDS)]
    return np.concatenate(rows), np.concatenate([predict(number, part) for number, part in enumerate(rows)])


def _folds_of(shapes: Int64) -> Int64:
    return np.array([fold_of(",".join(map(str, row))) for row in shapes.tolist()])


# -- GEMMs and attention -----------------------------------------------------------------------------------------------


def gemm_shapes_left_out(gpu: str, dtype: str, *, every: int = 1) -> Times:
    """Return the five-fold prediction of the measured GEMMs of one GPU and dtype."""
    table = _gemm(gpu, dtype)
    cells, shapes = _products(table)
    fold = _folds_of(shapes)

    def predict(number: int, rows: Int64) -> Float64:
        hidden = np.zeros(table.times.shape, dtype=bool)
        hidden[tuple(cells[fold == number].T)] = True
        return table.without(hidden).estimate_us(shapes[rows].astype(float))

    rows, predicted = _by_folds(fold, every, predict)
    return predicted, np.exp(table.times[tuple(cells[rows].T)])


def attention_shapes_left_out(gpu: str, *, every: int = 1) -> Times:
    """Return the five-fold prediction of the measured forward attention of one GPU."""
    table = load_attention(gpu, Machine.of(load_gpu(gpu), "bfloat16"))
    assert table is not None
    fold = _folds_of(table.shapes[:, [4, 5, 2, 3, 0, 1]])
    rows, predicted = _by_folds(
        fold, every, lambda number, rows: table.without(fold == number).estimate_us(table.shapes[rows].astype(float))
    )
    return predicted, np.exp(table.times[rows])


def gemm_gpu_left_out(gpu: str, source: str, basis: str, *, dtype: str = "bfloat16", every: int = 1) -> Times:
    """Predict a GPU's large GEMMs from another GPU's table; with ``basis`` 'one rate', its sustained rate is known."""
    table, source_table = _gemm(gpu, dtype), _gemm(source, dtype)
    cells, shapes = _products(table)
    large = (shapes >= np.array(_LARGE)).all(axis=1)
    cells, shapes = cells[large][::every], shapes[large][::every]
    spec, donor = load_gpu(gpu), load_gpu(source)
    ratio = sustained_ratio(spec, donor, dtype) if basis != "one rate" else _rate(table, source_table)
    predicted = source_table.estimate_us(shapes.astype(float), Machine.of(spec, dtype, ratio, source))
    return predicted, np.exp(table.times[tuple(cells.T)])


def _rate(table: GemmTable, source_table: GemmTable) -> float:
    """Return the fraction of peak in one 8192-cubed GEMM relative to the source GPU: one measurement of each."""
    shape = (8192, 8192, 8192)
    peaks = table.measured(*shape), source_table.measured(*shape)
    return (peaks[1] or 1.0) / (peaks[0] or 1.0) * source_table.flop_per_s / table.flop_per_s


def _gemm(gpu: str, dtype: str) -> GemmTable:
    table = load_gemm(gpu, dtype, Machine.of(load_gpu(gpu), dtype))
    assert table is not None
    return table


def _products(table: GemmTable) -> tuple[Int64, Int64]:
    """Return the table indices of the measured GEMMs, and their shapes."""
    cells = np.argwhere(~np.isnan(table.times))
    return cells, np.stack([axis[cells[:, i]] for i, axis in enumerate(table.axes)], axis=1)


# -- operators in float32 ----------------------------------------------------------------------------------------------


@cache
def asked_rows(table: str, every: int) -> Int64:
    """Return the rows of a table to predict, in ascending order."""
    fold = folds(NEUSIGHT, table)
    return np.sort(np.concatenate([np.flatnonzero(fold == number)[::every] for number in range(FOLDS)]))


@cache
def left_out_us(gpu: str, table: str, every: int = 1) -> Times:
    """Return the five-fold prediction of :func:`asked_rows`, launch included; unmeasured times are NaN."""
    rows = measured(NEUSIGHT, table)
    chosen, predicted = _by_folds(
        folds(NEUSIGHT, table), every, lambda number, part: surface(gpu, table, without=number).us(rows.shapes[part])[0]
    )
    return predicted[np.argsort(chosen)], rows.times_us[gpu][np.sort(chosen)]


def from_another_us(gpu: str, source: str, table: str, every: int = 1) -> Times:
    """Predict ``gpu`` without its table: the source's kernel times scaled by the data-sheet ratio."""
    rows, chosen = measured(NEUSIGHT, table), asked_rows(table, every)
    chosen = chosen[np.isfinite(rows.times_us[gpu][chosen])]
    known, shapes = surface(source, table), rows.shapes[chosen]
    demand, target, donor = asked(table, shapes, 1), load_gpu(gpu), load_gpu(source)
    least = [
        np.maximum(demand.flops / spec.flop_per_s["float32"], demand.bytes / spec.memory_bytes_per_s)
        for spec in (target, donor)
    ]
    kernels = known.us(shapes)[0] - known.launch_us
    return known.launch_us + kernels * least[0] / least[1], rows.times_us[gpu][chosen]


def bench_left_out_us(gpu: str, dtype: str, direction: int) -> Times:
    """Predict DeepBench's convolutions, each fifth of the rows (by number modulo 5) from the others."""
    layers, actual = bench_rows(gpu, dtype, direction)
    predicted = np.zeros(len(layers))
    for number in range(FOLDS if len(layers) >= FOLDS else 0):
        part = range(number, len(layers), FOLDS)
        predicted[number::FOLDS] = bench(gpu, dtype, direction, number).us([layers[i] for i in part])
    return predicted, actual
