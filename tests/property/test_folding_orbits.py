"""Are the classes found from one rank of each orbit those of the search over all ranks?"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from folded_cases import degraded, joined, random_job, unequal_nodes

import trine
from trine.cluster import load_cluster
from trine.cluster.equal_nodes import EqualNodes, equal_nodes
from trine.folding.classes import ClassSearch, RankClasses
from trine.folding.orbits import Orbits
from trine.graph.grid import RankGrid

SEEDS = range(120)


def compared_fields(classes: RankClasses) -> dict[str, list[int]]:
    partition, links = classes.partition, classes.neighbourhood.links
    return {
        "class_of": partition.class_of.tolist(),
        "representatives": partition.representatives.tolist(),
        "sizes": partition.sizes.tolist(),
        "lowest links": links[partition.link_representatives].tolist(),
        "link_sizes": partition.link_sizes.tolist(),
        "rounds": list(partition.rounds),
    }


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Orbits]:
    """Compare each search over orbits with the search over all ranks, and return the orbits of each."""
    used: list[Orbits] = []
    search = ClassSearch._search

    def compared(self: ClassSearch, parts: object, limit: int | None) -> RankClasses:
        found = search(self, parts, limit)
        if found.orbits is not None:
            orbits, self.orbits = self.orbits, None
            plain = search(self, parts, limit)
            self.orbits = orbits
            assert compared_fields(found) == compared_fields(plain)
            links = plain.neighbourhood.real_links
            assert found.link_classes(links).tolist() == plain.link_classes(links).tolist()
            used.append(found.orbits)
        return found

    monkeypatch.setattr(ClassSearch, "_search", compared)
    return used


def simulate_random_job(seed: int) -> None:
    """Simulate a random job on equal nodes under one switch, some with a slow link or a slow rank.

    Skips most jobs that leave a node partly empty, because their ranks have no orbits.
    """
    rng = Random(seed)
    workload, plan = random_job(rng, 64)
    if (plan.num_ranks % 8 or plan.num_ranks == 8) and rng.random() < 0.95:
        return
    nodes = max(2, -(-plan.num_ranks // 8))
    cluster = joined(rng.choice(("dgx-h100", "mi300x-node")), nodes + rng.choice((0, 0, 1)), "switch")
    if rng.random() < 0.15:
        cluster = degraded(rng, cluster)
    slow = ((rng.randrange(plan.num_ranks), 1.3),) if rng.random() < 0.2 else ()
    trine.simulate(
        workload,
        plan,
        cluster=cluster,
        cpu=False,
        gpu=workload.gpu,
        collective_costs=rng.choice(("auto", "links")),
        stragglers=trine.Stragglers(slow=slow) if slow else None,
        fold="on",
    )


def test_classes_from_orbits_are_those_of_all_ranks(searches: list[Orbits]) -> None:
    for seed in SEEDS:
        simulate_random_job(seed)
    steps = {(axis, step) for orbits in searches for axis, step in orbits.steps.items()}
    assert len(searches) > 12
    assert {axis for axis, _ in steps} >= {"dp", "tp"}
    assert any(step > 1 for _, step in steps)  # a node has several coordinates of the axis


def test_orbits_partition_the_ranks() -> None:
    nodes = EqualNodes(count=24, num_gpus=4, num_links=10, fabric_link=240, num_fabric_links=4)
    grid = RankGrid([("tp", 2), ("dp", 12), ("pp", 4)])
    orbits = Orbits(grid=grid, nodes=nodes, steps={"dp": 2, "pp": 1})
    firsts = orbits.firsts(np.arange(96))
    assert sorted(set(firsts.tolist())) == orbits.representatives.tolist() == [0, 1, 2, 3]
    assert np.bincount(firsts)[orbits.representatives].tolist() == [orbits.size] * 4
    for first in orbits.representatives.tolist():
        assert np.flatnonzero(firsts == first).min() == first
    links = np.arange(240 + 24 * 4)
    assert sorted(set(orbits.first_links(links).tolist())) == [*range(10), *range(240, 244)]


@pytest.mark.parametrize("seed", range(6))
def test_exchanged_nodes_have_exchanged_routes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = load_cluster(("dgx-h100", "mi300x-node", "dgx-a100")[seed % 3], nodes=5, fabric="switch")
    gpus = np.array(cluster.gpus)
    nodes = equal_nodes(cluster, gpus)
    assert nodes is not None
    order = rng.permutation(5)
    pairs = rng.integers(len(gpus), size=(2, 200))
    moved = order[pairs // nodes.num_gpus] * nodes.num_gpus + pairs % nodes.num_gpus
    ptr, links = cluster.routes(gpus[pairs[0]], gpus[pairs[1]])
    moved_ptr, moved_links = cluster.routes(gpus[moved[0]], gpus[moved[1]])
    assert ptr.tolist() == moved_ptr.tolist()
    assert nodes.moved_links(links, order[nodes.nodes_of(links)]).tolist() == moved_links.tolist()


@pytest.mark.parametrize(
    "cluster",
    [
        load_cluster("dgx-h100", nodes=4, fabric="fat-tree"),
        load_cluster("dgx-h100", nodes=4, fabric="rail"),
        load_cluster("dgx-h100", nodes=4, fabric="switch", slow_links=[("node2.pcie0->node2.nic0", 0.5)]),
        load_cluster("dgx-h100", nodes=4, fabric="switch", links_down=["node2.pcie0->node2.nic0"]),
        load_cluster("dgx-h100", nodes=4, fabric="switch", routing="ecmp-hash:3"),
        load_cluster("dgx-h100"),
        unequal_nodes(20),
    ],
    ids=["fat-tree", "rail", "slow link", "dead link", "hashed", "one node", "unequal nodes"],
)
def test_other_machines_have_no_equal_nodes(cluster: trine.Cluster) -> None:
    assert equal_nodes(cluster, np.array(cluster.gpus)) is None


def test_ranks_fill_whole_nodes_in_order() -> None:
    cluster = load_cluster("dgx-h100", nodes=4, fabric="switch")
    gpus = np.array(cluster.gpus)
    assert equal_nodes(cluster, gpus[:24]) is not None
    assert equal_nodes(cluster, gpus[:20]) is None  # the last node is partly used
    assert equal_nodes(cluster, gpus[::-1].copy()) is None
