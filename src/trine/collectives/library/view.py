"""What a collective library sees of a cluster: domains of GPUs joined by fast links, and what lies between them.

A *domain* is a set of GPUs that reach each other over scale-up links (NVLink, xGMI), be it a node or a rack; GPUs
without such links form one domain a node, joined over PCIe and the hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trine.cluster.cluster import GPU, HOST_LINK, NIC, SCALE_OUT, SCALE_UP, SWITCH, Cluster
from trine.collectives.library.rings import ring_rates
from trine.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """How GPUs reach each other at one level.

    ``medium``: of the slowest link on the way. ``ring_bytes_per_s``: per direction, all rings together; inside a domain
    through one GPU, between domains out of one domain. ``gpu_bytes_per_s``: out of one GPU to all others at once.
    ``lanes``: separate paths that the traffic is spread over (rings found; NICs). ``latency_ps``: hardware, one way,
    of a hop from one rank to the next. ``limit``: the name of the link that bounds it.
    """

    medium: str
    ring_bytes_per_s: float
    gpu_bytes_per_s: float
    lanes: int
    latency_ps: int
    limit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A group of ranks as a library sees it.

    ``num_domains`` domains of ``min_per_domain`` to ``max_per_domain`` ranks on ``num_nodes`` hosts. ``path`` is the
    rate of a ring that leaves each domain again instead of closing inside it. ``inside`` is None where each domain has
    one rank, ``between`` where there is one domain. ``multicast``: GPUs of a domain hang on switches that reduce.
    ``sharp``: so do the domains.
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

    @property
    def per_domain(self) -> float:
        """Ranks of a domain, on average."""
        return self.num_ranks / self.num_domains


def group_view(cluster: Cluster, group: Sequence[int]) -> View:
    """Look at the ranks ``group`` of ``cluster`` as a library does.

    Raises
    ------
    InputError: fewer than two ranks, a rank twice, or one that the cluster has not.
    """
    _check_group(cluster, group)
    gpus = [cluster.gpus[rank] for rank in group]
    domains = _domains(cluster, gpus)
    inside, path = _inside(cluster, domains)
    devices = cluster.devices
    return View(
        num_ranks=len(gpus),
        num_domains=len(domains),
        num_nodes=len({devices[gpu].node for gpu in gpus}),
        min_per_domain=min(map(len, domains)),
        max_per_domain=max(map(len, domains)),
        gpu=devices[gpus[0]].gpu or "",
        library=cluster.library or "nccl",
        inside=inside,
        path_bytes_per_s=path,
        between=_between(cluster, domains) if len(domains) > 1 else None,
        multicast=inside is not None and all(_on_reducing_switches(cluster, gpu) for gpu in gpus),
        sharp=len(domains) > 1 and any(d.kind == SWITCH and d.reduces and d.node is None for d in devices),
    )


def _check_group(cluster: Cluster, group: Sequence[int]) -> None:
    if len(group) < 2:
        raise InputError(f"a collective needs at least 2 ranks, got {len(group)}")
    if len(set(group)) != len(group):
        raise InputError("a rank is in the group twice")
    if min(group) < 0 or max(group) >= len(cluster.gpus):
        raise InputError(
            f"the group names rank {max(group, key=abs)}, but {cluster.name!r} has {len(cluster.gpus)} GPUs"
        )


def _domains(cluster: Cluster, gpus: Sequence[int]) -> list[list[int]]:
    """GPUs that scale-up links join, in order; GPUs without any are joined by their node, or by host links."""
    roots = list(range(len(cluster.devices)))

    def find(device: int) -> int:
        while roots[device] != device:
            roots[device] = roots[roots[device]]
            device = roots[device]
        return device

    fast = {link.source for link in cluster.links if link.link_class == SCALE_UP}
    for link in cluster.links:
        slow = link.link_class == HOST_LINK and not (fast & {link.source, link.target})
        if link.link_class == SCALE_UP or slow:
            roots[find(link.source)] = find(link.target)
    found: dict[object, list[int]] = {}
    for domain in _of_one_node(cluster, gpus, [find(gpu) if gpu in fast else None for gpu in gpus]):
        found.setdefault(domain[0], []).append(domain[1])
    return list(found.values())


def _of_one_node(cluster: Cluster, gpus: Sequence[int], parts: Sequence[int | None]) -> list[tuple[object, int]]:
    """(domain, GPU): GPUs of one node form one domain even where only PCIe joins some of them."""
    nodes = [cluster.devices[gpu].node for gpu in gpus]
    owner: dict[object, object] = {}
    for node, part in zip(nodes, parts, strict=True):
        if part is not None and node is not None:  # a rack's links join nodes: all of them are one domain
            owner.setdefault(node, owner.get(("part", part), ("part", part)))
            owner.setdefault(("part", part), owner[node])
    out: list[tuple[object, int]] = []
    for gpu, node, part in zip(gpus, nodes, parts, strict=True):
        if part is None:
            out.append((owner.get(node, ("node", node)), gpu))
        else:
            out.append((owner.get(node, owner.get(("part", part), ("part", part))), gpu))
    return out


def _inside(cluster: Cluster, domains: Sequence[Sequence[int]]) -> tuple[Tier | None, float]:
    """The slowest domain, and the rate of ring paths through it. One domain of each make is looked at."""
    best: dict[object, tuple[Tier, float]] = {}
    for domain in domains:
        if len(domain) > 1:
            key = _make(cluster, domain)
            if key not in best:
                best[key] = _one_domain(cluster, domain)
    if not best:
        return None, float("inf")
    tiers = list(best.values())
    return min((tier for tier, _ in tiers), key=lambda tier: tier.ring_bytes_per_s), min(path for _, path in tiers)


def _make(cluster: Cluster, domain: Sequence[int]) -> object:
    """Equal for domains that are built alike: links of each GPU, as (class, rate, whether to a GPU, which one)."""
    place = {gpu: i for i, gpu in enumerate(domain)}
    return tuple(
        tuple(
            sorted(
                (link.link_class, link.bytes_per_s, place.get(link.target, -1), cluster.devices[link.target].kind)
                for link in cluster.links_from(gpu)
            )
        )
        for gpu in domain
    )


def _one_domain(cluster: Cluster, domain: Sequence[int]) -> tuple[Tier, float]:
    rates = ring_rates(cluster, domain)
    tier = Tier(
        medium=rates.link.medium or "",
        ring_bytes_per_s=rates.ring,
        gpu_bytes_per_s=rates.fan_out,
        lanes=rates.lanes,
        latency_ps=rates.latency_ps,
        limit=rates.link.name,
    )
    return tier, rates.path


def _between(cluster: Cluster, domains: Sequence[Sequence[int]]) -> Tier:
    """What leaves a domain for the next one in a ring of domains, over the NICs nearest to its GPUs."""
    load: dict[int, int] = {}
    latency_ps, crossings, num_paths = 0, 0, 0
    width = min(map(len, domains))
    starts = [_spread(domain, width) for domain in domains]
    for here, there in zip(starts, [*starts[1:], starts[0]], strict=True):
        for source, target in zip(here, there, strict=True):
            route, _ = cluster.paths(source, target)[0]
            latency_ps += cluster.route_latency_ps(route)
            crossings += 1
            for link in route:
                load[link] = load.get(link, 0) + 1
        num_paths = len(here)
    worst = min(load, key=lambda link: (cluster.links[link].bytes_per_s / load[link], link))
    outer = [cluster.links[link] for link in load if cluster.links[link].link_class == SCALE_OUT]
    medium = next((link.medium for link in outer if link.medium), "")
    nics = {link.source for link in outer if cluster.devices[link.source].kind in (NIC, GPU)}
    rate = cluster.links[worst].bytes_per_s / load[worst] * num_paths
    return Tier(
        medium=medium or "",
        ring_bytes_per_s=rate,
        gpu_bytes_per_s=rate / width,
        lanes=max(1, len(nics) // len(domains)),
        latency_ps=latency_ps // crossings,
        limit=cluster.links[worst].name,
    )


def _spread(domain: Sequence[int], width: int) -> list[int]:
    """``width`` of the GPUs, evenly."""
    return [domain[i * len(domain) // width] for i in range(width)]


def _on_reducing_switches(cluster: Cluster, gpu: int) -> bool:
    targets = [link.target for link in cluster.links_from(gpu) if link.link_class == SCALE_UP]
    return bool(targets) and all(cluster.devices[target].reduces for target in targets)
