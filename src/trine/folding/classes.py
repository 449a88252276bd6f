"""Classes of ranks with equal views: the search, and a cache of its latest results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int32, Int64, distinct
from trine.errors import SimulationError
from trine.folding.colors import ColorRounds, numbered, ranks_agree
from trine.folding.neighbourhood import Neighbourhood, PatternPart, RouteTable, neighbourhood_of
from trine.folding.orbits import Orbits
from trine.graph.placement import Placement

# Classes of indistinguishable ranks and links: colour refinement, then a proof without hashes.
#
# Two ranks stay in one class while they have the same pattern, and see the same classes of ranks and links in the
# same places. Two links stay in one class while they are alike, and the same numbers of the same routes of the same
# classes cross them. See docs/design/folding.md.

#: Seeds to try in turn: 64-bit sums collide about once in 10**8 partitions of a million members.
SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Partition:
    """Classes of ranks, numbered by their first members, and of the crossed links.

    class_of: int32[ranks]. representatives: int64[classes], the first member of each. sizes: int64[classes].
    link_class_of: int32[crossed links]; link_representatives: int64, indices among the crossed links; link_sizes:
    int64. rounds: the number of classes of ranks after each round of refinement.
    """

    class_of: Int32
    representatives: Int64
    sizes: Int64
    link_class_of: Int32
    link_representatives: Int64
    link_sizes: Int64
    rounds: tuple[int, ...]

    @property
    def num_classes(self) -> int:
        return len(self.sizes)


def refine(ranks: Int64, links: Int64, neighbourhood: Neighbourhood, limit: int) -> Partition | None:
    """Return the coarsest partition with equal views within each class; None if it has more than ``limit`` classes.

    ranks: int64[ranks], links: int64[crossed links]: numbers of the initial classes.
    """
    for seed in SEEDS:
        colors = _refine(ranks, links, neighbourhood, limit, seed)
        if colors is None:
            return None
        partition = _partition(*colors)
        if is_stable(partition, ranks, links, neighbourhood):
            return partition
    raise SimulationError("the classes of ranks are not stable: please report this as a bug; --no-fold works")


def identity(num_ranks: int, num_links: int) -> Partition:
    """Return the partition with every rank and every link by itself."""
    ranks, links = np.arange(num_ranks), np.arange(num_links)
    return Partition(
        class_of=ranks.astype(np.int32),
        representatives=ranks,
        sizes=np.ones(num_ranks, np.int64),
        link_class_of=links.astype(np.int32),
        link_representatives=links,
        link_sizes=np.ones(num_links, np.int64),
        rounds=(),
    )


def among(partition: Partition, ranks: Int64, num_ranks: int, num_links: int) -> Partition:
    """Renumber the partition of some ``ranks`` for all ranks: class_of is -1 for the others. Keeps the first
    ``num_links`` links; the later ones are groups, which have separate classes from the start.
    """
    class_of = np.full(num_ranks, -1, np.int32)
    class_of[ranks] = partition.class_of
    link_class_of = partition.link_class_of[:num_links]
    count = int(link_class_of.max(initial=-1)) + 1
    return replace(
        partition,
        class_of=class_of,
        representatives=ranks[partition.representatives],
        link_class_of=link_class_of,
        link_representatives=partition.link_representatives[:count],
        link_sizes=partition.link_sizes[:count],
    )


def _refine(
    ranks: Int64, links: Int64, neighbourhood: Neighbourhood, limit: int, seed: int
) -> tuple[Int32, Int32, tuple[int, ...]] | None:
    colors = ColorRounds(neighbourhood.ptr, neighbourhood.items, neighbourhood.slots, ranks, links, seed)
    rounds = [colors.num_classes]
    while rounds[-1] <= limit:
        if not colors.round():
            return colors.class_of, colors.link_class_of, tuple(rounds)
        rounds.append(colors.num_classes)
    return None


def _partition(ranks: Int32, links: Int32, rounds: tuple[int, ...]) -> Partition:
    class_of, representatives, sizes = numbered(ranks)
    link_class_of, link_representatives, link_sizes = numbered(links)
    return Partition(
        class_of=class_of,
        representatives=representatives,
        sizes=sizes,
        link_class_of=link_class_of,
        link_representatives=link_representatives,
        link_sizes=link_sizes,
        rounds=rounds,
    )


# -- the proof ---------------------------------------------------------------------------------------------------------


def is_stable(partition: Partition, ranks: Int64, links: Int64, neighbourhood: Neighbourhood) -> bool:
    """Return whether all members of each class have exactly the view of its representative, without hashes."""
    return (
        bool((ranks == ranks[partition.representatives][partition.class_of]).all())
        and bool((links == links[partition.link_representatives][partition.link_class_of]).all())
        and ranks_agree(
            neighbourhood.ptr,
            neighbourhood.items,
            partition.class_of,
            partition.link_class_of,
            partition.representatives,
        )
        and _links_agree(partition, neighbourhood)
    )


def _links_agree(partition: Partition, neighbourhood: Neighbourhood) -> bool:
    """Return whether the same (class, route)s cross every link as often as the representative of its class."""
    entries = np.flatnonzero(neighbourhood.items >= neighbourhood.num_ranks)
    owner = np.repeat(partition.class_of, np.diff(neighbourhood.ptr))[entries]
    slots = int(neighbourhood.slots.max(initial=0)) + 1
    kinds = slots * partition.num_classes  # fewer than 2**40 in any machine: with a link in one word of 63 bits
    crossings = (neighbourhood.items[entries] - np.int32(neighbourhood.num_ranks)).astype(np.int64)
    crossings *= kinds
    crossings += owner.astype(np.int64) * slots + neighbourhood.slots[entries]
    del entries, owner
    crossings.sort()
    link, code = crossings // kinds, crossings % kinds
    del crossings
    counts = np.bincount(link, minlength=len(neighbourhood.links))
    first = np.cumsum(counts) - counts
    representative = partition.link_representatives[partition.link_class_of]
    if (counts != counts[representative]).any():
        return False
    within = np.arange(len(link)) - first[link]
    return bool((code == code[first[representative[link]] + within]).all())


#: If the classes exceed this share of the ranks, every rank is simulated by itself.
MAX_CLASSES = 0.25
#: Up to this many ranks are always refined to the end, because it costs nothing.
FEW_RANKS = 4096


class RankClasses(NamedTuple):
    """The classes of the ranks of ``parts``, and the views that they were made from.

    orbits: if they were made from one rank and one link of each orbit.
    """

    parts: Sequence[PatternPart]
    partition: Partition
    neighbourhood: Neighbourhood
    orbits: Orbits | None = None

    def link_classes(self, links: Int32) -> Int32:
        """Return the class of each of some crossed links."""
        known = links if self.orbits is None else self.orbits.first_links(links)
        return self.partition.link_class_of[self.neighbourhood.real_links.searchsorted(known)]

    @property
    def num_tasks(self) -> int:
        """The number of tasks of the classes' representatives."""
        class_of = self.partition.class_of
        return sum(len(part.tasks) * len(distinct(class_of[part.ranks])) for part in self.parts)

    @property
    def has_deferred_axes(self) -> bool:
        return any(part.deferred for part in self.parts)


def _max_classes(num_ranks: int, limit: int | None) -> int:
    """Return the number of classes above which a search gives up; ``limit``: of the caller."""
    max_classes = num_ranks if num_ranks <= FEW_RANKS else int(MAX_CLASSES * num_ranks)
    return max_classes if limit is None else min(max_classes, limit)


def _chosen_ranks(part: PatternPart, chosen: Int64) -> PatternPart:
    """Return a part with some of its ranks only."""
    return replace(part, ranks=part.ranks[chosen], rows=part.rows[chosen])


@dataclass(slots=True)
class ClassSearch:
    """Search for the classes of the ranks of a job. places, initial_colors: as in :class:`trine.folding.stages.Folder`.

    orbits: of all ranks, None without. latest: the last three results. Their parts keep the arrays alive whose ids are
    the key.
    """

    placement: Placement
    table: RouteTable
    places: Int64 | None
    initial_colors: Int64 | None
    orbits: Orbits | None = None
    latest: list[tuple[object, RankClasses]] = field(default_factory=list)

    def classes(self, parts: Sequence[PatternPart], limit: int | None = None) -> RankClasses:
        """Return the classes of ranks with equal views along active axes; each rank alone above ``limit`` classes."""
        key = (
            limit,
            [(id(part.pattern), id(part.tasks), id(part.edges), part.deferred, part.ranks.tobytes()) for part in parts],
        )
        classes = next((classes for known, classes in self.latest if known == key), None)
        if classes is None:
            classes = self._search(parts, limit)
            self.latest = [*self.latest[-2:], (key, classes)]
        return classes._replace(parts=parts)

    def _search(self, parts: Sequence[PatternPart], limit: int | None) -> RankClasses:
        num_ranks = self.placement.num_ranks
        if self.orbits is not None and all(part.before < 0 for part in parts):
            classes = self._search_orbits(parts, limit, self.orbits)
            if classes is not None:
                return classes
        ranks = np.sort(np.concatenate([part.ranks for part in parts]))
        number_of = np.full(num_ranks, -1, np.int32)
        number_of[ranks] = np.arange(len(ranks), dtype=np.int32)
        neighbourhood = neighbourhood_of(parts, number_of, len(ranks), self.table)
        colors = self._colors(parts, ranks)
        max_classes = _max_classes(len(ranks), limit)
        partition = refine(colors, self._link_colors(neighbourhood), neighbourhood, max_classes)
        if partition is None:
            partition = identity(len(ranks), len(neighbourhood.links))
        partition = among(partition, ranks, num_ranks, len(neighbourhood.real_links))
        return RankClasses(parts, partition, neighbourhood)

    def _search_orbits(self, parts: Sequence[PatternPart], limit: int | None, orbits: Orbits) -> RankClasses | None:
        """Return the classes of all ranks, found from the lowest rank of each orbit; None if there are too many."""
        num_ranks, ranks = self.placement.num_ranks, orbits.representatives
        firsts = orbits.firsts(np.arange(num_ranks, dtype=np.int64))
        number_of = np.empty(num_ranks, np.int32)
        number_of[ranks] = np.arange(len(ranks), dtype=np.int32)
        number_of = number_of[firsts]
        lowest = [_chosen_ranks(part, np.flatnonzero(firsts[part.ranks] == part.ranks)) for part in parts]
        neighbourhood = neighbourhood_of(lowest, number_of, len(ranks), self.table, orbits)
        colors = self._colors(lowest, ranks)
        max_classes = _max_classes(num_ranks, limit)
        partition = refine(colors, self._link_colors(neighbourhood), neighbourhood, max_classes)
        if partition is None:
            return None
        partition = among(partition, ranks, num_ranks, len(neighbourhood.real_links))
        partition = replace(
            partition,
            class_of=partition.class_of[firsts],
            sizes=partition.sizes * orbits.size,
            link_sizes=partition.link_sizes * orbits.size,
        )
        return RankClasses(parts, partition, neighbourhood, orbits)

    def _colors(self, parts: Sequence[PatternPart], ranks: Int64) -> Int64:
        """Return the initial color of each of ``ranks``, the ranks of all parts."""
        colors = np.empty(self.placement.num_ranks, np.int64)
        for number, part in enumerate(parts):
            colors[part.ranks] = number
        if self.initial_colors is not None:
            colors = colors * (int(self.initial_colors.max(initial=0)) + 1) + self.initial_colors
        return colors[ranks]

    def _link_colors(self, neighbourhood: Neighbourhood) -> Int64:
        """Return equal numbers for links of equal bandwidth, latency and, in networks of queues, place on their route;
        and for groups along one axis.
        """
        columns = [self.placement.link_bytes_per_s, self.placement.link_latency_ps]
        if self.places is not None:  # a message that crosses two links waits for both
            columns.append(self.places)
        if self.placement.software is not None:
            columns.append(self.placement.software.is_outer.astype(np.int64))
        links = neighbourhood.real_links
        colors = np.zeros(len(links), np.int64)
        for column in columns:
            numbers = np.unique(column[links], return_inverse=True)[1].ravel().astype(np.int64)
            colors = colors * (int(numbers.max(initial=0)) + 1) + numbers
        groups = neighbourhood.links[len(links) :].astype(np.int64) - self.table.num_links
        axis = groups // self.placement.num_ranks
        return np.concatenate([colors, int(colors.max(initial=0)) + 1 + axis])
