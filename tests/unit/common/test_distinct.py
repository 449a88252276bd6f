"""Distinct values: those of ``np.unique``, without the import of ``numpy.ma`` that its first call makes."""

import subprocess
import sys

import numpy as np
import pytest

from trine.common.arrays import counted_codes, distinct


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int32, np.int64, np.uint64])
def test_values_and_type_are_those_of_numpy(size, dtype):
    values = np.random.default_rng(size).integers(0, 50, size).astype(dtype)
    found, wanted = distinct(values), np.unique(values)
    assert found.dtype == wanted.dtype
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_counted_codes_are_those_of_numpy(size, dtype):
    codes = np.random.default_rng(size).integers(0, 50, size).astype(dtype)
    found = counted_codes(codes)
    values, first, place, count = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    assert found.values.tolist() == values.tolist()
    assert found.first.tolist() == first.tolist()
    assert found.place.tolist() == place.tolist()
    assert found.times.tolist() == count.tolist()


def test_rows_of_a_table_count_as_one_list():
    assert distinct(np.array([[3, 1], [1, 2]])).tolist() == [1, 2, 3]


def test_a_small_collective_does_not_import_masked_arrays():
    code = (
        "import sys, trine; trine.collective('all_reduce', [1024], 'dgx-h100'); "
        "print(sorted(name for name in sys.modules if name.startswith('numpy.ma.')))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
