"""Is a run of few micro-batches that nearly repeat within its bound of the run of all?"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from long_tests import long

import trine
from trine.cluster import build_topology, load_cluster
from trine.errors import SimulationError, TrineError
from trine.folding import bounded
from trine.folding.period_check import check_repeats
from trine.folding.term_drift import check_terms
from trine.results import Result
from trine.training.options import SimulateOptions
from trine.training.run import _run, _run_micro_batches
from trine.training.setup import Setup, setup_of

#: Seeds whose jobs repeat nearly. With the clock of the step and gaps between kernels, 13 and 59 do not converge in 16
#: micro-batches, and 52 repeats exactly.
SEEDS = (31, 8, 73, 99)


def imbalanced(seed: int) -> Setup | None:
    """Return a random job of at most 16 ranks on slow links with imbalanced experts; None if its layout is invalid."""
    rng = Random(seed)
    pp, ep, tp = rng.choice((2, 2, 4)), rng.choice((2, 4)), rng.choice((1, 2, 2))
    plan = trine.Plan(
        dp=ep, ep=ep, pp=pp, tp=tp, schedule=rng.choice(("1f1b", "1f1b", "zb-h1")), inputs="none", micro_batch=1,
        batch=rng.choice((48, 64, 96)), expert_imbalance=f"zipf:{rng.uniform(0.2, 2):.2f}",
        sequence_parallel=tp > 1 and rng.random() < 0.7,
    )  # fmt: skip
    if plan.num_ranks > 16:
        return None
    topology = rng.choice(("ring", "tree:2", "fat-tree:4:2", f"mesh:2x{plan.num_ranks // 2}"))
    cluster = build_topology(topology, rng.choice((15, 25, 40)) * 10**9, 10**6, plan.num_ranks)
    layers, sequence = pp * rng.choice((1, 2)), rng.choice((512, 1024, 2048))
    workload = trine.load(f"model:mixtral-8x7b,layers={layers},sequence={sequence},gpu=h100-sxm")
    try:
        return setup_of(workload, plan, SimulateOptions(cluster=cluster, software="none"))
    except TrineError:
        return None


def compare(seed: int) -> float | None:
    """Compare each task of one random job; return the bound, as a part of the step, or None without a bound."""
    setup = imbalanced(seed)
    few = None if setup is None else _run(setup).job_run
    if setup is None or few is None or few.repeats is None or not few.repeats.bound_ps:
        return None
    every = _run_micro_batches(setup, None).job_run
    sentence = check_repeats(few, every, few.repeats)
    assert sentence.startswith("verified: "), sentence
    check_terms(few, every, few.repeats)
    step_ps = int(every.records.end_ps.max())
    off_ps = abs(int(few.repeats.stretch(few.records.end_ps).max()) - step_ps)
    assert off_ps <= few.repeats.bound_ps <= bounded.MAX_BOUND * 1.001 * step_ps
    return few.repeats.bound_ps / step_ps


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_with_imbalanced_experts_stay_within_the_bound(seed: int) -> None:
    bound = compare(seed)
    assert bound is not None
    assert 0 < bound <= bounded.MAX_BOUND * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [30, pytest.param(100, marks=long)])
def test_many_jobs_with_imbalanced_experts_stay_within_the_bound(wanted: int) -> None:
    bounds: list[float] = []
    for seed in range(100, 10_000):
        if len(bounds) == wanted:
            break
        bound = compare(seed)
        if bound is not None:
            bounds.append(bound)
    assert len(bounds) == wanted, "too few jobs repeat nearly"
    assert 0 < min(bounds) <= max(bounds) <= bounded.MAX_BOUND * 1.001


def train(batch: int, **settings: object) -> Result:
    """Simulate Llama 3 with 8 layers, tp 8 and pp 4: its pace converges, each micro-batch by a factor of 1.5."""
    workload = trine.load("model:llama-3-8b,layers=8,gpu=h100-sxm")
    plan = trine.Plan(tp=8, pp=4, schedule="1f1b", batch=batch, micro_batch=1, inputs="none")
    return trine.simulate(workload, plan, cluster=load_cluster("dgx-h100", nodes=4), **settings)  # type: ignore[arg-type]


def detail(result: Result) -> str:
    return next(row.detail for row in result.evidence if row.what == "micro-batches")


def test_a_pace_that_converges_has_a_bound_and_exact_simulates_all() -> None:
    few, exact, every = train(64, fold="verify"), train(64, fold="exact"), train(64, fold="ranks")
    assert few.repeats is not None
    assert 0 < few.repeats.bound_ps < 1e-4 * every.step_time_ps
    assert abs(few.step_time_ps - every.step_time_ps) <= few.repeats.bound_ps
    assert " nearly; the step time, each start and each end are within " in detail(few)
    assert "are within " in few.repeats.verified
    screen = " ".join(few.summary().split())
    assert "micro-batches nearly repeat: step, starts and ends are within" in screen
    assert "verified" in screen
    assert few.document()["repeats"]["bound_s"] == few.repeats.bound_ps / 1e12
    assert exact.repeats is None
    assert detail(exact) == "all are simulated: 24 of them do not repeat"
    assert exact.step_ends_ps.tolist() == every.step_ends_ps.tolist()


def test_a_wide_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 12 micro-batches the paces still differ too much; a large limit accepts them."""
    refused = train(32)
    assert refused.repeats is None
    assert "12 of them do not repeat" in detail(refused)
    monkeypatch.setattr(bounded, "MAX_BOUND", 1.0)
    monkeypatch.setattr(bounded, "MAX_RANGE", 1.0)
    monkeypatch.setattr(bounded, "MAX_TERMS_BOUND", 1.0)
    accepted = train(32)
    assert accepted.repeats is not None
    assert accepted.repeats.bound_ps > 1e-4 * refused.step_time_ps
    assert abs(accepted.step_time_ps - refused.step_time_ps) <= accepted.repeats.bound_ps


MIXTURE = """
family: transformer
layers: 8
hidden: 1024
heads: 16
kv_heads: 8
experts: {count: 16, top_k: 2, ffn: 1024}
vocab: 32000
sequence: 2048
"""


def drifting(folder: Path) -> Setup:
    """Return a job of 32 GPUs whose pauses are longer in each micro-batch, so the bubble grows with their square.

    Its software launches no kernels to route tokens: a step that launches bound repeats exactly. Shares scale the
    results of experts, as in older Megatron-core: without that traffic the job repeats exactly, too.
    """
    machine, model, software = folder / "machine.yaml", folder / "mixture.yaml", folder / "software.yaml"
    presets = Path(trine.__file__).parent / "presets"
    profile = (presets / "software" / "megatron-core.yaml").read_text()
    routes = r"    (router|dispatch|combine): \[.*\]| *operators\.kernels\.router:.*"
    shares = r"  expert_shares:.*|  operators\.expert_shares:.*|  expert_inputs:.*|  memory\.expert_inputs:.*"
    software.write_text(re.sub(rf"(?m)^({routes}|{shares})\n", "", profile))
    preset = (presets / "clusters" / "dgx-h100.yaml").read_text()
    fabric = "fabric: {kind: fat-tree, link: ib-ndr, oversubscription: 4}"
    machine.write_text(re.sub("(?m)^fabric: .*$", fabric, preset))
    model.write_text(MIXTURE)
    plan = trine.Plan(
        dp=8, tp=2, pp=2, ep=8, batch=64, micro_batch=1, schedule="interleaved", virtual_stages=2,
        sequence_parallel=True, expert_imbalance="zipf:1.0", sharding="zero1", inputs="none",
    )  # fmt: skip
    return setup_of(
        trine.synthesize(str(model), gpu="h100-sxm", software=str(software)), plan,
        SimulateOptions(cluster=load_cluster(str(machine), nodes=4), software=str(software)),
    )  # fmt: skip


@pytest.mark.slow
def test_a_bubble_that_grows_in_each_micro_batch_is_not_multiplied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Starts and ends are within their bound, but the bubble is not: the job must be simulated whole."""
    setup = drifting(tmp_path)
    monkeypatch.setattr(bounded, "MAX_BOUND", 1.0)
    monkeypatch.setattr(bounded, "MAX_RANGE", 1.0)
    refused = _run(setup)
    assert refused.job_run.repeats is None
    monkeypatch.setattr(bounded, "MAX_TERMS_BOUND", 10.0)
    accepted = _run(setup)
    repeats = accepted.job_run.repeats
    assert repeats is not None
    few, every = (run.timed_result(0.0).rank_times.bubble for run in (accepted, refused))
    off_ps = int(abs(few[: len(every)] - every[: len(few)]).max())
    assert repeats.bound_ps < off_ps <= repeats.terms_bound_ps
    with pytest.raises(SimulationError, match="above the bound"):
        check_terms(accepted.job_run, refused.job_run, replace(repeats, terms_bound_ps=repeats.bound_ps))


def test_jobs_that_repeat_exactly_have_no_bound() -> None:
    workload, cluster = trine.load("model:llama-3-8b,layers=4,gpu=h100-sxm"), load_cluster("dgx-h100", gpus=4)
    plan = trine.Plan(dp=4, batch=64, micro_batch=1, sharding="fsdp", inputs="none")
    for fold in ("on", "exact"):
        result = trine.simulate(workload, plan, cluster=cluster, fold=fold)
        assert result.repeats is not None
        assert result.repeats.bound_ps == 0
        assert "to the picosecond" in detail(result)
        assert "bound_s" not in result.document()["repeats"]


def test_verification_fails_above_the_bound() -> None:
    setup = imbalanced(SEEDS[0])
    assert setup is not None
    few, every = _run(setup).job_run, _run_micro_batches(setup, None).job_run
    assert few.repeats is not None
    with pytest.raises(SimulationError, match=r"above the bound of 1 ps\. This is a bug of trine"):
        check_repeats(few, every, replace(few.repeats, bound_ps=1))
