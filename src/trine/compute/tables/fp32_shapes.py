"""What a shape asks of a GPU, table by table: FLOPs, bytes, and the variables in which its time is smooth.

Time is a staircase in tiles and waves, so that sizes alone do not tell it: their logarithms stand beside the waves of
128 x 128 tiles over the compute units, and the FLOPs a byte. Of a 3 x 3 convolution, the part of the 4 x 4 tiles of
Winograd's algorithm that lies outside of the image matters too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.arrays import Float64, Int64
from trine.compute.tables.fp32_rows import BINARY, ELEMENTWISE

_TILE = 128
#: Operators that are not bound by memory on every GPU.
_SLOW = np.array([float(name in ("pow", "powu")) for name in ELEMENTWISE])
_STREAMS = np.array([3.0 if name in BINARY else 2.0 for name in ELEMENTWISE])
#: Passes over memory of operators on rows: read once, written once.
_ROWS = 2.0


class Asked(NamedTuple):
    """Of each shape: FLOPs of products (a multiply-add is two), bytes to and from memory, variables (shapes x d)."""

    flops: Float64
    bytes: Float64
    variables: Float64


def asked(table: str, shapes: Int64, compute_units: int) -> Asked:
    """What ``shapes`` (n x columns, as the table has them) ask of a GPU with so many compute units."""
    columns = shapes.astype(np.float64).T
    if table == "bmm":
        return _products(*columns, compute_units=compute_units)
    if table == "linear":
        return _products(np.ones(len(shapes)), *columns, compute_units=compute_units)
    if table == "conv":
        return _convolutions(columns, compute_units)
    rows, width = columns[-2:]
    streams, slow = _ROWS * np.ones(len(shapes)), np.zeros(len(shapes))
    if table == "elementwise":
        streams, slow = _STREAMS[shapes[:, 0]], 4 * _SLOW[shapes[:, 0]]
    num_bytes = 4 * streams * rows * width
    return Asked(np.zeros(len(shapes)), num_bytes, np.stack([np.log(rows), np.log(width), 2 * streams, slow], axis=1))


def _products(batch: Float64, m: Float64, n: Float64, k: Float64, *, compute_units: int) -> Asked:
    """``batch`` products of m x k and k x n matrices."""
    flops, num_bytes = 2 * batch * m * n * k, 4 * batch * (m * k + k * n + m * n)
    sizes = [np.log(size) for size in (batch, m, n, k)]
    return Asked(
        flops, num_bytes, np.stack([*sizes, *_filling(batch, m, n, compute_units), _ratio(flops, num_bytes)], 1)
    )


def _convolutions(columns: Float64, compute_units: int) -> Asked:
    """Batch, channels, channels of the output, size of the filter, of the image, stride, padding: all square."""
    batch, channels, out, filters, size, stride, padding = columns
    across = np.floor((size + 2 * padding - filters) / stride) + 1
    positions = batch * across**2
    flops = 2 * positions * out * channels * filters**2
    num_bytes = 4 * (batch * channels * size**2 + out * channels * filters**2 + positions * out)
    wasted = 2 * (across / (4 * np.ceil(across / 4))) ** 2
    sizes = [np.log(size) for size in (batch, channels, out, across)]
    filling = _filling(np.ones_like(out), positions, out, compute_units)
    return Asked(flops, num_bytes, np.stack([*sizes, *filling, _ratio(flops, num_bytes), wasted], axis=1))


def _filling(batch: Float64, m: Float64, n: Float64, compute_units: int) -> list[Float64]:
    """Logarithm of the waves of tiles; below a fifth of a wave there is one tile for each of a few units."""
    waves = batch * np.ceil(m / _TILE) * np.ceil(n / _TILE) / compute_units
    return [0.5 * np.log(np.maximum(waves, 0.2))]


def _ratio(flops: Float64, num_bytes: Float64) -> Float64:
    found: Float64 = np.log(flops / num_bytes)
    return found
