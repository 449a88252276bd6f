"""Is the estimated step under another profile near the simulated one, and is it left out where it must be?"""

from __future__ import annotations

import pytest

import trine
from trine.cli.train import ProfilesAnswer
from trine.search import other_profiles
from trine.training.options import SimulateOptions

PIPELINE = trine.Plan(
    tp=2, pp=4, virtual_stages=2, schedule="interleaved", sequence_parallel=True, micro_batch=1, batch=16
)
LAYOUTS = {
    "replicas": ("model:llama-3-8b,layers=8", trine.Plan(dp=8, sharding="zero1", micro_batch=1, batch=4)),
    "pipeline": ("model:llama-3-8b,layers=16", PIPELINE),
}


def options(software: str) -> SimulateOptions:
    return SimulateOptions(cluster=trine.load_cluster("dgx-h100"), software=software)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("own", "other"), [("megatron-core", "nemo-25"), ("nemo-25", "megatron-core")])
def test_the_estimate_is_near_the_simulated_step(name, own, other, monkeypatch) -> None:
    """Within 3 % on one node; the difference has the right sign."""
    monkeypatch.setattr(other_profiles, "MIN_EVENTS", 0)
    monkeypatch.setattr(other_profiles, "MIN_DIFFERENCE", 0)
    workload, plan = LAYOUTS[name]
    result, simulated = (trine.simulate(workload, plan, options=options(each)) for each in (own, other))
    (found,) = other_profiles.differences(workload, plan, options(own), result)
    assert found.software == other
    assert found.step_ps == pytest.approx(simulated.step_time_ps, rel=0.03)
    assert (found.step_ps > result.step_time_ps) == (simulated.step_time_ps > result.step_time_ps)
    assert found.words.startswith(f"with {other}: about ")


def test_the_estimate_is_left_out(monkeypatch) -> None:
    """For small runs, for --brief, for small differences, and for software that is no rival."""
    workload, plan = LAYOUTS["replicas"]
    result = trine.simulate(workload, plan, options=options("megatron-core"))
    assert other_profiles.differences(workload, plan, options("megatron-core"), result) == ()
    monkeypatch.setattr(other_profiles, "MIN_EVENTS", 0)
    brief = ProfilesAnswer(is_asked=False)
    brief.prepare((workload, plan, options("megatron-core")), result)
    assert (brief.num_lines, brief.document()) == (0, {})
    monkeypatch.setattr(other_profiles, "MIN_DIFFERENCE", 0.9)
    assert other_profiles.differences(workload, plan, options("megatron-core"), result) == ()
    monkeypatch.setattr(other_profiles, "MIN_DIFFERENCE", 0)
    fsdp = trine.Plan(dp=8, sharding="fsdp", micro_batch=1, batch=1)
    run = trine.simulate(workload, fsdp, options=options("torchtitan"))
    assert other_profiles.differences(workload, fsdp, options("torchtitan"), run) == ()


def test_the_answer_of_the_command(monkeypatch) -> None:
    monkeypatch.setattr(other_profiles, "MIN_EVENTS", 0)
    monkeypatch.setattr(other_profiles, "MIN_DIFFERENCE", 0)
    workload, plan = LAYOUTS["pipeline"]
    asked = ProfilesAnswer(is_asked=True)
    asked.prepare((workload, plan, options("nemo-25")), trine.simulate(workload, plan, options=options("nemo-25")))
    (row,) = asked.document()["other_profiles"]
    assert set(row) == {"software", "step_s", "change"}
    assert asked.num_lines == 1
