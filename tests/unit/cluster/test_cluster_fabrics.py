"""Do fabrics deliver their bandwidth, and does routing spread the load?"""

from __future__ import annotations

from collections import Counter

import pytest

from trine.cluster import Cluster, build_topology, known_clusters, load_cluster
from trine.cluster.capacity import bisection_bytes_per_s
from trine.cluster.presets import link_named
from trine.collectives.nccl import Collectives
from trine.errors import SpecError

NIC = 48_500_000_000


def loads(cluster: Cluster, shift: int) -> Counter[int]:
    """Return the messages on each scale-out link if every GPU sends one ``shift`` GPUs further."""
    count = len(cluster.gpus)
    load: Counter[int] = Counter()
    for a in range(count):
        for route, part in cluster.paths(a, (a + shift) % count):
            for link in route:
                if cluster.links[link].link_class == "scale-out":
                    load[link] += part  # type: ignore[assignment]
    return load


@pytest.mark.parametrize("nodes", [2, 5, 16, 40, 64, 300])
@pytest.mark.parametrize("fabric", ["switch", "rail", "clos"])
def test_full_bandwidth_between_halves(fabric: str, nodes: int) -> None:
    """The bisection carries the smaller half's NICs; in an odd cluster the middle node is on both sides."""
    cluster = load_cluster("dgx-h100", nodes=nodes, fabric=fabric)
    bisection = bisection_bytes_per_s(cluster)
    assert bisection is not None
    assert bisection >= nodes // 2 * 8 * NIC


@pytest.mark.parametrize("nodes", [32, 64, 256])
def test_oversubscription_divides_what_leaves_carry_up(nodes: int) -> None:
    full = load_cluster("dgx-h100", nodes=nodes, fabric="clos")
    half = load_cluster("dgx-h100", nodes=nodes, fabric="clos:2")

    def up(cluster: Cluster) -> float:
        names = [device.name for device in cluster.devices]
        leaves = [i for i, name in enumerate(names) if name.startswith("leaf")]
        ratios = []
        for leaf in leaves[:-1]:  # the last one may not be full
            down = sum(link.bytes_per_s for link in cluster.links_from(leaf) if ".nic" in names[link.target])
            ratios.append(sum(link.bytes_per_s for link in cluster.links_from(leaf)) / down - 1)
        assert ratios
        return min(ratios)

    assert up(full) == pytest.approx(1, rel=0.01)
    assert up(half) == pytest.approx(0.5, rel=0.03)  # 42 ports down are not twice a whole number up


def test_d_mod_k_spreads_shifts_over_all_spines() -> None:
    """A shift puts at most one message on each link of a fat tree; always using the lowest links puts up to eight."""
    cluster = build_topology("fat-tree:8", "10 GB/s", "1 us", 64)
    for shift in (1, 8, 9, 24, 63):
        assert max(loads(cluster, shift).values()) == 1
    lowest = Cluster(name="", devices=cluster.devices, links=cluster.links)
    assert max(loads(lowest, 8).values()) == 8
    three = build_topology("fat-tree:4x4", "10 GB/s", "1 us", 64)
    for shift in (4, 16, 17):
        assert max(loads(three, shift).values()) == 1


def test_split_divides_evenly_and_hash_by_its_salt() -> None:
    plain = build_topology("fat-tree:4", "10 GB/s", "1 us", 16)

    def routed(routing: str) -> Cluster:
        return Cluster(name="", devices=plain.devices, links=plain.links, routing=routing)

    split = routed("ecmp-split")
    paths = split.paths(0, 15)
    assert len(paths) == 4
    assert [part for _, part in paths] == [0.25] * 4
    assert sum(loads(split, 5).values()) == pytest.approx(sum(loads(routed("d-mod-k"), 5).values()))
    with pytest.raises(SpecError, match="spreads messages from 'gpu0' to 'gpu15' over 4 routes"):
        split.route(0, 15)
    assert len(split.route(0, 1)) == 2
    hashed = [routed(f"ecmp-hash:{salt}") for salt in range(6)]
    routes = {cluster.route(0, 15) for cluster in hashed}
    assert len(routes) > 1
    assert all(cluster.route(0, 15) in dict(paths) for cluster in hashed)
    assert routed("ecmp-hash:3").route(0, 15) == hashed[3].route(0, 15)
    spines = Counter(routed("ecmp-hash").route(a, b)[1] for a in range(4) for b in range(4, 16))
    assert len(spines) == 4  # all links of the first leaf to spines are used
    assert min(spines.values()) >= 6  # of 48 messages


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        ("shortst", "unknown routing 'shortst'; did you mean 'shortest'"),
        ("shortest:1", "only ecmp-hash takes a salt"),
        ("ecmp-hash:", "only ecmp-hash takes a salt"),
        ("dimension-order", "needs a mesh or torus"),
    ],
)
def test_wrong_policies_are_refused(routing: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_cluster("dgx-h100", routing=routing)


def test_more_equal_routes_than_can_be_split_are_refused() -> None:
    plain = build_topology("torus:16x16", "1 GB/s", "1 us", 256)
    split = Cluster(name="", devices=plain.devices, links=plain.links, routing="ecmp-split")
    with pytest.raises(SpecError, match="more than 4096 equal routes"):
        split.paths(0, 8 * 16 + 8)
    assert len(split.paths(0, 17)) == 2


@pytest.mark.parametrize(
    ("nodes", "routers", "groups"),
    [(2, 1, 0), (4, 1, 0), (5, 2, 1), (32, 8, 1), (128, 32, 1), (129, 33, 2), (260, 65, 3)],
)
def test_slingshot_groups_follow_from_the_ports_of_a_switch(nodes: int, routers: int, groups: int) -> None:
    """A switch has 16 NICs, 31 other switches in its group, 17 links to other groups (De Sensi et al., SC 2020)."""
    cluster = load_cluster("gh200-node", nodes=nodes)
    names = [device.name for device in cluster.devices if device.kind == "switch"]
    assert sum(name.startswith("router") for name in names) == routers
    assert sum(name.startswith("group") for name in names) == groups
    assert f"dragonfly of {routers} switches" in cluster.notes
    lane = 23_500_000_000
    rates = {link.name: link.bytes_per_s for link in cluster.links if link.link_class == "scale-out"}
    assert rates["node0.nic0->router0"] == lane
    assert groups == 0 or rates["router0->group0"] == 31 * lane
    assert groups < 2 or rates["group0->global"] == 32 * 17 * lane


def test_hops_of_a_slingshot_dragonfly() -> None:
    """No hop between NICs of one switch, one between switches of a group, three between groups."""
    cluster = load_cluster("gh200-node", nodes=129)
    first = cluster.index("node0.nic0")

    def latency_ps(name: str) -> int:
        return cluster.route_latency_ps(cluster.route(first, cluster.index(name)))

    near = latency_ps("node1.nic0")
    assert latency_ps("node4.nic0") - near == 350_000
    assert latency_ps("node128.nic0") - near == 3 * 350_000


@pytest.mark.parametrize("preset", ["gh200-node", "mi250x-node"])
@pytest.mark.parametrize("nodes", [2, 8, 32, 129])
def test_a_dragonfly_with_adaptive_routing_carries_what_one_switch_carries(preset: str, nodes: int) -> None:
    sizes = (1 << 20, 1 << 30)
    asked = [Collectives(load_cluster(preset, nodes=nodes, fabric=fabric)) for fabric in (None, "switch")]
    for op in ("all_reduce", "all_gather", "all_to_all"):
        for size in sizes:
            dragonfly, switch = (each.predict(op, size).time_ps for each in asked)
            assert switch <= dragonfly <= 1.25 * switch, (op, size)
    large = asked[0].predict("all_reduce", 1 << 30)
    assert large.busbw_bytes_per_s > 0.9 * 4 * 23.5e9 * (1.0 if preset == "gh200-node" else 0.9)


@pytest.mark.parametrize(
    "preset", [name for name in known_clusters() if (fabric := load_cluster(name).fabric) and fabric.kind != "none"]
)
def test_no_usual_fabric_takes_bandwidth_from_larger_jobs(preset: str) -> None:
    """Each is non-blocking: a ring of 32 nodes is as fast as one of 4 except for latency and measured congestion."""
    small, large = (Collectives(load_cluster(preset, nodes=nodes)).topology.between for nodes in (4, 32))
    assert small is not None
    assert large is not None
    fabric = load_cluster(preset).fabric
    assert fabric is not None
    share = link_named(fabric.link).share_on(32)
    assert share == 1 or fabric.link in ("roce-100", "opa-100")
    assert large.ring_bytes_per_s >= 0.99 * share * small.ring_bytes_per_s
    assert large.gpu_bytes_per_s >= 0.5 * share * small.gpu_bytes_per_s
