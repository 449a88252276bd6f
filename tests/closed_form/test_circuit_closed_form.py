"""Do transfers over circuits take set-up, latency and bytes / bandwidth, to the picosecond?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trine
from trine.cluster import Circuits, Cluster, Device
from trine.collectives import make_schedule
from trine.collectives.run import run_schedule
from trine.common.units import transfer_ps
from trine.engine.circuit_model import CircuitSwitching
from trine.engine.run import run
from trine.graph.builder import TaskGraphBuilder

MS, US = 10**9, 10**6
both_engines = pytest.mark.parametrize("engine", ["compiled", "reference"])
CIRCUITS = Circuits(setup_ps=20 * MS, ports=8, bytes_per_s=10**9, latency_ps=5000)


def ends(pairs, circuits, engine="compiled", after=None, size=1000):
    """Return the end times of transfers between ``pairs``; ``after``: predecessors of each, None: all at once."""
    builder = TaskGraphBuilder([], [])
    for number, (source, target) in enumerate(pairs):
        builder.transfer(source, target, [], size, after[number] if after else ())
    return run(builder.build(), network=CircuitSwitching(circuits), engine=engine).end_ps.tolist()


def chained(count):
    return [[number - 1] if number else [] for number in range(count)]


@both_engines
def test_two_ranks_set_up_once(engine):
    once = 1000 * 1000 + 5000
    assert ends([(0, 1)] * 3, CIRCUITS, engine, chained(3)) == [20 * MS + once * n for n in (1, 2, 3)]


@both_engines
def test_both_directions_share_a_circuit_and_not_its_bandwidth(engine):
    assert ends([(0, 1), (1, 0)], CIRCUITS, engine) == [20 * MS + US + 5000] * 2


@both_engines
def test_of_two_at_once_the_second_follows_the_last_byte_of_the_first(engine):
    assert ends([(0, 1), (0, 1)], CIRCUITS, engine) == [20 * MS + US + 5000, 20 * MS + 2 * US + 5000]


@both_engines
def test_what_a_rank_cannot_have_at_once_waits(engine):
    """One port: rank 0 serves its peers one after the other, each after a new set-up."""
    one = replace(CIRCUITS, ports=1)
    round_ps = 20 * MS + US + 5000
    assert ends([(0, 1), (0, 2), (0, 3)], one, engine) == [round_ps, 2 * round_ps, 3 * round_ps]


@both_engines
def test_circuits_of_others_are_set_up_meanwhile(engine):
    one = replace(CIRCUITS, ports=1)
    round_ps = 20 * MS + US + 5000
    assert ends([(0, 1), (0, 2), (3, 4), (3, 2)], one, engine) == [round_ps, 2 * round_ps, round_ps, 3 * round_ps]


@both_engines
def test_the_circuit_idle_longest_goes(engine):
    """Rank 0 has two ports: after 1, 2, 1 the circuit to 3 replaces 2's. 1's then still stands; 2's replaces 3's."""
    two = replace(CIRCUITS, ports=2)
    sequence = [1, 2, 1, 3, 1, 2, 3]
    misses = [1, 1, 0, 1, 0, 1, 1]
    expected = np.cumsum([20 * MS * miss + US + 5000 for miss in misses]).tolist()
    assert ends([(0, peer) for peer in sequence], two, engine, chained(7)) == expected


@both_engines
def test_of_two_idle_equally_long_that_of_the_lower_task_goes(engine):
    """Tasks 0 and 1 end together; task 2 takes the port of task 0's circuit, so task 3 still finds task 1's."""
    two = replace(CIRCUITS, ports=2)
    pairs = [(0, 1), (0, 2), (0, 3), (0, 2), (0, 1)]
    first, once = 20 * MS + US + 5000, US + 5000
    after = [[], [], [0, 1], [2], [3]]
    assert ends(pairs, two, engine, after) == [first, first, 2 * first, 2 * first + once, 3 * first + once]


@both_engines
def test_a_receive_buffer_admits_one_sender_at_a_time(engine):
    """Three senders, room for one: each sends once the last byte of the previous sender has arrived."""
    tight = replace(CIRCUITS, buffer_bytes=1500)
    once = US + 5000
    assert ends([(1, 0), (2, 0), (3, 0)], tight, engine) == [20 * MS + once * n for n in (1, 2, 3)]
    assert ends([(1, 0), (2, 0), (3, 0)], replace(tight, buffer_bytes=2000), engine) == [
        20 * MS + once, 20 * MS + once, 20 * MS + 2 * once,
    ]  # fmt: skip


@both_engines
def test_more_than_the_buffer_takes_all_of_it(engine):
    small = replace(CIRCUITS, buffer_bytes=1)
    assert ends([(1, 0), (2, 0)], small, engine) == [20 * MS + US + 5000, 20 * MS + 2 * (US + 5000)]


def wafer(count, circuits=CIRCUITS):
    return Cluster(name="wafer", devices=[Device(name=f"gpu{i}") for i in range(count)], links=(), circuits=circuits)


@both_engines
@pytest.mark.parametrize("ranks", [2, 3, 9])
def test_a_ring_is_set_up_once(engine, ranks):
    size = 9_000_000
    done = run_schedule(make_schedule("all_reduce", ranks, size, "ring"), wafer(ranks), range(ranks), engine=engine)
    step = transfer_ps(-(-size // ranks), CIRCUITS.bytes_per_s) + CIRCUITS.latency_ps
    assert done.end_ps == 20 * MS + 2 * (ranks - 1) * step


def test_software_passes_before_the_circuit_is_asked_for():
    done = run_schedule(make_schedule("all_reduce", 2, 2000, "ring"), wafer(2), range(2), step_ps=300)
    assert done.end_ps == 20 * MS + 2 * (300 + US + 5000)
    assert done.records.start_ps.min() == 0


def test_a_training_step_pays_for_the_set_up_in_its_first_step_only():
    times = [
        trine.simulate("vgg13-h100-b128", trine.Plan(dp=4, steps=steps), cluster=wafer(4)).communication_s
        for steps in (1, 2)
    ]
    assert times[0] - times[1] == pytest.approx(20e-3, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    peers=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=40),
    ports=st.integers(1, 4),
)
def test_one_after_another_costs_a_set_up_a_miss(peers, ports):
    """Compared to an LRU cache of the circuits of each rank."""
    pairs = [(source, (source + distance) % 6) for source, distance in peers]
    cache = {rank: [] for rank in range(6)}
    misses = []
    for source, target in pairs:
        hit = target in cache[source]
        misses.append(not hit)
        for rank in (source, target):
            if not hit and len(cache[rank]) == ports:
                cache[cache[rank].pop(0)].remove(rank)
        for rank, peer in ((source, target), (target, source)):
            cache[rank] = [other for other in cache[rank] if other != peer] + [peer]
    expected = np.cumsum([20 * MS * miss + US + 5000 for miss in misses]).tolist()
    assert ends(pairs, replace(CIRCUITS, ports=ports), after=chained(len(pairs))) == expected
