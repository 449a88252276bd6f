"""Is each part of an InfraGraph file read as the format says, and everything else refused by name?"""

import json
from pathlib import Path

import pytest
from cpu_time import computes_for_less_than

from trine.errors import SpecError
from trine.formats.clusters import read_any
from trine.formats.infragraph.read import infragraph_cluster

DATA = Path(__file__).parents[2] / "data" / "infragraph"
NUMBERS = {"physical": {"bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": 50},
                        "latency": {"choice": "ns", "ns": 500}}}  # fmt: skip


def machine(edges, xpus=8, **more):
    device = {
        "name": "box",
        "components": [{"name": "xpu", "count": xpus, "choice": "xpu"}, {"name": "sw", "count": 4, "choice": "switch"}],
        "links": [{"name": "wire", **NUMBERS}],
        "edges": [{"link": "wire", **edge} for edge in edges],
    }
    device.update(more)
    return device


def edge(a, b, scheme="many2many"):
    return {"ep1": {"component": a}, "ep2": {"component": b}, "scheme": scheme}


def pairs(device):
    cluster = infragraph_cluster(device, "t.yaml")
    names = [d.name.removeprefix("box.0.") for d in cluster.devices]
    return [(names[k.source], names[k.target]) for k in cluster.links[::2]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("xpu", range(8)),
        ("xpu[]", range(8)),
        ("xpu[:]", range(8)),
        ("xpu[2]", [2]),
        ("xpu[-1]", [7]),
        ("xpu[0:4]", range(4)),
        ("xpu[5:]", [5, 6, 7]),
        ("xpu[:-6]", [0, 1]),
        ("xpu[1:8:3]", [1, 4, 7]),
        ("xpu[::-4]", [7, 3]),
        ("xpu[-3:-1]", [5, 6]),
    ],
)
def test_slices_are_those_of_python(text, expected):
    assert pairs(machine([edge(text, "sw[0]")])) == [(f"xpu.{i}", "sw.0") for i in expected]


def test_schemes():
    assert pairs(machine([edge("xpu[0:2]", "sw[0:2]", "one2one")])) == [("xpu.0", "sw.0"), ("xpu.1", "sw.1")]
    assert len(pairs(machine([edge("xpu", "sw")]))) == 32
    assert len(pairs(machine([edge("xpu", "xpu")]))) == 28  # each pair once, none with itself
    ring = pairs(machine([edge("xpu[0:4]", "xpu[0:4]", "ring")]))
    assert ring == [("xpu.0", "xpu.1"), ("xpu.1", "xpu.2"), ("xpu.2", "xpu.3"), ("xpu.3", "xpu.0")]
    assert pairs(machine([edge("xpu[0]", "xpu[3]", "ring")])) == [("xpu.0", "xpu.3")]


def test_parallel_links_are_kept():
    cluster = infragraph_cluster(machine([edge("xpu[0]", "xpu[1]"), edge("xpu[0]", "xpu[1]")]), "t.yaml")
    assert [link.name for link in cluster.links[::2]] == ["box.0.xpu.0->box.0.xpu.1", "box.0.xpu.0->box.0.xpu.1#2"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["edges"].append({**edge("xpu", "swi"), "link": "wire"}), r"edges\[1\].ep2.component.*'swi'.*'sw'"),
        (lambda d: d["edges"].append({**edge("xpu[8]", "sw"), "link": "wire"}), r"edges\[1\].*xpu\[8\].*there are 8"),
        (lambda d: d["edges"].append({**edge("xpu[0:9]", "sw"), "link": "wire"}), "there are 8"),
        (lambda d: d["edges"].append({**edge("xpu[3:3]", "sw"), "link": "wire"}), "selects none"),
        (lambda d: d["edges"].append({**edge("xpu[::0]", "sw"), "link": "wire"}), "cannot read the slice"),
        (lambda d: d["edges"].append({**edge("xpu[a]", "sw"), "link": "wire"}), "cannot read the index"),
        (lambda d: d["edges"].append({**edge("xpu[0:2]", "sw[0:3]", "one2one"), "link": "wire"}), "2 and 3"),
        (lambda d: d["edges"].append({**edge("xpu", "xpu", "one2one"), "link": "wire"}), "to itself"),
        (lambda d: d["edges"].append({**edge("xpu", "sw"), "link": "wired"}), "unknown link 'wired'.*'wire'"),
        (lambda d: d["edges"].append({**edge("xpu", "sw", "star"), "link": "wire"}), "scheme"),
        (lambda d: d["components"].append({"name": "xpu", "count": 1, "choice": "nic"}), "given twice"),
        (lambda d: d["components"].append({"name": "in", "count": 1, "choice": "device"}), "no device 'in'"),
        (lambda d: d["components"].append({"name": "box", "count": 1, "choice": "device"}), "inside itself"),
        (lambda d: d["components"].append({"name": "x", "count": 1 << 21, "choice": "cpu"}), "count"),
        (lambda d: d["components"].append({"name": "x", "count": 1, "choice": "tpu"}), "choice"),
        (lambda d: d["links"][0].update(speed=1), "unknown key 'speed'"),
        (lambda d: d.update(compnents=[]), "unknown key 'compnents'.*'components'"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    device = machine([edge("xpu", "sw")])
    change(device)
    with pytest.raises(SpecError, match=message) as error:
        infragraph_cluster(device, "t.yaml")
    assert error.value.file == "t.yaml"


def test_unknown_component_of_the_packages_own_blueprint():
    with pytest.raises(SpecError, match=r"device_dgx2.*devices\[0\].edges\[23\].ep2.component.*'nvlsw'.*'nvsw'"):
        read_any(DATA / "device_dgx2.yaml", "infragraph", links_from="catalogue")


def test_absurd_sizes_are_refused_before_they_are_built():
    device = machine([], components=[{"name": "xpu", "count": 1 << 12, "choice": "xpu"}])
    data = {"devices": [device], "links": [], "instances": [{"name": "a", "device": "box", "count": 1 << 20}]}
    with computes_for_less_than(3), pytest.raises(SpecError, match="nodes"):
        infragraph_cluster(data, "t.yaml")
    device["edges"] = [{**edge("xpu", "xpu"), "link": "wire"}]
    with computes_for_less_than(3), pytest.raises(SpecError, match="edges"):
        infragraph_cluster(device, "t.yaml")


def test_numbers_come_from_the_file():
    cluster = read_any(DATA / "handwritten_2node_rail_bw_latency.yaml", "infragraph", links={"ic": "1 TB/s, 300 ns"})
    by_name = {link.name: link for link in cluster.links}
    wire = by_name["node.0.nic.3->rail.3.port.0"]
    assert (wire.bytes_per_s, wire.latency_ps, wire.link_class) == (50 * 10**9, 1_500_000, "scale-out")
    inner = by_name["node.1.xpu.0->node.1.nvsw.2"]
    assert (inner.bytes_per_s, inner.latency_ps, inner.link_class) == (112_500_000_000, 350_000, "scale-up")
    assert by_name["node.0.xpu.0->node.0.nic.0"].link_class == "host"
    assert cluster.devices[cluster.index("node.1.xpu.7")].node == "node.1"
    assert cluster.devices[cluster.index("rail.0.port.1")].node is None
    assert len(cluster.route(cluster.gpus[0], cluster.gpus[8])) == 6  # by its own NIC and rail


def test_links_without_numbers_are_all_named_with_the_remedy():
    with pytest.raises(SpecError) as error:
        read_any(DATA / "device_dgx_h100.yaml", "infragraph")
    for part in ("dgx_h100.cpu_fabric", "dgx_h100.pcie", "dgx_h100.xpu_fabric", "--link", "--links-from catalogue"):
        assert part in str(error.value)


def test_links_by_name_and_lanes():
    numbers = {"xpu_fabric": "nvlink4", "dgx_h100.pcie": "pcie5", "cpu_fabric": "100 GB/s, 1 us"}
    cluster = read_any(DATA / "device_dgx_h100.yaml", "infragraph", links=numbers, gpu="h100-sxm")
    by_name = {link.name: link for link in cluster.links}
    one = by_name["dgx_h100.0.xpu.0->dgx_h100.0.nvsw.0"]
    assert one.bytes_per_s == 20_600_000_000 * 18 // 4  # 18 lanes over four NVSwitches
    assert one.medium == "nvlink4"
    assert by_name["dgx_h100.0.cpu.0->dgx_h100.0.cpu.1"].latency_ps == 10**6
    assert cluster.sources["link dgx_h100.xpu_fabric"] == "chosen for this import: nvlink4"
    assert {cluster.devices[i].gpu for i in cluster.gpus} == {"h100-sxm"}
    two = read_any(DATA / "device_dgx_h100.yaml", "infragraph", links={**numbers, "xpu_fabric": "nvlink4*2"})
    assert next(k for k in two.links if k.medium == "nvlink4").bytes_per_s == 41_200_000_000


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"xpu_fabrik": "nvlink4"}, "no link 'xpu_fabrik'.*'dgx_h100.xpu_fabric'|no link 'xpu_fabrik'.*'xpu_fabric'"),
        ({"pcie": "pcie55"}, "unknown kind of link 'pcie55'"),
        ({"pcie": "pcie5*0"}, "lanes"),
        ({"pcie": "50 GB/s"}, "BANDWIDTH, LATENCY"),
        ({"pcie": "50 GB, 1 us"}, "unknown unit"),
    ],
)
def test_choices_that_cannot_be(links, message):
    with pytest.raises(SpecError if "unit" not in message else ValueError, match=message):
        read_any(DATA / "device_dgx_h100.yaml", "infragraph", links=links, links_from="catalogue")


def test_catalogue_by_name_and_description_is_said():
    cluster = read_any(DATA / "device_dgx1.yaml", "infragraph", links_from="catalogue")
    assert {link.medium for link in cluster.links} == {"qpi", "nvlink1", "pcie3"}
    assert "from the name and description" in cluster.sources["link dgx1.pcie"]
    mesh = [link for link in cluster.links if link.medium == "nvlink1"]
    assert {link.bytes_per_s for link in mesh} == {18_000_000_000}  # four links of a GPU, four lanes


def test_transfers_need_a_choice():
    device = machine([edge("xpu", "sw")])
    transfers = {"choice": "gigatransfers_per_second", "gigatransfers_per_second": 32}
    device["links"] = [{"name": "wire", "physical": {"bandwidth": transfers}}]
    with pytest.raises(SpecError, match="wire lacks bandwidth and latency"):
        infragraph_cluster(device, "t.yaml")
    assert infragraph_cluster(device, "t.yaml", {"wire": "pcie5"}).links[0].medium == "pcie5"


def test_merged_switches_add_up():
    cluster = read_any(DATA / "device_dgx_h100.yaml", "infragraph", links_from="catalogue", merge_switches=True)
    up = [link for link in cluster.links if link.medium == "nvlink4"]
    assert len(up) == 16
    assert {link.bytes_per_s for link in up} == {20_600_000_000 * 18}
    assert "3 switches merged" in cluster.notes
    assert "--merge-switches" in read_any(DATA / "device_dgx_h100.yaml", "infragraph", links_from="catalogue").notes


def test_ranks_order_the_gpus_and_other_annotations_are_named(tmp_path):
    spec = json.loads(json.dumps({"nodes": [], "links": [], "edges": [], "graph": []}))
    for rank in range(16):
        node, gpu = divmod(15 - rank, 8)
        ranks = [{"attribute": "rank", "value": str(rank)}, {"attribute": "colour", "value": "red"}]
        spec["nodes"].append({"name": f"node[{node}]xpu[{gpu}]", "attributes": ranks})
    file = tmp_path / "ranks.json"
    file.write_text(json.dumps(spec))
    numbers = {"ic": "1 TB/s, 300 ns"}
    source = DATA / "handwritten_2node_rail_bw_latency.yaml"
    cluster = read_any(source, "infragraph", links=numbers, annotations=file)
    assert [cluster.devices[i].name for i in cluster.gpus] == [
        f"node.{n}.xpu.{i}" for n in (1, 0) for i in reversed(range(8))
    ]
    plain = read_any(source, "infragraph", links=numbers)
    assert {k.name: k.bytes_per_s for k in cluster.links} == {k.name: k.bytes_per_s for k in plain.links}
    assert "unused annotation 'colour' of nodes (16 entries)" in cluster.notes
    spec["nodes"].pop()
    file.write_text(json.dumps(spec))
    with pytest.raises(SpecError, match=r"GPU 'node\.0\.xpu\.0' has no rank"):
        read_any(source, "infragraph", links=numbers, annotations=file)
    spec["nodes"].append({"name": "node[0]gpu[0]", "attributes": []})
    file.write_text(json.dumps(spec))
    with pytest.raises(SpecError, match="no node"):
        read_any(source, "infragraph", links=numbers, annotations=file)


def test_annotations_in_the_packages_own_file():
    cluster = read_any(DATA / "expanded_single_tier_2x_dgx_h100.infragraph.json", links_from="catalogue")
    assert len(cluster.gpus) == 16
    assert "unused annotation 'bandwidth' of links" in cluster.notes


def test_4096_gpus_expand_fast(tmp_path):
    """512 DGX H100 on one switch, written out edge by edge as the package writes it."""
    data = json.loads((DATA / "fabric_single_tier_2x_dgx_h100.json").read_text())
    data["instances"][0]["count"] = 512
    data["devices"][1]["components"][1]["count"] = 4096
    data["edges"] = [
        {"scheme": "one2one", "link": "switch-link",
         "ep1": {"instance": f"dgx_h100[{n}]", "component": f"cx7[{i}]"},
         "ep2": {"instance": "switch[0]", "component": f"port[{8 * n + i}]"}}
        for n in range(512) for i in range(8)
    ]  # fmt: skip
    file = tmp_path / "big.json"
    file.write_text(json.dumps(data))
    with computes_for_less_than(2):
        cluster = read_any(file, links_from="catalogue")
    assert (len(cluster.gpus), len(cluster.devices), len(cluster.links)) == (4096, 20_993, 79_872)
