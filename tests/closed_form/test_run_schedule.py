"""Does one schedule, run on the links of a cluster, take the time of the formula and carry the bytes it should?"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import trine
from trine.cluster.cluster import Cluster
from trine.cluster.parts import Device, Link
from trine.collectives import make_schedule
from trine.collectives.closed_forms import uncontended_ps
from trine.collectives.expand import expand
from trine.collectives.run import MAX_PAIR_TABLE, run_schedule, schedule_graph
from trine.collectives.schedule import ExpandedSchedule
from trine.common.units import transfer_ps
from trine.errors import InputError, SpecError
from trine.graph.taskgraph import JOIN, TRANSFER

SIZE = 1_000_003
BANDWIDTH, LATENCY = 50 * 10**9, 1_000_000


def ring(ranks):
    return trine.build_topology("ring", "50 GB/s", "1 us", ranks)


@pytest.mark.parametrize("network", ["fair", "equal", "fifo"])
@pytest.mark.parametrize("engine", ["compiled", "reference"])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_rings_on_a_ring(kind, ranks, network, engine):
    cluster = ring(ranks)
    schedule = make_schedule(kind, ranks, SIZE)
    done = run_schedule(schedule, cluster, cluster.gpus, network=network, engine=engine)
    assert done.end_ps == uncontended_ps(schedule, BANDWIDTH, LATENCY)
    assert done.rank_end_ps.tolist() == [done.end_ps] * ranks
    steps = (2 if kind == "all_reduce" else 1) * (ranks - 1)
    used = done.link_bytes[done.link_bytes > 0]
    assert used.tolist() == [steps * schedule.chunk_bytes] * ranks
    assert done.link_busy_ps.max() == transfer_ps(steps * schedule.chunk_bytes, BANDWIDTH)


def test_the_root_of_a_broadcast_is_through_before_the_last_rank():
    cluster = ring(4)
    done = run_schedule(make_schedule("broadcast", 4, SIZE, root=1), cluster, cluster.gpus)
    assert done.rank_end_ps.argmax() == 0
    assert done.rank_end_ps[1] == done.rank_end_ps.min()
    assert done.end_ps == done.rank_end_ps.max()


def test_software_and_flags_are_paid_by_each_message():
    cluster = ring(4)
    schedule = make_schedule("all_reduce", 4, SIZE)
    plain = run_schedule(schedule, cluster, cluster.gpus).end_ps
    for network in ("fair", "fifo"):
        late = run_schedule(schedule, cluster, cluster.gpus, step_ps=700, network=network)
        assert late.end_ps == plain + 6 * 700
        wide = run_schedule(schedule, cluster, cluster.gpus, byte_factor=Fraction(128, 120), network=network)
        wire = -(-schedule.chunk_bytes * 128 // 120)
        assert wide.end_ps == 6 * (transfer_ps(wire, BANDWIDTH) + LATENCY)
        assert wide.link_bytes.max() == 6 * wire
    double = run_schedule(schedule, cluster, cluster.gpus, byte_factor=2.0)
    assert double.link_bytes.max() == 2 * run_schedule(schedule, cluster, cluster.gpus).link_bytes.max()


def test_software_may_differ_from_pair_to_pair_and_is_asked_once_a_pair():
    cluster = ring(4)
    asked = []

    def slow_into_3(source, target):
        asked.append((source, target))
        return 5000 if target == 3 else 0

    done = run_schedule(make_schedule("broadcast", 4, 1000, root=0), cluster, cluster.gpus, step_ps=slow_into_3)
    assert asked == [(0, 1), (1, 2), (2, 3)]
    assert done.end_ps == 3 * (transfer_ps(1000, BANDWIDTH) + LATENCY) + 5000


def test_the_group_says_which_devices():
    """A ring of every second GPU of a ring crosses two links a step."""
    cluster = ring(8)
    schedule = make_schedule("all_reduce", 4, SIZE)
    done = run_schedule(schedule, cluster, cluster.gpus[::2], network="fifo")
    assert done.end_ps == 6 * 2 * (transfer_ps(schedule.chunk_bytes, BANDWIDTH) + LATENCY)
    assert done.graph.rank_names == tuple(cluster.devices[gpu].name for gpu in cluster.gpus[::2])


@pytest.mark.parametrize(
    ("group", "options", "message"),
    [
        ((0, 1, 2), {}, "is for 4 ranks and 0 switches that reduce, the group has 3 and 0"),
        ((0, 1, 2, 3), {"reducing_switches": (4,)}, "the group has 4 and 1"),
        ((0, 1, 2, 2), {}, "'gpu2' is in the group twice"),
        ((0, 1, 2, 99), {}, "has no device 99"),
        ((0, 1, 2, -1), {}, "has no device -1"),
        ((0, 1, 2, 3), {"step_ps": -1}, "must not be negative, got -1 ps"),
        ((0, 1, 2, 3), {"step_ps": lambda a, b: -a}, "must not be negative"),
        ((0, 1, 2, 3), {"byte_factor": 0.5}, "must be at least the payload's bytes"),
    ],
)
def test_what_does_not_fit_is_refused(group, options, message):
    with pytest.raises(InputError, match=message):
        run_schedule(make_schedule("all_reduce", 4, SIZE), ring(8), group, **options)


def test_an_expanded_schedule_needs_devices_for_all_its_positions():
    with pytest.raises(InputError, match="is for 4 ranks and 0 switches that reduce, the group has 3"):
        run_schedule(expand(make_schedule("all_reduce", 4, SIZE)), ring(8), (0, 1, 2))


def test_ranks_that_cannot_reach_each_other():
    devices = tuple(Device(name=f"gpu{i}") for i in range(2))
    link = Link(name="one way", source=0, target=1, bytes_per_s=10**9, latency_ps=0)
    with pytest.raises(SpecError, match="no route from 'gpu1' to 'gpu0'"):
        run_schedule(make_schedule("all_reduce", 2, 8), Cluster(name="half", devices=devices, links=(link,)), (0, 1))


def test_more_ranks_than_the_table_of_pairs_holds(monkeypatch):
    cluster = ring(8)
    schedule = make_schedule("all_reduce", 8, SIZE)
    expected = schedule_graph(schedule, cluster, cluster.gpus)[0]
    monkeypatch.setattr("trine.collectives.run.MAX_PAIR_TABLE", 1)
    assert MAX_PAIR_TABLE > 8 * 8
    graph = schedule_graph(schedule, cluster, cluster.gpus)[0]
    np.testing.assert_array_equal(graph.route, expected.route)
    np.testing.assert_array_equal(graph.route_links, expected.route_links)


class Twofold(Cluster):
    """Two GPUs with two wires of different speed each way: a quarter of the bytes over the first."""

    def paths(self, source, target):
        first = 0 if source == 0 else 2
        return (((first,), 0.25), ((first + 1,), 0.75))


def twofold():
    devices = (Device(name="gpu0"), Device(name="gpu1"))
    wires = [(0, 1, 10), (0, 1, 30), (1, 0, 10), (1, 0, 30)]
    links = tuple(
        Link(name=f"wire {i}", source=a, target=b, bytes_per_s=speed * 10**9, latency_ps=1000)
        for i, (a, b, speed) in enumerate(wires)
    )
    return Twofold(name="twofold", devices=devices, links=links)


@pytest.mark.parametrize("network", ["fair", "fifo"])
@pytest.mark.parametrize("size", [8000, 8001, 1, 0])
def test_messages_are_split_over_several_paths(network, size):
    done = run_schedule(make_schedule("all_reduce", 2, size), twofold(), (0, 1), network=network)
    chunk = -(-size // 2)
    parts = round(chunk * 0.25), chunk - round(chunk * 0.25)
    assert done.link_bytes.tolist() == [2 * parts[0], 2 * parts[1]] * 2
    step = max(transfer_ps(part, speed * 10**9) for part, speed in zip(parts, (10, 30), strict=True))
    assert done.end_ps == 2 * (step + 1000)
    assert done.graph.kind.tolist() == [JOIN] * 4 + [TRANSFER] * 8
    assert done.rank_end_ps.tolist() == [done.end_ps] * 2


def test_only_those_messages_are_split_that_have_several_paths():
    class OneWay(Twofold):
        def paths(self, source, target):
            return super().paths(source, target) if source == 0 else (((3,), 1.0),)

    base = twofold()
    cluster = OneWay(name=base.name, devices=base.devices, links=base.links)
    done = run_schedule(make_schedule("all_reduce", 2, 8000), cluster, (0, 1))
    assert done.link_bytes.tolist() == [2000, 6000, 0, 8000]
    assert sorted(done.graph.kind.tolist()) == [TRANSFER] * 6 + [JOIN] * 2
    slowest = transfer_ps(4000, 30 * 10**9)
    assert done.end_ps == 2 * (slowest + 1000)


def test_switches_that_reduce_take_part_behind_the_ranks():
    """Position 2 is the switch: rank 0 sends to it, and then it sends to rank 1."""
    expanded = ExpandedSchedule(
        src=np.array([0, 2], np.int32),
        dst=np.array([2, 1], np.int32),
        step=np.array([0, 1], np.int32),
        chunk=np.zeros(2, np.int32),
        size_bytes=np.full(2, 1000),
        reduce=np.array([True, False]),
        entry_src=np.array([True, False]),
        entry_dst=np.array([False, True]),
        predecessor_ptr=np.array([0, 0, 1]),
        predecessor_idx=np.array([0], np.int32),
        completion_ptr=np.array([0, 1, 2]),
        completion_idx=np.array([0, 1], np.int32),
        num_switches=1,
    )
    cluster = trine.build_topology("switch", "1 GB/s", "1 us", 2)
    done = run_schedule(expanded, cluster, cluster.gpus, reducing_switches=(cluster.index("switch"),))
    assert done.rank_end_ps.tolist() == [2 * 10**6, 4 * 10**6]
    assert sorted(done.link_bytes.tolist()) == [0, 0, 1000, 1000]
    with pytest.raises(InputError, match="is for 2 ranks and 1 switches that reduce, the group has 2 and 0"):
        run_schedule(expanded, cluster, cluster.gpus)
    with pytest.raises(InputError, match="names position 2, the group has 2"):
        run_schedule(replace(expanded, num_switches=0), cluster, cluster.gpus)
