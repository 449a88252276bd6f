"""Which GPUs of a load-store run provably behave alike, so that one of them is simulated for all.

Queues are first come first served here, so ranks that merely see the same classes everywhere are not enough: there
must be a group of relabellings of the ranks (translations of the ring or grid that they form) that moves every rank and
link, and under which programs, addresses, ports and ways, routes and tie-breaks depend on relative rank only. Then the
GPU of one rank of each orbit is simulated; what it sends to a peer comes back to the orbit's own GPU as its mirror
image (docs/design/folding.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.gpu.fold_links import LinkOrbits, link_orbits
from trine.gpu.fold_rows import Rows, rows_of, simulated_program
from trine.gpu.model import HASHED
from trine.gpu.program import OP_NAMES
from trine.gpu.system import GpuSystem


@dataclass(frozen=True, slots=True)
class Translations:
    """All translations of a grid by multiples of ``steps`` along its dimensions."""

    grid: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def order(self) -> int:
        return math.prod(size // step for size, step in zip(self.grid, self.steps, strict=True))

    def split(self, ranks: Int64) -> tuple[Int64, Int64]:
        """Of each rank the translation (as the rank that 0 goes to), and the rank of its orbit that is nearest to 0."""
        there, near = np.zeros_like(ranks), np.zeros_like(ranks)
        scale, rest = 1, ranks
        for size, step in zip(reversed(self.grid), reversed(self.steps), strict=True):
            place = rest % size
            near += place % step * scale
            there += (place - place % step) * scale
            rest, scale = rest // size, scale * size
        return there, near

    def moved(self, ranks: Int64, by: Int64, sign: int = 1) -> Int64:
        """``ranks`` after the translations ``by``, or before them (sign -1)."""
        out = np.zeros(np.broadcast_shapes(ranks.shape, by.shape), np.int64)
        scale, a, b = 1, ranks, by
        for size in reversed(self.grid):
            out += (a % size + sign * (b % size)) % size * scale
            a, b, scale = a // size, b // size, scale * size
        return out

    def generators(self) -> list[int]:
        """One translation a dimension that is moved along, as the rank that 0 goes to."""
        found, scale = [], 1
        for size, step in zip(reversed(self.grid), reversed(self.steps), strict=True):
            if step < size:
                found.append(step * scale)
            scale *= size
        return found

    def elements(self) -> Int64:
        """Every translation, as the rank that 0 goes to; ascending."""
        ranks = np.arange(math.prod(self.grid), dtype=np.int64)
        found: Int64 = ranks[self.split(ranks)[1] == 0]
        return found

    def __str__(self) -> str:
        if len(self.grid) == 1:
            return f"shifts by {self.steps[0]} of {self.grid[0]} ranks"
        return f"translations by {self.steps} of the grid {'x'.join(map(str, self.grid))}"


def fold_system(system: GpuSystem) -> tuple[GpuSystem | None, str | None]:
    """A smaller system with the same times, and None; or None, and what keeps the GPUs apart."""
    why = _why_not_at_all(system)
    if why is not None:
        return None, why
    rows, why = rows_of(system)
    if rows is None:
        return None, why
    reasons: list[tuple[int, str]] = []
    for group in candidates(system.grid):
        stage, reason, orbits = _broken_by(system, rows, group)
        if orbits is not None:
            return _folded(system, rows, group, orbits), None
        reasons.append((stage, f"{reason} (under {group})"))
    # of the group that most is symmetric under; of several, the largest
    return None, max(reasons, key=lambda found: found[0])[1]


def candidates(grid: Sequence[int]) -> Iterator[Translations]:
    """Groups of translations, the largest first."""
    divisors = [[step for step in range(1, size + 1) if size % step == 0] for size in grid]
    groups = [Translations(tuple(grid), steps) for steps in product(*divisors)]
    return iter(sorted((g for g in groups if g.order > 1), key=lambda g: (-g.order, g.steps)))


def _why_not_at_all(system: GpuSystem) -> str | None:
    graph = system.graph
    if system.num_ranks == 1:
        return "there is one rank"
    num_kernels = system.program.num_kernels
    if graph.num_tasks != num_kernels or len(graph.predecessor_idx) or (graph.stream >= 0).any():
        return "tasks beside those of kernels, or that wait for each other, are not folded at the load-store level"
    if (system.task_kernel != np.arange(num_kernels)).any():
        return "tasks carry the kernels in another order than that of the program"
    if len(system.fabric.cluster.links) == 0:
        return "no links join the ranks"
    return None


def _broken_by(system: GpuSystem, rows: Rows, group: Translations) -> tuple[int, str | None, LinkOrbits | None]:
    """How many checks ``group`` passes, and what is not the same under it; where all is, the orbits of the links."""
    ranks = np.arange(system.num_ranks, dtype=np.int64)
    there, near = group.split(ranks)
    reason = _programs(system, rows, group, there, near)
    if reason is not None:
        return 0, reason, None
    reason = _memory(system, rows, group, there, near)
    if reason is not None:
        return 1, reason, None
    return 2, *link_orbits(system, rows, group.generators(), group.elements(), group.moved)


def _programs(system: GpuSystem, rows: Rows, group: Translations, there: Int64, near: Int64) -> str | None:
    """Whether each rank runs what the first of its orbit does, with peers moved along."""
    for name, values in rows.shape_columns():
        rank = _first_difference(values, near)
        if rank is not None:
            return f"rank {rank} and rank {near[rank]} differ in {name}"
    peers = group.moved(rows.peer, there[:, None], -1)
    rank = _first_difference(peers, near)
    if rank is not None:
        operand = int(np.flatnonzero(peers[rank] != peers[near[rank]])[0])
        where = _where(system, rows, rank, operand)
        return (
            f"peers depend on the absolute rank: {where} means rank {rows.peer[rank, operand]}, on rank {near[rank]} "
            f"the same operand means rank {rows.peer[near[rank], operand]}"
        )
    rank = _first_difference(rows.semaphore, near)
    if rank is not None:
        operand = int(np.flatnonzero(rows.semaphore[rank] != rows.semaphore[near[rank]])[0])
        where = _where(system, rows, rank, operand)
        return (
            f"semaphores depend on the absolute rank: {where} has semaphore {rows.semaphore[rank, operand]}, on rank "
            f"{near[rank]} it is {rows.semaphore[near[rank], operand]}"
        )
    initial = system.program.semaphores
    rank = _first_difference(initial, near)
    return None if rank is None else f"rank {rank} and rank {near[rank]} begin with other values of semaphores"


def _first_difference(values: npt.NDArray[np.generic], near: Int64) -> int | None:
    """The first rank whose row is not that of the first of its orbit."""
    differs = np.flatnonzero((values != values[near]).reshape(len(values), -1).any(axis=1))
    return int(differs[0]) if len(differs) else None


def _where(system: GpuSystem, rows: Rows, rank: int, operand: int) -> str:
    op = int(rows.operand_op[rank, operand])
    return f"operation {op} of rank {rank} ({OP_NAMES[int(rows.op_kind[rank, op])]})"


def _memory(system: GpuSystem, rows: Rows, group: Translations, there: Int64, near: Int64) -> str | None:
    """Whether the same lines lie in the same channels, ports and sets, and with an L2, are the same lines."""
    shift = np.where(rows.is_dma, 0, rows.address - rows.address[near])
    period = _period(system, rows, np.unique(near)) if shift.any() else 1
    wrong = shift != 0 if period is None else shift % period != 0
    bad = np.flatnonzero(wrong.any(axis=1))
    if len(bad):
        rank = int(bad[0])
        operand = int(np.flatnonzero(wrong[rank])[0])
        where = _where(system, rows, rank, operand)
        need = "an equal one (ports are hashed)" if period is None else f"one that is equal modulo {period} bytes"
        return (
            f"addresses depend on the absolute rank: {where} is at {rows.address[rank, operand]}, on rank {near[rank]} "
            f"at {rows.address[near[rank], operand]}; the same channels and ports need {need}"
        )
    if system.model.l2 is not None and not _same_lines(system, rows, group, there):
        return "addresses depend on the absolute rank: what is one line of the L2 on one rank are two on another"
    return None


def _period(system: GpuSystem, rows: Rows, kept: Int64) -> int | None:
    """Bytes after which channels, ways and sets of what the ranks ``kept`` ask for repeat; None: never."""
    model = system.model
    if model.ports.choice == HASHED:
        return None
    period = math.lcm(model.memory.interleave_bytes * model.memory.num_channels, model.line_bytes)
    for ways in {len(system.fabric.paths(source, target)) for source, target in rows.pairs(kept)}:
        period = math.lcm(period, model.ports.interleave_bytes * ways)
    if model.l2 is not None:
        sets = model.l2.capacity_bytes // (model.line_bytes * model.l2.ways * model.memory.num_channels)
        period = math.lcm(period, model.line_bytes * model.memory.num_channels * max(1, sets))
    return period


def _same_lines(system: GpuSystem, rows: Rows, group: Translations, there: Int64) -> bool:
    """Whether the lines of each rank's memory are those of the first of its orbit, moved piece by piece, one to one.

    An operand of rank r in the memory of t lies, seen from the first of t's orbit, where the same operand of r, moved
    back as far as t is, lies.
    """
    rank, operand = np.nonzero(rows.has_lines)
    if not len(rank):
        return True
    target = rows.peer[rank, operand]
    reach = (rows.lines[rank, operand] - 1) * rows.step[rank, operand]
    length = np.abs(reach) + system.model.line_bytes
    own = rows.address[rank, operand] + np.minimum(reach, 0)
    image = rows.address[group.moved(rank, there[target], -1), operand] + np.minimum(reach, 0)
    offset = image - own
    return _uniform(target, own, length, offset) and _uniform(target, image, length, offset)


def _uniform(target: Int64, start: Int64, length: Int64, offset: Int64) -> bool:
    """Whether ranges of the same memory that touch each other have the same offset."""
    order = np.lexsort((start, target))
    target, start, length, offset = target[order], start[order], length[order], offset[order]
    room = int((start + length).max()) + 1
    place = target * room + start
    reach = np.maximum.accumulate(place + length)
    touches = place[1:] < reach[:-1]
    return not bool((touches & (offset[1:] != offset[:-1])).any())


def _folded(system: GpuSystem, rows: Rows, group: Translations, orbits: LinkOrbits) -> GpuSystem:
    from trine.gpu.run import kernel_tasks

    ranks = np.arange(system.num_ranks, dtype=np.int64)
    there, near = group.split(ranks)
    kept = np.unique(near)
    gpu_of = np.searchsorted(kept, near).astype(np.int32)
    peer = rows.peer[kept]
    mirror = group.moved(
        kept[:, None], there[peer], -1
    )  # whose operand, in the memory of the orbit's first rank, this is
    address = rows.address[mirror, np.arange(peer.shape[1])[None, :]]
    program, operand_peer = simulated_program(system.program, rows, kept, gpu_of, peer, address)
    graph = kernel_tasks(program)
    graph = replace(graph, rank=kept[program.kernel_rank].astype(np.int32), rank_names=system.graph.rank_names)
    return replace(
        system,
        program=program,
        ranks=kept.astype(np.int32),
        gpu_of=gpu_of,
        operand_peer=operand_peer,
        link_image=orbits.image,
        graph=graph,
        task_kernel=np.arange(program.num_kernels, dtype=np.int32),
    )
