"""Does our InfraGraph reader find the same nodes and edges as the infragraph package?

The package (3.1.0) wrote the expected graphs, see tests/data/infragraph/README.md.
"""

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from trine.cluster.load import load_cluster
from trine.formats.clusters import export_text, read_any

DATA = Path(__file__).parents[1] / "data" / "infragraph"


def edges_of(cluster):
    names = [device.name for device in cluster.devices]
    return Counter(tuple(sorted((names[link.source], names[link.target]))) for link in cluster.links)


@pytest.mark.parametrize("file", ["fabric_single_tier_2x_dgx_h100.yaml", "fabric_single_tier_2x_dgx_h100.json"])
def test_single_tier_equals_the_expanded_graph(file):
    reference = yaml.safe_load((DATA / "expanded_single_tier_2x_dgx_h100.networkx.yaml").read_text())
    cluster = read_any(DATA / file, links_from="catalogue")
    assert {device.name for device in cluster.devices} == {node["id"] for node in reference["nodes"]}
    edges = {tuple(sorted((edge["source"], edge["target"]))): edge["link"] for edge in reference["edges"]}
    found = edges_of(cluster)
    assert set(found) == set(edges)
    assert set(found.values()) == {2}  # one link each way
    kinds = {"cpu": "host", "xpu": "gpu", "nic": "nic"}
    for node in reference["nodes"]:
        device = cluster.devices[cluster.index(node["id"])]
        asic = node["id"] == "switch.0.asic.0"  # the package calls the core of a switch a cpu
        assert device.kind == ("switch" if asic else kinds.get(node["type"], "switch"))


def test_expanded_graph_of_the_package_reads_as_the_same_machine():
    numbers = {
        "pcie": "pcie5",
        "xpu_fabric": "nvlink4*4.5",
        "cpu_fabric": "upi",
        "ic": "50 GB/s, 0 s",
        "switch-link": "ib-ndr",
    }
    graph = read_any(DATA / "expanded_single_tier_2x_dgx_h100.networkx.yaml", links=numbers)
    infrastructure = read_any(DATA / "fabric_single_tier_2x_dgx_h100.yaml", links_from="catalogue")
    assert edges_of(graph) == edges_of(infrastructure)
    speed = {link.name: link.bytes_per_s for link in infrastructure.links}
    assert all(speed[k.name] == k.bytes_per_s for k in graph.links if k.medium == "nvlink4" and k.name in speed)


def test_devices_within_devices():
    reference = json.loads((DATA / "composed_dgx_a100_cx5_qsfp.expanded.json").read_text())
    cluster = read_any(DATA / "composed_dgx_a100_cx5_qsfp.json", links_from="catalogue")
    assert sorted(device.name for device in cluster.devices) == reference["nodes"]
    found = edges_of(cluster)
    assert sorted(map(list, found)) == reference["edges"]
    twice = {
        pair for pair, count in found.items() if count == 4
    }  # the package's graph has no parallel edges, its file does
    assert twice
    assert all("qsfp" in end or "port" in end for pair in twice for end in pair)
    nic = cluster.devices[cluster.index("dgx_a100.0.cx5_100gbe.3.asic.0")]
    assert (nic.kind, nic.node) == ("nic", "dgx_a100.0")


@pytest.mark.skipif(importlib.util.find_spec("infragraph") is None, reason="infragraph is not installed")
def test_the_package_reads_our_export():
    from infragraph import Infrastructure
    from infragraph.infragraph_service import InfraGraphService

    cluster = load_cluster("dgx-h100", nodes=2)
    service = InfraGraphService()
    service.set_graph(Infrastructure().deserialize(export_text(cluster, "infragraph")))
    graph = service.get_networkx_graph()
    assert len(graph) == len(cluster.devices)
    assert graph.size() == len(cluster.links) // 2
