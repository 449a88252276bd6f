"""Exact identities of serving answers: Little's law, KV bytes by hand, sums of kernels, prefixes, weights."""

import numpy as np
import pytest

from trine.inference.deployment import resolve, step_timer
from trine.inference.expert_times import ExpertLayer
from trine.inference.job import ServingJob, ServingLayout, Speculation
from trine.inference.memory import kv_bytes, kv_bytes_per_token, weights_bytes
from trine.inference.serve import answer
from trine.inference.steps import ATTENTION, COMMUNICATION, CPU, EXPERTS, GEMMS, PromptChunk, Step
from trine.workload import known_models
from trine.workload.architecture.counts import described
from trine.workload.synthesis.model_files import load_model


def job(**changes):
    usual = {
        "model": "llama-3-8b", "cluster": "dgx-h100", "input_tokens": 512, "output_tokens": 256, "precision": "bf16",
    }  # fmt: skip
    if "batch" not in changes:
        usual["concurrency"] = 16
    return ServingJob(**{**usual, **changes})


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"concurrency": 5000}, {"batch": 12}, {"layout": ServingLayout(tp=2, pp=2)}, {"output_tokens": 1}],
    ids=["loop", "queueing", "static", "pipeline", "one token"],
)
def test_tokens_per_second_are_requests_times_tokens_over_latency(engine, changes):
    found = answer(job(engine=engine, **changes))
    rate = found.requests * found.job.output_tokens / found.end_to_end_s.value
    assert found.output_tokens_per_s.value == pytest.approx(rate, rel=1e-12)
    assert found.tokens_per_s_per_gpu.value * found.gpus == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_latency_is_ttft_and_a_tpot_for_each_further_token(engine):
    found = answer(job(engine=engine))
    assert found.end_to_end_s.value == pytest.approx(found.ttft_s.value + 255 * found.tpot_s.value, rel=1e-12)


def _deployment(model, tp=1, kv="bf16", **changes):
    cluster = "hgx-b200"
    return resolve(job(model=model, cluster=cluster, layout=ServingLayout(tp=tp), kv_precision=kv, **changes))


@pytest.mark.parametrize(
    ("model", "tp", "kv", "tokens", "expected"),
    [
        # full attention: 40 layers, keys and values of 5,120 features
        ("llama-2-13b", 1, "bf16", 1000, 1000 * 40 * 2 * 5120 * 2),
        # grouped: 32 layers, 8 KV heads of 128; 4 GPUs have 2 heads each, 16 bits or 8
        ("llama-3-8b", 4, "bf16", 1000, 1000 * 32 * 2 * 2 * 128 * 2),
        ("llama-3-8b", 1, "fp8", 1000, 1000 * 32 * 2 * 8 * 128),
        # fewer KV heads than GPUs: each of 8 GPUs has one of 4 heads of 128, in 48 layers
        ("qwen3-30b-a3b", 8, "bf16", 10, 10 * 48 * 2 * 1 * 128 * 2),
        # sliding window of 128 in every second of 36 layers, 8 KV heads of 64
        ("gpt-oss-120b", 1, "bf16", 1000, (18 * 1000 + 18 * 128) * 2 * 8 * 64 * 2),
        # latent: 61 layers keep 512 + 64 features on every GPU
        ("deepseek-v3", 8, "bf16", 1000, 1000 * 61 * 576 * 2),
        # sparse: the indexer keeps 128 more features in 8 bits
        ("deepseek-v3.2", 8, "bf16", 1000, 1000 * 61 * (576 * 2 + 128)),
        # state-space: 64 layers keep 80 heads x 64 x 128 and 4 tokens of a convolution, whatever the tokens
        ("mamba2-2.7b", 1, "bf16", 1000, 64 * (5120 * 128 + (5120 + 2 * 128) * 4) * 4),
        # linear attention in 36 of 48 layers (32 heads of 128 x 128), 2 KV heads of 256 in the others
        (
            "qwen3-next-80b-a3b", 1, "bf16", 1000,
            1000 * 12 * 2 * 2 * 256 * 2 + 36 * (32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 4) * 4,
        ),
    ],
)  # fmt: skip
def test_kv_bytes_are_those_of_the_formula(model, tp, kv, tokens, expected):
    assert kv_bytes(_deployment(model, tp, kv), tokens) == pytest.approx(expected, rel=1e-12)


def test_bytes_per_token_leave_windows_out():
    assert kv_bytes_per_token(_deployment("gpt-oss-120b")) == 18 * 2 * 8 * 64 * 2
    assert kv_bytes_per_token(_deployment("llama-3-8b")) == 32 * 2 * 8 * 128 * 2


def test_capacity_is_what_the_memory_leaves():
    found = answer(job(memory_fraction=0.8))
    memory = resolve(job()).gpu.memory_bytes
    left = int(0.8 * memory) - found.weights_bytes - found.activations_bytes - (1 << 30)
    assert found.kv_bytes == pytest.approx(left, abs=1)
    assert found.kv_capacity_tokens == found.kv_bytes // (32 * 2 * 8 * 128 * 2)
    assert found.largest_concurrency == found.kv_bytes // (768 * 32 * 2 * 8 * 128 * 2)


def test_a_decode_step_of_one_request_is_the_sum_of_its_kernels_and_of_cpu_gaps():
    deployment = resolve(job(engine="vllm", engine_version="0.12"))
    timer = step_timer(deployment)
    times = timer._times
    products = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    gemms = 32 * sum(times.product_us(n, k, "bfloat16", 2.0)[0] for n, k in products)
    norms = 32 * 2 * times.moved_us(4 * 2 * 4096)
    rotation, activation = 32 * times.moved_us(2 * 2 * (32 + 16) * 128), 32 * times.moved_us(3 * 2 * 14336)
    small = norms + rotation + activation + times.moved_us(2 * 2 * 4096)
    attention = 32 * timer._attention.decode_us(timer_heads(), 1, 700.0)
    logits = times.product_us(128256, 4096, "bfloat16", 2.0)[0]
    head = logits + 3 * times.moved_us(2 * 4 * 128256) + 8 * times.moved_us(1)
    step = timer.time(Step(1, 700.0))
    assert step.parts[GEMMS] == pytest.approx(gemms, rel=1e-12)
    assert step.parts[ATTENTION] == pytest.approx(attention, rel=1e-12)
    assert step.parts[CPU] == 180 + 29
    assert step.us == pytest.approx(gemms + small + attention + head + 180 + 29, rel=1e-12)


def timer_heads():
    from trine.inference.attention_times import HeadShapes

    return HeadShapes(32, 8, 128, 128)


@pytest.mark.parametrize("model", ["llama-3-8b", "gpt-oss-20b", "deepseek-v2-lite"])
def test_one_gpu_does_not_communicate(model):
    found = answer(job(model=model, precision=""))
    assert [part.seconds for part in found.decode_parts if part.name == COMMUNICATION] == [0.0]
    assert [part.seconds for part in found.prefill_parts if part.name == COMMUNICATION] == [0.0]


def test_a_dense_model_has_no_time_of_experts():
    found = answer(job())
    assert [part.seconds for part in found.decode_parts if part.name == EXPERTS] == [0.0]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_prefix_of_the_whole_prompt_leaves_the_last_token(engine):
    deployment = resolve(job(engine=engine))
    whole = answer(job(engine=engine, prefix_tokens=512, concurrency=1))
    all_but_one = answer(job(engine=engine, prefix_tokens=511, concurrency=1))
    last = step_timer(deployment).time(Step(chunks=(PromptChunk(1, 511),)))
    assert whole.prefill_s == pytest.approx(last.us * 1e-6, rel=1e-12)
    assert whole.ttft_s == all_but_one.ttft_s


def test_weights_of_one_gpu_are_all_parameters_in_16_bits():
    checked = 0
    for name in known_models():
        model = described(load_model(name))
        if model is None or not model.head or any(layer.cross is not None for layer in model.layers):
            continue
        learned = 2 * (model.positions + model.token_types) * model.hidden  # served models look positions up
        size = weights_bytes(resolve(job(model=name)))
        assert size == pytest.approx(2 * model.num_parameters - learned, rel=4e-4), name
        checked += 1
    assert checked > 50


def test_experts_in_mxfp4_take_17_of_64_of_the_bytes():
    halves, mxfp4 = (weights_bytes(_deployment("gpt-oss-120b", precision=name)) for name in ("bf16", "mxfp4"))
    experts = 36 * 128 * 3 * 2880 * 2880
    assert halves - mxfp4 == pytest.approx(experts * (2 - 4.25 / 8), rel=1e-9)


def test_touched_experts_are_counted_like_balls_in_boxes():
    layer = ExpertLayer(experts=4, top_k=1, hidden=64, ffn=64, gated=True, ways_cut=1, ways_divided=1)
    # of 2 tokens on 4 experts, 4 of 16 outcomes hit one expert, 12 hit two: 1.75 on average
    assert layer.touched(np.array([1.0, 2.0])) == pytest.approx([1.0, 1.75])
    every = ExpertLayer(experts=8, top_k=8, hidden=64, ffn=64, gated=True, ways_cut=1, ways_divided=2)
    assert every.touched(np.array([1.0])) == pytest.approx([4.0])


def test_accepted_drafts_make_the_tokens_of_a_step():
    assert Speculation(drafts=1, acceptance=0.5).tokens_per_step == 1.5
    assert Speculation(drafts=3, acceptance=1.0).tokens_per_step == 4.0
    assert Speculation(drafts=2, acceptance=0.5).tokens_per_step == 1.75


def test_a_static_batch_is_its_prompts_and_its_decode_steps():
    timer = step_timer(resolve(job(engine="sglang")))
    found = answer(job(engine="sglang", batch=20))
    chunk = PromptChunk(512, 0)
    prompts = timer.time(Step(chunks=(chunk,) * 16)).us + timer.time(Step(chunks=(chunk,) * 4)).us
    assert found.ttft_s.value == pytest.approx(prompts * 1e-6, rel=1e-12)
    step = timer.time(Step(20, 512 + 128))
    assert found.tpot_s.value == pytest.approx(step.us * 1e-6, rel=1e-12)
