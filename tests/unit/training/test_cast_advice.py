"""Does the answer say why FP8 does not pay where the launching thread bounds a step, and nothing where it pays?"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trine
from trine.common.units import format_time
from trine.results import Result
from trine.results.waits import LAUNCH
from trine.software import load_software
from trine.training.casts import MAX_EVENTS, MIN_TIME_SAVING, precision_verdict, share_of_casts
from trine.training.options import SimulateOptions
from trine.training.setup import setup_of

#: Experts of an H100 with few tokens each, and with many.
FEW, MANY = "qwen3-next-80b-a3b,layers=12", "mixtral-8x7b,layers=4"


def step(model: str, precision: str | None, *, compare: bool = False, sequence: int = 4096) -> Result:
    plan = trine.Plan(dp=8, ep=8, batch=8, micro_batch=1, sharding="zero1", inputs="none")
    asked = f"model:{model},sequence={sequence}"
    return trine.simulate(
        asked, plan, cluster="dgx-h100", software="megatron-core", precision=precision, compare=compare
    )


def about(result: Result, words: str) -> list[str]:
    return [text for text in result.warnings if words in text]


def test_a_step_that_launches_bound_says_that_casts_do_not_pay():
    cast, plain = step(FEW, "fp8", compare=True), step(FEW, None)
    assert cast.step_time_ps > plain.step_time_ps
    (verdict,) = about(cast, "--precision fp8 does not pay")
    longer = 100 * (cast.step_time_ps / plain.step_time_ps - 1)
    steps = f"({format_time(cast.step_time_ps)}, without it {format_time(plain.step_time_ps)})"
    assert f"makes the step {longer:.2g} % longer {steps}" in verdict
    waits = [format_time(int(each.rank_times.waits[each.slowest_row, LAUNCH])) for each in (cast, plain)]
    assert f"waits for launches {waits[0]} ({waits[1]})" in verdict
    (warning,) = about(step(FEW, "fp8"), "fp8 may not pay")
    assert waits[0] in warning
    assert not about(cast, "may not pay")  # the comparison says it
    assert not about(plain, "may not pay")


def test_casts_of_large_products_pay_without_a_word():
    """The products of Mixtral's experts are large: FP8 shortens the step, as NVIDIA's published steps show."""
    cast, plain = step(MANY, "fp8", compare=True), step(MANY, None)
    assert cast.step_time_ps < 0.9 * plain.step_time_ps
    assert not about(cast, "pay")


@pytest.mark.parametrize("precision", ["fp8", "fp8-current", "fp8-block"])
def test_casts_pay_where_the_products_of_experts_are_large(precision: str):
    """Launches do not grow with tokens, products do; long sequences add attention, which FP8 leaves alone."""
    ratios = []
    for sequence in (1024, 4096, 16384):
        times = [step(MANY, each, sequence=sequence).step_time_ps for each in (precision, None)]
        ratios.append(times[0] / times[1])
    assert ratios[1] < ratios[0]
    assert max(ratios[1:]) < 0.85


def test_the_part_of_casts_has_a_closed_form():
    """Each cast of experts is a launch for each expert of a rank, beside the operator's own; others have that alone."""
    options = SimulateOptions(cluster="dgx-h100", software="megatron-core", precision="fp8")
    setup = setup_of(f"model:{FEW}", trine.Plan(dp=8, ep=8, batch=2, micro_batch=1), options)
    style, tensors = load_software("megatron-core").launch, setup.workload.tensors
    with_output = [op for op in setup.workload.operators if op.outputs]
    casts = [op for op in with_output if tensors[op.outputs[0]].dtype.startswith("float8")]
    of_experts = sum(op.attributes.get("expert") is True for op in casts)
    assert of_experts == 12 * 2 * 2  # layers, products, forward and backward
    us = len(casts) * style.cpu_us_per_kernel + of_experts * 512 // 8 * style.expert_us
    whole = 0.0
    for op, launch in zip(setup.workload.operators, setup.launch.launches(), strict=True):
        if op.phase != "optimizer":
            whole += (launch.time_ps + launch.experts // 8 * launch.expert_ps) / 1e6
    assert share_of_casts(setup) == pytest.approx(us / whole, rel=1e-6)


def test_a_step_that_cannot_be_repeated_says_so(monkeypatch):
    monkeypatch.setattr("trine.training.casts.MAX_EVENTS", 100)
    (text,) = about(step(FEW, "fp8", compare=True), "--precision fp8 saves is unknown")
    assert re.search(r"up to 100 events, and this one has [\d,]+", text)


def made(step_ps: int, events: int = 10) -> Any:
    """Return a result of one rank with a step of given length, as far as the verdict reads it."""
    times = SimpleNamespace(compute=np.array([step_ps // 2]), waits=np.full((1, 32), step_ps // 4))
    return SimpleNamespace(
        step_time_ps=step_ps, rank_times=times, slowest_row=0, simulator=SimpleNamespace(events=events)
    )


@pytest.mark.parametrize(
    ("saved", "pays"), [(-0.2, False), (0.0, False), (0.5, False), (1.0, True), (2.0, True), (50.0, True)]
)
def test_a_precision_pays_from_the_least_saving_on(saved: float, pays: bool):
    """saved: in least savings."""
    plain = 10**9
    cast = made(round(plain * (1 - saved * MIN_TIME_SAVING)))
    verdict = precision_verdict("fp8", cast, lambda: made(plain))
    assert (verdict == ()) is pays
    assert pays or verdict[0].startswith("--precision fp8 does not pay: it makes the step")


def test_a_large_run_is_not_repeated_without_the_precision():
    def repeated() -> Any:
        raise AssertionError("the run is repeated")

    (large,) = precision_verdict("fp8", made(10**9, MAX_EVENTS + 1), repeated)
    assert f"trine repeats steps of up to {MAX_EVENTS:,} events" in large
    assert precision_verdict("fp8", made(10**8, MAX_EVENTS), lambda: made(10**9)) == ()
