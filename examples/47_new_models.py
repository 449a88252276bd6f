"""Models of 2024 to 2026: counts of DeepSeek-V3, and a step of gpt-oss-20b in BF16, in FP8 and with adapters.

The same on the command line: `trine support deepseek-v3`, and `trine train model:gpt-oss-20b --dp 8 --ep 8 --batch 8
--micro-batch 1 --sharding zero1 --cluster dgx-h100` with `--precision fp8` or `--trainable lora:16`. A config.json of
Hugging Face works in place of both names. Explanation: docs/guides/models.md.
"""

from __future__ import annotations

from typing import Any

import trine
from trine.common.units import format_bytes

PLAN = trine.Plan(dp=8, ep=8, batch=8, micro_batch=1, sharding="zero1")
STEPS: dict[str, dict[str, Any]] = {
    "all weights, BF16": {},
    "all weights, FP8": {"precision": "fp8"},
    "LoRA, rank 16, BF16": {"trainable": "lora:16"},
}


def print_counts(name: str) -> None:
    """Print the parameters of a model by module, its FLOPs and its KV cache."""
    counts = trine.support(name).counts
    assert counts is not None
    print(f"{name}: {counts.parameters:,} parameters, {counts.active:,} for each token, without {counts.left_out}")
    for module in counts.modules:
        print(f"  {module.module:12} {module.parameters:15,} {module.active:14,}")
    print(f"forward pass: {counts.forward_flops / 1e9:.2f} GFLOP a token, in samples of {counts.sequence:,} tokens")
    print(f"KV cache in 16 bits: {format_bytes(round(counts.kv_bytes_per_token))} a token")


def print_steps(name: str) -> None:
    """Print a step on eight H100, with the experts spread over the GPUs."""
    print(f"\n{name} on 8 x H100     step   tokens/s        memory   exposed communication")
    for title, options in STEPS.items():
        result = trine.simulate(f"model:{name}", PLAN, cluster="dgx-h100", **options)
        memory = format_bytes(max(peak.total_bytes for peak in result.memory_peaks))
        exposed = result.exposed_communication_s / result.step_time_s
        print(f"{title:24} {result.step_time_s:6.3f} s {result.tokens_per_s:10,.0f} {memory:>13} {exposed:23.1%}")


if __name__ == "__main__":
    print_counts("deepseek-v3")
    print_steps("gpt-oss-20b")
