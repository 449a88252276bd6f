"""What formats of others cannot hold: circuits are refused, the two directions of links are brought together."""

from __future__ import annotations

from collections.abc import Sequence

from trine.cluster.cluster import Cluster
from trine.cluster.importers.wiring import Rates, Wire
from trine.cluster.parts import Link
from trine.errors import SpecError


def refuse_circuits(cluster: Cluster, format: str) -> None:
    """Raise SpecError for a cluster with circuits, which only cluster files have a place for."""
    if cluster.circuits is not None:
        raise SpecError(f"{format} has links only, and GPUs of {cluster.name!r} are joined by circuits: take yaml")


def rates_of(link: Link) -> Rates:
    """The numbers of a link."""
    return Rates(link.bytes_per_s, link.latency_ps, link.link_class, link.medium, link.peak_bytes_per_s)


def two_way_wires(cluster: Cluster, *, lossy: bool = False) -> list[Wire]:
    """One wire for each pair of opposite links with the same numbers, in the order of the first of them.

    ``lossy``: opposite links that differ become one wire with the slower numbers, and a link with no opposite one
    gets it.

    Raises
    ------
    SpecError: such links, without ``lossy``; names one.
    """
    waiting: dict[tuple[int, int, Rates], list[int]] = {}
    wires: list[Wire | None] = []
    alone: dict[int, Link] = {}
    for link in cluster.links:
        rates = rates_of(link)
        partners = waiting.get((link.target, link.source, rates))
        if partners:
            alone.pop(partners.pop(0))
            continue
        waiting.setdefault((link.source, link.target, rates), []).append(len(wires))
        alone[len(wires)] = link
        wires.append(Wire(link.source, link.target, rates))
    if alone and not lossy:
        link = next(iter(alone.values()))
        raise SpecError(
            f"link {link.name!r} has no opposite one with the same numbers ({len(alone)} links in all), "
            "and InfraGraph's links have no direction; lossy=True (--lossy) takes the slower of both"
        )
    _merge_opposites(wires, alone)
    return [wire for wire in wires if wire is not None]


def _merge_opposites(wires: list[Wire | None], alone: dict[int, Link]) -> None:
    """Replace opposite wires that differ by one with the slower numbers."""
    open_ends: dict[tuple[int, int], list[int]] = {}
    for place, link in alone.items():
        opposite = open_ends.get((link.target, link.source))
        if not opposite:
            open_ends.setdefault((link.source, link.target), []).append(place)
            continue
        first = wires[opposite.pop(0)]
        second = wires[place]
        assert first is not None
        assert second is not None
        wires[wires.index(first)] = first._replace(rates=_slower(first.rates, second.rates))
        wires[place] = None


def _slower(a: Rates, b: Rates) -> Rates:
    peaks = [peak for peak in (a.peak_bytes_per_s, b.peak_bytes_per_s) if peak is not None]
    return a._replace(
        bytes_per_s=min(a.bytes_per_s, b.bytes_per_s),
        latency_ps=max(a.latency_ps, b.latency_ps),
        peak_bytes_per_s=min(peaks) if peaks else None,
    )


def lost(cluster: Cluster, wires: Sequence[Wire]) -> int:
    """How many links of a cluster such wires say otherwise."""
    said: dict[tuple[int, int, Rates], int] = {}
    for wire in wires:
        for a, b in ((wire.a, wire.b), (wire.b, wire.a)):
            said[a, b, wire.rates] = said.get((a, b, wire.rates), 0) + 1
    missing = 0
    for link in cluster.links:
        key = (link.source, link.target, rates_of(link))
        if said.get(key, 0):
            said[key] -= 1
        else:
            missing += 1
    return missing
