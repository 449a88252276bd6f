"""Statistics of trine validate serving against small cases by hand, and its stored report."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from trine.errors import InputError
from trine.inference.job import ServingJob
from trine.inference.ranges import Estimate
from validation import serving_predictions
from validation.serving import (
    SAMPLE_ROWS,
    ServingValidation,
    judged_rows,
    sampled_rows,
    validate_serving,
)
from validation.serving_predictions import ServingPrediction, predict
from validation.serving_quantities import (
    QUANTITIES,
    TPOT,
    ComparedRun,
    ComparedValue,
    ServingErrors,
    compared_values,
)
from validation.serving_ranking import RankedConfiguration, ranked_groups, regrets
from validation.serving_rows import ServingRow, published_errors
from validation.serving_statistics import ServingStatistics, calibrated_errors

QUANTITY = {quantity.key: quantity for quantity in QUANTITIES}


def row(name: str = "row", **values: object) -> ServingRow:
    """A small aggregated row: TTFT 100 ms, TPOT 10 ms, 101 output tokens, 4 requests on 2 GPUs."""
    plain = ServingRow(
        name=name, source="aiconfigurator", kind="aggregated", file="2026-04-06.csv", measured="", engine="vllm",
        version="0.12.0", model="Qwen/Qwen3-32B", gpu="h100_sxm", precision="", gemm="", isl=1024, osl=101,
        concurrency=4, batch=None, tp=2, pp=1, attention_dp=1, ep=1, decode_workers=None, ttft_ms=100.0, tpot_ms=10.0,
        tokens_per_s=None, is_per_gpu=False,
    )  # fmt: skip
    return replace(plain, **values)  # type: ignore[arg-type]


def estimate(value: float, width: float = 1.25) -> Estimate:
    return Estimate(value, value / width, value * width)


def run(tpot_ms: float, measured: ServingRow, ttft_ms: float = 100.0) -> ComparedRun:
    """A row with a predicted TPOT and TTFT; the other quantities follow."""
    tpot_s, ttft_s = tpot_ms / 1e3, ttft_ms / 1e3
    end_to_end_s = ttft_s + tpot_s * (measured.osl - 1)
    rate = (measured.concurrency or measured.batch or 0) * measured.osl / end_to_end_s
    prediction = ServingPrediction(
        row=measured.name, ttft_s=estimate(ttft_s), tpot_s=estimate(tpot_s), end_to_end_s=estimate(end_to_end_s),
        output_tokens_per_s=estimate(rate),
    )  # fmt: skip
    return ComparedRun(row=measured, prediction=prediction)


def value(ratio: float, name: str = "row", width: float = 1.25, **values: object) -> ComparedValue:
    return ComparedValue(row(name, **values), 1.0, estimate(ratio, width))


@dataclass(frozen=True)
class Served:
    """The part of an answer that is compared."""

    ttft_s: Estimate
    tpot_s: Estimate
    end_to_end_s: Estimate
    output_tokens_per_s: Estimate
    prefill_s: float
    queues: bool = False


def served(job: ServingJob) -> Served:
    """A made-up answer: a step of 10 ms and 0.1 ms for each request, and a range of 25 %."""
    load = job.concurrency or job.batch or 0
    tpot_s, ttft_s = 0.010 + 0.0001 * load, 0.1 + 1e-5 * job.input_tokens
    end_to_end_s = ttft_s + tpot_s * (job.output_tokens - 1)
    rate = load * job.output_tokens / end_to_end_s
    return Served(estimate(ttft_s), estimate(tpot_s), estimate(end_to_end_s), estimate(rate), ttft_s)


# -- statistics --------------------------------------------------------------------------------------------------------


def test_scale_and_shape_stand_apart() -> None:
    errors = ServingErrors.of_values([value(1.1), value(1.2), value(1.32)])
    assert errors.count == 3
    assert errors.scale == pytest.approx(1.2)
    assert errors.median == pytest.approx(0.2)
    # 1.1 and 1.32 differ from 1.2 by 8.3 % and 10 %: the median of 0, 8.3 % and 10 % is left
    assert errors.shape == pytest.approx(0.1 / 1.2)
    # The likely ranges 0.88 to 1.375, 0.96 to 1.5 and 1.056 to 1.65 hold 1 twice
    assert errors.inside == pytest.approx(2 / 3)
    assert ServingErrors.of_values([value(1.1, width=1.0)]).inside is None


def test_a_scale_of_each_stack_leaves_no_error_of_shape() -> None:
    values = [value(0.5), value(0.5), value(2.0, model="openai/gpt-oss-120b"), value(2.0, model="openai/gpt-oss-120b")]
    errors = ServingErrors.of_values(values)
    assert errors.scale == pytest.approx(1.25)
    assert errors.shape == pytest.approx(0.0)
    assert errors.median == pytest.approx(0.5)


def test_each_stack_has_one_vote() -> None:
    llama = {"model": "meta-llama/Llama-3.1-8B-Instruct"}
    runs = [run(11.0, row(f"{n}")) for n in range(9)] + [run(13.0, row("other", **llama))]
    validation = ServingStatistics(tuple(runs))
    assert validation.errors()[0][1].median == pytest.approx(0.1)
    assert validation.median_by_stack(TPOT) == pytest.approx((0.1 + 0.3) / 2)
    assert validation.inside_by_stack(TPOT) == pytest.approx((1 + 0) / 2)
    assert [name for name, _ in validation.grouped(TPOT, "model")] == ["llama-3-8b", "qwen3-32b"]


def test_three_rows_of_a_stack_calibrate_the_others() -> None:
    # Ordered by concurrency; the first, fourth and last give 1 / 2.0, 1 / 2.0 and 1 / 1.6: the factor is 0.5.
    values = [value(ratio, concurrency=n) for n, ratio in enumerate([2.0, 2.2, 1.8, 2.0, 2.4, 1.6], 1)]
    assert calibrated_errors(values[::-1]) == pytest.approx([0.1, -0.1, 0.2])
    assert calibrated_errors(values[:5]) == []


def test_quantities_of_a_closed_loop() -> None:
    compared = run(11.0, row(), ttft_ms=150.0)
    measured = {key: compared.value(QUANTITY[key]) for key in ("tpot", "end_to_end", "ttft")}
    errors = {key: each and round(each.error, 6) for key, each in measured.items()}
    assert errors == {"tpot": 0.1, "end_to_end": round(1.25 / 1.1 - 1, 6), "ttft": 0.5}
    assert compared.value(QUANTITY["static_tokens_per_s"]) is None
    assert compared.value(QUANTITY["decode_tpot"]) is None


def test_throughput_per_gpu_counts_all_gpus() -> None:
    one = {"kind": "static", "concurrency": None, "batch": 4, "tokens_per_s": 100.0}
    per_gpu = run(10.0, row(is_per_gpu=True, **one)).value(QUANTITY["static_tokens_per_s"])
    in_all = run(10.0, row(is_per_gpu=False, **one)).value(QUANTITY["static_tokens_per_s"])
    assert per_gpu is not None
    assert in_all is not None
    assert (per_gpu.measured, in_all.measured) == (200.0, 100.0)
    assert per_gpu.predicted.value == pytest.approx(4 * 101 / 1.1)


def test_the_lowest_concurrency_of_each_configuration_judges_the_ttft() -> None:
    runs = [run(10.0, row(f"{tp}-{load}", tp=tp, concurrency=load)) for tp in (1, 2) for load in (8, 4, 16)]
    names = [each.row.name for each in compared_values(QUANTITY["ttft_lowest"], runs)]
    assert names == ["1-4", "2-4"]
    assert len(compared_values(QUANTITY["ttft"], runs)) == 6


def test_the_regret_of_a_choice() -> None:
    # tokens/s per GPU measured and predicted, TPOT measured and predicted in ms
    table = [(100, 100, 8, 8), (200, 150, 18, 15), (180, 190, 19, 22), (400, 390, 45, 40), (390, 395, 50, 48)]
    configurations = [RankedConfiguration(m, p, mt / 1e3, pt / 1e3) for m, p, mt, pt in table]
    # 10 and 20 ms: the best is chosen. 30 ms: the third is predicted to be best: 180 of 200. 50 ms: 390 of 400.
    assert regrets(configurations) == pytest.approx({0.010: 0.0, 0.020: 0.0, 0.030: 0.1, 0.050: 0.025})


def test_a_choice_that_misses_the_limit_loses_throughput() -> None:
    configurations = [RankedConfiguration(100, 100, 0.010, 0.011), RankedConfiguration(120, 130, 0.015, 0.009)]
    # Only the second is predicted to meet 10 ms; measured at 15 ms, it counts as 80 tokens/s against 100.
    assert regrets(configurations)[0.010] == pytest.approx(0.2)


def test_configurations_of_a_model_are_ranked() -> None:
    runs = [run(10.0 + n, row(f"{n}", concurrency=n, tpot_ms=10.0 + n)) for n in range(1, 5)]
    swapped = [run(10.0 - n, row(f"s{n}", concurrency=4, tpot_ms=10.0 + n, isl=512)) for n in range(1, 5)]
    low, high = ranked_groups([*runs, *swapped], least=4)
    assert (low.isl, low.spearman) == (512, pytest.approx(-1.0))
    assert (high.isl, high.spearman, high.count) == (1024, pytest.approx(1.0), 4)
    assert ranked_groups(runs) == []


# -- predictions and reports -------------------------------------------------------------------------------------------


def test_a_prediction_survives_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_predictions, "answer", served)
    prediction = predict(row())
    assert prediction.tpot_s == Estimate(0.0104, 0.00832, 0.013)
    assert prediction.prefill_s == Estimate(0.10922, 0.10922, 0.10922)
    assert ServingPrediction.read(json.loads(json.dumps(prediction.record()))) == prediction


def test_a_row_without_an_answer_states_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(job: ServingJob) -> Served:
        raise InputError("no room for one request", field="memory")

    monkeypatch.setattr(serving_predictions, "answer", refuse)
    prediction = predict(row())
    assert prediction.why_not.endswith("no room for one request")
    validation = ServingValidation(runs=(ComparedRun(row=row(), prediction=prediction), run(10.0, row("answered"))))
    assert [(each.kind, each.rows, each.answered) for each in validation.statistics.coverage()] == [
        ("aggregated", 2, 1), ("all with stated workers", 2, 1), ("all", 2, 1),
    ]  # fmt: skip
    assert "no room for one request" in validation.details()
    assert validation.document()["not_answered"] == [{"why": prediction.why_not, "num_rows": 1}]


def test_all_kinds_of_rows_reach_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_predictions, "answer", served)
    seen: list[tuple[int, int]] = []
    validation = validate_serving(sample=True, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert len(seen) == len(validation.runs) == len(sampled_rows(judged_rows()[0]))
    assert [quantity for quantity, _ in validation.statistics.errors()] == list(QUANTITIES)
    by_stack: dict[tuple[str, str], int] = {}
    for each in validation.runs:
        by_stack[each.row.kind, each.row.stack] = by_stack.get((each.row.kind, each.row.stack), 0) + 1
    assert max(by_stack.values()) == SAMPLE_ROWS
    coverage = {each.kind: each for each in validation.statistics.coverage()}
    assert coverage["disaggregated, no workers"].answered == 0
    assert coverage["all with stated workers"].share == 1.0
    assert validation.headline.startswith("sample: ")
    for part in ("blind", "TPOT by stack", "published errors", "excluded rows: 573", "worst TPOT", "not answered"):
        assert any(line.startswith(part) for line in validation.details().splitlines()), part


def test_published_errors_are_those_of_the_research() -> None:
    errors = {(each["tool"], each["rows"]): (each["tpot"], each["ttft"]) for each in published_errors()}
    assert errors["AISimulate 0.12", 728] == (0.284, 0.767)
    assert errors["aiconfigurator", 728] == (0.312, 0.517)
    assert errors["LLMServingSim", 32] == (0.218, 0.725)
    assert errors["BLIS evolved", 12] == (0.232, 0.240)


def test_the_headline_counts_the_runs_that_fit_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_predictions, "answer", served)
    unstated = row("unstated", kind="disaggregated")
    validation = ServingValidation(runs=(run(11.0, row()), ComparedRun(row=unstated, prediction=predict(unstated))))
    assert validation.headline.startswith(
        "1 of 1 published runs answered; 1 more do not state their workers; TPOT off by"
    )


def test_lengths_that_vary_count_as_their_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_predictions, "answer", served)
    prediction = predict(row())
    # 922 of 1024 input tokens, 0.1 s and 10 us each; 10.4 ms for each of 100 tokens after the first, not of 90
    assert prediction.ttft_s == Estimate(0.10922, 0.087376, 0.136525)
    assert prediction.end_to_end_s is not None
    assert prediction.end_to_end_s.value == pytest.approx(0.10922 + 100 * 0.0104)
    assert prediction.end_to_end_s.high / prediction.end_to_end_s.value == pytest.approx(1.25, rel=1e-5)
