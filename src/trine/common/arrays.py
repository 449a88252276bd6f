"""Names of array types, and helpers for consecutive rows of unequal lengths (CSR).

``ptr``, int64[rows + 1], holds the start of each row and the end of the last.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

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
_Value = TypeVar("_Value", bound=np.generic)


def pointers(lengths: _Whole | Bool | list[int]) -> Int64:
    """Return ``ptr`` for rows of these lengths."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def distinct(values: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
    """Return the distinct values, ascending: those of ``np.unique``, whose first call imports all of ``numpy.ma``."""
    ordered = np.sort(values, axis=None)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


class CodeCounts(NamedTuple):
    """Small numbers that occur in an array, ascending: int64[values]; ``place``: of each entry, int32[entries].

    first: int64[values], the first entry of each. times: int64[values], the number of its entries.
    """

    values: Int64
    place: Int32
    first: Int64
    times: Int64


def counted_codes(codes: _Whole) -> CodeCounts:
    """Count small numbers (at least 0): as ``np.unique``, without sorting. Takes memory for the largest number."""
    count = np.bincount(codes)
    values = np.flatnonzero(count)
    place_of = np.empty(len(count), np.int32)
    place_of[values] = np.arange(len(values), dtype=np.int32)
    place = place_of[codes]
    first = np.empty(len(values), np.int64)
    first[place[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return CodeCounts(values, place, first, count[values])


def row_of(ptr: Int64) -> Int64:
    """Return the row of each entry."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def row_sums(values: _Whole | Bool, ptr: Int64) -> Int64:
    """Return the sum of each row's entries."""
    return np.diff(pointers(values)[ptr])


def spans(firsts: _Whole | int, lengths: _Whole) -> Int64:
    """Return the concatenated ranges of ``lengths[i]`` consecutive numbers from ``firsts[i]``."""
    return np.repeat(firsts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())


def members(ptr: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """Return the entry indices of some rows, in the order of ``rows``, and the ``ptr`` of these rows alone."""
    lengths = ptr[rows + 1] - ptr[rows]
    return spans(ptr[rows], lengths), pointers(lengths)
