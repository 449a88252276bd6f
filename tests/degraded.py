"""Laws of degraded machines: less bandwidth, more latency, a missing link, a slower link, another order of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import trine
from trine.cluster import Cluster, load_cluster
from trine.cluster.select import find_links
from trine.collectives.nccl import Collectives
from trine.collectives.nccl.predict import OPS
from trine.collectives.options import CollectiveOptions
from trine.errors import TrineError

#: Presets and nodes; the first are looked at in seconds.
MACHINES = (
    ("a100-nvlink-4", 1), ("gh200-node", 1), ("hgx-b300", 1), ("dgx-a100", 1), ("mi250x-node", 1), ("l40s-pcie", 1),
    ("dgx1-v100", 1), ("mi300x-node", 1), ("rtx4090-pcie", 1), ("a40-pcie", 2), ("gh200-node", 2), ("dgx-h100", 2),
    ("mi250x-node", 3), ("dgx-spark", 3),
)  # fmt: skip
SIZES = (0, 1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 25, 1 << 30)
FACTORS = (0.97, 0.9, 0.75, 0.5, 0.2, 0.05)
LATENCIES_PS = (50_000, 500_000, 5_000_000, 50_000_000)
NETWORK_SIZE = (1 << 20,)


@cache
def machine(number: int) -> Cluster:
    name, nodes = MACHINES[number]
    return load_cluster(name) if nodes == 1 else load_cluster(name, nodes=nodes)


def later(cluster: Cluster, name: str, extra_ps: int) -> Cluster:
    """The cluster with more latency on the links of a name."""
    links = list(cluster.links)
    for i in find_links(cluster, name):
        links[i] = replace(links[i], latency_ps=links[i].latency_ps + extra_ps)
    return replace(cluster, links=tuple(links))


def times(cluster: Cluster, ops: Sequence[str] = OPS) -> dict[tuple[str, int], int]:
    """ps of collectives of a library at :data:`SIZES`."""
    asked = Collectives(cluster)
    return {(op, size): asked.predict(op, size).time_ps for op in ops for size in SIZES}


def faster(worse: Cluster, better: Cluster, ops: Sequence[str] = OPS) -> list[tuple[str, int]]:
    """The collectives that a degraded machine runs faster."""
    before, after = times(better, ops), times(worse, ops)
    return [key for key in before if after[key] < before[key]]


def broken_laws(number: int, link: int, other: int, severity: int, ops: Sequence[str] = OPS) -> list[str]:
    """Return a line for each collective that more or worse faults make faster.

    ``number``: of the machine; ``link``, ``other``: numbers of links; ``severity``: how bad the faults are.
    """
    whole = machine(number % len(MACHINES))
    names = [whole.link_names[each % len(whole.links)].partition("#")[0] for each in (link, other)]
    (name, nodes), found = MACHINES[number % len(MACHINES)], []

    def build(slow: Sequence[tuple[str, float]], down: Sequence[str]) -> Cluster | None:
        try:
            made = load_cluster(name, nodes=nodes if nodes > 1 else None, slow_links=slow, links_down=down)
            Collectives(made)
        except TrineError:  # a link without which GPUs are cut off
            return None
        return made

    at = severity % (len(FACTORS) - 1)
    light, heavy = ([(names[0], FACTORS[place])] for place in (at, at + 1))
    chain = (
        [build((), ()), build(light, ()), build(heavy, ())],
        [build((), ()), build((), names[:1]), build((), names)],
        [build((), names[1:]), build(heavy, names[1:])],
        [whole, *(later(whole, names[0], LATENCIES_PS[severity % 3 + more]) for more in (0, 1))],
    )  # fmt: skip
    for law, machines in zip(("less bandwidth", "a missing link", "both", "more latency"), chain, strict=True):
        there = [each for each in machines if each is not None]
        for better, worse in pairwise(there):
            found += [f"{law}: {name} x {nodes}, {names}, {severity}: {key}" for key in faster(worse, better, ops)]
    return found


def broken_by_messages(number: int, link: int, severity: int) -> list[str]:
    """The same of collectives that are simulated message by message."""
    whole = machine(number % 8)
    name = whole.link_names[link % len(whole.links)].partition("#")[0]
    options = CollectiveOptions(protocol="none")
    found, preset = [], MACHINES[number % 8][0]
    for slow, down in (([(name, FACTORS[severity % len(FACTORS)])], []), ([], [name])):
        try:
            worse = load_cluster(preset, slow_links=slow, links_down=down)
        except TrineError:
            continue
        for op in ("all_reduce", "all_to_all"):
            first, second = (trine.collective(op, NETWORK_SIZE, each, options=options) for each in (whole, worse))
            found += [f"{preset}, {slow or down}: {op}"] if second.times_ps < first.times_ps else []
    return found
