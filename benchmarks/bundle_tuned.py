"""Write tuned.csv and tuned_left_out.csv of src/trine/presets/measured/training: steps of tuned training software.

Rows: dense bf16 of data/measured/training_tuned.csv, and data/reports/v0.13/training-rows.csv. A group is a source
family, a model and a GPU. Weak scaling moves the steps of a group by 1 to 5 %. A group keeps its reported rows
and, of each software profile, the row of the newest release with the fewest GPUs; without a reported row also the one
with the most GPUs. So all scales are there, and no group takes minutes to replay.

Left out, with the reason in tuned_left_out.csv: JAX, AMD, rows marked CHECK (their source contradicts itself, or a
field is inferred), rows without batch, stages or shapes, and software without a profile.

    python benchmarks/bundle_tuned.py [../shared/data [FOLDER TO WRITE TO]]
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bundle_training import RENAMED, STEPS, TARGET

Facts = dict[str, str]
COLUMNS = [*STEPS, "group", "architecture", "operators", "recompute_layers", "documents", "defer_head_gradient", "open"]
LEFT_OUT = ["group", "rows", "reason"]
SHAPE = re.compile(r"(\d+)L h(\d+) (\d+)H (?:kv(\d+) )?ffn(\d+) (?:squared relu )?v(\d+)")
#: Source family of the tables -> key in sources.yaml; families without an entry have no profile.
SOURCES = {
    "dgxc": "dgxc", "nemo": "nemo-launcher", "torchao": "torchao",
    "torchtitan-a100": "torchtitan-2024", "infini-4090": "infini-4090",
}  # fmt: skip
WITHOUT_PROFILE = {
    "dgxc-maxtext": "JAX", "dgxc-paxml": "JAX", "rocm-te": "no profile",
    "kempner": "no profile of KempnerForge: 80.7 GiB of an 8B model on one GPU exclude float32 states of FSDP2, and "
    "full recomputation would mean 762 TFLOP/s on an H200",
    "colossal": "no profile of Colossal-AI, and the shapes are not printed",
    "torchtune": "no profile: optimizer and checkpointing of torchtune's default recipe are not stated",
    "tinyllama": "no profile of lit-gpt; the network between nodes is not stated",
}  # fmt: skip
#: Model of the reported rows -> name in training_tuned.csv, shape, architecture.
MODELS = {
    "llama-3-8b": ("llama-3-8b", "32L h4096 32H kv8 ffn14336 v128256"),
    "llama-3-70b": ("llama-3-70b", "80L h8192 64H kv8 ffn28672 v128256"),
    "llama-3-405b": ("llama-3.1-405b", "126L h16384 128H kv8 ffn53248 v128256"),
    "llama-2-7b": ("llama-2-7b", "32L h4096 32H ffn11008 v32000"),
    "llama-2-13b": ("llama-2-13b", "40L h5120 40H ffn13824 v32000"),
    "llama-2-70b": ("llama-2-70b", "80L h8192 64H kv8 ffn28672 v32000"),
    "gpt-3-175b": ("gpt-3-175b", "96L h12288 96H ffn49152 v51200"),
    "nemotron4-15b": ("nemotron4-15b", "32L h6144 48H kv8 ffn24576 v256000"),
    "nemotron4-340b": ("nemotron4-340b", "96L h18432 96H kv8 ffn73728 v256000"),
}
GPUS = {"h100-sxm": "H100", "gb200": "GB200", "a100-80gb": "A100", "rtx4090": "RTX4090"}
#: Reported rows that repeat another one under a second profile, measure no step, or cannot run.
OTHERS = {
    "tt2e": "the step of tt2 under another profile", "tt9": "out of memory: see trine validate memory",
    "mx1": "JAX", "px1": "JAX", "tl1": WITHOUT_PROFILE["tinyllama"],
}  # fmt: skip


def main(folder: Path, target: Path) -> None:
    """Read both tables, select rows and write them with the list of those left out."""
    kept, left_out = select([*reported(folder), *tuned(folder)])
    _write(target / "tuned.csv", COLUMNS, kept)
    _write(target / "tuned_left_out.csv", LEFT_OUT, left_out)
    print(Counter(row["source"] for row in kept), len({row["group"] for row in kept}), "groups")


def select(rows: list[Facts]) -> tuple[list[Facts], list[Facts]]:
    """Return the selected rows, and the others by group and reason; a row's ``why`` rules it out."""
    left_out: Counter[tuple[str, str]] = Counter()
    candidates: dict[tuple[str, str], list[Facts]] = {}
    for row in rows:
        if row["why"]:
            left_out[row["group"], row["why"]] += 1
        else:
            candidates.setdefault((row["group"], profile_of(row)), []).append(row)
    kept = []
    for (group, _), members in candidates.items():
        chosen = {row["row"] for row in members if not row["row"].startswith("tt-")}
        newest = [row for row in members if row["variant"] == max(each["variant"] for each in members)]
        ends = (min,) if chosen else (min, max)
        chosen |= {pick(newest, key=lambda row: int(row["gpus"]))["row"] for pick in ends}
        kept += [row for row in members if row["row"] in chosen]
        if len(chosen) < len(members):
            left_out[group, "weak scaling: other rows of the same group and profile are compared"] += len(
                members
            ) - len(chosen)
    order = {row["row"]: number for number, row in enumerate(rows)}
    others = [{"group": group, "rows": str(count), "reason": why} for (group, why), count in left_out.items()]
    return sorted(kept, key=lambda row: order[row["row"]]), sorted(others, key=lambda row: row["group"])


def profile_of(row: Facts) -> str:
    """Return the generation of a row's software: rows of one generation have one profile (sources.yaml)."""
    return "25" if row["variant"] == "v25.05" else "24" if row["source"] == "dgxc" else row["variant"]


def tuned(folder: Path) -> Iterator[Facts]:
    """Yield the dense bf16 rows of training_tuned.csv as steps."""
    for row in _read(folder / "measured" / "training_tuned.csv"):
        if row["kind"] != "dense bf16":
            continue
        facts = {RENAMED.get(name, name): value for name, value in row.items()}
        family, release = row["source_family"], re.search(r"@(v[\d.]+)", row["source"])
        facts |= {
            "row": row["id"], "source": SOURCES.get(family, family), "table": row["source"],
            "variant": release[1] if release and family == "dgxc" else row["software"].split(",")[0],
            "virtual_stages": row["VP"], "sequence": row["seq_len"], "note": row["notes"],
            "recompute": row["recompute"].split(" ")[0].rstrip(","),
            "sharding": "fsdp" if row["FSDP"] not in ("", "0") else "",
            "derived": row["derived"] if "iteration_s" in row["derived"] else "", "why": _why(row),
        }  # fmt: skip
        yield _with_model(facts, row["model"].removesuffix("-sft"), row["model_shape"])


def _why(row: Facts) -> str:
    """Return why a row of training_tuned.csv cannot be compared, or empty."""
    if why := WITHOUT_PROFILE.get(row["source_family"]):
        return why
    if "CHECK" in row["notes"]:
        return "CHECK: the source contradicts itself, or a field is inferred"
    if "prints VP NA" in row["notes"]:
        return "virtual stages: NA in this release, 12 in the next one"
    if not row["PP"] or not row["global_batch"]:
        return "pipeline stages or batch not stated"
    return ""


def reported(folder: Path) -> Iterator[Facts]:
    """Yield the rows of training-rows.csv as steps; the layout comes from the row's command."""
    for row in _read(folder / "reports" / "v0.13" / "training-rows.csv"):
        name, family = row["source"].split()
        command = dict(re.findall(r"--([a-z-]+) ([^- ]\S*)", row["trine command"]))
        model = row["model"].split(",")[0].removesuffix(".yaml")
        stated, shape = MODELS.get(model, (model, ""))
        gpu = GPUS.get(row["gpu"], row["gpu"])
        gpus, dp = row["gpus"], command.get("dp", "1")
        release = re.search(r"v2[\d.]+\d\b", row["citation"])
        facts = {
            "row": name, "source": SOURCES.get(family, family), "table": row["citation"], "gpu": gpu, "gpus": gpus,
            "group": f"{family}|{stated}{'-sft' if 'fine-tuning' in row['notes'] else ''}|{gpu}",
            "sequence": row["sequence"], "dp": dp, **{key: command.get(key, "1") for key in ("tp", "pp", "cp")},
            "virtual_stages": command.get("virtual-stages", ""),
            "sequence_parallel": "1" if "--sequence-parallel" in row["trine command"] else "",
            "recompute": command.get("recompute", ""), "recompute_layers": command.get("recompute-layers", ""),
            "micro_batch": command.get("micro-batch", command.get("batch", "")), "global_batch": row["batch"],
            "precision": row["precision"], "sharding": command.get("sharding", ""),
            "variant": ".".join(release[0].split(".")[:2]) if release else row["software"], "derived": "",
            "note": row["notes"], "why": OTHERS.get(name, ""),
        }  # fmt: skip
        is_rate = row["unit"] == "tokens/s/GPU"
        facts["step_s"] = row["value"]
        if is_rate and not facts["why"]:
            step = float(row["batch"]) * float(row["sequence"]) / float(row["value"]) / float(gpus)
            facts |= {"step_s": f"{step:.6g}", "derived": "tokens/s/GPU"}
        yield _with_model(facts, stated, shape)


def _with_model(facts: Facts, model: str, shape: str) -> Facts:
    """Return a row with the model's shapes, and the facts that hold for all rows of a model and source."""
    facts = {**facts, "model": model, "operators": facts.get("operators", "")}
    if match := SHAPE.match(shape):
        names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
        facts |= dict(zip(names, (each or "" for each in match.groups()), strict=True))
    facts["params_B"] = ""
    is_tuning = facts["group"].split("|")[1].endswith("-sft")
    if is_tuning:
        # SQuAD (llama3/finetuning/llama3_finetune.py): a paragraph, a question and an answer, about 120 + 10 + 3 words
        facts |= {"documents": "180", "open": "lengths of the packed documents of SQuAD (180 tokens each assumed)"}
    facts["architecture"] = "gpt" if model.startswith("gpt") else "nemotron" if "nemotron" in model else "llama"
    if facts["source"] == "dgxc" and int(facts.get("pp") or 1) > 1 and facts["architecture"] != "gpt":
        # wgrad_deferral_limit in llama3.1/*.yaml, nemotron/*.yaml of v24.11.1; NVIDIA/NeMo nemo/collections/llm/recipes
        facts["defer_head_gradient"] = "50" if "405b" in model else "22"
    if facts["source"] == "torchtitan-2024":
        facts["variant"] = "70B" if "70b" in model else "8B and 13B"
    if facts["source"] in ("dgxc", "nemo-launcher") and int(facts.get("tp") or 1) > 1:
        facts["sequence_parallel"] = "1"
    if facts["source"] == "dgxc":
        if model == "nemotron4-340b" and facts["gpu"] == "H100":
            facts["recompute"] = "selective"  # nemotron/nemotron4-340b-synth.yaml, as in the command of dg10
        if facts["architecture"] == "gpt":
            # nemo_megatron/gpt3_175b_hydra.yaml: dropout 0.1, no cross_entropy_loss_fusion
            facts["operators"] = "dropout=true loss=unfused"
        if facts["variant"].startswith(("v24.11", "v25.02")) and not is_tuning:
            # distributed_fused_adam in all these recipes keeps 16-bit remainders of the weights
            facts["operators"] = f"{facts['operators']} master=remainder".strip()
        if facts["variant"] == "v24.11" and model in ("gpt-3-175b", "nemotron4-340b"):
            # NVTE_FUSED_ATTN=0: nemo_megatron/launch.sh, nemotron/configure.sh at v24.11.1
            facts["operators"] = f"{facts['operators']} attention_kernel=flash-2".strip()
        facts["variant"] = facts["variant"].removesuffix(".1") if facts["variant"] == "v24.11.1" else facts["variant"]
    return facts


def _read(path: Path) -> Iterator[Facts]:
    with path.open() as file:
        yield from csv.DictReader(file)


def _write(path: Path, columns: list[str], rows: list[Facts]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:3]]
    main(*given, *(Path("../shared/data"), TARGET)[len(given) :])
