"""What relabelling the ranks does to the links between them: each must move, to one alike, on all routes alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trine.arrays import Int32, Int64
from trine.cluster.routing import SPLIT
from trine.gpu.fold_rows import Rows
from trine.gpu.system import GpuSystem

#: ranks, translations, sign -> ranks
Mover = Callable[[Int64, Int64, int], Int64]


@dataclass(frozen=True, slots=True, eq=False)
class LinkOrbits:
    """image: int32[links], the first link of the orbit of each; those that nobody uses are their own."""

    image: Int32


def link_orbits(
    system: GpuSystem, rows: Rows, generators: list[int], elements: Int64, moved: Mover
) -> tuple[str | None, LinkOrbits | None]:
    """What of the fabric depends on the absolute rank, or the orbits of its links."""
    cluster = system.fabric.cluster
    if cluster.routing == SPLIT:
        return f"routing {SPLIT!r} spreads messages over several routes", None
    pairs = _pairs(system, rows)
    if not len(pairs):
        return None, LinkOrbits(system.link_image)
    group = np.array(system.fabric.group, np.int64)
    ptr, links = cluster.routes(group[pairs // system.num_ranks], group[pairs % system.num_ranks])
    used: Int64 = np.unique(links).astype(np.int64)
    why = _homeless(system, used)
    if why is not None:
        return why, None
    maps = []
    for generator in generators:
        why, mapped = _moved_links(system, pairs, ptr, links, used, generator, moved)
        if mapped is None:
            return why, None
        maps.append(mapped)
    return None, _orbits(system, used, maps, generators, elements, moved)


def _pairs(system: GpuSystem, rows: Rows) -> Int64:
    """(rank, peer) of all messages, there and back, as rank * ranks + peer; ascending."""
    ranks = np.arange(system.num_ranks, dtype=np.int64)[:, None]
    there = np.unique(ranks * system.num_ranks + rows.peer)
    back = there % system.num_ranks * system.num_ranks + there // system.num_ranks
    both = np.union1d(there, back)
    found: Int64 = both[both // system.num_ranks != both % system.num_ranks]
    return found


def _homeless(system: GpuSystem, used: Int64) -> str | None:
    """A link between switches is nobody's: who is first of two that come to it at once depends on their ranks."""
    alone = used[system.link_home[used] < 0]
    if not len(alone):
        return None
    name = system.fabric.cluster.link_names[int(alone[0])]
    return f"link {name!r} neither begins nor ends at a rank's GPU: who is first there depends on the absolute rank"


def _moved_links(
    system: GpuSystem, pairs: Int64, ptr: Int64, links: Int32, used: Int64, generator: int, moved: Mover
) -> tuple[str | None, Int64 | None]:
    """Where one translation takes each used link: int64[used], places in ``used``."""
    cluster, ranks = system.fabric.cluster, system.num_ranks
    by = np.array(generator, np.int64)
    image = moved(pairs // ranks, by, 1) * ranks + moved(pairs % ranks, by, 1)
    place = np.searchsorted(pairs, image)
    length = np.diff(ptr)
    bad = np.flatnonzero(length != length[place])
    if len(bad):
        a, b = divmod(int(pairs[bad[0]]), ranks), divmod(int(image[bad[0]]), ranks)
        return f"the route from rank {a[0]} to {a[1]} is not as long as that from rank {b[0]} to {b[1]}", None
    at = np.arange(int(ptr[-1])) - np.repeat(ptr[:-1], length)
    there = links[np.repeat(ptr[place], length) + at]
    source = np.searchsorted(used, links)
    target = np.searchsorted(used, there)
    found = np.full(len(used), -1, np.int64)
    found[source] = target
    clash = np.flatnonzero(found[source] != target)
    if len(clash):
        one, two = cluster.link_names[int(used[found[source[clash[0]]]])], cluster.link_names[int(there[clash[0]])]
        name = cluster.link_names[int(links[clash[0]])]
        return (
            f"routes do not follow the ranks (routing {cluster.routing!r}): link {name!r} becomes {one!r} on one of "
            f"them and {two!r} on another"
        ), None
    why = _unlike(system, used, used[found], by, moved)
    return why, None if why is not None else found


def _unlike(system: GpuSystem, used: Int64, image: Int64, by: Int64, moved: Mover) -> str | None:
    """A link that is not like the one that it is moved to: in rate, latency, its place at its GPUs, whose it is."""
    fabric = system.fabric
    names = fabric.cluster.link_names
    for what, values in fabric.link_columns():
        bad = np.flatnonzero(values[used] != values[image])
        if len(bad):
            one, other = int(used[bad[0]]), int(image[bad[0]])
            return f"links {names[one]!r} and {names[other]!r} differ in {what}"
    home = system.link_home.astype(np.int64)
    bad = np.flatnonzero(moved(home[used], by, 1) != home[image])
    if len(bad):
        return f"link {names[int(used[bad[0]])]!r} is not where its rank would be"
    return None


def _orbits(
    system: GpuSystem, used: Int64, maps: list[Int64], generators: list[int], elements: Int64, moved: Mover
) -> LinkOrbits:
    """The first link of each orbit. No translation leaves a link where it is: it moves the rank whose link it is."""
    where = {0: np.arange(len(used))}
    front = [0]
    while front:
        element = front.pop()
        for generator, mapped in zip(generators, maps, strict=True):
            after = int(moved(np.array(element), np.array(generator), 1))
            if after not in where:
                where[after] = mapped[where[element]]
                front.append(after)
    table = np.stack([where[int(element)] for element in elements])
    image = system.link_image.copy()
    image[used] = used[table.min(axis=0)]
    return LinkOrbits(image)
