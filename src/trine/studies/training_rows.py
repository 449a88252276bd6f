"""Published training steps (presets/measured/training) as jobs: a row -> model, plan, cluster, software.

Rows keep what their source states. What it does not is blank there, taken from ``sources.yaml``, and listed in
:attr:`TrainingRow.open`.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

from trine.cluster import Cluster, load_cluster
from trine.errors import InputError, nearest
from trine.inputs import PRESETS, read_bytes
from trine.parallel.plan import Plan
from trine.results.headline import scale_of
from trine.software.profile import Software, load_software
from trine.workload.synthesis.spec import Transformer

FOLDER = PRESETS / "measured" / "training"
ULTRASCALE = "ultrascale"
GPUS_PER_NODE = 8
#: Columns whose value decides the step: where blank, the row says so.
DECISIVE = ("vocab", "sequence", "micro_batch", "recompute", "sequence_parallel", "sharding")
#: Columns of a layout -> those of a step.
_LAYOUT_NAMES = {
    "ffn_hidden": "ffn", "seq_len": "sequence", "TP": "tp", "PP": "pp", "DP": "dp", "iteration_s": "step_s",
    "tied_embeddings": "tied",
}  # fmt: skip
CLEAN, SLOW = "clean", "slow"
#: What follows the last layer: the head stays with the loss.
_BEHIND = ("final_norm", "head")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSource:
    """A source of rows: an entry of ``sources.yaml``, which says what each field means."""

    key: str
    title: str
    licence: str
    counts: bool
    cluster: str | Mapping[str, str]
    generation: str | Mapping[str, str]
    software: str
    operators: Mapping[str, Any]
    model: Mapping[str, Any]
    plan: Mapping[str, Any]
    fill: Mapping[str, Any]
    open: tuple[str, ...]
    why: str

    def cluster_of(self, gpu: str) -> str:
        """Return the preset, or file of ``clusters/``, for a machine with this GPU. Raises InputError if unknown."""
        return _of_gpu(self.cluster, gpu)

    def profile(self) -> Software:
        """The profile of its software, with its options."""
        software = load_software(self.software)
        return software.model_copy(update={"operators": software.operators.model_copy(update=self.operators)})

    def generation_of(self, gpu: str) -> str:
        """Return the GPU's architecture."""
        return _of_gpu(self.generation, gpu)


def _of_gpu(known: str | Mapping[str, str], gpu: str) -> str:
    """Return the value for a GPU as its source names it; a single value holds for all of them."""
    if isinstance(known, str):
        return known
    if gpu not in known:
        raise InputError(f"unknown GPU {gpu[:40]!r}{nearest(gpu, known)}", field="gpu")
    return known[gpu]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRow:
    """One measured step, or a layout without a result (``step_s`` None).

    facts: columns by name, as the source states them. apart: why it does not count, empty where it does. fault: why
    the row cannot be read; validation lists it and goes on.
    """

    name: str
    source: TrainingSource
    facts: Mapping[str, str]
    step_s: float | None
    apart: str
    fault: str = ""

    def whole(self, column: str, default: int | None = None) -> int:
        """A column as a whole number: what the row states, else what the source fills in, else ``default``."""
        value = self.facts.get(column) or self.source.fill.get(column) or default
        if value is None:
            raise InputError(f"{self.name} does not state it, and there is no default", field=column)
        return whole_number(value, column)

    @property
    def num_gpus(self) -> int:
        return self.whole("gpus")

    @property
    def num_nodes(self) -> int:
        return -(-self.num_gpus // GPUS_PER_NODE)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.whole("global_batch") * self.whole("sequence")

    @property
    def model(self) -> str:
        name, size = self.facts["model"], self.facts.get("params_B")
        return name if not size or f"{size}B".lower() in name.lower() else f"{name} {size}B"

    @property
    def scale(self) -> str:
        """A word of :data:`trine.results.headline.SCALES`."""
        return scale_of(self.num_nodes)

    @property
    def gpu(self) -> str:
        """The name of the GPU of ours."""
        return gpu_of(self.source.cluster_of(self.facts["gpu"]))

    @property
    def generation(self) -> str:
        return self.source.generation_of(self.facts["gpu"])

    @property
    def open(self) -> tuple[str, ...]:
        """What the source leaves open, in words."""
        blank = tuple(
            f"{name.replace('_', ' ')}: assumed {self.source.fill[name]}" if name in self.source.fill
            else f"{name.replace('_', ' ')} not stated"
            for name in DECISIVE
            if not self.facts.get(name) and name not in self.source.plan and self._matters(name)
        )  # fmt: skip
        return (*self.source.open, *blank)

    def _matters(self, column: str) -> bool:
        """Whether a column decides anything of this layout."""
        degree = {"sequence_parallel": "tp", "sharding": "dp"}.get(column)
        return degree is None or self.whole(degree, 1) > 1

    @property
    def dtype(self) -> str:
        return self.facts["precision"]

    def transformer(self) -> Transformer:
        """The model's shapes."""
        facts = dict(self.source.model)
        sequence, hidden, heads = (self.whole(name) for name in ("sequence", "hidden", "heads"))
        positions = facts.pop("positions", None)
        tied = self.facts.get("tied")
        if tied:
            facts["tied_embeddings"] = tied == "true"
        return Transformer(
            name=self.facts["model"].replace(" ", "-").lower(), layers=self.whole("layers"), hidden=hidden, heads=heads,
            kv_heads=self.whole("kv_heads", heads), head_size=hidden // heads, ffn=self.whole("ffn", 4 * hidden),
            vocab=self.whole("vocab"), sequence=sequence, max_positions=sequence if positions == "sequence" else None,
            **facts,
        )  # fmt: skip

    def plan(self, micro_batches: int | None = None) -> Plan:
        """The layout; with so many micro-batches in place of the row's."""
        sizes = {name: self.whole(name, 1) for name in ("dp", "tp", "pp", "cp", "virtual_stages")}
        batch = self.whole("global_batch") // sizes["dp"]
        micro_batch = min(batch, self.whole("micro_batch", batch))
        given: dict[str, Any] = {**sizes, "batch": batch, "micro_batch": micro_batch}
        if micro_batches is not None:
            given["batch"] = micro_batch * micro_batches
        if sizes["pp"] > 1:
            given["schedule"] = "interleaved" if sizes["virtual_stages"] > 1 else "1f1b"
            given["cuts"] = self._cuts(sizes["pp"] * sizes["virtual_stages"])
        given["sequence_parallel"] = sizes["tp"] > 1 and self.facts.get("sequence_parallel") in ("1", "true")
        given["recompute"] = self.facts.get("recompute") or "none"
        if sizes["dp"] > 1:
            given |= {name: value for name, value in self.source.plan.items() if name != "sharding"}
            given["sharding"] = self.facts.get("sharding") or self.source.plan.get("sharding", "none")
            ways = self.facts.get("shard_ways")
            if ways and given["sharding"] != "none" and whole_number(ways, "shard_ways") < sizes["dp"]:
                given["shard_ways"] = int(ways)
        return Plan(**given, inputs="none")

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step on one replica."""
        plan = self.plan()
        assert plan.batch is not None
        assert plan.micro_batch is not None
        return -(-plan.batch // plan.micro_batch)

    def _cuts(self, parts: int) -> tuple[str, ...]:
        """Names of the layers that begin later stages: as stated, else evenly as :func:`even_layers` does."""
        stated = self.facts.get("stage_layers")
        return layer_cuts(stated) if stated else layer_cuts(even_layers(self.whole("layers"), parts))

    def load_cluster(self) -> Cluster:
        """The machine, with the bandwidth between nodes that its source shows, where it does."""
        name, has_fabric = self.source.cluster_of(self.facts["gpu"]), self.source.key == ULTRASCALE
        kind = "reduce_scatter" if self.facts.get("sharding") == "zero1" else "all_reduce"
        return _cluster(name, self.num_gpus, fabric_bandwidth(kind, self.replica_nodes) if has_fabric else 0)

    @property
    def replica_nodes(self) -> int:
        """Nodes that the ranks of one stage lie on: replicas, and the tensor-parallel ranks of each."""
        return max(1, self.whole("tp", 1) * self.whole("dp", 1) // GPUS_PER_NODE)


def whole_number(value: object, column: str, least: int = 1) -> int:
    """Return a cell of a table as a whole number. Raises InputError if it is none, or smaller than ``least``."""
    text = str(value).strip()
    if not text.isdecimal() or int(text) < least:
        raise InputError(f"must be a whole number of at least {least}, got {text[:40]!r}", field=column)
    return int(text)


def layer_cuts(counts: str | Sequence[int]) -> tuple[str, ...]:
    """Names of the layers that begin later stages, of so many layers each; as text, ``8|8|8|4``.

    Of stages without layers the last has head and loss, and those before it pass on what they get; none where too many
    are without: the software's rule has the last word.
    """
    stated = counts.split("|") if isinstance(counts, str) else counts
    numbers = [whole_number(count, "stage_layers", least=0) for count in stated]
    layers, starts = sum(numbers), list(accumulate(numbers[:-1]))
    empty = sum(start >= layers for start in starts)
    behind = {0: (), 1: _BEHIND[:1], 2: _BEHIND, 3: (f"layers.{layers - 1}.mlp.add", *_BEHIND)}
    if empty not in behind:
        return ()
    return (*(f"layers.{start}.attention.norm" for start in starts if start < layers), *behind[empty])


def even_layers(layers: int, parts: int) -> list[int]:
    """Layers of each part: equal; else the first and last have one fewer, for embedding and head; else larger first."""
    if layers % parts and not (layers + 2) % parts and parts > 1:
        each = (layers + 2) // parts
        return [each - 1, *[each] * (parts - 2), each - 1]
    return [layers // parts + (part < layers % parts) for part in range(parts)]


def check_sources(asked: Sequence[str] | None, known: Sequence[str]) -> None:
    """Raises InputError for a source that no bundled row is of."""
    for name in asked or ():
        if name not in known:
            raise InputError(f"unknown source {name[:40]!r}{nearest(name[:80], known)}", field="sources")


def load_sources() -> Mapping[str, TrainingSource]:
    """All sources by key."""
    return _sources()


def load_rows() -> tuple[TrainingRow, ...]:
    """All measured steps but the layouts of Ultra-Scale, in the order of the file."""
    return tuple(_row(facts["source"], facts) for facts in _table("steps.csv.gz"))


def load_layouts() -> tuple[TrainingRow, ...]:
    """All layouts of the Ultra-Scale Playbook, measured or not, in the order of the file."""
    return tuple(_row(ULTRASCALE, facts) for facts in _table("layouts.csv.gz"))


def _row(key: str, facts: Mapping[str, str]) -> TrainingRow:
    """Return a row; one that cannot be read has its ``fault``."""
    try:
        source = _sources().get(key) or _unknown_source(key)
        if source.key == ULTRASCALE:
            facts = _layout(facts)
        apart = facts.get("apart", "") or ("" if source.counts else source.why)
        step = _seconds(facts.get("step_s", ""))
        row = TrainingRow(name=facts["row"], source=source, facts=facts, step_s=step, apart=apart)
        _check(row)
    except InputError as error:
        source = _sources().get(key) or replace(_sources()[ULTRASCALE], key=key, title="unknown source")
        return TrainingRow(name=facts["row"], source=source, facts=facts, step_s=None, apart="", fault=str(error))
    return row


def _unknown_source(key: str) -> TrainingSource:
    raise InputError(f"unknown source {key[:40]!r}{nearest(key, _sources())}", field="source")


def _seconds(text: str) -> float | None:
    """Return a measured step; None without one. Raises InputError for a time that no step can take."""
    try:
        step = float(text) if text else None
    except ValueError:
        step = -1.0
    if step is not None and not 0 < step < float("inf"):
        raise InputError(f"must be a positive number of seconds, got {text[:40]!r}", field="step_s")
    return step


def _check(row: TrainingRow) -> None:
    """Raise InputError for a measured row without a number of GPUs, or on a GPU that its source does not have."""
    if row.step_s is not None:
        row.source.cluster_of(row.facts["gpu"])
        row.source.generation_of(row.facts["gpu"])
        whole_number(row.facts.get("gpus", ""), "gpus")


def _layout(facts: Mapping[str, str]) -> dict[str, str]:
    found = {_LAYOUT_NAMES.get(name, name): value for name, value in facts.items()}
    found |= {"source": ULTRASCALE, "gpu": "h100", "precision": "bf16", "recompute": "none"}
    found |= {"sequence_parallel": "1", "sharding": "zero1" if facts["zero_stage"] == "1" else "none"}
    found["apart"] = _layout_apart(facts)
    return found


def _layout_apart(facts: Mapping[str, str]) -> str:
    """Why a layout does not count: as its note says."""
    if facts["status"] != "measured":
        return "without a result"
    if facts["population"] != CLEAN:
        return "slow: nanotron polls pipeline sends" if facts["population"] == SLOW else "of neither population"
    if whole_number(facts["nodes"], "nodes") >= 64:
        return "64 nodes: the network decides"
    wide = whole_number(facts["TP"], "TP") > GPUS_PER_NODE
    return "tensor parallelism over more than 8 GPUs" if wide else ""


@cache
def _sources() -> Mapping[str, TrainingSource]:
    from trine.spec import load_mapping

    entries = load_mapping(FOLDER / "sources.yaml")
    assert isinstance(entries, dict)
    usual: dict[str, Any] = {"operators": {}, "plan": {}, "fill": {}, "open": (), "why": ""}
    return {
        key: TrainingSource(key=key, **{**usual, **entry, "open": tuple(entry.get("open", ()))})
        for key, entry in entries.items()
    }


def _table(name: str) -> list[dict[str, str]]:
    text = gzip.decompress(read_bytes(FOLDER / name)).decode()
    return [{name: cell or "" for name, cell in row.items() if name} for row in csv.DictReader(io.StringIO(text))]


@cache
def gpu_of(cluster: str) -> str:
    """The GPU of a preset or of a file of ``clusters/``."""
    machine = _machine(cluster)
    return str(machine.devices[machine.gpus[0]].gpu)


@cache
def _machine(name: str) -> Cluster:
    own = FOLDER / "clusters" / f"{name}.yaml"
    return load_cluster(str(own) if own.exists() else name)


@cache
def _cluster(name: str, gpus: int, fabric_bytes_per_s: float) -> Cluster:
    """Whole nodes of a machine; 0 bytes/s: with its own fabric."""
    own = FOLDER / "clusters" / f"{name}.yaml"
    path = str(own) if own.exists() else name
    if gpus <= GPUS_PER_NODE or gpus % GPUS_PER_NODE:
        return load_cluster(path, gpus=gpus)
    cluster = load_cluster(path, nodes=gpus // GPUS_PER_NODE)
    return _with_fabric(cluster, fabric_bytes_per_s) if fabric_bytes_per_s else cluster


def _with_fabric(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """Ports of a node that together reach no more than so many bytes/s."""
    reached = round(bytes_per_s / GPUS_PER_NODE)
    links = cluster.link_table
    numbers = tuple(
        replace(each, bytes_per_s=min(each.bytes_per_s, reached)) if (each.medium or "").startswith("efa") else each
        for each in links.numbers
    )
    return replace(cluster, links=replace(links, numbers=numbers))


@cache
def fabric_bandwidth(kind: str, nodes: int) -> float:
    """Bytes/s of a node's ports in collectives of 1 GiB over so many nodes, 95th percentile of all measurements.

    That percentile, since the mean has the hours in it in which others used the fabric: a third of it on 32 nodes.
    kind: ``all_reduce`` for replicas that reduce gradients, ``reduce_scatter`` for ZeRO 1, which also gathers: over as
    many nodes as a stage has. What stages send to each other goes from one node to another, which is faster still. Of
    numbers of nodes in between the next smaller measured one. A ring over nodes sends (ranks - 1) / ranks of the
    payload through each node's ports, or twice that, which is what bus bandwidth counts.
    ``presets/measured/training/fabric.csv``.
    """
    text = read_bytes(FOLDER / "fabric.csv").decode()
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["collective"] == kind]
    known = {int(row["nodes"]): float(row["busbw_GBps_p95"]) * 1e9 for row in rows}
    return known[max(count for count in known if count <= max(nodes, 2))]
