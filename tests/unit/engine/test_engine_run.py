"""Does the shell refuse invalid input, report progress, and stop?"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trine.engine import compiled, reference
from trine.engine.run import run
from trine.errors import InputError, SimulationError
from trine.graph.builder import TaskGraphBuilder

both_engines = pytest.mark.parametrize("engine", ["compiled", "reference"])


def graph():
    builder = TaskGraphBuilder([10**9, 2 * 10**9], [0, 5])
    start = builder.compute(0, "s", 7, name="start")
    send = builder.transfer(0, 1, [0, 1], 100, [start], name="send")
    builder.join([start, send], name="both")
    return builder.build()


def with_item(name, index, value):
    array = getattr(graph(), name).copy()
    array[index] = value
    return replace(graph(), **{name: array})


@pytest.mark.parametrize(
    ("field", "index", "value", "message"),
    [
        ("kind", 0, 3, "no known kind: 3"),
        ("num_required", 2, 3, r"join 'both' \(task 2\) needs more predecessors than it has: 3"),
        ("num_required", 2, -1, "negative number of predecessors: -1"),
        ("duration_ps", 0, -5, r"compute 'start' .* negative duration in ps: -5"),
        ("size_bytes", 1, -1, "transfer 'send' .* negative size in bytes: -1"),
        ("size_bytes", 1, 2**53 + 1, "more than 2\\*\\*53 bytes"),
        ("route", 1, 9, r"a route out of 0\.\.0: 9"),
        ("route", 1, -1, r"a route out of 0\.\.0: -1"),
        ("stream", 0, 1, r"a stream out of 0\.\.0: 1"),
        ("predecessor_idx", 0, 3, r"task 1 names 3, of 0\.\.2"),
        ("predecessor_idx", 1, -1, r"task 2 names -1, of 0\.\.2"),
        ("predecessor_ptr", 1, 2, "predecessor_ptr: must rise"),
        ("route_links", 1, 2, r"route 0 names 2, of 0\.\.1"),
        ("route_latency_ps", 0, -1, "route 0 has a negative latency"),
        ("link_bytes_per_s", 1, 0, "bandwidth of link 1 must be between"),
        ("link_bytes_per_s", 1, 2**60, "bandwidth of link 1 must be between"),
    ],
)
def test_malformed_graphs_are_refused_by_name(field, index, value, message):
    with pytest.raises(InputError, match=message):
        run(with_item(field, index, value))


@pytest.mark.parametrize("field", ["rank", "num_required", "predecessor_ptr", "route_latency_ps"])
def test_arrays_of_the_wrong_length(field):
    with pytest.raises(InputError, match=rf"{'route_ptr' if field == 'route_latency_ps' else field}: has \d"):
        run(replace(graph(), **{field: getattr(graph(), field)[:-1]}))


def test_unknown_names():
    with pytest.raises(InputError, match="did you mean 'fair'"):
        run(graph(), network="fare")
    with pytest.raises(InputError, match="did you mean 'compiled'"):
        run(graph(), engine="compile")
    with pytest.raises(InputError, match="a network model has a name"):
        run(graph(), network=object())


def test_a_model_in_python_needs_the_reference_engine():
    class Half:
        name = "half"

        def rates(self, routes, capacity):
            return [min(capacity[link] for link in route) / 2 for route in routes]

    assert run(graph(), network=Half(), engine="reference").end_ps.tolist() == [7, 200_012, 200_012]
    with pytest.raises(InputError, match="engine='reference'"):
        run(graph(), network=Half())


@both_engines
def test_time_that_does_not_fit(engine):
    builder = TaskGraphBuilder([1], [0])
    builder.transfer(0, 1, [0], 9_223_371)
    builder.compute(0, "s", 10**18, [0])
    message = r"passes 9223371 s at .*task 1"
    with pytest.raises(SimulationError, match=message):
        run(builder.build(), engine=engine)
    for size in (9_223_372, 2**53):
        builder = TaskGraphBuilder([1], [0])
        builder.transfer(0, 1, [0], size)
        with pytest.raises(SimulationError, match=r"passes 9223371 s at .*task 0"):
            run(builder.build(), engine=engine)


@both_engines
def test_the_last_instant_fits(engine):
    builder = TaskGraphBuilder([1], [0])
    builder.transfer(0, 1, [0], 9_223_371)
    assert run(builder.build(), engine=engine).end_ps.tolist() == [9_223_371 * 10**12]


@both_engines
def test_nothing_to_do(engine):
    records = run(TaskGraphBuilder([], []).build(), engine=engine)
    assert records.num_events == len(records.end_ps) == 0


@both_engines
def test_progress_and_interruption(engine, monkeypatch):
    monkeypatch.setattr(compiled, "PROGRESS_S", -1.0)
    monkeypatch.setattr(reference, "PROGRESS_S", -1.0)
    monkeypatch.setattr(compiled, "BUDGET", 100)
    builder = TaskGraphBuilder([], [])
    for _ in range(1000):
        builder.compute(0, "s", 10)
    calls = []
    run(builder.build(), engine=engine, progress=lambda *call: calls.append(call))
    assert len(calls) >= 10
    assert calls == sorted(calls)
    assert all(total == 1000 and now == 10 * done for done, total, now in calls)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(builder.build(), engine=engine, progress=interrupt)


def test_arrays_that_are_read_only_or_of_other_types_are_accepted_and_left_alone():
    plain = graph()
    odd = {}
    for name in (
        "kind",
        "stream",
        "duration_ps",
        "size_bytes",
        "route",
        "num_required",
        "predecessor_ptr",
        "predecessor_idx",
    ):
        odd[name] = getattr(plain, name).astype(np.int64)
        odd[name].flags.writeable = False
    before = len(compiled.advance.signatures) if hasattr(compiled.advance, "signatures") else 0
    assert run(replace(plain, **odd)).end_ps.tolist() == run(plain).end_ps.tolist()
    if before:
        assert len(compiled.advance.signatures) == before


def test_importing_the_shell_imports_no_numba():
    source = Path(__file__).resolve().parents[3] / "src"
    code = "import trine.engine.run, trine.engine.reference, trine.graph.builder, sys; sys.exit('numba' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(source)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
