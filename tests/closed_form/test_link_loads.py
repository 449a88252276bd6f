"""Does each GPU, and each node's NICs, send and receive the bytes that an algorithm moves through them?"""

from __future__ import annotations

import pytest

from trine.cluster import load_cluster
from trine.cluster.parts import NIC
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from trine.collectives.query import link_load

S = 1 << 24

#: Per machine and algorithm: bytes out of each GPU over its scale-up links, and out of the NICs of each node, for S.
CASES = [
    ("dgx-h100", 1, "all_reduce", "ring", 2 * 7 / 8, 0),
    ("dgx-h100", 1, "all_gather", "ring", 7 / 8, 0),
    ("dgx-h100", 1, "broadcast", "ring", 1, 0),
    ("dgx-h100", 1, "all_reduce", "tree", 2 * 7 / 8, 0),
    ("dgx-h100", 1, "all_reduce", "nvls", 1 + 1 / 8, 0),
    ("dgx-h100", 1, "all_to_all", "direct", 7 / 8, 0),
    ("mi300x-node", 1, "all_reduce", "ring", 2 * 7 / 8, 0),
    ("dgx-h100", 2, "all_reduce", "ring", 2 * 15 / 16 * 7 / 8, 2 * 15 / 16),
    ("dgx-h100", 2, "reduce_scatter", "ring", 15 / 16 * 7 / 8, 15 / 16),
    ("dgx-h100", 2, "all_reduce", "tree", 2 * 7 / 8, 1),
    ("dgx-h100", 2, "all_reduce", "nvlstree", 1 + 1 / 8, 1),
    ("dgx-h100", 3, "all_reduce", "tree", 2 * 7 / 8, 2),
    ("dgx-h100", 3, "all_reduce", "nvlstree", 1 + 1 / 8, 2),
    # seven messages to the node's own, and fourteen to the GPUs beside the NICs of the other rails
    ("dgx-h100", 3, "all_to_all", "direct", 21 / 24, 8 * 16 / 24),
]


@pytest.mark.parametrize(("preset", "nodes", "op", "algorithm", "of_a_gpu", "of_a_node"), CASES)
def test_bytes_of_an_algorithm(
    preset: str, nodes: int, op: str, algorithm: str, of_a_gpu: float, of_a_node: float
) -> None:
    cluster = load_cluster(preset, nodes=nodes)
    options = CollectiveOptions() if algorithm == "direct" else CollectiveOptions(algorithm=algorithm)
    answer = Collectives(cluster, None, options).predict(op, S)
    assert answer.algorithm == algorithm
    load = link_load(cluster, range(len(cluster.gpus)), answer)
    gpus, nics = set(cluster.gpus), {i for i, device in enumerate(cluster.devices) if device.kind == NIC}
    out, back, leaves, enters = (dict.fromkeys(gpus, 0) for _ in range(4))
    of_nodes = {"out": 0, "in": 0}
    for link, carried in zip(cluster.links, load.tolist(), strict=True):
        scale_up = link.link_class == "scale-up"
        if link.source in gpus:
            (out if scale_up else leaves)[link.source] += carried
        if link.target in gpus:
            (back if scale_up else enters)[link.target] += carried
        if link.source in nics and link.link_class == "scale-out":
            of_nodes["out"] += carried
        if link.target in nics and link.link_class == "scale-out":
            of_nodes["in"] += carried
    for total in (out, back):
        assert list(total.values()) == pytest.approx([of_a_gpu * S] * len(gpus), rel=1e-4)
    for total in (leaves, enters):
        assert sum(total.values()) == pytest.approx(of_a_node * nodes * S, rel=1e-4)
    assert of_nodes["out"] == of_nodes["in"] == pytest.approx(of_a_node * nodes * S, rel=1e-4)


def test_gather_loads_the_root_and_nobody_else() -> None:
    cluster = load_cluster("dgx-h100")
    model = Collectives(cluster)
    for op, index in (("gather", "target"), ("scatter", "source")):
        load = link_load(cluster, range(8), model.predict(op, S))
        root = sum(
            c for link, c in zip(cluster.links, load.tolist(), strict=True) if getattr(link, index) == cluster.gpus[0]
        )
        assert root == 7 * S // 8
        ends = {"target": "source", "source": "target"}[index]
        for gpu in cluster.gpus[1:]:
            alone = [c for link, c in zip(cluster.links, load.tolist(), strict=True) if getattr(link, ends) == gpu]
            assert sum(alone) == S // 8
