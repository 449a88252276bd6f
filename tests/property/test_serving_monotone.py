"""More load, longer requests or slower machines never make a served model faster."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trine
from trine.inference.deployment import resolve, step_timer
from trine.inference.job import ServingJob, ServingLayout
from trine.inference.products import TOKENS
from trine.inference.steps import PromptChunk, Step

MODELS = ("llama-3-8b", "gpt-oss-20b", "deepseek-v2-lite", "qwen3-next-80b-a3b")


def ask(model, **changes):
    usual = {"input_tokens": 600, "output_tokens": 100, "concurrency": 8, "tp": 2}
    return trine.infer(model, "hgx-h200", **{**usual, **changes})


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_throughput_grows_with_the_requests_in_flight(model, engine):
    rates = [ask(model, engine=engine, concurrency=2**i).output_tokens_per_s.value for i in range(8)]
    assert all(b > a for a, b in pairwise(rates))


@pytest.mark.parametrize("model", MODELS)
def test_longer_prompts_take_longer(model):
    found = [ask(model, input_tokens=size) for size in (128, 512, 2048, 8192)]
    assert all(b.ttft_s.value > a.ttft_s.value for a, b in pairwise(found))
    assert all(b.end_to_end_s.value > a.end_to_end_s.value for a, b in pairwise(found))
    assert all(b.largest_concurrency <= a.largest_concurrency for a, b in pairwise(found))


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v2-lite"])
def test_a_cache_of_8_bits_holds_twice_the_tokens(model):
    wide, narrow = ask(model, kv_precision="bf16"), ask(model, kv_precision="fp8")
    assert narrow.kv_capacity_tokens == pytest.approx(2 * wide.kv_capacity_tokens, abs=1)


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-32b"])
def test_cached_prefixes_save_time(model):
    found = [ask(model, prefix_tokens=size).ttft_s.value for size in (0, 200, 400, 600)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


def timer(model):
    job = ServingJob(
        model=model, cluster="hgx-h200", input_tokens=1, output_tokens=1, concurrency=1, layout=ServingLayout(tp=2)
    )  # fmt: skip
    return step_timer(resolve(job))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 400), st.integers(1, 60_000), st.integers(1, 8000), st.integers(0, 8000))
def test_steps_add_up_and_never_lose_time(model, decodes, context, new, cached):
    steps = timer(model)
    alone = steps.time(Step(decodes, float(context)))
    more = steps.time(Step(decodes, 1.5 * context))
    assert more.us >= alone.us * (1 - 1e-9)
    assert alone.us == pytest.approx(sum(alone.parts.values()))
    mixed = steps.time(Step(decodes, float(context), (PromptChunk(new, cached),)))
    assert mixed.us > alone.us * 0.97  # kernels of more tokens may be tuned better
    assert np.isfinite(mixed.us)


@pytest.mark.parametrize("model", MODELS)
def test_curves_over_tokens_are_positive_and_grow_from_few_to_many(model):
    steps = timer(model)
    total = [steps.time(Step(int(tokens), 1.0)).us for tokens in TOKENS[:-3]]
    assert min(total) > 0
    assert total[-1] > 5 * total[0]
