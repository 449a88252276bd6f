"""Micro-batches of a longer run, by hand: two steps, each with one window that is repeated twice more."""

from types import SimpleNamespace

import numpy as np

from trine.graph.program import Phase
from trine.results.repeats import Repeat, Repeats


def test_a_task_is_counted_on_by_the_repetitions_of_its_own_step():
    phases = frozenset({int(Phase.FORWARD)})
    repeats = Repeats(
        windows=(Repeat(10, 20, phases), Repeat(40, 50, phases)), count=2, repeated=(0,), micro_batches=4, simulated=2,
    )  # fmt: skip
    # in the longer run the first window ends at 20 + 2 x 10, the second at 50 + 4 x 10
    tasks = [(0, 0, 5, 0), (0, 1, 45, 3), (1, 0, 65, 0), (1, 1, 95, 3), (-1, -1, 95, -1)]
    steps, micro_batches, starts, expected = (np.array(column) for column in zip(*tasks, strict=True))
    phase = np.full(len(tasks), int(Phase.FORWARD))
    labels = SimpleNamespace(step=steps, microbatch=micro_batches, phase=phase)
    assert repeats.shown_microbatch(labels, starts).tolist() == expected.tolist()
    labels.phase = np.full(len(tasks), int(Phase.BACKWARD))
    assert repeats.shown_microbatch(labels, starts).tolist() == micro_batches.tolist()
