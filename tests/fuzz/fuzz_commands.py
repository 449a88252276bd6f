"""Command lines: valid ones of every command, changed option by option. The options are those that trine declares."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from fuzz_run import Case
from fuzz_samples import samples

Edit = tuple[int, int, int]

#: Left out: they compile, run the user's own code, or replay everything that was measured.
LEFT_OUT = ("warmup", "trace capture", "validate collectives", "validate loadstore", "study")
JOB = "train m.trine.json --gpus 2 --parallel ddp"
RING = "--topology ring --bandwidth '65 GB/s' --latency '1 us'"
#: Valid command lines, from which the others are made. Their machines have at most 1024 GPUs, load-store 8 and 256 KiB.
BASES = (
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
#: Counts that a machine of at most 8 or 1024 GPUs allows, and such that nothing may take.
COUNTS = ("1", "2", "3", "4", "8")
HUGE = ("16777217", "99999999999", "9223372036854775807", "99999999999999999999", "1" * 400)
WRONG = (
    "0",
    "-1",
    "1.5",
    "x",
    "",
    " ",
    "１",
    "1e3",
    "1_0",
    "0x10",
    "+4",
    "nan",
    "inf",
    "\ud800",
    "é" * 300,
    "a\nb",
    "a" * 3000,
)
SIZES = (
    "0",
    "1",
    "1K",
    "4096",
    "64K",
    "256K",
    "1K,4K",
    "1K:64K",
    "1K:64K:x4",
    "1K:8K:1K",
    "64:",
    "1M:1K",
    "1:1M:1",
    "1KiB",
    "9" * 30,
    "1e40",
    "1:99999999999:x2",
)
FILES = ("m.trine.json", "g.json", "c.yaml", "k.gpu", "t.log", "places", "cal.json", "m.csv", "w.csv", "r.csv", "x",
         "groups.json", "d", "no-such", "pipe", "/dev/zero", "/dev/null", "m.yaml", "map.yaml", "n.trine.json", "-", "shares",
         "a.npz", "w.parquet", "x.0.et")  # fmt: skip
TARGETS = ("out.json", "out.csv", "out.svg", "out.yaml", "out.npz", "d", "no/such/out.json", "/dev/null", "/dev/full", "-", "",
           "m.trine.json", "out.parquet")  # fmt: skip
CLUSTERS = ("dgx-h100", "dgx-a100", "eidola", "mi300x-node", "dgx1-v100", "wafer-a100-mesh", "c.yaml", "dgx-h10", "d")
TABLE: dict[str, Sequence[str]] = {
    "bandwidth": ("65 GB/s", "400 Gbit/s", "1 B/s", "1e18 B/s", "0", "65", "-1 GB/s", "65 GB", "1e300 GB/s"),
    "latency": ("1 us", "0", "5 ns", "1 h", "-1 us", "1", "1e300 s"),
    "topology": ("ring", "torus:2x2", "mesh:2x4", "switch", "fully-connected", "hypercube", "tree", "fat-tree", "dragonfly",
                 "torus:0x2", "torus:99999x99999", "ring:99999999", "torus:" + "2x" * 40 + "2", "torus:", ":", "torus:2x"),
    "fabric": ("switch", "rail", "clos", "clos:2", "switch@ib-hdr", "rail:0", "clos:-1@x", "x", "torus", "switch:1e9", "clos:2@"),
    "cluster": CLUSTERS, "gpu": ("h100-sxm", "a100-80gb", "mi300x", "h100"), "trace_gpu": ("h100-sxm", "v100", "x"),
    "gpu_model": ("h100-sxm", "eidola", "./m.yaml", "mi300x", "c.yaml"),
    "routing": ("shortest", "ecmp", "ecmp-split", "d-mod-k", "rail", "x"), "network": ("fair", "equal", "fifo", "circuit"),
    "slow_link": ("gpu0->nvswitch:0.5", "gpu0->nvswitch:0", "gpu*:2", ":", "gpu0->nvswitch:1e400", "gpu0->nvswitch:10 GB/s", "x:1"),
    "link_down": ("gpu0->nvswitch", "gpu0", "*", "->", "nic0->gpu1"), "algorithm": (
        "auto", "ring", "tree", "direct", "all_reduce=ring", "all_reduce=ring,all_gather=direct", "halving-doubling", "nvls",
        "=", "all_reduce=", "hierarchical", "ring:chunks=2", "ring,tree", "oneshot", "twoshot", "tree:chunks=99999999999"),
    "expert_imbalance": ("balanced", "zipf:1", "zipf:1e9", "zipf:nan", "zipf:", "shares", "zipf:-1"),
    "capacity_factor": ("1", "0.5", "nan", "inf", "1e308", "-1"), "jitter": ("normal:5%", "normal:1e9%", "lognormal:5%", "normal:",
                                                                            "uniform:1", "normal:nan%"),
    "slow": ("rank=0:1.3", "rank=1:2", "rank=99999999999:2", "rank=0:nan", "rank=0", "node=0:2", "rank=0:1e400"),
    "placement": ("packed", "round-robin", "random:7", "random:", "random:99999999999999999999999", "places", "random:１", "pipe"),
    "cuts": ("linear.2", "linear.2,linear.2", ",", "x", "linear.*"), "bucket": ("25MiB", "1 B", "0", "1e30 GiB", "25"),
    "order": ("tp-cp-ep-dp-pp", "dp-tp-pp", "pp", "tp-tp", "-"), "seed": ("0", "7", "18446744073709551616", "-1"),
    "size": SIZES, "largest": SIZES, "show_rank": ("0", "1", "99999999999", "-1"), "tile": ("32x32", "0x0", "16x16x16", "1e9x1", "x"),
    "straggler": ("1:5 us", "1:1e30 s", "9:1 us", ":", "1:-1 us"), "distribution": ("fixed:5 us", "normal:5 us:1 us", "x", "uniform:1 us:2 us", "exponential:1 us"),
    "wakeup": ("5 us", "1 us,2 us", "1e30 s", "x"), "poll": ("64", "1 us", "0 ns", "1e30 s"), "sleep": ("1 us", "0", "1e30 s"),
    "monitor_wakeup": ("1 us", "0"), "link": ("nvlink=nvlink4", "x", "=", "pcie=pcie5"), "links_from": ("catalogue", "x", "h100"),
    "format": ("trine", "infragraph", "nvidia-smi", "nccl", "lstopo", "csv", "networkx", "x"), "since": ("first", "0", "1 us", "1 h"),
    "share": ("matmul=0.5", "x", "matmul=nan", "="), "machine": ("x",), "slow_by": ("1:2", "2:1", "nan:1", "1:1e400"),
    "op": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv", "all_to_all_v", "allreduce", "x"),
    "launch_cost": ("5 us", "0", "1e30 s"), "shard_unit": ("100MiB", "1 B"), "peak": ("100 TFLOP/s", "0", "1e300 FLOP/s"),
    "memory": ("80 GB", "1 TB/s", "1 B/s"), "line": ("0", "1", "128 B", "x"), "rows": ("32", "64", "32,64", "0"), "cols": ("32", "64", "32,64"),
    "peers": ("1", "3", "7", "1,3"), "inner": ("16", "64"), "flag_spacing": ("64", "128", "4096", "3"), "iterations": ("1", "5", "0"),
    "sequence": ("16", "64"), "image": ("32", "64"), "model": ("gpt-2", "llama-3-8b", "resnet18", "vgg11", "x"), "batch": ("1", "4", "8"),
    "circuit_setup": ("10 us", "0", "1e30 s"), "circuit_bandwidth": ("50 GB/s", "0"), "circuit_latency": ("1 us", "0"), "title": ("a", "$x^{$"),
    "circuit_buffer": ("1 MiB", "0"), "buffer": ("input", "flags", "x"), "kernel": ("gemv-allreduce", "k.gpu", "x"), "name": ("h100-sxm", "./m.yaml"),
    "workload": ("m.trine.json", "vgg13-h100-b128", "model:gpt-2,layers=1", "model:gpt-2,layers=99999999999", "model:", "model:x=1", "d", "pipe",
                 "model:gpt-2,layers=1,batch=99999999999999999999", "model:gpt-2,layers=1_0"),
}  # fmt: skip
INPUTS = ("calibration", "placement", "matrix", "comm_groups", "annotations", "mapping", "writes", "arrivals", "against", "file", "log",
          "graph", "prefix", "path", "traces", "result", "kernel", "cluster", "gpu_model", "workload", "name", "expert_imbalance", "algorithm",
          "links_from")  # fmt: skip
OUTPUTS = (
    "json",
    "csv",
    "yaml",
    "output",
    "perfetto",
    "inside_perfetto",
    "plot",
    "plot_noc",
    "timeline",
    "parquet",
    "chakra",
    "report",
)
#: Counts that a run's time goes up with: small ones, or such as are refused.
_PICKED = re.compile(r"^[\w-]+(\|[\w-]+)+$")


@functools.cache
def files() -> dict[str, bytes | None]:
    """What command lines may name."""
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
    """Every command of trine by its words, with the options that it declares."""
    import typer

    from trine.cli.main import app

    found: dict[str, Any] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        if inner := getattr(command, "commands", None):
            for name, each in inner.items():
                walk(each, (*words, name))
        else:
            found[" ".join(words)] = command

    walk(typer.main.get_command(app), ())
    return found


def values_of(parameter: Any, is_loadstore: bool) -> Sequence[str]:
    """What may be given for an option: what is valid in most draws, else wrong or huge."""
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
        known = [*COUNTS] if is_loadstore else [*COUNTS, "16", "1024"]
    return (*known, *known, *WRONG, *HUGE)


def edited(base: int, edits: Sequence[Edit]) -> Case:
    """A command line made of the ``base``-th valid one by edits ``(which option, how, which value)``, modulo what there is."""
    import shlex

    words = shlex.split(BASES[base % len(BASES)])
    name = max((each for each in commands() if words[: len(each.split())] == each.split()), key=len)
    command = commands()[name]
    heavy = name.startswith(("eidolon", "kernel")) or "loadstore" in words or "--compare-fidelity" in words
    for where, how, what in edits:
        parameter = command.params[where % len(command.params)]
        options = [each for each in (*parameter.opts, *parameter.secondary_opts) if each.startswith("-")]
        values = values_of(parameter, heavy)
        value = values[what % len(values)]
        if parameter.name in ("fidelity", "compare_fidelity", "jobs"):
            continue
        if not options:
            place = len(name.split())
            words[place : place + 1] = [value]
        elif getattr(parameter, "is_flag", False):
            words.append(options[what % len(options)])
        elif options[0] in words and how % 4:
            words[words.index(options[0]) + 1 : words.index(options[0]) + 2] = [value]
        elif options[0] in words and how % 8 == 0:
            at = words.index(options[0])
            del words[at : at + 1 + what % 2]
        else:
            words += [options[0], value]
    return Case(tuple(word.replace("\x00", "?") for word in words), files())
