"""Ties: of layouts that are equally fast, the one that takes the least for granted comes first."""

from test_report import LAYOUT, ranked

from trine.search.ties import assumptions, with_first


def test_the_plain_layout_of_a_tie_comes_first_and_others_by_time():
    offloaded, plain, slow = ranked(10, 60, offload="optimizer"), ranked(10.15, 60), ranked(10.3, 60, pp=1)
    assert with_first([slow, plain, offloaded], 8) == [plain, offloaded, slow]
    assert with_first([slow, offloaded], 8) == [offloaded, slow]
    assert with_first([], 8) == []


def test_assumptions_count_gathers_across_nodes_only():
    sharded = LAYOUT._replace(sharding="fsdp", dp=4, tp=1, pp=1)
    assert assumptions(sharded, 8)[1] == 0
    assert assumptions(sharded._replace(dp=16), 8)[1] == 1
    assert assumptions(sharded._replace(dp=16, shard_ways=8), 8)[1] == 0


def test_fewer_stages_and_no_context_parallelism_come_first():
    deep, flat, divided = ranked(10, 60, pp=8), ranked(10.1, 60, pp=4), ranked(10.1, 60, pp=2, cp=2)
    assert with_first([deep, divided, flat], 8)[0] == flat
