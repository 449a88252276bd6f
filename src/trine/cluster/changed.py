"""Clusters defined as another cluster plus changes: cluster files with ``base:`` (docs/formats/cluster.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from trine.cluster.cluster import Cluster
from trine.cluster.given_bandwidth import given_bandwidth
from trine.cluster.parts import EVIDENCE, GPU, SWITCH, Device, Fabric, Link, check_host_memory
from trine.cluster.presets import gpu_of_cluster_file, link_named
from trine.cluster.routing.router import UNNAMED, usual_routing
from trine.cluster.serialize import exact_time
from trine.common.units import format_bandwidth, format_time
from trine.errors import SpecError, nearest

if TYPE_CHECKING:
    from trine.cluster.schema import ChangedFile, DeviceChange, FabricSpec, LinkChange

#: Change larger bases in the file of their node: the code here creates one object per link.
MAX_LINKS = 1 << 18

#: (names in the file, devices by name, file, field) -> device indices
Names = Callable[[list[str], Mapping[str, int], str, str], list[int]]


def changed(
    base: Cluster, spec: ChangedFile, file: str, names: Names, fabric: Callable[[FabricSpec, str], Fabric]
) -> Cluster:
    """Return ``base`` with the changes of a file; its sources list every change and the previous value.

    ``names`` and ``fabric`` parse these fields as in a file without a base.

    Raises SpecError: names file, field, value and the nearest valid name.
    """
    log: list[str] = []
    cluster = base
    if spec.devices or spec.links:
        cluster = _as_objects(base, file)
        index = {device.name: i for i, device in enumerate(cluster.devices)}
        for number, entry in enumerate(spec.devices or ()):
            cluster = _with_device(cluster, entry, names(entry.name, index, file, f"devices[{number}].name"), file, log)
        for number, link in enumerate(spec.links or ()):
            field = f"links[{number}]"
            ends = names(link.source, index, file, f"{field}.from"), names(link.target, index, file, f"{field}.to")
            cluster = _with_links(cluster, link, ends, file, field, log)
    if spec.links and not spec.devices and _is_nowhere_better(cluster, base):
        cluster = replace(cluster, degraded_from=(partial(_itself, base),))
    if spec.fabric is not None:
        cluster = replace(cluster, fabric=_fabric(base, spec, file, fabric, log))
    sources = {**base.sources, **({f"changed in {Path(file).name}": "; ".join(log)} if log else {}), **spec.sources}
    evidence = max(base.evidence, "assumed", key=EVIDENCE.index) if log else base.evidence
    notes = " ".join(text for text in (spec.notes, f"On top of {base.name}. {base.notes}".strip()) if text)
    peer_access = base.peer_access if spec.peer_access is None else spec.peer_access
    cluster = replace(
        cluster, name=spec.name or Path(file).stem, evidence=spec.evidence or evidence, sources=sources, notes=notes,
        collective_bandwidth=given_bandwidth(
            spec.collective_bandwidth, cluster, spec.library or base.library, file
        ),
        library=spec.library or base.library, segment=spec.segment or base.segment, peer_access=peer_access,
    )  # fmt: skip
    if spec.routing is not None:
        return cluster.routed(spec.routing, "set in its file")
    return cluster.routed(*usual_routing(cluster)) if base.routing_why.startswith(UNNAMED) else cluster


def _is_nowhere_better(cluster: Cluster, base: Cluster) -> bool:
    """Return whether no link has more bandwidth or less latency than in the base."""
    new, old = cluster.link_table, base.link_table
    slower, later = new.bytes_per_s <= old.bytes_per_s, new.latency_ps >= old.latency_ps
    return bool((slower & later).all())


def _itself(cluster: Cluster) -> Cluster:
    return cluster


def _as_objects(base: Cluster, file: str) -> Cluster:
    if len(base.links) > MAX_LINKS:
        remedy = "change the file of its node, and name that under 'node:'"
        raise SpecError(f"{base.name!r} has more than {MAX_LINKS} links: {remedy}", file=file, field="links")
    return replace(base, devices=tuple(base.devices), links=tuple(base.links))


def _with_device(cluster: Cluster, entry: DeviceChange, indices: Sequence[int], file: str, log: list[str]) -> Cluster:
    values = {key: value for key, value in entry.model_dump(exclude={"name"}).items() if value is not None}
    if not values:
        raise SpecError("changes nothing: give 'gpu', 'forwards', 'reduces' or 'memory'", file=file, field="devices")
    devices = list(cluster.devices)
    for i in indices:
        devices[i] = _device(devices[i], values, file)
    was = cluster.devices[indices[0]]
    for key, value in values.items():
        before = getattr(was, "memory_bytes" if key == "memory" else key)
        log.append(f"{key} of {', '.join(entry.name)}: {value} ({before} in {cluster.name})")
    return replace(cluster, devices=tuple(devices))


def _device(device: Device, values: Mapping[str, object], file: str) -> Device:
    field = f"devices.{device.name}"
    if "gpu" in values:
        if device.kind != GPU:
            raise SpecError(f"a {device.kind} has no GPU model", file=file, field=f"{field}.gpu")
        values = {**values, "gpu": gpu_of_cluster_file(str(values["gpu"]), file, f"{field}.gpu")}
    if values.get("reduces") and device.kind != SWITCH:
        raise SpecError(f"a {device.kind} reduces nothing", file=file, field=f"{field}.reduces")
    if "memory" in values:
        values = {**values, "memory_bytes": values["memory"]}
        check_host_memory(device.kind, cast(int, values["memory_bytes"]), file, f"{field}.memory")
    return replace(device, **{key: value for key, value in values.items() if key != "memory"})  # type: ignore[arg-type]


def _with_links(
    cluster: Cluster, change: LinkChange, ends: tuple[list[int], list[int]], file: str, field: str, log: list[str]
) -> Cluster:
    """Change the numbers of all links between the ends; every named device must have such a link."""
    sources, targets = set(ends[0]), set(ends[1])
    pairs = [(sources, targets), *([(targets, sources)] if change.duplex else [])]
    links = list(cluster.links)
    indices = []
    for number, link in enumerate(links):
        if any(link.source in a and link.target in b for a, b in pairs):
            indices.append(number)
    met = {end for i in indices for end in (links[i].source, links[i].target)}
    for name, devices, far_names in (("from", ends[0], change.target), ("to", ends[1], change.source)):
        for device in devices:
            if device not in met:
                near = sorted({cluster.device_name(link.target) for link in cluster.links_from(device)})
                hint = nearest(far_names[0], near)
                problem = f"no link of {cluster.name!r} joins {cluster.device_name(device)!r} to {', '.join(far_names)}"
                raise SpecError(f"{problem}{hint}", file=file, field=f"{field}.{name}")
    for i in indices:
        links[i] = _link(links[i], change, file, field)
    log.append(_words(cluster, change, cluster.links[indices[0]], links[indices[0]], len(indices)))
    return replace(cluster, links=tuple(links))


def _link(link: Link, change: LinkChange, file: str, field: str) -> Link:
    if change.link is not None:
        try:
            kind = link_named(change.link)
        except SpecError as error:
            raise SpecError(str(error), file=file, field=f"{field}.link") from None
        if change.bandwidth is not None and change.lanes is not None:
            raise SpecError("has no effect beside 'bandwidth'", file=file, field=f"{field}.lanes")
        lanes = change.lanes or 1
        link = replace(
            link, bytes_per_s=kind.bytes_per_s * lanes, latency_ps=kind.latency_ps, medium=kind.name,
            peak_bytes_per_s=kind.peak_bytes_per_s * lanes, link_class=kind.link_class,
        )  # fmt: skip
    elif change.lanes is not None:
        raise SpecError("goes with 'link'", file=file, field=f"{field}.lanes")
    elif change.bandwidth is change.latency is change.peak is None:
        raise SpecError("changes nothing: give 'bandwidth', 'latency', 'peak' or 'link'", file=file, field=field)
    if change.bandwidth is not None:
        link = replace(link, bytes_per_s=change.bandwidth)
    if change.latency is not None:
        link = replace(link, latency_ps=change.latency)
    if change.peak is not None:
        link = replace(link, peak_bytes_per_s=change.peak)
    if link.peak_bytes_per_s is not None and change.peak is None and link.bytes_per_s > link.peak_bytes_per_s:
        link = replace(link, peak_bytes_per_s=None)  # the base's data-sheet value does not apply to this link
    return link


def _words(cluster: Cluster, change: LinkChange, old: Link, new: Link, count: int) -> str:
    """Return a description of the change: old and new values of the first link."""
    parts = []
    if old.medium != new.medium:
        parts.append(f"{new.medium} ({old.medium or 'bare numbers'} in {cluster.name})")
    if old.bytes_per_s != new.bytes_per_s:
        parts.append(f"bandwidth {format_bandwidth(new.bytes_per_s)} ({format_bandwidth(old.bytes_per_s)})")
    if old.latency_ps != new.latency_ps:
        parts.append(f"latency {format_time(new.latency_ps)} ({format_time(old.latency_ps)} in {cluster.name})")
    if old.peak_bytes_per_s != new.peak_bytes_per_s:
        peak = "none" if new.peak_bytes_per_s is None else format_bandwidth(new.peak_bytes_per_s)
        parts.append(f"data sheet {peak}")
    ends = f"{', '.join(change.source)} - {', '.join(change.target)}"
    return f"{count} link{'s' if count > 1 else ''} {ends}: {', '.join(parts) or 'as before'}"


def _fabric(
    base: Cluster, spec: ChangedFile, file: str, read: Callable[[FabricSpec, str], Fabric], log: list[str]
) -> Fabric:
    """Return the base's usual fabric with the changes of the file."""
    from trine.cluster.schema import FabricSpec
    from trine.common.spec import check

    assert spec.fabric is not None
    if base.fabric is None and base.has_fabric:
        hint = f"the nodes of {base.name!r} are joined already: stand on the file of its node"
        raise SpecError(hint, file=file, field="fabric")
    values = spec.fabric.model_dump(exclude_none=True)
    base_values = {} if base.fabric is None else asdict(base.fabric)
    latency_ps = base_values.pop("latency_ps", None)
    latency_ps = values.pop("latency", latency_ps)
    if latency_ps is not None:
        values["latency"] = exact_time(latency_ps)
    if values.get("kind", base_values.get("kind")) not in ("rail", "fat-tree", "clos"):
        base_values = {key: value for key, value in base_values.items() if key not in ("oversubscription", "radix")}
    log.append(f"fabric {', '.join(f'{key} {value}' for key, value in values.items())}")
    try:
        return read(check(FabricSpec, {**base_values, **values}, file), file)
    except SpecError as error:
        if error.field is not None and not error.field.startswith("fabric"):
            where = f"fabric.{error.field}"
            raise SpecError(str(error).split(f"{error.field}: ", 1)[-1], file=file, field=where) from None
        raise
