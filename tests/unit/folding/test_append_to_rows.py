"""Does ``append_to_rows`` add predecessors to the right tasks, in order?"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trine.common.arrays import pointers
from trine.folding.quotient import append_to_rows

NUMBER = st.integers(0, 99)


@given(st.lists(st.lists(NUMBER, max_size=3), min_size=1, max_size=6), st.data())
def test_each_row_gets_its_values_at_its_end(rows: list[list[int]], data: st.DataObject) -> None:
    added = data.draw(st.lists(st.tuples(st.integers(0, len(rows) - 1), NUMBER), max_size=8))
    values = np.array([value for row in rows for value in row], np.int32)
    to, appended = np.array(added, np.int64).reshape(-1, 2).T
    ptr, result = append_to_rows(pointers([len(row) for row in rows]), values, to, appended)
    for row, value in added:
        rows[row].append(value)
    assert [result[first:end].tolist() for first, end in pairwise(ptr)] == rows
    assert (ptr[0], ptr[-1], result.dtype) == (0, len(result), np.int32)


def test_empty_rows_that_start_at_one_place_keep_their_order() -> None:
    rows, appended = np.array([2, 1, 2]), np.array([7, 8, 9])
    ptr, values = append_to_rows(np.array([0, 1, 1, 1]), np.array([5], np.int32), rows, appended)
    assert ptr.tolist() == [0, 1, 2, 4]
    assert values.tolist() == [5, 8, 7, 9]
