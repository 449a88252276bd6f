"""Is a cluster file read as meant, written back equal, and refused where it is wrong?"""

from __future__ import annotations

from pathlib import Path

import pytest

from trine.cluster import Cluster, build_topology, known_clusters, load_cluster
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


def test_fingerprint_sees_every_number(tmp_path: Path) -> None:
    texts = [
        MINIMAL,
        MINIMAL.replace("50 GB", "51 GB"),
        MINIMAL.replace("1 us", "2 us"),
        MINIMAL.replace("a, b, c", "a, b, c, d"),
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
    ("topology: {kind: mesh, gpus: 5, rows: 2, cols: 2, bandwidth: 1 GB/s, latency: 0}", "has 4 GPUs, but 5"),
]


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_faults_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        read(tmp_path, text)
    assert "machine.yaml" in str(caught.value)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown cluster 'dgx-h10'; did you mean 'dgx-h100'"):
        load_cluster("dgx-h10")
    with pytest.raises(SpecError, match=r"nowhere\.yaml: cannot be read"):
        load_cluster("nowhere.yaml")
