"""Switched networks over any ports: one switch, leaf and spine, three levels, rails, dragonfly.

The same functions join the NICs of nodes (:mod:`trine.cluster.join`) and the GPUs of a blueprint
(:mod:`trine.cluster.topologies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil

from trine.cluster.parts import SWITCH, Device, Link
from trine.cluster.tables import Clos
from trine.errors import SpecError

#: Networks with more two-way links or switches are refused as a mistake.
MAX_SIZE = 1 << 20
#: Ports of a Slingshot switch: to NICs, to switches of its group, to other groups.
SLINGSHOT_NICS, SLINGSHOT_LOCAL, SLINGSHOT_GLOBAL = 16, 31, 17


@dataclass(kw_only=True)
class FabricBuilder:
    """Switches and wires of a network. ``first``: the number of its first switch, after the numbers of other devices.

    ``end``: properties of a link from a port to its switch; ``hop``: of one lane between switches. ``lows``, ``highs``,
    ``kinds``: the ends of each two-way wire, and the index of its properties in ``numbers``. ``clos``: the network's
    shape if it is a Clos network. ``most``: maximum number of links or switches of one kind. ``num_middles``: switches
    that stand for the links of a group.
    """

    first: int
    end: Link
    hop: Link
    reduces: bool = False
    most: int = MAX_SIZE
    switches: list[Device] = field(default_factory=list)
    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    numbers: list[Link] = field(default_factory=list)
    clos: Clos | None = None
    num_middles: int = 0
    _number_of: dict[Link, int] = field(default_factory=dict)

    def switch(self, name: str, rail: int | None = None) -> int:
        """Add a switch and return its number."""
        self.switches.append(Device(name=name, kind=SWITCH, forwards=True, reduces=self.reduces, rail=rail))
        return self.first + len(self.switches) - 1

    def attach(self, ports: Sequence[int], switch: int) -> None:
        """Join ports to a switch, both ways."""
        self._join(self.end, ports, [switch] * len(ports))

    def trunk(self, lows: Sequence[int], highs: Sequence[int], lanes: float = 1, latency_ps: int | None = None) -> None:
        """Join switches in pairs, both ways. ``latency_ps``: of each link, by default the hop's."""
        latency_ps = self.hop.latency_ps if latency_ps is None else latency_ps
        self._join(replace(_wide(self.hop, lanes), latency_ps=latency_ps), lows, highs)

    def _join(self, wire: Link, lows: Sequence[int], highs: Sequence[int]) -> None:
        if wire not in self._number_of:
            self._number_of[wire] = len(self.numbers)
            self.numbers.append(wire)
        self.lows.extend(lows)
        self.highs.extend(highs)
        self.kinds.extend([self._number_of[wire]] * len(lows))

    def rows(self) -> Iterator[tuple[int, int, Link]]:
        """Yield every link in both directions, in the order of addition."""
        for low, high, kind in zip(self.lows, self.highs, self.kinds, strict=True):
            yield low, high, self.numbers[kind]
            yield high, low, self.numbers[kind]


def _wide(wire: Link, lanes: float) -> Link:
    """Return one wire with the bandwidth of ``lanes`` lanes."""
    peak = None if wire.peak_bytes_per_s is None else round(wire.peak_bytes_per_s * lanes)
    return replace(wire, bytes_per_s=max(1, round(wire.bytes_per_s * lanes)), peak_bytes_per_s=peak)


def check_size(number: int, limit: int = MAX_SIZE) -> None:
    """Raise SpecError if a network is too large, before it is built."""
    if number > limit:
        raise SpecError(f"{number} links or switches: at most {limit} are allowed")


def add_switch(builder: FabricBuilder, ports: Sequence[int], name: str = "switch") -> int:
    """Attach all ports to one switch."""
    switch = builder.switch(name)
    builder.attach(ports, switch)
    builder.clos = Clos(leaves=(switch,))
    return switch


def add_leaves(
    builder: FabricBuilder, groups: Sequence[Sequence[int]], rails: Sequence[int | None] | None = None
) -> list[int]:
    """Add a leaf switch for each group of ports."""
    leaves = []
    for number, group in enumerate(groups):
        rail = None if rails is None else rails[number]
        leaf = builder.switch(f"leaf{number}" if rail is None else f"leaf{number}.rail{rail}", rail)
        leaves.append(leaf)
        builder.attach(group, leaf)
    builder.clos = Clos(leaves=tuple(leaves)) if len(leaves) == 1 else None
    return leaves


def add_spines(builder: FabricBuilder, leaves: Sequence[int], spines: int, lanes: float = 1) -> None:
    """Join each leaf to each of ``spines`` spines by ``lanes`` lanes."""
    check_size(spines * len(leaves), builder.most)
    upper = [builder.switch(f"spine{number}") for number in range(spines)]
    for spine in upper:
        builder.trunk(leaves, [spine] * len(leaves), lanes)
    builder.clos = Clos(leaves=tuple(leaves), spines=tuple(upper))


def add_pods(
    builder: FabricBuilder, leaves: Sequence[int], per_pod: int, aggregations: int, cores: int, lanes: float = 1
) -> None:
    """Add pods of ``per_pod`` leaves under ``aggregations`` switches; switch a of each pod joins core group a.

    ``cores``: core switches per group. ``lanes``: of each link to a core.
    """
    pods = chunks(leaves, per_pod)
    check_size(aggregations * (cores * (1 + len(pods)) + len(leaves)), builder.most)
    groups = []
    for a in range(aggregations):
        groups.append([builder.switch(f"core{a}.{c}") for c in range(cores)])
    middle = []
    for p in range(len(pods)):
        middle.append([builder.switch(f"aggregation{p}.{a}") for a in range(aggregations)])
    for pod, upper in zip(pods, middle, strict=True):
        for aggregation, group in zip(upper, groups, strict=True):
            builder.trunk(pod, [aggregation] * len(pod))
            builder.trunk([aggregation] * cores, group, lanes)
    builder.clos = Clos(
        leaves=tuple(leaves), per_pod=per_pod, aggregations=tuple(map(tuple, middle)), cores=tuple(map(tuple, groups))
    )


def add_clos(
    builder: FabricBuilder, leaves: Sequence[int], ports_per_leaf: int, oversubscription: float, radix: int
) -> None:
    """Add the fewest spines of ``radix`` ports that carry the leaves' uplinks; three levels if a spine is too small.

    The number of uplinks of a leaf is its number of ports divided by the oversubscription.
    """
    if len(leaves) < 2:
        return
    uplinks = max(1, ceil(ports_per_leaf / oversubscription - 1e-9))
    if len(leaves) <= radix:
        spines = ceil(uplinks / max(1, min(uplinks, radix // len(leaves))))
        add_spines(builder, leaves, spines, max(1.0, ports_per_leaf / oversubscription / spines))
        return
    per_pod = radix // 2
    up = max(1, ceil(per_pod / oversubscription - 1e-9))
    cores = max(1, ceil(up * ceil(len(leaves) / per_pod) / radix))
    add_pods(builder, leaves, per_pod, uplinks, cores, max(1.0, per_pod / oversubscription / cores))


def add_dragonfly(
    builder: FabricBuilder, ports: Sequence[int], routers: int, per_router: int, global_links: int
) -> None:
    """Add groups of ``routers`` joined all to all, ``per_router`` ports on each, ``global_links`` to other groups.

    Every pair of groups has the same number of global links; routers get them in turn.

    Raises SpecError for more groups than global links can join.
    """
    groups = chunks(ports, routers * per_router)
    if len(groups) - 1 > routers * global_links:
        raise SpecError(
            f"a dragonfly of {routers} routers a group and {global_links} global links a router joins "
            f"{routers * global_links + 1} groups, and {len(ports)} ports at {per_router} a router need {len(groups)}"
        )
    check_size(len(groups) * routers * (routers + global_links), builder.most)
    switches = []
    for g in range(len(groups)):
        switches.append([builder.switch(f"router{g}.{r}") for r in range(routers)])
    for group, members in zip(groups, switches, strict=True):
        for member, under in zip(members, chunks(group, per_router), strict=False):
            builder.attach(under, member)
        pairs = list(combinations(members, 2))
        first_ends = [a for a, _ in pairs]
        second_ends = [b for _, b in pairs]
        builder.trunk(first_ends, second_ends)
    _join_groups(builder, switches, routers * global_links)


def _join_groups(builder: FabricBuilder, switches: Sequence[Sequence[int]], ports: int) -> None:
    """Join every two groups by the same number of links, the most that ``ports`` per group allow."""
    if len(switches) < 2:
        return
    links_per_pair = ports // (len(switches) - 1)
    used = [0] * len(switches)
    for a, b in combinations(range(len(switches)), 2):
        for _ in range(links_per_pair):
            ends = []
            for group in (a, b):
                ends.append(switches[group][used[group] % len(switches[group])])
                used[group] += 1
            builder.trunk(ends[:1], ends[1:])


def add_slingshot_groups(builder: FabricBuilder, ports: Sequence[int]) -> None:
    """Add the switches of a Slingshot dragonfly with adaptive routing.

    A switch of 64 ports has 16 NICs, 31 links to the other switches of its group and 17 to other groups (De Sensi et
    al., An In-Depth Analysis of the Slingshot Interconnect, SC 2020, section II). Adaptive routing spreads messages
    over direct and indirect paths. So a switch reaches its group over all 31 links at once, and a group reaches the
    others over all its 544. A device ``groupN`` sits in the middle of each group's switches, ``global`` between groups.
    Two switches of one group are one hop apart, switches of different groups three.

    Raises SpecError for more groups than 544 links can join.
    """
    routers = [builder.switch(f"router{number}") for number in range(ceil(len(ports) / SLINGSHOT_NICS))]
    for router, under in zip(routers, chunks(ports, SLINGSHOT_NICS), strict=True):
        builder.attach(under, router)
    groups = chunks(routers, SLINGSHOT_LOCAL + 1)
    num_links = (SLINGSHOT_LOCAL + 1) * SLINGSHOT_GLOBAL
    if len(groups) - 1 > num_links:
        raise SpecError(f"a Slingshot dragonfly joins {num_links + 1} groups, and {len(ports)} NICs need {len(groups)}")
    builder.clos = Clos(leaves=tuple(routers))
    if len(routers) == 1:
        return
    hop_ps = builder.hop.latency_ps
    middles = [builder.switch(f"group{number}") for number in range(len(groups))]
    for middle, members in zip(middles, groups, strict=True):
        builder.trunk(members, [middle] * len(members), SLINGSHOT_LOCAL, hop_ps // 2)
    builder.clos = Clos(leaves=tuple(routers), spines=tuple(middles))
    builder.num_middles = len(middles)
    if len(groups) > 1:
        core = builder.switch("global")
        builder.trunk(middles, [core] * len(middles), num_links, hop_ps)
        pods = tuple((middle,) for middle in middles)
        builder.clos = replace(
            builder.clos, spines=(), per_pod=SLINGSHOT_LOCAL + 1, aggregations=pods, cores=((core,),)
        )
        builder.num_middles += 1


def chunks(items: Sequence[int], size: int) -> list[Sequence[int]]:
    """Return consecutive parts of ``size``; the last may be smaller."""
    return [items[first : first + size] for first in range(0, len(items), size)]
