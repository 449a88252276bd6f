"""Does the error of a run that cannot end name the waiting tasks and their dependencies?"""

import pytest

from trine.engine.run import run
from trine.errors import DeadlockError, SimulationError, TrineError
from trine.graph.builder import TaskGraphBuilder

both_engines = pytest.mark.parametrize("engine", ["compiled", "reference"])


@both_engines
def test_cycle_of_predecessors(engine):
    builder = TaskGraphBuilder([10**9], [0], rank_names=["a40-0", "a40-1"])
    builder.compute(0, "compute", 5, name="fine")
    builder.transfer(0, 1, [0], 10, [2], name="send")
    builder.compute(1, "compute", 5, [1, 3], name="grad")
    builder.compute(0, "other", 5, name="also fine")
    with pytest.raises(DeadlockError) as caught:
        run(builder.build(), engine=engine)
    message = str(caught.value)
    assert "2 of 4 tasks wait for each other" in message
    assert "transfer 'send' (task 1, a40-0 to a40-1) waits for its predecessor:" in message
    assert "compute 'grad' (task 2, a40-1, stream compute) waits for its predecessor:" in message
    assert "fine" not in message
    assert isinstance(caught.value, SimulationError)


@both_engines
def test_stream_order_against_dependencies(engine):
    builder = TaskGraphBuilder([], [])
    builder.compute(0, "s", 5, [1], name="first")
    builder.compute(0, "s", 5, name="second")
    with pytest.raises(DeadlockError) as caught:
        run(builder.build(), engine=engine)
    message = str(caught.value)
    assert "'first' (task 0, rank 0, stream s) waits for its predecessor:" in message
    assert "'second' (task 1, rank 0, stream s) is ready but waits for the task before it in its stream:" in message


@both_engines
def test_unnamed_join_that_waits_for_itself(engine):
    builder = TaskGraphBuilder([], [])
    builder.join([0, 1], need=1)
    builder.join([0, 1])
    with pytest.raises(DeadlockError, match=r"join task 0 waits for its predecessor \(1 of 2 needed\)"):
        run(builder.build(), engine=engine)


def test_a_long_cycle_is_cut_short():
    builder = TaskGraphBuilder([], [])
    for task in range(1000):
        builder.join([(task + 1) % 1000])
    with pytest.raises(DeadlockError) as caught:
        run(builder.build())
    assert "(988 more tasks)" in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_a_network_model_that_starves_a_flow():
    class Starve:
        name = "starve"

        def rates(self, routes, capacity):
            return [0.0] * len(routes)

    builder = TaskGraphBuilder([10**9], [0])
    builder.transfer(0, 1, [0], 10)
    with pytest.raises(DeadlockError, match="was given no rate by the network"):
        run(builder.build(), network=Starve(), engine="reference")


def test_a_network_model_that_answers_nonsense():
    class Nonsense:
        name = "nonsense"

        def rates(self, routes, capacity):
            return [float("nan")] * len(routes)

    builder = TaskGraphBuilder([10**9], [0])
    builder.transfer(0, 1, [0], 10)
    with pytest.raises(TrineError, match="nonsense"):
        run(builder.build(), network=Nonsense(), engine="reference")
