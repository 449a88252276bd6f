"""Answers of trine.infer: refusals in one line, queueing, phases, precisions, texts and JSON."""

import json
import re

import pytest

import trine
from trine.common.units import format_bytes
from trine.errors import InputError
from trine.inference.answer import ServingAnswer
from trine.inference.job import ServingJob, ServingLayout, Speculation
from trine.inference.limits import NoRoomError
from trine.inference.precision import kv_name, precision_name
from trine.inference.room import nearest_ways


def ask(model="llama-3-8b", cluster="dgx-h100", **changes) -> ServingAnswer:
    usual = {"input_tokens": 512, "output_tokens": 128}
    if "batch" not in changes:
        usual["concurrency"] = 8
    return trine.infer(model, cluster, **{**usual, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 3}, r"tp: 3 ways do not divide the 32 heads"),
        ({"model": "phi-4", "tp": 8}, r"tp: tp 8 and the 10 KV heads do not divide each other"),
        ({"pp": 33}, r"pp: 33 stages are more than the 32 layers"),
        ({"ep": 2, "tp": 2}, r"ep: llama-3-8b has no experts to divide"),
        (
            {"model": "qwen3-30b-a3b", "tp": 4, "ep": 3},
            r"ep: ep 3 does not divide tp x attention dp = 4, .*: with tp 3 or attention dp 3 it does",
        ),
        ({"model": "qwen3-30b-a3b", "attention_dp": 3, "ep": 3}, r"ep: 3 ways do not divide the 128 experts"),
        (
            {"model": "qwen3-30b-a3b", "tp": 2, "ep": 4},
            r"ep: ep 4 does not divide tp x attention dp = 2, .*: with tp 4 or attention dp 4 it does",
        ),
        ({"model": "qwen2.5-7b", "tp": 8}, r"tp: 8 ways do not divide the 28 heads: use tp 4$"),
        ({"engine": "vlm"}, r"engine: unknown engine 'vlm'; did you mean 'vllm'"),
        ({"engine": "tgi-x"}, r"engine: unknown engine 'tgi-x'; known: sglang, trtllm, vllm"),
        ({"engine": "sglang:7"}, r"engine: unknown version '7' of sglang: known are 0.4 to 0.5"),
        ({"precision": "fp9"}, r"precision: unknown precision 'fp9'; did you mean 'fp8'"),
        ({"precision": "mxfp4"}, r"precision: mxfp4 is a precision of experts, and llama-3-8b has none"),
        ({"kv_precision": "fp16"}, r"kv_precision: unknown precision 'fp16'"),
        ({"prefix_tokens": 513}, r"prefix_tokens: 513 tokens are more than the prompt's 512"),
        ({"batch": 4, "concurrency": 4}, r"concurrency: give either a batch or a concurrency"),
        ({"concurrency": None}, r"concurrency: give either a batch or a concurrency"),
        ({"concurrency": 0}, r"concurrency: must be a whole number from 1"),
        ({"input_tokens": 1.5}, r"input_tokens: must be a whole number"),
        ({"phase": "middle"}, r"phase: must be one of both, prefill, decode"),
        ({"phase": "decode", "output_tokens": 1}, r"phase: a decode worker needs two output tokens"),
        ({"memory_fraction": 2}, r"memory_fraction: must be a share from 0.01 to 1, got 2"),
        ({"length_spread": -0.1}, r"length_spread: must be a share from 0 to 0.99, got -0.1"),
        ({"model": "resnet50"}, r"model: resnet50 generates no tokens"),
        ({"model": "t5-large"}, r"model: t5-large has an encoder: trine serves decoders only"),
        ({"model": "llama-3-9b"}, r"unknown model 'llama-3-9b'"),
    ],
)
def test_wrong_questions_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as refused:
        ask(**changes)
    assert "\n" not in str(refused.value)


def test_no_room_for_one_request_names_the_missing_bytes():
    text = r"no room for one request of 640 tokens: each H100-SXM needs [\d.]+ GiB more \(weights take 131.4 GiB"
    with pytest.raises(NoRoomError, match=text) as found:
        ask(model="llama-3-70b")
    assert format_bytes(found.value.missing_bytes) in str(found.value)
    fits = ask(model="llama-3-70b", tp=2)
    one_gpu = 2 * fits.weights_bytes - 80 * (1 << 30)  # two halves hold the weights, less the GPU's memory
    assert found.value.missing_bytes > one_gpu > 0


NO_ROOM = [
    {"model": "llama-3-70b"},
    {"model": "llama-3-405b", "tp": 8},
    {"model": "deepseek-v3", "tp": 8},
    {"model": "llama-3-8b", "input_tokens": 800_000},
]


@pytest.mark.parametrize("question", NO_ROOM)
def test_every_change_that_the_error_names_makes_room(question):
    with pytest.raises(NoRoomError) as found:
        ask(**question)
    changes = re.search(r"; (.*) makes room$", str(found.value))[1]
    for change in re.split(", | or ", changes):
        name, _, value = change.rpartition(" ")
        changed = (
            {"kv_precision": "fp8"}
            if change == "an fp8 KV cache"
            else {name: int(value) if name != "precision" else value}
        )
        assert ask(**{**question, "cluster": "dgx-h100", **changed}).largest_concurrency >= 1


def test_fewer_ways_than_the_error_names_have_no_room():
    with pytest.raises(NoRoomError, match=r"; tp 4 makes room$"):
        ask(input_tokens=2_000_000)
    with pytest.raises(NoRoomError):
        ask(input_tokens=2_000_000, tp=2)


def test_a_model_without_attention_keeps_states():
    answer = ask(model="mamba2-2.7b")
    text = answer.summary()
    assert "KV cache" not in text
    details = answer.details().split("not modelled")[0]
    assert "KV cache" not in details
    assert "states in float32" in details
    assert "(limit: states)" in text
    assert "recurrence: modelled" in text
    both = [each.what for each in ask(model="jamba-v0.1", tp=2).evidence]
    assert {"attention", "recurrence"} <= set(both)


def test_answers_of_one_token_show_the_prompt_in_place_of_a_decode_step():
    text = ask(output_tokens=1).summary()
    assert "one prompt alone" in text
    assert "decode step" not in text
    assert "end to end" not in text  # it is the TTFT


def test_a_prefill_worker_has_one_latency_and_prices_prompt_tokens():
    text = ask(phase="prefill", dollars_per_gpu_hour=2.0).summary()
    assert "prefill worker" in text.splitlines()[0]
    assert "end to end" not in text
    assert "per million prompt tokens" in text
    assert "decode worker" in ask(phase="decode").headline


@pytest.mark.parametrize(
    ("layout", "kinds"),
    [
        ({}, {}),
        ({"attention_dp": 2}, {}),  # replicas of a dense model exchange nothing
        ({"tp": 8}, {"all-reduce": "interpolated"}),
        ({"tp": 16}, {"all-reduce": "modelled"}),  # two nodes: the library, not the measured kernel
        ({"model": "qwen3-30b-a3b", "attention_dp": 8, "ep": 8}, {"exchange": "modelled"}),
    ],
)
def test_evidence_names_the_collectives_of_the_layout(layout, kinds):
    found = {each.what: each.kind for each in ask(**layout).evidence}
    assert {name: found[name] for name in ("all-reduce", "exchange") if name in found} == kinds


def test_requests_beyond_the_limit_queue_and_have_no_ttft():
    few, many = ask(concurrency=8), ask(concurrency=20_000)
    assert not few.queues
    assert few.ttft_refusal == ""
    assert many.queues
    assert many.ttft_s is None
    assert many.running == many.largest_concurrency < 20_000
    assert many.ttft_refusal == f"20,000 requests queue for {many.running:,} places ({many.limit})"
    full = ask(concurrency=many.largest_concurrency)
    assert many.tpot_s == full.tpot_s
    assert many.output_tokens_per_s.value == pytest.approx(full.output_tokens_per_s.value, rel=1e-12)
    assert "the others queue" in many.summary()


def test_the_limit_of_sequences_is_named():
    found = ask(concurrency=64, max_sequences=16)
    assert (found.running, found.limit) == (16, "sequences")


def test_decode_workers_have_no_prefill_in_tpot():
    both, decode = ask(concurrency=32), ask(concurrency=32, phase="decode")
    assert decode.tpot_s.value == pytest.approx(decode.decode_step_s, rel=1e-12)
    assert decode.tpot_s.value < both.tpot_s.value
    assert decode.ttft_s is None
    assert decode.output_tokens_per_s.value == pytest.approx(32 / decode.tpot_s.value, rel=1e-12)


def test_prefill_workers_count_prompt_tokens():
    found = ask(concurrency=1, phase="prefill")
    assert found.tpot_s is None
    assert found.ttft_s.value == pytest.approx(found.prefill_s + 0.015 + 1.1e-6 * found.job.input_tokens, rel=1e-12)
    assert found.input_tokens_per_s_per_gpu.value == pytest.approx(512 / found.ttft_s.value, rel=1e-12)
    assert "prompt tokens/s per GPU" in found.headline


def test_the_stored_precision_is_the_default():
    assert ask(model="gpt-oss-20b").precision == "mxfp4"
    assert ask(model="llama-3-8b").precision == "bf16"
    assert precision_name("", "fp8") == "fp8-block"


def test_the_engine_decides_the_precision_of_the_cache():
    assert ask(precision="fp8", engine="vllm").kv_precision == "bf16"
    assert ask(precision="fp8", engine="trtllm").kv_precision == "fp8"
    assert ask(precision="bf16", engine="trtllm").kv_precision == "bf16"
    assert kv_name("fp8", "model", "bf16") == "fp8"


def test_drafts_that_are_all_accepted_raise_throughput():
    plain, drafted = ask(concurrency=4), ask(concurrency=4, speculation=Speculation(drafts=2, acceptance=1.0))
    assert plain.output_tokens_per_s.value < drafted.output_tokens_per_s.value < 3 * plain.output_tokens_per_s.value
    refused = ask(concurrency=4, speculation=Speculation(drafts=2, acceptance=0.001))
    assert refused.output_tokens_per_s.value < plain.output_tokens_per_s.value


def test_prices_and_energy_follow_the_throughput():
    found = ask(dollars_per_gpu_hour=3.6, tp=2)
    rate = found.output_tokens_per_s.value
    assert found.dollars_per_million_tokens.value == pytest.approx(2 * 3.6 / 3600 / rate * 1e6, rel=1e-12)
    assert found.joules_per_million_tokens.value == pytest.approx(2 * 700 * 0.9 / rate * 1e6, rel=1e-12)
    assert found.dollars_per_million_tokens.low < found.dollars_per_million_tokens.value
    assert ask().dollars_per_million_tokens is None


def test_ranges_surround_their_value():
    found = ask()
    for estimate in (found.ttft_s, found.tpot_s, found.end_to_end_s, found.output_tokens_per_s):
        assert estimate.low < estimate.value < estimate.high


def test_unmeasured_gpus_have_wider_ranges():
    known, foreign = ask(), ask(cluster="mi300x-node")
    assert foreign.tpot_s.high / foreign.tpot_s.value > known.tpot_s.high / known.tpot_s.value
    assert {each.kind for each in foreign.evidence} <= {"assumed", "modelled"}


def test_details_have_parts_evidence_assumptions_and_what_is_left_out():
    found = ask(model="qwen3-30b-a3b", tp=2)
    text = found.details()
    for words in ("decode step", "one prompt alone", "evidence", "assumptions", "not modelled", "KV cache"):
        assert words in text
    for part in found.decode_parts:
        assert part.name in text
    assert sum(part.share for part in found.decode_parts) == pytest.approx(1.0)
    assert sum(part.seconds for part in found.decode_parts) == pytest.approx(found.decode_step_s, rel=1e-12)


def test_json_has_every_number(tmp_path):
    found = ask(dollars_per_gpu_hour=2.0)
    found.to_json(tmp_path / "answer.json")
    content = json.loads((tmp_path / "answer.json").read_text())
    assert content["schema"] == "trine/infer/1"
    assert content["tpot_s"]["value"] == found.tpot_s.value
    assert content["question"]["input_tokens"] == 512
    assert content["largest_concurrency"] == found.largest_concurrency
    assert found.record()["tpot_s"] == found.tpot_s.value


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({"concurrency": 1}, "weights"),
        ({"concurrency": 64, "input_tokens": 8192, "phase": "decode"}, "KV cache"),
        ({"model": "llama-3-8b", "tp": 16, "concurrency": 1}, "communication"),
        ({"model": "qwen3-0.6b", "engine": "vllm:0.2", "concurrency": 1}, "CPU"),
        ({"concurrency": 700, "input_tokens": 16, "output_tokens": 16, "precision": "bf16"}, "compute"),
    ],
)
def test_the_bound_is_what_takes_the_longest(changes, bound):
    assert ask(**changes).bound == bound


def test_a_stated_memory_fraction_replaces_sglangs_reserve():
    usual = ask(engine="sglang")
    memory, weights = 80 << 30, usual.weights_bytes
    reserve = 1610612736 + 8192 * 1572864 + 134217728  # by chunk and TP, as server_args.py
    assert usual.kv_bytes == memory - weights - reserve
    assert ask(engine="sglang", memory_fraction=0.85).kv_bytes == int(0.85 * memory) - weights
    longer = ask(engine="sglang", max_batched_tokens=32768)
    assert longer.kv_bytes == usual.kv_bytes


def test_tensorrt_llm_takes_a_share_of_what_is_free():
    found = ask(engine="trtllm")
    free = (80 << 30) - found.weights_bytes - found.activations_bytes - (1 << 30)
    assert found.kv_bytes == int(0.9 * free)


@pytest.mark.parametrize(("tp", "nearest"), [(3, [2, 4]), (48, [32, 64]), (63, [32, 64])])
def test_the_nearest_ways_of_tensor_parallelism_reach_the_heads(tp: int, nearest: list[int]):
    """Llama 3 70B has 64 heads, so that it can be divided among 64 GPUs at most."""
    job = ServingJob(
        model="llama-3-70b",
        cluster="dgx-h100",
        input_tokens=128,
        output_tokens=16,
        batch=1,
        layout=ServingLayout(tp=tp),
    )
    assert nearest_ways(job) == nearest
