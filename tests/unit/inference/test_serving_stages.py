"""Do the stages of a served pipeline share its layers as vLLM does, and sum to the step?"""

from dataclasses import replace

import pytest

import trine
from trine.inference.deployment import resolve, step_timer
from trine.inference.job import ServingJob, ServingLayout
from trine.inference.products import TOKENS
from trine.inference.steps import HEAD, Step, StepTimer
from trine.workload.architecture.blocks import Attention, LinearAttention, Mlp


def timer_of(pp: int) -> StepTimer:
    job = ServingJob(
        model="llama-3-8b", cluster="dgx-h100", input_tokens=1024, output_tokens=128, batch=8,
        layout=ServingLayout(pp=pp),
    )  # fmt: skip
    return step_timer(resolve(job))


def test_stages_sum_to_the_step_and_the_last_has_the_head():
    timer, step = timer_of(5), Step(8, 1000.0)
    time, stages = timer.time(step), timer.stages_us(step)
    assert sum(stages) == pytest.approx(time.us, rel=1e-12)
    layer_us = (time.us - time.parts[HEAD]) / 32
    assert [us / layer_us for us in stages[:-1]] == pytest.approx([6, 6, 7, 7])
    assert stages[-1] == pytest.approx(6 * layer_us + time.parts[HEAD])


def test_a_round_is_bound_by_the_slowest_stage():
    timer, step = timer_of(2), Step(8, 1000.0)
    assert timer.round_us(step) == pytest.approx(2 * timer.stages_us(step)[-1])
    assert timer.round_us(step) > timer.time(step).us
    single = timer_of(1)
    assert single.round_us(step) == single.time(step).us


def test_a_pipeline_costs_bubbles_in_a_closed_loop():
    """Equal GPUs and load: the pipeline's rate is below that of copies on one GPU each, and its latency is longer."""
    common = {"cluster": "dgx-h100", "input_tokens": 1024, "output_tokens": 128, "concurrency": 64}
    single = trine.infer("llama-3-8b", **common | {"concurrency": 32})
    piped = trine.infer("llama-3-8b", pp=2, **common)
    assert piped.tokens_per_s_per_gpu.value < single.tokens_per_s_per_gpu.value
    assert piped.end_to_end_s.value > single.end_to_end_s.value


def test_small_kernels_move_each_activation_once():
    """Of 16 bits: an activation reads two features and writes one; a linear mixer moves the hidden features 4 times,
    twice; norms with residuals read two and write two.
    """
    timer = timer_of(1)
    layer = timer.deployment.model.layers[0]
    hidden, moved = timer.deployment.model.hidden, timer._times.moved_us
    activation = timer.small_us(Mlp(ffn=4096))
    assert activation == pytest.approx([moved(tokens * 3 * 2 * 4096) for tokens in TOKENS])
    mixer = timer.small_us(LinearAttention(key_heads=4, value_heads=8, key_size=64, value_size=64))
    assert mixer == pytest.approx([2 * moved(tokens * 4 * 2 * hidden) for tokens in TOKENS])
    norms = timer.norms_us(layer)
    assert norms == pytest.approx([layer.norms * moved(tokens * 4 * 2 * hidden) for tokens in TOKENS])


def test_rotation_and_norms_of_heads_read_and_write_queries_keys_and_values():
    timer = timer_of(1)
    moved = timer._times.moved_us
    plain = Attention(heads=16, kv_heads=4, head_size=64, norms="none")
    features = (16 + 2 * 4) * 64
    rotated = [moved(tokens * 2 * 2 * features) for tokens in TOKENS]
    assert timer.small_us(plain) == pytest.approx(rotated)
    assert timer.small_us(replace(plain, norms="heads")) == pytest.approx([2 * each for each in rotated])
