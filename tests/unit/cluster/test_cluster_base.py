"""Do cluster files with ``base:`` equal their base except for the listed changes, and are other changes refused?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trine.cluster import Cluster, load_cluster
from trine.errors import SpecError

DOCS = Path(__file__).parents[2].parent / "docs" / "formats" / "cluster.md"
HALF = "base: dgx-h100\nlinks:\n- {from: gpu0..7, to: nvswitch, latency: 175 ns}\n"


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def changed_links(one: Cluster, other: Cluster) -> set[str]:
    return {a.name for a, b in zip(one.links, other.links, strict=True) if a != b}


def test_three_lines_halve_a_latency(tmp_path: Path) -> None:
    base, mine = load_cluster("dgx-h100"), load_cluster(write(tmp_path, HALF))
    assert len(HALF.splitlines()) == 3
    assert changed_links(base, mine) == {link.name for link in base.links if "nvswitch" in link.name}
    assert {link.latency_ps for link in mine.links if "nvswitch" in link.name} == {175_000}
    assert (mine.name, mine.evidence, mine.fabric, mine.devices) == ("mine", "assumed", base.fabric, base.devices)
    assert mine.sources["changed in mine.yaml"] == ("16 links gpu0..7 - nvswitch: latency 175 ns (350 ns in dgx-h100)")
    assert mine.route_latency_ps(mine.route(0, 1)) * 2 == base.route_latency_ps(base.route(0, 1))


def test_the_documents_examples_are_read(tmp_path: Path) -> None:
    section = DOCS.read_text().split("## On top of another")[1].split("\n## ")[0]
    blocks = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    first, second = (load_cluster(write(tmp_path, block)) for block in blocks)
    assert first.links == load_cluster(write(tmp_path, HALF)).links
    assert {second.devices[gpu].gpu for gpu in second.gpus} == {"h200"}
    assert second.fabric is not None
    assert (second.name, second.evidence, second.fabric.kind, second.fabric.link) == (
        "our-next-node", "modelled", "rail", "ib-xdr"
    )  # fmt: skip
    to_switch = [link for link in second.links if link.name == "gpu3->nvswitch"]
    assert [(link.bytes_per_s, link.peak_bytes_per_s) for link in to_switch] == [(700_000_000_000, None)]
    assert {link.medium for link in second.links if link.name.startswith("nic")} == {"pcie6"}


def test_bases_stand_on_bases_and_in_nodes_and_scale(tmp_path: Path) -> None:
    write(tmp_path, HALF, "half.yaml")
    mine = load_cluster(write(tmp_path, "base: half.yaml\nrouting: ecmp-hash\nlinks:\n"
                              "- {from: gpu0, to: nvswitch, bandwidth: 100 GB/s, duplex: false}\n"))  # fmt: skip
    by_name = {link.name: link for link in mine.links}
    assert by_name["gpu0->nvswitch"].bytes_per_s == 100_000_000_000
    assert by_name["nvswitch->gpu0"].bytes_per_s == by_name["gpu1->nvswitch"].bytes_per_s == 370_800_000_000
    assert by_name["gpu0->nvswitch"].latency_ps == 175_000
    assert (mine.routing, mine.routing_why) == ("ecmp-hash", "set in its file")
    assert [key for key in mine.sources if key.startswith("changed")] == [
        "changed in half.yaml",
        "changed in mine.yaml",
    ]
    joined = load_cluster(
        write(tmp_path, "node: {file: half.yaml, count: 3}\nfabric: {kind: clos, link: ib-ndr}\n", "j.yaml")
    )
    assert {link.latency_ps for link in joined.links if "gpu0->" in link.name and "nvswitch" in link.name} == {175_000}
    over = load_cluster(
        write(tmp_path, "base: j.yaml\nlinks:\n- {from: node2.gpu0..7, to: node2.nvswitch, latency: 1 us}\n")
    )
    assert len(changed_links(joined, over)) == 16
    assert over.route_latency_ps(over.route(16, 17)) == 2_000_000
    assert len(load_cluster(tmp_path / "half.yaml", nodes=4).gpus) == 32


def test_the_written_file_reads_back_equal(tmp_path: Path) -> None:
    mine = load_cluster(write(tmp_path, HALF))
    again = Cluster.from_yaml(write(tmp_path, mine.to_yaml(), "again.yaml"))
    assert again == mine
    assert again.fingerprint == mine.fingerprint


def test_no_changes_change_nothing_but_the_name(tmp_path: Path) -> None:
    base, mine = load_cluster("dgx-h100"), load_cluster(write(tmp_path, "base: dgx-h100\n"))
    assert (mine.links, mine.devices, mine.evidence, mine.routing) == (
        base.links, base.devices, base.evidence, base.routing
    )  # fmt: skip
    assert mine.sources == base.sources


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: dgx-h10\n", "base: no cluster 'dgx-h10'; did you mean 'dgx-h100'?"),
        ("base: 7\n", "base: must be the name of a preset or of a cluster file, got 7"),
        ("base: none.yaml\n", "none.yaml: cannot be read: No such file"),
        ("base: mine.yaml\n", "base: stands on more than 8 files, or on itself"),
        ("base: dgx-h100\ntopology: {kind: ring}\n", "topology: goes not with 'base', which has its own"),
        ("base: dgx-h100\nlink: []\n", "unknown key 'link'; did you mean 'links'?"),
        (HALF.replace("nvswitch", "nvswich"), "links[0].to: unknown device 'nvswich'; did you mean 'nvswitch'?"),
        (HALF.replace("gpu0..7", "nic0..7"), "links[0].from: no link of 'dgx-h100' joins 'nic0' to nvswitch"),
        (HALF.replace("latency", "latencyy"), "links[0]: unknown key 'latencyy'; did you mean 'latency'?"),
        (HALF.replace("175 ns", "175"), "links[0].latency: "),
        (HALF.replace(", latency: 175 ns", ""), "links[0]: changes nothing: give 'bandwidth', 'latency', 'peak' or"),
        (HALF.replace("latency: 175 ns", "lanes: 3"), "links[0].lanes: goes with 'link'"),
        (HALF.replace("latency: 175 ns", "link: nvlink44"), "links[0].link: unknown "),
        ("base: dgx-h100\ndevices:\n- {name: nic0, gpu: h100-sxm}\n", "devices.nic0.gpu: a nic has no GPU model"),
        ("base: dgx-h100\ndevices:\n- {name: gpu0, gpu: h1000-sxm}\n", "devices.gpu0.gpu: "),
        ("base: dgx-h100\ndevices:\n- {name: gpu0}\n", "devices: changes nothing: give 'gpu', 'forwards', 'reduces'"),
        ("base: dgx-h100\nfabric: {link: ib-xdrr}\n", "fabric.link: unknown "),
        ("base: dgx-h100\nfabric: {kind: raill}\n", "fabric.kind: "),
        ("base: [1]\n", "base: must be the name of a preset"),
    ],
)  # fmt: skip
def test_wrong_files_are_one_line_that_names_file_field_and_value(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        load_cluster(path)
    said = str(caught.value)
    assert message in said
    assert str(tmp_path) in said
    assert "\n" not in said
    assert len(said) < 400


def test_a_base_with_faults_names_the_base(tmp_path: Path) -> None:
    write(tmp_path, "devices: [a, b]\nlinks:\n- {from: a, to: c, bandwidth: 1 GB/s, latency: 0}\n", "under.yaml")
    with pytest.raises(SpecError, match=r"under\.yaml: links\[0\]\.to: unknown device 'c'"):
        load_cluster(write(tmp_path, "base: under.yaml\n"))


def test_a_joined_base_keeps_its_fabric(tmp_path: Path) -> None:
    write(tmp_path, "node: {preset: dgx-h100, count: 2}\n", "two.yaml")
    with pytest.raises(SpecError, match="the nodes of 'two' are joined already"):
        load_cluster(write(tmp_path, "base: two.yaml\nfabric: {link: ib-xdr}\n"))
