"""How many bytes a collective puts on each link, from who sends how much to whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_UP
from trine.collectives.nccl.topology import domains_of
from trine.collectives.options import CollectiveTime

#: With more pairs than this nobody waits for their routes: the loads of direct collectives are left out.
MAX_PAIRS = 20_000

Pair = tuple[int, int, int]
Item = TypeVar("Item")


def link_load(cluster: Cluster, group: Sequence[int], answer: CollectiveTime) -> npt.NDArray[np.int64]:
    """Bytes over each link: int64[links].

    For rings those that are spread over all NICs of a domain, and the same sums for trees and for in-network reduction
    across domains; empty for direct collectives of more than MAX_PAIRS pairs of ranks.
    """
    gpus = [cluster.gpus[rank] for rank in group]
    load = np.zeros(len(cluster.links), np.int64)
    for source, target, count in _pairs(cluster, gpus, answer):
        for route, part in cluster.paths(source, target):
            for link in route:
                load[link] += round(count * part)
    return load


def _pairs(cluster: Cluster, gpus: Sequence[int], answer: CollectiveTime) -> Iterator[Pair]:
    n, size = len(gpus), answer.sent_bytes
    if answer.algorithm == "direct":
        yield from _direct(gpus, answer.op, size)
    elif answer.algorithm == "nvls":
        yield from _multicast(cluster, gpus, size)
    else:
        turns = 2 if answer.op in ("all_reduce", "barrier") else 1
        each = size if answer.op in ("broadcast", "reduce") else turns * (n - 1) * size // n
        domains = domains_of(cluster, sorted(gpus))
        if answer.algorithm in ("ring", "pat"):
            yield from _rings(cluster, domains, each)
        else:  # trees and in-network sums: the buffer leaves each domain once, twice with more than two of them
            yield from _between(domains, size * (1 if len(domains) <= 2 or answer.algorithm == "collnet" else 2))
            for domain in domains:
                if answer.algorithm == "nvlstree":
                    yield from _multicast(cluster, domain, size)
                elif len(domain) > 1:
                    yield from _inside(cluster, domain, 2 * size * (len(domain) - 1) // len(domain))


def _rings(cluster: Cluster, domains: Sequence[Sequence[int]], each: int) -> Iterator[Pair]:
    """``each`` bytes through every GPU; a part of the rings leaves each domain from each of its first GPUs."""
    for domain in domains:
        m = len(domain)
        if m > 1:
            yield from _inside(cluster, domain, each if len(domains) == 1 else each * (m - 1) // m)
    if len(domains) > 1:
        yield from _between(domains, each)


def _inside(cluster: Cluster, domain: Sequence[int], each: int) -> Iterator[Pair]:
    """``each`` bytes out of every GPU of a domain: over all its links to others in proportion to their rates, where it
    has such links (the rings use them all), else to the next GPU.
    """
    members = set(domain)
    for here, there in _around(domain):
        direct = {
            link.target: 0
            for link in cluster.links_from(here)
            if link.target in members and link.link_class == SCALE_UP
        }
        for link in cluster.links_from(here):
            if link.target in direct:
                direct[link.target] += link.bytes_per_s
        if not direct:
            yield here, there, each
        total = sum(direct.values())
        yield from ((here, target, each * rate // total) for target, rate in direct.items())


def _between(domains: Sequence[Sequence[int]], each: int) -> Iterator[Pair]:
    """``each`` bytes out of every domain, spread over its first GPUs."""
    width = min(map(len, domains))
    if len(domains) > 1:
        for domain, following in _around(domains):
            for here, there in zip(domain[:width], following[:width], strict=True):
                yield here, there, each // width


def _around(items: Sequence[Item]) -> Iterator[tuple[Item, Item]]:
    """Each with the next one, the last with the first."""
    return zip(items, [*items[1:], items[0]], strict=True)


def _direct(gpus: Sequence[int], op: str, size: int) -> Iterator[Pair]:
    n = len(gpus)
    if op == "send_recv":
        yield from ((here, there, size) for here, there in _around(gpus))
    elif op in ("gather", "scatter"):
        for other in gpus[1:]:
            yield (other, gpus[0], size // n) if op == "gather" else (gpus[0], other, size // n)
    elif n * n <= MAX_PAIRS:
        for here in gpus:
            for there in gpus:
                if here != there:
                    yield here, there, size // n


def _multicast(cluster: Cluster, gpus: Sequence[int], size: int) -> Iterator[Pair]:
    """Each GPU gives the switches all of its buffer and its finished part, and gets as much."""
    n = len(gpus)
    for gpu in gpus:
        switches = [link for link in cluster.links_from(gpu) if cluster.devices[link.target].reduces]
        for link in switches:
            part = (size + size // n) // len(switches)
            yield gpu, link.target, part
            yield link.target, gpu, part
