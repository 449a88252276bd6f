"""Predict whole models on another GPU: NeuSight's operators recorded on an A100, moved to V100, P100 and T4.

Run: python benchmarks/another_gpu.py FOLDER
FOLDER: NeuSight's data (Lee et al., ASPLOS 2025; github.com/sitar-lab/NeuSight, MIT) with ``op_labels`` (one row per
operator of some layers and the head) and ``e2e_labels.csv`` (one row per model and GPU). Operator times are converted
as ``--gpu`` converts a trace. The growth of their sum is compared with the measured growth of the whole model, and
with the data sheets' prediction. Operators and whole models were timed in separate runs, so factors are approximate.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from transformer_prediction import Reader

from trine.cluster import load_gpu
from trine.compute import Split, make_compute
from trine.compute.cost import work
from trine.compute.roofline import least_time_s
from trine.graph.workload import Workload

SOURCE = "NVIDIA_A100-PCIE-40GB"
TARGETS = {"Tesla_V100-PCIE-32GB": "v100-pcie", "Tesla_P100-PCIE-16GB": "p100-pcie", "Tesla_T4": "t4"}


def moved_ms(workload: Workload, gpu: str) -> float:
    """Return the sum of the operator times on ``gpu``, in ms."""
    model = make_compute("auto", workload, source=load_gpu("a100-pcie-40gb"), target=load_gpu(gpu))
    return sum(model.duration(op, Split(workload.batch)).ps for op in workload.operators) / 1e9


def by_sheets_ms(workload: Workload, gpu: str) -> float:
    """Return the same sum, with each operator scaled by the ratio of the GPUs' rooflines."""
    source, target = load_gpu("a100-pcie-40gb"), load_gpu(gpu)
    total = 0.0
    for op in workload.operators:
        amount = work(op, workload)
        least = [least_time_s(spec, amount, "float32") for spec in (source, target)]
        total += op.gpu_time_ps / 1e9 * (least[1] / least[0] if least[0] else 1.0)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with (folder / "e2e_labels.csv").open(encoding="utf-8", newline="") as file:
        whole = {(row["gpu"], row["case"]): float(row["e2e_latency_ms"]) for row in csv.DictReader(file)}
    errors, plain = [], []
    print(f"{'model':24}{'GPU':>12}{'measured ms':>13}{'tables':>9}{'sheets':>9}")
    for path in sorted((folder / "op_labels" / SOURCE).glob("*.csv*")):
        case = path.name.split(".")[0]
        workload = Reader(path, int(case.split("-")[-1])).workload
        total = sum(op.gpu_time_ps for op in workload.operators) / 1e9
        for name, gpu in TARGETS.items():
            measured = whole.get((name, case))
            if measured is None:
                continue
            scale = whole[SOURCE, case] / total / measured
            found, sheets = moved_ms(workload, gpu) * scale - 1, by_sheets_ms(workload, gpu) * scale - 1
            errors.append(abs(found))
            plain.append(abs(sheets))
            print(f"{case:24}{gpu:>12}{measured:13.1f}{found:+9.1%}{sheets:+9.1%}")
    for what, each in (("tables", errors), ("data sheets", plain)):
        print(f"{what}: mean error {sum(each) / len(each):.1%}, worst {max(each):.1%}, {len(each)} predictions")


if __name__ == "__main__":
    main()
