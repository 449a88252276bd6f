"""Does the bound that stands for too many tasks contain the exact answer, and how is it told?"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from folded_cases import chain, joined
from hypothesis import given, settings
from hypothesis import strategies as st

import trine
from trine.cluster import Cluster, build_topology
from trine.cluster.evened import evened
from trine.cluster.select import first_gpus, slow_down, take_down
from trine.errors import TooManyTasksError
from trine.folding import stages

NICS = ("pcie0->{}.nic0", "pcie1->{}.nic3", "nic6->{}.pcie3")


def slowed(rng: Random, nodes: int, count: int, fabric: str | None) -> Cluster:
    """NICs of different nodes at a part of their speed."""
    chosen = [f"node{node}" for node in rng.sample(range(nodes), count)]
    links = [f"{node}.{rng.choice(NICS).format(node)}" for node in chosen]
    return slow_down(joined("dgx-h100", nodes, fabric), [(link, rng.choice((0.5, 0.8))) for link in links])


def both(case: dict[str, object], patch: pytest.MonkeyPatch) -> tuple[trine.Result, trine.Result]:
    """The exact answer, and the bound."""
    exact = trine.simulate(**case, cpu=False, fold="exact")  # type: ignore[arg-type]
    patch.setattr(stages, "BOUND_TASKS", 1)
    patch.setattr(stages, "MAX_TASKS", sum(stage.num_tasks for stage in exact.scope.stages) - 1)
    return exact, trine.simulate(**case, cpu=False)  # type: ignore[arg-type]


def drawn(rng: Random, nodes: int, cluster: Cluster) -> tuple[tuple[int, int], int, trine.Result]:
    """Of a random job: both ends of the bound, the exact step in picoseconds, the answer that is a bound."""
    fields = rng.choice(
        ({"dp": 8 * nodes}, {"dp": 8 * nodes, "sharding": "fsdp"}, {"dp": nodes, "tp": 8}, {"dp": 4 * nodes, "pp": 2})
    )
    workload = chain(8, (rng.randint(1, 400), 7), 20, rng.choice((4 * 10**5, 4 * 10**7)))
    plan = trine.Plan(**fields, batch=8, micro_batch=4 if "pp" in fields else 8, inputs="none")
    with pytest.MonkeyPatch.context() as patch:
        exact, bound = both({"workload": workload, "plan": plan, "cluster": cluster}, patch)
    assert bound.scope is not None
    assert bound.scope.bound_ps is not None
    return bound.scope.bound_ps, exact.step_time_ps, bound


@given(seed=st.integers(0, 2**32))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_the_exact_answer_is_within_the_bound(seed: int) -> None:
    rng = Random(seed)
    nodes = rng.choice((4, 8))
    cluster = slowed(rng, nodes, 1 if nodes == 4 else rng.choice((1, 2)), rng.choice(("switch", "rail", "fat-tree")))
    (low, high), exact, bound = drawn(rng, nodes, cluster)
    assert low <= exact <= high == bound.step_time_ps


@given(seed=st.integers(0, 2**32))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_with_a_dead_link_too_with_what_the_bound_adds(seed: int) -> None:
    """A message that goes another way than on either of the even machines may take a little longer."""
    rng = Random(seed)
    nodes, fabric = rng.choice((4, 8)), rng.choice(("switch", "rail", "fat-tree"))
    node = f"node{rng.randrange(nodes)}"
    dead = f"{node}.{rng.choice((*NICS[:2], 'pcie0-{}.nic0', 'nic3-{}.pcie1')).format(node)}"
    cluster = take_down(joined("dgx-h100", nodes, fabric), [dead])
    (low, high), exact, bound = drawn(rng, nodes, cluster)
    assert low <= exact <= high
    assert high == pytest.approx(1.002 * bound.step_time_ps)
    assert f"{dead.replace('-', '->', 1) if '>' not in dead else dead}" in bound.warnings[0]
    assert "dead alone" in bound.warnings[0]


def test_a_slow_link_of_a_ring_is_bounded_by_a_ring_of_slow_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Message by message: a ring with a slow link is as slow as one of slow links but for what fills it."""
    cluster = slow_down(build_topology("ring", 10**10, 0, 16), [("gpu3->gpu4", 0.5)])
    plan = trine.Plan(dp=16, batch=8, inputs="none", dp_overlap=False, bucket_bytes=10**9)
    exact, bound = both({"workload": chain(8), "plan": plan, "cluster": cluster}, monkeypatch)
    assert bound.scope is not None
    assert bound.scope.bound_ps is not None
    low, high = bound.scope.bound_ps
    assert low < exact.step_time_ps <= high
    assert high <= 1.001 * exact.step_time_ps


def test_the_answer_says_that_it_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = slowed(Random(1), 4, 1, "switch")
    case = {"workload": chain(8), "plan": trine.Plan(dp=32, batch=8, inputs="none"), "cluster": cluster}
    exact, bound = both(case, monkeypatch)
    assert bound.warnings[0].startswith("a bound: the step takes between ")
    folding = bound.to_json()["folding"]
    assert folding["step_at_least_s"] <= exact.step_time_s <= folding["step_at_most_s"] == bound.step_time_s
    assert "step_at_least_s" not in exact.to_json()["folding"]


def test_without_slow_links_too_many_tasks_are_refused_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "BOUND_TASKS", 1)
    monkeypatch.setattr(stages, "MAX_TASKS", 10)
    with pytest.raises(TooManyTasksError, match="more than the 10 that fit into memory"):
        trine.simulate(chain(8), trine.Plan(dp=32, batch=8, inputs="none"), cluster=joined("dgx-h100", 4, "switch"))


@pytest.mark.parametrize("fabric", ["switch", "rail", "fat-tree"])
def test_machines_made_even(fabric: str) -> None:
    """Made fast, the machine is the one that was slowed down; made slow, all links of one place and no other are."""
    whole = joined("dgx-h100", 8, fabric)
    assert evened(whole) is None
    even = evened(slow_down(whole, [("node1.pcie0->node1.nic0", 0.5), ("node4.pcie0->node4.nic0", 0.25)]))
    assert even is not None
    names = np.array(whole.link_names)
    assert set(names[even.links]) == {"node1.pcie0->node1.nic0", "node4.pcie0->node4.nic0"}
    assert (even.fast.link_bytes_per_s == whole.link_bytes_per_s).all()
    changed = np.flatnonzero(even.slow.link_bytes_per_s != whole.link_bytes_per_s)
    assert set(names[changed]) == {f"node{i}.pcie0->node{i}.nic0" for i in range(8)}
    assert (4 * even.slow.link_bytes_per_s[changed] == whole.link_bytes_per_s[changed]).all()
    assert even.num_slowed == 8


@pytest.mark.parametrize("fabric", ["switch", "rail", "fat-tree"])
def test_machines_with_dead_links_made_even(fabric: str) -> None:
    """Made whole, the machine is the one that links were taken from; made even, all links of their places are gone."""
    slow = slow_down(joined("dgx-h100", 8, fabric), [("node4.pcie0->node4.nic0", 0.25)])
    even = evened(take_down(slow, ["node1.pcie0->node1.nic0"]))
    assert even is not None
    names = np.array(slow.link_names)
    assert names[even.dead].tolist() == ["node1.pcie0->node1.nic0"]
    assert even.fast.link_names == joined("dgx-h100", 8, fabric).link_names
    assert (even.fast.link_bytes_per_s == joined("dgx-h100", 8, fabric).link_bytes_per_s).all()
    gone = {f"node{i}.pcie0->node{i}.nic0" for i in range(8)}
    assert list(even.slow.link_names) == [name for name in slow.link_names if name not in gone]
    assert even.num_dead == 8


def test_what_was_done_to_a_machine_behind_its_dead_links_is_not_undone() -> None:
    cut = take_down(joined("dgx-h100", 8, "switch"), ["node1.pcie0->node1.nic0"])
    assert evened(slow_down(cut, [("node4.pcie0->node4.nic0", 0.25)])) is None
    assert evened(first_gpus(cut, 32)) is None
    assert evened(take_down(cut, ["node2.pcie0->node2.nic0"])) is None
    rest = [f"node{i}.pcie0->node{i}.nic0" for i in range(3)]
    assert evened(take_down(joined("dgx-h100", 8, "switch"), rest)) is None


def test_nodes_of_two_kinds_are_not_slow_links() -> None:
    whole = joined("dgx-h100", 4, "switch")
    assert evened(slow_down(whole, [(f"node{i}.pcie0->node{i}.nic0", 0.5) for i in (0, 1)])) is None
