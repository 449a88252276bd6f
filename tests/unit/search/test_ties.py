"""Ties: of layouts that are equally fast, the one that takes the least for granted comes first."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_report import LAYOUT, ranked

from trine.search.layout_row import LayoutRow
from trine.search.ties import assumptions, is_tie, tied, with_first
from trine.search.worker import Outcome


def test_the_plain_layout_of_a_tie_comes_first_and_others_by_time():
    offloaded, plain, slow = ranked(10, 60, offload="optimizer"), ranked(10.15, 60), ranked(10.3, 60, pp=1)
    assert with_first([slow, plain, offloaded], 8) == [plain, offloaded, slow]
    assert with_first([slow, offloaded], 8) == [offloaded, slow]
    assert with_first([], 8) == []


def test_the_doubt_about_the_fabric_widens_a_tie():
    # 8 replicas of tp 8 cross nodes of 8 GPUs. Exposed between nodes: 1 of 10 s and 3 of 10.4 s.
    layout = LAYOUT._replace(dp=8, tp=8, pp=1)
    fast, slow = (with_exposed(ranked(step, 60), layout, exposed) for step, exposed in ((10, 1), (10.4, 3)))
    assert is_tie(fast, slow, 8, fabric_error=0.2)  # 0.2 x 2 s
    assert not is_tie(fast, slow, 8, fabric_error=0.19)
    assert not is_tie(fast, slow, 64, fabric_error=0.2)  # one node: nothing crosses
    assert tied([slow, fast], 8, 0.2) == [slow, fast]
    assert tied([slow, fast]) == [fast]


def with_exposed(each, layout, exposed_s):
    """Return a ranked layout that exposes communication of its replicas."""
    ps = int(exposed_s * 1e12)
    return each._replace(layout=layout, outcome=replace(each.outcome, exposed_ps=ps, communication={"dp": ps}))


def test_assumptions_count_gathers_across_nodes_only():
    sharded = LAYOUT._replace(sharding="fsdp", dp=4, tp=1, pp=1)
    assert assumptions(sharded, 8)[1] == 0
    assert assumptions(sharded._replace(dp=16), 8)[1] == 1
    assert assumptions(sharded._replace(dp=16, shard_ways=8), 8)[1] == 0


def test_fewer_stages_and_no_context_parallelism_come_first():
    deep, flat, divided = ranked(10, 60, pp=8), ranked(10.1, 60, pp=4), ranked(10.1, 60, pp=2, cp=2)
    assert with_first([deep, divided, flat], 8)[0] == flat


@pytest.mark.parametrize(
    ("outcome", "rate"),
    [(Outcome(step_ps=10**12, tokens=500), 500.0), (Outcome(step_ps=10**12), None), (Outcome(tokens=500), None)],
)
def test_tokens_per_second_need_tokens_and_a_step(outcome, rate):
    assert LayoutRow.tokens_per_s.fget(SimpleNamespace(outcome=outcome)) == rate
