"""``trine validate memory``: published peak memory against modelled peaks, and layouts that fit.

Nothing is simulated: trine writes each row's rank programs and replays PyTorch's allocator over them
(:mod:`trine.training.memory`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any, ClassVar, Literal, cast

from trine.common.units import format_bytes
from trine.errors import TrineError, one_line
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.results.memory import DOES_NOT_FIT, FITS, TIGHT, MemoryUse
from trine.results.report import Row, Table
from trine.results.text import aligned, wrapped
from trine.software import Software, load_software
from trine.software.profile import with_choices
from trine.training.memory import rank_memory, shortened
from trine.workload.synthesis.model import written
from trine.workload.synthesis.model_files import load_model
from trine.workload.synthesis.spec import Transformer
from validation.harness import (
    Errors,
    ReplayProgress,
    UnreadRow,
    Validation,
    error_lines,
    errors_by,
    grouped,
    named_rows,
    read_each,
    read_stored,
    read_table,
)
from validation.training_rows import FOLDER, check_sources, layer_cuts

# Published peak memory (presets/measured/training) as jobs: from a row to model, plan, software and measurement.
#
# Five sources: SimuMax (Megatron-LM on B200: allocated, of each stage); Megatron-LM's golden runs (allocated, last
# rank); the layouts of the Ultra-Scale Playbook (nanotron: most likely reserved, rank 0; including layouts without a
# result); torchtitan's benchmarks (reserved, largest rank); and single public reports (nvidia-smi's whole GiB, or
# reserved), one of a run that went out of memory.

MIB, GIB = 2**20, 2**30
SIMUMAX, GOLDEN, TORCHTITAN, PUBLIC = "simumax", "megatron-golden", "torchtitan", "public"
ULTRASCALE = "ultrascale"
ALLOCATED, RESERVED, NEEDED = "allocated", "reserved", "needed"
LAYOUTS_OPEN = (
    "which counter: reserved is inferred",
    "the commit of the run: gathered inputs are kept in one, not in the other",
    "layers of each stage: derived",
)
#: Size of GPT-2's byte-pair vocabulary, which the golden runs use; Megatron-LM pads it.
GPT2_VOCABULARY = 50257


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRow:
    """One measured peak, or a layout without a result (``measured_bytes`` None).

    counter: quantity measured: ``allocated``, ``reserved``, or ``needed`` (reserved plus memory outside PyTorch).
    stages: possible pipeline stages of the measured rank. test: shared by rows of one test on several platforms.
    open: facts that the source does not state. structural: reason why a layout cannot run whatever its memory, else "".
    nodes: 0 if unknown. is_layout: the row belongs to a sweep over layouts; some of them have no result.
    """

    source: str
    name: str
    counter: str
    measured_bytes: int | None
    model: Transformer
    plan: Plan
    software: Software
    stages: tuple[int, ...]
    open: tuple[str, ...]
    test: str = ""
    nodes: int = 0
    capacity_bytes: int = 0
    structural: str = ""
    is_layout: bool = False

    @property
    def can_count(self) -> bool:
        """Whether an error of the row would count: of layouts only on 1-2 nodes."""
        return not self.is_layout or self.nodes <= COUNTED_NODES


def load_memory_rows(source: str) -> tuple[MemoryRow, ...]:
    """Return the readable rows of one source, in the order of its table."""
    return read_memory_rows(source)[0]


@cache
def read_memory_rows(source: str) -> tuple[tuple[MemoryRow, ...], tuple[UnreadRow, ...]]:
    """Return the rows of one source, and its unreadable rows; rows on another subject are in neither."""
    table, read = _TABLES[source]

    def name(facts: Mapping[str, str]) -> tuple[str, str]:
        return source, facts.get("row") or facts.get("case") or facts.get("test") or f"{source}-{facts['number']}"

    rows = enumerate(read_table(FOLDER / f"{table}.csv"))
    return read_each(({"number": str(number), **facts} for number, facts in rows), read, name)


def changed(name: str, **memory: Any) -> Software:
    """Return a profile with other facts about memory; ``operators``: changes to its operators too."""
    software = load_software(name)
    operators = memory.pop("operators", {})
    style = software.operators.model_copy(update=operators)
    return software.model_copy(update={"memory": software.memory.model_copy(update=memory), "operators": style})


def _llama(name: str, facts: Mapping[str, str], sequence: int, *, tied: bool = False) -> Transformer:
    layers, hidden, heads, vocab = (int(facts[key]) for key in ("layers", "hidden", "heads", "vocab"))
    return Transformer(
        name=name, layers=layers, hidden=hidden, heads=heads, vocab=vocab, kv_heads=int(facts["kv_heads"] or heads),
        head_size=hidden // heads, ffn=int(facts["ffn_hidden"]), sequence=sequence, tied_embeddings=tied,
    )  # fmt: skip


def _simumax(facts: Mapping[str, str]) -> MemoryRow | None:
    if not facts["mem_max_allocated_GiB"]:
        return None
    dp, tp, pp = (int(facts[key]) for key in ("DP", "TP", "PP"))
    layers = int(facts["layers"])
    sharding = "zero1" if dp > 1 else "none"
    cuts = tuple(f"layers.{stage * layers // pp}.attention.norm" for stage in range(1, pp))
    plan = Plan(
        dp=dp, tp=tp, pp=pp, micro_batch=1, batch=int(facts["micro_batches"]), sequence_parallel=tp > 1,
        schedule="1f1b", sharding=sharding, cuts=cuts,
    )  # fmt: skip
    largest = max(int(size) for size in facts["mem_by_rank_MiB"].split("|"))
    shared = ("its memory run may have another number of micro-batches",) if facts["note"] else ()
    return MemoryRow(
        source=SIMUMAX, name=facts["case"], counter=ALLOCATED, measured_bytes=largest * MIB, plan=plan,
        model=_llama(facts["model"], facts, int(facts["seq_len"])),
        software=changed("megatron-core", operators={"loss": "fused", "dropout": False}, logits_bytes=4),
        stages=tuple(range(pp)), open=shared, nodes=1,
    )  # fmt: skip


def _torchtitan(facts: Mapping[str, str]) -> MemoryRow | None:
    if facts["precision"] != "bf16":
        return None
    is_compiled, gpus = facts["compile"] == "true", int(facts["FSDP"])
    software = changed("torchtitan-2025", operators={"loss": "unfused"}, logits_bytes=12)
    suffix = "-compiled" if is_compiled else ""
    profile = software if is_compiled else load_software("torchtitan-eager")
    return MemoryRow(
        source=TORCHTITAN, name=f"llama-3.1-8b-{gpus}{suffix}", counter=RESERVED,
        measured_bytes=round(float(facts["peak_memory_GiB"]) * GIB),
        plan=Plan(dp=gpus, batch=int(facts["local_batch"]), sharding="fsdp", recompute=facts["recompute"]),
        model=_llama("llama-3.1-8b", facts, int(facts["seq_len"])), software=profile, stages=(0,),
        open=("sequence 8192 is torchtitan's default of that time; the loss was not compiled then",),
        nodes=-(-gpus // 8),
    )  # fmt: skip


#: Shapes that differ from the model's default, by variant: defaults of Megatron-LM's arguments
#: (megatron/training/arguments.py), and defaults that remain in FlagPerf's script for Megatron-DeepSpeed.
_VARIANTS: dict[str, dict[str, Any]] = {
    "megatron-defaults": {"tied_embeddings": True, "biases": "all"},
    "megatron-dropout": {},
    "layer-norm-biases": {"norm": "layer", "biases": "all"},
}


def _public(facts: Mapping[str, str]) -> MemoryRow:
    variant, sequence = facts["variant"], int(facts["sequence"])
    model = load_model(facts["model"])
    assert isinstance(model, Transformer)
    positions = {"max_positions": sequence} if variant == "megatron-defaults" else {}
    shapes = _VARIANTS.get(variant, {}) | positions
    software = load_software(facts["software"])
    dp, tp, pp = (int(facts[key]) for key in ("dp", "tp", "pp"))
    is_fsdp = software.name.startswith("torchtitan")
    if dp == 1:
        sharding = "none"
    elif is_fsdp:
        sharding = "fsdp"
    else:
        sharding = "zero1"
    measured_bytes = round(float(facts["memory_GiB"]) * GIB) if facts["memory_GiB"] else None
    schedule = "1f1b" if pp > 1 else None
    profile = changed(software.name, operators={"dropout": True}) if variant.startswith("megatron") else software
    return MemoryRow(
        source=PUBLIC,
        name=facts["row"],
        counter=facts["counter"],
        measured_bytes=measured_bytes,
        model=replace(model, sequence=sequence, parameters=None, **shapes),
        plan=Plan(
            dp=dp,
            tp=tp,
            pp=pp,
            micro_batch=int(facts["micro_batch"] or facts["batch"]),
            batch=int(facts["batch"]),
            sharding=sharding,
            recompute=facts["recompute"],
            sequence_parallel=tp > 1 and "deepspeed" not in software.name,
            schedule=schedule,
        ),
        software=profile,
        stages=tuple(range(pp)),
        nodes=-(-int(facts["gpus"]) // 8),
        capacity_bytes=int(facts["capacity_GiB"]) * GIB,
        open=tuple(filter(None, (facts["open"],))),
    )


def _ultrascale(facts: Mapping[str, str]) -> MemoryRow:
    from trine.cluster import load_gpu

    names = {"slow": "nanotron-2024-polling"}
    measured = facts["memory_rank0_GiB"] if facts["status"] == "measured" else ""
    measured_bytes = round(float(measured) * GIB) if measured else None
    structure = "" if facts["status"] == "measured" else structural(facts["flags"])
    return MemoryRow(
        source=ULTRASCALE, name=facts.get("row") or f"ultrascale-{facts['number']}", counter=RESERVED,
        model=_llama(facts["model"], facts, int(facts["seq_len"]), tied=facts["tied_embeddings"] == "true"),
        measured_bytes=measured_bytes, plan=_layout(facts),
        software=load_software(names.get(facts["population"], "nanotron-2024")), stages=(0,),
        nodes=int(facts["nodes"]), capacity_bytes=load_gpu("h100-sxm").memory_bytes, structural=structure,
        open=LAYOUTS_OPEN, is_layout=True,
    )  # fmt: skip


def structural(flags: str) -> str:
    """Return the reason why a layout cannot run whatever its memory, from the flags of its row; else ""."""
    reasons = [flag for flag in flags.split("; ") if flag.startswith(("fewer micro", "empty", "more stages", "same"))]
    return "; ".join(reasons)


def _layout(facts: Mapping[str, str]) -> Plan:
    dp, tp, pp = (int(facts[key]) for key in ("DP", "TP", "PP"))
    micro_batch = int(facts["micro_batch"])
    return Plan(
        dp=dp, tp=tp, pp=pp, micro_batch=micro_batch, batch=micro_batch * int(facts["grad_accumulation"]),
        schedule="1f1b", sharding="zero1" if facts["zero_stage"] == "1" and dp > 1 else "none",
        sequence_parallel=tp > 1, cuts=layer_cuts(facts["stage_layers"]),
    )  # fmt: skip


# -- Megatron-LM's golden runs -----------------------------------------------------------------------------------------


def _golden(facts: Mapping[str, str]) -> MemoryRow | None:
    arguments = json.loads(facts["model_args"])
    if not is_dense_gpt(facts, arguments):
        return None
    settings = _Arguments(arguments, int(facts["gpus"]))
    if not settings.micro_batches:
        return None
    padded = ("padded vocabulary",) if "vocab-size" not in arguments else ()
    return MemoryRow(
        source=GOLDEN, name=f"{facts['test']}/{facts['platform']}", counter=ALLOCATED,
        measured_bytes=round(float(facts["mem_max_allocated_bytes"])), model=settings.model(), plan=settings.plan(),
        software=settings.software(), stages=(settings.pp - 1,), test=facts["test"], nodes=-(-int(facts["gpus"]) // 8),
        open=(*padded, "which state of Megatron-LM and Transformer Engine ran"),
    )  # fmt: skip


def is_dense_gpt(facts: Mapping[str, str], arguments: Mapping[str, Any]) -> bool:
    """Return whether a row is a dense GPT's pretraining with GPUs, layers and memory, and not on ``dracooci``."""
    return (
        all(facts[key] for key in ("num-layers", "mem_max_allocated_bytes", "gpus"))
        and not facts["num-experts"]
        and facts["test"].startswith("gpt/")
        and "dracooci" not in facts["platform"]
        and not {"multi-latent-attention", "perform-rl-step", "use-megatron-fsdp"} & set(arguments)
    )


class _Arguments:
    """The arguments of a golden run."""

    def __init__(self, arguments: Mapping[str, Any], gpus: int) -> None:
        self.get = cast(Callable[..., Any], arguments.get)
        names = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
        self.tp, self.pp, self.cp = (int(self.get(name, 1)) for name in names)
        self.dp = gpus // (self.tp * self.pp * self.cp)
        self.layers, self.hidden = int(self.get("num-layers")), int(self.get("hidden-size"))
        self.heads = int(self.get("num-attention-heads"))
        chunk = self.get("num-layers-per-virtual-pipeline-stage")
        self.virtual = (
            self.layers // self.pp // chunk if chunk else int(self.get("num-virtual-stages-per-pipeline-rank", 1))
        )
        self.micro_batches = int(self.get("global-batch-size")) // int(self.get("micro-batch-size")) // self.dp
        self.is_unfused = self.get("attention-backend") == "unfused" or self.get("transformer-impl") == "local"

    def model(self) -> Transformer:
        gated, hidden = bool(self.get("swiglu")), self.hidden
        usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden  # as Megatron-LM's arguments.py
        kv_heads = int(self.get("num-query-groups", self.heads)) if self.get("group-query-attention") else self.heads
        norm: Literal["rms", "layer"] = "rms" if self.get("normalization") == "RMSNorm" else "layer"
        activation: Literal["swiglu", "gelu"] = "swiglu" if gated else "gelu"
        biases: Literal["none", "qkv", "all"] = "none" if self.get("disable-bias-linear") else "all"
        if self.get("position-embedding-type") == "rope":
            positions = None
        else:
            positions = int(self.get("max-position-embeddings"))
        return Transformer(
            name="gpt", layers=self.layers, hidden=hidden, heads=self.heads, head_size=hidden // self.heads,
            kv_heads=kv_heads, ffn=int(self.get("ffn-hidden-size", usual)),
            vocab=int(self.get("vocab-size", GPT2_VOCABULARY)), sequence=int(self.get("seq-length")), norm=norm,
            activation=activation, biases=biases, max_positions=positions,
            tied_embeddings=not self.get("untie-embeddings-and-output-weights"),
        )  # fmt: skip

    def plan(self) -> Plan:
        size, groups = int(self.get("micro-batch-size")), self.get("num-distributed-optimizer-instances")
        count = self.micro_batches
        if self.virtual > 1:  # trine sends groups of one micro-batch per stage
            count = -(-count // self.pp) * self.pp
        sharded = bool(self.get("use-distributed-optimizer")) and self.dp * self.cp > 1
        schedule = "interleaved" if self.virtual > 1 else "1f1b"
        sharding = "zero1" if sharded else "none"
        shard_ways = self.dp // groups if groups and sharded else None
        recompute = "full" if self.get("recompute-granularity") == "full" else "none"
        return Plan(
            dp=self.dp, tp=self.tp, pp=self.pp, cp=self.cp, micro_batch=size, batch=size * count,
            virtual_stages=self.virtual, schedule=schedule, sharding=sharding, shard_ways=shard_ways,
            sequence_parallel=bool(self.get("sequence-parallel")) and self.tp > 1, cuts=self._cuts(),
            recompute=recompute,
        )  # fmt: skip

    def _cuts(self) -> tuple[str, ...]:
        chunks = self.pp * self.virtual
        if self.get("account-for-embedding-in-pipeline-split"):
            inner = (self.layers + 2) // chunks
            return layer_cuts([inner - 1, *[inner] * (chunks - 2), inner - 1])
        counts = [self.layers // chunks] * chunks
        first, last = (self.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
        if first and last and self.pp > 2:
            middle = (self.layers - first - last) // (self.pp - 2)
            stages = [first, *[middle] * (self.pp - 2), last]
            counts = [stages[chunk % self.pp] // self.virtual for chunk in range(chunks)]
        return layer_cuts(counts)

    def software(self) -> Software:
        """Return Megatron Core as set in these runs: gradient accumulation fusion, dropout and attention.

        In deterministic mode Transformer Engine uses FlashAttention and copies its result to sequence order. Deferred
        embedding gradients keep the gradients of ``wgrad-deferral-limit`` micro-batches' logits.
        """
        drops = self.get("hidden-dropout", 0.1) != 0.0
        fusion = self.get("cross-entropy-fusion-impl", "native") if self.get("cross-entropy-loss-fusion") else "unfused"
        chosen = with_choices(load_software("megatron-core"), fusion, None)
        logits = chosen.memory.logits_bytes
        if self.get("defer-embedding-wgrad-compute"):
            logits = (logits or 2) + 2 * int(self.get("wgrad-deferral-limit", 0))
        copies = bool(self.get("deterministic-mode")) and not self.is_unfused
        attention = "unfused" if self.is_unfused else "flash"
        weight_gradients = "operator" if self.get("no-gradient-accumulation-fusion") else "fused"
        keeps = {"attention": 1.0} if copies else {}
        return changed(
            "megatron-core",
            operators={
                "dropout": drops,
                "attention": attention,
                "loss": chosen.operators.loss,
            },
            weight_gradients=weight_gradients,
            logits_bytes=logits,
            keeps=keeps,
        )


#: Source -> its table, and the function from a line to a row (None: the line is on another subject).
_TABLES: Mapping[str, tuple[str, Callable[[Mapping[str, str]], MemoryRow | None]]] = {
    SIMUMAX: ("memory_simumax", _simumax), GOLDEN: ("memory_megatron", _golden), ULTRASCALE: ("layouts", _ultrascale),
    TORCHTITAN: ("memory_torchtitan", _torchtitan), PUBLIC: ("memory_public", _public),
}  # fmt: skip
SOURCES = tuple(_TABLES)


#: Rows of each source in a sample, evenly from its table.
SAMPLE_ROWS = 12
#: Layouts on more nodes do not count: communicators and fabrics decide more there.
COUNTED_NODES = 2
SHOWN = 25
VERDICTS = (FITS, TIGHT, DOES_NOT_FIT)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedMemory:
    """A row, the modelled memory of the measured ranks, and the verdict over all ranks that decide it.

    cpu_s: CPU time of the prediction.
    """

    row: MemoryRow
    use: MemoryUse | None
    verdict: str
    why_not: str = ""
    cpu_s: float = 0.0

    @property
    def predicted_bytes(self) -> int:
        assert self.use is not None
        by_counter = {ALLOCATED: self.use.allocated_bytes, NEEDED: self.use.needed_bytes}
        return by_counter.get(self.row.counter, self.use.reserved_bytes)

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        assert self.row.measured_bytes is not None
        return self.predicted_bytes / self.row.measured_bytes - 1

    @property
    def is_compared(self) -> bool:
        return self.use is not None and self.row.measured_bytes is not None

    @property
    def counts(self) -> bool:
        return self.is_compared and self.row.can_count


@dataclass(frozen=True, kw_only=True, repr=False)
class MemoryValidation(Validation):
    """All rows with their modelled memory."""

    SCHEMA: ClassVar[str] = "validate-memory"

    answers: tuple[ComparedMemory, ...]

    def errors(self) -> list[tuple[str, Errors]]:
        """Return errors by source; layouts on 1-2 nodes and on more nodes are apart."""

        def name(answer: ComparedMemory) -> str:
            return answer.row.source + ("" if answer.counts else f" at more than {COUNTED_NODES} nodes")

        compared = (answer for answer in self.answers if answer.is_compared)
        return list(errors_by(compared, name, lambda answer: answer.error).items())

    def spread(self) -> Errors | None:
        """Return differences of golden runs of one test on two platforms; None without such a test."""
        rows = [a.row for a in self.answers if a.row.source == GOLDEN and a.row.measured_bytes]
        tests = []
        for test in grouped(rows, lambda row: row.test).values():
            tests.append([row.measured_bytes or 0 for row in test])
        return Errors.of_some([b / a - 1 for sizes in tests for a, b in combinations(sizes, 2)])

    def confusion(self) -> dict[str, dict[str, int]]:
        """Return verdicts on layouts that ran, and on layouts that have neither a result nor a structural reason."""
        counts = {"ran": dict.fromkeys(VERDICTS, 0), "no result": dict.fromkeys(VERDICTS, 0)}
        for answer in self.answers:
            if answer.row.is_layout and answer.verdict in VERDICTS and not answer.row.structural:
                counts["ran" if answer.row.measured_bytes else "no result"][answer.verdict] += 1
        return counts

    @property
    def under_capacity(self) -> tuple[int, int]:
        """Layouts that ran with a modelled need below the capacity, and all layouts that ran."""
        ran = [a for a in self.answers if a.row.is_layout and a.is_compared]
        return sum(a.use is not None and a.use.needed_bytes <= a.row.capacity_bytes for a in ran), len(ran)

    @property
    def headline(self) -> str:
        """Mean error by source."""
        text = ", ".join(f"{name} {e.mean:.1%}" for name, e in self.errors())
        return f"{'sample: ' if self.is_sample else ''}{len(self.answers)} rows; mean error of peak memory: {text}"

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """Return errors by source, the confusion of verdicts, and the worst rows."""
        spread = self.spread()
        errors = [*self.errors(), *([] if spread is None else [("one test on two platforms", spread)])]
        failed = [f"not predicted: {row.name}: {row.why}" for row in self.unpredicted]
        return error_lines("error of peak memory", errors, 30), self._verdicts(), self._worst_rows(), failed

    @property
    def unpredicted(self) -> tuple[UnreadRow, ...]:
        rows = [a for a in self.answers if a.why_not]
        return (*self.unread, *(UnreadRow(source=a.row.source, name=a.row.name, why=a.why_not) for a in rows))

    def _verdicts(self) -> list[str]:
        confusion = self.confusion()
        rows: list[tuple[str, ...]] = [("layouts", *VERDICTS, "of")]
        for name, counts in confusion.items():
            total = sum(counts.values())
            if total:
                rows.append((name, *(f"{counts[v]} ({counts[v] / total:.1%})" for v in VERDICTS), str(total)))
        fitting, ran = self.under_capacity
        return [*aligned(rows, 30), f"of {ran} layouts that ran, {fitting} come out under the capacity"] if ran else []

    def _worst_rows(self) -> list[str]:
        counted = [a for a in self.answers if a.counts]
        worst = sorted(counted, key=lambda a: -abs(a.error))[:SHOWN]
        rows = [("worst rows", "counter", "measured", "predicted", "error")]
        rows += [
            (one_line(a.row.name, 55), a.row.counter, format_bytes(a.row.measured_bytes or 0),
             format_bytes(a.predicted_bytes), f"{a.error:+.1%}")
            for a in worst
        ]  # fmt: skip
        unknown = dict.fromkeys(text for a in worst for text in a.row.open)
        notes = [line for text in unknown for line in wrapped("not stated by the source", text)]
        return [*aligned(rows, 30), *notes] if worst else []

    def document(self) -> Row:
        """``errors`` by source, ``spread``, ``confusion`` and ``rows``; ``stored``: origin of a stored report."""
        spread, (fitting, ran) = self.spread(), self.under_capacity
        return {
            **self.replayed(), "errors": named_rows("source", self.errors()),
            "spread": spread.row() if spread is not None else None, "confusion": self.confusion(),
            "ran_under_capacity": fitting, "ran": ran, "not_predicted": self.not_predicted(), **self.tables(),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``rows`` of :meth:`document`."""
        rows: list[Row] = []
        for a in self.answers:
            predicted = a.predicted_bytes if a.use else None
            error = a.error if a.is_compared else None
            rows.append(
                {
                    "row": a.row.name,
                    "source": a.row.source,
                    "counter": a.row.counter,
                    "nodes": a.row.nodes or None,
                    "measured_bytes": a.row.measured_bytes,
                    "predicted_bytes": predicted,
                    "error": error,
                    "verdict": a.verdict or None,
                    "structural": a.row.structural or None,
                    "open": list(a.row.open),
                    "why_not": a.why_not or None,
                }
            )
        return {"rows": rows}


def validate_memory(
    *, sample: bool = False, sources: Sequence[str] | None = None, progress: Callable[[int, int], None] | None = None
) -> MemoryValidation:
    """Model the peak memory of all bundled rows; ``sample``: of some of each source.

    progress: called with the work done and all work, in milliseconds of CPU time. Raises InputError for an unknown
    source.
    """
    check_sources(sources, SOURCES)
    rows = [row for source in sources or SOURCES for row in _sampled(load_memory_rows(source), sample)]
    model, answers, count_row = ModelledMemory(), [], ReplayProgress("memory", (row.name for row in rows), progress)
    for row in rows:
        began = time.process_time()
        answers.append(replace(model.compared(row), cpu_s=time.process_time() - began))
        count_row(row.name)
    unread = [row for source in sources or SOURCES for row in read_memory_rows(source)[1]]
    return MemoryValidation(answers=tuple(answers), is_sample=sample, unread=tuple(unread))


def load_stored_memory() -> MemoryValidation:
    """Return the stored report of all rows, without modelling them again."""
    origin, content = read_stored("memory")
    rows = {row.name: row for source in SOURCES for row in load_memory_rows(source)}
    answers = tuple(
        ComparedMemory(
            row=rows[record["row"]], use=record["use"] and MemoryUse(**record["use"]), verdict=record["verdict"],
            why_not=record["why_not"], cpu_s=record["cpu_s"],
        )
        for record in content["rows"]
        if record["row"] in rows
    )  # fmt: skip
    unread = tuple(row for source in SOURCES for row in read_memory_rows(source)[1])
    return MemoryValidation(answers=answers, unread=unread, stored=origin)


def _sampled(rows: Sequence[MemoryRow], sample: bool) -> Sequence[MemoryRow]:
    if not sample:
        return rows
    counted = [row for row in rows if not row.structural and row.can_count]
    return counted[:: max(len(counted) // SAMPLE_ROWS, 1)]


class ModelledMemory:
    """Modelled peaks; layouts with the same memory are modelled once."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[object, ...], MemoryUse] = {}
        self._workloads: dict[tuple[str, str], Workload] = {}

    def compared(self, row: MemoryRow) -> ComparedMemory:
        """Return the row with its modelled memory, or with the reason for its absence."""
        if row.structural:
            return ComparedMemory(row=row, use=None, verdict="", why_not="")
        try:
            use = self._largest(row, row.stages)
            ends = (row.plan.pp - 1,) if row.is_layout else ()
            deciding = [use, self._largest(row, ends)] if ends and ends != row.stages else [use]
        except TrineError as error:
            return ComparedMemory(row=row, use=None, verdict="", why_not=str(error))
        verdicts = [use.verdict for use in deciding]
        worst = max(verdicts, key=lambda v: VERDICTS.index(v) if v in VERDICTS else -1)
        return ComparedMemory(row=row, use=use, verdict=worst)

    def _largest(self, row: MemoryRow, stages: Iterable[int]) -> MemoryUse:
        uses = [self._use(row, stage) for stage in stages]
        return max(uses, key=lambda use: use.needed_bytes)

    def _use(self, row: MemoryRow, stage: int) -> MemoryUse:
        plan = plain(row.plan)
        key = (repr(row.model), row.software.model_dump_json(), shortened(plan, 1), stage, row.capacity_bytes)
        if key not in self._by_key:
            workload = self._workload(row.model, row.software)
            uses = rank_memory(workload, plan, row.software, stages=[stage], capacity_bytes=row.capacity_bytes)
            self._by_key[key] = uses[0].use
        return self._by_key[key]

    def _workload(self, model: Transformer, software: Software) -> Workload:
        key = (repr(model), software.operators.model_dump_json())
        if key not in self._workloads:
            self._workloads[key] = written(model, software=software)
        return self._workloads[key]


def plain(plan: Plan) -> Plan:
    """Return the plan with at most two replicas if it has no sharding: more replicas need the same memory."""
    return replace(plan, dp=2) if plan.dp > 2 and plan.sharding == "none" else plan
