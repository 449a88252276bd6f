"""Does the compiled replay level equal its plain-Python twin in every recorded field?"""

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import NS, Programmer, assert_same, case, read, small_model
from gpu_multimem import switched_case
from gpu_random import FLAGS, random_case
from gpu_relative import relative_case
from gpu_replay import (
    alone,
    assert_same_arrivals,
    assert_same_target,
    by_instant,
    leads_through,
    recorded,
    replayed,
    run,
    writes,
)

from trine.errors import DeadlockError, InputError
from trine.gpu import compiled, start
from trine.gpu.folding import fold_system
from trine.gpu.model import Monitor
from trine.gpu.peers import IDEAL, MODELLED, RELEASE, STORE, PeerWrites
from trine.gpu.program import DMA, READ_FLAGGED
from trine.gpu.system import kernel_tasks, unfolded

WITHOUT = ("transfers",)


def both(system, **how):
    """Check that both engines agree; return the twin's outcome."""
    slow = run(system, "reference", **how)
    fast = run(system, "compiled", **how)
    if isinstance(system.outside, PeerWrites) and slow.finished:
        # the last data line may land after everything else; only the twin has an event for it
        fast = fast._replace(gpu=replace(fast.gpu, end_ps=slow.gpu.end_ps))
    assert_same(fast, slow)
    if slow.arrivals is not None:
        assert_same_arrivals(fast.arrivals, slow.arrivals)
    return slow


def test_records_of_what_switches_add_up_and_multicast():
    """Records hold copies of peers' requests and answers to the rank's own; not own requests returned by a switch."""
    copies = 0
    for seed in range(5):
        system = switched_case(seed, size=4).system()
        for rank in range(system.num_ranks) if by_instant(system) else ():
            one, other = (recorded(system, rank, engine).arrivals for engine in ("compiled", "reference"))
            assert_same_arrivals(one, other)
            assert (one.rank != rank).all()
            copies += len(one.time_ps)
    assert copies > 100


@pytest.mark.parametrize("first", range(30, 50, 10))
def test_random_programs_with_monitors(first):
    """All ranks are simulated, with copy engines and transfers."""
    for seed in range(first, first + 10):
        assert both(random_case(seed, size=5, monitored=True).system()).finished


@pytest.mark.parametrize("first", range(50, 70, 10))
def test_random_programs_whose_polls_take_turns_and_whose_wavefronts_issue_in_a_drawn_order(first):
    found = set()
    for seed in range(first, first + 10):
        system = random_case(seed, size=5, monitored=seed % 3 == 0).system()
        model = replace(system.model, poll_turn_ps=16 * NS * (seed % 4), poll_ps=system.model.poll_ps or 4 * NS)
        turns = [both(replace(system, model=replace(model, issue_seed=draw))).records for draw in (None, seed)]
        found.add(turns[0].end_ps.max() == turns[1].end_ps.max())
    assert False in found


@pytest.mark.parametrize("monitored", [False, True], ids=["as it comes", "mwait"])
@pytest.mark.parametrize("first", range(25, 49, 8))
def test_records_and_what_is_replayed_from_them(first, monitored):
    tried = 0
    for seed in range(first, first + 8):
        system = random_case(seed, size=3, without=WITHOUT, monitored=monitored).system()
        rank = seed % system.num_ranks
        full = both(replace(system, record=rank))
        if system.num_ranks > 1 and by_instant(system) and not leads_through(system, rank):
            assert_same_target(full, system, rank, both(replayed(system, rank, full.arrivals, record=True)))
            tried += 1
    assert tried >= 2


@pytest.mark.parametrize("first", [0, 9])
def test_records_of_folded_runs(first):
    tried = 0
    for seed in range(first, first + 9):
        made = relative_case(seed, size=3, without=(*WITHOUT, "kernels"))
        whole = unfolded(made.program, made.cluster, made.group, made.model, kernel_tasks(made.program))
        folded, _ = fold_system(whole)
        if folded is not None:
            tried += both(replace(folded, record=seed % folded.num_gpus)).finished
    assert tried >= 3


def scheduled(arrivals, rng, fabric):
    """Return a record's peer writes at new times: some simultaneous, some before any wait."""
    stores = np.flatnonzero(np.isin(arrivals.kind, (STORE, RELEASE)))
    end_ps = int(arrivals.time_ps.max(initial=0)) * 2 + 1
    few = rng.integers(0, end_ps, 4)
    times = np.where(rng.random(len(stores)) < 0.5, rng.choice(few, len(stores)), rng.integers(0, end_ps, len(stores)))
    rows = []
    for i, time_ps in zip(stores.tolist(), times.tolist(), strict=True):
        peer, address, semaphore = int(arrivals.rank[i]), int(arrivals.address[i]), int(arrivals.semaphore[i])
        if semaphore >= 0 and arrivals.kind[i] == STORE:
            address = 3 * FLAGS + semaphore * 128  # a flag arrives without its data line, so keep it apart from data
        size_bytes = int(rng.choice([1, 130, 700])) if semaphore < 0 else 4
        rows.append((peer, address, size_bytes, semaphore, int(arrivals.amount[i]), time_ps))
    return writes(*rows, fabric=fabric)


@pytest.mark.parametrize("monitored", [False, True], ids=["as it comes", "mwait"])
@pytest.mark.parametrize("fabric", [IDEAL, MODELLED])
@pytest.mark.parametrize("first", [0, 7])
def test_random_schedules_of_writes(first, fabric, monitored):
    for seed in range(first, first + 7):
        rng = np.random.default_rng([seed, 3])
        system = random_case(seed, size=4, without=(DMA, *WITHOUT), monitored=monitored).system()
        rank = seed % system.num_ranks
        if system.num_ranks == 1 or leads_through(system, rank):
            continue
        record = recorded(system, rank).arrivals
        one = replayed(system, rank, scheduled(record, rng, fabric), record=fabric == MODELLED)
        if ((one.program.operand_role == READ_FLAGGED) & (one.program.operand_rank < 0)).any():
            continue
        outcome = both(one)
        assert outcome.finished
        both(one, until_ps=outcome.gpu.end_ps // 2)


@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_looking_at_the_clock_and_growing_change_nothing(seed, monkeypatch):
    monkeypatch.setattr(compiled, "BUDGET", 7)
    monkeypatch.setattr(start, "FIRST_REQUESTS", 4)
    system = random_case(seed, size=4, without=WITHOUT, monitored=True).system()
    assert by_instant(system)
    assert not leads_through(system, 0)
    full = both(replace(system, record=0))
    assert both(replayed(system, 0, full.arrivals)).finished


def stuck(capacity, poll_ps):
    programmer = Programmer(2, 4)
    programmer.kernel(0, 2, 3)
    for group in range(3):
        programmer.acquire(0, group, 2, address=512 * group, group=group).barrier(group=group)
    monitor = None if capacity is None else Monitor(capacity=capacity, wakeup_ps=37 * NS)
    return programmer.build(), small_model(poll_ps=poll_ps, monitor=monitor)


@pytest.mark.parametrize(("capacity", "poll_ps"), [(None, None), (None, 90 * NS), (0, 90 * NS), (1, 90 * NS), (9, 9)])
def test_who_waits_for_ever_is_named_alike(capacity, poll_ps):
    """Three writes arrive: too few for one waiter, one to a different line, and enough for one of three waiters."""
    program, model = stuck(capacity, poll_ps)
    outside = writes((1, 0, 4, 0, 1, 9_000_000), (1, 1024, 4, 2, 2, 9_500_000), (1, 2048, 4, 3, 1, 12_000_000))
    texts = []
    for engine in ("reference", "compiled"):
        with pytest.raises(DeadlockError) as error:
            alone(program, model, outside, engine)
        texts.append(str(error.value))
        outcome = alone(program, model, outside, engine, {"stop_when_stuck": True})
        assert not outcome.finished
        texts.append(str(outcome.gpu.op_start_ps.tolist() + outcome.gpu.op_end_ps.tolist()))
    assert texts[:2] == texts[2:]
    assert "semaphore 0 of rank 0, which has 1 and needs 2" in texts[0]


def test_records_of_other_programs_are_refused_alike():
    programmer = Programmer(2, 1)
    programmer.kernel(0, 1, 1)
    system = case(programmer.load(2, read(1)).build()).system()
    record = recorded(system, 0).arrivals
    few = {name: getattr(record, name)[:1] for name in ("answer_place", "answer_number", "answer_ps", "answer_refused")}
    for wrong in (replace(record, **few), replace(record, answer_ps=np.array([5, 6], np.int64))):
        texts = []
        for engine in ("reference", "compiled"):
            with pytest.raises(InputError) as error:
                run(replayed(system, 0, wrong), engine)
            texts.append(str(error.value))
        assert texts[0] == texts[1]
