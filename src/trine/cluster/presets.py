"""Bundled presets: GPU models, link types and clusters (presets/); each number has its source."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from trine.cluster.gpu_spec import GpuSpec as GpuSpec  # callers load and annotate from one module
from trine.cluster.measured_gpu import is_gpu_file, measured_gpu
from trine.common.arguments import named_arguments
from trine.common.inputs import PRESETS, preset_names
from trine.common.schema import Bandwidth, Duration, Field, Spec
from trine.errors import SpecError, nearest

LinkClass = Literal["scale-up", "host", "scale-out"]
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


def known_gpus() -> tuple[str, ...]:
    """Return the names of the bundled GPU models, sorted."""
    return preset_names(PRESETS / "gpus")


@named_arguments
def load_gpu(name: str) -> GpuSpec:
    """Return a GPU model by its name or its driver's name (``"NVIDIA H100 80GB HBM3"``), ignoring case.

    name: also the path of a file that ``trine measure`` wrote (:mod:`trine.cluster.measured_gpu`).
    Raises SpecError: unknown name; suggests the nearest; a wrong file.
    """
    if not isinstance(name, str):
        raise SpecError(f"must be the name of a GPU, got {name!r:.80}", field="gpu")
    measured = measured_gpu(name)
    if measured is not None:
        return measured.spec
    plain = _plain(name)
    if plain in known_gpus():
        return _read_gpu(plain)
    for preset in known_gpus():  # parse only files that contain the name
        if plain in _text(preset) and plain in map(_plain, _read_gpu(preset).aliases):
            return _read_gpu(preset)
    by_alias = {_plain(alias) for preset in known_gpus() for alias in _read_gpu(preset).aliases}
    hint = nearest(plain, by_alias.union(known_gpus()))
    if "did you mean" not in hint:
        hint = nearest(plain, known_gpus(), command="trine support")
    raise SpecError(f"unknown GPU {name!r}{hint}")


def gpu_of_cluster_file(name: str, file: str, field: str) -> str:
    """Return the name of a GPU in a cluster file; the path of a GPU file there starts at the cluster file's folder.

    Raises SpecError for an unknown GPU or a wrong GPU file; names the cluster file and the field.
    """
    path = os.fspath(Path(file).parent / name) if is_gpu_file(name) else name
    try:
        load_gpu(path)
    except SpecError as error:
        raise SpecError(str(error), file=file, field=field) from None
    return path


def _plain(name: str) -> str:
    """Return a name in lower case; the driver calls a GPU that it passes to a virtual machine a "VF"."""
    return " ".join(name.lower().split()).removesuffix(" vf")


def library_of_gpu(name: str | None) -> str | None:
    """Return the collective library of a GPU model's vendor, ``rccl`` or ``nccl``; None for other models."""
    try:
        titles = " ".join(load_gpu(name).aliases) if name else ""
    except SpecError:
        return None
    if "AMD " in titles:
        return "rccl"
    return "nccl" if re.search("NVIDIA|Tesla|GeForce", titles) else None


@cache
def _text(name: str) -> str:
    return _plain((PRESETS / "gpus" / f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def _read_gpu(name: str) -> GpuSpec:
    from trine.common.spec import check, load_mapping

    path = PRESETS / "gpus" / f"{name}.yaml"
    return check(GpuSpec, load_mapping(path), path, {"name": name})


class Crowding(Spec):
    """The decline of bandwidth with the number of nodes: bandwidth / (1 + per_doubling x log2(nodes / from_nodes)).

    fitted, tested: the source for the fit, and a different source for the test.
    """

    per_doubling: float = Field(gt=0, le=10)
    from_nodes: int = Field(ge=1)
    fitted: str
    tested: str


class Sharing(Spec):
    """Fractions of the ports' peak that collectives reach on a shared fabric: 5th and 95th percentile."""

    beyond_nodes: int = Field(ge=1)
    all_reduce: list[float] = Field(min_length=2, max_length=2)
    others: list[float] = Field(min_length=2, max_length=2)
    source: str

    def of(self, kind: str) -> list[float]:
        """Return the two parts for a kind of collective."""
        return self.all_reduce if kind == "all_reduce" else self.others


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkType:
    """Bandwidth and latency of one lane of a link type in one direction.

    ``bytes_per_s`` is the achieved bandwidth of large transfers, ``peak_bytes_per_s`` the data sheet's. ``latency_ps``:
    hardware only. ``hop_ps``: hardware latency between two switches. ``request_ps``: measured latency of one load or
    store, else ``latency_ps``; only the load-store level uses it. ``lanes``: usual number for a GPU or a port.
    ``evidence`` and ``sources`` are keyed by number (``bandwidth``, ``latency``, ``peak``, ``request``).
    """

    name: str
    link_class: Annotated[LinkClass, Field(alias="class")]
    bytes_per_s: Annotated[Bandwidth, Field(alias="bandwidth")]
    peak_bytes_per_s: Annotated[Bandwidth, Field(alias="peak")]
    latency_ps: Annotated[Duration, Field(alias="latency")]
    hop_ps: Annotated[Duration, Field(alias="hop")] = -1
    request_ps: Annotated[Duration, Field(alias="request")] = -1
    lanes: Annotated[int, Field(ge=1)]
    evidence: dict[Literal["bandwidth", "latency", "request"], Literal["measured", "modelled", "assumed"]] = field(
        compare=False
    )
    sources: dict[Literal["bandwidth", "peak", "latency", "request"], str] = field(compare=False)
    crowding: Crowding | None = field(default=None, compare=False)
    sharing: Sharing | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("hop_ps", "request_ps"):
            if getattr(self, name) < 0:
                object.__setattr__(self, name, self.latency_ps)

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
    from trine.common.spec import check, load_mapping

    path = PRESETS / "links.yaml"
    data = load_mapping(path)
    if not isinstance(data, dict):
        raise SpecError("must be a mapping of links", file=path)
    return MappingProxyType({name: check(LinkType, entry, path, {"name": name}) for name, entry in data.items()})


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
