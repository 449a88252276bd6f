"""Does a GPU with several NICs use all of them, and is it said where NICs are left idle?"""

from __future__ import annotations

from pathlib import Path

import pytest

import trine
from trine.cluster import Cluster, known_clusters, load_cluster
from trine.cluster.join import with_joint_nics
from trine.collectives.nccl import Collectives


def node(folder: Path, nics: int, ends: str, fabric: str = "rail") -> Path:
    """A node of two GPUs, a PCIe switch each, and NICs on these."""
    path = folder / f"{nics}-nics.yaml"
    path.write_text(
        f"library: nccl\nfabric: {{kind: {fabric}, link: ib-ndr}}\n"
        "devices:\n- {name: gpu, count: 2, gpu: h100-sxm, node: node0}\n- {name: sw, kind: switch, node: node0}\n"
        f"- {{name: pcie, count: 2, kind: switch, node: node0}}\n"
        f"- {{name: nic, count: {nics}, kind: nic, node: node0, rail: 0}}\n"
        "links:\n- {from: gpu0..1, to: sw, link: nvlink4, lanes: 18, duplex: true}\n"
        "- {from: gpu0..1, to: pcie0..1, pairs: true, link: pcie5, lanes: 8, duplex: true}\n"
        f"- {{from: nic0..{nics - 1}, to: [{ends}], pairs: true, link: pcie5, duplex: true}}\n"
    )
    return path


def rate(cluster: Cluster) -> float:
    between = Collectives(cluster).topology.between
    assert between is not None
    return between.ring_bytes_per_s


@pytest.mark.parametrize("fabric", ["rail", "clos", "switch", "dragonfly"])
@pytest.mark.parametrize(("nics", "ends"), [(4, "pcie0, pcie0, pcie1, pcie1"), (6, ", ".join(["pcie0", "pcie1"] * 3))])
def test_all_nics_of_a_gpu_carry_its_messages(tmp_path: Path, nics: int, ends: str, fabric: str) -> None:
    one = load_cluster(node(tmp_path, 2, "pcie0, pcie1", fabric), nodes=4)
    several = load_cluster(node(tmp_path, nics, ends, fabric), nodes=4)
    assert rate(several) == pytest.approx(nics / 2 * rate(one), rel=1e-9)
    answer = trine.collective("all_reduce", "1G", several)
    assert not any("carry nothing" in note for note in answer.notes)


def test_in_a_file_that_joins_its_nodes(tmp_path: Path) -> None:
    path = node(tmp_path, 4, "pcie0, pcie0, pcie1, pcie1")
    joined = tmp_path / "joined.yaml"
    joined.write_text(f"node: {{file: {path.name}, count: 3}}\n")
    assert rate(load_cluster(joined)) == rate(load_cluster(path, nodes=3))


def test_more_nics_than_gpus_that_do_not_divide_are_warned_of(tmp_path: Path) -> None:
    cluster = load_cluster(node(tmp_path, 3, "pcie0, pcie0, pcie1"), nodes=2)
    notes = trine.collective("all_reduce", "1G", cluster).notes
    assert any("carry nothing" in note and "more NICs than GPUs" in note for note in notes)


def test_nics_that_gpus_share_or_that_were_left_over_stay() -> None:
    for name in known_clusters():
        cluster = load_cluster(name)
        if cluster.fabric is not None:
            assert with_joint_nics(cluster, cluster.fabric)[0] is cluster
    part = load_cluster("dgx-h100", nodes=2, gpus_per_node=1)
    assert rate(part) == rate(load_cluster("dgx-h100", nodes=2)) / 8
