"""Does the number of rank classes follow from symmetry? Every run is also compared to the unfolded one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from folded_cases import chain, joined
from synthetic import Chain

import trine
from trine.cluster import Cluster, build_topology
from trine.cluster.select import slow_down
from trine.folding import stages
from trine.graph.workload import Workload
from trine.parallel.plan import Plan

TRAINING = chain(8)
#: Forward passes only: replicas never communicate.
SERVING = Chain([10**7] * 4).workload()


def machine(word: str, num_gpus: int) -> Cluster:
    return build_topology(word, 10**10, 10**6, num_gpus)


def classes(cluster: Cluster, workload: Workload = TRAINING, slow: int | None = None, **fields: Any) -> int:
    """Return the number of rank classes at the end of the run, which is verified against the unfolded one."""
    plan = Plan(batch=8, inputs="none", **fields)
    stragglers = None if slow is None else trine.Stragglers(slow=((slow, 1.3),))
    result = trine.simulate(
        workload, plan, cluster=cluster, fold="verify", stragglers=stragglers, cpu=False, collective_costs="links"
    )
    assert result.scope is not None
    return result.scope.stages[-1].num_classes


@pytest.mark.parametrize("word", ["switch", "ring", "full"])
@pytest.mark.parametrize("ranks", [2, 5, 8, 32])
def test_replicas_on_a_machine_of_equal_places_are_one_class(word: str, ranks: int) -> None:
    assert classes(machine(word, ranks), dp=ranks) == 1


@pytest.mark.parametrize("algorithm", ["ring", "direct", "halving-doubling"])
def test_whatever_symmetric_schedule_they_run(algorithm: str) -> None:
    assert classes(machine("switch", 8), dp=8, algorithm=(("all_reduce", algorithm),)) == 1


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_stages_of_a_pipeline_are_a_class_each(stages: int, schedule: str) -> None:
    assert classes(machine("switch", stages), pp=stages, schedule=schedule, micro_batch=2) == stages


def test_a_torus_has_as_many_classes_as_a_row_has_places() -> None:
    """A ring in rank order runs along a row, then the next: rows are identical, positions within a row are not."""
    assert classes(machine("torus:4x4", 16), dp=16) == 4


@pytest.mark.parametrize("fabric", ["switch", "rail"])
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_nodes_alike(fabric: str, nodes: int) -> None:
    cluster = joined("dgx-h100", nodes, fabric)
    assert classes(cluster, tp=8, dp=nodes) == 1
    assert classes(cluster, tp=8, pp=2, dp=nodes // 2) == 2
    assert classes(cluster, dp=8 * nodes) == 8  # one ring over all nodes: one class per position in the node


def test_a_slow_link_on_a_ring_is_at_another_distance_for_every_rank() -> None:
    cluster = slow_down(machine("switch", 9), [("gpu3->switch", 0.5)])
    assert classes(cluster, dp=9) == 9


@pytest.mark.parametrize("slow", [None, 5])
def test_what_reaches_one_group_splits_that_group_alone(slow: int | None) -> None:
    """Groups of two never communicate: the group with the slow part has two classes, all others share one."""
    cluster = machine("full", 16)
    if slow is None:
        cluster = slow_down(cluster, [("gpu0->gpu1", 0.5)])
    assert classes(cluster, SERVING, slow, tp=2, dp=8) == 3


def test_a_link_of_the_same_rate_that_is_longer_is_another_link() -> None:
    cluster = machine("full", 16)
    links = [replace(link, latency_ps=link.latency_ps + (link.name == "gpu0->gpu1")) for link in cluster.links]
    assert classes(replace(cluster, links=tuple(links)), SERVING, tp=2, dp=8) == 3


def test_a_perturbation_goes_downstream_only() -> None:
    """Two stages of 4 groups of two, forward passes only, so stage 0 never waits for stage 1."""
    cluster = machine("full", 16)
    assert classes(cluster, SERVING, tp=2, dp=4, pp=2) == 2
    assert classes(cluster, SERVING, slow=0, tp=2, dp=4, pp=2) == 3 + 3  # a rank of stage 0, and its receivers
    assert classes(cluster, SERVING, slow=8, tp=2, dp=4, pp=2) == 1 + 3  # a rank of stage 1


def test_equal_perturbations_everywhere_split_nothing() -> None:
    names = [f"gpu{i}->switch" for i in range(8)]
    assert classes(slow_down(machine("switch", 8), [(name, 0.5) for name in names]), dp=8) == 1


def test_slow_ranks_are_as_slow_as_asked_and_no_others() -> None:
    stragglers = trine.Stragglers(slow=((2, 1.5), (5, 3.0)))
    plan = Plan(dp=8, batch=8, inputs="none")
    result = trine.simulate(SERVING, plan, cluster=machine("full", 8), stragglers=stragglers, cpu=False)
    assert result.scope is not None
    assert result.scope.stages[0].num_classes == 3
    expected = [4 * 10**7 * {2: 3, 5: 6}.get(rank, 2) // 2 for rank in range(8)]
    assert result.rank_times.compute.tolist() == expected


@pytest.mark.parametrize("fabric", ["switch", "rail"])
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_a_slow_nic_is_a_class_of_its_own_where_all_flows_wait_for_each_other(
    fabric: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Library collectives: besides the slow rank, only ranks whose messages share a link with it differ."""
    monkeypatch.setattr(stages, "FEW_TASKS", 0)
    cluster = slow_down(joined("dgx-h100", nodes, fabric), [("node1.pcie0->node1.nic0", 0.5)])
    plan = Plan(dp=8 * nodes, batch=8, inputs="none")
    result = trine.simulate(TRAINING, plan, cluster=cluster, fold="verify", cpu=False)
    assert result.scope is not None
    assert max(stage.num_classes for stage in result.scope.stages) <= 4
