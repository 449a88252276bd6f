"""Do ZeRO's exchanges follow the profile: every gradient and every parameter once, in whole parts?"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trine
from trine.errors import SpecError
from trine.parallel.plan import Plan
from trine.parallel.sharded import owned_parts
from trine.software import Software, load_software

TEXT = "model:gpt-2,layers=2,sequence=128,times=roofline"


def step(zero, dp=4, sharding="zero1", **options):
    profile = Software(name="s", description="a test", zero=zero, operators={"gradient_dtype": "float32"})
    plan = Plan(dp=dp, sharding=sharding, inputs="none", prefetch=0)
    return trine.simulate(TEXT, plan, cluster="dgx-h100", software=profile, compare=False, **options)


def exchanged(result):
    """Return the bytes by kind of collective."""
    found = Counter()
    for row in result.collectives:
        found[row.kind] += row.size_bytes * row.count
    return found


def test_gradients_for_all_are_as_many_bytes_as_parts():
    parts, whole = exchanged(step({})), exchanged(step({"gradients": "all-reduce"}))
    assert parts["reduce_scatter"] == whole["all_reduce"] > 0
    assert not parts["all_reduce"]
    assert not whole["reduce_scatter"]
    assert whole["all_gather"] == parts["all_gather"]


def test_gradients_that_are_not_kept_are_not_reduced_for_all():
    assert exchanged(step({"gradients": "all-reduce"}, sharding="zero2"))["reduce_scatter"]


def test_broadcasts_make_all_parameters_whole_as_gathers_do():
    gathers, broadcasts = exchanged(step({})), exchanged(step({"parameters": "broadcast"}))
    assert broadcasts["broadcast"] == gathers["all_gather"] > 0
    assert not broadcasts["all_gather"]


def test_each_rank_with_weights_broadcasts_once():
    rows = [row for row in step({"parameters": "broadcast"}, dp=8).collectives if row.kind == "broadcast"]
    assert sum(row.count for row in rows) == 8


def test_a_bucket_of_the_software_is_used_unless_the_plan_says_its_own():
    def buckets(zero, **plan):
        whole = Plan(dp=4, sharding="zero1", inputs="none", **plan)
        profile = Software(name="s", description="a test", zero=zero)
        result = trine.simulate(TEXT, whole, cluster="dgx-h100", software=profile, compare=False)
        return sum(row.count for row in result.collectives if row.kind == "reduce_scatter")

    one = {"bucket_bytes": 2**40}
    assert buckets(one) == 1 < buckets({})
    assert buckets(one, bucket_bytes=2**22) == buckets({}, bucket_bytes=2**22) > 1


@pytest.mark.parametrize("zero", [{"gradients": "all-reduce"}, {"parameters": "broadcast"}])
def test_ranks_behave_alike(zero):
    assert step(zero, fold="verify").step_time_ps == step(zero, fold="off").step_time_ps


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 50))
def test_weights_are_given_away_whole_and_evenly(sizes, ranks):
    weights = list(range(len(sizes)))
    parts = owned_parts(weights, dict(enumerate(sizes)), ranks)
    assert sorted(weight for part in parts for weight in part) == weights
    assert len(parts) == min(ranks, len(weights))
    held = [sum(sizes[w] for w in part) for part in parts]
    # Graham, Bounds on multiprocessing timing anomalies, 1969: largest-first is within 4/3 of the optimum
    best = max(sum(sizes) / ranks, max(sizes))
    assert max(held) <= max(best * (4 / 3) + max(sizes) / 3, max(sizes)) + 1e-9


def test_internevo_and_deepspeed_exchange_as_their_code_does():
    assert load_software("internevo").zero.parameters == "broadcast"
    assert load_software("megatron-deepspeed").zero.gradients == "all-reduce"
    assert load_software("megatron-core").zero == Software(name="s", description="a test").zero


def test_an_unknown_word_is_refused(tmp_path):
    path = tmp_path / "ours.yaml"
    path.write_text("name: ours\ndescription: a test\nzero: {parameters: scatter}\n")
    with pytest.raises(SpecError, match=r"ours.yaml: zero.parameters"):
        load_software(path)
