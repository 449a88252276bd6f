"""Does an answer say one thing in all its parts?"""

from __future__ import annotations

from pathlib import Path

import pytest
from forms_of_parallelism import model

import trine
from trine.graph.program import Collective, Compute, Job
from trine.parallel.plan import Plan
from trine.parallel.stragglers import Stragglers

SMALL = "model:llama-3-8b,layers=2,sequence=512"
DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_nothing_denies_the_recomputation_of_the_plan(recompute: str) -> None:
    result = trine.simulate(SMALL, Plan(dp=2, recompute=recompute), cluster="dgx-h100", compare=False)
    assert result.plan["recompute"] == recompute
    assert "no activation recomputation" not in result.details()
    assert not any("no activation recomputation" in row.detail for row in result.evidence)


@pytest.mark.parametrize(("software", "dtype"), [("megatron-core", "float32"), ("pytorch-eager", "bfloat16")])
def test_gradients_have_one_dtype(software: str, dtype: str) -> None:
    result = trine.simulate(SMALL, Plan(dp=2), cluster="dgx-h100", software=software, compare=False)
    (text,) = [row.detail for row in result.evidence if "gradients" in row.detail and row.what == "model"]
    assert "weights and activations are bfloat16" in text
    assert "weights, gradients and activations" not in text
    assert f"accumulated and reduced in {dtype}" in text


def test_a_model_without_a_trace_has_no_facts_about_a_trace() -> None:
    result = trine.simulate(SMALL, Plan(), cluster="dgx-h100", compare=False)
    text = result.details()
    assert "from the shapes of llama-3-8b" in " ".join(text.split())
    assert "trace gpu" not in text
    assert "trace batch" not in text
    assert not any(row.what == "trace" for row in result.evidence)


def half_of_computing_ps(job: Job) -> float:
    """Return half the operator time before each all-to-all, since the one before it.

    Not where gradients are reduced in between: that all-reduce begins when the slow GPU comes, and the all-to-all of
    all GPUs is queued behind it.
    """
    half_ps = since_ps = 0.0
    is_reduced = False
    for step in job.programs[0].steps:
        if isinstance(step, Compute):
            since_ps += step.duration_ps
        elif isinstance(step, Collective) and step.kind == "all_reduce":
            is_reduced = True
        elif isinstance(step, Collective):
            half_ps += 0 if is_reduced else since_ps / 2
            since_ps, is_reduced = 0.0, False
    return half_ps


def test_waiting_for_late_ranks_is_apart_from_the_transfer() -> None:
    """One GPU that is half as fast again changes no transfer; the others wait for it before each all-to-all."""
    moe = model("mixtral-8x7b")
    plan, even = Plan(dp=8, ep=8), None
    for stragglers in (None, Stragglers(slow=((0, 1.5),))):
        jobs: list[Job] = []
        result = trine.simulate(moe, plan, cluster="dgx-h100", compare=False, stragglers=stragglers, on_job=jobs.append)
        transfers = {(use.kind, use.size_bytes): use.transfer_ps for use in result.collectives}
        waiting = sum(use.waiting_ps for use in result.collectives)
        if even is None:
            even = transfers
            assert waiting == 0
        else:
            assert transfers == even
            assert waiting == pytest.approx(half_of_computing_ps(jobs[0]), rel=1e-6)
            assert "wait for late ranks" in result.summary()
            assert "waiting for late ranks" in result.details()
        for row, use in zip(result.to_json()["collectives"], result.collectives, strict=True):
            assert row["time_s"] == pytest.approx(row["transfer_s"] + row["waiting_s"])
            assert (row["transfer_s"], row["waiting_s"]) == (use.transfer_ps / 1e12, use.waiting_ps / 1e12)


def test_the_page_on_accuracy_does_not_deny_what_steps_use() -> None:
    result = trine.simulate(SMALL, Plan(dp=8), cluster="dgx-h100", compare=False)
    assert any("nvls" in name for use in result.collectives for name in use.algorithms)
    rows = [line for line in (DOCS / "background" / "accuracy.md").read_text().splitlines() if "NVLS" in line]
    assert all("by default steps use the library's algorithms, NVLS included" in line for line in rows)
