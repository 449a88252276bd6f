"""Does the search over numbers of GPUs find the smallest one? Are layouts, goals and errors as documented?"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trine import InputError, load_cluster, plan, simulate, size
from trine.decide import machine_size
from trine.decide import size as sizing
from trine.decide.batches import batch_for
from trine.decide.cost import RunStep
from trine.decide.failures import Failures
from trine.decide.first_count import CLOSE
from trine.decide.layout import FoundLayout, ModelShape, best_layout, scaled_layout
from trine.parallel.plan import Plan
from trine.search.space import Layout
from trine.training.options import SimulateOptions


def fake(scaling: float, least_gpus: int) -> Any:
    """Return a stand-in for best_layout: ``gpus ** scaling`` times the speed of one GPU, from ``least_gpus`` on."""

    def layout(model: ModelShape, cluster: str, gpus: int, batch: int, options: SimulateOptions) -> FoundLayout | None:
        if gpus < least_gpus:
            return None
        step_ps = round(1e12 * batch / gpus**scaling)
        step = RunStep(step_ps=step_ps, ends_ps=None, tokens=batch * 1024, num_gpus=gpus, gpu="h100-sxm", mean_w=None)
        return FoundLayout(Layout(gpus, 1, 1, 1, 1, None, "none", None, None, 1, 1, None, "none", "none"), step, None)

    return layout


NO_FAILURES = Failures(mtbf_per_gpu=float("inf"), checkpoint=0)


def patch_layouts(patch: pytest.MonkeyPatch, layout: Any) -> None:
    """Replace the search of layouts; no layout is scaled from another number of GPUs."""
    patch.setattr(machine_size, "best_layout", layout)
    patch.setattr(machine_size, "scaled_layout", lambda *_: None)


def possible(limit: int, batch: int) -> list[int]:
    """Return the numbers of GPUs that divide into a layout, by brute force: tp x pp x dp with whole replicas."""
    counts = [1, 2, 4, *range(8, limit + 1, 8)]
    axes = list(itertools.product((1, 2, 4, 8), (1, 2, 3, 4, 6, 12)))
    return [
        count for count in counts
        if any(count % (tp * pp) == 0 and batch % (count // (tp * pp)) == 0
               for tp, pp in axes)
    ]  # fmt: skip


@given(st.floats(0.5, 1.0), st.integers(1, 300), st.floats(0.01, 100.0))
def test_the_search_equals_brute_force(scaling: float, least: int, days: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch_layouts(patch, fake(scaling, least))
        answer = size(
            "model:gpt-2",
            1e9,
            days=days,
            clusters=["dgx-h100"],
            global_batch=128,
            max_gpus=512,
            batch_change=0,
            failures=NO_FAILURES,
        ).machines[0]

    def needed_days(gpus: int) -> float:
        steps = -(-(10**9) // (128 * 1024))
        return steps * round(1e12 * 128 / gpus**scaling) / 1e12 / 86_400

    fitting = [n for n in possible(512, 128) if n >= least and needed_days(n) <= days]
    assert min(fitting, default=0) <= answer.num_gpus <= CLOSE * min(fitting, default=0)
    assert not fitting or answer.num_gpus in fitting
    assert bool(answer.problem) == (not fitting)


@given(st.floats(0.5, 0.95), st.integers(1, 64), st.floats(1.0, 5000.0))
def test_the_budget_search_equals_brute_force(scaling: float, least: int, budget: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch_layouts(patch, fake(scaling, least))
        answer = size(
            "model:gpt-2",
            1e9,
            budget=budget,
            price=1.0,
            clusters=["dgx-h100"],
            global_batch=128,
            max_gpus=512,
            batch_change=0,
            failures=NO_FAILURES,
        ).machines[0]

    def dollars(gpus: int) -> float:
        steps = -(-(10**9) // (128 * 1024))
        return steps * round(1e12 * 128 / gpus**scaling) / 1e12 / 3600 * gpus

    fitting = [n for n in possible(512, 128) if n >= least and dollars(n) <= budget]
    assert max(fitting, default=0) / CLOSE <= answer.num_gpus <= max(fitting, default=0)


def test_a_small_model_by_trying_all_numbers() -> None:
    """The answer of the search, against the days of each number of GPUs."""
    arguments: dict[str, Any] = {"clusters": ["dgx-h100"], "global_batch": 32, "max_gpus": 2}
    model = "model:gpt-2,layers=2,sequence=1024"
    first = size(model, "1B", days=1000, **arguments).machines[0]
    assert (first.num_gpus, first.tried) == (1, (1,))
    assert first.cost is not None
    needed = first.cost.days.value * 0.7  # less than one GPU needs, so more GPUs are needed
    chosen = size(model, "1B", days=needed, **arguments).machines[0]
    assert chosen.cost is not None
    assert chosen.cost.days.value <= needed
    assert chosen.num_gpus > 1


def test_the_best_layout_is_that_of_a_search() -> None:
    model = ModelShape("model:gpt-2,layers=4,sequence=256", 50_000_000, 4, 768, 256, 0)
    layout = best_layout(model, "dgx-h100", 2, 4, SimulateOptions())
    assert layout is not None
    found = plan(model.text, gpus=2, cluster="dgx-h100", global_batch=4, workers=1, top=1)
    assert found.best.outcome.step_ps <= layout.step.step_ps <= 1.03 * found.best.outcome.step_ps
    assert layout.layout.dp * layout.layout.tp * layout.layout.pp * layout.layout.cp == 2
    data_parallel = simulate(model.text, Plan(dp=2, batch=2), cluster=load_cluster("dgx-h100", gpus=2))
    assert layout.step.step_ps <= data_parallel.step_time_ps


def test_the_training_command_names_the_whole_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(4, 1, 2, 2, 1, None, "zero1", None, "interleaved", 2, 1, True, "full", "optimizer")
    step = RunStep(step_ps=10**12, ends_ps=None, tokens=1024, num_gpus=16, gpu="h100-sxm", mean_w=None)
    patch_layouts(monkeypatch, lambda *_: FoundLayout(layout, step, None))
    answer = size("model:gpt-2", 1e9, days=1000, clusters=["dgx-h100"], global_batch=128, max_gpus=16)
    text = " ".join(answer.summary().split())
    assert "dp4 pp2 cp2 v2 mb1 zero1 sp full optimizer" in text or "dp 4 x pp 2 x cp 2, interleaved 2" in text
    for words in (
        "--cp 2",
        "--schedule interleaved",
        "--virtual-stages 2",
        "--sequence-parallel",
        "--offload optimizer",
    ):
        assert words in text
    assert answer.document()["machines"][0]["layout"]["cp"] == 2


def test_no_layout_of_a_model_that_is_too_large() -> None:
    model = ModelShape("model:llama-3-405b", 405_853_388_800, 126, 16384, 8192, 0)
    assert best_layout(model, "dgx-h100", 8, 512, SimulateOptions()) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give --days or --budget"),
        ({"days": 0}, "days: must be above 0"),
        ({"days": float("nan")}, "days: must be above 0"),
        ({"budget": "2M$"}, "budget: needs --price"),
        ({"budget": "much", "price": 2}, "budget: must be an amount"),
        ({"days": 1, "clusters": ["dgx-h101"]}, "did you mean 'dgx-h100'"),
        ({"days": 1, "global_batch": 0}, "global_batch"),
        ({"days": 1, "max_gpus": 0}, "max_gpus"),
        ({"days": 1, "batch_change": -0.1}, "batch_change: must be a share from 0 to 0.9, got -0.1"),
        ({"days": 1, "batch_change": float("nan")}, "batch_change: must be a share"),
        ({"day": 1}, "did you mean 'days'"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        size("model:gpt-2", "1B", **arguments)
    assert words in str(error.value)


@given(st.integers(1, 512), st.integers(64, 2048), st.floats(0.0, 0.4))
def test_the_batch_divides_and_stays_near(eighths: int, batch: int, change: float) -> None:
    model = ModelShape("model:llama-3-70b", 70_553_706_496, 80, 8192, 8192, 0)
    found = batch_for(model, 8 * eighths, batch, change, 80 * 2**30)
    if found is None:
        return
    assert abs(found - batch) <= change * batch
    axes = itertools.product((1, 2, 4, 8), (pp for pp in range(1, 81) if 80 % pp == 0 or pp in (16, 32, 64)))
    ways = [tp * pp for tp, pp in axes] + [16, 32, 64]
    assert any(8 * eighths % each == 0 and found % (8 * eighths // each) == 0 for each in ways)


def test_640_gpus_need_another_batch() -> None:
    """Llama 3 70B with a batch of 512: 640 GPUs divide 480 or 640, within 25 %, and 512 only in odd stages."""
    model = ModelShape("model:llama-3-70b", 70_553_706_496, 80, 8192, 8192, 0)
    found = batch_for(model, 640, 512, 0.25, 80 * 2**30)
    assert found == 480
    assert found % (640 // 8) == 0
    assert batch_for(model, 1024, 512, 0.25, 80 * 2**30) == 512


def steps_of(seconds: float) -> Any:
    """Return a stand-in for best_layout whose step takes ``seconds`` / GPUs."""

    def layout(model: ModelShape, cluster: str, gpus: int, batch: int, options: SimulateOptions) -> FoundLayout | None:
        step = RunStep(
            step_ps=round(seconds * 1e12 * batch / gpus), ends_ps=None, tokens=batch * 1024, num_gpus=gpus,
            gpu="h100-sxm", mean_w=None,
        )  # fmt: skip
        return FoundLayout(Layout(gpus, 1, 1, 1, 1, None, "none", None, None, 1, 1, None, "none", "none"), step, None)

    return layout


def test_unused_days_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_layouts(monkeypatch, steps_of(1.0))
    arguments: dict[str, Any] = {"clusters": ["dgx-h100"], "failures": NO_FAILURES}
    whole = 1e9 / 1024 / 86_400  # days of one GPU
    answer = size("model:gpt-2", 1e9, days=whole / 4.1, **arguments).machines[0]
    assert answer.num_gpus == 8  # 4 GPUs take a little longer
    assert "49% of the days unused: 4 GPUs, the next smaller number, would take" in answer.unused
    assert size("model:gpt-2", 1e9, days=whole / 7.9, **arguments).machines[0].unused == ""
    dear = size("model:gpt-2", 1e9, budget=1e6, price=1, max_gpus=64, **arguments)
    assert "of the budget unused: --max-gpus is 64" in dear.machines[0].unused
    assert dear.document()["machines"][0]["unused"] == dear.machines[0].unused


def test_another_batch_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_layouts(monkeypatch, steps_of(1.0))
    whole = 1e9 / 1024 / 86_400
    arguments: dict[str, Any] = {"clusters": ["dgx-h100"], "failures": NO_FAILURES, "global_batch": 512}
    answer = size("model:gpt-2", 1e9, days=whole / 639, **arguments)
    assert answer.machines[0].num_gpus == 640
    assert answer.machines[0].global_batch == 640
    text = " ".join(answer.summary().split())
    assert "640 GPUs of dgx-h100 with batch 640" in text
    assert "640 GPUs divide a global batch of 640 (+25%), not 512; --batch-change 0 keeps yours" in text
    assert "--global-batch 640" in text
    kept = size("model:gpt-2", 1e9, days=whole / 639, batch_change=0, **arguments).machines[0]
    assert kept.global_batch == 512


def test_failures_take_more_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected days, not those of the steps alone, keep to the limit."""
    patch_layouts(monkeypatch, steps_of(100.0))
    days = 100 * 1e9 / 1024 / 86_400 / 630
    few = size("model:gpt-2", 1e9, days=days, clusters=["dgx-h100"], failures=NO_FAILURES).machines[0]
    many = size(
        "model:gpt-2", 1e9, days=days, clusters=["dgx-h100"], failures=Failures(mtbf_per_gpu=10_000, restart=1800)
    ).machines[0]
    assert many.num_gpus > few.num_gpus
    assert many.cost is not None
    assert many.cost.days.value < many.cost.expected_days.value <= days


def test_ctrl_c_keeps_the_finished_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def layout(model: ModelShape, cluster: str, *rest: Any) -> FoundLayout | None:
        if cluster == "dgx-a100":
            raise KeyboardInterrupt
        found: FoundLayout | None = steps_of(1.0)(model, cluster, *rest)
        return found

    patch_layouts(monkeypatch, layout)
    with pytest.raises(sizing.SizeInterrupted) as stop:
        size("model:gpt-2", 1e9, days=10, clusters=["dgx-h100", "dgx-a100"],
             on_machine=lambda machine: names.append(machine.cluster))  # fmt: skip
    answer = stop.value.answer
    assert names == [each.cluster for each in answer.machines] == ["dgx-h100"]
    assert answer.unfinished == ("dgx-a100",)
    assert "interrupted before dgx-a100" in answer.summary()
    with pytest.raises(KeyboardInterrupt):
        size("model:gpt-2", 1e9, days=10, clusters=["dgx-a100"])


def test_a_scaled_layout_is_the_simulated_one() -> None:
    model = ModelShape("model:gpt-2,layers=4,sequence=256", 50_000_000, 4, 768, 256, 0)
    like = Layout(2, 2, 1, 1, 1, None, "zero1", None, None, 1, 2, None, "none", "none")
    found = scaled_layout(model, "dgx-h100", 8, 16, like, SimulateOptions())
    assert found is not None
    plan_of = Plan(dp=4, tp=2, batch=4, micro_batch=2, sharding="zero1")
    result = simulate(model.text, plan_of, cluster=load_cluster("dgx-h100", gpus=8), compare=False)
    assert found.step.step_ps == result.step_time_ps
    assert scaled_layout(model, "dgx-h100", 8, 12, like, SimulateOptions()) is None  # 4 replicas of 2 do not divide 12


def test_a_price_file_without_a_gpu_leaves_its_machine_without_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("date: 2026-11-20\nusd_per_gpu_hour: {h100-sxm: 2}\n")
    machines = size(
        "model:gpt-2,layers=2,sequence=128", "1M", days=1, price=path, clusters=["dgx-a100", "dgx-h100"], max_gpus=1,
        global_batch=4,
    ).machines  # fmt: skip
    assert [each.cluster for each in machines] == ["dgx-h100", "dgx-a100"]
    assert "no price for 'a100-80gb'" in machines[1].problem


@pytest.mark.parametrize("model", ["vgg13-h100-b128", "model:resnet50"])
def test_refused_models(model: str) -> None:
    with pytest.raises(InputError, match="has no layers and tokens"):
        size(model, "1B", days=1)


def test_the_machine_types_are_data_centre_presets() -> None:
    types = sizing.machine_types()
    assert {"dgx-a100", "dgx-h100", "hgx-b200", "mi300x-node"} <= set(types)
    assert not {"rtx4090-pcie", "eidola", "astra3-generic", "dgx1-v100"} & set(types)
