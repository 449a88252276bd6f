"""Does a wavefront that waits for a replayed peer's flag continue at the picosecond of the formula?"""

import numpy as np
import pytest
from gpu_cases import NS, Programmer, assert_same, small_model
from gpu_replay import ENGINES, alone, writes

from trine.errors import DeadlockError
from trine.gpu.model import Monitor
from trine.gpu.peers import MODELLED

HEADER = 16
SEMAPHORE = 16 * 1000 // 40 + 300 * NS  # a header at 40 GB/s, and the latency of the memory
LANE = 16 * 1000 // 50 + 2 * 50 * NS + 700 * NS  # a header on a lane of 50 GB/s, both ports and the link
POLL, WAKEUP = 100 * NS, 37 * NS
SPIN = small_model(poll_ps=POLL)


def mesh(hops):
    return hops * (HEADER * 1000 // 64 + 3 * NS)


# CU 0 and channel 0 are at router 0 of the mesh: a flag in the first line is one link away, each way.
READ = SPIN.launch_ps + mesh(1) + SEMAPHORE
BACK = READ + mesh(1)
TURN = 2 * mesh(1) + SEMAPHORE


def mwait(capacity=64, wakeup_ps=WAKEUP):
    return small_model(poll_ps=POLL, monitor=Monitor(capacity=capacity, wakeup_ps=wakeup_ps))


def waiting(num_semaphores=1, amount=1):
    """Return a program whose one wavefront waits for semaphore 0; all semaphores share a line."""
    programmer = Programmer(2, num_semaphores)
    programmer.kernel(0, 1, 1)
    return programmer.acquire(0, 0, amount).build()


def flag(time_ps, semaphore=0, address=0, value=1):
    return (1, address, 4, semaphore, value, time_ps)


def spun(write_ps):
    """Return the time at which it has read a flag written at ``write_ps``, and the number of repeated reads."""
    again = max(0, -(-(write_ps - READ) // (TURN + POLL)))
    return BACK + again * (TURN + POLL), again


#: Times around each event (the read, its answer, the repeated read), and far away from all.
NEAR = sorted({0, 1, *(at + d for at in (READ, BACK, READ + TURN + POLL, BACK + WAKEUP) for d in (-1, 0, 1))})


@pytest.mark.parametrize("engine", ENGINES)
def test_spinning(engine):
    for write_ps in [*NEAR, 40_000 * NS]:
        outcome = alone(waiting(), SPIN, writes(flag(write_ps)), engine)
        end_ps, again = spun(write_ps)
        assert outcome.records.end_ps.tolist() == [end_ps]
        assert outcome.gpu.polls.tolist() == [again]
        assert outcome.gpu.acquires.tolist() == [1 + again]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("wakeup_ps", [0, WAKEUP, 900 * NS])
def test_sleeping(engine, wakeup_ps):
    """A write at the instant of the read comes first. Else the wavefront sleeps, not before its answer is back."""
    for write_ps in [*NEAR, 40_000 * NS]:
        outcome = alone(waiting(), mwait(wakeup_ps=wakeup_ps), writes(flag(write_ps)), engine)
        sleeps = write_ps > READ
        expected = max(write_ps, BACK) + wakeup_ps + TURN if sleeps else BACK
        assert outcome.records.end_ps.tolist() == [expected]
        assert outcome.gpu.acquires.tolist() == [1 + sleeps]
        assert outcome.gpu.polls.tolist() == [sleeps]
        assert outcome.gpu.wakeups.tolist() == [sleeps]
        assert outcome.gpu.spurious_wakeups.tolist() == [0]
        assert outcome.gpu.state_ps[0, 0].sum() == expected - SPIN.launch_ps


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flag_over_the_fabric(engine):
    """The flag crosses one lane to a port at the channel's router, and is a release there."""
    for write_ps in (0, READ + 5 * NS, 7_000 * NS, 40_000 * NS):
        there_ps = write_ps + LANE + SEMAPHORE
        outside = writes(flag(write_ps), fabric=MODELLED)
        assert alone(waiting(), SPIN, outside, engine).records.end_ps.tolist() == [spun(there_ps)[0]]
        outcome = alone(waiting(), mwait(), outside, engine)
        assert outcome.records.end_ps.tolist() == [there_ps + WAKEUP + TURN if there_ps > READ else BACK]
        used = sorted(outcome.gpu.lane_control.tolist())[-2:]
        assert used == [1, 1], "the release on its lane, and its acknowledgement on the one back"
        assert outcome.gpu.lane_control.sum() == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_every_other_flag_of_the_line_wakes_in_vain(engine):
    """Five others, each after the answer to the one before; then data from outside; then the flag itself."""
    apart = TURN + WAKEUP + 10 * NS
    others = [flag(BACK + i * apart, 1 + i, 4 + 4 * i) for i in range(5)]
    data = (1, 64, 8, -1, 0, BACK + 5 * apart)
    last = flag(BACK + 7 * apart)
    outcome = alone(waiting(6), mwait(), writes(*others, data, last), engine)
    assert outcome.gpu.wakeups.tolist() == [7]
    assert outcome.gpu.spurious_wakeups.tolist() == [6]
    assert outcome.gpu.acquires.tolist() == [8]
    assert outcome.records.end_ps.tolist() == [BACK + 7 * apart + WAKEUP + TURN]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flag_of_another_line_wakes_nobody(engine):
    program = waiting(2)
    outcome = alone(program, mwait(), writes(flag(9_000 * NS, 1, 128), flag(20_000 * NS)), engine)
    assert (outcome.gpu.wakeups[0], outcome.gpu.acquires[0]) == (1, 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_too_little_wakes_in_vain(engine):
    """The value counts, not the write: three writes add one each, and the wavefront takes two at a time."""
    outcome = alone(waiting(amount=2), mwait(), writes(flag(5_000 * NS), flag(9_000 * NS), flag(12_000 * NS)), engine)
    assert (outcome.gpu.wakeups[0], outcome.gpu.spurious_wakeups[0], outcome.gpu.acquires[0]) == (2, 1, 3)
    assert outcome.records.end_ps.tolist() == [9_000 * NS + WAKEUP + TURN]


def four_that_wait(apart=256 * 2):
    """Return workgroups on 2 CUs that wait for one flag each, in separate lines of channel 0."""
    programmer = Programmer(2, 4)
    programmer.kernel(0, 1, 4)
    for group in range(4):
        programmer.acquire(0, group, address=apart * group, group=group)
    return programmer.build()


def four_flags(time_ps, apart=256 * 2):
    return writes(*(flag(time_ps, group, apart * group) for group in range(4)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("capacity", [0, 1, 3, 4, 100])
def test_who_finds_the_table_full_spins(engine, capacity):
    outcome = alone(four_that_wait(), mwait(capacity), four_flags(20_000 * NS), engine)
    sleepers = min(capacity, 4)
    assert outcome.gpu.wakeups.tolist() == [sleepers]
    full = int(outcome.gpu.monitor_full[0])
    assert outcome.gpu.polls.tolist() == [sleepers + full]
    assert (full > 0) == (capacity < 4)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_without_entries_is_spinning(engine):
    spins = alone(four_that_wait(), SPIN, four_flags(20_000 * NS), engine)
    full = alone(four_that_wait(), mwait(0), four_flags(20_000 * NS), engine)
    assert full.gpu.monitor_full.tolist() == spins.gpu.polls.tolist()
    full.gpu.monitor_full[:] = 0
    assert_same(spins, full)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_entry_is_free_again_when_its_wavefront_is_woken(engine):
    """Two wavefronts share one entry: the spinning one takes it at its next refusal."""
    programmer = Programmer(2, 2)
    programmer.kernel(0, 1, 2)
    programmer.acquire(0, 0, group=0).acquire(0, 1, address=512, group=1)
    outside = writes(flag(20_000 * NS), flag(90_000 * NS, 1, 512))
    outcome = alone(programmer.build(), mwait(1), outside, engine)
    assert outcome.gpu.wakeups.tolist() == [2]
    spinning = 20_000 * NS - BACK
    assert 0 < outcome.gpu.monitor_full[0] <= spinning // (TURN + POLL) + 1


@pytest.mark.parametrize("engine", ENGINES)
def test_flag_reads_over_the_time_until_the_flags_come(engine):
    """Spinning: linear, waiting wavefronts / (a turn + the pause). Sleeping: flat. Other reads: none here."""
    delays = np.arange(5_000 * NS, 45_000 * NS, 4_000 * NS)
    spins, sleeps = (
        [alone(four_that_wait(), model, four_flags(t), engine).gpu.acquires[0] for t in delays.tolist()]
        for model in (SPIN, mwait())
    )
    assert set(sleeps) == {8}
    # CU 1 is at router 1, two links from channel 0
    expected = 2 / (TURN + POLL) + 2 / (TURN + 2 * mesh(1) + POLL)
    slope, _ = np.polyfit(delays, spins, 1)
    assert slope == pytest.approx(expected, rel=0.01)
    assert np.corrcoef(delays, spins)[0, 1] ** 2 > 0.999


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", [small_model(), SPIN, mwait(), mwait(0)], ids=["asks once", "spin", "mwait", "full"])
def test_a_flag_that_never_comes_is_named(engine, model):
    """This holds although other flags come, to its line and another."""
    outside = writes(flag(9_000 * NS, 1, 4), flag(9_500 * NS, 2, 512))
    with pytest.raises(DeadlockError) as error:
        alone(waiting(3), model, outside, engine)
    where = "rank 0, kernel '0', workgroup 0, wavefront 0: operation 0, acquire: waits for "
    assert where + "semaphore 0 of rank 0, which has 0 and needs 1" in str(error.value)
    assert "stands for" not in str(error.value)
    outcome = alone(waiting(3), model, outside, engine, {"stop_when_stuck": True})
    assert not outcome.finished
    assert outcome.gpu.op_start_ps.tolist() == [SPIN.launch_ps]
    assert outcome.gpu.op_end_ps.tolist() == [-1]


@pytest.mark.parametrize("engine", ENGINES)
def test_who_sleeps_does_not_keep_a_stuck_run_going(engine):
    """One sleeps on a line; the other finds the table full and spins for ever, although another semaphore changed."""
    outside = writes(flag(9_000 * NS, 2, 1024))
    programmer = Programmer(2, 3)
    programmer.kernel(0, 1, 2)
    programmer.acquire(0, 0, group=0).acquire(0, 1, address=512, group=1)
    with pytest.raises(DeadlockError, match="2 wavefronts wait"):
        alone(programmer.build(), mwait(1), outside, engine)
