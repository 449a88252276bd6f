"""Switched networks over any ports: one switch, leaf and spine, three levels, rails, dragonfly.

The same functions join the NICs of nodes (:mod:`trine.cluster.join`) and the GPUs of a blueprint
(:mod:`trine.cluster.topologies`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil

from trine.cluster.cluster import SWITCH, Device, Wire
from trine.errors import SpecError

#: More links both ways or switches than this are taken for a mistake.
MAX_SIZE = 1 << 20


@dataclass(kw_only=True)
class Plant:
    """Devices and wires to which a network is added.

    ``end``: the numbers of a link from a port to its switch; ``hop``: of one lane between switches.
    """

    devices: list[Device]
    end: Wire
    hop: Wire
    reduces: bool = False
    wires: list[Wire] = field(default_factory=list)

    def switch(self, name: str, rail: int | None = None) -> int:
        """Add a switch; returns its index."""
        self.devices.append(Device(name=name, kind=SWITCH, forwards=True, reduces=self.reduces, rail=rail))
        return len(self.devices) - 1

    def attach(self, port: int, switch: int) -> None:
        """Join a port to a switch, both ways."""
        self._join(self.end, port, switch, 1)

    def trunk(self, low: int, high: int, lanes: float = 1) -> None:
        """Join two switches, both ways."""
        self._join(self.hop, low, high, lanes)

    def _join(self, wire: Wire, a: int, b: int, lanes: float) -> None:
        peak = None if wire.peak_bytes_per_s is None else round(wire.peak_bytes_per_s * lanes)
        there = wire._replace(
            source=a, target=b, bytes_per_s=max(1, round(wire.bytes_per_s * lanes)), peak_bytes_per_s=peak
        )
        self.wires.extend((there, there.back()))


def check_size(number: int) -> None:
    """Raise SpecError for what is too large to be built, before it is."""
    if number > MAX_SIZE:
        raise SpecError(f"{number} links or switches are more than the {MAX_SIZE} that are taken seriously")


def add_switch(plant: Plant, ports: Sequence[int], name: str = "switch") -> int:
    """All ports on one switch."""
    switch = plant.switch(name)
    for port in ports:
        plant.attach(port, switch)
    return switch


def add_leaves(plant: Plant, groups: Sequence[Sequence[int]], rails: Sequence[int | None] | None = None) -> list[int]:
    """A leaf switch for each group of ports."""
    leaves = []
    for number, group in enumerate(groups):
        rail = None if rails is None else rails[number]
        leaf = plant.switch(f"leaf{number}" if rail is None else f"leaf{number}.rail{rail}", rail)
        leaves.append(leaf)
        for port in group:
            plant.attach(port, leaf)
    return leaves


def add_spines(plant: Plant, leaves: Sequence[int], spines: int, lanes: float = 1) -> None:
    """Each leaf to each of ``spines`` spines, by ``lanes`` lanes."""
    check_size(spines * len(leaves))
    for number in range(spines):
        spine = plant.switch(f"spine{number}")
        for leaf in leaves:
            plant.trunk(leaf, spine, lanes)


def add_pods(
    plant: Plant, leaves: Sequence[int], per_pod: int, aggregations: int, cores: int, lanes: float = 1
) -> None:
    """Pods of ``per_pod`` leaves under ``aggregations`` switches; each of these to ``cores`` core switches of its own.

    ``lanes``: of each link to a core.
    """
    pods = chunks(leaves, per_pod)
    check_size(aggregations * (cores * (1 + len(pods)) + len(leaves)))
    groups = [[plant.switch(f"core{a}.{c}") for c in range(cores)] for a in range(aggregations)]
    for number, pod in enumerate(pods):
        for a in range(aggregations):
            aggregation = plant.switch(f"aggregation{number}.{a}")
            for leaf in pod:
                plant.trunk(leaf, aggregation)
            for core in groups[a]:
                plant.trunk(aggregation, core, lanes)


def add_clos(plant: Plant, leaves: Sequence[int], ports_per_leaf: int, oversubscription: float, radix: int) -> None:
    """As few spines of ``radix`` ports as carry the leaves' uplinks; three levels where the spines have too few ports.

    A leaf has as many uplinks as ports, divided by the oversubscription.
    """
    if len(leaves) < 2:
        return
    uplinks = max(1, ceil(ports_per_leaf / oversubscription - 1e-9))
    if len(leaves) <= radix:
        spines = ceil(uplinks / max(1, min(uplinks, radix // len(leaves))))
        add_spines(plant, leaves, spines, max(1.0, ports_per_leaf / oversubscription / spines))
        return
    per_pod = radix // 2
    up = max(1, ceil(per_pod / oversubscription - 1e-9))
    cores = max(1, ceil(up * ceil(len(leaves) / per_pod) / radix))
    add_pods(plant, leaves, per_pod, uplinks, cores, max(1.0, per_pod / oversubscription / cores))


def add_dragonfly(plant: Plant, ports: Sequence[int], routers: int, per_router: int, global_links: int) -> None:
    """Groups of ``routers`` joined all to all, ``per_router`` ports on each, ``global_links`` to other groups.

    Every pair of groups has the same number of global links; they are dealt out to the routers in turn.

    Raises
    ------
    SpecError: more groups than global links can join.
    """
    groups = chunks(ports, routers * per_router)
    if len(groups) - 1 > routers * global_links:
        raise SpecError(
            f"a dragonfly of {routers} routers a group and {global_links} global links a router joins "
            f"{routers * global_links + 1} groups, and {len(ports)} ports at {per_router} a router need {len(groups)}"
        )
    check_size(len(groups) * routers * (routers + global_links))
    switches = [[plant.switch(f"router{g}.{r}") for r in range(routers)] for g in range(len(groups))]
    for group, members in zip(groups, switches, strict=True):
        for number, port in enumerate(group):
            plant.attach(port, members[number // per_router])
        for a, b in combinations(members, 2):
            plant.trunk(a, b)
    _join_groups(plant, switches, routers * global_links)


def _join_groups(plant: Plant, switches: Sequence[Sequence[int]], ports: int) -> None:
    """The same number of links between every two groups, as many as ``ports`` a group allow."""
    if len(switches) < 2:
        return
    each = ports // (len(switches) - 1)
    used = [0] * len(switches)
    for a, b in combinations(range(len(switches)), 2):
        for _ in range(each):
            ends = []
            for group in (a, b):
                ends.append(switches[group][used[group] % len(switches[group])])
                used[group] += 1
            plant.trunk(*ends)


def balanced_dragonfly(num_ports: int) -> tuple[int, int, int]:
    """(routers, ports a router, global links a router) of the smallest dragonfly with a = 2p = 2h that holds them.

    Kim, Dally, Scott, Abts: Technology-Driven, Highly-Scalable Dragonfly Topology, ISCA 2008, section 3.1.
    """
    size = 1
    while 2 * size * size * (2 * size * size + 1) < num_ports:
        size += 1
    return 2 * size, size, size


def chunks(items: Sequence[int], size: int) -> list[Sequence[int]]:
    """Consecutive parts of ``size``; the last may be smaller."""
    return [items[first : first + size] for first in range(0, len(items), size)]
