"""Is a cluster file read as meant, written back equal, and refused where it is wrong?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trine.cluster import Cluster, Fabric, build_topology, known_clusters, link_named, load_cluster
from trine.errors import SpecError

MINIMAL = """
devices: [a, b, c]
links:
- {from: a, to: b, bandwidth: 50 GB/s, latency: 1 us, duplex: true}
- {from: b, to: c, bandwidth: 400 Gbit/s, latency: 0}
"""
FULL = """
name: two
notes: for a test
evidence: measured
sources: {links: a ruler}
devices:
- {name: gpu, count: 2, gpu: h100-sxm, node: n0}
- {name: sw, kind: switch}
- {name: mem, kind: host, node: n0}
links:
- {from: [gpu0, gpu1, mem], to: sw, bandwidth: 1.5 GB/s, latency: 1500 ps, duplex: true}
"""


def read(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "machine.yaml"
    path.write_text(text)
    return Cluster.from_yaml(path)


def test_minimal_form(tmp_path: Path) -> None:
    cluster = read(tmp_path, MINIMAL)
    assert cluster.name == "machine"
    assert [device.name for device in cluster.devices] == ["a", "b", "c"]
    assert cluster.gpus == (0, 1, 2)
    assert [(link.source, link.target) for link in cluster.links] == [(0, 1), (1, 0), (1, 2)]
    assert [link.name for link in cluster.links] == ["a->b", "b->a", "b->c"]
    assert cluster.link_bytes_per_s.tolist() == [50 * 10**9] * 3
    assert cluster.link_latency_ps.tolist() == [10**6, 10**6, 0]
    assert cluster.route(0, 2) == (0, 2)  # through b, which may forward
    assert cluster.host_of(0) is None


def test_full_form(tmp_path: Path) -> None:
    cluster = read(tmp_path, FULL)
    assert [device.name for device in cluster.devices] == ["gpu0", "gpu1", "sw", "mem"]
    assert cluster.devices[0].gpu == "h100-sxm"
    assert not cluster.devices[0].forwards
    assert cluster.devices[2].forwards
    assert cluster.evidence == "measured"
    assert cluster.sources == {"links": "a ruler"}
    assert cluster.notes == "for a test"
    assert [cluster.links[link].name for link in cluster.route(3, 1)] == ["mem->sw", "sw->gpu1"]
    assert cluster.host_of(1) == 3


def test_whole_numbers_are_names(tmp_path: Path) -> None:
    cluster = read(tmp_path, "devices: [0, 1]\nlinks: [{from: 0, to: 1, bandwidth: 1 GB/s, latency: 0 us}]")
    assert [device.name for device in cluster.devices] == ["0", "1"]
    assert cluster.route(0, 1) == (0,)


def test_parallel_links_are_kept_and_the_first_is_the_route(tmp_path: Path) -> None:
    link = "{from: a, to: b, bandwidth: 1 GB/s, latency: 1 us}"
    cluster = read(tmp_path, f"devices: [a, b]\nlinks: [{link}, {link}]")
    assert [link.name for link in cluster.links] == ["a->b", "a->b#2"]
    assert cluster.route(0, 1) == (0,)


def test_topology_shorthand_with_a_shared_host_link(tmp_path: Path) -> None:
    cluster = read(
        tmp_path,
        "topology: {kind: mesh, rows: 2, cols: 2, bandwidth: 10 GB/s, latency: 1 us, gpu: a40}\n"
        "host: {bandwidth: 20 GB/s, latency: 5 us, gpus_per_link: 2}",
    )
    plain = build_topology("mesh:2x2", "10 GB/s", "1 us", 4, "a40")
    assert cluster.links[: len(plain.links)] == plain.links
    assert cluster.gpus == (0, 1, 2, 3)
    paths = [[cluster.links[link].name for link in cluster.route(cluster.host_of(gpu) or -1, gpu)] for gpu in range(4)]
    assert paths[0] == ["host->pcie0", "pcie0->gpu0"]
    assert [path[0] for path in paths] == ["host->pcie0", "host->pcie0", "host->pcie1", "host->pcie1"]
    assert cluster.route_latency_ps(cluster.route(4, 0)) == 5 * 10**6


def test_json_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(
        '{"devices": ["a", "b"], "links": [{"from": "a", "to": "b", "bandwidth": "1 GB/s", "latency": "1 us"}]}'
    )
    assert load_cluster(str(path)).route(0, 1) == (0,)


@pytest.mark.parametrize("name", ["minimal", "full", *known_clusters()])
def test_written_file_is_read_back_equal(tmp_path: Path, name: str) -> None:
    own = {"minimal": MINIMAL, "full": FULL}
    cluster = read(tmp_path, own[name]) if name in own else load_cluster(name)
    path = tmp_path / "again.yaml"
    path.write_text(cluster.to_yaml())
    again = Cluster.from_yaml(path)
    assert again == cluster
    assert again.fingerprint == cluster.fingerprint
    assert again.to_yaml() == cluster.to_yaml()


CATALOGUE = """
devices:
- {name: gpu, count: 4, gpu: h100-sxm, node: tray, per_node: 2}
- {name: nic, count: 2, kind: nic, node: node0, rail: 3}
- {name: sw, kind: switch, reduces: true}
links:
- {from: gpu0..3, to: sw, link: nvlink4, lanes: 18, duplex: true}
- {from: gpu0..3, to: nic0..1, pairs: true, link: pcie5}
- {from: gpu0, to: gpu1, link: nvlink4, bandwidth: 10 GB/s, latency: 3 us, class: scale-out, peak: 11 GB/s, name: odd}
- {from: gpu0, to: gpu1, bandwidth: 10 GB/s, latency: 3 us, class: host}
library: nccl
routing: ecmp-hash:4
fabric: {kind: rail, link: ib-ndr, oversubscription: 2, radix: 32}
"""


def test_links_of_the_catalogue(tmp_path: Path) -> None:
    cluster = read(tmp_path, CATALOGUE)
    kind, first = link_named("nvlink4"), cluster.links[0]
    assert (first.bytes_per_s, first.latency_ps) == (18 * kind.bytes_per_s, kind.latency_ps)
    assert (first.peak_bytes_per_s, first.medium, first.link_class) == (450 * 10**9, "nvlink4", "scale-up")
    pairs = [link.name for link in cluster.links if link.medium == "pcie5"]
    assert pairs == ["gpu0->nic0", "gpu1->nic0", "gpu2->nic1", "gpu3->nic1"]
    odd, after = cluster.links[-2:]
    assert (odd.name, odd.bytes_per_s, odd.latency_ps, odd.medium) == ("odd", 10**10, 3 * 10**6, "nvlink4")
    assert (odd.link_class, odd.peak_bytes_per_s) == ("scale-out", 11 * 10**9)
    assert (after.name, after.medium, after.link_class) == ("gpu0->gpu1#2", None, "host")
    assert [device.node for device in cluster.devices[:4]] == ["tray0", "tray0", "tray1", "tray1"]
    assert [device.rail for device in cluster.devices if device.kind == "nic"] == [3, 4]
    assert cluster.devices[-1].reduces
    assert (cluster.library, cluster.routing) == ("nccl", "ecmp-hash:4")
    assert cluster.fabric == Fabric(kind="rail", link="ib-ndr", oversubscription=2, radix=32)
    path = tmp_path / "again.yaml"
    path.write_text(cluster.to_yaml())
    assert Cluster.from_yaml(path).to_yaml() == cluster.to_yaml()


def test_blueprints_with_links_of_the_catalogue(tmp_path: Path) -> None:
    cluster = read(tmp_path, "topology: {kind: 'torus:2x2x3', link: xgmi3, lanes: 2}\nrouting: dimension-order")
    assert len(cluster.gpus) == 12
    assert cluster.grid == (2, 2, 3)
    assert {(link.bytes_per_s, link.medium) for link in cluster.links} == {(2 * 48 * 10**9, "xgmi3")}
    path = tmp_path / "again.yaml"
    path.write_text(cluster.to_yaml())
    assert Cluster.from_yaml(path) == cluster


def test_examples_of_the_documentation_are_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "formats" / "cluster.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 9
    (tmp_path / "our-node.yaml").write_text(examples[5])
    assert [len(read(tmp_path, example).gpus) for example in examples] == [32, 16 + 4 + 8, 8, 8, 3, 8, 8, 8, 84]


def test_fingerprint_sees_every_number(tmp_path: Path) -> None:
    texts = [
        MINIMAL,
        MINIMAL.replace("50 GB", "51 GB"),
        MINIMAL.replace("1 us", "2 us"),
        MINIMAL.replace("a, b, c", "a, b, c, d"),
        MINIMAL + "library: nccl",
        MINIMAL + "library: rccl",
        MINIMAL + "routing: rail",
        MINIMAL + "grid: [3]",
        MINIMAL + "fabric: {kind: rail, link: ib-ndr}",
        MINIMAL + "fabric: {kind: rail, link: ib-ndr, reduces: true}",
        MINIMAL.replace("duplex: true", "duplex: true, class: host"),
        MINIMAL.replace("duplex: true", "duplex: true, peak: 60 GB/s"),
        MINIMAL.replace("duplex: true", "duplex: true, link: pcie5"),
        MINIMAL.replace("[a, b, c]", "[a, b, {name: c, forwards: true, rail: 1}]"),
    ]
    assert len({read(tmp_path, text).fingerprint for text in texts}) == len(texts)


LINK = "{from: a, to: b, bandwidth: 1 GB/s, latency: 1 us}"
FAULTS = [
    ("devices: [a, a]\nlinks: []", "devices: the name 'a' is given twice"),
    ("devices: []", "has no devices"),
    ("links: []", "needs 'devices'"),
    ("devces: [a]", "unknown key 'devces'; did you mean 'devices'"),
    (
        f"devices: [alpha, b]\nlinks: [{LINK.replace('from: a', 'from: alpa')}]",
        r"links\[0\].from: unknown device 'alpa'.*'alpha'",
    ),
    (f"devices: [a, b]\nlinks: [{LINK.replace('to: b', 'to: a')}]", r"links\[0\]: joins 'a' to itself"),
    (
        f"devices: [a, b]\nlinks: [{LINK.replace('1 GB/s', '0 GB/s')}]",
        r"links\[0\].bandwidth: a bandwidth must be positive",
    ),
    (f"devices: [a, b]\nlinks: [{LINK.replace('1 GB/s', '5')}]", r"links\[0\].bandwidth: a bandwidth needs a unit"),
    (f"devices: [a, b]\nlinks: [{LINK.replace('1 us', '-1 us')}]", r"links\[0\].latency: a time must not be negative"),
    (f"devices: [a, b]\nlinks: [{LINK.replace(', latency: 1 us', '')}]", r"links\[0\].latency: is missing"),
    (
        f"devices: [a, b]\nlinks: [{LINK.replace('}', ', duplexx: true}')}]",
        r"links\[0\]: unknown key 'duplexx'.*'duplex'",
    ),
    (f"devices: [a, b]\nlinks: [{LINK.replace('}', ', duplex: 1}')}]", r"links\[0\].duplex: should be a valid boolean"),
    ("devices: [a, no]", r"devices\[1\].name: a name must be text, got False; put it in quotes"),
    ("devices: [{name: a, kind: cpu}]", r"devices\[0\].kind: should be 'gpu'"),
    ("devices: [{name: a, gpu: h100-smx}]", r"devices\[0\].gpu: unknown GPU 'h100-smx'; did you mean 'h100-sxm'"),
    ("devices: [{name: a, kind: switch, gpu: a40}]", r"devices\[0\].gpu: a switch has no GPU model"),
    ("devices: [a]\nevidence: guessed", "evidence: should be 'measured'"),
    ("devices: [a]\nhost: {bandwidth: 1 GB/s, latency: 0}", "host: goes with 'topology'"),
    ("devices: [a]\ntopology: {kind: ring, gpus: 2, bandwidth: 1 GB/s, latency: 0}", "devices: goes not with"),
    ("topology: {kind: ring, bandwidth: 1 GB/s, latency: 0}", "topology.gpus: is missing"),
    ("topology: {kind: ring, gpus: 2, rows: 2, bandwidth: 1 GB/s, latency: 0}", "topology.rows: a ring has no rows"),
    ("topology: {kind: mesh, gpus: 2, rows: 2, bandwidth: 1 GB/s, latency: 0}", "needs 'rows' and 'cols'"),
    (
        f"devices: [a, b]\nlinks: [{LINK.replace('bandwidth: 1 GB/s', 'link: nvlink44')}]",
        r"links\[0\].link: unknown kind of link 'nvlink44'; did you mean 'nvlink4'",
    ),
    (
        f"devices: [a, b]\nlinks: [{LINK.replace('bandwidth', 'link: pcie5, lanes: 2, bandwidth')}]",
        r"links\[0\].lanes: has no effect beside 'bandwidth'",
    ),
    (f"devices: [a, b]\nlinks: [{LINK.replace('bandwidth', 'lanes: 2, bandwidth')}]", r"links\[0\].lanes: goes with"),
    (f"devices: [a, b]\nlinks: [{LINK.replace('}', ', class: up}')}]", r"links\[0\].class: should be 'scale-up'"),
    (f"devices: [a, b]\nlinks: [{LINK.replace('}', ', duplex: true, name: x}')}]", r"links\[0\].name: a name belongs"),
    (
        "devices: [a, b, c]\nlinks: [{from: [a, b], to: [b, c, b], pairs: true, link: pcie5}]",
        r"links\[0\]: pairs 2 devices with 3",
    ),
    (
        "devices: [{name: a, count: 3}]\nlinks: [{from: a0..3, to: a0, link: pcie5}]",
        r"links\[0\].from: unknown device 'a3'",
    ),
    (
        "devices: [{name: a, count: 3}]\nlinks: [{from: a2..1, to: a0, link: pcie5}]",
        r"links\[0\].from: the range 'a2..1'",
    ),
    ("devices: [{name: a, reduces: true}]", r"devices\[0\].reduces: a gpu reduces nothing"),
    ("devices: [{name: a, per_node: 2}]", r"devices\[0\].per_node: goes with 'node' and 'count'"),
    ("devices: [a]\nlibrary: mpi", "library: should be 'nccl'"),
    ("devices: [a]\nrouting: rial", "unknown routing 'rial'; did you mean 'rail'"),
    ("devices: [a]\ngrid: [2, 2]", "a grid of 2x2 has not the cluster's 1 GPUs"),
    (
        "devices: [a]\nfabric: {kind: rail, link: ib-ndx}",
        "fabric.link: unknown kind of link 'ib-ndx'; did you mean 'ib-ndr'",
    ),
    ("devices: [a]\nfabric: {kind: rails, link: ib-ndr}", "fabric.kind: should be 'switch', 'rail'"),
    ("devices: [a]\nfabric: {kind: switch, link: ib-ndr, radix: 64}", "fabric.radix: a switch fabric has no leaf"),
    ("devices: [a]\nfabric: {kind: dragonfly, link: ib-ndr, oversubscription: 1}", "fabric.oversubscription: a dragon"),
    ("topology: {kind: full, gpus: 100000, link: nvlink4}", "links or switches: at most 1048576"),
    ("topology: {kind: 'dragonfly:1000000x1x1', gpus: 8, link: nvlink4}", "links or switches: at most 1048576"),
    ("topology: {kind: 'fat-tree:2x1000000', gpus: 8, link: nvlink4}", "links or switches: at most 1048576"),
    ("node: {preset: dgx-h100, count: 200000}", "1600000 GPUs: trine simulates at most 1048576"),
    ("node: {preset: dgx-h10}", "node.preset: unknown preset 'dgx-h10'; did you mean 'dgx-h100'"),
    ("node: {count: 2}", "node: give 'preset' or 'file'"),
    ("node: {preset: dgx-h100}\nnodes: [{preset: dgx-h100}]", "node: give 'node' or 'nodes', not both"),
    ("node: {preset: dgx-h100}\ndevices: [a]", "devices: goes not with 'node'"),
    ("node: {preset: dgx-h100, gpus: 9}", "'dgx-h100' has 8 GPUs, not 9"),
    ("node: {file: machine.yaml}", "nodes: a node of another cluster may not itself hold nodes"),
    ("nodes: [{preset: dgx-h100}, {preset: mi300x-node}]", r"nodes with different libraries \(nccl, rccl\)"),
    ("topology: {kind: rnig, gpus: 2, bandwidth: 1 GB/s, latency: 0}", "unknown topology 'rnig'; did you mean 'ring'"),
    ("topology: {kind: ring, gpus: 2, link: pcie5, lanes: 2, bandwidth: 1 GB/s}", "topology.lanes: has no effect"),
    ("topology: {kind: ring, gpus: 2, latency: 0}", "topology.bandwidth: is missing"),
    ("topology: {kind: mesh, gpus: 5, rows: 2, cols: 2, bandwidth: 1 GB/s, latency: 0}", "has 4 GPUs, not 5"),
]


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_faults_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        read(tmp_path, text)
    assert "machine.yaml" in str(caught.value)


def test_a_node_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml: cannot be read"):
        read(tmp_path, "nodes: [{file: nowhere.yaml}]")


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown cluster 'dgx-h10'; did you mean 'dgx-h100'"):
        load_cluster("dgx-h10")
    with pytest.raises(SpecError, match=r"nowhere\.yaml: cannot be read"):
        load_cluster("nowhere.yaml")
