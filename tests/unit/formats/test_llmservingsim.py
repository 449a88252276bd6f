"""Profile bundles for LLMServingSim: its files, columns and layer names, and steps that add up from them.

Columns and names: casys-kaist/LLMServingSim, docs/docs/profiler/output-bundle.md at 11b96ae, profiler/models/llama.yaml
and qwen3.yaml.
"""

import csv
from pathlib import Path

import numpy as np
import pytest
import yaml

import trine
from trine.errors import InputError
from trine.formats.llmservingsim import write_bundle
from trine.inference.deployment import resolve, step_timer
from trine.inference.steps import COMMUNICATION, CPU, EXPERTS, PromptChunk, Step

LLAMA = {"embedding", "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj",
         "final_layernorm"}  # fmt: skip


def bundle(folder, model="llama-3-8b", name="meta-llama/Meta-Llama-3-8B", **changes) -> Path:
    return write_bundle(folder, model, "dgx-h100", hardware="H100", name=name, **changes)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def curve(path: Path, layer: str, at: float) -> float:
    """Interpolate one layer's time linearly over the second column, as the simulator does."""
    found = [list(row.values()) for row in rows(path) if row["layer"] == layer]
    return float(np.interp(at, [float(row[1]) for row in found], [float(row[2]) for row in found]))


def attention(path: Path, **key: float) -> float:
    found = [row for row in rows(path) if all(float(row[name]) == value for name, value in key.items())]
    assert len(found) == 1
    return float(found[0]["time_us"])


def gpu_us(model: str, tp: int, step: Step, without: tuple[str, ...]) -> float:
    """Return trine's GPU time of a step without communication and the parts named."""
    timer = step_timer(resolve(trine.StepLayout(tp=tp).job(model, "dgx-h100")))
    return sum(us for part, us in timer.time(step).parts.items() if part not in (COMMUNICATION, CPU, *without))


def test_files_and_columns(tmp_path):
    root = bundle(tmp_path, tp=(1, 2), kv_precision="fp8")
    assert root == tmp_path / "H100" / "meta-llama" / "Meta-Llama-3-8B" / "bf16-kvfp8"
    meta = yaml.safe_load((root / "meta.yaml").read_text())
    assert (meta["hardware"], meta["variant"], meta["tp_degrees"]) == ("H100", "bf16-kvfp8", [1, 2])
    assert meta["engine_effective"] == {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    assert not meta["skew_fit"]["enabled"]
    for folder in ("tp1", "tp2"):
        assert {path.name for path in (root / folder).iterdir()} == {"dense.csv", "per_sequence.csv", "attention.csv"}
        assert {row["layer"] for row in rows(root / folder / "dense.csv")} == LLAMA
        assert {row["layer"] for row in rows(root / folder / "per_sequence.csv")} == {"lm_head", "sampler"}
        header = (root / folder / "attention.csv").read_text().partition("\n")[0]
        assert header == "layer,prefill_chunk,prefill_key,n_decode,kv_decode,decode_q_len,time_us"


def test_older_columns_hold_the_same_times_by_cached_tokens(tmp_path):
    """Columns of the bundles that the project published up to August 2026; a key length is cached + chunk / 2."""
    new = bundle(tmp_path / "new", "qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B") / "tp1"
    old = bundle(tmp_path / "old", "qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", older=True) / "tp1"
    header = (old / "attention.csv").read_text().partition("\n")[0]
    assert header == "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    assert (old / "moe.csv").read_text().partition("\n")[0] == "tokens,activated_experts,time_us"
    assert len(rows(old / "attention.csv")) == len(rows(new / "attention.csv"))
    at = {"prefill_chunk": 512, "n_decode": 4, "kv_decode": 128}
    for cached in (0, 2048):
        key = cached + 256
        assert attention(old / "attention.csv", kv_prefill=cached, **at) == attention(
            new / "attention.csv", prefill_key=key, **at
        )
    alone = [row for row in rows(new / "moe.csv") if row.pop("ep") == "1"]
    assert rows(old / "moe.csv") == alone
    assert (old / "dense.csv").read_bytes() == (new / "dense.csv").read_bytes()


@pytest.mark.parametrize("tp", [1, 4])
def test_a_decode_step_and_a_prefill_add_up(tmp_path, tp):
    """The bundle has a final norm, which trine's step counts with the layers' norms or not at all."""
    folder = bundle(tmp_path, tp=(tp,)) / f"tp{tp}"
    for step, tokens, at in (
        (Step(64, 1024.0), 64, {"prefill_chunk": 0, "n_decode": 64, "kv_decode": 1024}),
        (Step(chunks=(PromptChunk(512, 4096),)), 512, {"prefill_chunk": 512, "prefill_key": 4352, "n_decode": 0}),
    ):
        each = sum(curve(folder / "dense.csv", layer, tokens) for layer in LLAMA - {"embedding", "final_layernorm"})
        each += curve(folder / "dense.csv", "layernorm", tokens) + attention(folder / "attention.csv", **at)
        ends = [curve(folder / "dense.csv", "embedding", tokens)]
        ends += [curve(folder / "per_sequence.csv", layer, step.rows) for layer in ("lm_head", "sampler")]
        gathered = 0.0 if tp == 1 else 0.02
        assert 32 * each + sum(ends) == pytest.approx(gpu_us("llama-3-8b", tp, step, ()), rel=1e-5 + gathered)


def test_mixed_attention_is_the_sum_and_grids_start_at_zero(tmp_path):
    table = bundle(tmp_path) / "tp1" / "attention.csv"
    decode = attention(table, prefill_chunk=0, n_decode=8, kv_decode=2048)
    prefill = attention(table, prefill_chunk=256, prefill_key=128, n_decode=0)
    mixed = attention(table, prefill_chunk=256, prefill_key=128, n_decode=8, kv_decode=2048)
    assert mixed == pytest.approx(decode + prefill, rel=1e-5)
    assert not [row for row in rows(table) if row["prefill_chunk"] == "0" and row["n_decode"] == "0"]


def test_experts_by_tokens_and_distinct_experts(tmp_path):
    root = bundle(tmp_path, "qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B")
    table = rows(root / "tp1" / "moe.csv")
    assert {row["ep"] for row in table} == {"1", "2", "4", "8"}
    at = {(row["ep"], row["tokens"], row["activated_experts"]): float(row["time_us"]) for row in table}
    assert at["1", "64", "8"] < at["1", "64", "64"] < at["1", "64", "128"] < at["1", "2048", "128"]
    assert at["8", "64", "16"] < at["1", "64", "128"]
    assert ("1", "1", "16") not in at
    assert {row["layer"] for row in rows(root / "tp1" / "dense.csv")} == (
        LLAMA - {"gate_up_proj", "act_fn", "down_proj"} | {"qk_norm"}
    )
    # All 128 experts have tokens in a batch of 2,048: 48 layers of the row are trine's experts with their router.
    timer = step_timer(resolve(trine.StepLayout().job("qwen3-30b-a3b", "dgx-h100")))
    experts = timer.time(Step(2048, 100.0)).parts[EXPERTS]
    assert experts < 48 * at["1", "2048", "128"] < 1.1 * experts


def test_fp8_weights_are_another_variant(tmp_path):
    half, eight = bundle(tmp_path), bundle(tmp_path, precision="fp8")
    assert eight.name == "fp8"
    assert curve(eight / "tp1" / "dense.csv", "down_proj", 1024) < curve(half / "tp1" / "dense.csv", "down_proj", 1024)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "deepseek-v3"}, "model: a bundle has full attention with one kind of network"),
        ({"model": "gpt-oss-20b"}, "model: a bundle has full attention"),
        ({"name": "../outside"}, "name: takes letters, digits"),
        ({"tp": (3,)}, "tp: 3 ways do not divide"),
    ],
)
def test_other_models_and_names_are_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        bundle(tmp_path, **changes)
    assert not list(tmp_path.iterdir())
