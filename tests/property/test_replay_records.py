"""Does a rank replayed from the record of a full run have that run's times, to the picosecond?"""

import pytest
from gpu_cases import NS, Programmer, case, read, read_flagged, small_model, write, write_flagged
from gpu_random import random_case
from gpu_relative import relative_case
from gpu_replay import (
    ENGINES,
    assert_same_arrivals,
    assert_same_target,
    by_instant,
    leads_through,
    recorded,
    replayed,
    run,
)

from trine.gpu.folding import fold_system
from trine.gpu.model import FAIR, L2, Monitor, Ports
from trine.gpu.system import kernel_tasks, unfolded

WITHOUT = ("transfers",)
FLAGS = 1 << 20


def replays(system):
    return system.num_ranks > 1 and by_instant(system)


def assert_replays(system, rank, engine):
    """Check that the rank's replay equals the full run and reproduces its record; return the replay."""
    full = recorded(system, rank, engine)
    alone = run(replayed(system, rank, full.arrivals, record=True), engine)
    assert_same_target(full, system, rank, alone)
    assert_same_arrivals(full.arrivals, alone.arrivals)
    return alone


@pytest.mark.parametrize("monitored", [False, True], ids=["as it comes", "mwait"])
@pytest.mark.parametrize("first", range(0, 20, 10))
def test_random_programs(first, monitored):
    """Every rank in turn; the twin: tests/oracle/test_replay_twin.py."""
    for seed in range(first, first + 10):
        system = random_case(seed, size=4, without=WITHOUT, monitored=monitored).system()
        for rank in range(system.num_ranks) if replays(system) else ():
            if not leads_through(system, rank):
                assert_replays(system, rank, "compiled")


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_records_of_folded_runs(first):
    """A GPU stands for several ranks: its record equals the unfolded record of the rank it simulates."""
    for seed in range(first, first + 10):
        made = relative_case(seed, size=3, without=(*WITHOUT, "kernels"))
        system = unfolded(made.program, made.cluster, made.group, made.model, kernel_tasks(made.program))
        folded, _ = fold_system(system)
        if folded is None or not replays(system):
            continue
        for rank in folded.ranks.tolist():
            if leads_through(system, rank):
                continue
            arrivals = recorded(folded, rank, "compiled").arrivals
            full = recorded(system, rank, "compiled")
            assert_same_arrivals(arrivals, full.arrivals)
            assert_same_target(full, system, rank, run(replayed(system, rank, arrivals), "compiled"))


def test_random_programs_are_replayed_with_everything():
    """The random programs cover wake-ups, full monitors and all kinds of arrivals; else the tests prove little."""
    systems = [random_case(seed, size=4, without=WITHOUT, monitored=True).system() for seed in range(30)]
    systems = [system for system in systems if replays(system)]
    outcomes = [recorded(system, 0, "compiled") for system in systems]
    assert sum(outcome.gpu.wakeups.sum() for outcome in outcomes) > 40
    assert sum(outcome.gpu.spurious_wakeups.sum() for outcome in outcomes) > 3
    assert sum(outcome.gpu.monitor_full.sum() for outcome in outcomes) > 40
    assert {int(kind) for outcome in outcomes for kind in outcome.arrivals.kind} == {0, 1, 3, 4}
    assert sum(leads_through(system, 0) for system in systems) < len(systems) / 2


def stalled(model, ranks=3):
    """Return a system with all ranks loading from, storing to, releasing and waiting for each other."""
    programmer = Programmer(ranks, ranks)
    for rank in range(ranks):
        programmer.kernel(rank, 2, 2)
        for group in (2 * rank, 2 * rank + 1):
            others = [(rank + d) % ranks for d in range(1, ranks)]
            for other in others:
                programmer.store(24, write(other, 4096 * group), group=group)
            programmer.wait(group=group).barrier(group=group)
            for other in others:
                programmer.release(other, rank, address=FLAGS + 4 * rank, group=group)
            for other in others:
                programmer.acquire(rank, other, address=FLAGS + 4 * other, group=group)
            programmer.barrier(group=group)
            for other in others:
                programmer.load(24, read(other, 4096 * group), group=group)
    return case(programmer.build(), model, num_gpus=ranks).system()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("posted", [True, False])
def test_everybody_with_everybody(engine, posted):
    """Fair lanes and caches; a GPU's flags share one line with monitor entries for half of its waiters."""
    model = small_model(
        poll_ps=90 * NS,
        monitor=Monitor(capacity=1, wakeup_ps=20 * NS),
        posted_stores=posted,
        ports=Ports(count=4, latency_ps=50 * NS, interleave_bytes=256, arbitration=FAIR),
        l2=L2(capacity_bytes=8192, ways=2, bytes_per_s=10**11, latency_ps=90 * NS),
    )
    system = stalled(model)
    for rank in range(3):
        alone = assert_replays(system, rank, engine)
        assert alone.gpu.wakeups[0] > 0
        assert alone.gpu.monitor_full[0] > 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("poll_ps", [None, 40 * NS])
def test_flagged_loads_of_the_memory_of_a_peer(engine, poll_ps):
    """The peer answers late or refuses repeatedly, and also loads the target's own flagged lines."""
    programmer = Programmer(2, 16)
    programmer.kernel(0, 2, 1)
    programmer.load(6, read_flagged(1, 0)).load(3, read(1)).wait().store(5, write_flagged(0, 6))
    programmer.kernel(1, 2, 1)
    programmer.compute(3000).store(6, write_flagged(1, 0)).load(5, read_flagged(0, 6)).wait()
    system = case(programmer.build(), small_model(poll_ps=poll_ps)).system()
    for rank in (0, 1):
        assert_replays(system, rank, engine)
        refused = recorded(system, rank, engine).arrivals.answer_refused
        assert (refused.sum() > 5) == (poll_ps is not None)
