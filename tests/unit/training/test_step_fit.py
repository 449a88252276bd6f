"""Does ``trine calibrate --step`` recover the factors of a profile, and refuse a file that it cannot use?"""

from __future__ import annotations

import math

import pytest

import trine
from trine.errors import InputError
from trine.parallel.plan import Plan
from trine.software import Software, load_software

MODEL = "model:llama-3.2-1b,layers=2,sequence=512"
PLAN = {"dp": 2, "batch": 4, "micro_batch": 2}
SLOWER = 1.37


def written(tmp_path, text):
    path = tmp_path / "measured.yaml"
    path.write_text(text)
    return path


def test_a_factor_that_was_put_in_is_found(tmp_path):
    base = Software(name="plain", description="nothing")
    data = base.model_dump() | {"factors": {"gpu": {"value": SLOWER, "fitted_on": "a test"}}}
    true = trine.simulate(MODEL, Plan(**PLAN), cluster="dgx-h100", software=Software.model_validate(data))
    (tmp_path / "plain.yaml").write_text("name: plain\ndescription: nothing\n")
    path = written(
        tmp_path,
        f"""
software: {tmp_path / "plain.yaml"}
cluster: dgx-h100
steps:
- workload: {MODEL}
  plan: {{dp: 2, batch: 4, micro_batch: 2}}
  step_time: {true.step_time_s * 1e6:.6f} us
""",
    )
    fit = trine.calibrate_step(path)
    assert list(fit.fit.factors) == ["gpu"]
    assert math.isclose(fit.fit.factors["gpu"], SLOWER, rel_tol=2e-3)
    assert math.isclose(fit.after_s[0], true.step_time_s, rel_tol=1e-3)
    fit.save(tmp_path / "mine.yaml")
    read = load_software(tmp_path / "mine.yaml")
    assert read == fit.software
    assert read.factors.gpu.fitted_on == "1 measured step of measured.yaml"
    again = trine.simulate(MODEL, Plan(**PLAN), cluster="dgx-h100", software=read)
    assert again.step_time_s == fit.after_s[0]


def test_a_scaled_profile_differs_in_the_factors_that_were_named():
    base = load_software("megatron-core").scaled({"gpu": 1.25}, "some rows", 0.03)
    twice = base.scaled({"gpu": 2.0, "cpu": 0.5}, "other rows")
    assert (twice.factors.gpu.value, twice.factors.cpu.value) == (2.5, 0.5)
    assert {(f.fitted_on, f.left_out_error) for _, f in twice.fitted_factors()} == {("other rows", None)}
    assert twice.factors.communication == load_software("megatron-core").factors.communication
    assert twice.model_copy(update={"factors": base.factors}) == base
    with pytest.raises(InputError, match="unknown factor 'gpus'; did you mean 'gpu'"):
        base.scaled({"gpus": 1.1}, "some rows")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("steps: []", "steps: list should have at least 1 item"),
        ("step: []", r"unknown key 'step'.*steps"),
        ("steps: [{workload: model:gpt-2, step_time: 0 s}]", r"steps\[0\].step_time: must be above 0"),
        ("steps: [{workload: model:gpt-2, step_time: 1 s, plan: {microbatch: 2}}]", r"'microbatch'.*'micro_batch'"),
        ("steps: [{workload: model:gpt-2, step_time: 1 s, plan: {dp: 0}}]", r"steps\[0\].plan: .*dp"),
        ("steps: [{workload: model:gpt-2, step_time: 1 s}]\nfactors: [gqu]", "unknown factor 'gqu'.*'gpu'"),
        ("steps: [{workload: model:gpt-2, step_time: 1 s}]\nsoftware: megatron-cor", "unknown software 'megatron-cor'"),
    ],
)  # fmt: skip
def test_a_file_with_a_fault_is_refused(tmp_path, text, says):
    with pytest.raises(InputError, match=says):
        trine.calibrate_step(written(tmp_path, text))


def test_communication_in_nodes_is_told_from_that_between_them(tmp_path):
    """With tensor parallelism over NVLink and replicas over the fabric, the fit recovers both factors."""
    llama, put_in = "model:llama-3.2-1b,layers=2", {"communication": 1.25, "scale_up": 1.6}
    true = Software(name="plain", description="nothing").scaled(put_in, "a test")
    (tmp_path / "plain.yaml").write_text("name: plain\ndescription: nothing\n")
    two = tmp_path / "two.yaml"
    two.write_text("node: {preset: dgx-h100, count: 2}\n")
    text = f"software: {tmp_path / 'plain.yaml'}\ncluster: {two}\nfactors: [communication, scale_up]\nsteps:\n"
    for plan in ({"tp": 8, "batch": 4}, {"tp": 8, "dp": 2, "batch": 8, "dp_overlap": False}):
        took = trine.simulate(llama, Plan(**plan), cluster=str(two), software=true)
        stated = ", ".join(f"{name}: {str(value).lower()}" for name, value in plan.items())
        text += f"- {{workload: '{llama}', plan: {{{stated}}}, step_time: {took.step_time_s * 1e6:.6f} us}}\n"
    fit = trine.calibrate_step(written(tmp_path, text))
    assert fit.fit.factors == pytest.approx(put_in, rel=0.01)


def test_a_fit_that_the_steps_contradict_warns_and_widens_the_band(tmp_path):
    """One step takes half the predicted time, the other twice: no factor helps, and the range is not narrow."""
    steps = [({"dp": 2, "batch": 4}, 0.5), ({"dp": 2, "batch": 8}, 2.0)]
    text = "cluster: dgx-h100\nfactors: [gpu]\nsteps:\n"
    for plan, factor in steps:
        took = trine.simulate(MODEL, Plan(**plan), cluster="dgx-h100", software="megatron-core").step_time_s
        text += f"- workload: {MODEL}\n  plan: {plan}\n  step_time: {took * factor * 1e6:.3f} us\n"
    fit = trine.calibrate_step(written(tmp_path, f"software: megatron-core\n{text}"))
    error = fit.fit.left_out_error
    assert fit.is_doubtful
    assert error > 0.5
    assert "warning: factors fitted on the other steps" in fit.text()
    step = trine.simulate(MODEL, Plan(dp=2), cluster="dgx-h100", software=fit.software).document()
    assert step["step_time_high_s"] == pytest.approx(step["step_time_s"] * (1 + error), rel=1e-6)
    assert f"error of this software's fit on held-out steps ({error:.1%})" in step["step_time_band"]
    fine = fit.software.scaled({"gpu": 1.0}, "a test", 0.01)
    assert (
        "this software's fit"
        not in trine.simulate(MODEL, Plan(dp=2), cluster="dgx-h100", software=fine).document()["step_time_band"]
    )


def test_a_fit_that_nothing_tests_has_the_band_of_no_fit():
    """A single measured step cannot be held out, so its factors are not known to be right."""
    base = load_software("megatron-core")
    bands = [
        trine.simulate(MODEL, Plan(dp=2), cluster="dgx-h100", software=software).document()
        for software in (base, base.scaled({"gpu": 1.0}, "one step"))
    ]
    assert len({band["step_time_high_s"] / band["step_time_s"] for band in bands}) == 1
