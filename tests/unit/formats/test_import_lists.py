"""Are CSV lists, networkx graphs and unknown files read as docs/formats/imports.md says?"""

import json
from dataclasses import replace
from pathlib import Path

import networkx
import pytest
import yaml

from trine.cluster import build_topology, load_cluster
from trine.common.plugins import Registry
from trine.errors import InputError, SpecError
from trine.formats import clusters
from trine.formats.clusters import detect, export_text, read_any, write_cluster
from trine.formats.edge_list import edge_list_cluster
from trine.formats.networkx_graph import from_networkx, to_networkx

DATA = Path(__file__).parents[2] / "data"
CSV = """# two GPUs on a switch, and a slower way back to the second
source, target, bandwidth, latency, class, medium, duplex, source_kind
gpu0, sw0, 50 GB/s, 1 us
gpu1, sw0, 50 GB/s, 1 us, scale-up, , false, gpu

sw0, gpu1, 25 GB/s, 1.5 us, scale-up, nvlink3, no
"""


def test_csv():
    cluster = edge_list_cluster(CSV, "two.csv", gpu="a100-80gb")
    assert [(d.name, d.kind, d.gpu) for d in cluster.devices] == [
        ("gpu0", "gpu", "a100-80gb"),
        ("sw0", "switch", None),
        ("gpu1", "gpu", "a100-80gb"),
    ]
    by_name = {link.name: link for link in cluster.links}
    assert set(by_name) == {"gpu0->sw0", "sw0->gpu0", "gpu1->sw0", "sw0->gpu1"}
    back = by_name["sw0->gpu1"]
    assert (back.bytes_per_s, back.latency_ps, back.medium) == (25 * 10**9, 1_500_000, "nvlink3")
    assert cluster.name == "two"


def test_csv_with_numbers_from_the_catalogue():
    text = "source,target,medium\ngpu0,gpu1,nvlink3\n"
    with pytest.raises(SpecError, match=r"t.csv:2: bandwidth or latency is missing"):
        edge_list_cluster(text, "t.csv")
    cluster = edge_list_cluster(text, "t.csv", links_from="catalogue")
    assert cluster.links[0].medium == "nvlink3"
    chosen = edge_list_cluster(text.replace("nvlink3", "bridge"), "t.csv", links={"bridge": "nvlink3*4"})
    assert (chosen.links[0].bytes_per_s, chosen.links[0].medium) == (80 * 10**9, "nvlink3")
    with pytest.raises(SpecError, match=r"no medium 'brigde'.*'bridge'"):
        edge_list_cluster(CSV.replace("nvlink3", "bridge"), "t.csv", links={"brigde": "nvlink3"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,target,bandwith,latency\n", "t.csv:1: unknown column 'bandwith'; did you mean 'bandwidth'"),
        ("source,bandwidth,latency\n", "the column 'target'"),
        ("source,target,source\n", "given twice"),
        ("source,target,bandwidth,latency\na,b,50 GB,1 us\n", "t.csv:2: .*unknown unit 'GB'"),
        ("source,target,bandwidth,latency\na,a,50 GB/s,1 us\n", "to itself"),
        ("source,target,bandwidth,latency\na,b,50 GB/s,1 us,x\n", "5 cells, the header has 4"),
        ("source,target,bandwidth,latency,class\na,b,50 GB/s,1 us,scaleup\n", "'scaleup'; did you mean 'scale-up'"),
        ("source,target,bandwidth,latency,duplex\na,b,50 GB/s,1 us,maybe\n", "duplex: must be true or false"),
        ("source,target,bandwidth,latency,source_kind\na,b,1 GB/s,1 us,gpu\na,c,1 GB/s,1 us,nic\n", "a gpu before"),
        ("source,target,bandwidth,latency,source_kind\na,b,1 GB/s,1 us,gpuu\n", "unknown kind 'gpuu'"),
        ("source,target,bandwidth,latency\nsw0,sw1,1 GB/s,1 us\n", "no GPU"),
        ("\n", "no header"),
    ],
)
def test_csv_what_is_wrong_is_named(text, message):
    with pytest.raises(SpecError, match=message):
        edge_list_cluster(text, "t.csv")


def test_csv_export_reads_back():
    cluster = load_cluster("dgx-h100")
    again = edge_list_cluster(export_text(cluster, "csv"), "t.csv", gpu="h100-sxm")
    said = {(k.name, k.bytes_per_s, k.latency_ps, k.link_class, k.medium) for k in cluster.links}
    assert {(k.name, k.bytes_per_s, k.latency_ps, k.link_class, k.medium) for k in again.links} == said
    assert {(d.name, d.kind, d.node) for d in again.devices} == {(d.name, d.kind, d.node) for d in cluster.devices}


def test_networkx_there_and_back():
    cluster = load_cluster("dgx-h100", nodes=2)
    graph = to_networkx(cluster)
    assert isinstance(graph, networkx.MultiDiGraph)
    assert (len(graph), graph.size()) == (len(cluster.devices), len(cluster.links))
    assert graph["node0.gpu0"]["node0.nvswitch"]["node0.gpu0->node0.nvswitch"]["bandwidth"] == 370_800_000_000
    again = from_networkx(graph)
    assert again.devices == cluster.devices
    numbers = {link.name: replace(link, source=0, target=1) for link in cluster.links}
    assert {link.name: replace(link, source=0, target=1) for link in again.links} == numbers
    assert cluster.to_networkx().nodes == graph.nodes


def test_networkx_graphs_of_others():
    graph = networkx.Graph(name="pair")
    graph.add_node("a", kind="xpu", node="n0")
    graph.add_node("b", type="gpu", node="n0")
    graph.add_edge("a", "b", bandwidth="50 GB/s", latency="1 us")
    cluster = from_networkx(graph)
    assert (cluster.name, len(cluster.links)) == ("pair", 2)
    multi = networkx.MultiGraph(graph)
    multi.add_edge("a", "b", link="bridge")
    assert len(from_networkx(multi, links={"bridge": "nvlink3"}).links) == 4
    one_way = networkx.DiGraph(graph.to_directed())
    one_way.remove_edge("b", "a")
    assert [link.name for link in from_networkx(one_way).links] == ["a->b"]
    with pytest.raises(SpecError, match="links without bandwidth or latency: bridge"):
        from_networkx(multi)
    graph.edges["a", "b"]["bandwith"] = 1
    with pytest.raises(SpecError, match="edge a - b: unknown attribute 'bandwith'; did you mean 'bandwidth'"):
        from_networkx(graph)


def test_node_link_file(tmp_path):
    cluster = build_topology("torus:2x3", "50 GB/s", "1 us", 6)
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(networkx.node_link_data(to_networkx(cluster), edges="edges")))
    assert read_any(file).devices == cluster.devices
    data = json.loads(file.read_text())
    data["edges"][0]["target"] = "gpu9"
    file.write_text(json.dumps(data))
    with pytest.raises(SpecError, match=r"'gpu9'.*no node"):
        read_any(file)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("infragraph/device_dgx1.yaml", "infragraph"),
        ("infragraph/fabric_single_tier_2x_dgx_h100.json", "infragraph"),
        ("infragraph/expanded_single_tier_2x_dgx_h100.infragraph.json", "infragraph"),
        ("infragraph/expanded_single_tier_2x_dgx_h100.networkx.yaml", "networkx"),
        ("topologies/h100-8.smi.txt", "nvidia-smi"),
        ("topologies/dgx1-v100.smi.txt", "nvidia-smi"),
        ("topologies/h100-2.nccl.xml", "nccl"),
        ("topologies/a100-2.lstopo.xml", "lstopo"),
    ],
)
def test_formats_are_told_from_content(tmp_path, file, kind):
    copy = tmp_path / "no-ending"
    copy.write_bytes((DATA / file).read_bytes())
    assert detect(str(copy))[0] == kind


def test_own_files_and_others(tmp_path):
    cluster = load_cluster("dgx-h100")
    file = tmp_path / "a.yaml"
    write_cluster(cluster, file, "yaml")
    assert read_any(file) == cluster == load_cluster(str(file))
    write_cluster(cluster, tmp_path / "a.json", "infragraph")
    assert load_cluster(str(tmp_path / "a.json")) == cluster
    (tmp_path / "a.csv").write_text(CSV)
    assert len(load_cluster(str(tmp_path / "a.csv")).gpus) == 2
    with pytest.raises(SpecError, match="says its own links"):
        read_any(file, links={"a": "nvlink3"})
    with pytest.raises(SpecError, match="InfraGraph only"):
        read_any(tmp_path / "a.csv", merge_switches=True)
    with pytest.raises(SpecError, match="unknown format 'csw'; did you mean 'csv'"):
        read_any(file, "csw")
    with pytest.raises(SpecError, match="cannot be read"):
        read_any(tmp_path / "none.json")
    (tmp_path / "b.yaml").write_text("device: [a, b]\n")
    with pytest.raises(SpecError, match="unknown key 'device'; did you mean 'devices'"):
        read_any(tmp_path / "b.yaml")
    for number, text in enumerate(("- a\n- b\n", "hello", "<html/>", "[1]")):
        (tmp_path / f"{number}").write_text(text)
        with pytest.raises(SpecError, match=r"no format that trine recognises|is XML with"):
            read_any(tmp_path / f"{number}")


def test_export_formats(tmp_path):
    cluster = load_cluster("a40-pcie")
    text = export_text(cluster, "infragraph")
    assert yaml.safe_load(text) == json.loads(export_text(cluster, "infragraph", as_json=True))
    assert networkx.parse_graphml(export_text(cluster, "graphml")).number_of_edges() == len(cluster.links)
    with pytest.raises(SpecError, match="unknown format 'infragraf'; did you mean 'infragraph'"):
        export_text(cluster, "infragraf")
    with pytest.raises(InputError, match="cannot write"):
        write_cluster(cluster, tmp_path / "no" / "a.yaml", "yaml")
    with pytest.raises(SpecError, match=r"a\.json: ends in \.json, but holds yaml: end it in \.yaml or \.yml"):
        write_cluster(cluster, tmp_path / "a.json", "yaml")


def test_a_format_of_another_package_is_read_and_written_by_its_name(monkeypatch, tmp_path):
    def read(text, file, *, links, links_from, gpu):
        assert (text, links, links_from, gpu) == ("two\n", None, None, "h100-sxm")
        return build_topology("ring", "1 GB/s", "1 us", 2)

    for name in ("READERS", "WRITERS"):
        monkeypatch.setattr(clusters, name, Registry("format", "trine.no_such_group", {}))
    clusters.READERS.register("mine", read)
    clusters.WRITERS.register("mine", lambda cluster: f"{len(cluster.gpus)} GPUs\n")
    file = tmp_path / "machine.mine"
    file.write_text("two\n")
    cluster = read_any(file, "mine", gpu="h100-sxm")
    assert export_text(cluster, "mine") == "2 GPUs\n"
    with pytest.raises(SpecError, match="unknown format 'yours'"):
        read_any(file, "yours")


@pytest.mark.parametrize("name", ["a100-nvlink-4", "dgx-h100", "gb200-nvl72"])
def test_graphml_comes_back_as_it_was_written(tmp_path, name):
    """trine reads each file it writes; the same links as through networkx itself."""
    cluster = load_cluster(name)
    path = tmp_path / "machine.xml"
    write_cluster(cluster, path, "graphml")
    back = read_any(path)
    assert (back.name, back.gpus, back.devices) == (cluster.name, cluster.gpus, cluster.devices)
    by_networkx = from_networkx(networkx.read_graphml(path))
    assert sorted(map(repr, back.links)) == sorted(map(repr, by_networkx.links))
    numbers = sorted((k.source, k.target, k.bytes_per_s, k.latency_ps, k.link_class, k.medium) for k in cluster.links)
    assert (
        sorted((k.source, k.target, k.bytes_per_s, k.latency_ps, k.link_class, k.medium) for k in back.links) == numbers
    )


GRAPHML = (
    '<graphml>\n<key id="k" for="node" attr.name="{name}" attr.type="{type}"/>\n'
    '<graph edgedefault="undirected"><node id="gpu0"><data key="{key}">{value}</data></node></graph>\n'
    "{more}</graphml>\n"
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": "two", "name": "rail", "type": "int"}, r"m\.xml:3: rail: must be of type int, got 'two'"),
        ({"value": "maybe", "name": "reduces", "type": "boolean"}, "must be of type boolean, got 'maybe'"),
        ({"key": "none"}, "no <key> has the id 'none'"),
        ({"name": "knd"}, "unknown attribute 'knd'; did you mean 'kind'"),
        ({"more": "<graph/>"}, "must hold one <graph>, has 2"),
        ({"more": "<!ENTITY>"}, "not valid XML"),
    ],
)
def test_faults_in_graphml_are_named(tmp_path, change, said):
    usual = {"key": "k", "name": "kind", "type": "string", "value": "gpu", "more": ""}
    path = tmp_path / "m.xml"
    path.write_text(GRAPHML.format(**{**usual, **change}))
    with pytest.raises(SpecError, match=said):
        read_any(path)
