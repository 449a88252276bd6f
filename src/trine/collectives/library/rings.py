"""Rings through the GPUs of a domain, as a library's graph search finds them, and what they carry together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.parts import HOST, SCALE_UP, Link
from trine.cluster.routing import SPLIT

#: Steps of the search for one ring; NCCL limits its own search likewise.
BUDGET = 20_000
#: What GPUs reach through a CPU's root complex, whatever the PCIe generation: 24 GB/s with four A100 on PCIe 4.0
#: (vidur, a100_pairwise_nvlink), 26 GB/s with four RTX PRO 6000 on PCIe 5.0 (aiconfigurator, nccl 2.29.2).
ROOT_COMPLEX_BYTES_PER_S = 26.5e9
#: More links a pair than this are counted in larger units, so that the search stays short.
MAX_LANES = 32
#: GPUs whose driver allows no peer access: every message is written to host memory and read again. The part of a link
#: that is left is assumed.
NO_PEER_ACCESS = ("rtx4090", "rtx5090")
STAGED_PART = 0.5

Lanes = list[list[int]]
Devices = Sequence[int] | npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RingRates:
    """bytes/s per direction of all rings together: closed ones, and paths through all GPUs.

    ``fan_out``: out of one GPU while all exchange with all. ``shift``: from each GPU to the next one, straight.
    ``root``:
    between one GPU and all others while only that one sends or receives.

    ``link``: the one that bounds them. ``latency_ps``: of a hop from one GPU to the next, on average.
    """

    ring: float
    path: float
    fan_out: float
    shift: float
    root: float
    lanes: int
    link: Link
    latency_ps: int


def ring_rates(cluster: Cluster, domain: Sequence[int]) -> RingRates:
    """Find rings through ``domain`` (device indices of GPUs, at least two)."""
    direct = _direct_lanes(cluster, domain)
    if direct is None:
        return _routed(cluster, domain)
    return direct


def _direct_lanes(cluster: Cluster, domain: Sequence[int]) -> RingRates | None:
    """Rings over GPU-to-GPU links; None where the GPUs hang on switches or reach each other over PCIe."""
    place = {gpu: i for i, gpu in enumerate(domain)}
    size = len(place)
    rates = [[0] * size for _ in range(size)]
    used: list[Link] = []
    for gpu, i in place.items():
        for link in cluster.links_from(gpu):
            if link.link_class == SCALE_UP and link.target in place:
                rates[i][place[link.target]] += link.bytes_per_s
                used.append(link)
    lane = min((rate for row in rates for rate in row if rate), default=0)
    members = range(len(domain))
    if not lane or any(not any(rates[i][j] for j in range(size)) for i in members):
        return None
    links = [rates[i][j] for i in members for j in members if i != j]
    slowest = min(used, key=lambda link: link.bytes_per_s)
    root = float(min(sum(rates[i][j] for j in members) for i in members))
    shift = float(min(_straight(rates, i, (i + 1) % size) for i in members))
    if min(links) == max(links):  # every pair joined alike: rings and paths that share no link are known to exist
        count = len(domain) - 1
        path = float(lane * (count + 1)) if count > 1 else float(lane)
        return RingRates(
            ring=float(lane * count),
            path=path,
            fan_out=root,
            shift=shift,
            root=root,
            lanes=count,
            link=slowest,
            latency_ps=slowest.latency_ps,
        )
    lanes = [[min(MAX_LANES, rate // lane) for rate in row] for row in rates]
    found = _count_rings(lanes) if size > 2 else lanes[0][1]
    if not found:
        return None
    return RingRates(
        ring=float(found * lane), path=float(found * lane), fan_out=_exchange(rates), shift=shift, root=root,
        lanes=found, link=slowest, latency_ps=slowest.latency_ps,
    )  # fmt: skip


def _middles(rates: Lanes, here: int, there: int) -> list[int]:
    """The GPUs that have links from ``here`` and to ``there``."""
    return [middle for middle in range(len(rates)) if rates[here][middle] and rates[middle][there]]


def _straight(rates: Lanes, here: int, there: int) -> float:
    """bytes/s of the link between two GPUs, else through the best one between them, else through the hosts."""
    if rates[here][there]:
        return rates[here][there]
    through = [min(rates[here][middle], rates[middle][there]) for middle in _middles(rates, here, there)]
    return max(through, default=ROOT_COMPLEX_BYTES_PER_S)


def _exchange(rates: Lanes) -> float:
    """bytes/s out of one GPU while all send as much to each other; pairs without a link share those through others."""
    size = len(rates)
    load = [[0.0] * size for _ in range(size)]
    for here in range(size):
        for there in range(size):
            if here == there:
                continue
            middles = [] if rates[here][there] else _middles(rates, here, there)
            if not middles:
                load[here][there] += 1
            for middle in middles:
                load[here][middle] += 1 / len(middles)
                load[middle][there] += 1 / len(middles)
    each = min(
        (rates[i][j] or ROOT_COMPLEX_BYTES_PER_S) / load[i][j] for i in range(size) for j in range(size) if load[i][j]
    )
    return each * (size - 1)


def _count_rings(lanes: Lanes) -> int:
    """Closed rings through all GPUs that share no lane; each is used both ways, as NCCL does."""
    size = len(lanes)
    most = min(sum(row) for row in lanes)
    budget = [BUDGET]
    best = 0

    def more(found: int) -> None:
        nonlocal best
        best = max(best, found)
        for order in _rings(lanes, size, budget):
            used = [_take(lanes, a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True)]
            more(found + 2)
            for hops in used:
                _give(lanes, hops)
            if best >= most - most % 2 or budget[0] <= 0:
                return

    more(0)
    return best


def _rings(lanes: Lanes, size: int, budget: list[int]) -> Iterator[list[int]]:
    """All rings from GPU 0 by depth first, the widest hops first, while the budget lasts."""
    trail = [0]
    choices = [_hops(lanes, 0, size)]
    while choices:
        budget[0] -= 1
        if budget[0] < 0:
            return
        if len(trail) == size and _reach(lanes, trail[-1], 0):
            yield list(trail)
        step = next((to for to in choices[-1] if to not in trail), None) if len(trail) < size else None
        if step is None:
            choices.pop()
            trail.pop()
            continue
        choices[-1] = choices[-1][choices[-1].index(step) + 1 :]
        trail.append(step)
        choices.append(_hops(lanes, step, size))


def _hops(lanes: Lanes, here: int, size: int) -> list[int]:
    """Where a ring may go from ``here``: over a direct lane, the widest first, else through one other GPU."""
    direct = sorted((to for to in range(size) if lanes[here][to]), key=lambda to: (-lanes[here][to], to))
    through = [to for to in range(size) if to != here and not lanes[here][to] and _via(lanes, here, to) is not None]
    return direct + through


def _reach(lanes: Lanes, here: int, there: int) -> bool:
    return bool(lanes[here][there]) or _via(lanes, here, there) is not None


def _via(lanes: Lanes, here: int, there: int) -> int | None:
    """A GPU that has lanes left from ``here`` and to ``there``."""
    for middle in range(len(lanes)):
        if lanes[here][middle] and lanes[middle][there]:
            return middle
    return None


def _take(lanes: Lanes, here: int, there: int) -> list[tuple[int, int]]:
    """Use up a lane each way between two GPUs, direct or through another one; returns the pairs of GPUs."""
    if lanes[here][there]:
        hops = [(here, there)]
    else:
        middle = _via(lanes, here, there)
        hops = [] if middle is None else [(here, middle), (middle, there)]
    for a, b in hops:
        lanes[a][b] -= 1
        lanes[b][a] -= 1
    return hops


def _give(lanes: Lanes, hops: list[tuple[int, int]]) -> None:
    for a, b in hops:
        lanes[a][b] += 1
        lanes[b][a] += 1


def _routed(cluster: Cluster, domain: Sequence[int]) -> RingRates:
    """One ring in order over the routes of the cluster; each link's rate is shared by the hops that cross it."""
    load, latency_ps = crossings(cluster, domain, [*domain[1:], domain[0]])
    worst, rate = load.worst(cluster)
    if cluster.device_table.where(HOST)[cluster.link_table.target[load.links]].any():
        rate = min(rate, ROOT_COMPLEX_BYTES_PER_S)
    if any(cluster.devices[gpu].gpu in NO_PEER_ACCESS for gpu in domain):
        rate *= STAGED_PART
    return RingRates(
        ring=rate,
        path=rate,
        fan_out=_fan_out(cluster, domain, rate),
        shift=rate,
        root=max(rate, _star(cluster, domain)),
        lanes=1,
        link=cluster.links[worst],
        latency_ps=latency_ps,
    )


class Load(NamedTuple):
    """``links``: int64[links that are crossed], first those crossed first. ``times``: float64[...], how often."""

    links: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]

    def worst(self, cluster: Cluster) -> tuple[int, float]:
        """The link that leaves a crossing least, the lowest of several, and these bytes/s."""
        rates = cluster.link_bytes_per_s[self.links] / self.times
        least = rates.min()
        return int(self.links[rates == least].min()), float(least)


def crossings(cluster: Cluster, sources: Devices, targets: Devices) -> tuple[Load, int]:
    """How often each link is crossed if each source sends to its target once, and the mean latency of a message.

    A message that is spread over several routes crosses each of them in part, and its latency is that of the longest.
    """
    if cluster.routing == SPLIT:
        return _parts_of_crossings(cluster, sources, targets)
    ptr, crossed = cluster.routes(np.array(sources), np.array(targets))
    links, first, count = np.unique(crossed, return_index=True, return_counts=True)
    order = np.argsort(first)
    latency_ps = int(cluster.link_latency_ps[crossed].sum())
    return Load(links[order].astype(np.int64), count[order].astype(np.float64)), latency_ps // (len(ptr) - 1)


def _parts_of_crossings(cluster: Cluster, sources: Devices, targets: Devices) -> tuple[Load, int]:
    """Where messages are spread over several routes."""
    load: dict[int, float] = {}
    latency_ps = 0
    for source, target in zip(map(int, sources), map(int, targets), strict=True):
        paths = cluster.paths(source, target)
        latency_ps += max(cluster.route_latency_ps(route) for route, _ in paths)
        for route, part in paths:
            for link in route:
                load[link] = load.get(link, 0) + part
    return Load(np.array(list(load), np.int64), np.array(list(load.values()))), latency_ps // len(sources)


def _fan_out(cluster: Cluster, domain: Sequence[int], at_most: float) -> float:
    """What one GPU sends to all others at once while all do: links are shared by the pairs that cross them."""
    if len(domain) > 16 or len(domain) < 3:  # behind switches it is the GPU's own link
        return at_most
    pairs = [(a, b) for a in domain for b in domain if a != b]
    load, _ = crossings(cluster, [a for a, _ in pairs], [b for _, b in pairs])
    return load.worst(cluster)[1] * (len(domain) - 1)


def _star(cluster: Cluster, domain: Sequence[int]) -> float:
    """bytes/s from the first GPU to all others at once; links are shared by the pairs that cross them."""
    load, _ = crossings(cluster, [domain[0]] * (len(domain) - 1), domain[1:])
    rate = load.worst(cluster)[1] * (len(domain) - 1)
    return rate * (STAGED_PART if any(cluster.devices[gpu].gpu in NO_PEER_ACCESS for gpu in domain) else 1.0)
