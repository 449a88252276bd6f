"""Bundled presets: GPU models, link types and clusters (presets/); each number has its source."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from trine.common.arguments import named_arguments
from trine.common.inputs import PRESETS, preset_names
from trine.common.shown import OneLine
from trine.errors import SpecError, nearest

if TYPE_CHECKING:
    from trine.cluster.schema import Crowding, LinkTypeSpec, Sharing

#: Suffixes of cluster files that trine or its importers read.
_SUFFIXES = (".yaml", ".yml", ".json", ".xml", ".csv", ".txt")


def is_file_name(name: str) -> bool:
    """Return whether a name looks like a file path."""
    return os.sep in name or Path(name).suffix in _SUFFIXES


@cache
def known_clusters() -> tuple[str, ...]:
    """Return the names of the bundled clusters, sorted."""
    return preset_names(PRESETS / "clusters")


def preset_path(name: str) -> Path:
    """Return the file of a bundled cluster."""
    return PRESETS / "clusters" / f"{name}.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSpec(OneLine):
    """One GPU model.

    ``flop_per_s`` maps a dtype (``float32``, ``tfloat32``, ``float16``, ``bfloat16``, ``float64``) to its dense peak.
    ``power_w``: the vendor's maximum power, None if not published.
    ``nvlink``, ``pcie``: entries of the link catalogue, None if absent or unknown.
    ``step_slowdown``: operator time in a step over the tables' time, at the GPU's sustained clock.
    ``sources`` maps each field to the source of its number.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: int
    flop_per_s: Mapping[str, int]
    num_compute_units: int
    sources: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    power_w: int | None = None
    nvlink: str | None = None
    pcie: str | None = None
    step_slowdown: float = 1.0


def known_gpus() -> tuple[str, ...]:
    """Return the names of the bundled GPU models, sorted."""
    return preset_names(PRESETS / "gpus")


@named_arguments
def load_gpu(name: str) -> GpuSpec:
    """Return a GPU model by its name or its driver's name (``"NVIDIA H100 80GB HBM3"``), ignoring case.

    Raises
    ------
    SpecError: unknown name; suggests the nearest.
    """
    if not isinstance(name, str):
        raise SpecError(f"must be the name of a GPU, got {name!r:.80}", field="gpu")
    wanted = _plain(name)
    if wanted in known_gpus():
        return _read_gpu(wanted)
    for preset in known_gpus():  # parse only files that contain the name
        if wanted in _text(preset) and wanted in map(_plain, _read_gpu(preset).aliases):
            return _read_gpu(preset)
    by_alias = {_plain(alias) for preset in known_gpus() for alias in _read_gpu(preset).aliases}
    meant = nearest(wanted, by_alias.union(known_gpus()))
    raise SpecError(f"unknown GPU {name!r}{nearest(wanted, known_gpus()) if 'did you mean' not in meant else meant}")


def _plain(name: str) -> str:
    return " ".join(name.lower().split())


@cache
def _text(name: str) -> str:
    return _plain((PRESETS / "gpus" / f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def _read_gpu(name: str) -> GpuSpec:
    from trine.cluster.schema import GpuFile
    from trine.common.spec import read_spec

    spec = read_spec(PRESETS / "gpus" / f"{name}.yaml", GpuFile)
    return GpuSpec(
        name=name,
        memory_bytes=spec.memory,
        memory_bytes_per_s=spec.memory_bandwidth,
        flop_per_s={str(dtype): rate for dtype, rate in spec.compute.items()},
        num_compute_units=spec.compute_units,
        power_w=spec.power,
        nvlink=spec.nvlink,
        pcie=spec.pcie,
        step_slowdown=spec.step_slowdown,
        sources=dict(spec.sources),
        aliases=tuple(spec.aliases),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkType:
    """Bandwidth and latency of one lane of a link type in one direction.

    ``bytes_per_s`` is the achieved bandwidth of large transfers, ``peak_bytes_per_s`` the data sheet's. ``latency_ps``:
    hardware only. ``hop_ps``: hardware latency between two switches. ``request_ps``: measured latency of one load or
    store, else ``latency_ps``; only the load-store level uses it. ``lanes``: usual number for a GPU or a port.
    ``evidence`` and ``sources`` are keyed by number (``bandwidth``, ``latency``, ``peak``, ``request``).
    """

    name: str
    link_class: str
    bytes_per_s: int
    peak_bytes_per_s: int
    latency_ps: int
    hop_ps: int
    request_ps: int
    lanes: int
    evidence: Mapping[str, str] = field(default_factory=dict, compare=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    crowding: Crowding | None = field(default=None, compare=False)
    sharing: Sharing | None = field(default=None, compare=False)

    def share_on(self, nodes: int) -> float:
        """Return the fraction of the bandwidth that remains when ``nodes`` nodes share a fabric of these links."""
        if self.crowding is None or nodes <= self.crowding.from_nodes:
            return 1.0
        return 1 / (1 + self.crowding.per_doubling * math.log2(nodes / self.crowding.from_nodes))


def known_links() -> tuple[str, ...]:
    """Return the names of the link types, in catalogue order."""
    return tuple(load_links())


@cache
def load_links() -> Mapping[str, LinkType]:
    """Return the catalogue: link types by name."""
    from trine.cluster.schema import LinkTypeSpec
    from trine.common.spec import check, load_mapping

    data = load_mapping(PRESETS / "links.yaml")
    if not isinstance(data, dict):
        raise SpecError("must be a mapping of links", file=PRESETS / "links.yaml")
    return MappingProxyType(
        {name: _link_type(name, check(LinkTypeSpec, entry, PRESETS / "links.yaml")) for name, entry in data.items()}
    )


def _link_type(name: str, spec: LinkTypeSpec) -> LinkType:
    return LinkType(
        name=name,
        link_class=spec.link_class,
        bytes_per_s=spec.bandwidth,
        peak_bytes_per_s=spec.peak,
        latency_ps=spec.latency,
        hop_ps=spec.latency if spec.hop is None else spec.hop,
        request_ps=spec.latency if spec.request is None else spec.request,
        lanes=spec.lanes,
        crowding=spec.crowding,
        sharing=spec.sharing,
        evidence={str(number): str(word) for number, word in spec.evidence.items()},
        sources={str(number): text for number, text in spec.sources.items()},
    )


def link_named(name: str) -> LinkType:
    """Return the link type of this name. Raises SpecError for an unknown name, and suggests the nearest."""
    links = load_links()
    if name not in links:
        raise SpecError(f"unknown kind of link {name!r}{nearest(name, links)}")
    return links[name]


def seen_by_messages(bytes_per_s: int, latency_ps: int, medium: str | None) -> tuple[int, int]:
    """Return a link's bytes/s and latency in picoseconds for messages that carry their own headers.

    A link of a catalogue type gets the data sheet's bandwidth, scaled by the link's bandwidth over the type's, and the
    latency of a single request unless the link sets a different latency. Other links keep their numbers.
    """
    kind = None if medium is None else load_links().get(medium)
    if kind is None:
        return bytes_per_s, latency_ps
    rate = max(1, bytes_per_s * kind.peak_bytes_per_s // kind.bytes_per_s)
    return rate, kind.request_ps if latency_ps == kind.latency_ps else latency_ps
