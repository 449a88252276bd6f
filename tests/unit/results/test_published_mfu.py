"""Published MFU: the best row of the corpus is in the table; only a higher MFU is warned about and widens the range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import trine
from trine.compute.origin import known_gpu
from trine.results import headline
from trine.results.published_mfu import best_public_mfu, mfu_warning, published_mfus
from trine.training.headline import band_with_doubt
from validation.training_rows import TrainingRow, load_layouts, load_rows

PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}


def _corpus() -> Iterator[TrainingRow]:
    """Yield counted rows; packed fine-tuning computes less attention than its sequence length says."""
    for row in (*load_rows(), *load_layouts()):
        if row.step_s is not None and not row.apart and "-sft" not in row.group:
            yield row


def _mfu(row: TrainingRow, share_of_scores: float) -> float:
    """Return the MFU by hand: 6 FLOPs a weight and token, and 12 x sequence x features a layer for all scores."""
    size = {name: row.whole(name) for name in ("layers", "hidden", "heads", "vocab", "sequence")}
    ffn, kv_heads = row.whole("ffn", 4 * size["hidden"]), row.whole("kv_heads", size["heads"])
    head = size["hidden"] // size["heads"]
    matrices = 3 if row.transformer().activation == "swiglu" else 2
    layer = 2 * size["hidden"] ** 2 + 2 * size["hidden"] * kv_heads * head + matrices * size["hidden"] * ffn
    weights = size["layers"] * layer + size["vocab"] * size["hidden"]
    per_token = 6 * weights + 12 * size["layers"] * size["sequence"] * size["heads"] * head * share_of_scores
    gpu = known_gpu(row.gpu)
    assert gpu is not None
    assert row.step_s is not None
    return per_token * row.tokens / row.step_s / row.num_gpus / gpu.flop_per_s[PRECISIONS[row.dtype]]


@pytest.mark.parametrize(("definition", "share"), [("full", 1.0), ("causal", 0.5)])
def test_no_row_of_the_corpus_is_above_the_table_and_the_best_is_in_it(definition: str, share: float) -> None:
    best: dict[tuple[str, str], float] = {}
    for row in _corpus():
        key = row.gpu, PRECISIONS[row.dtype]
        best[key] = max(best.get(key, 0.0), _mfu(row, share))
    for (gpu, precision), reached in best.items():
        entry = best_public_mfu(gpu, precision, definition)
        assert entry is not None, (gpu, precision)
        assert reached <= entry.mfu + 5e-5, (gpu, precision, reached)
        if entry.gpu == gpu and "MegaScale" not in entry.source:
            assert reached == pytest.approx(entry.mfu, abs=5e-5)


def test_what_nvidia_prints_is_in_the_table() -> None:
    """NVIDIA's own MFU: 62.5 % (8B on H100), and 47.4 % of 2.45 PFLOP/s (405B on GB200), both with full attention."""
    h100, gb200 = best_public_mfu("h100-sxm", "bfloat16"), best_public_mfu("gb200", "bfloat16")
    assert h100 is not None
    assert h100.mfu == pytest.approx(0.625, rel=0.01)
    assert gb200 is not None
    assert gb200.mfu * 2.5 / 2.45 == pytest.approx(0.474, rel=0.015)


def test_only_an_mfu_above_the_best_of_the_precision_is_warned_about() -> None:
    assert not mfu_warning("h100-sxm", "bfloat16", 0.62)
    assert "62.5%" in mfu_warning("h100-sxm", "bfloat16", 0.63)
    assert not mfu_warning("h100-sxm", "float32", 0.9)
    assert not mfu_warning("mi300x", "bfloat16", 0.9)
    assert not mfu_warning("h100-sxm", "bfloat16", None)
    assert {row.definition for row in published_mfus()} == {"full", "causal"}


def test_gpus_with_equal_peaks_share_the_best_value() -> None:
    assert best_public_mfu("h200", "bfloat16") == best_public_mfu("h100-sxm", "bfloat16")
    assert best_public_mfu("h100-sxm-96gb", "bfloat16") == best_public_mfu("h100-sxm", "bfloat16")


def test_the_range_reaches_the_best_published_speed() -> None:
    """With 1.5 times the best published MFU, the step may take 1.5 times as long; below the best nothing changes."""
    result = trine.simulate(trine.synthesize("llama-3-8b", gpu="h100-sxm", layers=2), trine.Plan(batch=4))
    reached, best = headline.mfu(result), best_public_mfu("h100-sxm", "bfloat16")
    assert reached is not None
    assert result.work is not None
    assert best is not None
    for factor in (0.9, 1.5):
        flops = result.work.model_flops * factor * best.mfu / reached
        changed = replace(result, work=replace(result.work, model_flops=flops))
        band = band_with_doubt(changed, None)
        if factor < 1:
            assert band is None
        else:
            assert band is not None
            assert band.ends_ps(changed)[1] == pytest.approx(factor * changed.step_time_ps, rel=1e-6)
            assert "above the best published" in band.words


def test_the_definition_is_named_in_text_and_json() -> None:
    result = trine.simulate(trine.synthesize("llama-3-8b", gpu="h100-sxm", layers=2), trine.Plan(batch=4))
    assert result.work is not None
    assert result.work.mfu_definition == "full attention"
    assert "(full attention" in " ".join(result.summary().split())
    assert "(full attention" in " ".join(result.details().split())
    assert headline.numbers(result)["mfu_definition"] == "full attention"
    images = trine.simulate(trine.synthesize("resnet50", gpu="h100-sxm", batch=32), trine.Plan())
    assert headline.numbers(images)["mfu_definition"] == "no attention"
    assert "full attention" not in images.summary()
