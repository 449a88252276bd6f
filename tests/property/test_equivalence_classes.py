"""Does every group get the same answer as alone when groups of one equivalence class share a computation?"""

from __future__ import annotations

import numpy as np
import pytest

from trine.cluster import Cluster, build_topology, load_cluster
from trine.collectives.nccl.predict import Collectives
from trine.collectives.nccl.steps import EquivalenceClasses, FlowCosts, StepCosts, equal_rows, first_places

#: Machine and its options, including slow and dead links.
MACHINES = [
    ("dgx-h100", {"nodes": 6}),
    ("dgx-h100", {"nodes": 6, "fabric": "fat-tree:2", "slow_links": [("node2.nic3-leaf0", 0.4)]}),
    (
        "dgx-h100",
        {"nodes": 5, "slow_links": [("node1.gpu2->node1.nvswitch", 0.5), ("node4.pcie1-node4.nic2", "9 GB/s")]},
    ),
    ("dgx-h100", {"nodes": 5, "links_down": ["node3.nic5-leaf5.rail5"]}),
    ("dgx-h100", {"nodes": 34, "gpus": 34, "fabric": "fat-tree", "slow_links": [("leaf1-spine0", 0.25)]}),
    ("dgx-h100", {"nodes": 34, "gpus": 34, "links_down": ["leaf1.rail1-spine2"]}),
    ("dgx-h100", {"nodes": 4, "routing": "ecmp-hash", "fabric": "fat-tree"}),
    ("dgx-h100", {"gpus": 29}),
    ("gb200-nvl72", {"nodes": 20, "gpus": 40, "slow_links": [("rack1.gpu5-rack1.nvswitch", 0.5)]}),
    ("dgx1-v100", {"nodes": 3, "fabric": "switch"}),
    ("l40s-pcie", {"nodes": 3}),
    ("mi300x-node", {"nodes": 3, "fabric": "dragonfly"}),
    ("dgx-a100", {"nodes": 45, "gpus": 45}),
]


def groupings(num_gpus: int, seed: int) -> list[np.ndarray]:
    """Return typical groups of jobs, and groups of oddly placed ranks."""
    rng = np.random.default_rng(seed)
    ranks = np.arange(num_gpus)
    found = []
    for size in (2, 8):
        whole = ranks[: num_gpus // size * size]
        found += [whole.reshape(-1, size), whole.reshape(size, -1).T, rng.permutation(whole).reshape(-1, size)]
        found.append(whole.reshape(-1, size)[:, ::-1])
    return found


def assert_as_alone(
    cluster: Cluster, groups: np.ndarray, kind: str, size: int, costs: type[StepCosts] = StepCosts
) -> int:
    """Compare shared answers with each group alone; return the number of equivalence classes."""
    together, alone = costs(cluster), costs(cluster)
    make, answers = together.of_groups(kind, size, groups, None)
    assert make.dtype == np.int32
    assert sorted(set(make.tolist())) == list(range(len(answers)))
    chosen = np.random.default_rng(len(groups)).permutation(len(groups))[:4]
    for group in chosen.tolist():
        assert answers[make[group]] == alone(kind, size, tuple(groups[group].tolist()), None), groups[group]
    assert together.slowest_ratio >= alone.slowest_ratio
    return len(answers)


@pytest.mark.parametrize(("name", "asked"), MACHINES, ids=str)
def test_flows_of_groups_are_those_of_each_alone(name: str, asked: dict[str, object]) -> None:
    cluster = load_cluster(name, **asked)  # type: ignore[arg-type]
    for number, groups in enumerate(groupings(len(cluster.gpus), len(str(asked)))):
        kind = (
            "send_recv" if groups.shape[1] == 2 else ("all_reduce", "all_gather", "all_to_all", "broadcast")[number % 4]
        )
        assert_as_alone(cluster, groups, kind, (1 << 14, 1 << 24)[number % 2], FlowCosts)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "asked"), MACHINES, ids=str)
def test_groups_are_answered_as_alone(name: str, asked: dict[str, object]) -> None:
    cluster = load_cluster(name, **asked)  # type: ignore[arg-type]
    for number, groups in enumerate(groupings(len(cluster.gpus), len(str(asked)))):
        kind = "send_recv" if groups.shape[1] == 2 else ("all_reduce", "all_gather", "all_to_all")[number % 3]
        assert_as_alone(cluster, groups, kind, (1 << 14, 1 << 24)[number % 2])


def test_groups_alike_are_one_make_and_others_are_not() -> None:
    whole = load_cluster("dgx-h100", nodes=64)
    ranks = np.arange(512)
    assert len(EquivalenceClasses(whole).classify(ranks.reshape(-1, 8))[1]) == 1
    assert len(EquivalenceClasses(whole).classify(ranks.reshape(8, -1).T)[1]) == 8  # GPUs 0 to 7 have one NIC each
    slow = load_cluster("dgx-h100", nodes=64, slow_links=[("node7.gpu3->node7.nvswitch", 0.5)])
    make, examples, _ = EquivalenceClasses(slow).classify(ranks.reshape(-1, 8))
    assert len(examples) == 2
    assert np.flatnonzero(make == make[7]).tolist() == [7]


def test_networks_that_are_no_nodes_have_a_make_for_each_group() -> None:
    cluster = build_topology("ring", "25 GB/s", "1 us", 8, medium="nvlink4")
    groups = np.array([[0, 1, 2], [3, 5, 7], [0, 1, 2]])
    make, examples, _ = EquivalenceClasses(cluster).classify(groups)
    assert make.tolist() == [0, 1, 0]
    assert examples == [0, 1]
    assert_as_alone(cluster, groups, "all_reduce", 1 << 20)


def test_groups_of_one_class_share_what_is_known_of_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []

    def counted(cluster: Cluster, group: tuple[int, ...]) -> Collectives:
        made.append(group)
        return Collectives(cluster, group)

    monkeypatch.setattr("trine.collectives.nccl.steps.Collectives", counted)
    cluster = load_cluster("dgx-h100", nodes=8, fabric="switch")
    costs = FlowCosts(cluster)
    nodes = np.arange(64).reshape(8, 8)
    for number, size in enumerate((1 << 14, 1 << 20, 1 << 26)):
        _, answers = costs.of_groups("all_reduce", size, nodes[number : number + 2], None)
        assert answers == [FlowCosts(cluster)("all_reduce", size, tuple(nodes[7].tolist()), None)]
        assert costs.predicted("all_reduce", size, nodes[number + 2 : number + 3])
    assert [group for group in made if group != tuple(nodes[7])] == [tuple(nodes[0])]


def test_kept_examples_of_classes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trine.collectives.nccl.steps.MAX_ANSWERS", 3)
    cluster = load_cluster("dgx-h100", nodes=1)
    costs = StepCosts(cluster)
    groups = [np.array([[0, last]]) for last in range(1, 8)]
    for group in (*groups, *groups):
        _, answers = costs.of_groups("send_recv", 1 << 20, group, None)
        assert answers == [StepCosts(cluster)("send_recv", 1 << 20, tuple(group[0].tolist()), None)]
        assert len(costs._class_examples) <= 3


@pytest.mark.parametrize("seed", range(12))
def test_first_places_and_equal_rows_are_those_of_plain_loops(seed: int) -> None:
    """Dense and sparse values, narrow and wide rows, and many or few equal rows take different ways."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 60)), int(rng.choice([1, 3, 8, 17, 40])))
    rows = rng.integers(-1, int(rng.choice([2, 5, 10_000])), shape)
    rows = rows[rng.integers(0, shape[0], shape[0])]
    assert first_places(rows).tolist() == [[row.index(value) for value in row] for row in rows.tolist()]
    class_of, examples = equal_rows(rows.astype(np.int32))
    different = list(dict.fromkeys(map(tuple, rows.tolist())))
    assert class_of.tolist() == [different.index(tuple(row)) for row in rows.tolist()]
    assert [tuple(rows[example]) for example in examples] == different
    assert examples == [class_of.tolist().index(number) for number in range(len(different))]


def test_first_places() -> None:
    rows = np.array([[5, 5, 2, -1, 2], [7, 8, 7, 7, 9]])
    assert first_places(rows).tolist() == [[0, 0, 2, 3, 2], [0, 1, 0, 0, 4]]


def test_every_ordered_pair_of_a_machine() -> None:
    """Pairs inside a node and across nodes, in both directions, with and without a slow link on the path."""
    cluster = load_cluster("dgx-h100", nodes=3, gpus_per_node=4, slow_links=[("node1.nic2->leaf2.rail2", 0.2)])
    pairs = np.array([(a, b) for a in range(12) for b in range(12) if a != b])
    costs, alone = StepCosts(cluster), StepCosts(cluster)
    make, answers = costs.of_groups("send_recv", 1 << 22, pairs, None)
    assert [answers[i] for i in make] == [alone("send_recv", 1 << 22, tuple(pair), None) for pair in pairs.tolist()]
    assert 2 <= len(answers) < len(pairs)


def test_order_and_placement_of_ranks_are_seen() -> None:
    makes = EquivalenceClasses(load_cluster("dgx-h100", nodes=4))
    groups = np.array([[0, 1, 2], [8, 9, 10], [2, 1, 0], [0, 1, 10], [8, 9, 26], [0, 9, 2], [16, 9, 2]])
    assert makes.classify(groups)[0].tolist() == [0, 0, 1, 2, 2, 3, 4]
