"""Does a large search end if no program of some forms can be written, so that their layers have no known times?"""

import pytest

import trine
from trine.search import search, worker


@pytest.mark.parametrize("unwritten", ["none", "selective", "full"])
def test_a_search_ends_without_the_times_of_some_forms(unwritten, monkeypatch):
    """Such a form was queued again and again: its corrections are never known."""

    def probe_most(packed, plans):
        found = worker.probe_all(packed, plans)
        return [None if plan.recompute == unwritten else costs for plan, costs in zip(plans, found, strict=True)]

    monkeypatch.setattr(search, "probe_all", probe_most)
    monkeypatch.setattr(search, "SMALL", 0)  # a large space: estimates order it
    found = trine.plan(
        "model:llama-3.2-1b,layers=4,sequence=1024", gpus=4, cluster="dgx-h100", global_batch=16, workers=1, top=2
    )
    assert len(found.ranked) == 2
    assert all(each.outcome.step_ps for each in found.ranked)


def test_attention_with_sinks_runs_again():
    """Fused attention that reads trained sinks is the core of attention, as any other."""
    job = "model:gpt-oss-20b,layers=2,sequence=8192"
    steps = {
        how: trine.simulate(job, trine.Plan(recompute=how), gpu="h100-sxm").step_time_ps
        for how in ("none", "selective")
    }
    assert steps["none"] < steps["selective"] < 1.1 * steps["none"]
