"""Are network models of rates and of queues kept apart, checked, and run?"""

import random
from dataclasses import replace

import numpy as np
import pytest

import trine
from trine.engine._limits import MAX_PS
from trine.engine.models import FairSharing, QueueModel, StoreAndForward, network_model
from trine.engine.run import run
from trine.errors import InputError, SimulationError
from trine.graph.builder import TaskGraphBuilder
from trine.testing import check_network_model

both_engines = pytest.mark.parametrize("engine", ["compiled", "reference"])


def two_hops():
    builder = TaskGraphBuilder([10**9, 10**9], [100, 200])
    builder.transfer(0, 1, [0, 1], 1000)
    return builder.build()


def test_times_of_service_add_up():
    assert StoreAndForward().service_ps([3, 1, 2], 10**12) == [3, 4, 6]
    assert StoreAndForward().service_ps([1], 3 * 10**11) == [4]
    assert isinstance(StoreAndForward(), QueueModel)
    assert not isinstance(FairSharing(), QueueModel)


@both_engines
def test_what_is_not_the_links_latency_passes_before_the_first_link(engine):
    graph = two_hops()
    later = replace(graph, route_latency_ps=graph.route_latency_ps + 50)
    records = run(later, network="fifo", engine=engine)
    assert (records.start_ps[0], records.end_ps[0]) == (0, 50 + 2 * 10**6 + 300)
    assert run(later, engine=engine).end_ps[0] == 50 + 10**6 + 300


@both_engines
def test_a_graph_without_latencies_of_links_is_refused(engine):
    graph = replace(two_hops(), link_latency_ps=None)
    with pytest.raises(InputError, match=r"'fifo' carries messages link by link.*latency of each link"):
        run(graph, network="fifo", engine=engine)
    assert run(graph, engine=engine).end_ps[0] == 10**6 + 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"link_latency_ps": np.array([100])}, "has 1 entries for 2 links"),
        ({"link_latency_ps": np.array([100, -1])}, "link 1 has a latency of -1 ps"),
        ({"link_latency_ps": np.array([100, 2**62 * 2 - 1])}, "link 1 has a latency"),
        ({"link_latency_ps": np.array([100, 201])}, "route 0 has 1 ps less latency than its links"),
    ],
)
def test_latencies_that_cannot_be(change, message):
    for network in ("fair", "fifo"):
        with pytest.raises(InputError, match=message):
            run(replace(two_hops(), **change), network=network)


@both_engines
@pytest.mark.parametrize("latency", [0, MAX_PS])
def test_time_does_not_wrap(engine, latency):
    builder = TaskGraphBuilder([1], [latency])
    builder.transfer(0, 1, [0], 2**52 if latency == 0 else 1, name="much")
    with pytest.raises(SimulationError, match="simulated time passes 9223371 s"):
        run(builder.build(), network="fifo", engine=engine)


@both_engines
def test_many_messages_at_one_instant_outgrow_no_array(engine):
    builder = TaskGraphBuilder([10**12], [1])
    count = 20_000 if engine == "compiled" else 6_000
    for _ in range(count):
        builder.transfer(0, 1, [0], 1)
    ends = run(builder.build(), network="fifo", engine=engine).end_ps
    np.testing.assert_array_equal(ends, np.arange(count) + 2)


class Both(FairSharing, StoreAndForward):
    name = "both"


def test_a_model_is_of_one_kind():
    with pytest.raises(InputError, match="'both' has both rates and service_ps"):
        network_model(Both())


class Broken:
    """Store and forward with one fault."""

    name = "broken"

    def __init__(self, fault):
        self.fault, self.calls = fault, 0

    def service_ps(self, sizes_bytes, bytes_per_s):
        self.calls += 1
        right = StoreAndForward().service_ps(sizes_bytes, bytes_per_s)
        match self.fault:
            case "fast":
                return [time // 2 for time in right]
            case "at once":
                return StoreAndForward().service_ps(sizes_bytes, bytes_per_s * len(sizes_bytes))
            case "together":  # each alone is on time, all together are not
                return [StoreAndForward().service_ps([size], bytes_per_s)[0] for size in sizes_bytes]
            case "short":
                return right[1:]
            case "floats":
                return [time + 0.5 for time in right]
            case "state":
                return [time + self.calls for time in right]
            case "chance":
                return [time + random.randrange(10**6) for time in right]
            case "changes":
                sizes_bytes[0] += 1
                return right
            case "prefers large":
                return [time + 10**12 // size for time, size in zip(right, sizes_bytes, strict=True)]
        return right


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fast", r"bytes are through after \d+ ps, the link needs"),
        ("together", r"bytes are through after \d+ ps, the link needs"),
        ("at once", r"bytes are through after \d+ ps, the link needs"),
        ("short", r"\d times of service for \d messages"),
        ("floats", "is no whole number of ps"),
        ("state", "other times when asked again"),
        ("chance", "other times when asked again"),
        ("changes", "must not change its arguments"),
        ("prefers large", r"is through after \d+ ps, but with twice the bytes"),
    ],
)
def test_broken_models(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_network_model(Broken(fault))


class Counting(StoreAndForward):
    """Service times that depend on the number of runs; each answer alone is correct."""

    name = "counting"

    def __init__(self, slower):
        self.slower = slower

    def service_ps(self, sizes_bytes, bytes_per_s):
        return [time + self.slower() for time in super().service_ps(sizes_bytes, bytes_per_s)]


@pytest.mark.parametrize(
    ("late_in_run", "message"),
    [(1, "a second run differs from the first"), (2, "when links and routes are numbered otherwise")],
)
def test_models_that_differ_from_run_to_run(late_in_run, message, monkeypatch):
    from trine.testing import network

    runs = []
    simulated = network._queue_records
    monkeypatch.setattr(network, "_queue_records", lambda *a: (runs.append(1), simulated(*a))[1])
    with pytest.raises(AssertionError, match=message):
        check_network_model(Counting(lambda: 10 * (len(runs) > late_in_run)))


class Resting(StoreAndForward):
    """Service times with a pause after each message: allowed, but the link rests."""

    name = "resting"

    def service_ps(self, sizes_bytes, bytes_per_s):
        return [time + 1000 * (place + 1) for place, time in enumerate(super().service_ps(sizes_bytes, bytes_per_s))]


def test_plug_ins_are_checked_and_run():
    check_network_model(Resting)
    check_network_model(StoreAndForward(), work_conserving=True)
    with pytest.raises(AssertionError, match=r"the link rests: all is through after \d+ ps"):
        check_network_model(Resting(), work_conserving=True)
    graph = two_hops()
    assert run(graph, network=Resting(), engine="reference").end_ps[0] == 2 * (10**6 + 1000) + 300
    with pytest.raises(InputError, match="runs with engine='reference' only"):
        run(graph, network=Resting())


@both_engines
def test_a_training_step_runs_on_it_and_takes_longer_through_a_switch(engine):
    cluster = trine.build_topology("switch", "25 GB/s", "1 us", 4)
    times = {}
    for network in ("fair", "fifo"):
        result = trine.simulate("vgg13-h100-b128", trine.Plan(dp=4), cluster=cluster, network=network, engine=engine)
        times[network] = result.step_time_ps
        assert result.records.network == network
    assert times["fifo"] > times["fair"]
