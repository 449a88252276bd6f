"""Folding of GPUs that provably behave alike in a load-store run, so that one of them represents all.

Queues are first come, first served here, so it is not enough that ranks see the same classes of peers. There must be a
group of relabellings of the ranks (translations of their ring or grid) that moves every rank and link. Under this group
programs, addresses, ports, paths, routes and tie-breaks must depend only on relative rank. Then trine simulates one GPU
per orbit; its messages to a peer come back to the orbit's simulated GPU as their mirror image (docs/design/folding.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster.data import SPLIT
from trine.common.arrays import Int32, Int64
from trine.gpu.model import HASHED
from trine.gpu.program import OP_NAMES
from trine.gpu.rank_rows import RankRows, folded_system, rows_of
from trine.gpu.system import GpuSystem
from trine.gpu.translations import Translations


def fold_system(system: GpuSystem) -> tuple[GpuSystem | None, str | None]:
    """Return (smaller system with the same times, None), or (None, reason why the GPUs differ)."""
    obstacle = _why_not_at_all(system)
    if obstacle is not None:
        return None, obstacle
    rows, obstacle = rows_of(system)
    if rows is None:
        return None, obstacle
    reasons: list[tuple[int, str]] = []
    for group in candidates(system.grid):
        tried = _broken_by(system, rows, group)
        if tried.link_orbits is not None:
            return folded_system(system, rows, group, tried.link_orbits), None
        reasons.append((tried.num_passed, f"{tried.reason} (under {group})"))
    # report the group that passes most checks; among equals, the largest
    return None, max(reasons, key=lambda entry: entry[0])[1]


def candidates(grid: Sequence[int]) -> Iterator[Translations]:
    """Return groups of translations, largest first."""
    divisors = []
    for size in grid:
        divisors.append([step for step in range(1, size + 1) if size % step == 0])
    groups = [Translations(tuple(grid), steps) for steps in product(*divisors)]
    proper = [g for g in groups if g.order > 1]
    return iter(sorted(proper, key=lambda g: (-g.order, g.steps)))


def _why_not_at_all(system: GpuSystem) -> str | None:
    graph = system.graph
    if system.num_ranks == 1:
        return "there is one rank"
    if system.program.num_hosts:
        return "GPUs that share the memory of a host are not folded"
    num_kernels = system.program.num_kernels
    if graph.num_tasks != num_kernels or len(graph.predecessor_idx) or (graph.stream >= 0).any():
        return "the load-store level does not fold other tasks than kernels, or tasks that wait for each other"
    if (system.task_kernel != np.arange(num_kernels)).any():
        return "tasks start the kernels in another order than the program"
    if len(system.fabric.cluster.links) == 0:
        return "no links join the ranks"
    return None


class _Tried(NamedTuple):
    """Checks of a group of translations.

    num_passed: number of checks that it passes. reason: the first failure, as text. link_orbits: None after a failure.
    """

    num_passed: int
    reason: str | None
    link_orbits: Int32 | None


def _broken_by(system: GpuSystem, rows: RankRows, group: Translations) -> _Tried:
    """Check whether the ranks of ``system`` behave alike under ``group``."""
    ranks = np.arange(system.num_ranks, dtype=np.int64)
    translation, origin = group.split(ranks)
    reason = _programs(system, rows, group, translation, origin)
    if reason is not None:
        return _Tried(0, reason, None)
    reason = _memory(system, rows, group, translation, origin)
    if reason is not None:
        return _Tried(1, reason, None)
    return _Tried(2, *_link_orbits(system, rows, group))


def _programs(system: GpuSystem, rows: RankRows, group: Translations, translation: Int64, origin: Int64) -> str | None:
    """Return why a rank's program differs from that of its orbit's first rank with peers moved; None if equal."""
    for name, values in rows.shape_columns():
        rank = _first_difference(values, origin)
        if rank is not None:
            return f"rank {rank} and rank {origin[rank]} differ in {name}"
    peers = group.moved(rows.peer, translation[:, None], -1)
    rank = _first_difference(peers, origin)
    if rank is not None:
        operand = int(np.flatnonzero(peers[rank] != peers[origin[rank]])[0])
        place = _where(system, rows, rank, operand)
        return (
            f"peers depend on the absolute rank: {place} means rank {rows.peer[rank, operand]}, on rank {origin[rank]} "
            f"the same operand means rank {rows.peer[origin[rank], operand]}"
        )
    rank = _first_difference(rows.semaphore, origin)
    if rank is not None:
        operand = int(np.flatnonzero(rows.semaphore[rank] != rows.semaphore[origin[rank]])[0])
        place = _where(system, rows, rank, operand)
        return (
            f"semaphores depend on the absolute rank: {place} has semaphore {rows.semaphore[rank, operand]}, on rank "
            f"{origin[rank]} it is {rows.semaphore[origin[rank], operand]}"
        )
    initial = system.program.semaphores
    rank = _first_difference(initial, origin)
    return None if rank is None else f"rank {rank} and rank {origin[rank]} begin with other values of semaphores"


def _first_difference(values: npt.NDArray[np.generic], origin: Int64) -> int | None:
    """Return the first rank whose row differs from the row of its orbit's first rank."""
    differs = np.flatnonzero((values != values[origin]).reshape(len(values), -1).any(axis=1))
    return int(differs[0]) if len(differs) else None


def _where(system: GpuSystem, rows: RankRows, rank: int, operand: int) -> str:
    op = int(rows.operand_op[rank, operand])
    return f"operation {op} of rank {rank} ({OP_NAMES[int(rows.op_kind[rank, op])]})"


def _memory(system: GpuSystem, rows: RankRows, group: Translations, translation: Int64, origin: Int64) -> str | None:
    """Return why channels, ports, cache sets or (with an L2) lines differ within an orbit; None if they match."""
    shift = np.where(rows.is_dma, 0, rows.address - rows.address[origin])
    period = _period(system, rows, np.unique(origin)) if shift.any() else 1
    wrong = shift != 0 if period is None else shift % period != 0
    bad = np.flatnonzero(wrong.any(axis=1))
    if len(bad):
        rank = int(bad[0])
        operand = int(np.flatnonzero(wrong[rank])[0])
        place = _where(system, rows, rank, operand)
        hashed = "ports are" if system.model.ports.choice == HASHED else "the halves of the L2 are"
        need = f"equal addresses ({hashed} hashed)" if period is None else f"addresses equal modulo {period} bytes"
        return (
            f"each works on another slice, hence other channels: {place} is at {rows.address[rank, operand]}, "
            f"on rank {origin[rank]} at {rows.address[origin[rank], operand]}; folding needs {need}"
        )
    if system.model.l2 is not None and not _same_lines(system, rows, group, translation):
        return "each works on another slice, hence other L2 slices: one L2 line on one rank is two lines on another"
    return None


def _period(system: GpuSystem, rows: RankRows, ranks: Int64) -> int | None:
    """Return the address period in bytes of channels, paths and sets for requests of the ranks ``ranks``, or None."""
    model = system.model
    if model.ports.choice == HASHED or (model.l2 is not None and model.l2.far_ps > 0):
        return None
    period = math.lcm(model.memory.interleave_bytes * model.memory.num_channels, model.line_bytes)
    for num_paths in {len(system.fabric.paths(source, target)) for source, target in rows.pairs(ranks)}:
        period = math.lcm(period, model.ports.interleave_bytes * num_paths)
    if model.l2 is not None:
        sets = model.l2.capacity_bytes // (model.line_bytes * model.l2.ways * model.memory.num_channels)
        period = math.lcm(period, model.line_bytes * model.memory.num_channels * max(1, sets))
    return period


def _same_lines(system: GpuSystem, rows: RankRows, group: Translations, translation: Int64) -> bool:
    """Return whether each rank's lines map one to one, piece by piece, to those of its orbit's first rank.

    Take an operand of rank r in the memory of t, and the translation that moves the orbit's first rank to t. Its image
    is the same operand of the rank that this translation moves to r.
    """
    rank, operand = np.nonzero(rows.has_lines)
    if not len(rank):
        return True
    target = rows.peer[rank, operand]
    reach = (rows.lines[rank, operand] - 1) * rows.step[rank, operand]
    length = np.abs(reach) + system.model.line_bytes
    start = rows.address[rank, operand] + np.minimum(reach, 0)
    image = rows.address[group.moved(rank, translation[target], -1), operand] + np.minimum(reach, 0)
    offset = image - start
    return _uniform(target, start, length, offset) and _uniform(target, image, length, offset)


def _uniform(target: Int64, start: Int64, length: Int64, offset: Int64) -> bool:
    """Return whether overlapping ranges of the same memory have equal offsets."""
    order = np.lexsort((start, target))
    target, start, length, offset = target[order], start[order], length[order], offset[order]
    room = int((start + length).max()) + 1
    place = target * room + start
    reach = np.maximum.accumulate(place + length)
    touches = place[1:] < reach[:-1]
    return not bool((touches & (offset[1:] != offset[:-1])).any())


# The links


def _link_orbits(system: GpuSystem, rows: RankRows, group: Translations) -> tuple[str | None, Int32 | None]:
    """Return (why the fabric depends on the absolute rank, None), or (None, first link of each orbit: int32[links]).

    Each link must move to an equal link, and to the same one on all routes. Unused links are their own orbit.
    """
    cluster = system.fabric.cluster
    if cluster.routing == SPLIT:
        return f"routing {SPLIT!r} spreads messages over several routes", None
    pairs = _pairs(system, rows)
    if not len(pairs):
        return None, system.link_image
    device = np.array(system.fabric.group, np.int64)
    ptr, links = cluster.routes(device[pairs // system.num_ranks], device[pairs % system.num_ranks])
    used: Int64 = np.unique(links).astype(np.int64)
    reason = _unowned_link(system, used)
    if reason is not None:
        return reason, None
    maps = []
    for generator in group.generators():
        offset = np.array(generator, np.int64)
        reason, mapped = _moved_links(system, pairs, (ptr, links), used, group, offset)
        if mapped is None:
            return reason, None
        maps.append(mapped)
    return None, _orbits(system, used, maps, group)


def _pairs(system: GpuSystem, rows: RankRows) -> Int64:
    """Return (rank, peer) of all messages in both directions, as rank * ranks + peer, ascending."""
    ranks = np.arange(system.num_ranks, dtype=np.int64)[:, None]
    forward = np.unique(ranks * system.num_ranks + rows.peer)
    back = forward % system.num_ranks * system.num_ranks + forward // system.num_ranks
    pairs = np.union1d(forward, back)
    return np.asarray(pairs[pairs // system.num_ranks != pairs % system.num_ranks])


def _unowned_link(system: GpuSystem, used: Int64) -> str | None:
    """Return the reason if a used link joins switches: it has no rank, so absolute ranks decide its message order."""
    alone = used[system.link_home[used] < 0]
    if not len(alone):
        return None
    name = system.fabric.cluster.link_names[int(alone[0])]
    return f"link {name!r} neither begins nor ends at a rank's GPU: who is first there depends on the absolute rank"


def _moved_links(
    system: GpuSystem, pairs: Int64, routes: tuple[Int64, Int32], used: Int64, group: Translations, offset: Int64
) -> tuple[str | None, Int64 | None]:
    """Return the image of each used link under ``offset``: int64[used], indices into ``used``. routes: of ``pairs``."""
    cluster, ranks = system.fabric.cluster, system.num_ranks
    ptr, links = routes
    image = group.moved(pairs // ranks, offset) * ranks + group.moved(pairs % ranks, offset)
    place = np.searchsorted(pairs, image)
    length = np.diff(ptr)
    bad = np.flatnonzero(length != length[place])
    if len(bad):
        a, b = divmod(int(pairs[bad[0]]), ranks), divmod(int(image[bad[0]]), ranks)
        return f"the route from rank {a[0]} to {a[1]} is not as long as the one from rank {b[0]} to {b[1]}", None
    hop = np.arange(int(ptr[-1])) - np.repeat(ptr[:-1], length)
    mapped = links[np.repeat(ptr[place], length) + hop]
    source = np.searchsorted(used, links)
    target = np.searchsorted(used, mapped)
    image_at = np.full(len(used), -1, np.int64)
    image_at[source] = target
    clash = np.flatnonzero(image_at[source] != target)
    if len(clash):
        names = cluster.link_names
        one, two = names[int(used[image_at[source[clash[0]]]])], names[int(mapped[clash[0]])]
        name = names[int(links[clash[0]])]
        return (
            f"routes do not follow the ranks (routing {cluster.routing!r}): link {name!r} becomes {one!r} on one of "
            f"them and {two!r} on another"
        ), None
    reason = _different_link(system, used, used[image_at], group, offset)
    return reason, None if reason is not None else image_at


def _different_link(system: GpuSystem, used: Int64, image: Int64, group: Translations, offset: Int64) -> str | None:
    """Return how a link differs from its image in rate, latency, number at its GPUs or rank; None if all match."""
    fabric = system.fabric
    names = fabric.cluster.link_names
    for name_of_property, values in fabric.link_columns():
        bad = np.flatnonzero(values[used] != values[image])
        if len(bad):
            link, image_link = int(used[bad[0]]), int(image[bad[0]])
            return f"links {names[link]!r} and {names[image_link]!r} differ in {name_of_property}"
    home = system.link_home.astype(np.int64)
    bad = np.flatnonzero(group.moved(home[used], offset) != home[image])
    if len(bad):
        return f"link {names[int(used[bad[0]])]!r} is not where its rank would be"
    return None


def _orbits(system: GpuSystem, used: Int64, maps: list[Int64], group: Translations) -> Int32:
    """Return the first link of each orbit. Every translation moves every link, because it moves the link's rank."""
    image_of = {0: np.arange(len(used))}
    front = [0]
    while front:
        element = front.pop()
        for generator, mapped in zip(group.generators(), maps, strict=True):
            product = int(group.moved(np.array(element), np.array(generator)))
            if product not in image_of:
                image_of[product] = mapped[image_of[element]]
                front.append(product)
    table = np.stack([image_of[int(element)] for element in group.elements()])
    image = system.link_image.copy()
    image[used] = used[table.min(axis=0)]
    return image
