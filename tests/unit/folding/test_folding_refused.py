"""Is it said why a run does not fold, and are jobs refused that folding would show wrong?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from folded_cases import US, chain

import trine
from trine.cluster import Cluster, build_topology
from trine.cluster.topologies import add_host
from trine.compute import make_compute
from trine.errors import InputError, PlanError
from trine.folding.extract import extract_patterns
from trine.graph.program import Job, Recv, Send
from trine.parallel.build import build_job
from trine.parallel.plan import Plan
from trine.parallel.stragglers import Jitter
from trine.results import Result


def machine(word: str = "switch", num_gpus: int = 8) -> Cluster:
    return build_topology(word, 10**9, US, num_gpus)


def run(cluster: Cluster, fold: str = "on", network: Any = "fifo", **fields: Any) -> Result:
    plan = Plan(**{"dp": 8, "batch": 8, "inputs": "none", **fields})
    engine = "compiled" if isinstance(network, str) else "reference"
    return trine.simulate(chain(4), plan, cluster=cluster, network=network, engine=engine, fold=fold, cpu=False)


def why(result: Result) -> str:
    return next((text for text in result.warnings if "trine simulated every rank" in text), "")


@pytest.mark.parametrize("word", ["switch", "ring", "full"])
def test_queues_fold_where_every_link_is_one_routes_own(word: str) -> None:
    result = run(machine(word), "verify")
    assert result.scope is not None
    assert result.scope.stages[0].num_classes == 1
    assert not why(result)


def test_messages_that_cross_two_links_wait_at_both() -> None:
    """Both links of a route have the same rate and latency, and are one class for flows, but not for queues."""
    flows, queues = run(machine("switch"), "verify", "fair"), run(machine("switch"), "verify", "fifo")
    assert flows.scope is not None
    assert queues.scope is not None
    assert (flows.scope.stages[0].num_link_classes, queues.scope.stages[0].num_link_classes) == (1, 2)
    assert queues.step_time_ps > flows.step_time_ps


SHARING = {
    "several peers over one wire": {"algorithm": (("all_reduce", "direct"),)},
    "stages and replicas": {"dp": 4, "pp": 2, "schedule": "1f1b", "micro_batch": 2},
}


@pytest.mark.parametrize("fields", SHARING.values(), ids=SHARING)
def test_queues_that_serve_several_routes_do_not(fields: dict[str, Any]) -> None:
    result = run(machine(), **fields)
    assert result.scope is None
    assert "served one after the other, in the order of their tasks, and link gpu0->switch carries" in why(result)
    with pytest.raises(InputError, match="no ranks are folded, so there is nothing to verify: equivalent messages"):
        run(machine(), "verify", **fields)


def test_a_host_link_that_two_gpus_share_is_shared() -> None:
    alone, shared = (add_host(machine(), 10**9, US, gpus) for gpus in (1, 2))
    assert run(alone, "verify", inputs="step").scope is not None
    assert "link host->pcie0 carries messages of several routes" in why(run(shared, inputs="step"))


class LastComeFirstServed:
    """A queue of somebody else's."""

    name = "stack"

    def service_ps(self, sizes_bytes: Any, bytes_per_s: int) -> list[int]:
        alone = [-(-size * 10**12 // bytes_per_s) for size in sizes_bytes]
        return np.cumsum(alone[::-1])[::-1].tolist()  # type: ignore[no-any-return]


def test_any_network_of_queues_folds_by_the_same_rule() -> None:
    assert run(machine(num_gpus=3), "verify", LastComeFirstServed(), dp=3).scope is not None


def test_networks_that_cannot_count_do_not_fold() -> None:
    class Uncounted:
        name = "uncounted"

        def rates(self, routes: Any, capacity: Any) -> list[float]:
            return [min(float(capacity[link]) for link in route) for route in routes]

    assert "'uncounted' has no weighted_rates" in why(run(machine(num_gpus=2), network=Uncounted(), dp=2))


def test_jitter_of_every_rank_does_not_fold_and_of_every_class_does() -> None:
    jitter = Jitter(distribution="normal", spread=0.05)
    plan = Plan(dp=4, batch=8, inputs="none")
    results = [
        trine.simulate(
            chain(4), plan, cluster=machine(num_gpus=4), cpu=False, fold=fold,
            stragglers=trine.Stragglers(jitter=jitter, each=each),
        )
        for each, fold in (("rank", "on"), ("class", "verify"))
    ]  # fmt: skip
    assert "jitter makes every rank different" in why(results[0])
    assert results[1].scope is not None
    assert results[1].scope.stages[0].num_classes == 1


# -- jobs whose messages do not match ----------------------------------------------------------------------------------


def job() -> Job:
    workload = chain(4)
    return build_job(workload, Plan(pp=2, batch=8, inputs="none").filled(), make_compute("auto", workload))[0]


def without(job: Job, program: int, kind: type) -> Job:
    """The job, with the first message of a kind under another name in one program."""
    steps = list(job.programs[program].steps)
    at = next(number for number, step in enumerate(steps) if isinstance(step, kind))
    steps[at] = steps[at]._replace(tag=("nobody's",))  # type: ignore[call-arg]
    programs = list(job.programs)
    programs[program] = replace(programs[program], steps=tuple(steps))
    return replace(job, programs=tuple(programs))


def test_messages_that_nobody_receives_are_refused() -> None:
    extract_patterns(job(), None)
    with pytest.raises(PlanError, match=r"sends message \(\"nobody's\",\), which .* never receives"):
        extract_patterns(without(job(), 0, Send), None)


def test_messages_that_nobody_sends_are_refused() -> None:
    with pytest.raises(PlanError, match=r"sends message .* never receives"):
        extract_patterns(without(job(), 1, Recv), None)
