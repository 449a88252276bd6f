"""What the float32 tables say of shapes that they were not given: each shape predicted from the other four folds.

The fold of a shape is the SHA-256 hash of its text, as a number, modulo 5 (``shape_text`` of fp32_rows.py). It is the
same on every GPU: a shape that is left out of one GPU's table is left out of all.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from trine.arrays import Float64, Int64
from trine.cluster.presets import load_gpu
from trine.compute.tables.convolutions import bench, bench_rows
from trine.compute.tables.fp32_rows import FOLDS, NEUSIGHT, folds, measured
from trine.compute.tables.fp32_shapes import asked
from trine.compute.tables.fp32_surface import surface


@cache
def asked_rows(table: str, every: int) -> Int64:
    """Rows of a table that are predicted: of each fold each ``every``-th."""
    fold = folds(NEUSIGHT, table)
    return np.sort(np.concatenate([np.flatnonzero(fold == number)[::every] for number in range(FOLDS)]))


@cache
def left_out_us(gpu: str, table: str, every: int = 1) -> tuple[Float64, Float64]:
    """Predicted and measured microseconds of :func:`asked_rows`, launch included; NaN where nothing was measured."""
    rows, fold, chosen = measured(NEUSIGHT, table), folds(NEUSIGHT, table), asked_rows(table, every)
    actual = rows.times_us[gpu][chosen]
    predicted = np.full(len(chosen), np.nan)
    for number in range(FOLDS):
        mine = fold[chosen] == number
        predicted[mine] = surface(gpu, table, without=number).us(rows.shapes[chosen[mine]])[0]
    return predicted, actual


def from_another_us(gpu: str, source: str, table: str, every: int = 1) -> tuple[Float64, Float64]:
    """Times of ``gpu`` without its table, the source's kernels by the ratio of data sheets; and the measured ones."""
    rows, chosen = measured(NEUSIGHT, table), asked_rows(table, every)
    chosen = chosen[np.isfinite(rows.times_us[gpu][chosen])]
    known, shapes = surface(source, table), rows.shapes[chosen]
    ask, here, there = asked(table, shapes, 1), load_gpu(gpu), load_gpu(source)
    least = [
        np.maximum(ask.flops / spec.flop_per_s["float32"], ask.bytes / spec.memory_bytes_per_s)
        for spec in (here, there)
    ]
    kernels = known.us(shapes)[0] - known.launch_us
    return known.launch_us + kernels * least[0] / least[1], rows.times_us[gpu][chosen]


def bench_left_out_us(gpu: str, dtype: str, direction: int) -> tuple[Float64, Float64]:
    """The same of DeepBench's convolutions, each fifth of the rows (by number modulo 5) from the others."""
    layers, actual = bench_rows(gpu, dtype, direction)
    predicted = np.zeros(len(layers))
    for number in range(FOLDS if len(layers) >= FOLDS else 0):
        mine = range(number, len(layers), FOLDS)
        predicted[number::FOLDS] = bench(gpu, dtype, direction, number).us([layers[i] for i in mine])
    return predicted, actual
