"""Ring search through the GPUs of a domain, like a library's graph search, and the rings' total bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.data import SPLIT
from trine.cluster.parts import HOST, SCALE_UP, Link
from trine.common.arrays import row_sums
from trine.errors import SpecError

#: Maximum number of steps in the search for rings; NCCL limits its search too.
BUDGET = 20_000
#: Bandwidth of GPUs through a CPU's root complex, for any PCIe generation: 24 GB/s with four A100 on PCIe 4.0
#: (vidur, a100_pairwise_nvlink), 26 GB/s with four RTX PRO 6000 on PCIe 5.0 (aiconfigurator, nccl 2.29.2).
ROOT_COMPLEX_BYTES_PER_S = 26.5e9
#: An all-to-all exchange with more pairs than this is sampled.
MAX_PAIRS = 4096
#: Maximum number of links counted per pair, so that the search stays short.
MAX_LANES = 32
#: GPUs without peer access in the driver: every message is written to host memory and read again. STAGED_PART, the
#: remaining fraction of a link's bandwidth, is assumed; eight RTX 5090 reach 28 GB/s of PCIe 5.0's 53, four of them 35
#: (github.com/NVIDIA/nccl/issues/1639). Their messages end in memory, so that the root complex forwards none.
NO_PEER_ACCESS = ("rtx4090", "rtx5090")
STAGED_PART = 0.5

Lanes = list[list[int]]
Devices = Sequence[int] | npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RingRates:
    """Bandwidths of a domain, in bytes/s per direction.

    ``ring``, ``path``: total over all closed rings, over all open paths through the GPUs. ``fan_out``: out of one GPU
    during an all-to-all exchange. ``shift``: from each GPU directly to the next. ``root``: between one GPU and all
    others while only that GPU sends or receives. ``link``: the bottleneck. ``latency_ps``: average of a hop from one
    GPU to the next; ``shift_latency_ps``: the longest hop; ``far_latency_ps``: the longest way between two GPUs.
    """

    ring: float
    path: float
    fan_out: float
    shift: float
    root: float
    lanes: int
    link: Link
    latency_ps: int
    shift_latency_ps: int
    far_latency_ps: int


def ring_rates(cluster: Cluster, domain: Sequence[int]) -> RingRates:
    """Return the rates of rings through ``domain`` (device indices of GPUs, at least two)."""
    direct = _direct_lanes(cluster, domain)
    if direct is None:
        return _routed(cluster, domain)
    return direct


def _direct_lanes(cluster: Cluster, domain: Sequence[int]) -> RingRates | None:
    """Return rings over GPU-to-GPU links; None if the GPUs are connected through switches or PCIe."""
    place = {gpu: i for i, gpu in enumerate(domain)}
    size = len(place)
    rates, peaks = ([[0] * size for _ in range(size)] for _ in range(2))
    links_in_use: list[Link] = []
    for gpu, i in place.items():
        for link in cluster.links_from(gpu):
            if link.link_class == SCALE_UP and link.target in place:
                rates[i][place[link.target]] += link.bytes_per_s
                peaks[i][place[link.target]] += link.peak_bytes_per_s or 0
                links_in_use.append(link)
    have_peaks = all(link.peak_bytes_per_s for link in links_in_use)
    widths = peaks if have_peaks else rates
    width = min((width for row in widths for width in row if width), default=0)
    members = range(len(domain))
    if not width or any(not any(rates[i][j] for j in range(size)) for i in members):
        return None
    links = [widths[i][j] for i in members for j in members if i != j]
    # A library counts lanes and gives all rings the same rate, so one slow lane slows all rings.
    lane = min(rates[i][j] * width // widths[i][j] for i in members for j in members if widths[i][j])
    slowest = min(links_in_use, key=lambda link: link.bytes_per_s)
    pairs = PairTable(cluster, domain, rates)
    shift, root = pairs.concurrent_use([(i, (i + 1) % size) for i in range(size)]), pairs.star()
    if min(links) == max(links):  # all pairs joined equally: link-disjoint rings and paths exist
        count = size - 1
        ring, path = float(lane * count), float(lane * (count + 1)) if count > 1 else float(lane)
        num_lanes, exchange = count, Use(root.rate / count, list(pairs.latency_ps.values()))
    else:
        lanes = []
        for row in widths:
            lanes.append([min(MAX_LANES, each // width) for each in row])
        num_lanes = _count_rings(lanes) if size > 2 else lanes[0][1]
        if not num_lanes:
            return None
        ring = path = float(num_lanes * lane)
        exchange = pairs.exchange()
    return RingRates(
        ring=ring, path=path, fan_out=exchange.rate * (size - 1), shift=shift.rate, root=root.rate, lanes=num_lanes,
        link=slowest, latency_ps=slowest.latency_ps, shift_latency_ps=max(shift.latencies_ps),
        far_latency_ps=max(*exchange.latencies_ps, *root.latencies_ps),
    )  # fmt: skip


class Use(NamedTuple):
    """Rate in bytes/s of each concurrent message, and the latency of each in ps."""

    rate: float
    latencies_ps: list[int]


class Way(NamedTuple):
    """The way of messages between two GPUs of a domain.

    hops: direct links between two GPUs of the domain, and the fraction of the bytes on each. links: other links, with
    their fractions. uses_host: whether the way leads through hosts.
    """

    latency_ps: int
    hops: list[tuple[tuple[int, int], float]]
    links: list[tuple[int, float]]
    uses_host: bool = False


class PairTable:
    """Routes between the GPUs of a domain: the direct link; else the cluster's route if it uses only such links; else a
    relay through one GPU, as libraries do if GPUs do not forward; else hosts.
    """

    def __init__(self, cluster: Cluster, domain: Sequence[int], rates: Lanes) -> None:
        self.cluster, self.domain, self.rates = cluster, domain, rates
        place = {gpu: i for i, gpu in enumerate(domain)}
        self.latency_ps: dict[tuple[int, int], int] = {}
        self._pair_of_link: dict[int, tuple[int, int]] = {}
        for gpu, i in place.items():
            for number in cluster.link_table.links_from(gpu).tolist():
                link = cluster.links[number]
                if link.link_class == SCALE_UP and link.target in place:
                    pair = (i, place[link.target])
                    self._pair_of_link[number] = pair
                    self.latency_ps[pair] = max(self.latency_ps.get(pair, 0), link.latency_ps)

    def concurrent_use(self, pairs: Iterable[tuple[int, int]]) -> Use:
        """Return the rate of each of ``pairs`` while all pairs send the same amount."""
        load: dict[tuple[int, int], float] = {}
        link_load: dict[int, float] = {}
        latencies = []
        uses_host = 0
        for source, target in pairs:
            way = self.way(source, target)
            latencies.append(way.latency_ps)
            uses_host = max(uses_host, way.uses_host)
            for hop, part in way.hops:
                load[hop] = load.get(hop, 0.0) + part
            for link, part in way.links:
                link_load[link] = link_load.get(link, 0.0) + part
        rates = [self.rates[i][j] / times for (i, j), times in load.items()]
        rates += [_link_rate(self.cluster, link) / times for link, times in link_load.items()]
        rates += [ROOT_COMPLEX_BYTES_PER_S] * uses_host
        return Use(min(rates), latencies)

    def star(self) -> Use:
        """Return the total rate between the first GPU and all others, in the slower direction."""
        peers = range(1, len(self.domain))
        out = self.concurrent_use((0, i) for i in peers)
        back = self.concurrent_use((i, 0) for i in peers)
        return Use(min(out.rate, back.rate) * len(peers), [*out.latencies_ps, *back.latencies_ps])

    def exchange(self) -> Use:
        """Return the rate of each pair in an all-to-all exchange; for many GPUs, from a sample of shifts."""
        return _exchange_rate(len(self.domain), self.concurrent_use)

    def way(self, source: int, target: int) -> Way:
        """Return the way between two GPUs: a direct link, the routes of the cluster, or a third GPU."""
        if self.rates[source][target]:
            return Way(self.latency_ps[source, target], [((source, target), 1.0)], [])
        try:
            paths = self.cluster.paths(self.domain[source], self.domain[target])
        except SpecError:
            paths = ()
        if paths and all(link in self._pair_of_link for route, _ in paths for link in route):
            hops = [(self._pair_of_link[link], part) for route, part in paths for link in route]
            return Way(max(self.cluster.route_latency_ps(route) for route, _ in paths), hops, [])
        middles = [gpu for gpu, rate in enumerate(self.rates[source]) if rate and self.rates[gpu][target]]
        if middles:
            legs = [(hop, 1 / len(middles)) for middle in middles for hop in ((source, middle), (middle, target))]
            latency_ps = max(self.latency_ps[source, m] + self.latency_ps[m, target] for m in middles)
            return Way(latency_ps, legs, [])
        if not paths:  # no described link: the way leads through undescribed hosts
            return Way(0, [], [], uses_host=True)
        link_parts = [(link, part) for route, part in paths for link in route]
        latency_ps = max(self.cluster.route_latency_ps(route) for route, _ in paths)
        return Way(latency_ps, [], link_parts, uses_host=True)


def _link_rate(cluster: Cluster, link: int) -> float:
    """Return a link's bytes/s; a link into a host has at most the root complex's rate."""
    entry = cluster.links[link]
    is_host = cluster.devices[entry.target].kind == HOST
    return min(entry.bytes_per_s, ROOT_COMPLEX_BYTES_PER_S) if is_host else entry.bytes_per_s


def _exchange_rate(size: int, use_of: Callable[[Iterable[tuple[int, int]]], Use]) -> Use:
    """Return the rate of each pair of ``size`` ranks in an all-to-all exchange.

    Up to MAX_PAIRS pairs run together; else the rate is the mean over sequential shifts by sampled distances.
    """
    if size * (size - 1) <= MAX_PAIRS:
        return use_of([(i, j) for i in range(size) for j in range(size) if i != j])
    number = max(2, MAX_PAIRS // size)
    shifts = sorted({1, size - 1, *(round(size * k / number) for k in range(1, number))})
    uses = []
    for shift in shifts:
        uses.append(use_of([(i, (i + shift) % size) for i in range(size)]))
    mean = len(uses) / sum(1 / use.rate for use in uses)
    return Use(mean / (size - 1), [latency_ps for use in uses for latency_ps in use.latencies_ps])


def _count_rings(lanes: Lanes) -> int:
    """Return the number of closed rings through all GPUs that share no lane; each runs both ways, as in NCCL."""
    size = len(lanes)
    limit = min(sum(row) for row in lanes)
    budget = [BUDGET]
    best = 0

    def search(num_rings: int) -> None:
        nonlocal best
        best = max(best, num_rings)
        for order in _rings(lanes, size, budget):
            hops = _take_ring(lanes, order)
            if hops is not None:
                search(num_rings + 2)
                _return_lanes(lanes, hops)
            if best >= limit - limit % 2 or budget[0] <= 0:
                return

    search(0)
    return best


def _rings(lanes: Lanes, size: int, budget: list[int]) -> Iterator[list[int]]:
    """Yield rings from GPU 0, depth first and widest hops first, until the budget is used up."""
    trail = [0]
    choices = [_hops(lanes, 0, size)]
    while choices:
        budget[0] -= 1
        if budget[0] < 0:
            return
        if len(trail) == size and _can_reach(lanes, trail[-1], 0):
            yield list(trail)
        if len(trail) < size:
            step = next((target for target in choices[-1] if target not in trail), None)
        else:
            step = None
        if step is None:
            choices.pop()
            trail.pop()
            continue
        choices[-1] = choices[-1][choices[-1].index(step) + 1 :]
        trail.append(step)
        choices.append(_hops(lanes, step, size))


def _hops(lanes: Lanes, gpu: int, size: int) -> list[int]:
    """Return the next GPUs of a ring from ``gpu``: over direct lanes, widest first, then through one other GPU."""
    linked = [i for i in range(size) if lanes[gpu][i]]
    direct = sorted(linked, key=lambda i: (-lanes[gpu][i], i))
    indirect = [i for i in range(size) if i != gpu and not lanes[gpu][i] and _relay(lanes, gpu, i) is not None]
    return direct + indirect


def _can_reach(lanes: Lanes, source: int, target: int) -> bool:
    return bool(lanes[source][target]) or _relay(lanes, source, target) is not None


def _relay(lanes: Lanes, source: int, target: int) -> int | None:
    """Return a GPU with free lanes from ``source`` and to ``target``, or None."""
    for middle in range(len(lanes)):
        if lanes[source][middle] and lanes[middle][target]:
            return middle
    return None


def _take_ring(lanes: Lanes, order: list[int]) -> list[tuple[int, int]] | None:
    """Use up a lane each way between neighbours of a ring; return the pairs of GPUs, or None if lanes run out.

    A ring with detours through other GPUs may need a lane twice; the search does not check that.
    """
    ring_hops: list[tuple[int, int]] = []
    for source, target in zip(order, [*order[1:], order[0]], strict=True):
        hops = _take_lanes(lanes, source, target)
        ring_hops += hops
        if not hops:
            _return_lanes(lanes, ring_hops)
            return None
    return ring_hops


def _take_lanes(lanes: Lanes, source: int, target: int) -> list[tuple[int, int]]:
    """Use up a lane each way between two GPUs, direct or through a third; return the pairs of GPUs, if any."""
    if lanes[source][target]:
        hops = [(source, target)]
    else:
        middle = _relay(lanes, source, target)
        hops = [] if middle is None else [(source, middle), (middle, target)]
    for a, b in hops:
        lanes[a][b] -= 1
        lanes[b][a] -= 1
    return hops


def _return_lanes(lanes: Lanes, hops: list[tuple[int, int]]) -> None:
    for a, b in hops:
        lanes[a][b] += 1
        lanes[b][a] += 1


def is_staged(cluster: Cluster, domain: Sequence[int]) -> bool:
    """Return whether messages between the GPUs ``domain`` pass through host memory, without peer access."""
    if cluster.peer_access is not None:
        return not cluster.peer_access
    return any(cluster.devices[gpu].gpu in NO_PEER_ACCESS for gpu in domain)


def _routed(cluster: Cluster, domain: Sequence[int]) -> RingRates:
    """Return one ring in domain order over the cluster's routes; hops that cross a link share its rate."""
    gpus = np.asarray(domain, np.int64)
    size = len(gpus)
    staged = is_staged(cluster, domain)
    staging = STAGED_PART if staged else 1.0

    def use_of(pairs: Iterable[tuple[int, int]]) -> Use:
        sources, targets = np.array(list(pairs)).T
        load, latencies = crossings(cluster, gpus[sources], gpus[targets])
        return Use(staging * load.worst(cluster)[1], latencies)

    load, latencies = crossings(cluster, gpus, np.roll(gpus, -1))
    worst, rate = load.worst(cluster)
    if not staged and cluster.device_table.where(HOST)[cluster.link_table.target[load.links]].any():
        rate = min(rate, ROOT_COMPLEX_BYTES_PER_S)
    rate *= staging
    exchange = _exchange_rate(size, use_of)
    peers = range(1, size)
    out = use_of((0, i) for i in peers)
    back = use_of((i, 0) for i in peers)
    return RingRates(
        ring=rate, path=rate, fan_out=exchange.rate * (size - 1), shift=rate,
        root=min(out.rate, back.rate) * (size - 1), lanes=1, link=cluster.links[worst],
        latency_ps=sum(latencies) // size, shift_latency_ps=max(latencies),
        far_latency_ps=max(*exchange.latencies_ps, *out.latencies_ps, *back.latencies_ps),
    )  # fmt: skip


class Load(NamedTuple):
    """Crossed links. ``links``: int64[n], in order of first crossing. ``times``: float64[n], crossings of each."""

    links: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]

    def worst(self, cluster: Cluster) -> tuple[int, float]:
        """Return the link with the lowest rate per crossing (lowest index on ties), and that rate in bytes/s."""
        rates = cluster.link_bytes_per_s[self.links] / self.times
        lowest = rates.min()
        return int(self.links[rates == lowest].min()), float(lowest)

    def at_peak(self, cluster: Cluster) -> float:
        """Return the peak bytes/s per crossing, from data-sheet peaks if known."""
        table = cluster.link_table
        peaks = np.array([max(each.bytes_per_s, each.peak_bytes_per_s or 0) for each in table.numbers], np.float64)
        return float((peaks[table.number[self.links]] / self.times).min())


def crossings(cluster: Cluster, sources: Devices, targets: Devices) -> tuple[Load, list[int]]:
    """Return the crossings of each link if each source sends to its target once, and each message's latency in ps.

    A message spread over several routes crosses each route in part; the longest route sets its latency.
    """
    if cluster.routing == SPLIT:
        return _parts_of_crossings(cluster, sources, targets)
    ptr, route_links = cluster.routes(np.array(sources), np.array(targets))
    links, first, count = np.unique(route_links, return_index=True, return_counts=True)
    order = np.argsort(first)
    latencies: list[int] = row_sums(cluster.link_latency_ps[route_links], ptr).tolist()
    return Load(links[order].astype(np.int64), count[order].astype(np.float64)), latencies


def _parts_of_crossings(cluster: Cluster, sources: Devices, targets: Devices) -> tuple[Load, list[int]]:
    """Return crossings and latencies for messages that are spread over several routes."""
    load: dict[int, float] = {}
    latencies = []
    for source, target in zip(map(int, sources), map(int, targets), strict=True):
        paths = cluster.paths(source, target)
        latencies.append(max(cluster.route_latency_ps(route) for route, _ in paths))
        for route, part in paths:
            for link in route:
                load[link] = load.get(link, 0) + part
    return Load(np.array(list(load), np.int64), np.array(list(load.values()))), latencies
