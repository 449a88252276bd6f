"""Do small runs, handled by the plain-Python twin, match the compiled loop without importing numba?"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from engine_cases import capped_graphs, graphs
from folded_cases import random_case
from hypothesis import given, settings
from hypothesis import strategies as st

import trine
from trine.engine import run
from trine.engine.models import network_model
from trine.errors import SimulationError
from trine.graph.builder import TaskGraphBuilder

NETWORKS = ("fair", "equal", "fifo")
JOB = "train vgg13-h100-b128 --gpus 8 --parallel ddp --cluster dgx-h100"
RING = "--topology ring --bandwidth 65GB/s --latency 1us"
small = import_module("trine.engine.small_runs")
#: Command lines whose task counts are below the limit for the twin.
SMALL = (
    JOB,
    f"train resnet50-h100-b128 --dp 16 {RING}",
    f"collective all_reduce --size 1M --gpus 8 {RING} --network fair",
    "collective all_reduce --size 1K:1G --cluster dgx-h100",
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enable the twin: tests/conftest.py sends every other test's runs to the compiled loop."""
    monkeypatch.setattr(small, "MAX_TASKS", 40_000)
    monkeypatch.setattr(small, "_left", 40_000)
    monkeypatch.setattr(small, "_COMPILED", "no such module")


def assert_same(graph: trine.TaskGraph, network: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "_left", graph.num_tasks)
        mine = small.by_twin(graph, network_model(network))
        patch.setattr(small, "_left", -1)
        other = run(graph, network=network)
    assert mine is not None
    for field in ("ready_ps", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(mine, field), getattr(other, field), err_msg=field)
    assert (mine.num_events, mine.engine, mine.network) == (other.num_events, other.engine, other.network)


@pytest.mark.parametrize("network", NETWORKS)
@given(graph=graphs())
@settings(max_examples=60, deadline=None)
def test_random_graphs(network: str, graph: trine.TaskGraph) -> None:
    assert_same(graph, network)


@given(graph=capped_graphs())
@settings(max_examples=40, deadline=None)
def test_random_graphs_with_limits(graph: trine.TaskGraph) -> None:
    assert_same(graph, "fair")


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_random_jobs_give_the_same_document(seed: int) -> None:
    """Compare the whole JSON document: plans of all kinds on random machines, with slow ranks and links."""
    case = random_case(seed, most=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "_left", 40_000)
        mine = case.run().document()
        patch.setattr(small, "_left", -1)
        other = case.run().document()
    for each in (mine, other):
        each["simulator"]["wall_s"] = 0
    assert mine == other


def test_what_is_not_small_is_left_to_the_compiled_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits: tasks per process and run, visited links of flows; and a loaded compiled loop takes all runs."""
    builder = TaskGraphBuilder([10**9], [1000])
    for size in range(50):
        builder.transfer(0, 1, [0], 1000 + size)
    graph, model = builder.build(), network_model("fair")
    assert small.by_twin(graph, model) is not None
    assert small._left == 39_950
    for name, value in (("_left", 49), ("MAX_TASKS", 49), ("MAX_SHARED", 1274), ("_COMPILED", "sys")):
        with monkeypatch.context() as patch:
            patch.setattr(small, name, value)
            assert small.by_twin(graph, model) is None
    monkeypatch.setattr(small, "MAX_SHARED", 1275)  # 50 + 49 + ... + 1 flows, each on one link
    assert small.by_twin(graph, model) is not None


def test_errors_are_the_compiled_loops() -> None:
    builder = TaskGraphBuilder([1], [0])
    builder.transfer(0, 1, [0], 9_223_372)
    with pytest.raises(SimulationError, match="transfer task 0"):
        run(builder.build())


@pytest.mark.parametrize("words", SMALL)
def test_small_commands_import_not_numba(words: str) -> None:
    code = (
        f"import sys\nfrom trine.cli import main\nmain._run({words.split()!r})\n"
        "print([m for m in ('numba', 'llvmlite', 'google.protobuf', 'torch') if m in sys.modules], "
        "file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.stdout
