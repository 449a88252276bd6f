"""Is the cost of a run the step's, times the steps? Are prices read and refused as documented?"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trine import InputError, Plan, run_cost, simulate
from trine.decide.cost import RunStep, parse_amount, read_price

STEP = RunStep(step_ps=2 * 10**12, ends_ps=(10**12, 4 * 10**12), tokens=1000, num_gpus=4, gpu="h100-sxm", mean_w=2000.0)


def test_closed_form() -> None:
    cost = run_cost(STEP, "43.2M", 2.5)  # 43,200 steps of 2 s: one day
    assert cost.steps == 43_200
    assert (cost.days.value, cost.days.low, cost.days.high) == pytest.approx((1.0, 0.5, 2.0))
    assert cost.gpu_hours.value == pytest.approx(96.0)
    assert cost.usd is not None
    assert cost.usd.value == pytest.approx(240.0)
    assert cost.usd.high == pytest.approx(480.0)
    assert cost.kwh is not None
    assert cost.kwh.value == pytest.approx(48.0)  # 2 kW for a day


def test_a_part_of_a_step_is_a_step() -> None:
    assert run_cost(STEP, 43_200_000 + 10).steps == 43_201


def test_agrees_with_the_result() -> None:
    result = simulate("model:gpt-2,layers=2,sequence=128", Plan(dp=2, batch=2), cluster="dgx-h100", compare=False)
    cost = run_cost(result, 1e9, 1.0)
    assert cost.steps == math.ceil(1e9 / (4 * 128))
    tokens_per_s = result.document()["tokens_per_s"]
    assert cost.days.value == pytest.approx(1e9 / tokens_per_s / 86_400, rel=1e-6)
    assert result.energy is not None
    assert cost.kwh is not None
    assert cost.kwh.value == pytest.approx(result.energy.joules * cost.steps / 3.6e6)
    assert cost.usd is not None
    assert cost.usd.value == pytest.approx(cost.gpu_hours.value)
    assert cost.days.low is not None
    assert cost.days.low < cost.days.value


def test_images_have_no_tokens() -> None:
    with pytest.raises(InputError, match="no training step of tokens"):
        run_cost(simulate("vgg13-h100-b128"), "1T")


@pytest.mark.parametrize(
    ("text", "amount"), [("1.4T", 1.4e12), ("300B", 3e11), ("5 m", 5e6), ("2e12", 2e12), ("1,000", 1000.0), (7, 7.0)]
)
def test_amounts(text: str, amount: float) -> None:
    assert parse_amount(text, "tokens") == pytest.approx(amount)
    assert parse_amount(f"${text}", "budget", "$") == parse_amount(f"{text}$", "budget", "$") == pytest.approx(amount)


@pytest.mark.parametrize("text", ["", "0", "-1T", "1.4X", "T", "nan", "inf", "1e999", "2M$", "1 1"])
def test_wrong_amounts(text: str) -> None:
    with pytest.raises(InputError, match="tokens: must be an amount above 0"):
        parse_amount(text, "tokens")


def test_a_price_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("date: 2026-11-20\nsource: our contract\nusd_per_gpu_hour: {h100-sxm: 2.5, A100-80GB: 1.2}\n")
    price = read_price(path)
    assert (price.of("h100-sxm"), price.of("a100-80gb")) == (2.5, 1.2)
    assert "2026-11-20, our contract" in price.source
    with pytest.raises(InputError, match="no price for 'h200'"):
        price.of("h200")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("usd_per_gpu_hour: {h100-sxm: 2}", "date: prices need their date"),
        ("date: soon\nusd_per_gpu_hour: {h100-sxm: 2}", "date: must be a date such as 2026-11-20"),
        ("date: 2026-11-20", "usd_per_gpu_hour: is missing"),
        ("date: 2026-11-20\nusd_per_gpu_hour: {h100-sxn: 2}", "did you mean 'h100-sxm'"),
        ("date: 2026-11-20\nusd_per_gpu_hour: {h100-sxm: -2}", "must be dollars above 0"),
        ("date: 2026-11-20\nusd_per_gpu_hour: {h100-sxm: 2, H100: 3}", "second price"),
        ("date: 2026-11-20\nusd_per_gpu_hours: {h100-sxm: 2}", "did you mean 'usd_per_gpu_hour'"),
        ("- 1", "must be a mapping"),
    ],
)
def test_refused_price_files(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=r"prices\.yaml") as error:
        read_price(path)
    assert words in str(error.value)


@pytest.mark.parametrize("price", ["cheap", "0", "-1", "nan", "1e9"])
def test_refused_prices(price: str) -> None:
    with pytest.raises(InputError, match="price"):
        read_price(price)
