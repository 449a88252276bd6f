"""What ranks see: whose tasks theirs wait for, and which links their messages cross."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import numpy as np

from trine.arrays import Int32, Int64
from trine.folding._refine import SEPARATOR
from trine.folding.partition import Sight
from trine.folding.sketch import HOST, HOSTS, TO_HOST, Edges, Sketch

#: Items of links until they have numbers: below those of ranks and of the separator.
FIRST_LINK = SEPARATOR - 1
#: (ranks or None for the hosts of the others, ranks or None likewise) -> CSR of links of the routes
Routes = Callable[[Int64 | None, Int64 | None], tuple[Int64, Int32]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """Ranks of one sketch that have behaved alike so far, and what they have still to do.

    ranks: int64, ascending; rows: int64, theirs in the sketch. tasks: int64, tasks of the sketch that are left;
    number_of: int32[tasks of the sketch], the number of each among them, -1 if it has ended. edges: those of the tasks
    that are left, with numbers of the sketch. before: the class that they were in so far, -1 at the beginning.
    """

    sketch: Sketch
    number: int
    ranks: Int64
    rows: Int64
    tasks: Int64
    number_of: Int32
    edges: Edges
    before: int = -1

    @property
    def read_roles(self) -> list[int]:
        """Roles whose tasks are waited for, in order."""
        return [int(role) for role in np.unique(self.edges.role) if role >= 0]

    @property
    def sent_roles(self) -> list[int]:
        """Roles that messages go to (or come from, the host first), in order."""
        return [int(role) for role in np.unique(self.sketch.role[self.tasks]) if role >= 0 or role in HOSTS]


def whole_parts(sketches: Sequence[Sketch]) -> list[Part]:
    """All ranks of each sketch, at the beginning."""
    return [
        Part(
            sketch=sketch,
            number=number,
            ranks=sketch.ranks,
            rows=np.arange(len(sketch.ranks)),
            tasks=np.arange(sketch.num_tasks),
            number_of=np.arange(sketch.num_tasks, dtype=np.int32),
            edges=sketch.edges,
        )
        for number, sketch in enumerate(sketches)
    ]


@dataclass(slots=True)
class RouteTable:
    """Routes of the roles of each sketch, found when they are first asked for."""

    routes: Routes
    known: dict[tuple[int, int], tuple[Int64, Int32]] = field(default_factory=dict)

    def of_role(self, sketch: Sketch, role: int) -> tuple[Int64, Int32]:
        """CSR over the ranks of a sketch: the links of their messages to (from, of the host) the role."""
        key = (id(sketch), role)
        if key not in self.known:
            if role == HOST:
                self.known[key] = self.routes(None, sketch.ranks)
            elif role == TO_HOST:
                self.known[key] = self.routes(sketch.ranks, None)
            else:
                self.known[key] = self.routes(sketch.ranks, sketch.peers[:, role].astype(np.int64))
        return self.known[key]

    def of_row(self, sketch: Sketch, role: int, row: int) -> Int32:
        """Links of one rank's route."""
        ptr, links = self.of_role(sketch, role)
        return links[ptr[row] : ptr[row + 1]]


def look(
    parts: Sequence[Part], number_of: Int32, num_ranks: int, table: RouteTable, closed: Sequence[Container[str]]
) -> Sight:
    """What every rank of ``parts`` sees along axes that are not ``closed`` to its part.

    number_of: int32[ranks of the job], the number of each among the ``num_ranks`` ranks of the parts.
    """
    blocks = [
        block for part, shut in zip(parts, closed, strict=True) for block in _blocks(part, number_of, table, shut)
    ]
    lengths = np.zeros(num_ranks, np.int64)
    for ranks, counts, _, _ in blocks:
        lengths[ranks] += counts
    ptr = np.zeros(num_ranks + 1, np.int64)
    np.cumsum(lengths, out=ptr[1:])
    items, slots = np.empty(int(ptr[-1]), np.int64), np.zeros(int(ptr[-1]), np.int32)
    at = ptr[:-1].copy()
    for ranks, counts, values, slot in blocks:
        where = np.repeat(at[ranks] - (np.cumsum(counts) - counts), counts) + np.arange(len(values))
        items[where] = values
        slots[where] = slot
        at[ranks] += counts
    return _numbered(ptr, items, slots, num_ranks)


def _numbered(ptr: Int64, items: Int64, slots: Int32, num_ranks: int) -> Sight:
    """Number the links that are crossed; in ``items`` link l was FIRST_LINK - l."""
    is_link = items <= FIRST_LINK
    crossed = FIRST_LINK - items[is_link]
    is_used = np.zeros(int(crossed.max(initial=-1)) + 1, np.bool_)
    is_used[crossed] = True
    links = np.flatnonzero(is_used)
    number = np.cumsum(is_used) - 1
    items[is_link] = number[crossed] + num_ranks
    return Sight(ptr=ptr, items=items.astype(np.int32), slots=slots, links=links.astype(np.int32))


def _blocks(
    part: Part, number_of: Int32, table: RouteTable, closed: Container[str]
) -> list[tuple[Int64, Int64, Int64, int]]:
    """(ranks, items of each, items, slot) for what a part sees, role by role."""
    sketch, count = part.sketch, len(part.ranks)
    own = number_of[part.ranks].astype(np.int64)
    blocks = []
    for role in part.read_roles:
        if sketch.role_axes[role] not in closed:
            ones = np.ones(count, np.int64)
            blocks.append((own, ones, number_of[sketch.peers[part.rows, role]].astype(np.int64), 0))
    return blocks + [
        _route_block(part, own, table, role)
        for role in part.sent_roles
        if role in HOSTS or sketch.role_axes[role] not in closed
    ]


def _route_block(part: Part, own: Int64, table: RouteTable, role: int) -> tuple[Int64, Int64, Int64, int]:
    """The links of each route, as FIRST_LINK - link, after a separator."""
    ptr, links = table.of_role(part.sketch, role)
    counts = np.diff(ptr)[part.rows]
    total = int(counts.sum())
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    values = np.full(total + len(part.ranks), SEPARATOR, np.int64)
    firsts = np.cumsum(counts + 1) - (counts + 1)
    where = np.repeat(firsts + 1, counts) + within
    values[where] = FIRST_LINK - links[np.repeat(ptr[:-1][part.rows], counts) + within].astype(np.int64)
    return own, counts + 1, values, role + 1 - min(HOSTS)
