"""Do folded runs stop, split and resume correctly? Each run is compared with the unfolded one, task by task."""

from __future__ import annotations

import pytest
from folded_cases import US, chain, joined
from pipelines import stack
from synthetic import Chain

import trine
from trine.cluster import Cluster, build_topology
from trine.cluster.select import slow_down
from trine.errors import PlanError
from trine.folding import deferral, stages
from trine.parallel.plan import Plan
from trine.results import Result


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop runs wherever possible, and cut them as small as possible."""
    monkeypatch.setattr(stages, "FEW_TASKS", 0)
    monkeypatch.setattr(deferral, "MANY_TASKS", 0)
    monkeypatch.setattr(deferral, "WORTH_A_STOP", 2.0)
    monkeypatch.setattr(deferral, "WORTH_WAITING", 2.0)
    monkeypatch.setattr(deferral, "RUN_TASKS", 1)


def slow_ring(link: int, factor: float, num_gpus: int) -> Cluster:
    cluster = build_topology("ring", 10**9, US, num_gpus)
    return slow_down(cluster, [(cluster.link_names[link], factor)])


def verified(workload: trine.Workload, plan: Plan, cluster: Cluster, **settings: object) -> Result:
    return trine.simulate(workload, plan, cluster=cluster, fold="verify", cpu=False, **settings)  # type: ignore[arg-type]


def classes(result: Result) -> list[int]:
    assert result.scope is not None
    return [stage.num_classes for stage in result.scope.stages]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("algorithm", "most"), [((("all_reduce", "ring"),), 8), ((), 2)])
def test_classes_split_when_the_slow_link_is_first_used(algorithm: tuple[tuple[str, str], ...], most: int) -> None:
    """Until gradients are reduced, 8 replicas of 2 stages form 2 classes; then one slow NIC separates ranks on a ring.

    All flows of a library's collective wait for each other, so only the slow one forms another class.
    """
    cluster = slow_down(joined("dgx-h100", 2, "rail"), [("node0.nic0->leaf0.rail0", 0.5)])
    plan = Plan(dp=8, pp=2, batch=8, micro_batch=4, schedule="1f1b", inputs="none", algorithm=algorithm)
    result = verified(chain(8), plan, cluster, placement="round-robin")
    assert result.scope is not None
    assert classes(result)[0] == 2
    assert max(classes(result)) == most
    times = [stage.begins_ps for stage in result.scope.stages]
    assert times[0] == 0
    assert all(time > 0 for time in times[1:])


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("stages", [2, 4])
def test_runs_are_not_cut_where_they_will_share_links_later(stages: int) -> None:
    """Stages alternate on a ring: the last one reduces first, over links that the others need before it is done.

    A cut by current exchanges alone, without those along axes that are still closed, once treated the last stage as
    independent.
    """
    plan = Plan(dp=8 // stages, pp=stages, order="pp-dp-ep-cp-tp", schedule="zb-h1", dp_overlap=False, batch=8,
                micro_batch=2)  # fmt: skip
    workload = chain(8, (100,), 20, 4 * 10**6)
    assert len(classes(verified(workload, plan, slow_ring(0, 0.5, 8)))) > 2
    slow_weights = stack(4, 100 * US, 100 * US, 3000 * US, size_bytes=10**6)
    plan = Plan(dp=8 // stages, pp=stages, order="pp-dp-ep-cp-tp", schedule="zb-h1", dp_overlap=False, batch=4,
                micro_batch=1)  # fmt: skip
    assert len(classes(verified(slow_weights, plan, slow_ring(0, 0.5, 8)))) > 2


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("link", [2, 4])
def test_ranks_that_have_ended_are_waited_for_no_more(link: int) -> None:
    """When stage 0 stops the run, a rank of stage 1 has ended while another still forwards data received from it.

    Stage 1 has one bucket more than stage 0, so the rank must not be looked up among the remaining ones.
    """
    workload = Chain([US * 10] * 3, [US * 8600, US * 10, US * 10], [10**6] * 3).workload()
    plan = Plan(dp=3, pp=2, order="pp-dp-ep-cp-tp", batch=8, inputs="none", cuts=("linear.2",), dp_overlap=False,
                bucket_bytes=1000, first_bucket_bytes=1000)  # fmt: skip
    verified(workload, plan, slow_ring(link, 0.3, 6))


@pytest.mark.usefixtures("eager")
def test_independent_parts_go_on_by_themselves() -> None:
    """With separate wires, the last stage's groups are independent of the groups that have not stopped yet."""
    cluster = build_topology("full", 10**9, US, 8)
    cluster = slow_down(cluster, [("gpu1->gpu3", 0.5)])
    plan = Plan(dp=4, pp=2, order="pp-dp-ep-cp-tp", schedule="zb-h1", dp_overlap=False, batch=8, micro_batch=2)
    result = verified(chain(8, (100,), 20, 4 * 10**6), plan, cluster)
    assert result.scope is not None
    assert min(stage.num_ranks for stage in result.scope.stages) < 8


@pytest.mark.parametrize(("name", "value"), [("MAX_STOPS", 1), ("MAX_STOPS", 2), ("RUN_TASKS", 10**9)])
@pytest.mark.usefixtures("eager")
def test_limits_change_nothing_but_the_work(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages if name == "MAX_STOPS" else deferral, name, value)
    plan = Plan(dp=4, pp=2, batch=8, micro_batch=2, schedule="1f1b", overlap="modelled")
    result = verified(chain(8), plan, slow_down(joined("dgx-h100", 1, None), [("gpu1->nvswitch", 0.5)]))
    assert result.scope is not None
    assert name != "MAX_STOPS" or len({stage.begins_ps for stage in result.scope.stages}) <= value + 2


def test_ranks_of_too_many_classes_are_simulated_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trine.folding.classes.FEW_RANKS", 0)
    plan = Plan(dp=8, batch=8, inputs="none")
    assert classes(verified(chain(4), plan, build_topology("switch", 10**9, US, 8))) == [1]
    slow = slow_down(build_topology("switch", 10**9, US, 8), [("gpu1->switch", 0.5)])
    assert classes(verified(chain(4), plan, slow)) == [8]
    slow_rank = trine.Stragglers(slow=((1, 1.5),))
    assert classes(verified(chain(4), plan, build_topology("switch", 10**9, US, 8), stragglers=slow_rank)) == [8]


def test_what_does_not_fit_into_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MAX_TASKS", 100)
    plan = Plan(dp=8, batch=8, inputs="none")
    slow = slow_down(build_topology("switch", 10**9, US, 8), [("gpu1->switch", 0.5)])
    bound = trine.simulate(chain(8), plan, cluster=slow, cpu=False)
    assert bound.scope is not None
    assert bound.scope.estimate_ps is not None
    with pytest.raises(PlanError, match=r"8 of 8 ranks behave differently, which makes \d+ tasks, more than the 100"):
        verified(chain(4), plan, slow)


def test_a_run_whose_representatives_are_all_its_ranks_has_its_links(monkeypatch):
    plan = trine.Plan(pp=4, schedule="1f1b", batch=8, micro_batch=1)
    model = "model:llama-3.2-1b,layers=4,sequence=256"
    whole = trine.simulate(model, plan, cluster="dgx-h100").document()["links"]
    monkeypatch.setattr("trine.folding.run.SHOW_ALL_STEPS", 1)
    links = trine.simulate(model, plan, cluster="dgx-h100").document()["links"]
    assert sum(link["bytes"] * link["links_alike"] for link in links) == sum(link["bytes"] for link in whole) > 0
