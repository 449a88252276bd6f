"""Variants of a cluster: with fewer GPUs, slower links, or fewer links."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.layout import trimmed
from trine.cluster.lookup import likely_names, links_named
from trine.cluster.parts import GPU, Link
from trine.common.arrays import spans
from trine.common.units import parse_bandwidth
from trine.errors import SpecError, nearest

if TYPE_CHECKING:
    from trine.cluster.tables import LinkedDevices


#: In clusters with more GPUs, only some GPUs are checked for devices that dead links cut off.
MAX_STARTS = 32
#: Slowdown of a link: a factor, or a bandwidth with its unit.
Slowness = float | int | str
#: With more faults than this, a degraded cluster is compared with the intact cluster only.
MAX_FAULTS = 2
Fault = TypeVar("Fault")


def first_gpus(cluster: Cluster, count: int) -> Cluster:
    """Return the cluster with its first ``count`` GPUs; other GPUs and their links are removed, everything else stays.

    Raises SpecError if the cluster has fewer GPUs.
    """
    if not 1 <= count <= len(cluster.gpus):
        raise SpecError(f"{cluster.name!r} has {len(cluster.gpus)} GPUs, not {count}")
    if count == len(cluster.gpus):
        return cluster
    return replace(with_gpus(cluster, set(cluster.gpus[:count])), name=f"{cluster.name} ({count} GPUs)")


def with_gpus(cluster: Cluster, gpus: Collection[int]) -> Cluster:
    """Return the cluster with only ``gpus`` (device indices)."""
    return _with_devices(cluster, [i for i, device in enumerate(cluster.devices) if device.kind != GPU or i in gpus])


def with_hosts_of(cluster: Cluster, gpus: Collection[int]) -> Cluster:
    """Return the cluster with only ``gpus`` (device indices), and without the hosts that have none of them."""
    used = {cluster.devices[gpu].node for gpu in gpus}
    unused = {cluster.devices[gpu].node for gpu in cluster.gpus} - used
    remaining = [
        i for i, device in enumerate(cluster.devices)
        if (i in gpus if device.kind == GPU else device.node not in unused)
    ]  # fmt: skip
    return _with_devices(cluster, remaining)


def _with_devices(cluster: Cluster, remaining: Sequence[int]) -> Cluster:
    """Return the cluster with only some devices, and the links between them."""
    place = {old: new for new, old in enumerate(remaining)}
    links = tuple(
        replace(link, source=place[link.source], target=place[link.target])
        for link in cluster.links
        if link.source in place and link.target in place
    )
    devices = tuple(cluster.devices[i] for i in remaining)
    return replace(cluster, devices=devices, links=links, grid=(), segment=None, cut_from=None, degraded_from=())


def slow_down(cluster: Cluster, slow: Sequence[tuple[str, Slowness]]) -> Cluster:
    """Return the cluster with some links slower: each a name and a factor (0.5) or a bandwidth (``"10 GB/s"``).

    A name stands for a link (``gpu0->nvswitch``: this direction) or two devices (``gpu0-nvswitch``: both directions).

    Raises SpecError for an unknown link, a bandwidth above the link's, or a factor outside (0, 1].
    """
    if not slow:
        return cluster
    links = cluster.link_table
    numbers = {link: i for i, link in enumerate(links.numbers)}
    number = links.number.copy()
    for name, slowness in slow:
        for index in find_links(cluster, name):
            old = list(numbers)[number[index]]
            new = replace(old, bytes_per_s=_slower(old, slowness, name))
            number[index] = numbers.setdefault(new, len(numbers))
    links = replace(links, numbers=tuple(numbers), number=number)
    return replace(cluster, links=links, degraded_from=_with_one_less(slow_down, cluster, slow))


def _slower(link: Link, slow: Slowness, name: str) -> int:
    """Return the new bandwidth of a link."""
    factor = _factor(slow)
    if factor is None:
        bytes_per_s = parse_bandwidth(slow, f"slow link {name!r}")
        if bytes_per_s > link.bytes_per_s:
            raise SpecError(f"slow link {name!r}: {slow} is more than the link's own {link.bytes_per_s / 1e9:g} GB/s")
        return bytes_per_s
    if not 0 < factor <= 1:
        raise SpecError(f"slow link {name!r}: the factor is above 0 and at most 1, got {slow}")
    return max(1, round(link.bytes_per_s * factor))


def _factor(slowness: Slowness) -> float | None:
    """Return a bare number as a float; None for a bandwidth with a unit."""
    try:
        return float(slowness)
    except ValueError:
        return None


def take_down(cluster: Cluster, names: Sequence[str]) -> Cluster:
    """Return the cluster without some links, named as in :func:`slow_down`; messages take the other links.

    Raises SpecError for an unknown link, or for GPUs that can no longer reach each other; names some of them.
    """
    if not names:
        return cluster
    down = {index for name in names for index in find_links(cluster, name)}
    remaining = left_without(cluster, sorted(down))
    _check_connected(cluster, remaining, sorted(down), names)
    return replace(remaining, degraded_from=_with_one_less(take_down, cluster, names))


def _with_one_less(
    change: Callable[[Cluster, Sequence[Fault]], Cluster], cluster: Cluster, faults: Sequence[Fault]
) -> tuple[Callable[[], Cluster], ...]:
    """Return makers of the clusters with one fault less; above MAX_FAULTS, of the cluster without these faults."""
    is_few = len(faults) <= MAX_FAULTS
    if is_few:
        rests = [(*faults[:i], *faults[i + 1 :]) for i in range(len(faults))]
    else:
        rests = [()]
    return (
        *(partial(change, cluster, others) for others in rests),
        *(partial(_changed, change, make, faults) for make in cluster.degraded_from),
    )


def _changed(
    change: Callable[[Cluster, Sequence[Fault]], Cluster], make: Callable[[], Cluster], faults: Sequence[Fault]
) -> Cluster:
    return change(make(), faults)


def left_without(cluster: Cluster, down: Sequence[int]) -> Cluster:
    """Return the cluster without the links ``down``; in large clusters, nodes that lose links get a separate make."""
    devices, links, layout = cluster.devices, cluster.link_table, cluster.link_table.layout
    if layout is not None:
        layout = trimmed(layout, links, down)
        devices = replace(cluster.device_table, layout=layout)
    lost = np.array(down, np.int64)
    remaining = np.delete(np.arange(len(links)), lost)
    return replace(cluster, devices=devices, links=links.chosen(remaining, layout), cut_from=(cluster, lost))


def find_links(cluster: Cluster, name: str) -> list[int]:
    """Return the indices of the links ``name``: one direction for ``a->b``, both for ``a-b``, parallel links together.

    Raises SpecError for an unknown link; suggests the nearest names.
    """
    if cluster.device_table.layout is not None:
        matches = links_named(cluster.device_table, cluster.link_table, name)
    else:
        names = enumerate(cluster.link_names)
        matches = [i for i, link_name in names if link_name == name or link_name.partition("#")[0] == name]
        matches = matches or _pair_names(cluster).get(name, [])
    if not matches:
        at = _links_at(cluster, name)
        hint = f"; {name!r} is a device, its links are {at}" if at else nearest(name, likely_names(cluster.link_names))
        raise SpecError(f"cluster {cluster.name!r} has no link {name!r}{hint}")
    return matches


def _links_at(cluster: Cluster, name: str) -> str:
    """Return the first links of the device with this name, or this end of its name; "" for an unknown device."""
    names = enumerate(likely_names(cluster.device_names))
    device = next((full_name for _, full_name in names if full_name == name or full_name.endswith(f".{name}")), None)
    if device is None:
        return ""
    links = [link.name for link in cluster.links_from(cluster.index(device))]
    listed = ", ".join(repr(link) for link in links[:3])
    remainder = f" and {len(links) - 3} more" if len(links) > 3 else ""
    return listed + remainder


def _pair_names(cluster: Cluster) -> dict[str, list[int]]:
    """Return links by ``a-b`` and by ``b-a``."""
    by_pair: dict[str, list[int]] = {}
    for i, link in enumerate(cluster.links):
        a, b = cluster.devices[link.source].name, cluster.devices[link.target].name
        by_pair.setdefault(f"{a}-{b}", []).append(i)
        by_pair.setdefault(f"{b}-{a}", []).append(i)
    return by_pair


def _check_connected(before: Cluster, after: Cluster, down: Sequence[int], names: Sequence[str]) -> None:
    """Raise SpecError if a GPU no longer reaches another one that it reached."""
    is_gpu = before.device_table.where(GPU)
    lost: list[tuple[int, int]] = []
    for start in _affected(before, down):
        missed = is_gpu & ~reached(after, start)
        if missed.any():
            lost.extend((start, end) for end in np.flatnonzero(missed & reached(before, start)).tolist())
    if lost:
        cut = ", ".join(f"{before.devices[a].name} to {before.devices[b].name}" for a, b in lost[:4])
        more = f" and {len(lost) - 4} more pairs" if len(lost) > 4 else ""
        raise SpecError(f"without {', '.join(map(repr, names))} nothing leads from {cut}{more}")


def _affected(cluster: Cluster, down: Sequence[int]) -> list[int]:
    """Return the GPUs to check: all; in large clusters one per (sampled) node, and all of nodes that lose a link."""
    gpus, links, node_of = np.array(cluster.gpus), cluster.link_table, cluster.node_of
    if len(gpus) <= MAX_STARTS:
        return list(cluster.gpus)
    ends = np.concatenate((links.source[list(down)], links.target[list(down)]))
    touched = np.setdiff1d(node_of[ends], [-1])
    near = gpus[np.isin(node_of[gpus], touched)]
    first = np.sort(np.unique(node_of[gpus], return_index=True)[1])
    step = max(1, len(first) // MAX_STARTS)
    return sorted({*near.tolist(), *gpus[first[::step]].tolist()})


def reached(cluster: LinkedDevices, start: int) -> npt.NDArray[np.bool_]:
    """Return bool[devices]: True for devices that a message from ``start`` can reach, ``start`` included."""
    devices, links = cluster.device_table, cluster.link_table
    forwards = np.array([kind.forwards for kind in devices.kinds], np.bool_)[devices.kind]
    ptr, order = links.by_source
    ptr = np.concatenate((ptr, np.full(len(devices) + 1 - len(ptr), ptr[-1])))
    is_reached = np.zeros(len(devices), np.bool_)
    is_reached[start] = True
    frontier = np.array([start])
    while len(frontier):
        first, count = ptr[frontier], ptr[frontier + 1] - ptr[frontier]
        positions = spans(first, count)
        is_new = np.zeros(len(devices), np.bool_)
        is_new[links.target[order[positions]]] = True
        is_new &= ~is_reached
        is_reached |= is_new
        frontier = np.flatnonzero(is_new & forwards)
    return is_reached
