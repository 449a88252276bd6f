"""Step times from tables equal the direct computation within the stated error, on random steps."""

import numpy as np
import pytest

import trine
from trine.inference.step_table import TABLE_ERROR, StepBatch, read_batch
from trine.inference.step_time import step_table
from trine.inference.steps import PromptChunk, Step

#: Dense; windows; latent attention; an indexer; linear attention; compressed attention.
DEPLOYMENTS = [
    ("llama-3-8b", "dgx-h100", trine.StepLayout()),
    ("llama-3-70b", "hgx-h200", trine.StepLayout(tp=4, precision="fp8", engine="sglang")),
    ("gpt-oss-120b", "dgx-h100", trine.StepLayout(tp=4)),
    ("deepseek-v3", "hgx-h200", trine.StepLayout(attention_dp=8, ep=8, engine="sglang")),
    ("deepseek-v3.2", "hgx-b200", trine.StepLayout(tp=8, engine="trtllm")),
    ("qwen3-next-80b-a3b", "dgx-h100", trine.StepLayout(tp=2, pp=2)),
    ("deepseek-v4-pro", "hgx-b200", trine.StepLayout(tp=8)),
]
STEPS = 60


def random_batch(rng: np.random.Generator) -> StepBatch:
    """Return a step with up to 1,000 decodes of contexts around a common length, and up to four chunks."""
    decodes = int(2 ** rng.uniform(0, 10)) if rng.random() < 0.8 else 0
    chunks = int(rng.integers(0 if decodes else 1, 5))
    length = 2 ** rng.uniform(0, 18)
    contexts = (length * rng.uniform(0.1, 1.9, decodes)).astype(int)
    prefill = [
        (int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 16)) if rng.random() < 0.5 else 0) for _ in range(chunks)
    ]
    return read_batch(prefill, contexts)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment[0])
def test_tables_are_within_their_stated_error(deployment):
    table = step_table(*deployment)
    rng = np.random.default_rng(7)
    for _ in range(STEPS):
        batch = random_batch(rng)
        assert table.us(batch) == pytest.approx(table.direct_us(batch), rel=TABLE_ERROR)


@pytest.mark.parametrize("deployment", DEPLOYMENTS[2:5], ids=lambda deployment: deployment[0])
def test_direct_step_is_the_timers_step_for_equal_contexts(deployment):
    table = step_table(*deployment)
    chunks = (PromptChunk(500, 4000), PromptChunk(3, 0))
    expected = table.timer.time(Step(decodes=32, context=5000.0, chunks=chunks)).us
    assert table.direct_us(read_batch([(500, 4000), (3, 0)], [5000] * 32)) == pytest.approx(expected, rel=1e-12)


def test_different_contexts_behind_a_window_count_each_for_itself():
    """Of 127 and 10,000 tokens a window of 128 reads 127 and 128, not twice the window."""
    table = step_table("gpt-oss-120b", "dgx-h100", trine.StepLayout(tp=4))
    mixed = table.us(read_batch([], [1, 10_001]))
    assert table.us(read_batch([], [1, 1])) < mixed < table.us(read_batch([], [10_001, 10_001]))
    assert mixed <= table.us(read_batch([], [5001, 5001]))
