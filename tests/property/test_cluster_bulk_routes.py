"""Do bulk routes equal a search over every link, on any machine and with any damage?

The search gets plain tuples of devices and links, so it cannot use the structure of identical nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.cluster import Cluster, build_topology, known_clusters, load_cluster
from trine.errors import SpecError

SCALED = [name for name in known_clusters() if load_cluster(name).fabric is not None]
ROUTINGS = ("shortest", "d-mod-k", "rail", "ecmp-hash", "ecmp-hash:7", "ecmp-split")
FABRICS = ("switch", "rail", "fat-tree", "dragonfly")


def searched(cluster: Cluster) -> Cluster:
    """Return the same machine without the information that its nodes are identical."""
    return replace(cluster, devices=tuple(cluster.devices), links=tuple(cluster.links))


def route_or_error(cluster: Cluster, pair: tuple[int, int]) -> tuple[int, ...] | str:
    try:
        return cluster.route(*pair)
    except SpecError as error:
        return str(error)


def assert_same_routes(cluster: Cluster, pairs: Sequence[tuple[int, int]]) -> None:
    """Check failing pairs one by one and all routable pairs in one call against the search."""
    plain = searched(cluster)
    expected = [route_or_error(plain, pair) for pair in pairs]
    for pair, one in zip(pairs, expected, strict=True):
        source, target = np.array([pair[0]]), np.array([pair[1]])
        if isinstance(one, str):
            with pytest.raises(SpecError) as caught:
                cluster.routes(source, target)
            assert str(caught.value) == one
    good = [(pair, one) for pair, one in zip(pairs, expected, strict=True) if not isinstance(one, str)]
    sources, targets = np.array([p for p, _ in good] or np.zeros((0, 2), np.int64)).reshape(-1, 2).T
    ptr, links = cluster.routes(sources, targets)
    assert (ptr.dtype, links.dtype) == (np.int64, np.int32)
    found = [tuple(links[first:last].tolist()) for first, last in itertools.pairwise(ptr)]
    assert found == [one for _, one in good]


def some_pairs(cluster: Cluster, count: int, seed: int) -> list[tuple[int, int]]:
    """Return random pairs of GPUs, pairs at the strides of collectives, and a few pairs of other devices."""
    rng = np.random.default_rng(seed)
    gpus, devices = len(cluster.gpus), len(cluster.devices)
    first = rng.integers(0, gpus, count)
    strides = np.array([0, 1, 8, gpus // 2, gpus - 1])[np.arange(count) % 5]
    second = np.where(np.arange(count) % 2 == 0, rng.integers(0, gpus, count), (first + strides) % gpus)
    others = rng.integers(0, devices, (4, 2))
    return [*zip(first.tolist(), second.tolist(), strict=True), *map(tuple, others.tolist())]


@pytest.mark.parametrize("name", SCALED)
def test_presets_as_they_are_joined_and_routed(name: str) -> None:
    rng = np.random.default_rng(SCALED.index(name))
    for number, fabric in enumerate((None, *FABRICS)):
        routing = ROUTINGS[int(rng.integers(len(ROUTINGS)))] if number else None
        nodes = int(rng.integers(2, 5))
        cluster = load_cluster(name, nodes=nodes, fabric=fabric, routing=routing)
        assert_same_routes(cluster, some_pairs(cluster, 40, number))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("dgx-h100", {"nodes": 70}),  # several units of rails
        ("dgx-h100", {"nodes": 70, "fabric": "fat-tree:2"}),
        ("dgx-h100", {"nodes": 300, "fabric": "rail"}),  # pods
        ("dgx1-v100", {"nodes": 200}),
        ("dgx-a100", {"nodes": 110, "routing": "ecmp-hash"}),
        ("dgx-h100", {"gpus": 61}),  # the last node differs
        ("dgx-h100", {"nodes": 12, "gpus": 24}),
        ("gb200-nvl72", {"nodes": 36, "gpus": 144}),
        ("gb200-nvl72", {"nodes": 24, "gpus": 72, "routing": "rail"}),
    ],
    ids=str,
)
def test_larger_machines(name: str, asked: dict[str, int | str]) -> None:
    cluster = load_cluster(name, **asked)  # type: ignore[arg-type]
    assert_same_routes(cluster, some_pairs(cluster, 120, 1))


@st.composite
def damaged(draw: st.DrawFn) -> Cluster:
    """Draw a machine with dead links anywhere and some slow links."""
    name = draw(st.sampled_from(["dgx-h100", "mi300x-node", "gh200-node", "dgx1-v100", "l40s-pcie", "hgx-b300"]))
    fabric = draw(st.sampled_from(["switch", "rail", "fat-tree", "fat-tree:3", "dragonfly"]))
    nodes = 40 if ":" in fabric else draw(st.sampled_from([2, 3, 9, 40]))  # ':3' is an error on one leaf
    fabric = fabric if name in ("dgx-h100", "mi300x-node", "hgx-b300") else fabric.partition(":")[0]
    routing = draw(st.sampled_from([None, *ROUTINGS]))
    whole = load_cluster(name, nodes=nodes, fabric=fabric)
    picks = st.lists(st.integers(0, len(whole.links) - 1), min_size=1, max_size=4, unique=True)
    near_fabric = st.lists(
        st.integers(int(np.argmax(whole.link_table.of_class("scale-out"))), len(whole.links) - 1), max_size=3
    )
    down = {whole.link_name(i) for i in (*draw(picks), *draw(near_fabric))}
    slow = [(whole.link_name(i), 0.5) for i in draw(picks) if whole.link_name(i) not in down]
    try:
        return load_cluster(name, nodes=nodes, fabric=fabric, routing=routing, links_down=sorted(down), slow_links=slow)
    except SpecError:  # a GPU would be cut off
        return load_cluster(name, nodes=nodes, fabric=fabric, routing=routing, slow_links=slow)


@settings(max_examples=60, deadline=None)
@given(damaged(), st.integers(0, 1 << 30))
def test_damaged_machines(cluster: Cluster, seed: int) -> None:
    pairs = some_pairs(cluster, 24, seed)
    layout = cluster.link_table.layout
    assert layout is not None
    odd = [block for block in layout.blocks if block.count == 1]  # the nodes with dead links
    gpus = [block.first_gpu + i for block in odd for i in range(len(block.node.gpus))][:8]
    pairs += [(gpu, (gpu * 7 + seed) % len(cluster.gpus)) for gpu in gpus]
    pairs += [(b, a) for a, b in pairs]
    assert_same_routes(cluster, pairs)


@pytest.mark.parametrize(
    "text",
    ["ring", "torus:4x8", "mesh:2x4x4", "fat-tree:8", "fat-tree:4x2", "rail:8", "dragonfly:4x2x2", "full", "tree"],
)
def test_networks_without_nodes(text: str) -> None:
    cluster = build_topology(text, "100 GB/s", "1 us", 32)
    assert_same_routes(cluster, some_pairs(cluster, 100, 2))


@pytest.mark.parametrize("name", SCALED)
def test_hosts_and_nics(name: str) -> None:
    cluster = load_cluster(name, nodes=3)
    plain, gpus = searched(cluster), np.array(cluster.gpus)
    hosts, (ptr, links) = cluster.host_routes(gpus)
    for gpu, host in zip(gpus.tolist(), hosts.tolist(), strict=True):
        assert plain.host_of(gpu) == cluster.host_of(gpu) == (None if host < 0 else host)
        assert plain.nic_of(gpu) == cluster.nic_of(gpu)
        own = tuple(links[ptr[gpu] : ptr[gpu + 1]].tolist())
        assert own == (() if host < 0 else plain.route(host, gpu))


def test_nodes_joined_from_a_file_of_several_makes(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "mixed.yaml"
    path.write_text(
        "nodes:\n- {preset: dgx-h100, count: 2}\n- {preset: dgx-a100, count: 3}\n- {preset: dgx-h100, gpus: 4}\n"
        "fabric: {kind: fat-tree, link: ib-ndr, radix: 16}\n"
    )
    cluster = load_cluster(path)
    assert_same_routes(cluster, [(a, b) for a in range(0, 44, 3) for b in range(44)])


def test_several_switches_in_a_node_are_chosen_by_the_policy(tmp_path: object) -> None:
    """If a node has several equal routes inside, each node picks its own, as the search does."""
    from pathlib import Path

    path = Path(str(tmp_path)) / "node.yaml"
    path.write_text(
        "devices:\n- {name: nic, count: 4, kind: nic, node: n, rail: 0}\n- {name: gpu, count: 4, node: n}\n"
        "- {name: sw, count: 3, kind: switch, node: n}\n- {name: pcie, kind: switch, node: n}\n"
        "- {name: host, kind: host, node: n}\n"
        "links:\n- {from: gpu0..3, to: sw0..2, link: nvlink4, lanes: 6, duplex: true}\n"
        "- {from: [gpu0..3, nic0..3, host], to: pcie, link: pcie5, duplex: true}\n"
        "fabric: {kind: fat-tree, link: ib-ndr, radix: 8}\n"
    )
    for routing in (None, *ROUTINGS):
        cluster = load_cluster(path, nodes=5, routing=routing)
        assert_same_routes(cluster, [(a, b) for a in range(20) for b in range(20)])
