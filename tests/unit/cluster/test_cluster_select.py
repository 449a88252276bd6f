"""Do slow and dead links change only the links they name?"""

from __future__ import annotations

import pytest

from trine.cluster import Cluster, load_cluster
from trine.errors import SpecError, UnitError


def names(cluster: Cluster, a: str, b: str) -> list[str]:
    return [cluster.links[link].name for link in cluster.route(cluster.index(a), cluster.index(b))]


def changed(cluster: Cluster) -> dict[str, int]:
    before = {link.name: link for link in load_cluster("dgx-h100").links}
    return {link.name: link.bytes_per_s for link in cluster.links if link != before[link.name]}


def test_one_direction_or_both() -> None:
    whole = 18 * 20_600_000_000
    one = load_cluster("dgx-h100", slow_links=[("gpu0->nvswitch", 0.5)])
    assert changed(one) == {"gpu0->nvswitch": whole // 2}
    both = load_cluster("dgx-h100", slow_links=[("nvswitch-gpu0", "100 GB/s")])
    assert changed(both) == {"gpu0->nvswitch": 100 * 10**9, "nvswitch->gpu0": 100 * 10**9}
    text = load_cluster("dgx-h100", slow_links=[("gpu0->nvswitch", "0.5")])
    assert text == one


def test_dead_links_are_gone_and_messages_go_round() -> None:
    cluster = load_cluster("dgx-h100", links_down=["gpu0-nvswitch"])
    assert len(cluster.links) == len(load_cluster("dgx-h100").links) - 2
    assert names(cluster, "gpu0", "gpu7") == [
        "gpu0->pcie0", "pcie0->host0", "host0->host1", "host1->pcie3", "pcie3->gpu7",
    ]  # fmt: skip
    assert names(cluster, "gpu1", "gpu7") == ["gpu1->nvswitch", "nvswitch->gpu7"]


def test_a_dead_nic_link_makes_its_gpu_use_the_next_nic() -> None:
    cluster = load_cluster("dgx-h100", nodes=2, links_down=["node0.nic0-leaf0.rail0"])
    assert cluster.devices[cluster.nic_of(0) or 0].name == "node0.nic1"
    assert "node0.nic1->leaf1.rail1" in names(cluster, "node0.gpu0", "node1.gpu1")
    assert cluster.route(0, 8)
    assert cluster.route(8, 0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"links_down": ["gpu0-nvswitch", "gpu0-pcie0"]}, "nothing leads from gpu0 to gpu1.* and .* more pairs"),
        ({"links_down": ["gpu0->nvswitch", "gpu0->pcie0"]}, "nothing leads from gpu0 to gpu1"),
        ({"links_down": ["gpu0-nvswich"]}, "has no link 'gpu0-nvswich'; did you mean 'gpu0->nvswitch'"),
        ({"slow_links": [("gpu9->nvswitch", 0.5)]}, "has no link 'gpu9->nvswitch'"),
        ({"slow_links": [("gpu0->nvswitch", 0)]}, "the factor is above 0 and at most 1, got 0"),
        ({"slow_links": [("gpu0->nvswitch", 1.5)]}, "the factor is above 0 and at most 1, got 1.5"),
        ({"slow_links": [("gpu0->nvswitch", "900 GB/s")]}, "900 GB/s is more than the link's own 370.8 GB/s"),
        ({"slow_links": [("gpu0->nvswitch", float("nan"))]}, "the factor is above 0"),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_cluster("dgx-h100", **asked)  # type: ignore[arg-type]


def test_a_bandwidth_without_sense_is_refused() -> None:
    with pytest.raises(UnitError, match="slow link 'gpu0->nvswitch'"):
        load_cluster("dgx-h100", slow_links=[("gpu0->nvswitch", "fast")])


def test_a_large_cluster_cut_in_two_is_noticed() -> None:
    cluster = load_cluster("dgx-h100", nodes=80, fabric="switch")
    down = [f"node7.nic{i}->fabric" for i in range(8)]
    with pytest.raises(SpecError, match="nothing leads from node7"):
        load_cluster("dgx-h100", nodes=80, fabric="switch", links_down=down)
    assert len(cluster.gpus) == 640


def test_degraded_clusters_read_back_equal(tmp_path) -> None:
    cluster = load_cluster(
        "dgx-h100", nodes=2, links_down=["node0.gpu0-node0.nvswitch"], slow_links=[("leaf1.rail1->spine0", 0.3)]
    )
    path = tmp_path / "again.yaml"
    path.write_text(cluster.to_yaml())
    assert Cluster.from_yaml(path) == cluster
