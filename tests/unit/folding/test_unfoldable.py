"""If all ranks differ, each is simulated once, and the answer equals the folded one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from folded_cases import US, chain

import trine
from trine.cluster import Cluster, build_topology
from trine.cluster.select import slow_down
from trine.folding import extract, quotient, run
from trine.parallel.plan import Plan
from trine.parallel.stragglers import Stragglers


def ring(slow: bool) -> Cluster:
    cluster = build_topology("ring", 10**9, US, 8)
    return slow_down(cluster, [(cluster.link_names[0], 0.5)]) if slow else cluster


#: Settings that make all ranks differ: a slow link, ranks of different speeds, or both.
APART: dict[str, dict[str, Any]] = {
    "slow link": {"cluster": ring(slow=True)},
    "speeds": {"cluster": ring(slow=False), "stragglers": Stragglers(slow=tuple((r, 1 + r / 10) for r in range(8)))},
    "both": {"cluster": ring(slow=True), "stragglers": Stragglers(slow=((3, 1.5),))},
}
PLAN = Plan(dp=8, batch=8, algorithm=(("all_reduce", "ring"),))


@pytest.mark.parametrize("name", APART)
def test_no_graph_of_classes_is_made_and_all_that_it_gave_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SHOW_ALL", 0)  # simulates the graph of classes
    by_classes = trine.simulate(chain(4), PLAN, cpu=False, **APART[name])
    monkeypatch.undo()
    monkeypatch.setattr(quotient.QuotientBuilder, "build", None)
    each = trine.simulate(chain(4), PLAN, cpu=False, **APART[name])
    assert each.scope is not None
    assert by_classes.scope is not None
    assert each.scope.stages == by_classes.scope.stages
    assert each.scope.notes == by_classes.scope.notes
    assert each.warnings == by_classes.warnings
    assert np.array_equal(each.scope.link_bytes, by_classes.scope.link_bytes)
    for rank in range(8):
        assert each.rank(rank).step_time_ps == by_classes.rank(rank).step_time_ps
    whole = trine.simulate(chain(4), PLAN, cpu=False, fold="off", **APART[name])
    for column in ("ready_ps", "start_ps", "end_ps"):
        assert np.array_equal(getattr(each.records, column), getattr(whole.records, column))


def test_patterns_are_not_made_where_schedules_tell_all_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract.Extraction, "job_patterns", None)
    chained = Plan(dp=8, batch=8, algorithm=(("all_reduce", "ring"),), buffers="broadcast")
    found = trine.simulate("resnet50-h100-b128", chained, cluster=ring(slow=False))
    monkeypatch.undo()
    assert any("no two ranks have the same place" in warning for warning in found.warnings)
    verified = trine.simulate("resnet50-h100-b128", chained, cluster=ring(slow=False), fold="verify")
    assert np.array_equal(found.records.end_ps, verified.records.end_ps)


def test_where_a_chain_keeps_ranks_apart_patterns_are_made_to_say_more() -> None:
    slow = build_topology("ring", 10**9, 5000 * US, 8)  # the last rank of the chain waits long
    chained = Plan(dp=8, batch=8, algorithm=(("all_reduce", "ring"),), buffers="broadcast")
    found = trine.simulate("resnet50-h100-b128", chained, cluster=slow)
    assert found.scope is not None
    assert [stage.num_classes for stage in found.scope.stages] == [8]
