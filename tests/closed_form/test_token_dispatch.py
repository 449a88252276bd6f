"""Do ranks send as many bytes to experts as DeepEP's copies for nodes and ranks need?"""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

import trine
from trine.cluster import load_cluster
from trine.errors import PlanError
from trine.parallel.plan import Plan
from trine.parallel.token_dispatch import ALL_TO_ALL, DEEPEP, ExpertSpan, Routing, distinct, sent_share


@pytest.mark.parametrize(("top_k", "places"), [(1, 4), (2, 2), (3, 4), (4, 3), (2, 8)])
def test_distinct_places_equal_the_mean_over_all_choices(top_k: int, places: int) -> None:
    choices = list(itertools.product(range(places), repeat=top_k))
    assert distinct(Routing(top_k), places) == Fraction(sum(len(set(choice)) for choice in choices), len(choices))


@pytest.mark.parametrize(("routing", "places"), [
    (Routing(3, 4, 2), 2), (Routing(3, 4, 2), 4), (Routing(2, 4, 3), 8), (Routing(3, 2, 1), 4), (Routing(2, 6, 3), 2),
    (Routing(3, 4, 4), 4), (Routing(3, 8, 4), 8),
])  # fmt: skip
def test_places_of_limited_groups_equal_the_mean_over_all_choices(routing: Routing, places: int) -> None:
    """All choices of groups, then of experts in them with equal chances; experts are numbered group by group."""
    parts = max(routing.groups, places)  # parts of experts that lie in one group and in one place
    counts = []
    for groups in itertools.combinations(range(routing.groups), routing.top_groups):
        of_groups = [part for part in range(parts) if part * routing.groups // parts in groups]
        for choice in itertools.product(of_groups, repeat=routing.top_k):
            counts.append(len({part * places // parts for part in choice}))
    assert distinct(routing, places) == Fraction(sum(counts), len(counts))


def test_deepseek_v3_sends_a_token_to_fewer_nodes() -> None:
    """4 of 8 groups on 8 nodes: 4 (1 - (3/4)^8) = 3.60 nodes a token, where free choice reaches 5.25."""
    assert float(distinct(Routing(8, 8, 4), 8)) == pytest.approx(3.5995, abs=1e-4)
    assert float(distinct(Routing(8), 8)) == pytest.approx(5.2511, abs=1e-4)
    workload = trine.synthesize("deepseek-v3", gpu="h100-sxm", layers=4, sequence=64)
    routed = [op for op in workload.operators if op.attributes.get("moe")]
    assert routed
    assert {(op.attributes["groups"], op.attributes["top_groups"]) for op in routed} == {(8, 4)}


@pytest.mark.parametrize("places", [1, 2, 3, 4, 8, 16, 32])
@pytest.mark.parametrize("top_groups", [1, 2, 4, 8])
def test_a_limit_never_reaches_more_places(top_groups: int, places: int) -> None:
    limited, free = distinct(Routing(8, 8, top_groups), places), distinct(Routing(8), places)
    assert limited <= free
    assert limited <= places
    if top_groups == 8:
        assert limited == free


def test_shares_by_hand() -> None:
    assert sent_share(ALL_TO_ALL, Routing(8), ExpertSpan(4, 8)) == 1
    assert sent_share(DEEPEP, Routing(1), ExpertSpan(4, 8)) == 1
    assert sent_share(DEEPEP, Routing(8), ExpertSpan(2, 8)) == Fraction(255, 128) / 8  # nearly both nodes, not 8 copies
    assert sent_share(DEEPEP, Routing(2), ExpertSpan(1, 2)) == Fraction(3, 4)
    assert sent_share(DEEPEP, Routing(8), ExpertSpan(1, 1)) == Fraction(1, 8)


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
    share = sent_share(DEEPEP, Routing(8), ExpertSpan(nodes, 8))
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
