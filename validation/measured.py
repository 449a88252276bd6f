"""Bundled collective measurements (presets/measured): machine, settings and times.

Numbers are as published, except for the thinning that ``benchmarks/bundle_measurements.py`` describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from trine.cluster import Cluster
from trine.cluster.parts import LIBRARIES
from trine.collectives.options import AUTO, CollectiveOptions
from trine.common.inputs import PRESETS
from trine.errors import SpecError, nearest
from validation.harness import ROW_ERRORS, grouped, read_table, why_unread

FOLDER = PRESETS / "measured"
FIT, HELD_OUT = "fit", "held-out"
SPLITS = (FIT, HELD_OUT)
#: Trust in a point. Only ``clean`` and ``excerpt`` (part of a log, without any known problem) count.
QUALITIES = ("clean", "excerpt", "noisy", "unusual", "degraded")
COUNTED = ("clean", "excerpt")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPoint:
    """One size. ``spread``: largest / smallest of its repeats. ``reason``: why the quality is not clean."""

    size_bytes: int
    time_ps: int
    spread: float
    quality: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredMachine:
    """A measured machine, and the name of its cluster in trine (None without a match).

    ``cluster`` is a preset's name, or a file in presets/measured/clusters. ``nodes`` and ``gpus_per_node`` override
    the series' values (a rack is one node of the preset, but many trays).
    """

    name: str
    family: str
    split: str = FIT
    launch: str = ""
    library: str = ""
    cluster: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    quality: str = "degraded"
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One run: a collective on some GPUs of a machine over sizes. ``options``: its settings of the library.

    ``observed``: the algorithm that the library reported, "" if it was not published. ``points`` ascend in size.
    ``fault``: why the series cannot be read; validation lists it and goes on.
    """

    number: int
    machine: MeasuredMachine
    op: str
    num_gpus: int = 0
    num_nodes: int = 0
    version: str = ""
    options: CollectiveOptions = field(default_factory=CollectiveOptions)
    observed: str = ""
    source: str
    points: tuple[MeasuredPoint, ...] = ()
    fault: str = ""

    @property
    def name(self) -> str:
        """``machine op gpus``, plus version and settings that tell it from similar runs."""
        demanded = (self.options.algorithm, self.options.protocol)
        demands = [text for text in demanded if text != AUTO]
        nvls = ["nvls off"] if self.options.nvls is False else []
        extra = demands + nvls
        size = f"{self.num_gpus}" if self.num_nodes <= 1 else f"{self.num_gpus} on {self.num_nodes} nodes"
        return " ".join([self.machine.name, self.op, size, *([self.version] if self.version else []), *extra])

    @property
    def weight_key(self) -> tuple[str, str, int, int, CollectiveOptions]:
        """Key that runs share if they differ only in version; error statistics count them together once."""
        return self.machine.name, self.op, self.num_gpus, self.num_nodes, self.options

    def load_cluster(self) -> Cluster | None:
        """Return the cluster for the machine, cut to the GPUs of this run; None if trine has no such cluster.

        Raises
        ------
        SpecError: the preset cannot be expanded to this size.
        """
        machine = self.machine
        if machine.cluster is None or machine.library not in LIBRARIES:
            return None
        return _cluster(machine.cluster, machine.nodes or self.num_nodes, self.num_gpus, machine.gpus_per_node)


@cache
def load_machines() -> Mapping[str, MeasuredMachine]:
    """Return all measured machines by name."""
    return {name: _machine(name, entry) for name, entry in _entries().items()}


@cache
def load_measurements() -> tuple[Series, ...]:
    """Return all bundled series, ordered by machine, op, GPUs and nodes; an unreadable one has a ``fault``."""
    points = grouped(read_table(FOLDER / "points.csv"), lambda row: row["series"])
    return tuple(_readable(row, points.get(row["series"], [])) for row in read_table(FOLDER / "series.csv"))


def _readable(row: Mapping[str, str], points: Sequence[Mapping[str, str]]) -> Series:
    """Return a series, or one without points that says why it cannot be read."""
    try:
        return _series(row, points)
    except ROW_ERRORS as error:
        machine = MeasuredMachine(name=row["machine"] or "?", family=row["machine"] or "?")
        return Series(number=-1, machine=machine, op=row["op"] or "?", source=row["source"], fault=why_unread(error))


def _series(row: Mapping[str, str], points: Sequence[Mapping[str, str]]) -> Series:
    if row["machine"] not in load_machines():
        raise SpecError(f"unknown machine {row['machine'][:40]!r}{nearest(row['machine'], load_machines())}")
    machine = load_machines()[row["machine"]]
    library = machine.library if machine.library in LIBRARIES else AUTO
    nvls = False if row["nvls"] == "0" else None
    options = CollectiveOptions(
        library=library, algorithm=row["algorithm"] or AUTO, protocol=row["protocol"] or AUTO, launch=machine.launch,
        nvls=nvls,
    )  # fmt: skip
    series = Series(
        number=int(row["series"]), machine=machine, num_gpus=int(row["gpus"]), num_nodes=int(row["nodes"]),
        options=options, op=row["op"], version=row["version"], observed=row["observed"], source=row["source"],
    )  # fmt: skip
    return replace(series, points=tuple(_point(series, point) for point in points))


def _point(series: Series, row: Mapping[str, str]) -> MeasuredPoint:
    entry, size_bytes = _entries()[series.machine.name], int(row["size_bytes"])
    rules = (rule for rule in entry.get("rows", ()) if _applies(rule, series, size_bytes))
    stated = next(rules, entry)
    return MeasuredPoint(
        size_bytes=size_bytes, time_ps=round(float(row["time_us"]) * 1_000_000), spread=float(row["spread"]),
        quality=stated["quality"], reason=stated.get("reason", ""),
    )  # fmt: skip


def _applies(rule: Mapping[str, Any], series: Series, size_bytes: int) -> bool:
    return (
        series.op in rule.get("ops", (series.op,))
        and series.num_gpus in rule.get("gpus", (series.num_gpus,))
        and series.num_nodes in rule.get("nodes", (series.num_nodes,))
        and rule.get("min", 0) <= size_bytes <= rule.get("max", size_bytes)
    )


def _machine(name: str, entry: Mapping[str, Any]) -> MeasuredMachine:
    if entry["split"] not in SPLITS or entry["quality"] not in QUALITIES:
        hint = nearest(entry["quality"], QUALITIES)
        raise SpecError(f"machines.yaml: {name}: split {entry['split']!r}, quality {entry['quality']!r}{hint}")
    cluster = entry["cluster"] or {}
    return MeasuredMachine(
        name=name, cluster=cluster.get("name"), nodes=cluster.get("nodes"),
        gpus_per_node=cluster.get("gpus_per_node"), reason=entry.get("reason", ""),
        **{key: entry[key] for key in ("family", "split", "launch", "library", "quality")},
    )  # fmt: skip


@cache
def _cluster(name: str, nodes: int, gpus: int, gpus_per_node: int | None) -> Cluster:
    from trine.cluster import load_cluster

    file = FOLDER / "clusters" / name if name.endswith(".yaml") else name
    return load_cluster(file, nodes=nodes, gpus=gpus, gpus_per_node=gpus_per_node)


@cache
def _entries() -> dict[str, Any]:
    import yaml

    entries: dict[str, Any] = yaml.safe_load((FOLDER / "machines.yaml").read_text(encoding="utf-8"))
    return entries
