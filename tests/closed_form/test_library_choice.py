"""Does trine pick what NCCL picks between nodes: trees on two nodes, and no choice far above its own estimate?"""

from __future__ import annotations

from pathlib import Path

import pytest

from trine.cluster import Cluster, load_cluster
from trine.collectives.nccl import Collectives
from trine.collectives.nccl.predict import OPS
from trine.collectives.nccl.tuner import CHAIN_PART, tuner_us
from trine.collectives.options import CollectiveOptions
from trine.inputs import PRESETS

NODE = """
name: four-gpus
devices:
- {name: gpu, count: 4, gpu: a100-80gb, node: node0}
- {name: pcie, kind: switch, node: node0}
- {name: nic, kind: nic, node: node0}
links:
- {from: gpu0, to: gpu1..3, link: nvlink3, lanes: 4, duplex: true}
- {from: gpu1, to: gpu2..3, link: nvlink3, lanes: 4, duplex: true}
- {from: gpu2, to: gpu3, link: nvlink3, lanes: 4, duplex: true}
- {from: gpu0..3, to: pcie, link: pcie4, duplex: true}
- {from: nic, to: pcie, link: pcie4, duplex: true}
"""


@pytest.fixture
def one_nic_per_node(tmp_path: Path) -> Cluster:
    (tmp_path / "node.yaml").write_text(NODE)
    path = tmp_path / "two.yaml"
    path.write_text("name: two\nnodes: [{file: node.yaml, count: 2}]\nfabric: {kind: switch, link: roce-100}\n")
    return load_cluster(str(path))


@pytest.mark.parametrize("preset", ["dgx1-v100", "gh200-node", "a40-pcie"])
def test_two_nodes_reduce_over_trees(preset: str) -> None:
    """nccl-tests#196, #128, nccl#946, #812, #1576: on two nodes trees pass the NICs once, rings almost twice."""
    model = Collectives(load_cluster(preset, nodes=2))
    row = model.predict("all_reduce", 1 << 30)
    assert (row.algorithm, row.protocol) == ("tree", "simple")
    assert row.time_ps == min(row.time_ps for row in model.alternatives("all_reduce", 1 << 30))


def test_two_nodes_exceed_the_rate_of_their_nic(one_nic_per_node: Cluster) -> None:
    """A tree sends a buffer of S once over the only NIC, so bus bandwidth is up to 2 (n - 1) / n times its rate."""
    row = Collectives(one_nic_per_node).predict("all_reduce", 1 << 30)
    nic_GBps = 12.5
    assert row.algorithm == "tree"
    assert nic_GBps < row.busbw_bytes_per_s / 1e9 < nic_GBps * 2 * 7 / 8


def test_three_nodes_have_no_such_trees(one_nic_per_node: Cluster, tmp_path: Path) -> None:
    """With a third node each NIC carries the buffer twice, as in a ring: NCCL rates trees by their NICs again."""
    path = tmp_path / "three.yaml"
    path.write_text("name: three\nnodes: [{file: node.yaml, count: 3}]\nfabric: {kind: switch, link: roce-100}\n")
    model = Collectives(load_cluster(str(path)))
    assert model.predict("all_reduce", 1 << 30).algorithm == "ring"
    two, context = Collectives(one_nic_per_node).context, model.context
    size = float(1 << 36)  # latencies are negligible
    (double, single) = (tuner_us(each, "all_reduce", size, "tree", "simple") for each in (two, context))
    assert double is not None
    assert single is not None
    assert single / double == pytest.approx(2.0, rel=1e-3)


def test_trees_of_one_gpu_a_node_are_chains() -> None:
    """tuning.cc: 0.92 of the graph's rate, half of it for trees, 0.85 for a chain; rings of two carry all of it."""
    one_gpu_a_node = PRESETS / "measured" / "clusters" / "v100-10gbe.yaml"
    context = Collectives(load_cluster(str(one_gpu_a_node), nodes=2)).context
    assert context.topology.between is not None
    size = float(1 << 40)
    tree, ring = (tuner_us(context, "all_reduce", size, each, "simple") for each in ("tree", "ring"))
    assert tree is not None
    assert ring is not None
    assert tree / ring == pytest.approx(1 / (2 * 0.92 * 0.5 * CHAIN_PART), rel=1e-3)


@pytest.mark.parametrize(("preset", "nodes"), [("dgx-h100", 4), ("dgx-a100", 4), ("hgx-b200", 8), ("dgx1-v100", 3)])
def test_no_candidate_lies_below_the_likely_range_of_the_choice(preset: str, nodes: int) -> None:
    """Of groups whose choice no measurement decides; dgx-h100 took nvlstree at 32 MiB, 45 % longer than tree/ll128."""
    model = Collectives(load_cluster(preset, nodes=nodes))
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        for size in (2**power for power in range(10, 34)):
            row = model.predict(op, size)
            chosen = next(
                each
                for each in model.alternatives(op, size)
                if (each.algorithm, each.protocol) == (row.algorithm, row.protocol)
            )
            fastest = model.alternatives(op, size)[0]
            assert fastest.time_ps >= chosen.low_ps or fastest == chosen, (op, size)


def test_a_choice_against_nccls_cost_model_says_so() -> None:
    row = Collectives(load_cluster("dgx-h100", nodes=4)).predict("all_reduce", 32 << 20)
    assert (row.algorithm, row.protocol) == ("tree", "ll128")
    (note,) = row.notes
    assert "NCCL's cost model prefers nvlstree/simple, for which trine estimates 447" in note


@pytest.mark.parametrize(("preset", "nodes"), [("dgx-h100", 1), ("dgx-h100", 2), ("dgx-spark", 2), ("gb200-nvl72", 2)])
def test_measured_groups_follow_nccls_cost_model(preset: str, nodes: int) -> None:
    model = Collectives(load_cluster(preset, nodes=nodes))
    for op in OPS:
        for size in (1 << 12, 1 << 20, 1 << 25, 1 << 30):
            assert not any("NCCL's cost model prefers" in note for note in model.predict(op, size).notes)


def test_a_demanded_algorithm_needs_no_note() -> None:
    options = CollectiveOptions(algorithm="tree", protocol="ll128")
    assert Collectives(load_cluster("dgx-h100", nodes=4), None, options).predict("all_reduce", 32 << 20).notes == ()
