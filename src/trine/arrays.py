"""Names of array types, and rows of unequal lengths that lie behind each other (CSR).

``ptr``, int64[rows + 1], says where each row begins, and where the last ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Int8 = npt.NDArray[np.int8]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Float64 = npt.NDArray[np.float64]

_Whole = npt.NDArray[np.integer]


def pointers(lengths: _Whole | Bool | list[int]) -> Int64:
    """``ptr`` of rows of these lengths."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def row_of(ptr: Int64) -> Int64:
    """The row of each entry."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def row_sums(values: _Whole | Bool, ptr: Int64) -> Int64:
    """The sum of the entries of each row."""
    return np.diff(pointers(values)[ptr])


def spans(firsts: _Whole | int, lengths: _Whole) -> Int64:
    """The numbers from each of ``firsts`` on, as many as ``lengths`` says, behind each other."""
    return np.repeat(firsts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
