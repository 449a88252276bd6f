"""Classes of ranks with equal views: the search, and a cache of its latest results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.folding.neighbourhood import Neighbourhood, PatternPart, RouteTable, neighbourhood_of
from trine.folding.refine import Partition, among, identity, refine
from trine.graph.placement import Placement

#: If the classes exceed this share of the ranks, every rank is simulated by itself.
MOST_CLASSES = 0.25
#: Up to this many ranks are always refined to the end, because it costs nothing.
FEW_RANKS = 4096


class RankClasses(NamedTuple):
    """The classes of the ranks of ``parts``, and the views that they were made from."""

    parts: Sequence[PatternPart]
    partition: Partition
    neighbourhood: Neighbourhood

    @property
    def num_tasks(self) -> int:
        """The number of tasks of the classes' representatives."""
        class_of = self.partition.class_of
        return sum(len(part.tasks) * len(np.unique(class_of[part.ranks])) for part in self.parts)

    @property
    def has_deferred_axes(self) -> bool:
        return any(part.deferred for part in self.parts)


@dataclass(slots=True)
class ClassSearch:
    """Search for the classes of the ranks of a job. places, initial_colors: as in :class:`trine.folding.stages.Folder`.

    latest: the last three results. Their parts keep the arrays alive whose ids are the key.
    """

    placement: Placement
    table: RouteTable
    places: Int64 | None
    initial_colors: Int64 | None
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
        ranks = np.sort(np.concatenate([part.ranks for part in parts]))
        number_of = np.full(num_ranks, -1, np.int32)
        number_of[ranks] = np.arange(len(ranks), dtype=np.int32)
        neighbourhood = neighbourhood_of(parts, number_of, len(ranks), self.table)
        colors = np.empty(num_ranks, np.int64)
        for number, part in enumerate(parts):
            colors[part.ranks] = number
        if self.initial_colors is not None:
            colors = colors * (int(self.initial_colors.max(initial=0)) + 1) + self.initial_colors
        max_classes = len(ranks) if len(ranks) <= FEW_RANKS else int(MOST_CLASSES * len(ranks))
        max_classes = max_classes if limit is None else min(max_classes, limit)
        partition = refine(colors[ranks], self._link_colors(neighbourhood), neighbourhood, max_classes)
        if partition is None:
            partition = identity(len(ranks), len(neighbourhood.links))
        partition = among(partition, ranks, num_ranks, len(neighbourhood.real_links))
        return RankClasses(parts, partition, neighbourhood)

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
