"""Does the answer warn, with figures, about options that should save time or memory but save none?"""

from __future__ import annotations

import re
from functools import cache

import pytest
from click.testing import CliRunner
from pipelines import US, run, stack
from small_transformers import Transformer

import trine
from trine.cli.main import app
from trine.cluster import build_topology
from trine.collectives.nccl.steps import StepCosts
from trine.graph.workload import Workload
from trine.parallel.stragglers import Stragglers, parse_jitter, parse_slow
from trine.results import Result


@cache
def model(layers: int = 2, sequence: int = 1024, times: str = "tables") -> Workload:
    asked = {"layers": layers, "sequence": sequence, "times": times}
    return trine.synthesize("llama-3-8b", gpu="h100-sxm", software="none", **asked)


def step(workload: Workload | None = None, *, compare: bool = True, **fields: object) -> Result:
    plan = trine.Plan(**fields)
    cluster = "dgx-h100"
    return trine.simulate(workload if workload is not None else model(), plan, cluster=cluster, compare=compare)


def about(result: Result, option: str) -> list[str]:
    return [text for text in result.warnings if text.startswith(option) or f"{option} saves" in text]


SEQUENCE = {"tp": 8, "tp_style": "megatron", "sequence_parallel": True}


def test_overlap_without_an_effect_is_said():
    """No GEMM of this small model ends earlier in pieces, so all stay whole."""
    with_it, without = step(**SEQUENCE, tp_overlap=4), step(**SEQUENCE)
    assert with_it.step_time_ps == without.step_time_ps
    (text,) = about(with_it, "--tp-overlap 4")
    time = trine.common.units.format_time(with_it.step_time_ps)
    words = f"makes the step neither longer nor shorter ({time}, without it {time})"
    assert text == f"--tp-overlap 4 does not pay: it {words}"
    assert not about(without, "--tp-overlap")


def test_overlap_that_pays_is_not_warned_of():
    """On slow links without per-message costs, GEMMs hide most communication if their chunks lose no efficiency."""
    workload, cluster = model(times="roofline"), build_topology("switch", "10 GB/s", 0, 4)
    plans = [trine.Plan(tp=4, tp_style="megatron", sequence_parallel=True, tp_overlap=n) for n in (1, 4)]
    plain, pieces = (trine.simulate(workload, plan, cluster=cluster) for plan in plans)
    assert pieces.step_time_ps < plain.step_time_ps * 0.999
    assert not about(pieces, "--tp-overlap")


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("fields", [{"dp": 8, "sharding": "zero1"}, {"pp": 2, "batch": 4, "micro_batch": 1}], ids=str)
def test_recomputation_that_frees_next_to_nothing_is_said_in_bytes_and_time(recompute, fields):
    with_it, without = step(**fields, recompute=recompute), step(**fields)
    freed = without.memory_peak_bytes - with_it.memory_peak_bytes
    found = about(with_it, f"--recompute {recompute}")
    assert bool(found) == (freed < 0.02 * without.memory_peak_bytes)
    if recompute == "selective":
        (text,) = found
        assert trine.common.units.format_bytes(abs(freed)) in text
        assert f"of the {trine.common.units.format_bytes(without.memory_peak_bytes)}" in text or freed < 0
        longer = 100 * (with_it.step_time_ps / without.step_time_ps - 1)
        assert (f"makes the step {longer:.2g} % longer" if longer else "neither longer nor shorter") in text
        assert any("runs fused attention again" in text for text in with_it.warnings)


def test_the_command_says_it_too():
    arguments = "train model:llama-3-8b,layers=2,sequence=1024 --tp 8 --tp-style megatron --cluster dgx-h100"
    for more, effect in (
        ("--recompute selective", r"[\d.]+ % longer"),
        ("--sequence-parallel --tp-overlap 8", "neither longer nor shorter"),
    ):
        answer = CliRunner().invoke(app, [*arguments.split(), *more.split(), "--advice"])
        text = re.sub(r"\s+", " ", answer.stdout)
        assert answer.exit_code == 0
        assert re.search(rf"makes the step {effect} \([\d.]+ m?s, without it [\d.]+ m?s\)", text), text


def test_recomputation_that_frees_memory_is_not_warned_of():
    """Selective recomputation suits attention that writes its scores (tests/closed_form has its bytes)."""
    for recompute in ("selective", "full"):
        result = run(Transformer(8).workload(), 4, pp=2, recompute=recompute)
        assert result.plan["recompute"] == recompute
        assert not about(result, "--recompute")


def test_gathers_further_ahead_than_needed_are_said():
    """Gathering two units ahead hides no more than one unit ahead, and holds one more."""
    result = step(model(sequence=4096), dp=8, sharding="fsdp", prefetch=2)
    (text,) = about(result, "--prefetch 2")
    assert "does not pay: it makes the step neither longer nor shorter" in text
    assert not about(step(dp=8, sharding="fsdp", prefetch=1), "--prefetch")


def test_gathers_beside_the_next_forward_pass_are_compared_where_there_is_one():
    fields = {"dp": 8, "sharding": "zero2", "steps": 2}
    with_it, without = (step(model(sequence=4096), **fields, prefetch=ahead) for ahead in (1, 0))
    pays = with_it.step_time_ps <= without.step_time_ps * 0.999
    assert bool(about(with_it, "--prefetch 1")) != pays
    assert not about(step(dp=8, sharding="zero2", prefetch=1), "--prefetch 1")


def test_offload_of_activations_that_frees_next_to_nothing_is_said():
    for fields in ({"dp": 8}, {"overlap": "none"}):
        result = step(**fields, offload="activations")
        freed = step(**{**fields, "overlap": "ideal"}).memory_peak_bytes - result.memory_peak_bytes
        assert bool(about(result, "--offload activations")) == (freed < 0.02 * (freed + result.memory_peak_bytes))


def test_a_run_that_is_too_large_to_repeat_says_that_it_does_not_know(monkeypatch):
    monkeypatch.setattr("trine.training.trades.MAX_EVENTS", 100)
    (text,) = about(step(**SEQUENCE, tp_overlap=4), "how much time --tp-overlap 4")
    assert "up to 100 events" in text
    assert not about(step(dp=8, recompute="full"), "--recompute full")  # which nearly always saves memory


def test_costs_of_the_caller_are_asked_for_this_step_only():
    cluster = trine.load_cluster("dgx-h100")
    costs = StepCosts(cluster)
    plan = trine.Plan(**SEQUENCE, tp_overlap=4)
    result = trine.simulate(model(), plan, cluster=cluster, collective_costs=costs, compare=True)
    (text,) = about(result, "how much time --tp-overlap 4")
    assert text.endswith("the costs of collectives fit this step's messages")


def test_random_durations_are_not_compared_and_slow_ranks_are():
    fast, slow = Stragglers(jitter=parse_jitter("normal:5%")), Stragglers(slow=parse_slow(["rank=1:1.3"]))
    plan = trine.Plan(**SEQUENCE, tp_overlap=4)
    jittered, slowed = (
        trine.simulate(model(), plan, cluster="dgx-h100", stragglers=one, compare=True) for one in (fast, slow)
    )
    assert [text[-42:] for text in about(jittered, "--tp-overlap 4")] == ["step without it draws other random numbers"]
    assert "does not pay" in about(slowed, "--tp-overlap 4")[0]


def test_comparing_can_be_left_out_and_moves_no_time():
    one, other = (step(**SEQUENCE, tp_overlap=4, compare=compare) for compare in (True, False))
    assert one.step_time_ps == other.step_time_ps
    assert not about(other, "--tp-overlap")
    assert set(one.warnings) > set(other.warnings)


def test_ranks_that_are_shown_keep_the_sentence():
    result = step(**SEQUENCE, tp_overlap=4).of_ranks([3])
    assert about(result, "--tp-overlap 4")


def test_plans_without_such_options_run_once():
    calls = []
    trine.simulate(stack(2, US, US, US), trine.Plan(), on_job=calls.append)
    assert len(calls) == 1
