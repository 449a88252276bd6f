"""Does trine pick what NCCL picks between nodes: trees on two nodes, and no choice far above its own estimate?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trine.cluster import Cluster, load_cluster
from trine.collectives.nccl import Collectives
from trine.collectives.nccl.predict import OPS, with_context
from trine.collectives.nccl.topology import slowed
from trine.collectives.nccl.tuner import CHAIN_PART, tuner_us
from trine.collectives.options import CollectiveOptions
from trine.common.inputs import PRESETS

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
def test_no_candidate_lies_below_the_likely_range(preset: str, nodes: int) -> None:
    """Of groups whose choice no measurement decides: the range then spans NCCL's choice and the fastest candidate."""
    model = Collectives(load_cluster(preset, nodes=nodes))
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        for size in (2**power for power in range(10, 34)):
            row, fastest = model.predict(op, size), model.alternatives(op, size)[0]
            assert fastest.time_ps >= row.low_ps, (op, size)


def test_a_faster_candidate_than_nccls_choice_is_named() -> None:
    model = Collectives(load_cluster("dgx-h100", nodes=4))
    row, fastest = model.predict("all_reduce", 32 << 20), model.alternatives("all_reduce", 32 << 20)[0]
    assert (row.algorithm, row.protocol) == ("nvlstree", "simple")
    (note,) = row.notes
    assert "NCCL's cost model prefers nvlstree/simple; tree/ll128 would take" in note
    assert row.low_ps < fastest.time_ps


@pytest.mark.parametrize(("preset", "nodes"), [("dgx-h100", 1), ("dgx-h100", 2), ("dgx-spark", 2), ("gb200-nvl72", 2)])
def test_measured_groups_follow_nccls_cost_model(preset: str, nodes: int) -> None:
    model = Collectives(load_cluster(preset, nodes=nodes))
    for op in OPS:
        for size in (1 << 12, 1 << 20, 1 << 25, 1 << 30):
            assert not any("NCCL's cost model prefers" in note for note in model.predict(op, size).notes)


def test_a_demanded_algorithm_needs_no_note() -> None:
    options = CollectiveOptions(algorithm="tree", protocol="ll128")
    assert Collectives(load_cluster("dgx-h100", nodes=4), None, options).predict("all_reduce", 32 << 20).notes == ()


def test_a_broadcast_takes_one_hop_if_all_rings_are_equal_and_all_of_them_otherwise() -> None:
    """NCCL's table of broadcast in a log of two GPUs with one NIC each: 9.3, 18.0 and 22.4 us (eunomia-bpf/nccl-eBPF).

    Rings over several NICs or over direct links differ (nccl#1453, #713); NCCL then counts a hop a rank.
    """
    expected = {
        ("dgx-spark", 2): (9.3, 18.0, 22.4),
        ("dgx-h100", 1): (6.6 + 0.6, 14.0 + 1.9, 8.4 + 3.4),
        ("dgx1-v100", 1): (6.6 + 8 * 0.6, 14.0 + 8 * 1.9, 8.4 + 8 * 4.0),
        ("dgx-h100", 2): (6.6 + 16 * 2.7, 14.0 + 16 * 4.0, 8.4 + 16 * 14.0),
    }
    for (preset, nodes), us in expected.items():
        context = Collectives(load_cluster(preset, nodes=nodes)).context
        for op in ("broadcast", "reduce"):
            asked = [tuner_us(context, op, 0, "ring", protocol) for protocol in ("ll", "ll128", "simple")]
            assert asked == pytest.approx(us), (preset, nodes, op)


def test_slower_links_let_nccl_leave_simple_for_ll() -> None:
    """NCCL caps LL by a constant of the architecture (141 GB/s, Hopper), which slower links do not lower, but Simple by
    the links: at 1 MiB on eight H100 both take 14.6 us in its model, and with 2 % less bandwidth LL is the faster one.
    """
    model = Collectives(load_cluster("dgx-h100"))
    slower = with_context(model, replace(model.context, topology=slowed(model.topology, 0.98)))
    assert model.topology.inside is not None
    rate = model.topology.inside.ring_bytes_per_s / 1e6
    ll_us, simple_us = 6.6 + 0.6 + (1 << 20) / 141e3, 8.4 + 3.4 + (1 << 20) / rate
    assert tuner_us(model.context, "broadcast", 1 << 20, "ring", "ll") == pytest.approx(ll_us)
    assert tuner_us(model.context, "broadcast", 1 << 20, "ring", "simple") == pytest.approx(simple_us)
    assert simple_us < ll_us < 8.4 + 3.4 + (1 << 20) / (0.98 * rate)
    assert [each.choice("broadcast", 1 << 20)[1] for each in (model, slower)] == ["simple", "ll"]
