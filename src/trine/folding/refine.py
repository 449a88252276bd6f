"""Classes of indistinguishable ranks and links: colour refinement, then a proof without hashes.

Two ranks stay in one class while they have the same pattern, and see the same classes of ranks and links in the same
places. Two links stay in one class while they are alike, and the same numbers of the same routes of the same classes
cross them. See docs/design/folding.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trine.common.arrays import Int32, Int64
from trine.errors import SimulationError
from trine.folding.colors import ColorRounds, numbered, ranks_agree
from trine.folding.neighbourhood import Neighbourhood

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
    link = neighbourhood.items[entries].astype(np.int64) - neighbourhood.num_ranks
    owner = np.repeat(partition.class_of.astype(np.int64), np.diff(neighbourhood.ptr))[entries]
    slots = int(neighbourhood.slots.max(initial=0)) + 1
    kinds = slots * partition.num_classes  # fewer than 2**40 in any machine: with a link in one word of 63 bits
    crossings = np.sort(link * kinds + owner * slots + neighbourhood.slots[entries])
    link, code = crossings // kinds, crossings % kinds
    counts = np.bincount(link, minlength=len(neighbourhood.links))
    first = np.cumsum(counts) - counts
    representative = partition.link_representatives[partition.link_class_of]
    if (counts != counts[representative]).any():
        return False
    within = np.arange(len(link)) - first[link]
    return bool((code == code[first[representative[link]] + within]).all())
