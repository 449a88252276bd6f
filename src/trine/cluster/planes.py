"""Switches side by side that join the same GPUs (the planes of NVSwitches), and links side by side, as one.

A GPU spreads each message over all its NVLinks by address, so several switches between the same GPUs carry a part of
every message, in proportion to their bandwidth. DGX H100 has four NVSwitches with 5, 4, 4 and 5 links to each GPU
(NVIDIA, The NVLink-Network Switch, Hot Chips 34, 2022). :func:`spread_over_planes` replaces them by one switch with the
sum of their bandwidths and the longest of their latencies. No pair of GPUs gets more bandwidth than its planes have
together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from trine.cluster.data import DIMENSIONS, RAIL, ClusterData
from trine.cluster.parts import GPU, SCALE_UP, SWITCH, Link
from trine.cluster.tables import LinkedDevices, LinkTable
from trine.cluster.tiers import joined_sets
from trine.common.arrays import distinct
from trine.common.units import format_bandwidth

AnyCluster = TypeVar("AnyCluster", bound=ClusterData)
#: Planes with more GPUs stay separate: the search looks at every pair of GPUs.
MAX_GPUS = 2048
#: Two planes share at least this many GPUs.
MIN_SHARED = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Planes:
    """Parallel planes: ``planes[k][i]`` is switch ``i`` of plane ``k``. ``gpus``: the GPUs that any of them joins.

    ``idle``: switches of planes of another shape, which a fault left and nobody uses.
    """

    planes: tuple[tuple[int, ...], ...]
    gpus: tuple[int, ...]
    idle: tuple[int, ...] = ()


def spread_over_planes(cluster: AnyCluster) -> AnyCluster:
    """Return the cluster with its planes as one switch and parallel links between two devices as one link.

    The cluster itself if it has neither, or if somebody chose a routing policy that decides between them.
    """
    return cluster if _is_chosen(cluster) else _spread(cluster)


def idle_planes(cluster: ClusterData) -> str:
    """Return a warning if the chosen routing policy leaves planes or parallel links idle, "" if it leaves none."""
    if not _is_chosen(cluster) or (merged := _spread(cluster)) is cluster:
        return ""
    is_scale_up = merged.link_table.of_class(SCALE_UP)
    rate = format_bandwidth(int(merged.link_bytes_per_s[is_scale_up].max()))
    return (
        f"routing {cluster.routing!r} ({cluster.routing_why}) does not use parallel switches or links in proportion to "
        f"their bandwidth; without it each message uses all of them at once, {rate} together"
    )


def _is_chosen(cluster: ClusterData) -> bool:
    """Return whether the cluster's file or user names a policy that picks one of several switches."""
    is_explicit = cluster.routing_why in ("asked for", "set in its file")
    return is_explicit and cluster.routing.partition(":")[0] not in (RAIL, DIMENSIONS)


def _spread(cluster: AnyCluster) -> AnyCluster:
    layout = cluster.device_table.layout
    if layout is None:
        parts: Sequence[LinkedDevices] = [cluster]
    else:
        parts = [block.node for block in layout.blocks]
    if not any(_has_parallels(part) for part in parts):
        return cluster
    candidates = []
    for planes in planes_of(cluster):
        candidates.append((planes, _pair_rates(cluster, planes) if len(planes.planes[0]) == 1 else None))
    merges = [(planes, pairs) for planes, pairs in candidates if pairs is None or _join_all(pairs)]
    alike = {twins[0]: twins for planes, _ in merges for twins in zip(*planes.planes, strict=True)}
    heads = {switch: head for head, switches in alike.items() for switch in switches}
    idle = {switch for planes, _ in merges for switch in planes.idle}
    if not merges and not _has_doubled_links(cluster):
        return cluster
    rows = _merged_links(cluster, heads, idle)
    if not merges and len(rows) == len(cluster.links):
        return cluster
    for planes, pairs in merges:
        if pairs is not None:
            _limit(rows, planes.gpus, pairs, planes.planes[0][0])
    return _rebuilt(cluster, alike, {*idle, *(switch for switch, head in heads.items() if switch != head)}, rows)


def _has_doubled_links(cluster: ClusterData) -> bool:
    """Return whether two scale-up links join the same two devices in the same direction."""
    table = cluster.link_table
    is_scale_up = table.of_class(SCALE_UP)
    ends = table.source[is_scale_up].astype(np.int64) * len(cluster.devices) + table.target[is_scale_up]
    return len(np.unique(ends)) < len(ends)


def _rebuilt(
    cluster: AnyCluster, alike: dict[int, tuple[int, ...]], removed: set[int], rows: dict[tuple[int, ...], Link]
) -> AnyCluster:
    """Return the cluster with links ``rows``, without devices ``removed``. alike: switches of each joint switch."""
    remaining = [i for i in range(len(cluster.devices)) if i not in removed]
    place = {old: new for new, old in enumerate(remaining)}
    devices = []
    for i in remaining:
        joint = [cluster.devices[switch] for switch in alike.get(i, (i,))]
        reduces = all(device.reduces for device in joint)
        if i in alike:
            name = _joint_name([device.name for device in joint])
        else:
            name = joint[0].name
        devices.append(replace(joint[0], name=name, reduces=reduces))
    names = tuple(device.name for device in devices)
    links = LinkTable.joined(names, [(place[ends[0]], place[ends[1]], link) for ends, link in rows.items()])
    merged = ", ".join(names[place[head]] for head in alike) or "parallel links"
    sources = {**cluster.sources, merged: "each message uses all of them at once, in proportion to their bandwidth"}
    return replace(cluster, devices=tuple(devices), links=links, cut_from=None, sources=sources)


def _has_parallels(machine: LinkedDevices) -> bool:
    """Return whether a GPU has several scale-up links to switches, or to one device; other links do not count."""
    links, devices = machine.link_table, machine.device_table
    from_gpu = links.of_class(SCALE_UP) & devices.where(GPU)[links.source]
    source, target = links.source[from_gpu].astype(np.int64), links.target[from_gpu].astype(np.int64)
    to_switch = devices.where(SWITCH)[target]
    ends = distinct(source * len(devices) + target)
    return len(ends) < len(source) or len(distinct(source[to_switch])) < int(to_switch.sum())


def planes_of(machine: LinkedDevices) -> list[Planes]:
    """Return the parallel planes: networks of switches, joined by no link, that share at least two GPUs."""
    links, devices = machine.link_table, machine.device_table
    fast = links.of_class(SCALE_UP)
    is_switch, is_gpu = devices.where(SWITCH), devices.where(GPU)
    plain = is_switch.copy()
    for ends, far_ends in ((links.source, links.target), (links.target, links.source)):
        plain[ends[~fast | ~(is_switch | is_gpu)[far_ends]]] = False
    number = _networks(links, np.flatnonzero(plain & is_switch))
    members: dict[int, set[int]] = defaultdict(set)
    for ends, far_ends in ((links.source, links.target), (links.target, links.source)):
        for switch, gpu in zip(ends.tolist(), far_ends.tolist(), strict=True):
            if switch in number and is_gpu[gpu]:
                members[number[switch]].add(gpu)
    switches: dict[int, list[int]] = defaultdict(list)
    for switch, network in number.items():
        switches[network].append(switch)
    parallel = []
    for group in _sharing(members):
        shapes = {network: _ordered(links, switches[network], is_gpu) for network in group}
        alike: dict[object, list[int]] = defaultdict(list)
        for network, shape in shapes.items():
            key: object = 1
            if len(shape) != 1:
                key = tuple(colour for colour, _ in shape)
            alike[key].append(network)
        used = max(alike.values(), key=len)
        gpus = set.union(*(members[network] for network in used))
        if len(used) > 1 and len(gpus) <= MAX_GPUS:
            used_planes = []
            for each in used:
                used_planes.append(tuple(switch for _, switch in shapes[each]))
            planes = tuple(used_planes)
            unused = [network for network in group if network not in used and members[network] <= gpus]
            idle = tuple(switch for network in unused for switch in switches[network])
            parallel.append(Planes(planes=planes, gpus=tuple(sorted(gpus)), idle=idle))
    return parallel


def _networks(links: LinkTable, switches: npt.NDArray[np.int64]) -> dict[int, int]:
    """Map each switch to the lowest switch that links between ``switches`` connect it to."""
    is_inner = np.isin(links.source, switches) & np.isin(links.target, switches)
    pairs = zip(links.source[is_inner].tolist(), links.target[is_inner].tolist(), strict=True)
    network = joined_sets(int(switches.max(initial=-1)) + 1, pairs)
    lowest: dict[int, int] = {}
    return {switch: lowest.setdefault(network[switch], switch) for switch in sorted(switches.tolist())}


def _sharing(members: dict[int, set[int]]) -> list[list[int]]:
    """Return groups of several networks that share enough GPUs, directly or through others."""
    networks_of: dict[int, list[int]] = defaultdict(list)
    for network in sorted(members):
        for gpu in members[network]:
            networks_of[gpu].append(network)
    shared = Counter(pair for networks in networks_of.values() for pair in combinations(networks, 2))
    group = {network: [network] for network in members}
    for (first, second), count in sorted(shared.items()):
        if group[first] is not group[second] and count >= MIN_SHARED:
            joint = sorted(group[first] + group[second])
            group |= dict.fromkeys(joint, joint)
    unique_groups = {joined[0]: joined for joined in group.values()}
    return [joined for joined in unique_groups.values() if len(joined) > 1]


def _ordered(links: LinkTable, switches: Sequence[int], is_gpu: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (colour, switch) of a network, in an order that is equal for networks of one shape.

    A colour tells which GPUs hang on a switch, and the colours of its neighbours, as often as there are switches.
    """
    near: dict[int, set[int]] = {switch: set() for switch in switches}
    for ends, far_ends in ((links.source, links.target), (links.target, links.source)):
        for switch in switches:
            near[switch].update(far_ends[ends == switch].tolist())
    colours_of_switches = {}
    for switch in switches:
        colours_of_switches[switch] = hash(tuple(sorted(end for end in near[switch] if is_gpu[end])))
    colours = colours_of_switches
    for _ in switches:
        colours = {
            switch: hash((colours[switch], tuple(sorted(colours[end] for end in near[switch] if end in colours))))
            for switch in switches
        }
    return sorted((colour, switch) for switch, colour in colours.items())


def _pair_rates(machine: LinkedDevices, planes: Planes) -> npt.NDArray[np.int64]:
    """Return int64[gpus, gpus]: bytes/s from each GPU to each other one over all planes of one switch each."""
    size, links = len(planes.gpus), machine.link_table
    row, pairs = {gpu: i for i, gpu in enumerate(planes.gpus)}, np.zeros((size, size), np.int64)
    for (switch,) in planes.planes:
        out, back = np.zeros((2, size), np.int64)
        for ends, gpus, rates in ((links.target, links.source, out), (links.source, links.target, back)):
            for link in np.flatnonzero(ends == switch).tolist():
                rates[row[int(gpus[link])]] += int(links.bytes_per_s[link])
        pairs += np.minimum(out[:, None], back[None, :])
    np.fill_diagonal(pairs, 0)
    return pairs


def _join_all(pairs: npt.NDArray[np.int64]) -> bool:
    """Return whether each GPU that can send shares a plane with each other GPU that can receive."""
    joint = np.minimum(pairs.max(axis=1)[:, None], pairs.max(axis=0)[None, :])
    np.fill_diagonal(joint, 0)
    return bool(((pairs > 0) | (joint == 0)).all())


def _limit(rows: dict[tuple[int, ...], Link], gpus: Sequence[int], pairs: npt.NDArray[np.int64], switch: int) -> None:
    """Lower the bandwidth of GPUs to and from the joint ``switch`` to the most that a GPU can send or receive.

    If two faults meet, so that two GPUs share fewer planes than other pairs, the sender gets the bandwidth of this
    pair.
    """
    down = pairs.max(axis=0)
    joint = np.minimum(pairs.max(axis=1)[:, None], down[None, :])
    np.fill_diagonal(joint, 0)
    up = np.where(joint > pairs, pairs, pairs.max(axis=1)[:, None]).min(axis=1)
    for gpu, *rates in zip(gpus, up.tolist(), down.tolist(), strict=True):
        for ends, bytes_per_s in zip(((gpu, switch), (switch, gpu)), rates, strict=True):
            link = rows.get(ends)
            if link is not None and 0 < bytes_per_s < link.bytes_per_s:
                peak = link.peak_bytes_per_s
                part = None if peak is None else max(bytes_per_s, peak * bytes_per_s // link.bytes_per_s)
                rows[ends] = replace(link, bytes_per_s=bytes_per_s, peak_bytes_per_s=part)


def _merged_links(machine: LinkedDevices, heads: dict[int, int], idle: set[int]) -> dict[tuple[int, ...], Link]:
    """Return links by ends, with one joint switch for parallel planes; merge parallel scale-up links of a GPU or plane.

    Other links that are parallel keep their places: their key ends in their number.
    """
    is_gpu, alike = machine.device_table.where(GPU), defaultdict[tuple[int, ...], list[Link]](list)
    for number, link in enumerate(machine.links):
        if link.source in idle or link.target in idle:
            continue
        source, target = heads.get(link.source, link.source), heads.get(link.target, link.target)
        is_joint = link.link_class == SCALE_UP and bool(
            is_gpu[source] or is_gpu[target] or link.source in heads or link.target in heads
        )
        alike[(source, target) if is_joint else (source, target, number)].append(link)
    return {ends: _sum(group, set(ends) & set(heads.values())) for ends, group in alike.items()}


def _sum(links: Sequence[Link], at_plane: set[int]) -> Link:
    """Return parallel links as one; a link at a joint switch gets a new name."""
    first = links[0]
    if len(links) == 1 and not at_plane:
        return first
    peaks = [link.peak_bytes_per_s for link in links]
    name = "" if at_plane else first.name
    bytes_per_s = sum(link.bytes_per_s for link in links)
    latency_ps = max(link.latency_ps for link in links)
    media = {link.medium for link in links}
    medium = first.medium if len(media) == 1 else None
    if None in peaks:
        peak = None
    else:
        peak = sum(peak for peak in peaks if peak is not None)
    return replace(
        first,
        name=name,
        bytes_per_s=bytes_per_s,
        latency_ps=latency_ps,
        medium=medium,
        peak_bytes_per_s=peak,
    )


def _joint_name(names: Sequence[str]) -> str:
    """Return ``sw0..3`` for ``sw0``, ``sw1``, ``sw2``, ``sw3``; else all names."""
    stem = names[0].rstrip("0123456789")
    numbers = [name[len(stem) :] for name in names]
    if stem and all(name.startswith(stem) for name in names) and _are_consecutive(numbers):
        return f"{names[0]}..{numbers[-1]}"
    more = [f"{len(names) - 4} more"] if len(names) > 4 else []
    return "+".join([*names[:4], *more])


def _are_consecutive(numbers: Sequence[str]) -> bool:
    are_numbers = all(number.isdecimal() for number in numbers)
    return are_numbers and all(int(high) == int(low) + 1 for low, high in pairwise(numbers))
