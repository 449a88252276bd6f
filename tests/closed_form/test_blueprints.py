"""Do blueprints have the devices, links, bisection and diameter that their textbook formulas give?"""

from __future__ import annotations

from itertools import product

import pytest

from trine.cluster import Cluster, build_topology
from trine.cluster.capacity import bisection_bytes_per_s

GB = 10**9


def build(text: str, num_gpus: int) -> Cluster:
    return build_topology(text, "1 GB/s", "1 us", num_gpus)


def diameter(cluster: Cluster) -> int:
    return max(len(cluster.route(a, b)) for a, b in product(cluster.gpus, repeat=2))


#: text, GPUs, switches and hosts, two-way links, bisection in links, diameter in links
CASES = [
    ("ring", 8, 0, 8, 2, 4),
    ("ring", 9, 0, 9, 2, 4),
    ("double-ring", 8, 0, 16, 4, 4),
    ("full", 8, 0, 8 * 7 // 2, 4 * 4, 1),
    ("switch", 8, 1, 8, 4, 2),
    ("mesh:4x4", 16, 0, 2 * 4 * 3, 4, 6),
    ("mesh:4x4x4", 64, 0, 3 * 16 * 3, 16, 9),
    ("mesh:2x3x5", 30, 0, 1 * 15 + 2 * 10 + 4 * 6, 15, 1 + 2 + 4),
    ("torus:4x4", 16, 0, 2 * 16, 2 * 4, 4),
    ("torus:4x4x4", 64, 0, 3 * 64, 2 * 16, 6),
    ("torus:2x4", 8, 0, 4 + 8, 4, 1 + 2),
    ("hypercube", 16, 0, 16 * 4 // 2, 8, 4),
    ("hypercube", 1, 0, 0, None, 0),
    ("hypercube-mesh", 8, 0, 8 * 6 // 2, 2 + 2 + 1 + 1, 2),
    ("tree", 8, 7, 14, 1, 6),
    ("tree:4", 16, 5, 20, 2, 4),
    # two levels: N/P leaves, P spines, N + N/P * P links, any half can send at full rate
    ("fat-tree:4", 16, 4 + 4, 16 + 16, 8, 4),
    ("clos:4", 16, 4 + 4, 16 + 16, 8, 4),
    ("fat-tree:4:2", 16, 4 + 2, 16 + 8, 4, 4),
    ("fat-tree:4:4", 32, 8 + 1, 32 + 8, 4, 4),
    ("fat-tree:4", 4, 1, 4, 2, 2),
    # three levels, k = 4: k pods of k/2 + k/2, (k/2)^2 cores, k^3/4 GPUs and 3 k^3/4 links
    ("fat-tree:2x2", 16, 4 * 4 + 4, 3 * 16, 8, 6),
    ("fat-tree:3x3", 54, 6 * 6 + 9, 3 * 54, 27, 6),
    ("fat-tree:4x4:2", 64, 16 + 4 * 2 + 2 * 2, 64 + 16 * 2 + 8 * 2, 8, 6),
    # a switch a node, a leaf a rail, a spine a node
    ("rail:8", 32, 4 + 8 + 4, 32 + 32 + 8 * 4, 16, 4),
    ("rail:4", 4, 1 + 4 + 1, 4 + 4 + 4, 4, 2),
    # g = ah + 1 groups of a routers: g a (a - 1)/2 local links, g (g - 1)/2 global ones
    ("dragonfly:4x2x2", 72, 9 * 4, 72 + 9 * 6 + 36, None, 5),
    ("dragonfly:2x1x1", 6, 3 * 2, 6 + 3 * 1 + 3, None, 5),
    # 8 switches, 4 hosts joined all to all
    ("pcie-tree:2x2", 16, 8 + 4, 16 + 8 + 6, 4, 5),
    ("pcie-tree:4x1", 8, 2 + 2, 8 + 2 + 1, 1, 5),
    ("wafer:4x4", 16, 2, 24 + 8, 4, 6),
]


@pytest.mark.parametrize(("text", "num_gpus", "others", "num_links", "bisection", "longest"), CASES)
def test_counts(text: str, num_gpus: int, others: int, num_links: int, bisection: int | None, longest: int) -> None:
    cluster = build(text, num_gpus)
    assert len(cluster.gpus) == num_gpus
    assert len(cluster.devices) == num_gpus + others
    assert len(cluster.links) == 2 * num_links
    assert diameter(cluster) == longest
    if bisection is not None:
        assert bisection_bytes_per_s(cluster) == bisection * GB


@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 5), (2, 2, 2, 2), (7, 1, 2)])
@pytest.mark.parametrize("kind", ["mesh", "torus"])
def test_grids_have_neighbours_in_every_dimension(kind: str, sizes: tuple[int, ...]) -> None:
    """Against coordinates: joined if they differ by one (or by the whole length, in a torus) in one dimension."""
    places = list(product(*map(range, sizes)))
    expected = set()
    for a, b in product(range(len(places)), repeat=2):
        steps = [(x, y, size) for x, y, size in zip(places[a], places[b], sizes, strict=True) if x != y]
        if len(steps) == 1:
            x, y, size = steps[0]
            if abs(x - y) == 1 or (kind == "torus" and abs(x - y) == size - 1):
                expected.add((a, b))
    cluster = build(f"{kind}:{'x'.join(map(str, sizes))}", len(places))
    assert {(link.source, link.target) for link in cluster.links} == expected
    assert len(cluster.links) == len(expected)
    assert cluster.grid == sizes


def test_a_dragonfly_joins_every_pair_of_groups_once() -> None:
    cluster = build("dragonfly:4x2x2", 72)
    names = [device.name for device in cluster.devices]
    pairs = []
    for link in cluster.links:
        a, b = names[link.source], names[link.target]
        if a.startswith("router") and b.startswith("router"):
            pairs.append((a.removeprefix("router").split(".")[0], b.removeprefix("router").split(".")[0]))
    assert sorted((int(a), int(b)) for a, b in pairs if a != b) == [
        (a, b) for a in range(9) for b in range(9) if a != b
    ]


def test_the_hypercube_mesh_gives_every_gpu_six_lanes() -> None:
    cluster = build("hypercube-mesh", 8)
    for gpu in cluster.gpus:
        assert len(cluster.links_from(gpu)) == 6


def test_dimension_order_has_the_length_of_the_coordinates() -> None:
    """|dx| + |dy| + |dz|, the shorter way round in a torus, the last dimension first."""
    for kind in ("mesh", "torus"):
        sizes = (3, 4, 5)
        cluster = build_topology(f"{kind}:3x4x5", "1 GB/s", "1 us", 60)
        cluster = type(cluster)(
            name="", devices=cluster.devices, links=cluster.links, grid=cluster.grid, routing="dimension-order"
        )
        places = list(product(*map(range, sizes)))
        for a, b in product(range(60), repeat=2):
            gaps = [abs(x - y) for x, y in zip(places[a], places[b], strict=True)]
            if kind == "torus":
                gaps = [min(gap, size - gap) for gap, size in zip(gaps, sizes, strict=True)]
            route = cluster.route(a, b)
            assert len(route) == sum(gaps)
            ends = [places[cluster.links[link].target] for link in route]
            moved = [next(i for i in range(3) if x[i] != y[i]) for x, y in zip([places[a], *ends], ends, strict=False)]
            assert moved == sorted(moved, reverse=True)
