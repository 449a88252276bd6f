"""A cluster as it was before our exporter wrote it: order of devices and links, and what InfraGraph cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, Device, Fabric, Link
from trine.errors import SpecError
from trine.units import whole_number

if TYPE_CHECKING:
    from trine.cluster.importers.infragraph_schema import OwnFile


def restored(cluster: Cluster, own: OwnFile, file: str) -> Cluster:
    """The cluster that was exported.

    Raises
    ------
    SpecError: an order that is none, or values that a cluster refuses.
    """
    order = device_order(cluster.devices, own.devices, file)
    place = {old: new for new, old in enumerate(order)}
    links = [_moved(link, place) for link in cluster.links]
    if own.links is not None:
        _check_order(own.links, len(links), "links", file)
        links = [links[old] for old in own.links]
    for number, name in own.link_names.items():
        link = whole_number(number, most=len(links) - 1)
        if link is None:
            raise SpecError(f"names link {number!r}, there are {len(links)}", file=file)
        links[link] = replace(links[link], name=name)
    try:
        return replace(
            cluster,
            devices=tuple(cluster.devices[old] for old in order),
            links=tuple(links),
            evidence=own.evidence,
            sources=own.sources,
            notes=own.notes,
            library=own.library,
            routing=own.routing,
            routing_reason=(own.routing, "its file says so"),
            grid=tuple(own.grid),
            fabric=None if own.fabric is None else Fabric(**own.fabric.model_dump()),
        )
    except SpecError as error:
        raise SpecError(str(error), file=file) from None


def device_order(devices: Sequence[Device], given: str | list[int] | None, file: str) -> list[int]:
    """Positions in the file, in the order of the cluster."""
    if given is None:
        return list(range(len(devices)))
    if isinstance(given, str):
        return sorted(range(len(devices)), key=lambda i: devices[i].kind != GPU)
    _check_order(given, len(devices), "devices", file)
    return given


def _check_order(order: list[int], count: int, what: str, file: str) -> None:
    if sorted(order) != list(range(count)):
        raise SpecError(f"the order of {what} must have each of 0 to {count - 1} once", file=file)


def _moved(link: Link, place: dict[int, int]) -> Link:
    return Link(
        name=link.name,
        source=place[link.source],
        target=place[link.target],
        bytes_per_s=link.bytes_per_s,
        latency_ps=link.latency_ps,
        link_class=link.link_class,
        medium=link.medium,
        peak_bytes_per_s=link.peak_bytes_per_s,
    )
