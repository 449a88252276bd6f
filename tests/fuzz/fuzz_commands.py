"""Valid command lines of every command, and changes option by option, from the options that trine declares."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from fuzz_run import Case
from fuzz_samples import samples

Edit = tuple[int, int, int]

#: Commands without cases: they compile, run the user's code, print a stored report, or print a page.
LEFT_OUT = (
    "warmup", "doctor", "trace capture", "measure", "validate collectives", "validate loadstore", "validate training",
    "validate layouts", "validate memory", "validate operators", "validate serving", "validate scaling",
    "study", "help",
    "compare", "plan", "plot", "report", "size", "support", "sweep",  # several runs, or files of earlier answers
)  # fmt: skip
JOB = "train m.trine.json --gpus 2 --parallel ddp"
RING = "--topology ring --bandwidth '65 GB/s' --latency '1 us'"
#: Valid command lines to start from. Their machines have at most 256 GPUs; load-store runs at most 8 and 256 KiB.
BASES = (
    "infer llama-3-8b --cluster dgx-h100 --isl 128 --osl 16 --batch 2 --engine vllm:0.24",
    "software list --json out.json",
    "software show megatron-core --json out.json",
    f"{JOB} {RING}",
    f"{JOB} --cluster dgx-h100",
    f"{JOB} --cluster dgx-h100 --nodes 2 --perfetto p.pftrace --json out.json",
    "train m.trine.json --dp 2 --tp 2 --pp 2 --batch 4 --micro-batch 1 --schedule 1f1b --cluster dgx-h100",
    "train vgg13-h100-b128 --gpus 8 --parallel ddp --cluster dgx-h100",
    "train model:gpt-2,layers=2,batch=1 --dp 2 --tp 2 --cluster dgx-a100 --sharding zero1",
    "train model:mixtral-8x7b,layers=1,batch=1 --dp 4 --ep 4 --cluster dgx-h100 --expert-imbalance zipf:1",
    f"{JOB} --circuit-setup '10 us' --circuit-ports 1 --circuit-bandwidth '50 GB/s'",
    "run g.json --cluster c.yaml",
    "calibrate m.trine.json -o out.json",
    "collective all_reduce --size 1K:1M:x4 --cluster dgx-h100 --nodes 4",
    f"collective all_gather --size 1M --gpus 8 {RING} --algorithm ring",
    "collective all_to_all_v --matrix m.csv --topology switch --bandwidth '65 GB/s' --gpus 4",
    "collective all_reduce --size 4K --fidelity loadstore --cluster eidola --gpus 4 --workgroups 2",
    "collective all_gather --size 64K --compare-fidelity --cluster eidola --gpus 2",
    "check t.log --cluster dgx-h100 --json out.json",
    "hop m.trine.json --workers 4 --bandwidth '10 GB/s' --latency '1 us' --iterations 5 --backup 1",
    "trace inspect m.trine.json --against n.trine.json --json -",
    "trace convert m.trine.json out.trine.json.gz",
    "trace models --json -",
    "trace synthesize gpt-2 -o out.trine.json --layers 2 --batch 1 --sequence 64",
    "chakra run x --comm-groups groups.json --cluster dgx-h100",
    f"chakra run x --comm-groups groups.json {RING} --peak '100 TFLOP/s' --memory '1 TB/s'",
    "chakra inspect x --comm-groups groups.json",
    "cluster list", "cluster links", "cluster topologies --json -",
    "cluster show dgx-h100 --nodes 2 --links --yaml out.yaml",
    f"cluster show --gpus 8 {RING} --gpu h100-sxm",
    "cluster import c.csv --links-from catalogue --yaml out.yaml",
    "cluster export dgx-a100 -o out.yaml --format infragraph",
    "cluster draw dgx1-v100 -o out.svg",
    "gpu list", "gpu show h100-sxm --sources", "gpu show ./m.yaml --yaml out.yaml",
    "eidolon run gemv-allreduce --rows 64 --cols 64 --peers 3",
    "eidolon run k.gpu --peers 2 --writes w.csv --sync mwait",
    "eidolon sweep gemv-allreduce --rows 32,64 --cols 64 --peers 3 --jobs 1 --csv out.csv",
    "eidolon record gemv-allreduce --rows 64 --cols 64 --peers 3 -o out.npz",
    "eidolon writes-from r.csv -o out.csv --target 0 --buffer data",
    "eidolon writes-from p.csv --mapping map.yaml -o out.json",
    "kernel run k.gpu --cluster eidola --gpus 3 --perfetto p.pftrace",
    "kernel run plan.json --size 4K --gpus 2 --cluster eidola",
    "kernel show k.gpu", "kernel show plan.json --size 4K --summary",
)  # fmt: skip
#: Sizes up to 64 GiB: load by load and store by store, they take hours.
LONG_SIZES = "1:99999999999:x2"
_GIVEN = yaml.load(Path(__file__).with_name("options.yaml").read_bytes(), yaml.CSafeLoader)
#: Counts for a machine of at most 8 or 256 GPUs; counts that every option must refuse; texts that are no values.
COUNTS, HUGE = _GIVEN["counts"], (*_GIVEN["huge"], "1" * 400)
WRONG = (*_GIVEN["wrong"], "\ud800", "é" * 300, "a" * 3000)
FILES, TARGETS, TABLE = _GIVEN["files"], _GIVEN["targets"], _GIVEN["options"]
INPUTS = (
    "calibration",
    "placement",
    "matrix",
    "comm_groups",
    "annotations",
    "mapping",
    "writes",
    "arrivals",
    "against",
    "file",
    "log",
    "graph",
    "prefix",
    "path",
    "traces",
    "result",
    "kernel",
    "cluster",
    "gpu_model",
    "workload",
    "name",
    "expert_imbalance",
    "algorithm",
    "links_from",
)
OUTPUTS = (
    "json",
    "csv",
    "yaml",
    "output",
    "perfetto",
    "inside_perfetto",
    "memory_snapshot",
    "plot",
    "plot_noc",
    "timeline",
    "parquet",
    "chakra",
    "report",
)
#: Metavars that list the choices of an option.
_PICKED = re.compile(r"^[\w-]+(\|[\w-]+)+$")


@functools.cache
def files() -> dict[str, bytes | None]:
    """Return the files that command lines may name."""
    found: dict[str, bytes | None] = {"pipe": None, "d/file": b"", "shares": b"0.5\n0.5\n0.25\n0.25\n"}
    for sample in samples():
        found.update({name: data for name, data in sample.files.items() if not name.startswith(("t/", "p/"))})
        if sample.name == "annotations" or sample.name.endswith(" mapping"):
            continue
    found["m.trine.json"] = found["n.trine.json"]
    by_name = {sample.name: sample for sample in samples()}
    found["c.yaml"] = by_name["cluster"].files["c.yaml"]
    found["m.yaml"] = by_name["gpu model"].files["m.yaml"]
    found["map.yaml"] = by_name["cupti_memcpy mapping"].files["m.yaml"]
    found["plan.json"] = by_name["v2_HEAD_allgather_2gpu.json"].files["v2_HEAD_allgather_2gpu.json"]
    found["t.log"] = by_name["log"].files["t.log"]
    found["c.csv"] = by_name["edges"].files["c.csv"]
    return found


@functools.cache
def commands() -> dict[str, Any]:
    """Return every command of trine by its words, with its declared options."""
    from command_tree import all_commands

    return dict(all_commands())


def values_of(parameter: Any, is_loadstore: bool) -> Sequence[str]:
    """Return plausible values of an option."""
    name = parameter.name
    known = list(TABLE.get(name, ()))
    if name in OUTPUTS:
        known += TARGETS
    if name in INPUTS:
        known += FILES
    metavar = (parameter.metavar or "").replace(",", "|")
    if _PICKED.match(metavar):
        known += metavar.split("|")
    if not known:
        known = [*COUNTS] if is_loadstore else [*COUNTS, "16", "256"]
    return known


def edited(base: int, edits: Sequence[Edit]) -> Case:
    """Return valid command line ``base`` after edits ``(which option, how, which value)``, modulo their numbers."""
    words = shlex.split(BASES[base % len(BASES)])
    name = max((each for each in commands() if words[: len(each.split())] == each.split()), key=len)
    command = commands()[name]
    heavy = name.startswith(("eidolon", "kernel")) or "loadstore" in words or "--compare-fidelity" in words
    for where, how, what in edits:
        given = [
            each for each in command.params if set(each.opts) & set(words)
        ]  # a new option often has no effect at all
        pool = given if where % 3 and given else command.params
        parameter = pool[where // 3 % len(pool)]
        options = [each for each in (*parameter.opts, *parameter.secondary_opts) if each.startswith("-")]
        values = values_of(parameter, heavy)
        value = values[what % len(values)] if what // 97 % 5 else (*WRONG, *HUGE)[what % (len(WRONG) + len(HUGE))]
        if parameter.name in ("fidelity", "compare_fidelity", "jobs") or (heavy and value == LONG_SIZES):
            continue
        if heavy and parameter.name == "size" and value in HUGE:  # the same
            continue
        if not options:
            place = len(name.split())
            words[place : place + 1] = [value]
        elif getattr(parameter, "is_flag", False):
            words.append(options[what % len(options)])
        elif options[0] in words and how % 4:
            words[words.index(options[0]) + 1 : words.index(options[0]) + 2] = [value]
        elif options[0] in words and how % 8 == 0 and not (heavy and parameter.name == "gpus"):
            at = words.index(options[0])
            del words[at : at + 1 + what % 2]
        else:
            words += [options[0], value]
    return Case(tuple(word.replace("\x00", "?") for word in words), files())
