"""Are the tasks of a run listed by their start, with those that start at once, and without those that did not run?"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from trine.folding.lists import Times, Track
from trine.folding.shifts import TasksByStart


def test_a_task_that_starts_at_once_has_run_and_one_without_a_start_has_not() -> None:
    lists = SimpleNamespace(
        tasks=np.arange(3), keys=np.arange(3), passes=np.array([1]), of_task=np.zeros(3, int), begin=np.array([0]),
        sequence=np.array([0]), microbatch=np.array([0]), num_keys=3, first_key=np.array([0]),
    )  # fmt: skip
    start, end = np.array([0, 5, -1]), np.array([5, 9, -1])
    times = Times(**{name: end if name == "end" else start for name in Times._fields})
    tasks = TasksByStart.of([Track(lists, times)])  # type: ignore[arg-type]
    assert tasks.start.tolist() == [0, 5]
    assert tasks.end.tolist() == [5, 9]
    assert tasks.latest_end.tolist() == [5, 9]
    assert tasks.key.tolist() == [0, 1]
    assert tasks.entries.start.tolist() == [0, 5, -1]
