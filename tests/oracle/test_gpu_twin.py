"""Is the compiled GPU model equal to its plain-Python twin, in everything that is recorded?"""

import numpy as np
import pytest
from gpu_cases import Programmer, assert_same, case, read, small_model, write
from gpu_hosts import hosted_case
from gpu_multimem import relative_switched_case, switched_case
from gpu_random import REMOTE, RandomCase, random_case

from trine.errors import DeadlockError
from trine.gpu import compiled, start
from trine.gpu.program import ROLE_NAMES


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_programs(first):
    for seed in range(first, first + 10):
        random = random_case(seed)
        assert_same(random.simulate("compiled"), random.simulate())


@pytest.mark.parametrize("seed", range(1000, 1150, 30))
def test_short_programs(seed):
    """Where few things happen, those of one instant are seen best."""
    for s in range(seed, seed + 30):
        random = random_case(s, size=2)
        assert_same(random.simulate("compiled"), random.simulate())


@pytest.mark.parametrize("first", range(2000, 2060, 20))
def test_switches_that_add_up(first):
    """Multimem loads, stores, adds and releases of several ranks, over one to three switches."""
    for seed in range(first, first + 20):
        switched = switched_case(seed, size=6 if seed % 2 else 2)
        assert_same(switched.simulate("compiled"), switched.simulate())


def test_monitors_of_members_see_what_a_switch_multicasts():
    for seed in range(12):
        switched = switched_case(seed, size=5, monitored=True)
        assert_same(switched.simulate("compiled"), switched.simulate())


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the loop wakes by semaphore, the twin by address")
@pytest.mark.parametrize("seed", [22, 106])
def test_a_semaphore_that_is_written_at_two_lines(seed):
    """A known gap: flags of stores and releases count on one semaphore at two addresses; who sleeps polls more."""
    switched = switched_case(seed, size=5, monitored=True)
    assert_same(switched.simulate("compiled"), switched.simulate())


@pytest.mark.parametrize("seed", [22, 106])
def test_a_semaphore_that_is_written_at_two_lines_ends_alike(seed):
    switched = switched_case(seed, size=5, monitored=True)
    one, other = switched.simulate("compiled"), switched.simulate()
    np.testing.assert_array_equal(one.records.end_ps, other.records.end_ps)


@pytest.mark.parametrize("seed", [4673, 5505])
def test_polls_that_will_find_enough_are_no_deadlock(seed):
    """Many short polls pass while one over a long link is on its way, or the answer to one that has found enough."""
    case = relative_switched_case(seed)
    assert_same(case.simulate("compiled"), case.simulate())


@pytest.mark.parametrize("seed", range(20))
def test_copy_engines_between_nodes(seed):
    """Over switches of a fat tree and several routes, which loads and stores do not cross."""
    random = random_case(seed, without=REMOTE)
    assert_same(random.simulate("compiled"), random.simulate())


@pytest.mark.parametrize("seed", range(4))
def test_long_programs(seed):
    random = random_case(seed, size=20)
    assert_same(random.simulate("compiled"), random.simulate())


@pytest.mark.parametrize("seed", range(10))
def test_looking_at_the_clock_and_growing_change_nothing(seed, monkeypatch):
    monkeypatch.setattr(compiled, "BUDGET", 7)
    monkeypatch.setattr(start, "FIRST_REQUESTS", 4)
    random = random_case(seed)
    assert_same(random.simulate("compiled"), random.simulate())


@pytest.mark.parametrize("seed", range(6))
def test_stopped_runs(seed):
    """In the middle of it, at an instant at which something happens or not."""
    random = random_case(seed)
    whole = random.simulate()
    for until_ps in (0, whole.gpu.end_ps // 3, int(whole.gpu.workgroup_end_ps.min()), whole.gpu.end_ps - 1):
        slow = random.simulate(until_ps=until_ps)
        assert_same(random.simulate("compiled", until_ps=until_ps), slow)
        assert slow.gpu.end_ps == until_ps
    assert random.simulate(until_ps=whole.gpu.end_ps).finished


def stuck(program, model=None):
    """What both engines say of a program that cannot end."""
    texts = []
    for engine in ("reference", "compiled"):
        with pytest.raises(DeadlockError) as error:
            case(program, model, num_gpus=2).simulate(engine)
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    return texts[0]


@pytest.mark.parametrize("poll_ps", [None, 50_000])
def test_an_acquire_of_what_nobody_releases_is_named(poll_ps):
    programmer = Programmer(2, 4)
    programmer.semaphores[1, 3] = 1
    programmer.kernel(0, 1, 1)
    programmer.load(3, read(1))
    programmer.kernel(1, 2, 1)
    programmer.acquire(1, 3, amount=2).barrier()
    text = stuck(programmer.build(), small_model(poll_ps=poll_ps))
    assert "1 task cannot finish, 2 wavefronts wait" in text
    where = "rank 1, kernel '1', workgroup 0, wavefront "
    assert where + "0: operation 0, acquire: waits for semaphore 3 of rank 1, which has 1 and needs 2" in text
    assert where + "1: operation 1, barrier: waits for the barrier, where 1 of 2 wavefronts are" in text


@pytest.mark.parametrize("poll_ps", [None, 50_000])
def test_flagged_lines_that_nobody_stores_are_named(poll_ps):
    programmer = Programmer(2, 8)
    programmer.kernel(0, 1, 1)
    programmer.load(3, (2, 1, 0, 128, 5)).wait(1).load(1, read(0)).wait()
    text = stuck(programmer.build(), small_model(poll_ps=poll_ps))
    assert (
        "operation 1, waitcnt: waits for 3 unfinished requests, 3 of them flagged; the first waits for the flag" in text
    )
    assert "semaphore 5 of rank 1, which has 0 and needs 1" in text


def test_a_release_behind_an_acquire_that_needs_it_is_a_deadlock_of_both():
    programmer = Programmer(2, 1)
    for rank in (0, 1):
        programmer.kernel(rank, 1, 1)
        programmer.acquire(rank, 0).release(1 - rank, 0)
    text = stuck(programmer.build())
    assert "rank 0, kernel '0'" in text
    assert "rank 1, kernel '1'" in text


def test_workgroups_that_wait_for_those_that_find_no_room_are_named():
    """2 CUs hold 4 workgroups, and the fifth would release them."""
    programmer = Programmer(2, 1)
    programmer.kernel(0, 1)
    for _ in range(4):
        programmer.workgroup()
        programmer.acquire(0, 0)
    programmer.workgroup()
    programmer.release(0, 0, 4)
    text = stuck(programmer.build())
    assert text.count("waits for semaphore 0 of rank 0") == 4
    assert "rank 0, kernel '0': 1 workgroups wait for room on a CU" in text


def test_only_the_first_eight_wavefronts_are_shown():
    programmer = Programmer(2, 1)
    programmer.kernel(0, 3, 4)
    for group in range(4):
        programmer.acquire(0, 0, group=group).barrier(group=group)
    text = stuck(programmer.build(), small_model(workgroups_per_cu=8, wavefronts_per_cu=12))
    assert text.count("waits for") == 8
    assert "(4 more wavefronts)" in text


def test_places_that_are_all_taken_by_those_who_wait():
    """The CU has one place, which a flagged load holds; the store that it waits for finds none."""
    programmer = Programmer(2, 1)
    programmer.kernel(0, 1, 1)
    programmer.load(1, (2, 0, 0, 128, 0))
    programmer.kernel(0, 1, 1)
    programmer.store(1, write(0)).store(1, (3, 0, 0, 128, 0))
    text = stuck(programmer.build(), small_model(max_outstanding=1, num_cus=1))
    assert "store: waits for a request slot: its CU has all 1 in use" in text


def test_generated_programs_use_everything():
    """Else they would prove less than they seem to."""
    models = [RandomCase(seed).model for seed in range(60)]
    assert {model.noc.kind for model in models} == {"mesh", "crossbar"}
    assert {model.ports.arbitration for model in models} == {"fifo", "fair"}
    assert {model.ports.choice for model in models} == {"interleaved", "hashed"}
    assert {model.l2 is None for model in models} == {True, False}
    assert {model.poll_ps is None for model in models} == {True, False}
    assert {model.posted_stores for model in models} == {True, False}
    programs = [random_case(seed).program for seed in range(60)]
    assert {int(kind) for program in programs for kind in program.op_kind} == set(range(13))
    assert {int(role) for program in programs for role in program.operand_role} == set(range(4))
    switched = [switched_case(seed).program for seed in range(20)]
    assert {int(role) for program in switched for role in program.operand_role} == set(range(len(ROLE_NAMES)))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_memory_of_hosts(first):
    """Data and flags in the memory of a host, and GPUs that load and store there."""
    for seed in range(first, first + 20):
        hosted = hosted_case(seed, size=6 if seed % 2 else 2)
        assert_same(hosted.simulate("compiled"), hosted.simulate())
