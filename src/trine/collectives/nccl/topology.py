"""A collective library's view of a cluster: domains of GPUs joined by fast links, and the network between them.

A *domain* is a set of GPUs that reach each other over scale-up links (NVLink, xGMI), within a node or a rack. GPUs
without such links form one domain per node, joined over PCIe and the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, NIC, SCALE_OUT, SWITCH, Link
from trine.cluster.presets import library_of_gpu
from trine.collectives.nccl.rings import Load, crossings, ring_rates
from trine.common.arrays import Bool, Int32, Int64, distinct
from trine.errors import InputError

VOLTA, AMPERE, HOPPER, BLACKWELL = range(4)

#: Compute capability by prefix of the GPU's name (NVIDIA, CUDA GPUs). Other GPUs get the A100's.
_CAPABILITIES = (
    ("p100", 60), ("v100", 70), ("t4", 75), ("a100", 80), ("a800", 80), ("a40", 86), ("a10", 86), ("a6000", 86),
    ("rtx3090", 86), ("l4", 89), ("rtx4090", 89), ("h100", 90), ("h200", 90), ("h20", 90), ("gh200", 90), ("h800", 90),
    ("b200", 100), ("gb200", 100), ("b300", 103), ("gb300", 103), ("rtx-pro-6000", 120), ("rtx5090", 120),
    ("gb10", 121),
)  # fmt: skip
_GENERATIONS = ((100, BLACKWELL), (90, HOPPER), (80, AMPERE), (0, VOLTA))


@cache
def _capability(gpu: str) -> int:
    return next((number for name, number in _CAPABILITIES if gpu.startswith(name)), 80)


@cache
def architecture(gpu: str) -> int:
    """Return NCCL's index of the GPU's generation; Ada and unknown GPUs get Ampere's index."""
    return next(index for least, index in _GENERATIONS if _capability(gpu) >= least)


def oldest(gpus: Iterable[str]) -> str:
    """Return the GPU model of the oldest generation: NCCL tunes a group for it (``minCompCap`` in init.cc)."""
    return min(gpus, key=lambda gpu: (_capability(gpu), gpu))


def have_one_capability(gpus: Iterable[str]) -> bool:
    """Return whether all GPUs have one compute capability: NCCL up to 2.29 uses LL128 only then (tuning.cc)."""
    return len({_capability(gpu) for gpu in gpus}) == 1


#: The rate of an all-to-all exchange is estimated from shifts by these eighths of the number of domains.
_EIGHTHS = (1, 2, 3, 4)
#: Above this number of routes, only the shift by half of the domains is examined.
MAX_ROUTES = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """Rates and latencies between GPUs at one level.

    ``medium``: of the slowest link on the path. ``ring_bytes_per_s``: per direction, over all rings; inside a domain
    through one GPU, between domains out of one domain. ``gpu_bytes_per_s``: out of each GPU to all others while all
    send at once. ``shift_bytes_per_s``: from each rank to the next. ``root_bytes_per_s``: between one rank and all
    others. ``lanes``: number of separate paths (rings found; NICs). ``latency_ps``: mean one-way hardware latency from
    one rank to the next. ``shift_latency_ps``: the longest of these. ``far_latency_ps``: the longest between any two
    ranks. ``limit``: name of the bottleneck link. ``headroom``: data-sheet peak of the links divided by the rate, 1 if
    unknown.
    """

    medium: str
    ring_bytes_per_s: float
    gpu_bytes_per_s: float
    shift_bytes_per_s: float
    root_bytes_per_s: float
    lanes: int
    latency_ps: int
    shift_latency_ps: int
    far_latency_ps: int
    limit: str
    headroom: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CommTopology:
    """A library's view of a group of ranks.

    ``num_domains`` domains of ``min_per_domain`` to ``max_per_domain`` ranks on ``num_nodes`` hosts.
    ``path_bytes_per_s``: rate of a ring that passes through each domain instead of closing inside it. ``inside`` is
    None for domains of one rank, ``between`` for a single domain. ``multicast``: the GPUs of a domain share switches
    that reduce. ``sharp``: the domains do. ``pair_bytes_per_s``: upper bound per pair of ranks in an all-to-all;
    ``root_pair_bytes_per_s``: the same if only the first rank exchanges with all others. ``far_latency_ps``: the
    longest between ranks of different domains, 0 if unknown. ``same_gpus``: all have one compute capability.
    """

    num_ranks: int
    num_domains: int
    num_nodes: int
    min_per_domain: int
    max_per_domain: int
    gpu: str
    library: str
    inside: Tier | None
    path_bytes_per_s: float
    between: Tier | None
    multicast: bool
    sharp: bool
    pair_bytes_per_s: float = float("inf")
    root_pair_bytes_per_s: float = float("inf")
    far_latency_ps: int = 0
    same_gpus: bool = True

    @property
    def by_hand(self) -> bool:
        """Whether its links are bare numbers rather than entries of the link catalogue."""
        return not any(tier is not None and tier.medium for tier in (self.inside, self.between))

    @property
    def slowest_medium(self) -> str:
        """Kind of the links between domains, or inside a single domain."""
        tier = self.between or self.inside
        return "" if tier is None else tier.medium

    @property
    def per_domain(self) -> float:
        """Mean number of ranks per domain."""
        return self.num_ranks / self.num_domains


def without_names(topology: CommTopology) -> CommTopology:
    """Return the topology without the names of the bottleneck links, which do not affect times."""
    inner, outer = (None if tier is None else replace(tier, limit="") for tier in (topology.inside, topology.between))
    return replace(topology, inside=inner, between=outer)


def slowed(topology: CommTopology, part: float) -> CommTopology:
    """Return the topology with the bandwidth of all links multiplied by ``part``; data-sheet peaks stay."""

    def slow_tier(tier: Tier | None) -> Tier | None:
        if tier is None:
            return None
        return replace(
            tier, ring_bytes_per_s=tier.ring_bytes_per_s * part, gpu_bytes_per_s=tier.gpu_bytes_per_s * part,
            shift_bytes_per_s=tier.shift_bytes_per_s * part, root_bytes_per_s=tier.root_bytes_per_s * part,
            headroom=tier.headroom / part if tier.headroom > 1.0 else 1.0,
        )  # fmt: skip

    return replace(
        topology,
        inside=slow_tier(topology.inside),
        between=slow_tier(topology.between),
        path_bytes_per_s=topology.path_bytes_per_s * part,
    )


def blended(better: CommTopology, worse: CommTopology, part: float) -> CommTopology | None:
    """Return ``worse`` with its rates and latencies interpolated from ``better`` (part 0) to ``worse`` (part 1).

    Returns None if the two differ in their media or tiers.
    """

    tiers = [(better.inside, worse.inside), (better.between, worse.between)]
    if any((tier and tier.medium) != (target and target.medium) for tier, target in tiers):
        return None
    inner, outer = (target and replace(target, **_interpolate(tier, target, part)) for tier, target in tiers)
    return replace(worse, inside=inner, between=outer, **_interpolate(better, worse, part))


def _interpolate(start: object, end: object, part: float) -> dict[str, Any]:
    """Return rates and latencies interpolated between two tiers or groups."""
    names = [name for name in end.__slots__ if name.endswith(("_per_s", "_ps", "headroom"))]  # type: ignore[attr-defined]
    pairs = {name: (getattr(start, name), getattr(end, name)) for name in names}
    mixed = {}
    for name, (a, b) in pairs.items():
        mixed[name] = b if a == b else a + (b - a) * part
    return mixed


def comm_topology(cluster: Cluster, group: Sequence[int]) -> CommTopology:
    """Return a library's view of the ranks ``group`` of ``cluster``.

    Raises InputError for fewer than two ranks, duplicate or unknown ranks, and clusters with circuits.
    """
    _check_group(cluster, group)
    if cluster.circuits is not None:
        raise InputError(f"libraries know links only, and GPUs of {cluster.name!r} are joined by circuits")
    gpus = sorted(cluster.gpus[rank] for rank in group)  # a library orders GPUs itself, regardless of rank numbers
    domains = domains_of(cluster, gpus)
    inner, path = _inner_tier(cluster, domains)
    bounds = _PairBounds(float("inf"), float("inf"), 0)
    if len(domains) > 1:
        bounds = _exchanges(cluster, domains)
    table = cluster.device_table
    places = np.array(gpus, np.int64)
    models = {table.kinds[kind].gpu or "" for kind in distinct(table.kind[places]).tolist()}
    return CommTopology(
        num_ranks=len(gpus), num_domains=len(domains), num_nodes=len(distinct(cluster.node_of[places])),
        min_per_domain=min(map(len, domains)), max_per_domain=max(map(len, domains)), gpu=oldest(models),
        library=cluster.library or library_of_gpu(oldest(models)) or "nccl", inside=inner, path_bytes_per_s=path,
        between=_outer_tier(cluster, domains) if len(domains) > 1 else None,
        multicast=inner is not None and bool(cluster.node_classes.is_reduced[places].all()),
        sharp=len(domains) > 1 and _fabric_reduces(cluster), pair_bytes_per_s=bounds.exchange,
        root_pair_bytes_per_s=bounds.rooted, far_latency_ps=bounds.latency_ps, same_gpus=have_one_capability(models),
    )  # fmt: skip


def _check_group(cluster: Cluster, group: Sequence[int]) -> None:
    if len(group) < 2:
        raise InputError(f"a collective needs at least 2 ranks, got {len(group)}: take more GPUs, or nodes")
    if len(group) > len(cluster.gpus):
        raise InputError(f"the group has {len(group)} ranks, but {cluster.name!r} has {len(cluster.gpus)} GPUs")
    if len(set(group)) != len(group):
        raise InputError("a rank is in the group twice")
    if min(group) < 0 or max(group) >= len(cluster.gpus):
        raise InputError(
            f"the group names rank {max(group, key=abs)}, but {cluster.name!r} has {len(cluster.gpus)} GPUs"
        )


def domains_of(cluster: Cluster, gpus: Sequence[int]) -> list[list[int]]:
    """Return groups of GPUs joined by scale-up links, in order; GPUs without any are grouped by node or host links."""
    numbers = np.array(gpus, np.int64)
    islands, is_fast = cluster.scale_up_components[numbers], cluster.node_classes.has_scale_up[numbers]
    node_of = cluster.node_of[numbers]
    if _are_islands(islands, is_fast, node_of):
        return _grouped(numbers, islands)
    domains: dict[object, list[int]] = {}
    for domain, gpu in zip(_gpu_domains(islands, is_fast, node_of), numbers.tolist(), strict=True):
        domains.setdefault(domain, []).append(gpu)
    return list(domains.values())


def _are_islands(islands: Int64, is_fast: Bool, node_of: Int32) -> bool:
    """Return whether all GPUs have scale-up links, and those of each node belong to one island."""
    island_of_node = np.full(int(node_of.max()) + 2, -1, np.int64)
    island_of_node[node_of] = islands
    return bool(is_fast.all() and (island_of_node[node_of] == islands)[node_of >= 0].all())


def _grouped(values: Int64, keys: Int64) -> list[list[int]]:
    """Return the values of each key, in the order of the keys' first occurrences."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order[:1]] - 1))
    ends = np.append(starts[1:], len(order))
    ordered = values[order].tolist()
    by_first = np.argsort(order[starts])
    return [
        ordered[start:end] for start, end in zip(starts[by_first].tolist(), ends[by_first].tolist(), strict=True)
    ]  # fmt: skip


def _gpu_domains(islands: Int64, is_fast: Bool, node_of: Int32) -> list[object]:
    """Return the domain of each GPU: GPUs of one node form one domain even if only PCIe joins some of them."""
    parts = []
    for island, fast in zip(islands.tolist(), is_fast.tolist(), strict=True):
        parts.append(island if fast else None)
    nodes = []
    for node in node_of.tolist():
        nodes.append(None if node < 0 else node)
    owner: dict[object, object] = {}
    for node, part in zip(nodes, parts, strict=True):
        if part is not None and node is not None:  # a rack's links join nodes: all of them are one domain
            owner.setdefault(node, owner.get(("part", part), ("part", part)))
            owner.setdefault(("part", part), owner[node])
    keys = []
    for owner_node, owner_part in zip(nodes, parts, strict=True):
        keys.append(
            owner.get(owner_node, ("node", owner_node))
            if owner_part is None
            else owner.get(owner_node, owner.get(("part", owner_part), ("part", owner_part)))
        )
    return keys


def _inner_tier(cluster: Cluster, domains: Sequence[Sequence[int]]) -> tuple[Tier | None, float]:
    """Return the slowest domain, and the rate of ring paths through it. One domain of each class is examined."""
    best: dict[object, tuple[Tier, float]] = {}
    groups = [domain for domain in domains if len(domain) > 1]
    for domain_class, domain in zip(domain_classes(cluster, groups), groups, strict=True):
        if domain_class not in best:
            best[domain_class] = _domain_tier(cluster, domain)
    if not best:
        return None, float("inf")
    tiers = list(best.values())
    slowest = min((tier for tier, _ in tiers), key=_slowness)
    path_rate = min(path for _, path in tiers)
    return slowest, path_rate


def _slowness(tier: Tier) -> tuple[float, float, int, int, str]:
    """Return a sort key that puts the slowest tier first, independent of the order of nodes."""
    return tier.ring_bytes_per_s, tier.gpu_bytes_per_s, -tier.far_latency_ps, -tier.latency_ps, tier.medium


def domain_classes(cluster: Cluster, domains: Sequence[Sequence[int]]) -> list[object]:
    """Return a key per domain, equal for domains with the same links in both directions between their devices."""
    if len(domains) < 2:
        return list(range(len(domains)))
    if cluster.node_classes.node_make is not None:
        return _node_classes(cluster, cluster.node_classes.node_make, domains)
    devices = cluster.devices
    owner: dict[object, int] = {}
    for number, domain in enumerate(domains):
        for gpu in domain:
            owner[gpu] = owner[("node", devices[gpu].node)] = number
    home = [owner.get(i, owner.get(("node", device.node), -1)) for i, device in enumerate(devices)]
    count = [0] * len(domains)
    place = []
    for number in home:
        place.append(count[number])
        count[number] += number >= 0
    links: list[list[tuple[int, int, int, int]]] = [[] for _ in domains]
    for link in cluster.links:
        start, end = home[link.source], home[link.target]
        for number in {start, end} - {-1}:
            source = place[link.source] if start == number else -1
            target = place[link.target] if end == number else -1
            links[number].append((source, target, link.bytes_per_s, link.latency_ps))
    places: list[object] = []
    for domain, domain_links in zip(domains, links, strict=True):
        places.append((tuple(place[gpu] for gpu in domain), tuple(sorted(domain_links))))
    return places


def _node_classes(cluster: Cluster, node_make: npt.NDArray[np.int64], domains: Sequence[Sequence[int]]) -> list[object]:
    """Return the same keys from known classes of nodes: no domain is larger than a node."""
    layout = cluster.device_table.layout
    assert layout is not None
    gpus = np.array(list(chain.from_iterable(domains)), np.int64)
    node_class, local = node_make[gpus].tolist(), layout.places(gpus).local.tolist()
    ends = list(accumulate(map(len, domains), initial=0))
    return [(node_class[first], tuple(local[first:last])) for first, last in pairwise(ends)]


def _domain_tier(cluster: Cluster, domain: Sequence[int]) -> tuple[Tier, float]:
    rates = ring_rates(cluster, domain)
    tier = Tier(
        medium=rates.link.medium or "", ring_bytes_per_s=rates.ring, gpu_bytes_per_s=rates.fan_out,
        shift_bytes_per_s=rates.shift, root_bytes_per_s=rates.root, lanes=rates.lanes, latency_ps=rates.latency_ps,
        shift_latency_ps=rates.shift_latency_ps, far_latency_ps=rates.far_latency_ps, limit=rates.link.name,
        headroom=headroom_of(rates.link),
    )  # fmt: skip
    return tier, rates.path


def _outer_tier(cluster: Cluster, domains: Sequence[Sequence[int]]) -> Tier:
    """Return the tier between domains, over the NICs nearest to the GPUs: along a ring, and all-to-all."""
    width = min(map(len, domains))
    starts = np.array([domain[:width] for domain in domains]).ravel()
    ring, latencies = _shift_load(cluster, starts, width)
    worst, per_path = ring.worst(cluster)
    links, table = cluster.links, cluster.link_table
    outer = ring.links[table.of_class(SCALE_OUT)[ring.links]]
    nics = distinct(table.source[outer])
    nics = nics[cluster.device_table.where(NIC, GPU)[nics]]
    media = [table.numbers[number].medium for number in dict.fromkeys(table.number[outer].tolist())]
    rate = per_path * width
    lanes = max(1, len(nics) // len(domains))
    shifts = sorted({1, *(len(domains) * part // 8 for part in _EIGHTHS)} - {0})
    shifts = shifts if len(shifts) * len(domains) * width <= MAX_ROUTES else [len(domains) // 2]
    shift_loads = []
    for shift in shifts:
        shift_loads.append((ring, latencies) if shift == 1 else _shift_load(cluster, starts, shift * width))
    exchange = [load.worst(cluster)[1] * width for load, _ in shift_loads]
    last, first = (np.array([domain[end] for domain in domains]) for end in (-1, 0))
    is_ring = max(map(len, domains)) == 1  # the last GPU of a domain is its first
    next_load, next_ps = (ring, latencies) if is_ring else crossings(cluster, last, np.roll(first, -1))
    far_ps = max(max(each) for _, each in ((ring, latencies), *shift_loads))
    return Tier(
        medium=next(filter(None, media), ""), ring_bytes_per_s=rate,
        gpu_bytes_per_s=len(exchange) / sum(1 / each for each in exchange) / width,
        shift_bytes_per_s=min(rate / lanes, next_load.worst(cluster)[1]), root_bytes_per_s=rate / lanes, lanes=lanes,
        latency_ps=sum(latencies) // len(latencies), shift_latency_ps=max(next_ps), far_latency_ps=far_ps,
        limit=links[worst].name, headroom=headroom_of(links[worst]),
    )  # fmt: skip


class _PairBounds(NamedTuple):
    """Upper bounds of the bytes/s of each pair of GPUs, and the longest latency of a pair.

    exchange: in an all-to-all exchange. rooted: between the first GPU and all others.
    """

    exchange: float
    rooted: float
    latency_ps: int


def _exchanges(cluster: Cluster, domains: Sequence[Sequence[int]]) -> _PairBounds:
    """Return upper bounds of the rate of pairs of GPUs.

    Messages follow the cluster's routes; the busiest link, at its peak rate, sets the bound. Messages between domains
    count, and messages inside domains without scale-up links, because they cross the same links. With too many pairs
    to examine, a bound is infinite and its latency is 0.
    """
    home = np.repeat(np.arange(len(domains)), [len(domain) for domain in domains])
    gpus, size = np.array(list(chain.from_iterable(domains)), np.int64), len(home)
    ranks = np.arange(size)
    fast = cluster.node_classes.has_scale_up[gpus]

    def bound_of(sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> tuple[float, int]:
        is_counted = (sources != targets) & ((home[sources] != home[targets]) | ~fast[sources])
        if len(sources) > MAX_ROUTES or not is_counted.any():
            return float("inf"), 0
        load, latencies = crossings(cluster, gpus[sources[is_counted]], gpus[targets[is_counted]])
        return load.at_peak(cluster), max(latencies)

    first = np.zeros_like(ranks)
    out, back = bound_of(first, ranks), bound_of(ranks, first)
    exchange = (float("inf"), 0)
    if size * size <= MAX_ROUTES:
        exchange = bound_of(np.repeat(ranks, size), np.tile(ranks, size))
    return _PairBounds(exchange[0], min(out[0], back[0]), max(exchange[1], out[1], back[1]))


def headroom_of(link: Link) -> float:
    """Return the peak rate of a link divided by the rate that large transfers reach, at least 1."""
    return max(1.0, (link.peak_bytes_per_s or 0) / link.bytes_per_s)


def _shift_load(cluster: Cluster, starts: npt.NDArray[np.int64], shift: int) -> tuple[Load, list[int]]:
    """Return the load of each link if each GPU sends to the one ``shift`` positions on, and each path's latency."""
    return crossings(cluster, starts, np.roll(starts, -shift))


def _fabric_reduces(cluster: Cluster) -> bool:
    devices = cluster.device_table
    reduces = np.array([make.kind == SWITCH and make.reduces for make in devices.kinds], np.bool_)
    return bool((reduces[devices.kind] & (devices.node < 0)).any())
