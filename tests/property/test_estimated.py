"""How close is the estimate for jobs with too many tasks to the exact answer, and how is it reported?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from folded_cases import chain, joined, random_chain_job
from hypothesis import given, settings
from hypothesis import strategies as st

import trine
from trine.cluster import Cluster, build_topology
from trine.cluster.select import first_gpus, slow_down, take_down
from trine.cluster.uniform import evened
from trine.errors import PlanError, SpecError, TooManyTasksError
from trine.folding import stages

#: Examples of each kind; raise it for a longer search.
EXAMPLES = int(os.environ.get("TRINE_ESTIMATE_EXAMPLES", "3"))
NICS = ("pcie0->{}.nic0", "pcie1->{}.nic3", "nic6->{}.pcie3")


def slowed(rng: Random, nodes: int, count: int, fabric: str | None) -> Cluster:
    """Return a cluster with slowed NIC links on ``count`` different nodes."""
    chosen = [f"node{node}" for node in rng.sample(range(nodes), count)]
    links = [f"{node}.{rng.choice(NICS).format(node)}" for node in chosen]
    return slow_down(joined("dgx-h100", nodes, fabric), [(link, rng.choice((0.5, 0.8))) for link in links])


INSIDE = (*NICS, "gpu2->{}.pcie1", "gpu5->{}.nvswitch", "nvswitch->{}.gpu1")
SEVERAL_AXES = (
    *({"dp": 32}, {"dp": 16, "pp": 2}, {"dp": 8, "pp": 4}, {"dp": 4, "tp": 8}, {"dp": 8, "tp": 4}),
    *({"dp": 8, "tp": 2, "pp": 2}, {"dp": 4, "tp": 4, "pp": 2}, {"dp": 2, "tp": 4, "pp": 4}),
)
ONE_AXIS = ({"dp": 32}, {"dp": 32}, {"dp": 24}, {"dp": 32}, {"tp": 32}, {"pp": 16})


@dataclass(frozen=True)
class Ends:
    """Step times in ps: no slow or dead link, the actual cluster, all corresponding links slow or dead."""

    fast: int
    exact: int
    slow: int


def adverse(seed: int, dead: bool, ways: tuple[dict[str, int], ...] = SEVERAL_AXES) -> Ends | None:
    """Return the times of a job chosen to break the estimate: axes that share NICs, any algorithm, any link."""
    rng = Random(seed)
    try:
        workload, plan = random_chain_job(rng, rng.choice(ways), 32)
        fabric = rng.choice(("switch", "rail", "fat-tree", "clos"))
        whole = joined("dgx-h100", 4, fabric)
        if rng.random() < 0.7:
            node = f"node{rng.randrange(4)}"
            link = f"{node}.{rng.choice(INSIDE).format(node)}"
        else:
            inside = [sum(end.startswith("node") for end in name.split("->")) == 2 for name in whole.link_names]
            link = rng.choice([name for name, is_inside in zip(whole.link_names, inside, strict=True) if not is_inside])
        cluster = take_down(whole, [link]) if dead else slow_down(whole, [(link, rng.choice((0.93, 0.8, 0.5, 0.2)))])
        costs = rng.choice(("auto", "links"))
        even, placement = evened(cluster), rng.choice((None, None, "round-robin"))
        if even is None:
            return None
        runs = (
            trine.simulate(
                workload, plan, cluster=machine, collective_costs=costs, placement=placement, gpu=workload.gpu,
                cpu=False, fold="off",
            )
            for machine in (even.fast, cluster, even.slow)
        )  # fmt: skip
        return Ends(*(run.step_time_ps for run in runs))
    except (PlanError, SpecError):
        return None  # the rank count does not fit the plan, or a dead link isolates a device


def both(case: dict[str, object], patch: pytest.MonkeyPatch) -> tuple[trine.Result, trine.Result]:
    """Return the exact answer and the estimate."""
    exact = trine.simulate(**case, cpu=False, fold="exact")  # type: ignore[arg-type]
    patch.setattr(stages, "ESTIMATE_TASKS", 1)
    patch.setattr(stages, "MAX_TASKS", sum(stage.num_tasks for stage in exact.scope.stages) - 1)
    return exact, trine.simulate(**case, cpu=False)  # type: ignore[arg-type]


def drawn(rng: Random, nodes: int, cluster: Cluster) -> tuple[tuple[int, int], int, trine.Result]:
    """Return a random job's estimated range in ps, exact step in ps, and estimate."""
    fields = rng.choice(
        ({"dp": 8 * nodes}, {"dp": 8 * nodes, "sharding": "fsdp"}, {"dp": nodes, "tp": 8}, {"dp": 4 * nodes, "pp": 2})
    )
    workload = chain(8, (rng.randint(1, 400), 7), 20, rng.choice((4 * 10**5, 4 * 10**7)))
    plan = trine.Plan(**fields, batch=8, micro_batch=4 if "pp" in fields else 8, inputs="none")
    with pytest.MonkeyPatch.context() as patch:
        exact, estimate = both({"workload": workload, "plan": plan, "cluster": cluster}, patch)
    assert estimate.scope is not None
    assert estimate.scope.estimate_ps is not None
    return estimate.scope.estimate_ps, exact.step_time_ps, estimate


@given(seed=st.integers(0, 2**32))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_the_exact_answer_is_mostly_between_both(seed: int) -> None:
    rng = Random(seed)
    nodes = rng.choice((4, 8))
    cluster = slowed(rng, nodes, 1 if nodes == 4 else rng.choice((1, 2)), rng.choice(("switch", "rail", "fat-tree")))
    (low, high), exact, estimate = drawn(rng, nodes, cluster)
    assert low <= exact <= high == estimate.step_time_ps


@pytest.mark.parametrize("dead", [False, True], ids=["slow", "dead"])
@pytest.mark.parametrize("ways", [SEVERAL_AXES, ONE_AXIS], ids=["several axes", "one axis"])
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_jobs_that_are_to_do_worse_are_not_much_worse(dead: bool, ways: tuple[dict[str, int], ...], seed: int) -> None:
    """In 741 jobs the extremes were 31 % slower and 0.24 % faster than both even machines."""
    ends = adverse(seed, dead, ways)
    assert ends is None or 0.99 * min(ends.fast, ends.slow) <= ends.exact <= 1.5 * max(ends.fast, ends.slow)


@pytest.mark.parametrize(("seed", "dead", "least"), [(1111, False, 0.07), (103, True, 0.05)])
def test_one_link_can_be_worse_than_all_of_its_place(seed: int, dead: bool, least: float) -> None:
    """One late node can make transfers contend that never do on identical nodes, so the range is no bound."""
    ends = adverse(seed, dead)
    assert ends is not None
    assert ends.exact > (1 + least) * ends.slow


def test_a_slow_link_can_make_a_step_shorter() -> None:
    """A late transfer frees its links for others (Graham's anomalies), so the range is no bound."""
    ends = adverse(89, False, ONE_AXIS)
    assert ends is not None
    assert ends.exact < 0.999 * ends.fast < ends.slow


@given(seed=st.integers(0, 2**32))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_with_a_dead_link_too_but_for_detours(seed: int) -> None:
    """A message with a route that neither even machine uses may take slightly longer."""
    rng = Random(seed)
    nodes, fabric = rng.choice((4, 8)), rng.choice(("switch", "rail", "fat-tree"))
    node = f"node{rng.randrange(nodes)}"
    dead = f"{node}.{rng.choice((*NICS[:2], 'pcie0-{}.nic0', 'nic3-{}.pcie1')).format(node)}"
    cluster = take_down(joined("dgx-h100", nodes, fabric), [dead])
    (low, high), exact, estimate = drawn(rng, nodes, cluster)
    assert low <= exact <= 1.003 * high  # the extreme of 741 adverse jobs below is 0.24 %
    assert high == estimate.step_time_ps
    assert f"{dead.replace('-', '->', 1) if '>' not in dead else dead}" in estimate.warnings[0]
    assert "dead alone" in estimate.warnings[0]


def test_a_slow_link_of_a_ring_is_no_worse_than_a_ring_of_slow_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per message, one slow link slows a ring as much as all slow links do, except while the pipeline fills."""
    cluster = slow_down(build_topology("ring", 10**10, 0, 16), [("gpu3->gpu4", 0.5)])
    plan = trine.Plan(dp=16, batch=8, inputs="none", dp_overlap=False, bucket_bytes=10**9)
    exact, estimate = both({"workload": chain(8), "plan": plan, "cluster": cluster}, monkeypatch)
    assert estimate.scope is not None
    assert estimate.scope.estimate_ps is not None
    low, high = estimate.scope.estimate_ps
    assert low < exact.step_time_ps <= estimate.step_time_ps == high
    assert estimate.step_time_ps <= 1.001 * exact.step_time_ps


def test_the_answer_says_that_it_is_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = slowed(Random(1), 4, 1, "switch")
    case = {"workload": chain(8), "plan": trine.Plan(dp=32, batch=8, inputs="none"), "cluster": cluster}
    exact, estimate = both(case, monkeypatch)
    assert estimate.warnings[0].startswith("an estimate: the step takes about ")
    folding = estimate.to_json()["folding"]
    assert folding["step_if_none_s"] <= exact.step_time_s <= folding["step_if_all_s"]
    assert folding["step_if_all_s"] == estimate.step_time_s
    assert "step_if_none_s" not in exact.to_json()["folding"]


def test_without_slow_links_too_many_tasks_are_refused_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "ESTIMATE_TASKS", 1)
    monkeypatch.setattr(stages, "MAX_TASKS", 10)
    with pytest.raises(TooManyTasksError, match="more than the 10 that fit into memory"):
        trine.simulate(chain(8), trine.Plan(dp=32, batch=8, inputs="none"), cluster=joined("dgx-h100", 4, "switch"))


@pytest.mark.parametrize("fabric", ["switch", "rail", "fat-tree"])
def test_machines_made_even(fabric: str) -> None:
    """The fast machine is the original one; the slow one has all corresponding links slow and no others."""
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
    """The fast machine is the one before links were removed; the slow one lacks all corresponding links."""
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
