"""Print how far trine is from published steps in FP8, of mixtures of experts, and of adapters, by kind and precision.

    python benchmarks/precision_rows.py [--kind dense|moe|lora] [ROW ...]

Rows: precision_rows.csv, facts of NVIDIA/dgxc-benchmarking (MIT), NeMo-Framework-Launcher, NVIDIA-NeMo/NeMo and
Megatron-Bridge (Apache-2.0), each with its source; nothing was fitted on them. One scale of each group is compared.
Open in the sources: rank and targets of LoRA (32, all products assumed), lengths of the packed documents of SQuAD (180
tokens), the dispatcher of experts where it is not printed (the profile's). FP8 of NeMo to 25.04 is its default of that
time, delayed scaling.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import trine
from trine.cluster import load_cluster
from trine.errors import TrineError
from trine.parallel.plan import Plan
from trine.results.text import aligned
from trine.training.run import simulate
from trine.workload import synthesize

ROWS = Path(__file__).with_suffix(".csv")
CLUSTERS = {"H100": "dgx-h100", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72", "B200": "hgx-b200"}
GPUS = {"H100": "h100-sxm", "GB200": "gb200", "GB300": "gb300", "B200": "b200"}


def plan_of(row: dict[str, str]) -> Plan:
    """Return the layout of a row."""
    sizes = {name: int(row[name]) for name in ("tp", "pp", "cp", "ep", "virtual_stages", "micro_batch")}
    dp = int(row["gpus"]) // (sizes["tp"] * sizes["pp"] * sizes["cp"])
    fields: dict[str, Any] = {**sizes, "dp": dp, "batch": int(row["global_batch"]) // dp, "recompute": row["recompute"]}
    if sizes["pp"] > 1:
        fields["schedule"] = "interleaved" if sizes["virtual_stages"] > 1 else "1f1b"
    if sizes["ep"] > 1:
        fields["etp"] = int(row["etp"])
    if dp > 1:
        fields["sharding"] = "fsdp" if row["fsdp"] else "zero1"
    return Plan(**fields, sequence_parallel=sizes["tp"] > 1, inputs="none")


def predicted_s(row: dict[str, str]) -> float:
    """Return the predicted step in seconds."""
    precision = None if row["precision"] == "bf16" else row["precision"]
    workload = synthesize(
        row["model"], gpu=GPUS[row["gpu"]], sequence=int(row["sequence"]), precision=precision,
        trainable=row["trainable"] or None, documents=row["documents"] or None, software=row["software"],
    )  # fmt: skip
    cluster = load_cluster(CLUSTERS[row["gpu"]], gpus=int(row["gpus"]))
    return simulate(workload, plan_of(row), cluster=cluster, software=row["software"]).step_time_s


def main() -> None:
    """Print each row, and the errors of each kind and precision, one vote a group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["dense", "moe", "lora"], default=None)
    parser.add_argument("rows", nargs="*")
    given = parser.parse_args()
    errors: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ROWS.open() as file:
        for row in csv.DictReader(file):
            if given.kind not in (None, row["kind"]) or (given.rows and row["row"] not in given.rows):
                continue
            name = f"{row['row']} {row['model']} {row['gpus']} {row['gpu']} {row['precision']} {row['software']}"
            try:
                error = predicted_s(row) / float(row["step_s"]) - 1
            except TrineError as why:
                print(f"{name}: not compared: {why}", flush=True)
                continue
            print(f"{name}: measured {float(row['step_s']):.3f} s, predicted {error:+.1%}", flush=True)
            errors[row["kind"], row["precision"]][row["group"]].append(error)
    table = [("kind", "precision", "groups", "mean error", "bias")]
    for (kind, precision), groups in sorted(errors.items()):
        votes = [mean(found) for found in groups.values()]
        table.append((kind, precision, f"{len(votes)}", f"{mean(map(abs, votes)):.1%}", f"{mean(votes):+.1%}"))
    print(*aligned(table, 2), sep="\n")


if __name__ == "__main__":
    print(f"trine {trine.__version__}")
    main()
