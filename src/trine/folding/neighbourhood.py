"""Views of ranks: the ranks whose tasks they wait for, and the links that their messages cross."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int32, Int64, distinct, pointers, spans
from trine.folding.colors import SEPARATOR
from trine.folding.orbits import Orbits
from trine.folding.pattern import ENTERED, GROUP, HOST, HOSTS, SELF, SENT, TASK, TO_HOST, Edges, Pattern
from trine.graph.grid import RankGrid

#: Links are items from here downwards until they are numbered: below rank numbers and the separator.
FIRST_LINK = SEPARATOR - 1
#: (source ranks or None for the hosts of the targets, target ranks or None likewise) -> CSR of the links of the routes
Routes = Callable[[Int64 | None, Int64 | None], tuple[Int64, Int32]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Neighbourhood:
    """View of every rank, in an order that is the same for ranks that may be alike.

    ptr: int64[ranks + 1]. items: int32; the number of another rank, or ranks + index into ``links``, or -1 between
    routes. slots: int32; the route number of each item within its rank. links: int32, all crossed links. The last
    ``num_groups`` are groups of ranks that wait for each other; they behave like links, because only the number of
    members of each kind matters.
    """

    ptr: Int64
    items: Int32
    slots: Int32
    links: Int32
    num_groups: int = 0

    @property
    def num_ranks(self) -> int:
        return len(self.ptr) - 1

    @property
    def real_links(self) -> Int32:
        """The links without the groups."""
        return self.links[: len(self.links) - self.num_groups]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PatternPart:
    """Ranks of one pattern with identical behaviour up to now, and their remaining tasks.

    ranks: int64, ascending; rows: int64, their rows in the pattern. tasks: int64, remaining tasks of the pattern;
    number_of: int32[tasks of the pattern], index into ``tasks``, -1 for ended tasks. edges: edges of the remaining
    tasks, with task numbers of the pattern. before: the previous class, -1 at the beginning. deferred: axes without
    exchanges yet.
    """

    pattern: Pattern
    number: int
    ranks: Int64
    rows: Int64
    tasks: Int64
    number_of: Int32
    edges: Edges
    before: int = -1
    deferred: frozenset[str] = frozenset()

    @property
    def read_roles(self) -> list[int]:
        """Roles with awaited tasks, in order."""
        return [int(role) for role in distinct(self.edges.role) if role >= 0]

    @property
    def together_axes(self) -> list[str]:
        """Axes of collectives whose ranks all wait for each other, in order."""
        keys = distinct(self.edges.key[self.edges.role == GROUP]).tolist()
        return sorted({self.pattern.key_axes[key] for key in keys})

    @property
    def sent_roles(self) -> list[int]:
        """Roles that messages go to (or come from, the host first), in order."""
        return [int(role) for role in distinct(self.pattern.role[self.tasks]) if role >= 0 or role in HOSTS]


def whole_parts(patterns: Sequence[Pattern]) -> list[PatternPart]:
    """Return all ranks of each pattern, at the beginning."""
    return [
        PatternPart(
            pattern=pattern,
            number=number,
            ranks=pattern.ranks,
            rows=np.arange(len(pattern.ranks)),
            tasks=np.arange(pattern.num_tasks),
            number_of=np.arange(pattern.num_tasks, dtype=np.int32),
            edges=pattern.edges,
        )
        for number, pattern in enumerate(patterns)
    ]


def without_signals(part: PatternPart) -> PatternPart:
    """Replace the signals between the ranks of a whole part by a wait for the group (:class:`Together`).

    The first signal of each collective stands for "all have entered". The others are not simulated;
    :mod:`trine.folding.signals` computes them.
    """
    pattern = part.pattern
    if not pattern.together:
        return part
    is_left = np.ones(pattern.num_tasks, np.bool_)
    for call in pattern.together:
        is_left[call.signals[:, 1:]] = False
    number_of = np.where(is_left, np.cumsum(is_left) - 1, -1).astype(np.int32)
    return replace(part, tasks=np.flatnonzero(is_left), number_of=number_of, edges=_waiting_together(pattern))


def _waiting_together(pattern: Pattern) -> Edges:
    """Return a pattern's edges with signals replaced: all ranks enter, send, and end when all sends have ended."""
    edges = pattern.edges
    key_of = np.full(pattern.num_tasks, -1, np.int64)  # collective of each send, if all its ranks wait for each other
    is_end = np.zeros(pattern.num_tasks, np.bool_)
    for call in pattern.together:
        sends = call.first[:, None] + np.arange(call.num_sends)
        key_of[sends] = call.keys[:, None]
        is_end[call.entered + 1] = True
    by_own = (edges.role == SELF) & (key_of[np.where(edges.role == SELF, edges.key, 0)] >= 0)
    replaced = (key_of[edges.task] >= 0) | (is_end[edges.task] & (by_own | (edges.role >= 0)))
    columns = [[edges.task[~replaced], edges.role[~replaced], edges.kind[~replaced], edges.key[~replaced]]]
    for call in pattern.together:
        timed = call.timed
        first_send = np.repeat(call.first, timed.shape[1])
        columns.append(_all_of(call.first, GROUP, ENTERED, call.keys))
        columns.append(_all_of(timed.ravel(), SELF, TASK, first_send))
        columns.append(_all_of(call.entered + 1, SELF, TASK, call.first))
        columns.append(_all_of(call.entered + 1, GROUP, SENT, call.keys))
    task, role, kind, key = (np.concatenate(column) for column in zip(*columns, strict=True))
    number = np.zeros(len(task), np.int32)
    number[: int((~replaced).sum())] = edges.number[~replaced]
    order = np.argsort(task, kind="stable")
    return Edges(
        task=task[order],
        role=role[order].astype(np.int16),
        kind=kind[order].astype(np.int8),
        key=key[order].astype(np.int32),
        number=number[order],
    )


def _all_of(task: Int64, role: int, kind: int, key: Int64) -> list[Int64]:
    """Return the columns of edges to one role."""
    return [task, np.full(len(task), role, np.int64), np.full(len(task), kind, np.int64), key]


#: Ranks of a small pattern.
SMALL = 64


class SomeRoutes(NamedTuple):
    """Routes of some rows of a pattern (int64, ascending) to one role, as CSR."""

    rows: Int64
    ptr: Int64
    links: Int32


@dataclass(slots=True)
class RouteTable:
    """Routes of the roles of each pattern, computed on first use.

    grid: of the ranks. num_links: of the cluster; groups of ranks that wait for each other get the numbers after it.
    """

    routes: Routes
    grid: RankGrid | None = None
    num_links: int = 2**31 - 1
    cache: dict[tuple[int, int], tuple[Int64, Int32]] = field(default_factory=dict)
    some: dict[tuple[int, int], SomeRoutes] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)

    def group_links(self, ranks: Int64, axis: str) -> Int64:
        """Return the link number of each rank's group along ``axis``, after the links of the cluster: int64[ranks]."""
        assert self.grid is not None
        number = self.axes.setdefault(axis, len(self.axes))
        return self.num_links + number * self.grid.num_ranks + self.grid.firsts(ranks, axis)

    def of_role(self, pattern: Pattern, role: int) -> tuple[Int64, Int32]:
        """Return a CSR over a pattern's ranks: the links of their messages to the role (from it, if it is the host)."""
        key = (id(pattern), role)
        if key not in self.cache:
            self.cache[key] = self._find(pattern, role, slice(None))
        return self.cache[key]

    def links_to(self, pattern: Pattern, role: int) -> Int32:
        """Return the links of :meth:`of_role` without keeping new ones, which are large."""
        known = self.cache.get((id(pattern), role))
        return self._find(pattern, role, slice(None))[1] if known is None else known[1]

    def of_rows(self, pattern: Pattern, role: int, rows: Int64) -> tuple[Int64, Int32]:
        """Return :meth:`of_role` for some rows of a pattern (ascending); does not compute the routes of the others."""
        key = (id(pattern), role)
        if key in self.cache or len(rows) == len(pattern.ranks):
            ptr, links = self.of_role(pattern, role)
            counts = np.diff(ptr)[rows]
            return pointers(counts), links[spans(ptr[:-1][rows], counts)]
        known = self.some.get(key)
        if known is None or not np.array_equal(known.rows, rows):
            known = self.some[key] = SomeRoutes(rows, *self._find(pattern, role, rows))
        return known.ptr, known.links

    def _find(self, pattern: Pattern, role: int, rows: Int64 | slice) -> tuple[Int64, Int32]:
        ranks = pattern.ranks[rows]
        if role == HOST:
            return self.routes(None, ranks)
        if role == TO_HOST:
            return self.routes(ranks, None)
        return self.routes(ranks, pattern.peers[rows, role].astype(np.int64))

    def prepare(self, wanted: Iterable[tuple[Pattern, int]]) -> None:
        """Find the routes of many small patterns at once: each call takes about as long as a hundred routes."""
        small = [
            (pattern, role)
            for pattern, role in wanted
            if role not in HOSTS and len(pattern.ranks) <= SMALL and (id(pattern), role) not in self.cache
        ]
        if len(small) < 2:
            return
        sources = np.concatenate([pattern.ranks for pattern, _ in small])
        targets = np.concatenate([pattern.peers[:, role] for pattern, role in small])
        ptr, links = self.routes(sources, targets.astype(np.int64))
        first = 0
        for pattern, role in small:
            part = ptr[first : first + len(pattern.ranks) + 1]
            self.cache[id(pattern), role] = part - part[0], links[part[0] : part[-1]]
            first += len(pattern.ranks)

    def of_row(self, pattern: Pattern, role: int, row: int) -> Int32:
        """Return the links of one rank's route."""
        key = (id(pattern), role)
        known = None if key in self.cache else self.some.get(key)
        if known is not None:
            place = int(known.rows.searchsorted(row))
            if place < len(known.rows) and known.rows[place] == row:
                return known.links[known.ptr[place] : known.ptr[place + 1]]
        ptr, links = self.of_role(pattern, role)
        return links[ptr[row] : ptr[row + 1]]


def neighbourhood_of(
    parts: Sequence[PatternPart], number_of: Int32, num_ranks: int, table: RouteTable, orbits: Orbits | None = None
) -> Neighbourhood:
    """Return the view of every rank of ``parts`` along axes that are not deferred for its part.

    number_of: int32[ranks of the job], index of each among the ``num_ranks`` ranks of the parts. orbits: if the parts
    have only the lowest rank of each orbit; ``number_of`` is then its index, and links are the lowest of their orbits.
    """
    table.prepare((part.pattern, role) for part in parts for role in _routed_roles(part))
    blocks = [block for part in parts for block in _blocks(part, number_of, table)]
    lengths = np.zeros(num_ranks, np.int64)
    for ranks, counts, _, _ in blocks:
        lengths[ranks] += counts
    ptr = pointers(lengths)
    items, slots = np.empty(int(ptr[-1]), np.int32), np.zeros(int(ptr[-1]), np.int32)
    next_item = ptr[:-1].copy()
    while blocks:
        ranks, counts, values, slot = blocks.pop(0)
        items_of_block = spans(next_item[ranks], counts)
        items[items_of_block] = values
        slots[items_of_block] = slot
        next_item[ranks] += counts
    if orbits is not None:
        _name_first_links(items, table.num_links, orbits)
    return _numbered(ptr, items, slots, num_ranks, table.num_links)


def _name_first_links(items: Int32, first_group: int, orbits: Orbits) -> None:
    """Replace each link in ``items`` by the lowest of its orbit; groups are named by their lowest orbit already."""
    is_link = (items <= FIRST_LINK) & (items > FIRST_LINK - first_group)
    items[is_link] = FIRST_LINK - orbits.first_links(FIRST_LINK - items[is_link])


def _numbered(ptr: Int64, items: Int32, slots: Int32, num_ranks: int, first_group: int) -> Neighbourhood:
    """Renumber the crossed links; ``items`` holds FIRST_LINK - l for link l. first_group: number of the first group."""
    is_link = items <= FIRST_LINK
    crossed = FIRST_LINK - items[is_link]
    is_used = np.zeros(int(crossed.max(initial=-1)) + 1, np.bool_)
    is_used[crossed] = True
    links = np.flatnonzero(is_used)
    number = np.cumsum(is_used, dtype=np.int32) - 1
    items[is_link] = number[crossed] + num_ranks
    num_groups = int((links >= first_group).sum())
    return Neighbourhood(ptr=ptr, items=items, slots=slots, links=links.astype(np.int32), num_groups=num_groups)


def _blocks(part: PatternPart, number_of: Int32, table: RouteTable) -> list[tuple[Int64, Int64, Int32, int]]:
    """Return (ranks, items per rank, items, slot) for each role in a part's view."""
    pattern, count = part.pattern, len(part.ranks)
    numbers = number_of[part.ranks].astype(np.int64)
    blocks = []
    for role in part.read_roles:
        if pattern.role_axes[role] not in part.deferred:
            ones = np.ones(count, np.int64)
            blocks.append((numbers, ones, number_of[pattern.peers[part.rows, role]], 0))
    for axis in part.together_axes:
        if axis not in part.deferred:
            groups = (FIRST_LINK - table.group_links(part.ranks, axis)).astype(np.int32)
            blocks.append((numbers, np.ones(count, np.int64), groups, 0))
    return blocks + [_route_block(part, numbers, table, role) for role in _routed_roles(part)]


def _routed_roles(part: PatternPart) -> list[int]:
    """Return the roles whose routes are in a part's view."""
    axes = part.pattern.role_axes
    return [role for role in part.sent_roles if role in HOSTS or axes[role] not in part.deferred]


def _route_block(part: PatternPart, numbers: Int64, table: RouteTable, role: int) -> tuple[Int64, Int64, Int32, int]:
    """Return the links of each route, as FIRST_LINK - link, after a separator."""
    ptr, links = table.of_rows(part.pattern, role, part.rows)
    counts = np.diff(ptr)
    values = np.full(len(links) + len(part.ranks), SEPARATOR, np.int32)
    places = spans(pointers(counts + 1)[:-1] + 1, counts)
    values[places] = FIRST_LINK - links
    return numbers, counts + 1, values, role + 1 - min(HOSTS)


#: place of a link shared by several routes
SHARED = -2


def link_places(patterns: Sequence[Pattern], table: RouteTable, num_links: int) -> Int64:
    """Return each link's place (from 0) on the only route across it; -1 if unused, SHARED on several: int64[links].

    Networks that serve messages in turn fold only if each link carries the messages of one route. Messages of one rank
    keep their order when folded. Messages of several ranks at one instant are ordered by task number, which folding
    does not preserve.
    """
    place, times = np.full(num_links, -1, np.int64), np.zeros(num_links, np.int64)
    for pattern in patterns:
        for role in np.unique(pattern.role).tolist():
            if role >= 0 or role in HOSTS:
                ptr, links = table.of_role(pattern, role)
                place[links] = spans(0, np.diff(ptr))
                times += np.bincount(links, minlength=num_links)
    place[times > 1] = SHARED
    return place
