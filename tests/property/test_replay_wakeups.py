"""Is every wavefront that waits for a flag woken, in any order of writes and monitors?"""

import pytest
from gpu_cases import NS, Programmer, small_model
from gpu_replay import ENGINES, alone, writes
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.gpu.model import Monitor
from trine.gpu.peers import IDEAL, MODELLED

POLL, WAKEUP = 100 * NS, 37 * NS
#: Upper bound of an acquire's round trip among all others, also over the fabric.
SLACK = 2_000 * NS


def model(capacity, wakeup_ps=WAKEUP):
    return small_model(poll_ps=POLL, monitor=Monitor(capacity=capacity, wakeup_ps=wakeup_ps))


def waiters(amounts):
    """Return a program with one workgroup per semaphore; a line holds four semaphores."""
    programmer = Programmer(2, len(amounts))
    programmer.kernel(0, 1, len(amounts))
    for i, amount in enumerate(amounts):
        programmer.acquire(0, i, amount, address=i // 4 * 128 + i % 4 * 4, group=i)
    return programmer.build()


@st.composite
def schedules(draw):
    amounts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    # around the reads at 2 us + 303.65 ns, plus multiples of 500 ps for queued reads, and of the poll interval
    instants = st.one_of(st.integers(2_300_000, 2_310_000), st.integers(0, 6_000_000), st.just(2_303_650))
    rows = [
        (1, i // 4 * 128 + i % 4 * 4, 4, i, value, draw(instants))
        for i, amount in enumerate(amounts)
        for value in ([1] * amount if draw(st.booleans()) else [amount])
    ]
    data = [(1, 64, 8, -1, 0, draw(instants)) for _ in range(draw(st.integers(0, 2)))]
    return amounts, draw(st.permutations(rows + data))


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60, deadline=None)
@given(schedules(), st.sampled_from([0, 1, 2, 64]), st.sampled_from([0, WAKEUP]), st.sampled_from([IDEAL, MODELLED]))
def test_no_wake_up_is_lost(engine, schedule, capacity, wakeup_ps, fabric):
    """A lost wake-up would deadlock, or end only with a later write."""
    amounts, rows = schedule
    outcome = alone(waiters(amounts), model(capacity, wakeup_ps), writes(*rows, fabric=fabric), engine)
    assert outcome.finished
    for i, end_ps in enumerate(outcome.gpu.op_end_ps.tolist()):
        last_ps = max(row[5] for row in rows if row[3] == i)
        over_ps = 0 if fabric == IDEAL else SLACK
        assert end_ps <= max(last_ps + over_ps, 2_304_000) + max(POLL, wakeup_ps) + SLACK
    gpu = outcome.gpu
    assert gpu.polls[0] == gpu.wakeups[0] + gpu.monitor_full[0]
    assert gpu.acquires[0] == len(amounts) + gpu.polls[0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("capacity", [0, 1, 2])
def test_every_picosecond_around_a_refusal(engine, capacity):
    """Two wavefronts wait on one line; the second is refused while the first response is on its way back."""
    first = 2_000_000 + 250 + 3000 + 400 + 300_000
    program = waiters([1, 1])
    for time_ps in [*range(first - 2, first + 3), *range(first + 3000, first + 3900, 37)]:
        for gap_ps in (0, 1, -1, 500):
            rows = ((1, 0, 4, 0, 1, time_ps), (1, 4, 4, 1, 1, time_ps + gap_ps))
            outcome = alone(program, model(capacity), writes(*rows), engine)
            assert outcome.finished
            assert outcome.records.end_ps[0] <= time_ps + SLACK


@pytest.mark.parametrize("engine", ENGINES)
def test_all_that_sleep_on_a_line_are_woken_by_each_write_of_it(engine):
    """Four wavefronts wait on one semaphore: each release of 1 wakes all that remain, and one acquires it."""
    programmer = Programmer(2, 1)
    programmer.kernel(0, 1, 4)
    for group in range(4):
        programmer.acquire(0, 0, group=group)
    rows = [(1, 0, 4, 0, 1, 5_000 * NS * (1 + i)) for i in range(4)]
    outcome = alone(programmer.build(), model(64), writes(*rows), engine)
    assert outcome.gpu.wakeups.tolist() == [4 + 3 + 2 + 1]
    assert outcome.gpu.spurious_wakeups.tolist() == [3 + 2 + 1]
