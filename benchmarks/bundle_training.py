"""Write src/trine/presets/measured/training/*.csv.gz from the collected tables in ../shared/data/measured.

Only stated facts are kept: missing fields stay blank (sources.yaml lists the values used instead). Left out: FP8,
FP4, mixture-of-experts, LoRA and ResNet rows, MLPerf, and tables without the model's shapes. Tables that print a
throughput have their time computed from it (column ``derived``). Narayanan's TFLOP/s include recomputation; equation 3
of the paper converts them to a time.

    python benchmarks/bundle_training.py [../shared/data/measured [FOLDER TO WRITE TO]]
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

Facts = dict[str, str]

TARGET = Path(__file__).parent.parent / "src" / "trine" / "presets" / "measured" / "training"
STEPS = [
    "row", "source", "table", "model", "params_B", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "sequence",
    "gpu", "gpus", "tp", "pp", "dp", "cp", "virtual_stages", "sequence_parallel", "recompute", "micro_batch",
    "global_batch", "precision", "sharding", "shard_ways", "variant", "step_s", "derived", "apart", "note",
]  # fmt: skip
RENAMED = {
    "ffn_hidden": "ffn", "seq_len": "sequence", "TP": "tp", "PP": "pp", "DP": "dp", "CP": "cp",
    "iteration_s": "step_s",
}  # fmt: skip
#: Key of each source, and a substring of its name in the table.
SOURCES = (
    ("korthikanti", "Korthikanti"), ("vtrain-multi", "ground_truth_multi"), ("vtrain-single", "ground_truth_single"),
    ("mpt", "llm-foundry"), ("internevo", "InternEvo"), ("simumax", "SimuMax"), ("torchtitan", "torchtitan"),
    ("bigscience", "chronicles-prequel"), ("narayanan", "MLCarbon"), ("mt-nlg", "MT-NLG paper"),
)  # fmt: skip
LAYOUTS = [
    "row", "model", "params_B", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "tied_embeddings",
    "seq_len", "nodes", "gpus", "TP", "PP", "DP", "zero_stage", "stage_layers", "micro_batch", "grad_accumulation",
    "global_batch", "status", "iteration_s", "tokens_per_s_per_gpu", "memory_rank0_GiB", "flags", "population",
]  # fmt: skip
#: Use every THIN-th row of vTrain's single-node table: all rows have 8 GPUs and times linear in micro-batches.
THIN = 8
DENSE = ("bf16", "fp16", "amp_bf16")


def main(folder: Path, target: Path) -> None:
    """Read, normalise and write all tables."""
    target.mkdir(parents=True, exist_ok=True)
    steps = list(_steps(folder))
    _write(target / "steps.csv.gz", STEPS, steps)
    layouts = [
        {"row": f"ultrascale-{i}", **row, "stage_layers": _stage_layers(row)}
        for i, row in enumerate(_read(folder / "layouts_ultrascale.csv.gz"))
    ]
    _write(target / "layouts.csv.gz", LAYOUTS, layouts)
    _write_fabric(folder, target)
    for name, source in (("memory_simumax", "simumax_memory.csv"), ("memory_torchtitan", "torchtitan_memory.csv"),
                         ("memory_megatron", "megatron_golden.csv.gz"),
                         ("data_parallel", "deeplearningexamples.csv.gz")):  # fmt: skip
        rows = list(_read(folder / source))
        _write(target / f"{name}.csv.gz", list(rows[0]), rows)
    print(Counter(row["source"] for row in steps), len(layouts))
    print(sum(path.stat().st_size for path in target.glob("*.csv*")), "bytes")


def _steps(folder: Path) -> Iterator[Facts]:
    counted: Counter[str] = Counter()
    for row in _read(folder / "training.csv"):
        source = next((key for key, part in SOURCES if part in row["source"]), None)
        if source is None or row["precision"].split()[0].split("/")[0] not in DENSE or row["EP"] not in ("", "0", "1"):
            continue
        if source == "vtrain-single" and counted[source] % THIN:
            counted[source] += 1
            continue
        counted[source] += 1
        facts = {RENAMED.get(name, name): value for name, value in row.items()}
        facts |= {"row": f"{source}-{counted[source]}", "source": source, "table": row["source"]}
        facts |= {"sharding": "", "shard_ways": "", "variant": "", "derived": "", "apart": ""}
        facts["precision"] = row["precision"].replace("amp_", "").split()[0].split("/")[0]
        facts["recompute"] = re.split(r"[ (]", row["recompute"])[0]
        if source in RULES:
            RULES[source](facts, row)
        _time(facts, row)
        if int(row["TP"] or 1) > 8:
            facts["apart"] = facts["apart"] or "tensor parallelism over more than 8 GPUs"
        if facts["step_s"]:
            yield facts


def _time(facts: Facts, row: Facts) -> None:
    if facts["step_s"] or not row["tokens_per_s_per_gpu"]:
        return
    tokens = float(row["global_batch"]) * float(row["seq_len"])
    facts["step_s"] = f"{tokens / float(row['tokens_per_s_per_gpu']) / float(row['gpus']):.6g}"
    facts["derived"] = "tokens/s/GPU"


def _mpt(facts: Facts, row: Facts) -> None:
    facts["sharding"] = "fsdp" if "FULL_SHARD" in row["note"] else "zero2"
    facts["variant"] = "pure" if "PURE" in row["note"] else ""


def _internevo(facts: Facts, row: Facts) -> None:
    ways = re.search(r"zero1=(-?\d+)", row["note"])
    facts["sharding"] = "zero1"
    facts["shard_ways"] = "" if ways is None or ways[1] == "-1" else ways[1]


def _torchtitan(facts: Facts, row: Facts) -> None:
    facts["sharding"] = "fsdp"
    words = [word for word in ("compile", "async TP") if word in row["note"]]
    facts["variant"] = " ".join(words)
    if row["TP"] not in ("", "1"):
        facts["sequence_parallel"] = "1"


def _bigscience(facts: Facts, row: Facts) -> None:
    facts["sharding"] = "zero1"
    if not row["layers"]:
        facts["apart"] = "layers not stated"
    elif not row["heads"]:
        facts["apart"] = "heads not stated"
    elif "CHECK" in row["note"]:
        facts["apart"] = "printed numbers disagree"


def _narayanan(facts: Facts, row: Facts) -> None:
    layers, hidden, length, vocab = (float(row[name]) for name in ("layers", "hidden", "seq_len", "vocab"))
    per_token = 96 * layers * hidden**2 * (1 + length / (6 * hidden) + vocab / (16 * layers * hidden))
    flops = per_token * length * float(row["global_batch"])
    facts["step_s"] = f"{flops / float(row['gpus']) / float(row['tflops_per_gpu']) / 1e12:.6g}"
    facts["derived"] = "TFLOP/s, recomputation counted"


RULES: dict[str, Callable[[Facts, Facts], None]] = {
    "mpt": _mpt, "internevo": _internevo, "torchtitan": _torchtitan, "bigscience": _bigscience,
    "narayanan": _narayanan,
}  # fmt: skip


def _stage_layers(row: Facts) -> str:
    """Return the layers per stage, e.g. ``8|8|8|4``, by nanotron's rule including norms (trine.parallel.cuts)."""
    hidden, stages = int(row["hidden"]), int(row["PP"])
    layer = 4 * hidden**2 + 3 * int(row["ffn_hidden"]) * hidden + 2 * hidden
    whole = int(row["layers"]) * layer + int(row["vocab"]) * hidden
    counts, so_far = [0], 0
    for _ in range(int(row["layers"])):
        counts[-1] += 1
        so_far += layer
        if so_far * stages > whole * len(counts):
            counts.append(0)
    return "|".join(map(str, counts + [0] * (stages - len(counts))))


def _write_fabric(folder: Path, target: Path) -> None:
    """Write the bus bandwidth of the Ultra-Scale cluster by number of nodes."""
    columns = ["collective", "nodes", "size_bytes", "busbw_GBps_line", "busbw_GBps_p5", "busbw_GBps_p95"]
    rows = list(_read(folder / "ultrascale_collectives.csv"))
    with (target / "fabric.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _read(path: Path) -> Iterator[Facts]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def _write(path: Path, columns: list[str], rows: list[Facts]) -> None:
    """Write a compressed table; the same rows always give the same bytes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:3]]
    main(*given, *(Path("../shared/data/measured"), TARGET)[len(given) :])
