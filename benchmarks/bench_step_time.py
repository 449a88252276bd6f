"""Print the CPU time of one call of trine.step_time, the goal of 0.1 ms, and its ratio to the step without tables.

    python benchmarks/bench_step_time.py

Each row is a model with its layout: the tables' time (first call), a decode step of 32 sequences, and a mixed step of
256 decodes and two prompt chunks, in microseconds of CPU. A machine with other work takes more for the same call, so
calls and direct computations alternate and their ratio is printed; the largest deviation between both is of 200 random
steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import trine
from trine.inference.step_table import read_batch
from trine.inference.step_time import step_table
from trine.results.text import aligned

GOAL_US, ROUNDS, CALLS = 100, 20, 20
ROWS = {
    "llama-3-8b": ("dgx-h100", trine.StepLayout()),
    "llama-3-70b": ("hgx-h200", trine.StepLayout(tp=4, precision="fp8", engine="sglang")),
    "gpt-oss-120b": ("dgx-h100", trine.StepLayout(tp=4)),
    "deepseek-v3": ("hgx-h200", trine.StepLayout(tp=8, engine="sglang")),
    "deepseek-v4-pro": ("hgx-b200", trine.StepLayout(tp=8)),
}
DECODES = [1000 + number for number in range(256)]
CHUNKS = [(512, 0), (300, 200)]


def main() -> None:
    """Print one row for each model."""
    rows = [("model", "first s", "32 decodes us", "mixed us", "goal us", "direct / call", "deviation")]
    rows += [row_of(model, *deployment) for model, deployment in ROWS.items()]
    print("\n".join(aligned(rows, 0)))


def row_of(model: str, cluster: str, layout: trine.StepLayout) -> tuple[str, ...]:
    """Return one model's row."""
    began = time.process_time()
    table = step_table(model, cluster, layout)
    first_s = time.process_time() - began
    batch = read_batch(CHUNKS, DECODES)
    decode_us, mixed_us, ratios = [], [], []
    for _ in range(ROUNDS):
        decode_us.append(cpu_us(lambda: trine.step_time(model, cluster, layout, decode=DECODES[:32])))
        mixed_us.append(cpu_us(lambda: trine.step_time(model, cluster, layout, CHUNKS, DECODES)))
        ratios.append(cpu_us(lambda: table.direct_us(batch)) / mixed_us[-1])
    figures = (np.median(decode_us), np.median(mixed_us), GOAL_US)
    return (model, f"{first_s:.2f}", *(f"{us:.0f}" for us in figures), f"{np.median(ratios):.1f}", deviation(table))


def deviation(table: object) -> str:
    """Return the largest deviation of a table from the direct computation, over random decode and mixed steps."""
    random = np.random.default_rng(1)
    worst = 0.0
    for _ in range(200):
        contexts = (2 ** random.uniform(3, 17) * random.uniform(0.2, 1.8, int(2 ** random.uniform(0, 10)))).astype(int)
        chunks = [(int(2 ** random.uniform(0, 12)), int(2 ** random.uniform(0, 15)))] * int(random.integers(0, 3))
        batch = read_batch(chunks, contexts)
        worst = max(worst, abs(table.us(batch) / table.direct_us(batch) - 1))  # type: ignore[attr-defined]
    return f"{worst:.2%}"


def cpu_us(call: Callable[[], object]) -> float:
    """Return the CPU time of one of :data:`CALLS` calls, in microseconds."""
    began = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - began) / CALLS * 1e6


if __name__ == "__main__":
    main()
