"""Encoder of measured times for presets/operators; :mod:`trine.compute.tables.files` decodes them."""

from __future__ import annotations

import numpy as np

from trine.common.arrays import Float64
from trine.compute.tables.fp32_files import STEPS


def coded(times_us: Float64) -> np.ndarray:
    """Return times in us as logarithmic uint16 codes; 0 stays 0."""
    code = 1 + np.round(STEPS * np.log(np.maximum(times_us, 1.0)))
    return np.where(times_us > 0, code, 0).astype(np.uint16)


def planes(numbers: np.ndarray) -> np.ndarray:
    """Split integers into byte planes, least significant byte first: (bytes per integer, rows, columns)."""
    width = numbers.dtype.itemsize
    little = np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<")))
    return np.ascontiguousarray(np.moveaxis(little.view(np.uint8).reshape(*numbers.shape, width), -1, 0))
