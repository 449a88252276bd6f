"""Is a deadlock detected when polls are far enough apart to be queued in the heap instead of the timing wheel?"""

from __future__ import annotations

import pytest
from gpu_cases import NS, Programmer, case, small_model

from trine.errors import DeadlockError
from trine.gpu.run import GpuRunControl, simulate_system


def waiting(poll_ps):
    """Return a case with one rank and two workgroups that each acquire a semaphore nobody releases."""
    programmer = Programmer(1, num_semaphores=2)
    programmer.kernel(0, wavefronts=1)
    for semaphore in range(2):
        programmer.workgroup()
        programmer.acquire(0, semaphore)
    return case(programmer.build(), small_model(poll_ps=poll_ps), num_gpus=2)


@pytest.mark.parametrize("engine", ["compiled", "reference"])
@pytest.mark.parametrize("poll_ps", [100 * NS, 4000 * NS, 8128 * NS, 50_000 * NS])
def test_nobody_asks_for_ever(engine, poll_ps):
    with pytest.raises(DeadlockError, match="acquire"):
        waiting(poll_ps).simulate(engine)


@pytest.mark.parametrize("poll_ps", [100 * NS, 8128 * NS])
def test_in_place_of_the_error_the_run_can_stop(poll_ps):
    outcome = simulate_system(waiting(poll_ps).system(), GpuRunControl(), stop_when_stuck=True)
    assert not outcome.finished
    assert (outcome.gpu.op_end_ps < 0).all()
