"""Published serving runs: which rows are excluded, and how each kind of row becomes a job."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from trine.errors import InputError
from trine.inference.job import ServingLayout
from validation.serving_exclusions import excluded_rows, exclusion_counts
from validation.serving_jobs import QUEUED, job_of
from validation.serving_rows import ServingRow, load_rows

ROOT = Path(__file__).parents[3]
#: Rows of each rule, as the documentation of the data states them; 351 = 302 of the old rows + 49 of the new ones.
COUNTS = {1: 351, 4: 110, 5: 28, 6: 34, 7: 50}


def row_named(name: str) -> ServingRow:
    return next(row for row in load_rows() if row.name == name)


def plain_row(name: str, **values: object) -> ServingRow:
    """A small aggregated row, with other values."""
    row = ServingRow(
        name=name, source="aiconfigurator", kind="aggregated", file="2026-04-06.csv", measured="2026-03-01",
        engine="vllm", version="0.12.0", model="Qwen/Qwen3-32B", gpu="h100_sxm", precision="", gemm="", isl=1024,
        osl=1024, concurrency=16, batch=None, tp=2, pp=1, attention_dp=1, ep=1, decode_workers=None, ttft_ms=200.0,
        tpot_ms=20.0, tokens_per_s=None, is_per_gpu=False,
    )  # fmt: skip
    return replace(row, **values)  # type: ignore[arg-type]


def test_the_rules_exclude_as_many_rows_as_the_data_documents() -> None:
    excluded = excluded_rows(load_rows())
    assert {rule.trap: count for rule, count in exclusion_counts(excluded)} == COUNTS
    left = Counter(row.kind for row in load_rows() if row.name not in excluded)
    assert left == {"aggregated": 1176, "disaggregated": 330, "static": 99, "first-token": 12, "saturated": 50}
    assert len({row.stack for row in load_rows() if row.kind == "aggregated" and row.name not in excluded}) == 17


def test_the_script_prints_the_counts() -> None:
    script = ROOT / "benchmarks" / "exclude_serving_rows.py"
    lines = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == [2079, *COUNTS.values(), 1506]


def test_a_repeated_row_keeps_the_one_that_states_its_workers() -> None:
    rows = [
        plain_row("first"),
        plain_row("sixth digit differs", ttft_ms=200.0004, tpot_ms=20.00004),
        plain_row("fifth digit differs", tpot_ms=20.002),
        plain_row("states its workers", kind="disaggregated", decode_workers=2),
    ]
    excluded = excluded_rows(rows)
    assert {name: rule.trap for name, rule in excluded.items()} == {"first": 1, "sixth digit differs": 1}


def test_the_faster_of_equal_sglang_runs_is_speculative() -> None:
    deepseek = {"engine": "sglang", "version": "0.5.9", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp8"}
    rows = [
        plain_row("slow", tpot_ms=9.0, **deepseek),
        plain_row("fast", tpot_ms=6.0, **deepseek),
        plain_row("other load", tpot_ms=5.0, concurrency=8, **deepseek),
        plain_row("other layout", tpot_ms=4.0, tp=8, **deepseek),
    ]
    assert list(excluded_rows(rows)) == ["fast"]


def test_overload_needs_a_long_wait_and_a_large_share_of_the_run() -> None:
    rows = [
        plain_row("long but a small share", ttft_ms=9000.0, tpot_ms=20.0, osl=8192),
        plain_row("a large share but short", ttft_ms=7000.0, tpot_ms=1.0),
        plain_row("overloaded", ttft_ms=12000.0, tpot_ms=20.001),
        plain_row("disaggregated", ttft_ms=12000.0, tpot_ms=20.01, kind="disaggregated"),
    ]
    assert {name: rule.trap for name, rule in excluded_rows(rows).items()} == {"overloaded": 5}


def test_a_closed_loop_becomes_a_job() -> None:
    job = job_of(row_named("qwen_qwen3_32b_qwen_qwen3_32b_h100_sxm_sglang_agg_1024x128_c16_tp2_epnone_1"))
    assert (job.model, job.cluster, job.engine, job.engine_version) == (
        "qwen3-32b",
        "dgx-h100",
        "sglang",
        "0.5.1.post1",
    )
    assert (job.input_tokens, job.output_tokens, job.concurrency, job.batch) == (1024, 128, 16, None)
    assert (job.precision, job.kv_precision, job.phase, job.speculation) == ("bf16", "", "both", None)
    assert job.layout == ServingLayout(tp=2)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("2026_04_06_deepseek_r1_b200_sxm_sglang_fp4_agg_8192x1024_c16_tp4_ep4_1048", ServingLayout(tp=4, ep=4)),
        ("2026_04_06_gpt_oss_120b_h200_sxm_trtllm_fp4_agg_1024x8192_c8_tp2_ep2_999", ServingLayout(tp=2, ep=2)),
    ],
)
def test_degrees_that_the_source_multiplies_are_divided(name: str, layout: ServingLayout) -> None:
    assert job_of(row_named(name)).layout == layout


def test_no_layout_has_more_gpus_than_a_node() -> None:
    layouts = [row.layout for row in load_rows()]
    assert max(layout.gpus for layout in layouts) == 8
    assert all(layout.stage_gpus % layout.ep == 0 for layout in layouts)
    replicas = [row for row in load_rows() if row.kind == "aggregated" and row.attention_dp > 1]
    assert {(row.tp, row.attention_dp, row.ep) for row in replicas} == {(1, 8, 8), (1, 4, 4)}


def test_precisions_follow_the_checkpoint_and_the_gemms() -> None:
    precisions = {(row.model, row.precision, row.gemm): row.trine_precision for row in load_rows()}
    assert precisions["deepseek-ai/DeepSeek-R1", "fp8", "fp8"] == "fp8-block"
    assert precisions["deepseek-ai/DeepSeek-R1", "fp4", "nvfp4"] == "nvfp4"
    assert precisions["openai/gpt-oss-120b", "fp4", "nvfp4"] == "mxfp4"
    assert precisions["Qwen/Qwen3-32B", "fp8", "fp8"] == "fp8"
    assert precisions["Qwen/Qwen3-32B", "fp8", "fp8_block"] == "fp8-block"
    assert precisions["meta-llama/Llama-3.1-8B-Instruct", "", ""] == "bf16"
    assert precisions["llama2-70b", "fp16", ""] == "bf16"


def test_a_disaggregated_row_asks_for_one_decode_worker() -> None:
    row = row_named("dsr1_b200_trtllm_fp4_disagg_1024x1024_c180_cfg320")
    assert (row.concurrency, row.decode_workers) == (180, 5)
    job = job_of(row)
    assert (job.phase, job.concurrency, job.layout) == ("decode", 36, ServingLayout(tp=8, ep=8))
    replicas = job_of(row_named("dsr1_b200_trtllm_fp8_disagg_1024x1024_c4096_cfg549"))
    assert (replicas.concurrency, replicas.layout) == (4096, ServingLayout(attention_dp=8, ep=8))
    no_load = replace(row, concurrency=None)
    assert job_of(no_load).concurrency == row.batch == 36
    assert job_of(no_load).length_spread == pytest.approx(1 / 9)
    assert (job.kv_precision, job.memory_fraction) == ("fp8", 0.8)
    with pytest.raises(InputError, match="number of decode workers"):
        job_of(replace(row, decode_workers=None))


def test_tables_of_tensorrt_llm_become_static_saturated_and_first_token_jobs() -> None:
    static, first, saturated = (row_named(f"trtllm-{number}") for number in (9, 24, 36))
    assert (static.kind, static.tokens_per_s, static.is_per_gpu) == ("static", 2657.0, True)
    job = job_of(static)
    assert (job.model, job.batch, job.concurrency, job.layout) == ("llama-2-70b", 1024, None, ServingLayout(tp=2))
    assert Path(str(job_of(first).model)).name == "gpt-j-6b.json"
    assert Path(str(job_of(first).model)).is_file()
    assert (job_of(first).phase, job_of(first).batch, job_of(first).output_tokens) == ("prefill", 1, 1)
    assert (saturated.kind, saturated.is_per_gpu, saturated.gpu_name) == ("saturated", False, "B200")
    queued = job_of(saturated)
    assert (queued.concurrency, queued.max_sequences, queued.precision) == (QUEUED, 8192, "nvfp4")
    assert queued.memory_fraction == 0.95


def test_a_row_of_splitwise_becomes_a_static_batch() -> None:
    row = row_named("splitwise-11")
    assert (row.kind, row.isl, row.osl, row.batch) == ("static", 512, 128, 4)
    assert (row.ttft_ms, row.tpot_ms) == (571.4331, 45.0853)
    job = job_of(row)
    assert (job.model, job.cluster, job.engine, job.batch) == ("llama-2-70b", "dgx-a100", "vllm", 4)


def test_a_version_that_is_no_release_takes_the_newest() -> None:
    versions = {
        (row.engine, row.version): job_of(row).engine_version for row in load_rows() if row.kind == "aggregated"
    }
    assert versions["trtllm", "gpt-oss-dev"] == ""
    assert versions["trtllm", "1.0.0rc3"] == "1.0.0rc3"
    assert job_of(row_named("splitwise-1")).engine_version == "0.2"


def test_flags_of_the_launch_scripts_reach_the_job() -> None:
    deepseek = {
        "engine": "trtllm",
        "model": "deepseek-ai/DeepSeek-R1",
        "precision": "fp8",
        "isl": 8192,
        "concurrency": 64,
    }
    job = job_of(plain_row("before the minimum", measured="2025-12-15", **{**deepseek, "isl": 1024}))
    assert (job.max_batched_tokens, job.kv_precision, job.memory_fraction) == (1152, "fp8", 0.8)
    after = {**deepseek, "isl": 1024}
    assert job_of(plain_row("after it", measured="2026-02-03", **after)).max_batched_tokens == 8192
    # (64 + 8192 + 127) rounded down to a multiple of 64
    assert job_of(plain_row("long", measured="2026-02-03", **deepseek)).max_batched_tokens == 8320
    assert job_of(plain_row("h200", gpu="h200_sxm", **deepseek)).memory_fraction == 0.75
    vllm = job_of(plain_row("vllm", version="", model="meta-llama/Llama-3.1-70B", precision="fp8"))
    assert (vllm.engine_version, vllm.kv_precision, vllm.max_batched_tokens) == ("0.14", "fp8", 8192)
    # Lengths between 0.8 and 1 times 1024: 922 in the mean, and a ninth of it more or less
    assert (vllm.input_tokens, vllm.output_tokens) == (922, 922)
    assert vllm.length_spread == pytest.approx(1 / 9)
    own = job_of(plain_row("own run", file="h100_sxm/vllm/0.12.0/Qwen_Qwen3-32B.csv"))
    assert (own.max_batched_tokens, own.kv_precision, own.length_spread) == (1024 + 16 + 1500, "", 0.0)
    sglang = job_of(plain_row("sglang", file="h100_sxm/sglang/0.5.1.post1/x.csv", engine="sglang", version="0.5.1"))
    assert sglang.max_batched_tokens == 1024 + 1500


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    row = plain_row("unknown")
    with pytest.raises(InputError, match=r"unknown gpu 'h100_sxn'.*h100_sxm"):
        job_of(replace(row, gpu="h100_sxn"))
    with pytest.raises(InputError, match="unknown model"):
        job_of(replace(row, model="Qwen/Qwen9"))
    with pytest.raises(InputError, match="unknown precision 'fp6'"):
        job_of(replace(row, precision="fp6"))


def test_throughput_and_latency_of_a_row() -> None:
    row = plain_row("sums", ttft_ms=100.0, tpot_ms=10.0, osl=101, concurrency=4, tp=2)
    assert row.end_to_end_s == pytest.approx(1.1)
    assert row.tokens_per_s_per_gpu(1.1) == pytest.approx(4 * 101 / 1.1 / 2)
    assert replace(row, ttft_ms=None).end_to_end_s is None
