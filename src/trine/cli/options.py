"""Terminal side of options: panels, metavars, shell completions, and conversion of the typed text.

``WORDS`` has a row for each dataclass whose fields are options: the panel of the help page, and the properties of each
field beyond its name, type and help text. Registries are queried only for a help page or a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from trine.cli.completions import (
    algorithm_pairs,
    algorithms,
    cast_recipes,
    clusters,
    compute_models,
    engines,
    gpu_models,
    gpus,
    networks,
    schedules,
    served_precisions,
    software_profiles,
    topologies,
)
from trine.cli.conversions import (
    OVERLAP_WORDS,
    algorithm_name,
    bucket_size_of,
    cut_names,
    fixed_fields,
    layer_counts_of,
    load_calibration,
    nvls_chunk_of,
    overlap_word,
    pairs,
    replica_batches_of,
    share_of,
    straggler_times,
    tile_sizes,
)
from trine.errors import InputError

#: Panels of help pages.
ARGUMENTS, OPTIONS, OUTPUT = "Arguments", "Options", "Output"
LAYOUT, PIPELINE, FORMS, MEMORY = "Layout", "Pipeline", "Forms of parallelism", "Memory"
JOB, COMPUTE, NETWORK, MACHINE = "Job", "Operator times", "Network", "Machine"
CIRCUITS, RANKS, CHANCE = "Circuits between GPUs", "Ranks", "Slow ranks and chance"
FAILURES = "Failures of the run (--tokens)"
SERVING = "Serving (--serve)"
WRITES, WAITS = "What peers send", "Choose how wavefronts wait"
EXPERTS = "Tokens and experts (moe_dispatch, moe_combine)"
HOW, INSIDE = "How it is run", "Load by load, store by store (--fidelity loadstore)"


@dataclass(frozen=True, slots=True)
class Option:
    """Command-line properties of a parameter besides its name, type and default.

    names: as typed, if not ``--`` and the parameter's name. values: completions, computed on demand; by default the
    words of a metavar ``a|b``. word: the option's name if it differs from the field's. read: converts the text to the
    field's value. negates: the flag sets the field to False. kind: type of the typed text if it differs from the
    field's. is_listed: help pages show the values, plug-ins included, in place of the metavar.
    """

    help: str = ""
    metavar: str | None = None
    panel: str | None = None
    names: tuple[str, ...] = ()
    values: Callable[[], Iterable[str]] | None = None
    word: str | None = None
    read: Callable[[Any], Any] | None = None
    negates: bool = False
    kind: Any = None
    is_argument: bool = False
    is_listed: bool = False


def argument(help: str, metavar: str | None = None, values: Callable[[], Iterable[str]] | None = None) -> Option:
    """Return a positional parameter."""
    return Option(help, metavar, ARGUMENTS, values=values, is_argument=True)


def word(metavar: str, panel: str | None = None, values: Callable[[], Iterable[str]] | None = None) -> Option:
    """Return an option that takes one of a few words, in any case."""
    return Option(metavar=metavar, panel=panel, values=values, read=str.lower, kind=str)


LOSS_WORDS, GRADIENT_WORDS = "native|te|unfused", "bf16|fp32"
NETWORK_WORDS = "fair|equal|fifo|circuit"
_REQUESTS = {
    "unroll": Option(), "max_outstanding": Option(), "arbitration": Option(metavar="fifo|fair"),
    "bookkeeping": Option(metavar="library|none"), "initiator": Option(metavar="gpu|proxy"),
    "gpu_model": Option(values=gpu_models, kind=str),
}  # fmt: skip

#: dataclass -> the panel of its options, and the options with properties beyond their field's.
WORDS: dict[str, tuple[str, dict[str, Option]]] = {
    "LayoutOptions": (LAYOUT, {"parallel": Option(metavar="dp|ddp|fsdp|tp|pp"), "global_batch": Option(panel=JOB)}),
    "Plan": (FORMS, {
        **{axis: Option(panel=LAYOUT) for axis in ("dp", "tp", "pp", "cp", "ep", "etp", "order")},
        **{name: Option(panel=JOB) for name in ("batch", "micro_batch", "steps")},
        "replica_batches": Option(metavar="6,6,2,2|time", panel=JOB, read=replica_batches_of, kind=str),
        "schedule": Option(panel=PIPELINE, values=schedules, read=str.lower, kind=str, is_listed=True),
        "virtual_stages": Option(panel=PIPELINE),
        "balance": word("time|layers|blocks|blocks+embedding|blocks+loss|blocks+embedding+loss|nanotron", PIPELINE),
        "cuts": Option(panel=PIPELINE, read=cut_names, kind=str),
        "stage_layers": Option(metavar="N,N*TIMES,...", panel=PIPELINE, read=layer_counts_of, kind=str),
        "first_stage_layers": Option(panel=PIPELINE),
        "last_stage_layers": Option(panel=PIPELINE),
        "defer_head_gradient": Option(panel=PIPELINE),
        "sync": word("last|each", PIPELINE),
        "recompute": word("none|full|selective", MEMORY),
        "recompute_layers": Option(panel=MEMORY),
        "offload": word("optimizer|activations", MEMORY),
        "bucket_bytes": Option(read=bucket_size_of),
        "tp_style": word("column|megatron"),
        "sharding": word("none|zero1|zero2|zero3|fsdp"),
        "buffers": word("auto|broadcast|none"),
        "cp_style": word("ring|all-gather|ulysses"),
        "order": Option(panel=LAYOUT, read=str.lower),
        "expert_imbalance": Option(metavar="balanced|zipf:S|FILE"),
        "overlap": Option(metavar=OVERLAP_WORDS, read=overlap_word, kind=str),
        "inputs": word("step|prefetch|none", JOB),
        "algorithm": Option(panel=NETWORK, metavar="KIND=NAME,...", values=algorithm_pairs, read=pairs, kind=str),
    }),
    "SimulateOptions": (COMPUTE, {
        "gpu": Option(values=gpus),
        "trace_gpu": Option(values=gpus),
        "software": Option(metavar="NAME|FILE", values=software_profiles, kind=str),
        "documents": Option(metavar="LENGTH|uniform:A:B|FILE", panel=JOB),
        "precision": Option(metavar="RECIPE", panel=JOB, values=cast_recipes),
        "trainable": Option(metavar="lora:RANK", panel=JOB),
        "gradient_dtype": word(GRADIENT_WORDS),
        "loss": word(LOSS_WORDS),
        "compute": Option(metavar="auto|recorded|linear|roofline|tables", values=compute_models),
        "calibration": Option(metavar="FILE", read=load_calibration, kind=str),
        "network": Option(metavar=NETWORK_WORDS, panel=NETWORK, values=networks, kind=str),
        "collective_costs": Option(metavar="links|library|loadstore", panel=NETWORK, kind=str),
        "placement": Option(metavar="packed|round-robin|random:SEED|FILE", panel=RANKS, kind=str),
        "power_cap_w": Option(metavar="500W", panel=CHANCE),
        "gpu_spread": Option(metavar="1.48%", panel=CHANCE, read=share_of, kind=str),
        "compare": Option(word="advice", panel=OUTPUT),
    }),
    "PlanOptions": (OPTIONS, {
        "fix": Option(metavar="FIELD=VALUE", read=fixed_fields),
        "precision": Option(values=cast_recipes),
        "software": Option(metavar="NAME|FILE", values=software_profiles, kind=str),
        "gradient_dtype": word(GRADIENT_WORDS),
        "loss": word(LOSS_WORDS),
        "gpu": Option(values=gpus),
    }),
    "ServingGoal": (SERVING, {
        "input_tokens": Option(metavar="N", names=("--isl",)),
        "output_tokens": Option(metavar="N", names=("--osl",)),
        "prefix_tokens": Option(metavar="N", names=("--prefix",)),
        "ttft": Option(metavar="TIME"),
        "tpot": Option(metavar="TIME"),
        "engine": Option(metavar="NAME", values=engines),
        "precision": Option(metavar="NAME", values=served_precisions),
        "kv_precision": Option(metavar="bf16|fp8", names=("--kv-dtype",)),
    }),
    "Failures": (FAILURES, {
        "mtbf_per_gpu": Option(metavar="HOURS"),
        "checkpoint": Option(metavar="SECONDS"),
        "restart": Option(metavar="SECONDS"),
    }),
    "MachineOptions": (MACHINE, {
        "cluster": Option(values=clusters),
        "fabric": Option(metavar="KIND[:OVER][@LINK]"),
        "slow_link": Option(metavar="LINK:FACTOR"),
        "link_down": Option(metavar="LINK"),
        "topology": Option(values=topologies),
        **{f"circuit_{name}": Option(panel=CIRCUITS) for name in ("setup", "ports", "bandwidth", "latency", "buffer")},
    }),
    "RankOptions": (RANKS, {
        "show_rank": Option(metavar="R"),
        "slow": Option(metavar="rank=17:1.3", panel=CHANCE),
        "jitter": Option(metavar="normal:5%", panel=CHANCE),
        "jitter_per": word("operator|step", CHANCE),
        "seed": Option(panel=CHANCE),
        "repeat": Option(panel=CHANCE),
    }),
    "CollectiveOptions": (HOW, {
        "library": word("auto|nccl|rccl"),
        "algorithm": Option(values=algorithms, read=algorithm_name),
        "protocol": word("auto|ll|ll128|simple|none"),
        "launch": Option(metavar="process-per-gpu|single-process|graph"),
        "nvls_chunk": Option(metavar="SIZE", read=nvls_chunk_of, kind=str),
    }),
    "LoadStoreOptions": (INSIDE, _REQUESTS),
    "MoeOptions": (EXPERTS, {
        "expert_imbalance": Option(metavar="balanced|zipf:S|FILE"),
        "draws": word("random|rotated"),
        "dispatch_type": word("fp8|bf16"),
    }),
    "HopProtocol": ("Protocol", {"order": Option(metavar="parallel|serial")}),
    "Chance": (CHANCE, {
        "slow_by": Option(metavar="LOW:HIGH"), "slow_per": Option(metavar="link|gpu"),
        "slow": Option(metavar="rank=3:1.5"), "jitter": Option(metavar="normal:5%"),
    }),
    "KernelChoices": (INSIDE, {
        "protocol": Option(metavar="simple|ll|ll128"),
        "compute_traffic": Option(word="no_compute_traffic", negates=True),
    }),
    "EidolonOptions": ("Kernel", {
        "dtype_bytes": Option(word="dtype_bytes", kind=int),
        "tile": Option(metavar="RxC[xK]", read=tile_sizes, kind=str),
        "algorithm": Option(metavar="oneshot|twoshot"),
        "flags": Option(metavar="joint|single"),
        "fused": Option(word="unfused", negates=True),
        **{name: Option(panel=WRITES) for name in ("peers", "wakeup", "distribution", "seed", "together", "symmetric")},
        "wakeup_from": Option(metavar="wait|start", panel=WRITES),
        "straggler": Option(metavar="RANK:TIME", panel=WRITES, read=straggler_times),
        "writes": Option(metavar="FILE", panel=WRITES, kind=str),
        "arrivals": Option(metavar="FILE", panel=WRITES, kind=str),
        "fabric": Option(metavar="ideal|modelled", panel=WRITES),
        "sync": Option(metavar="spin|mwait|sleep", panel=WAITS),
        **{name: Option(panel=WAITS) for name in ("poll", "sleep", "monitor_capacity", "monitor_wakeup")},
        "issue_seed": Option(panel=MACHINE),
        "gpu_model": Option(panel=MACHINE, values=gpu_models),
        "cluster": Option(panel=MACHINE, values=clusters),
        "engine": Option(metavar="compiled|reference", panel=MACHINE),
    }),
    "Inside": (INSIDE, {"fidelity": Option(metavar="operator|loadstore"), "plot_noc": Option(metavar="FILE")}),
}  # fmt: skip

# Options shared by several commands.
Json = Annotated[str | None, Option("Write the answer as JSON; - for stdout.", "FILE", OUTPUT)]
Perfetto = Annotated[str | None, Option("Write a timeline for https://ui.perfetto.dev.", "FILE", OUTPUT)]
Brief = Annotated[bool, Option("Print the headline only.", panel=OUTPUT)]
Details = Annotated[bool, Option("Print everything: all tables, evidence and assumptions.", panel=OUTPUT)]
Parquet = Annotated[str | None, Option("Write all records to this folder.", "DIR", OUTPUT)]
Timeline = Annotated[str | None, Option("Draw the timeline (PNG, SVG); needs trine[plot].", "FILE", OUTPUT)]
Engine = Annotated[str, Option("Choose the engine, or its Python twin.", "compiled|reference")]


def number_pair(text: str, option: str) -> tuple[float, float]:
    """Return ``LOW:HIGH`` as two numbers. Raises InputError for another form."""
    from trine.common.units import finite_number

    low, high = (finite_number(part) for part in text.partition(":")[::2])
    if low is None or high is None:
        raise InputError(f"{option} takes LOW:HIGH such as 1:10, got {text!r:.80}")
    return low, high


#: Values of options in other tools, and trine's.
VALUES_ELSEWHERE = {("--offload", "cpu"): "optimizer", ("--recompute", "true"): "full", ("--sharding", "zero"): "zero1"}
