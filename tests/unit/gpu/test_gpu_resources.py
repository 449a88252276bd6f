"""Utilisation of resources and links; lanes and places match the engine's layout."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gpu_results import US, cluster, model, program, result

from trine.cluster import load_cluster
from trine.gpu.fabric import GpuFabric
from trine.gpu.layout import CHANNEL, PORT, router_of
from trine.gpu.model import CROSSBAR, Noc, Ports
from trine.gpu.program import DMA
from trine.gpu.results import plot, resources
from trine.gpu.results.resources import Traffic


def test_kinds_in_the_order_of_a_request():
    kinds = {use.kind: use for use in result().kinds}
    assert list(kinds) == ["cu", "noc", "lane", "memory"]
    cu, noc, lane, memory = kinds.values()
    assert (cu.count, cu.used, cu.busiest, cu.busiest_rank) == (32, 2, "cu0.out", 0)
    assert (noc.count, noc.used, noc.busy_ps, noc.busiest_ps) == (28, 2, 6 * US, 3 * US)  # 7 pairs per mesh of 2 x 3
    assert (lane.count, lane.used, lane.busiest, lane.busiest_rank) == (6, 4, "gpu1->gpu0 lane 0", -1)
    assert (memory.count, memory.data, memory.control) == (12, 64, 32)


def test_links_and_their_lanes():
    first, second, back = result().links
    assert (first.name, first.lanes, first.used) == ("gpu0->gpu1", 2, 2)
    assert (first.busy_ps, first.busiest_ps) == (6 * US, 4 * US)
    assert first.utilisation == 0.3
    assert (second.name, second.lanes, second.used, second.data) == ("gpu0->gpu1#2", 2, 1, 0)
    assert (back.data_bytes, back.control_bytes) == (32 * 144, 8 * 16)


def test_traffic_on_links_out_of_gpus_and_through_cus():
    found = result()
    assert resources.fabric_traffic(found) == Traffic(64, 24, 64 * 144, 24 * 16)
    assert resources.noc_traffic(found) == Traffic(32, 16, 32 * 144, 16 * 16)


def test_bytes_of_packets_follow_from_busy_times():
    kinds = program().op_kind.copy()
    kinds[0] = DMA
    found = result(program=replace(program(), op_kind=kinds))
    back = found.links[2]
    assert back.data_bytes + back.control_bytes == 5 * US * (10**10 // 2) // 10**12
    assert found.not_modelled[-1].startswith("memory-channel and NoC traffic of copy engines")


@pytest.mark.parametrize("ports", [1, 3, 4, 8, 18])
@pytest.mark.parametrize("machine", ["pair", "dgx-h100", "mi300x-node"])
def test_lanes_are_those_of_the_fabric(ports, machine):
    place = cluster() if machine == "pair" else load_cluster(machine)
    group = tuple(place.gpus)[:2]
    gpu = model(ports=Ports(count=ports, latency_ps=0, interleave_bytes=256))
    fabric = GpuFabric(place, group, gpu)
    names = ("lane_link", "lane_number", "lane_data", "lane_control", "lane_busy_ps")
    unused = {name: np.zeros(0, np.int32) for name in names}
    found = result(gpu, cluster=place, group=group, records_changes=unused)
    for a, b in ((0, 1), (1, 0)):
        for way in fabric.paths(a, b):
            links = np.array([hop.link for hop in way.hops])
            assert resources.lanes_of_links(found, links).tolist() == [hop.num_lanes for hop in way.hops]


@pytest.mark.parametrize("ports", [1, 4, 7])
def test_each_lane_is_at_the_port_that_the_fabric_says(ports):
    gpu = model(ports=Ports(count=ports, latency_ps=0, interleave_bytes=256))
    ways = [*GpuFabric(cluster(), (0, 1), gpu).paths(0, 1), *GpuFabric(cluster(), (0, 1), gpu).paths(1, 0)]
    hops = [way.hops[0] for way in ways]
    changes = {
        "lane_link": np.array([hop.link for hop in hops], np.int32),
        "lane_number": np.array([hop.lane for hop in hops], np.int32),
        "lane_busy_ps": (1 + np.arange(len(hops))) * US // 10,
        "lane_data": np.ones(len(hops), np.int64),
        "lane_control": np.ones(len(hops), np.int64),
    }
    found = result(gpu, records_changes=changes)
    wanted = [[None] * ports for _ in range(4)]
    for number, way in enumerate(ways, 1):
        source = 0 if number <= len(ways) // 2 else 1
        for column, port in ((2 * source, way.port_out), (2 * (1 - source) + 1, way.port_in)):
            wanted[column][port] = max(wanted[column][port] or 0.0, number / 100)
    for gpu_number in range(2):
        out, into = zip(*resources.port_busy(found, gpu_number), strict=True)
        assert list(out) == pytest.approx(wanted[2 * gpu_number])
        assert list(into) == pytest.approx(wanted[2 * gpu_number + 1])


@pytest.mark.parametrize("ports", [7, 16])
def test_ports_of_every_rank_of_a_full_mesh_are_dealt_out_as_the_fabric_deals_them_out(ports):
    place = load_cluster("mi300x-node")
    gpu = model(ports=Ports(count=ports, latency_ps=0, interleave_bytes=256))
    fabric, ranks = GpuFabric(place, place.gpus, gpu), range(len(place.gpus))
    ways = [(a, b, way) for a in ranks for b in ranks if a != b for way in fabric.paths(a, b)]
    assert all(len(way.hops) == 1 for _, _, way in ways)
    records = SimpleNamespace(
        gpu_of=np.array(ranks),
        lane_link=np.array([way.hops[0].link for _, _, way in ways]),
        lane_number=np.array([way.hops[0].lane for _, _, way in ways]),
        lane_busy_ps=1 + np.arange(len(ways)),
        lane_data=np.ones(len(ways), np.int64),
        lane_control=np.ones(len(ways), np.int64),
    )
    found = SimpleNamespace(model=gpu, cluster=place, group=place.gpus, records=records, time_ps=len(ways))
    for rank in ranks:
        wanted = [[None, None] for _ in range(ports)]
        for number, (source, target, way) in enumerate(ways, 1):
            for at, port, side in ((source, way.port_out, 0), (target, way.port_in, 1)):
                if at == rank:
                    wanted[port][side] = max(wanted[port][side] or 0.0, number / len(ways))
        assert resources.port_busy(found, rank) == [tuple(port) for port in wanted]


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 4), (3, 1), (2, 3), (4, 8)])
def test_channels_and_ports_are_drawn_where_the_layout_has_them(rows, cols):
    noc = Noc(kind="mesh", bytes_per_s=1, hop_ps=1, rows=rows, cols=cols)
    gpu = model(noc=noc)
    for kind, places in ((CHANNEL, plot.channel_routers(gpu)), (PORT, plot.port_routers(gpu))):
        assert [places[i % len(places)] for i in range(20)] == [router_of(gpu, kind, i) for i in range(20)]


def test_a_crossbar_has_no_edges():
    assert resources.exists(result(model(CROSSBAR))).all()
    assert (~resources.exists(result())).sum() == 24 - 14
