"""Does any cluster survive a round trip through InfraGraph, and does the fast YAML reader match PyYAML?"""

import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.cluster import Cluster, Device, Link, build_topology, known_clusters, load_cluster
from trine.errors import SpecError
from trine.formats.clusters import export_text, parse_plain, read_any

NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=12)


@st.composite
def clusters(draw):
    names = draw(st.lists(NAMES, min_size=2, max_size=9, unique=True))
    nodes = draw(st.lists(st.one_of(st.none(), NAMES), min_size=1, max_size=3))
    devices = [
        Device(
            name=name,
            kind="gpu" if i == 0 else draw(st.sampled_from(("gpu", "host", "switch", "nic"))),
            node=draw(st.sampled_from(nodes)),
            forwards=draw(st.booleans()),
            reduces=draw(st.booleans()),
            rail=draw(st.one_of(st.none(), st.integers(0, 9))),
        )
        for i, name in enumerate(names)
    ]
    numbers = st.tuples(
        st.integers(1, 10**13),
        st.integers(0, 10**9),
        st.sampled_from(("scale-up", "host", "scale-out")),
        st.one_of(st.none(), st.sampled_from(("nvlink4", "my own"))),
        st.one_of(st.none(), st.integers(1, 10**13)),
    )
    links, ends = [], st.tuples(st.integers(0, len(devices) - 1), st.integers(0, len(devices) - 1))
    for number, (a, b) in enumerate(draw(st.lists(ends.filter(lambda e: e[0] != e[1]), max_size=12))):
        speed, latency, link_class, medium, peak = draw(numbers)
        for source, target in ((a, b), (b, a)):
            links.append(
                Link(
                    name=f"{number}:{source}", source=source, target=target, bytes_per_s=speed, latency_ps=latency,
                    link_class=link_class, medium=medium, peak_bytes_per_s=peak,
                )
            )  # fmt: skip
    order = draw(st.permutations(links))
    return Cluster(
        name=draw(NAMES), devices=tuple(devices), links=tuple(order), evidence="measured",
        sources=draw(st.dictionaries(NAMES, NAMES, max_size=2)), notes=draw(st.text(max_size=20)), library="rccl",
    )  # fmt: skip


def through_a_file(text, ending):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"a{ending}"
        file.write_text(text, encoding="utf-8")
        return read_any(file)


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_any_cluster_comes_back_equal(cluster):
    assert through_a_file(export_text(cluster, "infragraph", as_json=True), ".json") == cluster
    assert through_a_file(export_text(cluster, "infragraph"), ".yaml") == cluster


@pytest.mark.parametrize("name", [name for name in known_clusters() if name != "wafer-a100-photonic"])
def test_every_preset_comes_back_equal(name):
    cluster = load_cluster(name)
    assert through_a_file(export_text(cluster, "infragraph"), ".yaml") == cluster


@pytest.mark.parametrize("fabric", ["rail", "fat-tree:2", "dragonfly"])
def test_several_nodes_come_back_equal_and_share_a_device(fabric):
    cluster = load_cluster("dgx-h100", nodes=8, fabric=fabric)
    text = export_text(cluster, "infragraph")
    assert through_a_file(text, ".yaml") == cluster
    assert [instance["device"] for instance in yaml.safe_load(text)["instances"]] == ["host"] * 8 + ["fabric"]


@pytest.mark.parametrize("format", ["infragraph", "csv", "graphml"])
def test_circuits_are_refused(format):
    with pytest.raises(SpecError, match="joined by circuits: take yaml"):
        export_text(load_cluster("wafer-a100-photonic"), format, lossy=format == "infragraph")


def test_links_that_differ_by_direction_are_refused_or_said():
    plain = build_topology("ring", "50 GB/s", "1 us", 3)
    slow = Link(**{**{f: getattr(plain.links[0], f) for f in Link.__slots__}, "bytes_per_s": 10**9})
    cluster = Cluster(name="odd", devices=plain.devices, links=(slow, *plain.links[1:]))
    with pytest.raises(SpecError, match=r"gpu0->gpu1.*no opposite one with the same numbers.*lossy"):
        export_text(cluster, "infragraph")
    again = through_a_file(export_text(cluster, "infragraph", lossy=True), ".yaml")
    speeds = {link.name: link.bytes_per_s for link in again.links}
    assert speeds["gpu0->gpu1"] == speeds["gpu1->gpu0"] == 10**9
    assert speeds["gpu1->gpu2"] == 50 * 10**9
    assert "made alike in both directions" in again.notes


SCALARS = st.one_of(
    st.integers(-(10**6), 10**6), st.floats(-100, 100), st.booleans(), st.none(),
    st.text("abN0y1 .:-'#[]{}\n", max_size=8),
    st.sampled_from(["yes", "No", "1e3", "0x1", "1:20", "2001-01-01", "~", ".5"]),
)  # fmt: skip
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abn_", max_size=3), inner, max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(TREES, st.sampled_from([None, False]))
def test_fast_yaml_says_what_pyyaml_says_or_nothing(data, style):
    text = yaml.safe_dump(data, default_flow_style=style, width=60)
    found = parse_plain(text)
    assert found is None or repr(found) == repr(yaml.safe_load(text))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab :-.'\n1y#[]", max_size=12), max_size=6))
def test_fast_yaml_never_reads_more_than_pyyaml(lines):
    text = "\n".join(lines)
    found = parse_plain(text)
    if found is not None:
        assert repr(found) == repr(yaml.safe_load(text))


def test_fast_yaml_reads_what_tools_write():
    folder = Path(__file__).parents[1] / "data" / "infragraph"
    for name in ("device_dgx1.yaml", "fabric_single_tier_2x_dgx_h100.yaml", "annotation_ranks.yaml"):
        text = (folder / name).read_text()
        assert parse_plain(text) == yaml.safe_load(text)
