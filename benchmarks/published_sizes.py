"""Compare the GPU-hours of ``trine size`` with those that the authors of four models needed.

    python benchmarks/published_sizes.py [NAME ...]

Each job asks how many GPUs train the authors' tokens in the authors' days, on the authors' machine and with the profile
nearest to their software. Failures and checkpoints are left out of BLOOM and OPT, whose authors state the speed of
running steps, and counted for Llama, whose model cards state the hours of the whole run. Prints both numbers of
GPU-hours, their ratio, and the layout. Exits with 1 if no number of GPUs is found.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import trine
from trine.decide.failures import Failures
from trine.decide.machine_size import MachineSize
from trine.results.text import aligned

#: Answers within this share of the authors' GPU-hours are as fast as theirs.
GOOD = 0.25
NO_FAILURES = Failures(mtbf_per_gpu=float("inf"), checkpoint=0)


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run and the GPU-hours that its authors needed. gpus: theirs. source: of the hours."""

    name: str
    machine: str
    software: str
    tokens: float
    global_batch: int
    gpus: int
    gpu_hours: float
    failures: Failures
    source: str


def megatron_hours(
    tokens: float, layers: int, hidden: int, vocabulary: int, sequence: int, tflop_per_s: float
) -> float:
    """Return the GPU-hours of a run at a rate of TFLOP/s per GPU by Megatron's formula with full recomputation.

    Source: Narayanan et al. (2021), section 5.1: 96 B s l h^2 (1 + s / 6 h + V / 16 l h) operations a step.
    """
    each = 96 * layers * hidden**2 * (1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden))
    return tokens * each / (tflop_per_s * 1e12) / 3600


RUNS = (
    PublishedRun("llama-3-8b", "dgx-h100", "megatron-core", 15e12, 512, 2048, 1_300_000, Failures(),
                 "meta-llama/llama3 MODEL_CARD.md: 1.3M GPU-hours of H100-80GB, over 15T tokens; GPUs not stated"),
    PublishedRun("llama-2-70b", "dgx-a100", "megatron-core", 2e12, 1024, 2048, 1_720_320, Failures(),
                 "Touvron et al. (2023), table 2: 1,720,320 GPU-hours of A100-80GB, 2.0T tokens; GPUs not stated"),
    PublishedRun("bloom-176b", "dgx-a100", "megatron-deepspeed", 366e9, 2048, 384,
                 megatron_hours(366e9, 70, 14336, 250_880, 2048, 150.0), NO_FAILURES,
                 "Le Scao et al. (2022), section 4.2: 150 TFLOP/s on 384 A100 80 GB (Jean Zay), 366B tokens"),
    PublishedRun("opt-175b", "dgx-a100", "megatron-core", 180e9, 992, 992,
                 megatron_hours(180e9, 96, 12288, 50_272, 2048, 147.0), NO_FAILURES,
                 "Zhang et al. (2022), section 2.4: up to 147 TFLOP/s on 992 A100 80 GB, 180B tokens"),
)  # fmt: skip


def answer_of(run: PublishedRun) -> MachineSize:
    """Return the number of GPUs of the authors' machine that ends in their days."""
    days = run.gpu_hours / run.gpus / 24
    answer = trine.size(f"model:{run.name}", run.tokens, days=days, clusters=[run.machine], software=run.software,
                        global_batch=run.global_batch, failures=run.failures)  # fmt: skip
    return answer.machines[0]


def main() -> None:
    """Print the table."""
    names, rows, good, is_complete = set(sys.argv[1:]), [], 0, True
    for run in RUNS:
        if names and run.name not in names:
            continue
        began = time.process_time()
        machine = answer_of(run)
        cpu = f"{time.process_time() - began:.0f} s"
        if machine.cost is None:
            is_complete = False
            rows.append((run.name, f"{run.gpu_hours:,.0f}", "-", "-", "-", machine.problem, cpu))
            continue
        hours = machine.cost.expected_gpu_hours.value
        ratio = hours / run.gpu_hours
        good += abs(ratio - 1) <= GOOD
        gpus = f"{machine.num_gpus:,} ({run.gpus:,})"
        rows.append((run.name, f"{run.gpu_hours:,.0f}", f"{hours:,.0f}", f"{ratio:.2f}", gpus, machine.words, cpu))
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    heads = ("run", "authors' GPU-hours", "trine's", "ratio", "GPUs (theirs)", "layout", "CPU")
    print(*aligned([heads, *rows], 1, left=5), sep="\n")
    print(f"{good} of {len(rows)} within {100 * GOOD:.0f} % of the authors' GPU-hours")
    print(*(f"{run.name}: {run.source}" for run in RUNS if not names or run.name in names), sep="\n")
    sys.exit(0 if is_complete else 1)


if __name__ == "__main__":
    main()
