"""Terminal side of options: panels, metavars, shell completions, and conversion of the typed text.

``WORDS`` has a row for each dataclass whose fields are options: the panel of the help page, and the properties of each
field beyond its name, type and help text. Registries are queried only for a help page or a completion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from trine.common.plugins import load_target
from trine.errors import InputError, PlanError, nearest

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


# Names for completion, imported on first use.


def _names(target: str) -> Callable[[], Iterable[str]]:
    return lambda: load_target(target)()


clusters = _names("trine.cluster:known_clusters")
gpus = _names("trine.cluster.presets:known_gpus")
gpu_models = _names("trine.gpu.model.files:known_gpu_models")
traces = _names("trine.workload.readers:bundled")
models = _names("trine.workload:known_models")
topologies = _names("trine.cluster:known_topologies")
collectives = _names("trine.collectives.registry:known_kinds")
schedules = _names("trine.parallel.schedules:SCHEDULES.names")
engines = _names("trine.inference.engines:known_engines")
served_precisions = _names("trine.inference.precision:served_precisions")
compute_models = _names("trine.compute.models:COMPUTE_MODELS.names")
networks = _names("trine.engine.models:NETWORK_MODELS.names")
formats = _names("trine.formats.clusters:READERS.names")
studies = _names("trine.validation.cases:CASES.keys")
fused_kernels = _names("trine.gpu.kernels.fused.build:known_fused")


def workloads() -> Iterable[str]:
    return [*traces(), *(f"model:{name}" for name in models())]


def software_profiles() -> Iterable[str]:
    from trine.software import known_software
    from trine.software.profile import NO_SOFTWARE

    return [*known_software(), NO_SOFTWARE]


def algorithms() -> Iterable[str]:
    from trine.collectives.registry import known_algorithms

    return dict.fromkeys(name for kind in collectives() for name in known_algorithms(kind))


def algorithm_pairs() -> Iterable[str]:
    from trine.collectives.registry import known_algorithms

    return [f"{kind}={name}" for kind in collectives() for name in known_algorithms(kind)]


# Conversion of texts.


def names(text: str, option: str) -> tuple[str, ...]:
    """Return ``a, b`` as a tuple. Raises PlanError for an empty name."""
    parts = tuple(name.strip() for name in text.split(","))
    if not all(parts):
        raise PlanError(f"{option} holds an empty name: {text!r}")
    return parts


def pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Return ``all_reduce=ring,broadcast=ring`` as pairs. Raises PlanError for another form."""
    choices = []
    for item in names(text, "--algorithm"):
        kind, _, name = item.partition("=")
        if not kind or not name:
            raise PlanError(f"--algorithm takes COLLECTIVE=NAME, such as all_reduce=ring; got {item!r}")
        choices.append((kind.strip(), name.strip()))
    return tuple(choices)


def _cuts(text: str) -> tuple[str, ...]:
    return names(text, "--cuts")


def _batches(text: str) -> tuple[int, ...] | str:
    """Return ``6,6,2,2`` as numbers; return a word in lower case for the plan to check."""
    from trine.common.units import whole_number

    sizes = [whole_number(size, most=10**12) for size in names(text, "--replica-batches")]
    if sizes == [None]:
        return text.lower()
    if None in sizes:
        raise PlanError(f"--replica-batches takes whole numbers such as 6,6,2,2, or 'time'; got {text[:80]!r}")
    return tuple(size for size in sizes if size is not None)


def _repeated(text: str) -> tuple[int, ...]:
    """Return ``0,1*126,0`` as numbers, where ``N*TIMES`` repeats a number."""
    from trine.common.units import whole_number
    from trine.parallel.plan import MAX_LAYERS

    counts: list[int] = []
    for part in names(text, "--stage-layers"):
        number, star, times = part.partition("*")
        count, repeats = whole_number(number, 0, MAX_LAYERS), whole_number(times, 1, MAX_LAYERS) if star else 1
        if count is None or repeats is None or len(counts) + repeats > MAX_LAYERS:
            raise PlanError(
                f"--stage-layers takes whole numbers of 0 to {MAX_LAYERS}, such as 0,1*126,0; got {part[:40]!r}"
            )
        counts += [count] * repeats
    return tuple(counts)


def _bucket(text: str) -> int:
    from trine.common.units import parse_bytes

    cap = parse_bytes(text, "--bucket")
    if cap < 1:
        raise PlanError(f"--bucket must be positive, got {text!r}")
    return cap


def _overlap(text: str) -> str:
    """Return a plan's overlap, or ``range``, which only the command line has. Raises PlanError for another word."""
    word, words = text.lower(), OVERLAP_WORDS.split("|")
    if word not in words:
        hint = nearest(word, words, is_listed=True)
        raise PlanError(f"--overlap must be one of {', '.join(words)}; got {text[:80]!r}{hint}")
    return word


def _calibration(path: str) -> Any:
    from trine.compute import Calibration

    return Calibration.load(path)


def _share(text: str) -> float:
    """Return ``1.5%`` or ``0.015`` as a fraction. Raises InputError for another form."""
    from trine.common.units import finite_number

    number = finite_number(text.removesuffix("%"))
    if number is None:
        raise InputError(f"takes a part of the average speed such as 1.5%, got {text[:80]!r}", field="--gpu-spread")
    return number / (100 if text.endswith("%") else 1)


def _tile(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,9}(x\d{1,9}){0,2}", text):
        raise InputError(f"--tile is like 64x256, or 128x128x32 for a GEMM, got {text[:80]!r}")
    return tuple(int(part) for part in text.split("x"))


def _stragglers(texts: Iterable[str]) -> dict[int, str]:
    pairs = [_straggler(text) for text in texts]
    by_rank = dict(pairs)
    if len(by_rank) < len(pairs):
        raise InputError("--straggler names a rank twice")
    return by_rank


def _straggler(text: str) -> tuple[int, str]:
    rank, colon, late = text.partition(":")
    if not colon or not rank.isdecimal() or len(rank) > 6:
        raise InputError(f"--straggler is RANK:TIME, such as '2:5 us', got {text[:80]!r}")
    return int(rank), late


def _normalise(algorithm: str) -> str:
    """Return NCCL_ALGO's spelling in lower case, and the path of a plan unchanged."""
    return algorithm.lower() if algorithm.isalpha() else algorithm


def _fixed_fields(texts: list[str]) -> dict[str, Any]:
    return dict(load_target("trine.search.space:parse_fixed")(tuple(texts)))


def word(metavar: str, panel: str | None = None, values: Callable[[], Iterable[str]] | None = None) -> Option:
    """Return an option that takes one of a few words, in any case."""
    return Option(metavar=metavar, panel=panel, values=values, read=str.lower, kind=str)


LOSS_WORDS, GRADIENT_WORDS = "native|te|unfused", "bf16|fp32"
OVERLAP_WORDS = "ideal|modelled|none|range"
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
        "replica_batches": Option(metavar="6,6,2,2|time", panel=JOB, read=_batches, kind=str),
        "schedule": Option(panel=PIPELINE, values=schedules, read=str.lower, kind=str, is_listed=True),
        "virtual_stages": Option(panel=PIPELINE),
        "balance": word("time|layers|blocks|blocks+embedding|blocks+loss|blocks+embedding+loss|nanotron", PIPELINE),
        "cuts": Option(panel=PIPELINE, read=_cuts, kind=str),
        "stage_layers": Option(metavar="N,N*TIMES,...", panel=PIPELINE, read=_repeated, kind=str),
        "first_stage_layers": Option(panel=PIPELINE),
        "last_stage_layers": Option(panel=PIPELINE),
        "defer_head_gradient": Option(panel=PIPELINE),
        "sync": word("last|each", PIPELINE),
        "recompute": word("none|full|selective", MEMORY),
        "recompute_layers": Option(panel=MEMORY),
        "offload": word("optimizer|activations", MEMORY),
        "bucket_bytes": Option(read=_bucket),
        "tp_style": word("column|megatron"),
        "sharding": word("none|zero1|zero2|zero3|fsdp"),
        "buffers": word("auto|broadcast|none"),
        "cp_style": word("ring|all-gather|ulysses"),
        "order": Option(panel=LAYOUT, read=str.lower),
        "expert_imbalance": Option(metavar="balanced|zipf:S|FILE"),
        "overlap": Option(metavar=OVERLAP_WORDS, read=_overlap, kind=str),
        "inputs": word("step|prefetch|none", JOB),
        "algorithm": Option(panel=NETWORK, metavar="KIND=NAME,...", values=algorithm_pairs, read=pairs, kind=str),
    }),
    "SimulateOptions": (COMPUTE, {
        "gpu": Option(values=gpus),
        "trace_gpu": Option(values=gpus),
        "software": Option(metavar="NAME|FILE", values=software_profiles, kind=str),
        "documents": Option(metavar="LENGTH|uniform:A:B|FILE", panel=JOB),
        "precision": Option(metavar="RECIPE", panel=JOB),
        "trainable": Option(metavar="lora:RANK", panel=JOB),
        "gradient_dtype": word(GRADIENT_WORDS),
        "loss": word(LOSS_WORDS),
        "compute": Option(metavar="auto|recorded|linear|roofline|tables", values=compute_models),
        "calibration": Option(metavar="FILE", read=_calibration, kind=str),
        "network": Option(metavar=NETWORK_WORDS, panel=NETWORK, values=networks, kind=str),
        "collective_costs": Option(metavar="links|library|loadstore", panel=NETWORK, kind=str),
        "placement": Option(metavar="packed|round-robin|random:SEED|FILE", panel=RANKS, kind=str),
        "power_cap_w": Option(metavar="500W", panel=CHANCE),
        "gpu_spread": Option(metavar="1.48%", panel=CHANCE, read=_share, kind=str),
        "compare": Option(word="advice", panel=OUTPUT),
    }),
    "PlanOptions": (OPTIONS, {
        "fix": Option(metavar="FIELD=VALUE", read=_fixed_fields),
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
        "algorithm": Option(values=algorithms, read=_normalise),
        "protocol": word("auto|ll|ll128|simple|none"),
        "launch": Option(metavar="process-per-gpu|single-process|graph"),
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
        "tile": Option(metavar="RxC[xK]", read=_tile, kind=str),
        "algorithm": Option(metavar="oneshot|twoshot"),
        "flags": Option(metavar="joint|single"),
        "fused": Option(word="unfused", negates=True),
        **{name: Option(panel=WRITES) for name in ("peers", "wakeup", "distribution", "seed", "together", "symmetric")},
        "wakeup_from": Option(metavar="wait|start", panel=WRITES),
        "straggler": Option(metavar="RANK:TIME", panel=WRITES, read=_stragglers),
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
