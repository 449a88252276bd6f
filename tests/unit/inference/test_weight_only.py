"""Weights in fewer bits than their arithmetic: bytes by hand, published kernels, and properties of the times."""

import numpy as np
import pytest

import trine
from trine.cluster import load_gpu
from trine.common.evidence import INTERPOLATED, MODELLED, TRANSFERRED
from trine.inference.precision import served_precisions
from trine.inference.products import TOKENS, GpuTimes, at_tokens
from trine.inference.weight_only import WeightOnlyProduct, weight_only_rates

SIZE = 8192
#: Tokens -> TFLOP/s of Marlin on H100, 8192 x 8192, in 4 and 8 bits (inclusionAI/humming#2, 2026-03-30).
MARLIN = {1: (5.81, 4.29), 4: (23.14, 17.22), 8: (46.36, 34.1), 16: (90.52, 67.18)}


def times_of(bits, engine="vllm", gpu="h100-sxm"):
    return GpuTimes(load_gpu(gpu), engine).product_us(SIZE, SIZE, "bfloat16", bits / 8)


@pytest.mark.parametrize("tokens", MARLIN)
@pytest.mark.parametrize(("index", "bits"), [(0, 4), (1, 8)])
def test_small_batches_take_the_published_time_of_marlin(tokens, index, bits):
    measured_us = 2 * tokens * SIZE * SIZE / MARLIN[tokens][index] / 1e6
    assert at_tokens(tokens, times_of(bits)) == pytest.approx(measured_us, rel=0.06)


def test_large_batches_take_the_16_bit_time_over_the_share_of_the_kernel():
    half = times_of(16)
    ratio = (times_of(4) / half)[TOKENS >= 8192]
    assert ratio == pytest.approx(np.full(ratio.shape, 1 / 0.9), rel=0.06)
    slower = (times_of(4, "sglang") / half)[TOKENS >= 8192]
    assert slower == pytest.approx(np.full(ratio.shape, 1 / 0.62), rel=0.06)


def test_fewer_bits_are_faster_for_few_tokens_and_times_grow_with_tokens():
    four, eight, half = times_of(4), times_of(8), times_of(16)
    assert (four < eight)[TOKENS <= 64].all()
    assert (eight < half)[TOKENS <= 64].all()
    assert (four > half)[TOKENS >= 2048].all()


def test_the_time_is_the_root_of_the_squares_of_reading_and_multiplying():
    rates = weight_only_rates()
    product = WeightOnlyProduct(np.array([30.0]), np.array([100.0]), np.array([4e9]), 6)
    reading_us = (1.17 + 1.03) / 2 * 30 + rates.start_us  # 6 bits are between 4 and 8
    multiplying_us = 100 / 0.95
    assert product.us("ampere", "vllm") == pytest.approx((reading_us**2 + multiplying_us**2) ** 0.5)
    assert rates.multiplying_share("cdna3", "vllm") == rates.multiplying["other"]["all"]


def test_weights_have_their_bytes_and_the_answer_says_that_gemms_are_modelled():
    ask = {"tp": 4, "input_tokens": 512, "output_tokens": 64, "concurrency": 8}
    half = trine.infer("llama-3-70b", "dgx-h100", **ask)
    four = trine.infer("llama-3-70b", "dgx-h100", precision="int4", **ask)
    layers = 80 * (8192 * (8192 * 2 + 1024 * 2) + 3 * 8192 * 28672) / 4
    assert half.weights_bytes - four.weights_bytes == pytest.approx(layers * (16 - 4.16) / 8)
    levels = {each.what: each.kind for each in four.evidence}
    assert levels["GEMMs"] == MODELLED
    assert {each.what: each.kind for each in half.evidence}["GEMMs"] == INTERPOLATED
    assert four.tpot_s.high / four.tpot_s.low > 1.5 > half.tpot_s.high / half.tpot_s.low
    assert four.tpot_s.value < half.tpot_s.value


def test_a_gpu_without_the_arithmetic_widens_the_weights():
    fp4 = served_precisions()["nvfp4"]
    assert fp4.on(load_gpu("b200")) is fp4
    hopper = fp4.on(load_gpu("h100-sxm"))
    assert (hopper.products, hopper.casts, hopper.weight_bits, hopper.kernels) == ("bfloat16", 0, 4.5, "int4")
    ask = {"tp": 4, "input_tokens": 512, "output_tokens": 64, "concurrency": 8}
    ampere = trine.infer("llama-3-70b", "dgx-a100", precision="fp8", **ask)
    assert {each.what: each.kind for each in ampere.evidence}["GEMMs"] == MODELLED


def test_experts_in_integers_have_measured_kernels_and_fp8_ones_are_faster_than_16_bits():
    ask = {"tp": 4, "input_tokens": 512, "output_tokens": 64, "concurrency": 64}
    steps = {
        name: trine.infer("qwen3-235b-a22b", "hgx-h200", precision=name, **ask).decode_step_s
        for name in ("bf16", "fp8", "int4")
    }
    assert steps["int4"] < steps["fp8"] < steps["bf16"]


def test_experts_of_one_measured_shape_are_transferred_to_others():
    ask = {"tp": 8, "input_tokens": 64, "output_tokens": 8, "concurrency": 1}
    found = {
        (model, precision): {
            each.what: each.kind for each in trine.infer(model, "hgx-h200", precision=precision, **ask).evidence
        }["experts"]
        for model, precision in (("kimi-k2.5", ""), ("qwen3-235b-a22b", "int4"), ("qwen3-235b-a22b", "fp8"))
    }
    assert list(found.values()) == [INTERPOLATED, TRANSFERRED, INTERPOLATED]


def test_a_published_time_of_a_long_prompt_is_inside_the_likely_range():
    # Qwen3-14B-AWQ, A100 80 GB, vLLM 0.9.1, 16,000 tokens, one request: mean TTFT 3.35 s (vllm-project/vllm#20469).
    answer = trine.infer(
        "qwen3-14b", "dgx-a100", precision="int4", engine="vllm:0.9", input_tokens=16000, output_tokens=200,
        concurrency=1,
    )  # fmt: skip
    assert answer.ttft_s.low < 3.35 < answer.ttft_s.high
    assert answer.ttft_s.value == pytest.approx(3.35, rel=0.2)
