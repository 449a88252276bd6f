"""Throughput that NVIDIA published for TensorRT-LLM (tests/data/serving), against the prediction."""

import csv
from pathlib import Path
from statistics import median

import pytest

import trine

TABLE = Path(__file__).parents[1] / "data" / "serving" / "trtllm.csv"
ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
MODELS = {
    "Llama 3.3 70B": "llama-3-70b", "Llama 3.1 8B": "llama-3-8b", "LLaMA 7B": "llama-2-7b", "LLaMA 70B": "llama-2-70b",
}  # fmt: skip
CLUSTERS = {"h100-sxm": "dgx-h100", "h200": "hgx-h200", "b200": "hgx-b200"}
PRECISIONS = {"fp8": "fp8", "fp4": "nvfp4"}


def predicted(row, load, version):
    return trine.infer(
        MODELS[row["model"]], CLUSTERS[row["gpu"]], tp=int(row["tp"]), precision=PRECISIONS[row["precision"]],
        input_tokens=int(row["isl"]), output_tokens=int(row["osl"]), engine=f"trtllm:{version}", **load,
    )  # fmt: skip


def saturated_errors(rows):
    errors = []
    for row in rows:
        fitting = predicted(row, {"concurrency": 1}, "1.0").largest_concurrency
        answer = predicted(row, {"concurrency": min(fitting, 4096)}, "1.0")
        errors.append(abs(answer.output_tokens_per_s.value / float(row["value"]) - 1))
    return errors


SATURATED = [row for row in ROWS if row["kind"] == "saturated"]


def test_saturated_throughput_of_a_few_rows_is_within_12_percent():
    assert median(saturated_errors(SATURATED[::10])) < 0.12


@pytest.mark.slow
def test_saturated_throughput_is_within_12_percent_of_the_median_row():
    errors = saturated_errors(SATURATED)
    assert len(errors) == 50
    assert median(errors) < 0.12
    assert sum(error < 0.3 for error in errors) >= 45


def test_static_batches_of_llama_7b_are_within_12_percent_of_the_median_row():
    rows = [row for row in ROWS if row["kind"] == "static" and row["model"] == "LLaMA 7B"]
    errors = []
    for row in rows:
        answer = predicted(row, {"batch": int(row["batch"])}, "0.6.1")
        errors.append(answer.tokens_per_s_per_gpu.value / float(row["value"]) - 1)
    assert len(errors) == 4
    assert median(map(abs, errors)) < 0.12


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_all_reduces_of_the_engine_are_as_measured_on_h100(gpus):
    from trine.cluster import load_cluster
    from trine.inference.communication import Communication, all_reduce_kernels
    from trine.inference.engines import load_engine

    times = Communication(load_cluster("dgx-h100"), load_engine("trtllm"))
    for size, measured_us in all_reduce_kernels().kernels["trtllm"].times[gpus].items():
        assert times.all_reduce_us(size, gpus) <= measured_us * (1 + 1e-9)  # NCCL takes over where it is faster
        assert times.all_reduce_us(size, gpus) > 0.6 * measured_us
