"""How well does a trace at one batch size predict another? TrioSim's Figure 6, on this machine.

Captures each model at two batch sizes and predicts the un-profiled step time of each from both traces:

- ``operators``: the sum of operator times, as in TrioSim (it ignores the CPU and counts only the GPU's busy time,
  whereas the un-profiled time here is the whole step);
- ``step``: ``trine.simulate`` on one GPU, where operators also wait for the CPU thread that launches them.

Usage: python benchmarks/capture_models.py [--device auto|cuda|cpu] [--tiny] [--models NAME ...] [--keep DIRECTORY]

``--tiny`` shrinks the models to a few seconds on a CPU, to check that everything runs. ``--keep`` keeps the captures
in DIRECTORY (compressed, about 100 kB to 2 MB each); ``--json`` writes the table. Needs trine[capture].
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

import models
import torch

from trine import Plan, Workload, simulate
from trine.compute import Split, make_compute
from trine.graph.workload import GPU_KERNELS
from trine.workload.tracing.tracer import capture_function


@dataclass(frozen=True)
class Row:
    """One prediction: times in seconds, errors relative to the un-profiled step time."""

    model: str
    traced_batch: int
    predicted_batch: int
    unprofiled_s: float
    operators_s: float
    step_s: float

    @property
    def operators_error(self) -> float:
        return self.operators_s / self.unprofiled_s - 1

    @property
    def step_error(self) -> float:
        return self.step_s / self.unprofiled_s - 1


def capture_model(name: str, batch: int, folder: Path, options: argparse.Namespace) -> Workload:
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"

    def set_up() -> Callable[[], None]:
        return models.training_step(name, batch, device=device, tiny=options.tiny)

    workload = capture_function(set_up, folder / f"{name}-b{batch}", device=device, timed=options.timed, overwrite=True)
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    # trine rejects CPU times as GPU times; here the CPU is the device and is compared to itself
    return replace(workload, missing=tuple(text for text in workload.missing if text != GPU_KERNELS))


def predict(name: str, traced: Workload, measured: Workload) -> Row:
    compute = make_compute("auto", traced)
    operators_ps = sum(compute.duration(op, Split(batch=measured.batch)).ps for op in traced.operators)
    result = simulate(traced, Plan(batch=measured.batch, inputs="none"))
    return Row(
        model=name,
        traced_batch=traced.batch,
        predicted_batch=measured.batch,
        unprofiled_s=measured.unprofiled_step_ps / 1e12,
        operators_s=operators_ps / 1e12,
        step_s=result.step_time_ps / 1e12,
    )


def run(folder: Path, options: argparse.Namespace) -> list[Row]:
    rows = []
    for name in options.models:
        batches = models.TINY_BATCHES if options.tiny else models.BATCHES[name]
        workloads = [capture_model(name, batch, folder, options) for batch in batches]
        rows += [predict(name, traced, measured) for measured in workloads for traced in workloads]
    return rows


def print_table(rows: list[Row]) -> None:
    print(f"{'model':<12} {'trace':>6} {'batch':>6} {'un-profiled':>12} {'operators':>20} {'step':>20}")
    for row in rows:
        print(
            f"{row.model:<12} {row.traced_batch:>6} {row.predicted_batch:>6} {row.unprofiled_s * 1e3:>9.2f} ms"
            f" {row.operators_s * 1e3:>9.2f} ms {row.operators_error:>+7.1%}"
            f" {row.step_s * 1e3:>9.2f} ms {row.step_error:>+7.1%}"
        )
    for label, same in (("from its own trace", True), ("from the other batch", False)):
        chosen = [row for row in rows if (row.traced_batch == row.predicted_batch) == same]
        operators = mean(abs(row.operators_error) for row in chosen)
        step = mean(abs(row.step_error) for row in chosen)
        print(f"mean error {label}: operators {operators:.2%}, step {step:.2%}")
    print("TrioSim, Figure 6: batch 256 from a trace of 128, mean error 1.10 % on A40, 3.25 % on A100")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--models", nargs="+", choices=sorted(models.MODELS), default=sorted(models.MODELS))
    parser.add_argument("--timed", type=int, default=5, metavar="STEPS")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.tiny:
        torch.set_num_threads(1)  # such small operators are slower and vary more on several threads
    with tempfile.TemporaryDirectory() as temporary:
        rows = run(options.keep or Path(temporary), options)
    if options.tiny:
        print("tiny models: these errors say nothing about real ones")
    print_table(rows)
    if options.json:
        table = {"machine": platform.platform(), "tiny": options.tiny, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
