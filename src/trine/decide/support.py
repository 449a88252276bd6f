"""Known models, GPUs, clusters, software profiles and precisions, with their evidence."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from trine.cluster import load_cluster, load_gpu
from trine.cluster.measured_gpu import declares_gpu, is_gpu_file, measured_gpu
from trine.cluster.presets import known_clusters, known_gpus
from trine.common.arguments import named_arguments
from trine.common.evidence import ASSUMED, MEASURED, MODELLED, TRANSFERRED
from trine.common.inputs import PRESETS, exists, preset_names
from trine.common.precision import BY_WORD
from trine.common.spec import load_mapping
from trine.common.units import format_bytes
from trine.compute.tables.files import FOLDER, known_tables, read_arrays
from trine.compute.tables.fp32_files import NEUSIGHT
from trine.errors import InputError, as_known, nearest
from trine.results.columns import Column, Columns
from trine.results.headline import BANDS
from trine.results.report import Report, Row, Table
from trine.results.screen import Listing, Screen
from trine.results.text import columns, wrapped_at
from trine.software import known_software, load_software
from trine.workload.architecture.counts import ModelCounts, counts_of
from trine.workload.synthesis.model_files import load_model
from trine.workload.synthesis.model_names import known_models
from trine.workload.synthesis.spec import Transformer

ENTRY = Columns(
    Column(key="kind", unit="text", meaning="`models`, `gpus`, `clusters`, `software` or `precisions`."),
    Column(key="name", unit="text", meaning="Name."),
    Column(key="facts", unit="text", meaning="Main facts."),
    Column(key="evidence", unit="text", meaning="Evidence of the numbers that decide its times."),
    Column(key="rows", unit="integer", meaning="Published measurements that trine compares with predictions."),
    Column(key="words", unit="text", meaning="Measurements, and the basis of other numbers."),
)  # fmt: skip

MODULE = Columns(
    Column(key="module", unit="text", meaning="Name of the kind."),
    Column(key="parameters", unit="integer", meaning="Its parameters."),
    Column(key="active", unit="integer", meaning="Parameters of it that one token uses."),
)  # fmt: skip

_MEASURED = PRESETS / "measured"
#: Kinds of things, in the order of the answer.
KINDS = ("models", "gpus", "clusters", "software", "precisions")
_TITLES = {"gpus": "GPUs", "software": "software profiles"}
_NEXT = {
    "gpus": "trine train WORKLOAD --gpu {name}; trine cluster list",
    "clusters": "trine cluster show {name}",
    "software": "trine software show {name}",
    "precisions": "trine trace models (a model's dtype: model:NAME,dtype=...)",
}
#: Bytes of weights, gradients and Adam's states of a parameter in mixed precision, and the share of a GPU's memory that
#: the suggested command leaves to them. Source: Rajbhandari et al., ZeRO (SC 2020), section 3.1; float32 gradients.
_STATE_BYTES = 18
_STATES_SHARE = 0.5
_NODE_GPUS = 8
#: Published steps, and their columns that make a model's shape.
_STEPS = "training/steps.csv.gz"
_SHAPE = ("layers", "hidden", "heads", "ffn")


@dataclass(frozen=True, slots=True)
class Supported:
    """One thing that trine knows.

    kind: of KINDS. evidence: of the numbers that decide its times. rows: published measurements that trine compares
    with its predictions. words: the measurements, and the basis of other numbers.
    """

    kind: str
    name: str
    facts: str
    evidence: str
    rows: int
    words: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Support(Report):
    """Things that trine knows; one of them if ``name`` is given. counts: of a model of tokens."""

    SCHEMA: ClassVar[str] = "support"

    entries: tuple[Supported, ...]
    name: str | None = None
    counts: ModelCounts | None = None

    @property
    def headline(self) -> str:
        """The number of things of each kind, or the evidence of one."""
        if self.name is not None:
            return "; ".join(f"{each.name} ({each.kind}): {each.evidence}, {each.rows:,} rows" for each in self.entries)
        counts = Counter(each.kind for each in self.entries)
        return ", ".join(f"{counts[kind]} {_TITLES.get(kind, kind)}" for kind in KINDS)

    def summary(self) -> str:
        """Return each kind in one line, or everything about one thing."""
        if self.name is not None:
            return self.details()
        rows = [("", "known", "with measurements", "rows", "most rows"), *map(self._cells, KINDS)]
        return Screen(
            question="models, GPUs, clusters, software and precisions that trine knows, and how well",
            numbers=[("known", f"{len(self.entries)}", self.headline)],
            listings=(Listing(title="evidence by kind", rows=rows, spare=(4,)),),
            closing=(
                ("rows", "published measurements that trine compares with its predictions (trine validate)"),
                ("next", "trine support NAME (one of them, such as h100-sxm); --details (all); --json"),
            ),
        ).text()

    def _cells(self, kind: str) -> tuple[str, ...]:
        entries = [each for each in self.entries if each.kind == kind]
        best = sorted(entries, key=lambda each: -each.rows)[:3]
        measured = sum(each.evidence == MEASURED or each.rows > 0 for each in entries)
        names = ", ".join(each.name for each in best if each.rows)
        rows = sum(each.rows for each in entries)
        return _TITLES.get(kind, kind), f"{len(entries)}", f"{measured}", f"{rows:,}", names

    def details(self) -> str:
        """Return all things, by kind."""
        if self.name is not None:
            parameters = 0 if self.counts is None else self.counts.parameters
            known = [line for each in self.entries for line in _one(each, parameters)]
            return "\n".join(known if self.counts is None else [*known, *_counted(self.counts)])
        lines: list[str] = []
        for kind in KINDS:
            cells = [(each.name, each.evidence, f"{each.rows:,} rows", each.facts)
                     for each in self.entries if each.kind == kind]  # fmt: skip
            lines += [_TITLES.get(kind, kind), *(f"  {line}" for line in columns(cells)), ""]
        return "\n".join(lines[:-1])

    def document(self) -> Row:
        """Return the things as plain data (docs/reference/decide-json.md)."""
        keys = ("parameters", "active", "sequence", "forward_flops", "kv_bytes_per_token", "kv_bytes", "left_out")
        counts = {}
        for key in keys:
            counts[key] = None if self.counts is None else getattr(self.counts, key)
        return {"name": self.name, **counts, **self.tables()}

    def tables(self) -> dict[str, Table]:
        """Return ``entries`` and ``modules``."""
        modules = [] if self.counts is None else MODULE.rows(self.counts.modules)
        return {"entries": ENTRY.rows(self.entries), "modules": modules}


@named_arguments
def support(name: str | None = None) -> Support:
    """Return all known models, GPUs, clusters, software profiles and precisions, or only the named one.

    name: also a GPU file, a model file, a config.json of Hugging Face, or a folder with one. Raises InputError for an
    unknown name; it names the nearest.
    """
    if name is not None and is_gpu_file(name) and exists(name) and declares_gpu(name):
        return Support(entries=(_gpu_file(name),), name=name)
    if name is not None and _is_file(name.removeprefix("model:")):
        path = name.removeprefix("model:")
        spec = load_model(path)
        entry = replace(_supported(spec.name, spec), name=path)
        return Support(entries=(entry,), name=path, counts=counts_of(spec))
    entries = _all()
    if name is None:
        return Support(entries=entries)
    names = {each.name for each in entries}
    wanted = as_known(name.removeprefix("model:"), names)
    if wanted not in names:
        try:
            wanted = load_gpu(wanted).name  # the driver's name of a GPU
        except InputError:
            raise InputError(f"unknown name {name!r:.60}{nearest(wanted, names)}", field="name") from None
    found = tuple(each for each in entries if each.name == wanted)
    is_model = any(each.kind == "models" for each in found)
    return Support(entries=found, name=wanted, counts=counts_of(load_model(wanted)) if is_model else None)


def _is_file(path: str) -> bool:
    """Return whether a name is a model file, a config.json, or a folder with one."""
    return exists(path) and (path.endswith((".yaml", ".yml", ".json")) or exists(Path(path) / "config.json"))


def _counted(counts: ModelCounts) -> list[str]:
    """Return the lines on parameters, FLOPs and cache."""
    share = f", {counts.active:,} of them for each token" if counts.active != counts.parameters else ""
    facts = [("parameters", f"{counts.parameters:,}{share}")]
    if counts.left_out:
        facts.append(("left out", counts.left_out))
    facts.append(("forward", f"{counts.forward_flops / 1e9:,.4g} GFLOP a token, in a sample of {counts.sequence:,}"))
    if counts.kv_bytes:
        facts.append(
            ("KV cache", f"{format_bytes(round(counts.kv_bytes_per_token))} a token in 16 bits, "
             f"{format_bytes(counts.kv_bytes)} for a sample of {counts.sequence:,}")
        )  # fmt: skip
    rows = [("", "parameters", "for each token")]
    rows += [(each.module, f"{each.parameters:,}", f"{each.active:,}") for each in counts.modules]
    lines = [line for label, text in facts for line in wrapped_at(label, text, 11)]
    return [*lines, *(f"  {line}" for line in columns(rows))]


def _one(entry: Supported, parameters: int) -> list[str]:
    """Return the lines on one thing. parameters: of a model; 0: unknown, or not a model."""
    facts = (("kind", _TITLES.get(entry.kind, entry.kind)), ("facts", entry.facts), ("evidence", entry.evidence),
             ("rows", f"{entry.rows:,} published measurements to compare with"), ("basis", entry.words),
             ("next", _next(entry, parameters)))  # fmt: skip
    return [entry.name, *(line for label, text in facts for line in wrapped_at(label, text, 11))]


def _next(entry: Supported, parameters: int) -> str:
    """Return a command that works with this thing: a model that one GPU cannot hold needs a layout of several nodes."""
    if entry.kind != "models":
        return _NEXT[entry.kind].format(name=entry.name)
    each_bytes = load_gpu("h100-sxm").memory_bytes * _STATES_SHARE
    needed = parameters * _STATE_BYTES / each_bytes
    if needed <= 1:
        return f"trine train model:{entry.name} --gpus {_NODE_GPUS} --parallel ddp --cluster dgx-h100"
    gpus = _NODE_GPUS
    while gpus < needed:
        gpus *= 2
    return f"trine plan {entry.name} --gpus {gpus} --global-batch {2 * gpus} --cluster dgx-h100"


@cache
def _all() -> tuple[Supported, ...]:
    return (*map(_model, known_models()), *map(_gpu, known_gpus()), *map(_cluster, known_clusters()),
            *map(_software, known_software()), *_precisions())  # fmt: skip


@cache
def _csv(name: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a file of measurements."""
    content = (_MEASURED / name).read_bytes()
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
    return tuple(csv.DictReader(io.StringIO(text, newline="")))


def _model(name: str) -> Supported:
    return _supported(name, load_model(name))


def _supported(name: str, spec: Any) -> Supported:
    rows = 0
    if isinstance(spec, Transformer) and spec.experts is None:
        shape = [str(getattr(spec, field, "")) for field in _SHAPE]
        rows = sum([row[field] or value for field, value in zip(_SHAPE, shape, strict=True)] == shape
                   and bool(row["layers"] and row["hidden"]) for row in _csv(_STEPS))  # fmt: skip
    parameters = getattr(spec, "num_parameters", None)
    counts = counts_of(spec)
    if counts is not None:
        parameters = counts.parameters
    facts = "" if parameters is None else f"{parameters / 1e9:.3g}B parameters, "
    if counts is not None and counts.active != counts.parameters:
        facts += f"{counts.active / 1e9:.3g}B for each token, "
    facts += f"sequence {spec.sequence:,}" if getattr(spec, "sequence", None) else "images"
    words = f"published shapes; operator times come from the GPU's tables; {rows} published steps of this shape"
    return Supported("models", name, facts, MODELLED, rows, words)


@cache
def _step_rows(field: str) -> Mapping[str, int]:
    """Return the number of published steps that judge predictions, by GPU or by software profile."""
    content: Any = load_mapping(BANDS)
    counts: Counter[str] = Counter()
    for level in content["levels"]:
        if set(level["of"]) == {"gpu", "software"}:
            counts[level["of"][field]] += level["rows"]
    return counts


@cache
def _tables_of(gpu: str) -> tuple[str, ...]:
    """Return the measured tables of a GPU: ``GEMM bfloat16``, ``attention``, ``float32 operators``."""
    files = read_arrays(gpu) if gpu in known_tables() else ()
    gemms = [name.removeprefix("gemm_") for name in files if name.startswith("gemm_") and name.count("_") == 1]
    float32 = read_arrays(str(NEUSIGHT.relative_to(FOLDER).with_suffix("")))["gpus"].tolist()
    others = (("attention", "attention" in files), ("float32 operators", gpu in float32))
    return (*(f"GEMM {dtype}" for dtype in gemms), *(name for name, is_there in others if is_there))


def _gpu(name: str) -> Supported:
    spec, tables, rows = load_gpu(name), _tables_of(name), _step_rows("gpu").get(name, 0)
    words = f"measured tables: {', '.join(tables)}" if tables else "no table: times of a sibling, scaled by data sheets"
    facts = f"{format_bytes(spec.memory_bytes)}, {', '.join(spec.flop_per_s)}"
    model = "load-store model" if name in preset_names(PRESETS / "gpu_models") else "no load-store model"
    words = f"{words}; {rows} published steps; {model}"
    return Supported("gpus", name, facts, MEASURED if tables else TRANSFERRED, rows, words)


def _gpu_file(path: str) -> Supported:
    """Return the entry of a GPU file: its kinds of kernels, with the median spread of their repeats."""
    spec, measured = load_gpu(path), measured_gpu(path)
    assert measured is not None
    spreads: dict[str, list[float]] = {}
    for row in measured.content.kernels:
        spreads.setdefault(f"{row.kind} {row.dtype}", []).append(row.spread)
    kinds = ", ".join(f"{len(each)} {name} (spread {median(each):.1%})" for name, each in spreads.items())
    facts = f"{measured.content.name[:60]}, {format_bytes(spec.memory_bytes)}, {', '.join(spec.flop_per_s)}"
    peaks = spec.sources.get("compute", "unknown source")
    words = f"{measured.words}: {kinds}; peaks: {peaks}"
    return Supported("gpus", path, facts, MEASURED, 0, words)


@cache
def _collective_rows() -> Mapping[str, int]:
    """Return the number of measured sizes of collectives by cluster preset."""
    machines: Any = load_mapping(_MEASURED / "machines.yaml")
    series = {row["series"]: machines[row["machine"]].get("cluster") or {} for row in _csv("series.csv")}
    return Counter(series[row["series"]].get("name", "") for row in _csv("points.csv"))


def _cluster(name: str) -> Supported:
    cluster, rows = load_cluster(name), _collective_rows().get(name, 0)
    fabric = "no usual fabric" if cluster.fabric is None else f"{cluster.fabric.kind} of {cluster.fabric.link}"
    facts = f"{len(cluster.gpus)} x {cluster.devices[cluster.gpus[0]].gpu}, {fabric}"
    words = f"links: {cluster.evidence}; {rows:,} measured sizes of collectives"
    return Supported("clusters", name, facts, MEASURED if rows else cluster.evidence, rows, words)


def _software(name: str) -> Supported:
    profile, rows = load_software(name), _step_rows("software").get(name, 0)
    factors = ", ".join(factor for factor, _ in profile.fitted_factors()) or "none"
    words = f"{len(profile.sources)} numbers with sources; fitted factors: {factors}; {rows} published steps"
    return Supported("software", name, profile.description, MEASURED if rows else MODELLED, rows, words)


def _precisions() -> Iterator[Supported]:
    gpus = {name: load_gpu(name) for name in known_gpus()}
    rows = Counter(BY_WORD[row["precision"]].name for row in _csv(_STEPS) if row["precision"] in BY_WORD)
    for dtype in dict.fromkeys((*(dtype for spec in gpus.values() for dtype in spec.flop_per_s), "float4")):
        label = "float32 operators" if dtype == "float32" else f"GEMM {dtype}"
        measured = [name for name in gpus if label in _tables_of(name)]
        words = f"GEMM tables of {', '.join(measured)}" if measured else "peaks of data sheets"
        words = f"GEMM tables of bfloat16; {words}" if dtype == "float16" else words
        facts = f"peak known for {sum(dtype in spec.flop_per_s for spec in gpus.values())} GPUs"
        yield Supported("precisions", dtype, facts, MEASURED if measured else ASSUMED, rows[dtype], words)
