"""Does the library model find the rings, NICs, domains, reducing switches and slow links that a library would?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from trine.cluster import Cluster, load_cluster
from trine.collectives.nccl import Collectives, CommTopology, comm_topology
from trine.collectives.nccl.topology import domains_of
from trine.errors import InputError


def view(name: str, **machine: object) -> CommTopology:
    cluster = load_cluster(name, **machine)
    return comm_topology(cluster, range(len(cluster.gpus)))


#: Two GPUs of a DGX-1 share one or two NVLinks; ring counts are from NCCL's graph search (NCCL_DEBUG=INFO).
@pytest.mark.parametrize(("gpus", "rings"), [(2, 1), (3, 2), (4, 4), (5, 2), (8, 6)])
def test_rings_of_a_dgx1(gpus: int, rings: int) -> None:
    inside = view("dgx1-v100", gpus=gpus).inside
    assert inside is not None
    assert inside.lanes == rings
    lane = inside.ring_bytes_per_s / rings
    assert lane == pytest.approx(22.5e9, rel=0.1)  # one NVLink 2 in one direction


@pytest.mark.parametrize("gpus", range(2, 9))
def test_fully_joined_gpus_have_a_ring_for_every_other_gpu(gpus: int) -> None:
    inside = view("mi300x-node", gpus=gpus).inside
    assert inside is not None
    assert inside.lanes == gpus - 1


def test_nics_are_those_of_the_gpus_that_take_part() -> None:
    four = view("dgx-h100", nodes=2, gpus=8)
    assert (four.num_domains, four.min_per_domain, four.max_per_domain, four.num_ranks) == (2, 4, 4, 8)
    all_of_them = view("dgx-h100", nodes=2)
    assert four.between is not None
    assert all_of_them.between is not None
    assert (four.between.lanes, all_of_them.between.lanes) == (4, 8)
    assert all_of_them.between.ring_bytes_per_s == 2 * four.between.ring_bytes_per_s


def test_a_rack_is_domain_tier() -> None:
    rack = view("gb200-nvl72")
    assert (rack.num_domains, rack.num_ranks, rack.num_nodes) == (1, 72, 18)
    assert rack.between is None
    assert rack.multicast
    two = view("gb200-nvl72", nodes=2)
    assert (two.num_domains, two.num_ranks) == (2, 144)


def test_one_gpu_a_node_has_nothing_inside() -> None:
    cluster = load_cluster("dgx-h100", nodes=4)
    alone = comm_topology(cluster, (0, 8, 16, 24))
    assert alone.inside is None
    assert alone.num_domains == 4
    assert not alone.multicast


def test_switches_that_add_are_told_from_those_that_do_not() -> None:
    assert view("dgx-h100").multicast
    assert not view("dgx-a100").multicast
    assert not view("mi300x-node").multicast


def test_gpus_on_pcie_are_domain_tier() -> None:
    cards = view("l40s-pcie")
    assert (cards.num_domains, cards.num_ranks) == (1, 8)
    assert cards.inside is not None
    assert cards.inside.medium.startswith(("pcie", "upi"))


def first(cluster: Cluster, part: str) -> str:
    return next(link.name for link in cluster.links if part in link.name)


@pytest.mark.parametrize("slow", ["node0.gpu0->node0.nvswitch", "node1.nvswitch->node1.gpu3"])
def test_a_slow_link_of_any_node_slows_the_rings_inside(slow: str) -> None:
    healthy, degraded = view("dgx-h100", nodes=2), view("dgx-h100", nodes=2, slow_links=[(slow, "0.5")])
    assert healthy.inside is not None
    assert degraded.inside is not None
    assert degraded.inside.ring_bytes_per_s == pytest.approx(healthy.inside.ring_bytes_per_s / 2, rel=0.01)
    assert degraded.inside.limit == slow


def test_a_slow_nic_bounds_all_rings_between_nodes() -> None:
    slow = [("node1.nic3->leaf3.rail3", "0.5")]
    healthy, degraded = view("dgx-h100", nodes=2), view("dgx-h100", nodes=2, slow_links=slow)
    assert healthy.between is not None
    assert degraded.between is not None
    assert degraded.between.ring_bytes_per_s == pytest.approx(healthy.between.ring_bytes_per_s / 2, rel=0.01)
    assert healthy.inside == degraded.inside


def test_a_slow_lane_of_direct_links_lowers_the_ring_rate() -> None:
    cluster = load_cluster("dgx1-v100")
    slow = load_cluster("dgx1-v100", slow_links=[(first(cluster, "gpu0->gpu"), "0.5")])
    usual, degraded = comm_topology(cluster, range(8)).inside, comm_topology(slow, range(8)).inside
    assert usual is not None
    assert degraded is not None
    assert degraded.ring_bytes_per_s < usual.ring_bytes_per_s


def test_nodes_that_are_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from trine.collectives.nccl import topology as module

    seen: list[object] = []
    real = module._domain_tier
    monkeypatch.setattr(module, "_domain_tier", lambda *given: seen.append(given) or real(*given))
    assert view("dgx-h100", nodes=16).num_domains == 16
    assert len(seen) == 1


def test_ranks_may_have_any_names() -> None:
    cluster = load_cluster("dgx1-v100", gpus=8)
    order = (5, 2, 7, 0, 1, 6, 3, 4)
    assert comm_topology(cluster, order) == comm_topology(cluster, range(8))
    cards = load_cluster("l40s-pcie")
    assert comm_topology(cards, order) == comm_topology(cards, range(8))


def test_domains_hold_every_gpu_once() -> None:
    for name, nodes in (("dgx-h100", 3), ("mi250x-node", 2), ("l40s-pcie", 2), ("gb200-nvl72", 1)):
        cluster = load_cluster(name, nodes=nodes)
        found = [gpu for domain in domains_of(cluster, cluster.gpus) for gpu in domain]
        assert sorted(found) == sorted(cluster.gpus)


@pytest.mark.parametrize(
    ("group", "said"), [((), "at least 2"), ((0,), "at least 2"), ((0, 0), "twice"), ((0, 8), "8"), ((-1, 0), "-1")]
)
def test_wrong_groups_are_refused(group: tuple[int, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        comm_topology(load_cluster("dgx-h100"), group)


def test_a_library_runs_on_its_own_gpus() -> None:
    from trine.collectives.options import CollectiveOptions

    cluster = load_cluster("dgx-h100")
    with pytest.raises(InputError, match="run nccl, not rccl"):
        Collectives(cluster, None, CollectiveOptions(library="rccl"))
    unknown = replace(cluster, library=None)
    assert Collectives(unknown, None, CollectiveOptions(library="rccl")).library.name == "rccl"
    with pytest.raises(InputError, match="did you mean 'nccl'"):
        Collectives(unknown, None, CollectiveOptions(library="ncl"))


def test_domains_keep_the_order_of_the_gpus() -> None:
    cluster = load_cluster("dgx-h100", nodes=3)
    gpus = [cluster.gpus[rank] for rank in (17, 3, 16, 9, 2, 23)]
    assert domains_of(cluster, gpus) == [[gpus[0], gpus[2], gpus[5]], [gpus[1], gpus[4]], [gpus[3]]]
