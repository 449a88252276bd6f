"""Steps as task graphs take the time of the answer: the sum of their kernels and the exposed CPU time."""

import pytest

import trine
from trine.inference.answer_steps import answer_steps, simulated_steps
from trine.inference.deployment import resolve, step_timer
from trine.inference.job import ServingJob, ServingLayout, Speculation
from trine.inference.step_graph import step_kernels
from trine.inference.steps import COMMUNICATION, CPU

JOBS = {
    "dense": {"model": "llama-3-8b", "layout": ServingLayout(tp=2), "engine": "vllm"},
    "one GPU": {"model": "llama-3-8b", "layout": ServingLayout(), "engine": "sglang"},
    "exposed CPU": {"model": "llama-3-8b", "layout": ServingLayout(tp=2), "engine": "vllm", "engine_version": "0.12"},
    "experts": {"model": "gpt-oss-120b", "layout": ServingLayout(tp=4), "engine": "trtllm"},
    "latent": {"model": "deepseek-v3", "layout": ServingLayout(attention_dp=8, ep=8), "engine": "sglang"},
    "pipeline": {"model": "llama-3-70b", "layout": ServingLayout(tp=2, pp=2), "engine": "vllm"},
    "drafts": {
        "model": "deepseek-v3", "layout": ServingLayout(tp=8), "engine": "vllm",
        "speculation": Speculation(drafts=3, acceptance=0.7),
    },
}  # fmt: skip


def job_of(name: str, **settings) -> ServingJob:
    load = {"cluster": "hgx-h200", "input_tokens": 3000, "output_tokens": 200, "concurrency": 16}
    return ServingJob(**{**load, **JOBS[name], **settings})


@pytest.mark.parametrize("name", JOBS)
def test_the_last_task_ends_with_the_step(name):
    job = job_of(name)
    timer, simulated = step_timer(resolve(job)), simulated_steps(job, 16)
    steps = answer_steps(job, 16)
    assert len(steps) == (2 if job.engine == "sglang" else 3)
    for row, each in enumerate(steps):
        tasks = simulated.graph.rank == row
        end_us = simulated.records.end_ps[tasks].max() / 1e6
        assert end_us == pytest.approx(timer.time(each.step).us, abs=tasks.sum() * 1e-6)


@pytest.mark.parametrize("name", JOBS)
def test_kernels_add_up_to_each_part(name):
    job = job_of(name)
    timer = step_timer(resolve(job))
    for each in answer_steps(job, 16):
        kernels = step_kernels(timer, each.step)
        for part, us in timer.time(each.step).parts.items():
            assert sum(kernel.us for kernel in kernels if kernel.part == part) == pytest.approx(us, rel=1e-9), part


def test_a_decode_step_of_batch_one_is_its_kernels_and_cpu_gaps():
    job = job_of("dense", concurrency=None, batch=1)
    found = trine.infer("llama-3-8b", "hgx-h200", input_tokens=3000, output_tokens=200, batch=1, tp=2, engine="vllm")
    kernels = step_kernels(step_timer(resolve(job)), answer_steps(job, 1)[0].step)
    assert sum(kernel.us for kernel in kernels) * 1e-6 == pytest.approx(found.decode_step_s, rel=1e-12)
    assert found.tpot_s.value == pytest.approx(found.decode_step_s, rel=1e-12)


def test_one_gpu_does_not_communicate_and_exposed_cpu_time_comes_first():
    job = job_of("one GPU")
    kernels = step_kernels(step_timer(resolve(job)), answer_steps(job, 16)[0].step)
    assert not any(kernel.part == COMMUNICATION for kernel in kernels)
    job = job_of("exposed CPU")
    assert step_kernels(step_timer(resolve(job)), answer_steps(job, 16)[0].step)[0].part == CPU


@pytest.mark.parametrize(("phase", "rows"), [("both", 3), ("decode", 1), ("prefill", 1)])
def test_workers_of_one_phase_have_its_steps_alone(phase, rows):
    assert len(answer_steps(job_of("dense", phase=phase), 16)) == rows


def test_a_long_prompt_is_cut_to_the_tokens_of_a_step_beside_the_decodes():
    """vLLM cuts at its budget of 8,192 tokens less 16 decodes; TensorRT-LLM runs prompts whole."""
    job = job_of("dense", input_tokens=20_000)
    assert answer_steps(job, 16)[1].step.tokens == 8192 - 16
    whole = job_of("experts", input_tokens=20_000)
    assert answer_steps(whole, 16)[1].step.tokens == 20_000


def test_a_timeline_names_layers_and_streams(tmp_path):
    found = trine.infer("llama-3-8b", "hgx-h200", input_tokens=300, output_tokens=20, batch=2, tp=2, engine="vllm")
    found.to_perfetto(tmp_path / "steps.perfetto")
    content = (tmp_path / "steps.perfetto").read_bytes()
    for words in (b"decode step of 2 requests", b"step of 300 prompt tokens", b"layer 31: experts", b"communication"):
        assert (words in content) == (words != b"layer 31: experts")
    assert b"layer 31: attention" in content
