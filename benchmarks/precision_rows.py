"""Print how far trine is from published steps in FP8, of mixtures of experts, and of adapters, by kind and precision.

    python benchmarks/precision_rows.py [--kind dense|moe|lora] [--write] [ROW ...]

--write stores their likely ranges in src/trine/presets/measured/training/kinds.yaml, the quantiles of measured /
predicted, and their errors in precision_errors.yaml, which trine validate training shows; one vote a group. Each
prediction goes into precision_predictions.csv. With --kind, the other kinds keep their entries.

Rows: precision_rows.csv, facts of NVIDIA/dgxc-benchmarking (MIT), NeMo-Framework-Launcher, NVIDIA-NeMo/NeMo and
Megatron-Bridge (Apache-2.0), each with its source; nothing was fitted on them. One scale of each group is compared.
Open in the sources: rank and targets of LoRA (32, all products assumed), lengths of the packed documents of SQuAD
(180 tokens), the dispatcher of experts where it is not printed (the profile's). FP8 of NeMo to 25.04 is its default
of that time, delayed scaling. Columns dispatch, graphs, casts and expert_overlap: of the recipe in Megatron-Bridge's
scripts/performance of the row's version (v0.1.0rc4, v0.2.2; src/megatron/bridge/perf_recipes at 067f987), where it is
there; empty: the profile's. casts: modules outside the layers' products that run in the row's precision
(fp8_dot_product_attention: attention; fp8_output_proj: head).
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import yaml

import trine
from trine.cluster import load_cluster
from trine.common.spec import load_mapping
from trine.errors import TrineError
from trine.parallel.plan import Plan
from trine.results.headline import KINDS
from trine.results.precision_errors import TABLE, PrecisionErrors, precision_errors
from trine.results.text import aligned
from trine.software.profile import Software, load_software, with_graphs
from trine.training.run import simulate
from trine.workload import synthesize
from validation.bands import HIGH, LOW
from validation.harness import quantile

ROWS = Path(__file__).with_suffix(".csv")
PREDICTIONS = ROWS.with_name("precision_predictions.csv")
CLUSTERS = {"H100": "dgx-h100", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72", "B200": "hgx-b200"}
#: Kind of steps in trine -> kind of rows, and its description.
KINDS_OF_ROWS = {
    "experts": ("moe", "mixtures of experts"),
    "adapters": ("lora", "adapters"),
    "float8": ("dense", "dense models in FP8"),
}
HEAD = """\
# Likely ranges of steps with published rows of their own, written by benchmarks/precision_rows.py --write: do not edit.
#   low, high: quantiles of measured / predicted among `rows` rows (validation.bands LOW, HIGH), one vote a group;
#   the predictions are blind: nothing was fitted on these rows (benchmarks/precision_rows.csv, with sources)
"""
ERRORS_HEAD = """\
# Errors of the rows of benchmarks/precision_rows.csv by kind and precision, written by benchmarks/precision_rows.py
# --write: do not edit. Predicted over measured step time, less 1; one vote a group; nothing was fitted on these rows.
"""
GPUS = {"H100": "h100-sxm", "GB200": "gb200", "GB300": "gb300", "B200": "b200"}


def plan_of(row: dict[str, str]) -> Plan:
    """Return the layout of a row."""
    sizes = {name: int(row[name]) for name in ("tp", "pp", "cp", "ep", "virtual_stages", "micro_batch")}
    dp = int(row["gpus"]) // (sizes["tp"] * sizes["pp"] * sizes["cp"])
    fields: dict[str, Any] = {**sizes, "dp": dp, "batch": int(row["global_batch"]) // dp, "recompute": row["recompute"]}
    if sizes["pp"] > 1:
        fields["schedule"] = "interleaved" if sizes["virtual_stages"] > 1 else "1f1b"
    if sizes["ep"] > 1:
        fields |= {"etp": int(row["etp"]), "dispatch": row["dispatch"] or None}
    if dp > 1:
        fields["sharding"] = "fsdp" if row["fsdp"] else "zero1"
    return Plan(**fields, sequence_parallel=sizes["tp"] > 1, expert_overlap=row["expert_overlap"] == "1", inputs="none")


def software_of(row: dict[str, str]) -> Software:
    """Return the profile of a row, with the CUDA graphs and the casts of its recipe if it names them."""
    profile = load_software(row["software"])
    if row["casts"]:
        casts = {f"{module}_casts": [row["precision"]] for module in row["casts"].split()}
        style = profile.operators.model_copy(update={"attention_casts": [], "head_casts": [], **casts})
        profile = profile.model_copy(update={"operators": style})
    if not row["graphs"]:
        return profile
    return with_graphs(profile, [] if row["graphs"] == "none" else row["graphs"].split())


def predicted_s(row: dict[str, str]) -> float:
    """Return the predicted step in seconds."""
    precision = None if row["precision"] == "bf16" else row["precision"]
    software = software_of(row)
    workload = synthesize(
        row["model"], gpu=GPUS[row["gpu"]], sequence=int(row["sequence"]), precision=precision,
        trainable=row["trainable"] or None, documents=row["documents"] or None, software=software,
    )  # fmt: skip
    cluster = load_cluster(CLUSTERS[row["gpu"]], gpus=int(row["gpus"]))
    return simulate(workload, plan_of(row), cluster=cluster, software=software).step_time_s


@dataclass(frozen=True)
class Compared:
    """A row with its predicted time."""

    row: dict[str, str]
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / float(self.row["step_s"]) - 1


def compared_rows(kind: str | None, names: list[str]) -> list[Compared]:
    """Predict the rows of a kind and with these names (empty: all), and print each."""
    found = []
    with ROWS.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if kind not in (None, row["kind"]) or (names and row["row"] not in names):
            continue
        name = f"{row['row']} {row['model']} {row['gpus']} {row['gpu']} {row['precision']} {row['software']}"
        try:
            compared = Compared(row, predicted_s(row))
        except TrineError as why:
            print(f"{name}: not compared: {why}", flush=True)
            continue
        print(f"{name}: measured {float(row['step_s']):.3f} s, predicted {compared.error:+.1%}", flush=True)
        found.append(compared)
    return found


def errors_of(rows: list[Compared]) -> list[PrecisionErrors]:
    """Return the errors of each kind and precision, one vote a group."""
    errors: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in rows:
        errors[each.row["kind"], each.row["precision"]][each.row["group"]].append(each.error)
    found = []
    for (kind, precision), groups in sorted(errors.items()):
        votes = [mean(group) for group in groups.values()]
        found.append(
            PrecisionErrors.model_validate(
                {
                    "kind": kind,
                    "precision": precision,
                    "rows": sum(map(len, groups.values())),
                    "groups": len(votes),
                    "mean_error": round(mean(map(abs, votes)), 4),
                    "bias": round(mean(votes), 4),
                    "worst": round(max(votes, key=abs), 4),
                }
            )
        )
    return found


def print_errors(rows: list[Compared]) -> None:
    """Print the errors of each kind and precision."""
    table = [("kind", "precision", "groups", "mean error", "bias", "worst")]
    for each in errors_of(rows):
        numbers = f"{each.groups}", f"{each.mean_error:.1%}", f"{each.bias:+.1%}", f"{each.worst:+.1%}"
        table.append((each.kind, each.precision, *numbers))
    print(*aligned(table, 2), sep="\n")


def write_errors(rows: list[Compared]) -> None:
    """Write the table that ``trine validate training`` shows; kinds without rows here keep their entries."""
    kinds = {each.row["kind"] for each in rows}
    kept = [each for each in precision_errors() if each.kind not in kinds]
    entries = sorted([*kept, *errors_of(rows)], key=lambda each: (each.kind, each.precision))
    document = {"errors": [each.model_dump() for each in entries]}
    TABLE.write_text(ERRORS_HEAD + yaml.safe_dump(document, sort_keys=False, width=118))


@dataclass(frozen=True)
class Range:
    """The likely range of a kind: measured / predicted, and the share of its groups' votes inside."""

    low: float
    high: float
    rows: int
    groups: int
    inside: float


def range_of(rows: list[Compared]) -> Range:
    """Return the quantiles of measured / predicted among the rows of one kind, one vote a group.

    The ends are rounded outwards, so that the row at an end stays inside.
    """
    sizes = Counter(each.row["group"] for each in rows)
    weights = np.array([1 / sizes[each.row["group"]] for each in rows])
    ratios = np.array([float(each.row["step_s"]) / each.predicted_s for each in rows])
    low = floor(quantile(ratios, weights, LOW) * 10_000) / 10_000
    high = ceil(quantile(ratios, weights, HIGH) * 10_000) / 10_000
    inside = float(weights[(ratios >= low) & (ratios <= high)].sum() / weights.sum())
    return Range(low, high, len(rows), len(sizes), inside)


def write_kinds(rows: list[Compared]) -> None:
    """Write the likely range of each kind that has rows here; the others keep theirs."""
    stored = load_mapping(KINDS)["kinds"] if KINDS.is_file() else {}
    document: dict[str, Any] = {}
    for name, (of_rows, words) in KINDS_OF_ROWS.items():
        chosen = [each for each in rows if each.row["kind"] == of_rows]
        if not chosen:
            document[name] = stored[name]
            continue
        found = range_of(chosen)
        counted = f"{found.rows} rows of {found.groups} groups, {found.inside:.0%} inside"
        print(f"{name}: {found.low} to {found.high}, {counted}")
        document[name] = {
            "low": found.low, "high": found.high, "rows": found.rows, "groups": found.groups, "words": words,
        }  # fmt: skip
    KINDS.write_text(HEAD + yaml.safe_dump({"kinds": document}, sort_keys=False, width=118))


def stored_predictions() -> list[Compared]:
    """Return the rows whose predictions are stored."""
    with ROWS.open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    if not PREDICTIONS.is_file():
        return []
    with PREDICTIONS.open() as file:
        return [Compared(rows[each["row"]], float(each["predicted_s"])) for each in csv.DictReader(file)]


def write_predictions(rows: list[Compared]) -> None:
    """Store the predictions; those of other kinds stay."""
    kinds = {each.row["kind"] for each in rows}
    kept = [each for each in stored_predictions() if each.row["kind"] not in kinds]
    entries = sorted([*kept, *rows], key=lambda each: each.row["row"])
    with PREDICTIONS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "predicted_s"])
        for each in entries:
            writer.writerow([each.row["row"], f"{each.predicted_s:.6g}"])


def main() -> None:
    """Print each row, and the errors by kind and precision; write the likely ranges on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["dense", "moe", "lora"], default=None)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("rows", nargs="*")
    given = parser.parse_args()
    if given.write and given.rows:
        parser.error("--write needs all rows of a kind")
    rows = compared_rows(given.kind, given.rows)
    print_errors(rows)
    if given.write:
        write_predictions(rows)
        stored = stored_predictions()
        write_kinds(stored)
        write_errors(stored)


if __name__ == "__main__":
    print(f"trine {trine.__version__}")
    main()
