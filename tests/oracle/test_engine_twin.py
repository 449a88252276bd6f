"""Is the compiled loop equal to its plain-Python twin, to the picosecond?"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_cases import capped_graphs, graphs, random_graph, with_caps
from hypothesis import given, settings

from trine.engine import compiled
from trine.engine.run import run
from trine.graph.builder import TaskGraphBuilder

NETWORKS = ("fair", "equal", "fifo")


def assert_same(graph, network):
    fast = run(graph, network=network)
    slow = run(graph, network=network, engine="reference")
    for field in ("ready_ps", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(fast, field), getattr(slow, field), err_msg=field)
    assert fast.num_events == slow.num_events
    assert (fast.engine, slow.engine, fast.network) == ("compiled", "reference", network)


@pytest.mark.parametrize("network", NETWORKS)
@given(graph=graphs())
@settings(max_examples=150, deadline=None)
def test_small_graphs(graph, network):
    assert_same(graph, network)


@pytest.mark.parametrize("network", ["fair", "equal"])
@given(graph=capped_graphs())
@settings(max_examples=150, deadline=None)
def test_small_graphs_with_limits(graph, network):
    assert_same(graph, network)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("seed", range(6))
def test_contended_graphs(seed, network):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 400, (2, 12, 40)[seed % 3], window=60)
    assert_same(graph, network)
    if network != "fifo":
        assert_same(with_caps(graph, rng), network)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("network", NETWORKS)
def test_growing_arrays_and_pausing_change_nothing(seed, network, monkeypatch):
    monkeypatch.setattr(compiled, "FIRST_SLOTS", 1)
    monkeypatch.setattr(compiled, "FIRST_HEAP", 2)
    monkeypatch.setattr(compiled, "BUDGET", 1)
    assert_same(random_graph(np.random.default_rng(seed), 300, 8, window=50), network)


def test_a_long_flow_beside_many_short_ones_leaves_no_growing_heap(monkeypatch):
    """Each short flow makes the end predicted for the long one stale: 2000 entries for a heap with room for 16."""
    monkeypatch.setattr(compiled, "FIRST_SLOTS", 4)
    monkeypatch.setattr(compiled, "FIRST_HEAP", 16)
    sizes = []
    grow = compiled._grow_heap
    monkeypatch.setattr(compiled, "_grow_heap", lambda state: grow(state) or sizes.append(len(state.heap)))
    builder = TaskGraphBuilder([10**9], [1000])
    builder.transfer(0, 1, [0], 10**9)
    last = []
    for _ in range(2000):
        last = [builder.transfer(0, 1, [0], 100, last)]
    assert_same(builder.build(), "fair")
    assert len(sizes) > 50
    assert max(sizes) <= 32


def test_kernels_run_without_compiling():
    """Every line of the kernels as plain Python: what coverage and debuggers see."""
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(here.parents[2] / "src"), str(here.parents[1]), str(here.parent)])
    code = (
        "import numpy as np, test_engine_twin as t\n"
        "for seed in range(4):\n"
        "    for network in t.NETWORKS:\n"
        "        t.assert_same(t.random_graph(np.random.default_rng(seed), 60, 5), network)\n"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
