"""Is the compiled loop with circuits equal to its plain-Python twin, to the picosecond?"""

import numpy as np
import pytest
from circuit_cases import circuit_graphs, circuits
from hypothesis import given, settings

from trine.cluster import Circuits
from trine.engine import compiled
from trine.engine._limits import MAX_PS
from trine.engine.circuit_model import CircuitSwitching
from trine.engine.run import run
from trine.errors import SimulationError
from trine.graph.builder import TaskGraphBuilder


def assert_same(graph, numbers):
    fast = run(graph, network=CircuitSwitching(numbers))
    slow = run(graph, network=CircuitSwitching(numbers), engine="reference")
    for field in ("ready_ps", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(fast, field), getattr(slow, field), err_msg=field)
    assert fast.num_events == slow.num_events
    assert (fast.engine, slow.engine, fast.network) == ("compiled", "reference", "circuit")


@given(graph=circuit_graphs(), numbers=circuits())
@settings(max_examples=150, deadline=None)
def test_small_graphs(graph, numbers):
    assert_same(graph, numbers)


def crowd(seed, ranks=24, tasks=1200):
    rng = np.random.default_rng(seed)
    builder = TaskGraphBuilder([], [])
    for task in range(tasks):
        source, target = rng.choice(ranks, 2, replace=False).tolist()
        after = rng.choice(task, 2, replace=False).tolist() if task > 40 and rng.random() < 0.5 else []
        builder.transfer(source, target, [], int(rng.integers(1, 5000)), after)
    return builder.build()


@pytest.mark.parametrize("seed", range(4))
def test_many_wait_for_few_ports(seed):
    numbers = Circuits(
        setup_ps=10**6, ports=3, bytes_per_s=10**9, latency_ps=seed % 2 * 10**5, buffer_bytes=(None, 6000)[seed // 2]
    )
    assert_same(crowd(seed), numbers)


@pytest.mark.parametrize("seed", range(2))
def test_growing_arrays_and_pausing_change_nothing(seed, monkeypatch):
    monkeypatch.setattr(compiled, "FIRST_SLOTS", 1)
    monkeypatch.setattr(compiled, "FIRST_HEAP", 2)
    monkeypatch.setattr(compiled, "BUDGET", 1)
    assert_same(crowd(seed, 6, 200), Circuits(setup_ps=10, ports=2, bytes_per_s=10**9, latency_ps=3))


def test_more_ports_than_ranks():
    numbers = Circuits(setup_ps=10**6, ports=1 << 16, bytes_per_s=10**9, latency_ps=0)
    assert_same(crowd(9, 5, 100), numbers)


@pytest.mark.parametrize("engine", ["compiled", "reference"])
@pytest.mark.parametrize("change", [{"setup_ps": MAX_PS}, {"latency_ps": MAX_PS}, {"bytes_per_s": 1}])
def test_time_does_not_wrap(engine, change):
    builder = TaskGraphBuilder([], [])
    first = builder.transfer(0, 1, [], 1000)
    builder.transfer(0, 1, [], 2**40, [first])
    numbers = Circuits(**({"setup_ps": 10, "ports": 1, "bytes_per_s": 10**9, "latency_ps": 10} | change))
    with pytest.raises(SimulationError, match="simulated time passes 9223371 s"):
        run(builder.build(), network=CircuitSwitching(numbers), engine=engine)
