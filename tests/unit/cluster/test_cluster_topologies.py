"""Has each named topology the links that it should, and the routes?"""

from __future__ import annotations

from itertools import pairwise

import pytest

from trine.cluster import Cluster, Device, Link, build_topology
from trine.errors import SpecError, UnitError


def build(text: str, num_gpus: int) -> Cluster:
    return build_topology(text, "50 GB/s", "1 us", num_gpus)


@pytest.mark.parametrize(
    ("text", "num_gpus", "num_links"),
    [
        ("ring", 1, 0),
        ("ring", 2, 2),
        ("ring", 3, 6),
        ("ring", 8, 16),
        ("switch", 8, 16),
        ("full", 8, 56),
        ("mesh:2x4", 8, 2 * (2 * 3 + 4)),
        ("torus:2x4", 8, 2 * (2 * 4 + 4)),
        ("torus:2x2", 4, 8),
        ("torus:3x3", 9, 36),
        ("mesh:1x5", 5, 8),
        ("tree", 8, 2 * (8 + 6)),
        ("tree", 5, 2 * (4 + 2 + 2)),
        ("tree:4", 8, 2 * (8 + 2)),
    ],
)
def test_number_of_links(text: str, num_gpus: int, num_links: int) -> None:
    cluster = build(text, num_gpus)
    assert len(cluster.links) == num_links
    assert len(cluster.gpus) == num_gpus
    assert len({(link.source, link.target) for link in cluster.links}) == num_links  # none twice
    assert all(link.bytes_per_s == 50 * 10**9 and link.latency_ps == 10**6 for link in cluster.links)


@pytest.mark.parametrize(
    ("text", "num_gpus", "ends", "num_links"),
    [
        ("ring", 8, (0, 5), 3),
        ("switch", 8, (0, 5), 2),
        ("full", 8, (0, 5), 1),
        ("mesh:4x4", 16, (0, 15), 6),
        ("torus:4x4", 16, (0, 15), 2),
        ("tree", 8, (0, 7), 6),
        ("tree", 8, (0, 1), 2),
    ],
)
def test_length_of_routes(text: str, num_gpus: int, ends: tuple[int, int], num_links: int) -> None:
    cluster = build(text, num_gpus)
    route = cluster.route(*ends)
    assert len(route) == num_links
    assert cluster.route_latency_ps(route) == num_links * 10**6
    hops = [cluster.links[link] for link in route]
    assert [hops[0].source, hops[-1].target] == list(ends)
    assert all(a.target == b.source for a, b in pairwise(hops))


def test_ties_go_to_the_lowest_links() -> None:
    cluster = build("ring", 4)
    assert [cluster.links[link].name for link in cluster.route(0, 2)] == ["gpu0->gpu1", "gpu1->gpu2"]


def test_large_rings_and_switches_have_their_neighbour_routes_at_once() -> None:
    for text in ("ring", "switch"):
        cluster = build(text, 1024)
        assert all(len(cluster.route(i, (i + 1) % 1024)) == (1 if text == "ring" else 2) for i in range(1024))


@pytest.mark.parametrize(
    ("text", "num_gpus", "message"),
    [
        ("rnig", 4, "unknown topology 'rnig'; did you mean 'ring'"),
        ("ring:4", 4, "unknown topology 'ring:4'"),
        ("mesh", 4, "needs its rows and columns"),
        ("mesh:2", 4, "needs its rows and columns"),
        ("mesh:2x3", 4, "has 6 GPUs, not 4"),
        ("torus:0x4", 4, "whole numbers from 1"),
        ("tree:1", 4, "arity"),
        ("ring", 0, "needs 1 to"),
    ],
)
def test_wrong_topologies_are_refused(text: str, num_gpus: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build(text, num_gpus)


def test_wrong_quantities_are_refused() -> None:
    with pytest.raises(UnitError, match="the bandwidth needs a unit"):
        build_topology("ring", "50", "1 us", 4)
    with pytest.raises(UnitError, match="the latency needs a unit"):
        build_topology("ring", "50 GB/s", "1", 4)
    with pytest.raises(SpecError, match="latency must not be negative"):
        build_topology("ring", 10**9, -1, 4)


def test_clusters_check_themselves() -> None:
    a, b = Device(name="a"), Device(name="b")
    link = {"name": "a->b", "source": 0, "target": 1, "bytes_per_s": 1, "latency_ps": 0}
    Cluster(name="ok", devices=(a, b), links=(Link(**link),))
    for change, message in (
        ({"target": 2}, "does not exist"),
        ({"target": 0}, "to itself"),
        ({"bytes_per_s": 0}, "must be positive"),
        ({"latency_ps": -1}, "must not be negative"),
    ):
        with pytest.raises(SpecError, match=message):
            Cluster(name="bad", devices=(a, b), links=(Link(**{**link, **change}),))
    with pytest.raises(SpecError, match="two devices are named 'a'"):
        Cluster(name="bad", devices=(a, a), links=())
    with pytest.raises(SpecError, match="unknown kind 'gpuu'; did you mean 'gpu'"):
        Cluster(name="bad", devices=(Device(name="a", kind="gpuu"),), links=())
    with pytest.raises(SpecError, match="no device 'c'"):
        Cluster(name="ok", devices=(a, b), links=()).index("c")


def test_only_forwarding_devices_carry_others_traffic() -> None:
    devices = tuple(Device(name=name, forwards=name == "b") for name in "abc")
    links = tuple(
        Link(name=f"{s}{t}", source=s, target=t, bytes_per_s=1, latency_ps=latency)
        for s, t, latency in ((0, 1, 5), (1, 2, 5), (2, 0, 1), (1, 0, 1))
    )
    cluster = Cluster(name="abc", devices=devices, links=links)
    assert cluster.route(0, 2) == (0, 1)
    with pytest.raises(SpecError, match="no route from 'c' to 'b'; only GPUs and hosts with 'forwards: true'"):
        cluster.route(2, 1)  # only through a, which does not forward
