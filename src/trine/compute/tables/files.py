"""Measured times that come with trine (presets/operators), read when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trine.inputs import PRESETS

FOLDER = PRESETS / "operators"
#: Entry of a grid where nothing was measured.
NONE = -32768
_SCALE = 1000.0


@cache
def known_tables() -> frozenset[str]:
    """GPUs with measurements of their own."""
    return frozenset(path.stem for path in FOLDER.glob("*.npz")) - {"memory", "in_step"}


@cache
def read_arrays(name: str) -> Mapping[str, NDArray[np.generic]]:
    """The arrays of one file, each unpacked when first looked at; nothing is unpickled."""
    return np.load(FOLDER / f"{name}.npz", allow_pickle=False)  # type: ignore[no-any-return]


def log_us(packed: NDArray[np.generic]) -> NDArray[np.float64]:
    """Natural logarithm of microseconds; NaN where nothing was measured."""
    found = np.asarray(packed, dtype=np.float64) / _SCALE
    found[np.asarray(packed) == NONE] = np.nan
    return found
