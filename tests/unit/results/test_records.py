"""Are the records of the kernels laid out as they should be, compiled and uncompiled?"""

import os
import subprocess
import sys

import numpy as np
import pytest

from trine.common._records import new_records, record_dtype
from trine.engine import _state as engine_state
from trine.gpu import _state as gpu_state

RECORDS = [
    pytest.param(value, id=f"{module.__name__.split('.')[1]}-{name}")
    for module in (engine_state, gpu_state)
    for name, value in vars(module).items()
    if isinstance(value, np.dtype)
]


@pytest.mark.parametrize("dtype", RECORDS)
def test_no_field_is_called_like_an_attribute_of_a_record_of_numpy(dtype):
    """``record.size`` would be numpy's: only runs without a compiler would see it."""
    assert [name for name in dtype.names if hasattr(np.record, name)] == []


@pytest.mark.parametrize("dtype", RECORDS)
def test_records_fill_cache_lines_evenly(dtype):
    assert dtype.itemsize % 64 == 0 or 64 % dtype.itemsize == 0
    for kind, offset, *_ in dtype.fields.values():
        assert offset + kind.itemsize <= dtype.itemsize
        assert offset % kind.base.itemsize == 0
    assert new_records(3, dtype).ctypes.data % 64 == 0


def test_a_dma_of_a_replayed_gpu_is_the_same_as_request_and_as_flow():
    request, flow = gpu_state.REQUEST.fields, gpu_state.FLOW.fields
    shared = [("multimem", "task"), ("semaphore", "semaphore"), *((name, name) for name in gpu_state.EVENT.names)]
    assert [request[one] for one, _ in shared] == [flow[other] for _, other in shared]


def test_a_union_lies_where_the_other_field_lies():
    dtype = record_dtype(32, ("a", "i4"), ("b", "i8"), ("c", "f8", "b"), ("d", "2i4"))
    assert [dtype.fields[name][1] for name in "abcd"] == [0, 8, 8, 16]


def test_uncompiled_kernels_write_the_same_memory():
    code = """
import numpy as np
from trine.common._records import for_kernel, new_records, one_for_kernel, record_dtype
dtype = record_dtype(32, ("a", "i4"), ("b", "i8"), ("c", "f8", "b"), ("d", "2i4"), ("e", "i1"))
rows = new_records(2, dtype)
seen = one_for_kernel(rows)
assert type(seen[1]).__mro__[1].__name__ == "Structure"
seen[np.uint64(1)].a = np.int64(-7)
seen[1].c = np.float64(0.5)
seen[1].d[np.uint64(1)] += 3
seen[1].e = -1
assert rows["a"].tolist() == [0, -7] and rows["c"][1] == 0.5 and rows["d"][1].tolist() == [0, 3] and rows["e"][1] == -1
assert seen[1].b == rows["b"][1] == np.float64(0.5).view(np.int64)
"""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
