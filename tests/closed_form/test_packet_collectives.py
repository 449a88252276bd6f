"""Do transfers in packets take the time computed by hand, to the picosecond?"""

from __future__ import annotations

import numpy as np
import pytest

from trine.cluster import build_topology
from trine.collectives.expand import expand
from trine.collectives.registry import make_schedule
from trine.errors import InputError
from trine.gpu.collective.packets import packet_collective

RATE = 12_500_000_000  # bytes/s: 80 ps a byte
LATENCY_PS = 50_000
PS = 10**12 // RATE


def alone_ps(size, links, packet, header):
    """Return a lone flow's time: all packets on the first link, then a full one per link, as a short last one waits."""
    packets = -(-size // packet)
    return (size + packets * header + (links - 1) * (min(size, packet) + header)) * PS + links * LATENCY_PS


@pytest.mark.parametrize("size", [8 << 10, 1 << 20, 8 * 5000])
@pytest.mark.parametrize(("packet", "header"), [(4096, 64), (1024, 0), (512, 48)])
def test_a_ring_on_a_clos(size, packet, header):
    cluster = build_topology("clos:2", RATE, LATENCY_PS, 8)
    schedule = make_schedule("all_reduce", 8, size, "ring")
    run = packet_collective(schedule, cluster, cluster.gpus, packet_bytes=packet, header_bytes=header)
    near, far = (alone_ps(size // 8, links, packet, header) for links in (2, 4))
    same_leaf = expand(schedule).src // 2 == expand(schedule).dst // 2
    assert run.flow_alone_ps.tolist() == np.where(same_leaf, near, far).tolist()
    assert run.flow_ps.tolist() == run.flow_alone_ps.tolist()  # no two flows meet
    assert run.end_ps == 14 * far
    assert run.bus_bytes_per_s == pytest.approx(size * 14 / 8 / (run.end_ps / 1e12))


def test_flows_that_meet_share_the_link():
    cluster = build_topology("switch", RATE, LATENCY_PS, 3)
    schedule = make_schedule("gather", 3, 3 * 64 * 4096, "direct", root=0)  # two flows into one link
    run = packet_collective(schedule, cluster, cluster.gpus, header_bytes=0)
    one = 64 * 4096 * PS
    assert run.flow_alone_ps.tolist() == [one + 4096 * PS + 2 * LATENCY_PS] * 2
    assert run.end_ps == 2 * one + 4096 * PS + 2 * LATENCY_PS
    # In turns: the first of them ends a packet before the second.
    assert sorted(run.flow_end_ps.tolist()) == [run.end_ps - 4096 * PS, run.end_ps]


def test_flows_begin_when_what_they_wait_for_has_ended():
    cluster = build_topology("ring", RATE, LATENCY_PS, 4)
    schedule = make_schedule("all_gather", 4, 4 * 4096, "ring")
    run = packet_collective(schedule, cluster, cluster.gpus, header_bytes=0)
    one = 4096 * PS + LATENCY_PS
    step = expand(schedule).step
    assert run.flow_start_ps.tolist() == (step * one).tolist()
    assert run.flow_end_ps.tolist() == ((step + 1) * one).tolist()


def test_one_rank_sends_nothing():
    cluster = build_topology("ring", RATE, LATENCY_PS, 2)
    run = packet_collective(make_schedule("all_reduce", 1, 4096, "ring"), cluster, cluster.gpus[:1])
    assert (run.end_ps, run.bus_bytes_per_s, len(run.flow_ps)) == (0, 0.0, 0)


@pytest.mark.parametrize(("packet", "header", "field"), [(0, 64, "packet_bytes"), (4096, -1, "header_bytes")])
def test_packets_of_no_size_are_refused(packet, header, field):
    cluster = build_topology("ring", RATE, LATENCY_PS, 2)
    schedule = make_schedule("all_reduce", 2, 4096, "ring")
    with pytest.raises(InputError, match=field):
        packet_collective(schedule, cluster, cluster.gpus, packet_bytes=packet, header_bytes=header)
