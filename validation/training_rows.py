"""Published training steps (presets/measured/training) as jobs: a row -> model, plan, cluster, software.

Rows hold only values that their source states. Other cells are blank; their values come from ``sources.yaml`` and
are listed in :attr:`TrainingRow.open`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

from trine.cluster import Cluster, load_cluster
from trine.common.inputs import PRESETS
from trine.errors import InputError, nearest
from trine.parallel.plan import Plan
from trine.results.scales import scale_of
from trine.software.precision import known_precisions
from trine.software.profile import Software, load_software, with_choices
from trine.workload.synthesis.spec import Transformer
from validation.harness import read_table

FOLDER = PRESETS / "measured" / "training"
GPUS_PER_NODE = 8
#: Columns that decide the step's time; :attr:`TrainingRow.open` lists the blank ones.
DECISIVE = ("vocab", "sequence", "micro_batch", "recompute", "sequence_parallel", "sharding")
#: Stage starts after the last transformer layer; the head and the loss share a stage.
_HEAD_STARTS = ("final_norm", "head")
#: Values of options in the column ``operators`` that are no text.
_SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSource:
    """A source of rows: an entry of ``sources.yaml``, which documents each field."""

    key: str
    title: str
    licence: str
    counts: bool
    cluster: str | Mapping[str, str]
    generation: str | Mapping[str, str]
    software: str | Mapping[str, str]
    operators: Mapping[str, Any]
    model: Mapping[str, Any]
    plan: Mapping[str, Any]
    fill: Mapping[str, Any]
    open: tuple[str, ...]
    why: str
    fabric: Mapping[str, str] | None
    layouts: Mapping[str, Any] | None
    set: str

    def cluster_of(self, gpu: str) -> str:
        """Return the preset, or file of ``clusters/``, for a machine with this GPU. Raises InputError if unknown."""
        return _value_for(self.cluster, gpu, "GPU")

    def software_of(self, variant: str) -> str:
        """Return the name of the profile for a row's ``variant``. Raises InputError for an unknown variant."""
        return _value_for(self.software, variant, "variant")

    def generation_of(self, gpu: str) -> str:
        """Return the GPU's architecture."""
        return _value_for(self.generation, gpu, "GPU")


def _value_for(values: str | Mapping[str, str], name: str, what: str) -> str:
    """Return the value for a GPU or variant as its source names it; a single value holds for all of them."""
    if isinstance(values, str):
        return values
    if name not in values:
        raise InputError(f"unknown {what} {name[:40]!r}{nearest(name, values)}", field=what.lower())
    return values[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRow:
    """One measured step, or a layout without a result (``step_s`` None).

    facts: columns by name, as the source states them. apart: the reason the row does not count, or empty. fault: the
    reason the row cannot be read, or empty; validation lists it and goes on.
    """

    name: str
    source: TrainingSource
    facts: Mapping[str, str]
    step_s: float | None
    apart: str
    fault: str = ""

    def whole(self, column: str, default: int | None = None) -> int:
        """Return a column as a whole number: the row's value, the source's fill-in value, or ``default``."""
        value = self.facts.get(column) or self.source.fill.get(column) or default
        if value is None:
            raise InputError(f"{self.name} does not state it, and there is no default", field=column)
        return whole_number(value, column)

    @property
    def num_gpus(self) -> int:
        return self.whole("gpus")

    @property
    def group(self) -> str:
        """Rows with one vote: the runs of one model on one GPU that differ in scale; by default the row alone."""
        return self.facts.get("group") or self.name

    @property
    def num_nodes(self) -> int:
        return -(-self.num_gpus // gpus_per_node(self.source.cluster_of(self.facts["gpu"])))

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
        """Name from :data:`trine.results.headline.SCALES`."""
        return scale_of(self.num_nodes)

    @property
    def gpu(self) -> str:
        """trine's name of the GPU."""
        return gpu_of(self.source.cluster_of(self.facts["gpu"]))

    @property
    def software(self) -> str:
        """Name of the software profile."""
        return self.source.software_of(self.facts.get("variant", ""))

    def profile(self) -> Software:
        """Return the profile of the row's software, with the operator options of its source and its own."""
        software = load_software(self.software)
        options = dict(part.split("=") for part in self.facts.get("operators", "").split())
        operators = {name: _SWITCHES.get(value, value) for name, value in options.items()}
        changes = {**self.source.operators, **operators}
        if changes.get("loss") in software.losses:
            software = with_choices(software, changes.pop("loss"), None)
        return software.model_copy(update={"operators": software.operators.model_copy(update=changes)})

    @property
    def generation(self) -> str:
        return self.source.generation_of(self.facts["gpu"])

    @property
    def open(self) -> tuple[str, ...]:
        """Open points of the source, as text."""
        texts = []
        for name in DECISIVE:
            if not self.facts.get(name) and name not in self.source.plan and self._matters(name):
                texts.append(
                    f"{name.replace('_', ' ')}: assumed {self.source.fill[name]}"
                    if name in self.source.fill
                    else f"{name.replace('_', ' ')} not stated"
                )
        blank = tuple(texts)
        stated = self.facts.get("open")
        return (*self.source.open, *([stated] if stated else []), *blank)

    def _matters(self, column: str) -> bool:
        """Return True if a column has an effect on this layout."""
        degree = {"sequence_parallel": "tp", "sharding": "dp"}.get(column)
        return degree is None or self.whole(degree, 1) > 1

    @property
    def dtype(self) -> str:
        """The dtype of weights and activations."""
        return "bf16" if self.recipe else self.facts["precision"]

    @property
    def recipe(self) -> str | None:
        """The recipe that casts products (presets/precisions.yaml), if any."""
        precision = self.facts["precision"]
        return precision if precision in known_precisions() else None

    def transformer(self) -> Transformer:
        """Return the model's shapes."""
        architecture = self.facts.get("architecture")
        facts = dict(self.source.model[architecture] if architecture else self.source.model)
        sequence, hidden, heads = (self.whole(name) for name in ("sequence", "hidden", "heads"))
        positions = facts.pop("positions", None)
        if tied := self.facts.get("tied"):
            facts["tied_embeddings"] = tied == "true"
        return Transformer(
            name=self.facts["model"].replace(" ", "-").lower(), layers=self.whole("layers"), hidden=hidden, heads=heads,
            kv_heads=self.whole("kv_heads", heads), head_size=hidden // heads, ffn=self.whole("ffn", 4 * hidden),
            vocab=self.whole("vocab"), sequence=sequence, max_positions=sequence if positions == "sequence" else None,
            **facts,
        )  # fmt: skip

    def plan(self) -> Plan:
        """Return the layout."""
        sizes = {name: self.whole(name, 1) for name in ("dp", "tp", "pp", "cp", "virtual_stages")}
        batch = self.whole("global_batch") // sizes["dp"]
        micro_batch = min(batch, self.whole("micro_batch", batch))
        options: dict[str, Any] = {**sizes, "batch": batch, "micro_batch": micro_batch}
        if sizes["pp"] > 1:
            options["schedule"] = "interleaved" if sizes["virtual_stages"] > 1 else "1f1b"
            options["cuts"] = self._cuts(sizes["pp"] * sizes["virtual_stages"])
        options["sequence_parallel"] = sizes["tp"] > 1 and self.facts.get("sequence_parallel") in ("1", "true")
        options["recompute"] = self.facts.get("recompute") or "none"
        if self.facts.get("recompute_layers"):
            options["recompute_layers"] = self.whole("recompute_layers")
        if self.facts.get("defer_head_gradient"):
            options["defer_head_gradient"] = self.whole("defer_head_gradient")
        if sizes["dp"] > 1:
            options |= {name: value for name, value in self.source.plan.items() if name != "sharding"}
            options["sharding"] = self.facts.get("sharding") or self.source.plan.get("sharding", "none")
            ways = self.facts.get("shard_ways")
            if ways and options["sharding"] != "none" and whole_number(ways, "shard_ways") < sizes["dp"]:
                options["shard_ways"] = int(ways)
        return Plan(**options, inputs="none")

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step on one replica."""
        plan = self.plan()
        assert plan.batch is not None
        assert plan.micro_batch is not None
        return -(-plan.batch // plan.micro_batch)

    def _cuts(self, parts: int) -> tuple[str, ...]:
        """Return the layers that begin later stages: as stated, or evenly split by :func:`even_layers`."""
        stated = self.facts.get("stage_layers")
        return layer_cuts(stated) if stated else layer_cuts(even_layers(self.whole("layers"), parts))

    def load_cluster(self) -> Cluster:
        """Return the machine, with the bandwidth between nodes from its source if published."""
        name, fabric = self.source.cluster_of(self.facts["gpu"]), self.source.fabric
        kind = "reduce_scatter" if self.facts.get("sharding") == "zero1" else "all_reduce"
        bytes_per_s = fabric_bandwidth(kind, self.replica_nodes, fabric["table"]) if fabric else 0
        return _cluster(name, self.num_gpus, fabric["medium"] if fabric else "", bytes_per_s)

    @property
    def replica_nodes(self) -> int:
        """Nodes of one stage: its replicas, and the tensor-parallel ranks of each."""
        return max(1, self.whole("tp", 1) * self.whole("dp", 1) // GPUS_PER_NODE)


def whole_number(value: object, column: str, least: int = 1) -> int:
    """Return a table cell as a whole number. Raises InputError for other text, or a number below ``least``."""
    text = str(value).strip()
    if not text.isdecimal() or int(text) < least:
        raise InputError(f"must be a whole number of at least {least}, got {text[:40]!r}", field=column)
    return int(text)


def layer_cuts(counts: str | Sequence[int]) -> tuple[str, ...]:
    """Return the names of the layers that begin later stages; ``counts``: layers per stage, or text ``8|8|8|4``.

    Of the empty stages, the last holds the head and the loss, and earlier ones forward their input. More than three
    empty stages return no cuts: the software's rule then places the layers.
    """
    stated = counts.split("|") if isinstance(counts, str) else counts
    numbers = [whole_number(count, "stage_layers", least=0) for count in stated]
    layers, starts = sum(numbers), list(accumulate(numbers[:-1]))
    empty = sum(start >= layers for start in starts)
    tail = {0: (), 1: _HEAD_STARTS[:1], 2: _HEAD_STARTS, 3: (f"layers.{layers - 1}.mlp.add", *_HEAD_STARTS)}
    if empty not in tail:
        return ()
    return (*(f"layers.{start}.attention.norm" for start in starts if start < layers), *tail[empty])


def even_layers(layers: int, parts: int) -> list[int]:
    """Return the layers per part: equal, or one fewer in the first and last (embedding, head), or larger first."""
    if layers % parts and not (layers + 2) % parts and parts > 1:
        inner = (layers + 2) // parts
        return [inner - 1, *[inner] * (parts - 2), inner - 1]
    return [layers // parts + (part < layers % parts) for part in range(parts)]


def check_sources(names: Sequence[str] | None, known: Sequence[str]) -> None:
    """Raise InputError for a source without bundled rows."""
    for name in names or ():
        if name not in known:
            raise InputError(f"unknown source {name[:40]!r}{nearest(name[:80], known)}", field="sources")


def sources_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of sources; the name of a set of sources stands for all of its sources."""
    members = []
    for name in names:
        members.append([source.key for source in load_sources().values() if source.set == name] or [name])
    return tuple(key for keys in members for key in keys)


@cache
def load_sources() -> Mapping[str, TrainingSource]:
    """Return all sources by key."""
    from trine.common.spec import load_mapping

    entries = load_mapping(FOLDER / "sources.yaml")
    assert isinstance(entries, dict)
    usual: dict[str, Any] = {name: {} for name in ("operators", "plan", "fill")}
    usual.update(why="", fabric=None, layouts=None)
    return {
        key: TrainingSource(key=key, **{"set": "", **usual, **entry, "open": tuple(entry.get("open", ()))})
        for key, entry in entries.items()
    }


def load_rows() -> tuple[TrainingRow, ...]:
    """Return all measured steps except :func:`load_layouts`, in the order of the files."""
    tables = (read_table(FOLDER / name) for name in ("steps.csv", "tuned.csv"))
    return tuple(_row(facts["source"], facts) for table in tables for facts in table)


def load_left_out() -> list[dict[str, str]]:
    """Return the groups of tuned rows that are not compared: ``group``, number of ``rows``, ``reason``."""
    return read_table(FOLDER / "tuned_left_out.csv")


def load_layouts() -> tuple[TrainingRow, ...]:
    """Return all layouts of sources that have their own table, measured or not, in the order of the file."""
    return tuple(
        _row(key, facts, source.layouts)
        for key, source in load_sources().items()
        if source.layouts is not None
        for facts in read_table(FOLDER / source.layouts["table"])
    )


def _row(key: str, facts: Mapping[str, str], layouts: Mapping[str, Any] | None = None) -> TrainingRow:
    """Return a row; if it cannot be read, its ``fault`` gives the reason. layouts: the table that the row is from."""
    sources = load_sources()
    source = sources.get(key) or replace(next(iter(sources.values())), key=key, title="unknown source")
    try:
        if key not in sources:
            raise InputError(f"unknown source {key[:40]!r}{nearest(key, sources)}", field="source")
        if layouts is not None:
            facts = _translated(facts, key, layouts)
        apart = facts.get("apart", "") or ("" if source.counts else source.why)
        step = _seconds(facts.get("step_s", ""))
        row = TrainingRow(name=facts["row"], source=source, facts=facts, step_s=step, apart=apart)
        _check(row)
    except InputError as error:
        return TrainingRow(name=facts["row"], source=source, facts=facts, step_s=None, apart="", fault=str(error))
    return row


def _seconds(text: str) -> float | None:
    """Return a measured step in seconds, or None if blank. Raises InputError for an impossible time."""
    try:
        step = float(text) if text else None
    except ValueError:
        step = -1.0
    if step is not None and not 0 < step < float("inf"):
        raise InputError(f"must be a positive number of seconds, got {text[:40]!r}", field="step_s")
    return step


def _check(row: TrainingRow) -> None:
    """Raise InputError for a measured row without a number of GPUs, or on a GPU unknown to its source."""
    if row.step_s is not None:
        row.source.cluster_of(row.facts["gpu"])
        row.source.generation_of(row.facts["gpu"])
        whole_number(row.facts.get("gpus", ""), "gpus")


def _translated(row: Mapping[str, str], source: str, layouts: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of a source's own table with the columns of steps.csv; ``sources.yaml`` documents ``layouts``."""
    facts = {layouts["columns"].get(name, name): cell for name, cell in row.items()}
    facts |= {name: cells.get(facts[name], facts[name]) for name, cells in layouts["cells"].items()}
    apart = next((rule["why"] for rule in layouts["apart"] if _applies(rule, row)), "")
    return {**facts, **layouts["facts"], "source": source, "apart": apart}


def _applies(rule: Mapping[str, Any], row: Mapping[str, str]) -> bool:
    column, cell = rule["column"], row[rule["column"]]
    if "above" in rule:
        return whole_number(cell, column) > int(rule["above"])
    return cell == str(rule["is"]) if "is" in rule else cell != str(rule["is_not"])


@cache
def gpu_of(cluster: str) -> str:
    """Return the GPU of a preset or of a file in ``clusters/``."""
    machine = load_cluster(_cluster_file(cluster))
    return str(machine.devices[machine.gpus[0]].gpu)


@cache
def gpus_per_node(cluster: str) -> int:
    """Return the GPUs of a node (a host), of a preset or of a file in ``clusters/``."""
    machine = load_cluster(_cluster_file(cluster))
    nodes = [int(machine.node_of[gpu]) for gpu in machine.gpus]
    return nodes.count(nodes[0])


def _cluster_file(name: str) -> str:
    file = FOLDER / "clusters" / f"{name}.yaml"
    return str(file) if file.exists() else name


@cache
def _cluster(name: str, gpus: int, medium: str, fabric_bytes_per_s: float) -> Cluster:
    """Return a machine with ``gpus`` GPUs; on several nodes, links of ``medium`` have a measured bandwidth."""
    path = _cluster_file(name)
    one_copy = len(load_cluster(path).gpus)
    if gpus <= one_copy or gpus % one_copy:
        return load_cluster(path, gpus=gpus)
    cluster = load_cluster(path, nodes=gpus // one_copy)
    return _with_fabric(cluster, medium, fabric_bytes_per_s) if fabric_bytes_per_s else cluster


def _with_fabric(cluster: Cluster, medium: str, bytes_per_s: float) -> Cluster:
    """Return the cluster with the ports of ``medium`` of a node capped at ``bytes_per_s`` together."""
    per_gpu = round(bytes_per_s / GPUS_PER_NODE)
    links = cluster.link_table
    capped = []
    for link in links.numbers:
        capped.append(
            replace(link, bytes_per_s=min(link.bytes_per_s, per_gpu))
            if (link.medium or "").startswith(medium)
            else link
        )
    numbers = tuple(capped)
    return replace(cluster, links=replace(links, numbers=numbers))


@cache
def fabric_bandwidth(kind: str, nodes: int, table: str = "fabric.csv") -> float:
    """Return the bytes/s of a node's ports in 1 GiB collectives over ``nodes`` nodes: the 95th percentile measured.

    The mean includes hours with other traffic on the fabric and is a third of this percentile on 32 nodes.
    kind: ``all_reduce`` for replicas that reduce gradients, ``reduce_scatter`` for ZeRO 1, which also gathers.
    nodes: the nodes of a stage; between measured numbers, the next smaller one applies. Transfers between stages
    connect two nodes and are faster still. A ring over nodes sends (ranks - 1) / ranks of the payload through each
    node's ports, or twice that amount; bus bandwidth counts these bytes.
    Source: ``table`` in ``presets/measured/training``.
    """
    rows = (row for row in read_table(FOLDER / table) if row["collective"] == kind)
    bandwidths = {int(row["nodes"]): float(row["busbw_GBps_p95"]) * 1e9 for row in rows}
    return bandwidths[max(count for count in bandwidths if count <= max(nodes, 2))]
