"""Does the drawing show every kind of cluster, completely or with a count of the hidden parts?"""

import math
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import combinations, pairwise

import pytest

from trine.cluster import build_topology, load_cluster
from trine.cluster.draw.figure import draw_cluster
from trine.cluster.draw.hosts import MORE
from trine.cluster.draw.positions import lay_out
from trine.errors import InputError

SMALL = {
    "dgx-h100": lambda: load_cluster("dgx-h100"),
    "two nodes": lambda: load_cluster("dgx-h100", nodes=2),
    "fat tree": lambda: load_cluster("dgx-h100", nodes=2, fabric="fat-tree"),
    "ring": lambda: build_topology("ring", "50 GB/s", "1 us", 6),
    "torus": lambda: build_topology("torus:4x4", "50 GB/s", "1 us", 16),
    "cube": lambda: build_topology("torus:2x3x4", "50 GB/s", "1 us", 24),
    "tree": lambda: build_topology("tree:4", "50 GB/s", "1 us", 16),
    "pcie": lambda: load_cluster("a40-pcie"),
}


def texts(path):
    """Return the labels, which matplotlib draws as paths and keeps in comments."""
    return path.read_text().split("<!-- ")[1:]


@pytest.mark.parametrize("name", SMALL)
def test_small_clusters_are_drawn_whole(name):
    cluster = SMALL[name]()
    picture = lay_out(cluster)
    assert sorted(picture.of_device) == list(range(len(cluster.devices)))
    pairs = {frozenset((link.source, link.target)) for link in cluster.links}
    assert len(picture.lines) == len(pairs)
    places = Counter((round(mark.x, 2), round(mark.y, 2)) for mark in picture.marks)
    assert set(places.values()) == {1}
    for a in picture.marks:
        for b in picture.marks:
            assert a is b or abs(a.x - b.x) > 0.9 or abs(a.y - b.y) > 0.45, (a, b)  # no mark covers another


def test_hosts_are_framed_and_those_alike_counted():
    cluster = load_cluster("dgx-h100", nodes=64)
    picture = lay_out(cluster)
    assert [frame.label for frame in picture.frames] == ["node0: 8 x h100-sxm", "node1: 8 x h100-sxm"]
    assert "x 62\nmore" in [mark.label for mark in picture.marks if mark.kind == MORE]
    assert len(picture.marks) < 100
    inside = [mark for i, mark in enumerate(picture.marks) if i in picture.of_device.values() and mark.kind == "gpu"]
    for mark in inside:
        assert any(f.left < mark.x < f.right and f.bottom < mark.y < f.top for f in picture.frames)


def test_identical_spines_and_leaves_of_hidden_hosts_are_counted():
    picture = lay_out(load_cluster("dgx-h100", nodes=64))  # 8 spines, 16 leaves, 8 of them on drawn hosts
    switches = [mark.label for mark in picture.marks if mark.kind == "switch" and mark.label[:4] in ("spin", "leaf")]
    assert switches == [*(f"leaf{i}.rail{i}" for i in range(8)), "spine0", "spine1"]
    more = {mark.label: (i, mark) for i, mark in enumerate(picture.marks) if mark.kind == MORE}
    assert set(more) == {"x 62\nmore", "+ 8", "+ 6"}
    number = {label: i for label, (i, _) in more.items()}
    assert sorted(picture.hints) == sorted([(number["+ 8"], number["+ 6"]), (number["x 62\nmore"], number["+ 8"])])
    assert more["x 62\nmore"][1].x > max(frame.right for frame in picture.frames)  # no hint crosses a host


def test_flat_fabrics_are_circles():
    picture = lay_out(build_topology("dragonfly:4x2x2", "50 GB/s", "1 us", 72))
    assert not picture.frames
    hubs = [mark for mark in picture.marks if mark.kind == "switch"]
    assert len({round((mark.x**2 + mark.y**2) ** 0.5, 6) for mark in hubs}) == 1


@pytest.mark.parametrize("count", [3, 12, 20])
def test_devices_on_a_circle_lie_at_equal_distances_apart(count):
    """Equal steps around the whole circle, and at least a mark's width between neighbours."""
    picture = lay_out(build_topology("full", "50 GB/s", "1 us", count))
    angles = sorted(math.atan2(mark.y, mark.x / 1.15) for mark in picture.marks)
    assert len(angles) == count
    steps = [b - a for a, b in pairwise([*angles, angles[0] + 2 * math.pi])]
    assert steps == pytest.approx([2 * math.pi / count] * count)
    assert min(math.dist((a.x, a.y), (b.x, b.y)) for a, b in combinations(picture.marks, 2)) > 0.9


def test_hosts_around_the_switches_of_a_flat_fabric_lie_at_equal_angles():
    picture = lay_out(build_topology("dragonfly:4x2x2", "50 GB/s", "1 us", 72))
    far = max(math.hypot(mark.x, mark.y) for mark in picture.marks)
    outer = [mark for mark in picture.marks if math.hypot(mark.x, mark.y) > far - 1e-6]
    angles = sorted(math.atan2(mark.y, mark.x) for mark in outer)
    steps = [b - a for a, b in pairwise([*angles, angles[0] + 2 * math.pi])]
    assert steps == pytest.approx([2 * math.pi / len(outer)] * len(outer))
    assert 0.6 < 2 * math.pi * far / len(outer) < 2.5


def test_large_grids_say_how_much_is_drawn():
    picture = lay_out(build_topology("torus:16x16", "50 GB/s", "1 us", 256))
    assert picture.notes == ["8 x 8 of 16 x 16 GPUs drawn"]
    assert len(picture.marks) == 64


def test_one_way_and_parallel_links():
    from trine.formats.edge_list import edge_list_cluster

    rows = "a,b,50 GB/s,1 us,no\nb,c,50 GB/s,1 us,yes\nb,c,50 GB/s,1 us,yes\n"
    lines = lay_out(edge_list_cluster("source,target,bandwidth,latency,duplex\n" + rows, "t.csv")).lines
    assert sorted((line.one_way, line.count) for line in lines) == [(False, 2), (True, 1)]


def test_svg_is_whole_and_the_same_each_time(tmp_path):
    cluster = load_cluster("dgx-h100")
    for name in ("a.svg", "b.svg"):
        draw_cluster(cluster, tmp_path / name, title="one machine")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert ET.fromstring(text).tag.endswith("svg")
    labels = " ".join(texts(tmp_path / "a.svg"))
    for word in ("one machine", "gpu7", "nic0", "nvswitch", "nvlink4: 370.8 GB/s, 350 ns", "pcie5: 53 GB/s"):
        assert word in labels


def test_png_and_refusals(tmp_path):
    cluster = build_topology("ring", "50 GB/s", "1 us", 4)
    draw_cluster(cluster, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="xyz"):
        draw_cluster(cluster, tmp_path / "a.xyz")
    with pytest.raises(InputError, match="cannot write"):
        draw_cluster(cluster, tmp_path / "none" / "a.png")
