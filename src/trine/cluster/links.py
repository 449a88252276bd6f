"""Kinds of links by name, from presets/links.yaml: what NVLink 4, PCIe 5.0 or NDR InfiniBand carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from trine.errors import SpecError, nearest

if TYPE_CHECKING:
    from trine.cluster.link_schema import LinkTypeSpec

_FILE = Path(__file__).parent.parent / "presets" / "links.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkType:
    """What one lane of a kind of link carries in one direction.

    ``bytes_per_s`` is what large transfers reach, ``peak_bytes_per_s`` the data sheet's. ``latency_ps``: hardware
    only; ``hop_ps``: the same between two switches; ``request_ps``: what one load or store sees of it, where that was
    measured (else ``latency_ps``; used by the load-store level alone). ``lanes``: how many are usual for a GPU or a
    port. ``evidence`` and ``sources`` are by number (``bandwidth``, ``latency``, ``peak``, ``request``).
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


def known_links() -> tuple[str, ...]:
    """Names of the kinds of links in the catalogue, as it lists them."""
    return tuple(load_links())


@cache
def load_links() -> Mapping[str, LinkType]:
    """The catalogue: kinds of links by name."""
    from trine.cluster.link_schema import LinkTypeSpec
    from trine.spec import check, load_mapping

    data = load_mapping(_FILE)
    if not isinstance(data, dict):
        raise SpecError("must be a mapping of links", file=_FILE)
    return MappingProxyType({name: _link_type(name, check(LinkTypeSpec, entry, _FILE)) for name, entry in data.items()})


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
        evidence={str(number): str(word) for number, word in spec.evidence.items()},
        sources={str(number): text for number, text in spec.sources.items()},
    )


def link_named(name: str) -> LinkType:
    """The kind of link of this name.

    Raises
    ------
    SpecError: there is none; names the nearest.
    """
    links = load_links()
    if name not in links:
        raise SpecError(f"unknown kind of link {name!r}{nearest(name, links)}")
    return links[name]


def seen_by_messages(bytes_per_s: int, latency_ps: int, medium: str | None) -> tuple[int, int]:
    """What messages that carry their own headers see of a link: bytes/s and picoseconds.

    Of a kind of link in the catalogue: the data sheet's bandwidth, reduced as much as the link's own is below what
    large transfers usually reach; and the latency of a single request, unless the link has a latency of its own.
    Other links: their numbers as they are.
    """
    kind = None if medium is None else load_links().get(medium)
    if kind is None:
        return bytes_per_s, latency_ps
    rate = max(1, bytes_per_s * kind.peak_bytes_per_s // kind.bytes_per_s)
    return rate, kind.request_ps if latency_ps == kind.latency_ps else latency_ps
