"""Do nodes and GPUs come out as asked, in order, joined as usual, and quickly?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_time import computes_for_less_than

from trine.cluster import Cluster, known_clusters, load_cluster
from trine.errors import SpecError


def per_node(cluster: Cluster) -> list[int]:
    return list(Counter(cluster.devices[gpu].node for gpu in cluster.gpus).values())


def names(cluster: Cluster, a: str, b: str) -> list[str]:
    return [cluster.links[link].name for link in cluster.route(cluster.index(a), cluster.index(b))]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"nodes": 2}, [8, 8]),
        ({"gpus": 5}, [5]),
        ({"gpus": 8}, [8]),
        ({"gpus": 9}, [8, 1]),
        ({"gpus": 24}, [8, 8, 8]),
        ({"nodes": 2, "gpus": 12}, [8, 4]),
        ({"nodes": 2, "gpus": 8}, [4, 4]),  # in order the second node would be empty
        ({"nodes": 4, "gpus": 8}, [2, 2, 2, 2]),
        ({"nodes": 3, "gpus": 17}, [8, 8, 1]),
        ({"gpus_per_node": 4}, [4]),
        ({"nodes": 2, "gpus_per_node": 4}, [4, 4]),
        ({"gpus": 20, "gpus_per_node": 4}, [4, 4, 4, 4, 4]),
    ],
)
def test_gpus_of_each_node(asked: dict[str, int], expected: list[int]) -> None:
    cluster = load_cluster("dgx-h100", **asked)
    assert per_node(cluster) == expected
    assert cluster.gpus == tuple(range(sum(expected)))  # first of all devices, node after node
    nics = Counter(device.node for device in cluster.devices if device.kind == "nic")
    assert set(nics.values()) == {8}  # stay, whether their GPU is used or not
    used = {link.source for link in cluster.links} | {link.target for link in cluster.links}
    assert used == set(range(len(cluster.devices))) or len(expected) == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"nodes": 0}, "nodes must be at least 1"),
        ({"gpus": 0}, "gpus must be at least 1"),
        ({"nodes": 2, "gpus": 17}, "17 GPUs do not fit into 2 x dgx-h100 with 8 each"),
        ({"nodes": 2, "gpus": 7}, "7 GPUs neither fill 2 x dgx-h100 in order nor spread over them evenly"),
        ({"gpus_per_node": 9}, "'dgx-h100' has 8 GPUs, not 9"),
        ({"fabric": "rail"}, "joins nodes, but there is one: add --nodes N"),
        ({"nodes": 2, "fabric": "rial"}, "unknown fabric 'rial'; did you mean 'rail'"),
        ({"nodes": 2, "fabric": "rail@ib-ndx"}, "unknown kind of link 'ib-ndx'; did you mean 'ib-ndr'"),
        ({"nodes": 2, "fabric": "rail@pcie5"}, "'pcie5' is a host link"),
        ({"nodes": 2, "fabric": "clos:0.5"}, "the oversubscription is a number from 1"),
        ({"nodes": 2, "fabric": "switch:2"}, "a switch has no oversubscription"),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_cluster("dgx-h100", **asked)  # type: ignore[arg-type]


def test_nodes_without_a_usual_fabric_say_what_to_add(tmp_path: Path) -> None:
    with_nics = replace(load_cluster("dgx-h100"), name="mine", fabric=None)
    (tmp_path / "mine.yaml").write_text(with_nics.to_yaml())
    with pytest.raises(SpecError, match=r"has no fabric between its nodes: add .*, for example rail@ib-ndr"):
        load_cluster(tmp_path / "mine.yaml", nodes=2)
    assert len(load_cluster(tmp_path / "mine.yaml", nodes=2, fabric="rail@ib-ndr").gpus) == 16
    with pytest.raises(SpecError, match="has no NICs, so that no fabric can join 2 of it"):
        load_cluster("a100-nvlink-4", nodes=2)
    with pytest.raises(SpecError, match="node0 has no NIC"):
        load_cluster("a100-nvlink-4", nodes=2, fabric="switch@ib-hdr")


def test_messages_leave_by_the_own_nic_and_stay_on_its_rail() -> None:
    cluster = load_cluster("dgx-h100", nodes=2)
    for i in range(8):
        route = names(cluster, f"node0.gpu{i}", f"node1.gpu{i}")
        nic, pcie, leaf = f"nic{i}", f"pcie{i // 2}", f"leaf{i}.rail{i}"
        assert route == [
            f"node0.gpu{i}->node0.{pcie}", f"node0.{pcie}->node0.{nic}", f"node0.{nic}->{leaf}",
            f"{leaf}->node1.{nic}", f"node1.{nic}->node1.{pcie}", f"node1.{pcie}->node1.gpu{i}",
        ]  # fmt: skip
    across = names(cluster, "node0.gpu0", "node1.gpu3")  # PXN: over NVLink to gpu3, whose rail it is
    assert across[:2] == ["node0.gpu0->node0.nvswitch", "node0.nvswitch->node0.gpu3"]
    assert across[2:] == names(cluster, "node0.gpu3", "node1.gpu3")
    shortest = load_cluster("dgx-h100", nodes=2, routing="shortest")
    assert names(shortest, "node0.gpu0", "node1.gpu3")[2:5] == [
        "node0.nic0->leaf0.rail0", "leaf0.rail0->spine0", "spine0->leaf3.rail3",
    ]  # fmt: skip


def test_inside_a_node_nothing_changes() -> None:
    alone, joined = load_cluster("dgx-h100"), load_cluster("dgx-h100", nodes=3)
    for a in range(8):
        for b in range(8):
            one = [alone.links[link] for link in alone.route(a, b)]
            two = [joined.links[link] for link in joined.route(8 + a, 8 + b)]
            assert [link.name.replace("->", "->node1.") for link in one] == [link.name[6:] for link in two]
            assert [(link.bytes_per_s, link.latency_ps) for link in one] == [
                (link.bytes_per_s, link.latency_ps) for link in two
            ]


def test_hosts_of_a_rack_count_as_nodes_where_the_gpus_fit_them() -> None:
    trays = load_cluster("gb200-nvl72", nodes=16, gpus=64)
    assert per_node(trays) == [4] * 16
    assert [trays.links[link].link_class for link in trays.route(0, 63)] == ["scale-up"] * 2
    two = load_cluster("gb200-nvl72", nodes=32, gpus=128)
    assert per_node(two) == [4] * 32
    assert all(two.links[link].link_class == "scale-up" for link in two.route(0, 63))
    assert any(two.links[link].link_class == "scale-out" for link in two.route(0, 64))
    racks = load_cluster("gb200-nvl72", nodes=2)
    assert len(racks.gpus) == 144
    assert {device.node for device in racks.devices if device.kind == "gpu"} == {
        f"rack{rack}.tray{tray}" for rack in range(2) for tray in range(18)
    }
    one_each = load_cluster("gb200-nvl72", nodes=8, gpus=8)
    assert per_node(one_each) == [1] * 8


@pytest.mark.parametrize("name", [name for name in known_clusters() if load_cluster(name).fabric is not None])
def test_two_of_each_preset_reach_each_other_through_nics(name: str) -> None:
    cluster = load_cluster(name, nodes=2)
    half = len(cluster.gpus) // 2
    for a, b in ((0, half), (half - 1, half), (0, 2 * half - 1)):
        route = [cluster.links[link] for link in cluster.route(a, b)]
        nics = [cluster.devices[link.target].name for link in route if cluster.devices[link.target].kind == "nic"]
        assert len(nics) == 2
        assert route[0].source == a
        assert route[-1].target == b
        own = cluster.nic_of(b)
        assert own is not None
        assert nics[1] == cluster.devices[own].name
    assert cluster.fabric is None
    assert "fabric" in cluster.sources
    assert f"2 x {name}; joined by" in cluster.notes


def test_unequal_nodes_and_mixed_gpus_from_a_file(tmp_path) -> None:
    (tmp_path / "small.yaml").write_text(
        "devices: [{name: g, gpu: a40, node: n}, {name: nic, kind: nic, node: n, rail: 0}]\n"
        "links: [{from: g, to: nic, link: pcie4, duplex: true}]\nlibrary: nccl\n"
    )
    (tmp_path / "mixed.yaml").write_text(
        "nodes:\n- {preset: dgx-h100, count: 2}\n- {preset: dgx-a100, gpus: 3}\n- {file: small.yaml}\n"
        "fabric: {kind: fat-tree, link: ib-hdr, oversubscription: 2}\n"
    )
    cluster = load_cluster(tmp_path / "mixed.yaml")
    assert per_node(cluster) == [8, 8, 3, 1]
    assert [cluster.devices[gpu].gpu for gpu in cluster.gpus] == ["h100-sxm"] * 16 + ["a100-80gb"] * 3 + ["a40"]
    assert cluster.route(0, 19)
    assert cluster.route(18, 3)
    again = tmp_path / "again.yaml"
    again.write_text(cluster.to_yaml())
    assert Cluster.from_yaml(again) == cluster


def test_a_dozen_lines_make_a_machine(tmp_path) -> None:
    (tmp_path / "m.yaml").write_text("node: {preset: dgx-h100, count: 4}\nfabric: {kind: clos, link: ib-xdr}\n")
    cluster = load_cluster(tmp_path / "m.yaml")
    assert per_node(cluster) == [8] * 4
    assert {link.medium for link in cluster.links if link.link_class == "scale-out"} == {"ib-xdr"}


@pytest.mark.parametrize("fabric", ["rail", "clos", "dragonfly", "switch"])
def test_4096_gpus_expand_fast(fabric: str) -> None:
    load_cluster("dgx-h100", nodes=2)  # files read
    with computes_for_less_than(2):
        cluster = load_cluster("dgx-h100", gpus=4096, fabric=fabric)
        assert len(cluster.gpus) == 4096
    assert cluster.route(0, 4095)
