"""Do ranks send as many bytes to experts as DeepEP's copies for nodes and ranks need?"""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

import trine
from trine.cluster import load_cluster
from trine.errors import PlanError
from trine.parallel.plan import Plan
from trine.parallel.token_dispatch import ALL_TO_ALL, DEEPEP, ExpertSpan, distinct, sent_share


@pytest.mark.parametrize(("top_k", "places"), [(1, 4), (2, 2), (3, 4), (4, 3), (2, 8)])
def test_distinct_places_equal_the_mean_over_all_choices(top_k: int, places: int) -> None:
    choices = list(itertools.product(range(places), repeat=top_k))
    assert distinct(top_k, places) == Fraction(sum(len(set(choice)) for choice in choices), len(choices))


def test_shares_by_hand() -> None:
    assert sent_share(ALL_TO_ALL, 8, ExpertSpan(4, 8)) == 1
    assert sent_share(DEEPEP, 1, ExpertSpan(4, 8)) == 1
    assert sent_share(DEEPEP, 8, ExpertSpan(2, 8)) == Fraction(255, 128) / 8  # nearly both nodes, not 8 copies
    assert sent_share(DEEPEP, 2, ExpertSpan(1, 2)) == Fraction(3, 4)
    assert sent_share(DEEPEP, 8, ExpertSpan(1, 1)) == Fraction(1, 8)


def bytes_sent(dispatch: str, nodes: int) -> int:
    """Return the bytes of all all-to-alls of a small mixture of experts over ``nodes`` nodes."""
    workload = trine.synthesize("qwen3-30b-a3b", gpu="h100-sxm", layers=2, sequence=1024)
    plan = Plan(dp=8 * nodes, ep=8 * nodes, dispatch=dispatch, inputs="none")
    result = trine.simulate(workload, plan, cluster=load_cluster("dgx-h100", nodes=nodes), software="megatron-core")
    rows = result.tables()["collectives"]
    return sum(row["bytes"] * row["count"] for row in rows if row["kind"] == "all_to_all")


@pytest.mark.parametrize("nodes", [1, 2])
def test_all_to_alls_of_a_step_shrink_by_the_share(nodes: int) -> None:
    whole, less = bytes_sent(ALL_TO_ALL, nodes), bytes_sent(DEEPEP, nodes)
    share = sent_share(DEEPEP, 8, ExpertSpan(nodes, 8))
    assert less == pytest.approx(whole * float(share), rel=1e-6)
    assert less < whole


def test_without_experts_it_cannot_matter() -> None:
    with pytest.raises(PlanError, match="dispatch"):
        Plan(dp=2, dispatch=DEEPEP)
    with pytest.raises(PlanError, match="deepep"):
        Plan(dp=2, ep=2, dispatch="deepe")


def test_the_profile_chooses_it_for_experts_alone() -> None:
    workload = trine.synthesize("qwen3-30b-a3b", gpu="h100-sxm", layers=2, sequence=1024)
    job = {"cluster": load_cluster("dgx-h100"), "software": "megatron-bridge"}
    assert trine.simulate(workload, Plan(dp=8, ep=8, inputs="none"), **job).plan["dispatch"] == DEEPEP
    assert "dispatch" not in trine.simulate(workload, Plan(dp=8, inputs="none"), **job).plan
