"""Builder of dispatch and combine kernels: rows of tokens, flags, and the operations of workgroups.

A token's experts are given relative to its rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import mul
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.kernels.moe.options import ROTATED, MoeOptions
from trine.gpu.kernels.options import MAX_OPERANDS, KernelOptions
from trine.gpu.program import GpuProgram

#: An expert relative to a rank: (distance of the expert's rank, expert number on that rank).
Place = tuple[int, int]


class Routes(NamedTuple):
    """Places of the experts of each token of one rank."""

    tokens: tuple[tuple[Place, ...], ...]

    def by_expert(self) -> dict[Place, list[int]]:
        """Return the tokens of each place, ascending."""
        tokens_by_place: dict[Place, list[int]] = {}
        for token, places in enumerate(self.tokens):
            for place in places:
                tokens_by_place.setdefault(place, []).append(token)
        return tokens_by_place

    def distances(self, token: int) -> list[int]:
        """Return the distances of a token's destination ranks, without duplicates."""
        return list(dict.fromkeys(distance for distance, _ in self.tokens[token]))

    def by_rank(self) -> dict[int, list[int]]:
        """Return the tokens sent to each distance, ascending."""
        tokens_by_distance: dict[int, list[int]] = {}
        for token in range(len(self.tokens)):
            for distance in self.distances(token):
                tokens_by_distance.setdefault(distance, []).append(token)
        return tokens_by_distance


class NodeGrid(NamedTuple):
    """Grid of consecutive nodes with equally many ranks; distances are grid offsets, modulo each size."""

    nodes: int
    locals: int

    def at(self, rank: int, distance: int, sign: int = 1) -> int:
        """Return the rank at a distance; ``sign`` -1: the rank that has this rank at that distance."""
        node = (rank // self.locals + sign * (distance // self.locals)) % self.nodes
        return node * self.locals + (rank + sign * distance) % self.locals

    def distance(self, origin: int, destination: int) -> int:
        """Return the distance from rank ``origin`` to rank ``destination``."""
        node = (destination // self.locals - origin // self.locals) % self.nodes
        return node * self.locals + (destination - origin) % self.locals


def draw_routes(moe: MoeOptions, grid: NodeGrid, top_nodes: int) -> tuple[Routes, ...]:
    """Return the routes of each rank, or only of rank 0 if all ranks have the same relative routes.

    Experts are drawn without replacement in proportion to their shares (the smallest of exponential draws / shares).
    With ``top_nodes`` below the number of nodes, a token first picks the nodes with the best top expert (DeepSeek-V3's
    node-limited routing picks by the two best, DeepEP's tests by the best).

    Raises InputError if the ranks do not divide the experts, or a token needs more experts than its nodes have.
    """
    ranks = grid.nodes * grid.locals
    if moe.experts % ranks:
        raise InputError(f"{moe.experts} experts do not divide over {ranks} ranks", field="experts")
    if top_nodes > grid.nodes:
        raise InputError(f"there are {grid.nodes} nodes, got {top_nodes}", field="top_nodes")
    if moe.experts // grid.nodes * top_nodes < moe.top_k:
        raise InputError(
            f"a token has {moe.top_k} experts, and {top_nodes} nodes have {moe.experts // grid.nodes * top_nodes}",
            field="top_k",
        )
    sources = (0,) if moe.draws == ROTATED else range(ranks)
    return tuple(_routes(_experts(moe, grid, top_nodes, rank), rank, grid, moe.experts // ranks) for rank in sources)


def _routes(experts: Int64, rank: int, grid: NodeGrid, count: int) -> Routes:
    places = []
    for row in experts.tolist():
        places.append(tuple((grid.distance(rank, e // count), e % count) for e in row))
    return Routes(tuple(places))


def _experts(moe: MoeOptions, grid: NodeGrid, top_nodes: int, rank: int) -> Int64:
    """Draw the experts of one rank's tokens: int64[tokens, top_k]."""
    draws = np.random.default_rng((moe.seed, rank)).random((moe.tokens, moe.experts))
    score = np.log(-np.log(draws)) - np.log(np.array(moe.weights()))  # the smallest win
    if top_nodes < grid.nodes:
        by_node = score.reshape(moe.tokens, grid.nodes, -1)
        order = np.argsort(by_node.min(axis=2), axis=1, kind="stable")[:, top_nodes:]
        np.put_along_axis(by_node, order[:, :, None], math.inf, axis=1)
    experts: Int64 = np.argsort(score, axis=1, kind="stable")[:, : moe.top_k]
    return experts


#: Lines of 128 bytes per access of a warp with 16 bytes per lane.
LINES_PER_ACCESS = 4


def strides_of(*shape: int) -> tuple[int, ...]:
    """Return the strides of a row-major table, in rows."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Rows(NamedTuple):
    """Table of rows of ``lines`` lines, at the same address on every rank."""

    base: int
    lines: int
    line_bytes: int
    strides: tuple[int, ...]

    def at(self, rank: int, *place: int, line: int = 0) -> tuple[int, int]:
        """Return (rank, address) of a line of a row."""
        return rank, self.base + (sum(map(mul, self.strides, place)) * self.lines + line) * self.line_bytes


class FlagTable(NamedTuple):
    """Table of semaphores, one per line."""

    first: int
    base: int
    line_bytes: int
    strides: tuple[int, ...]

    def at(self, *place: int) -> int:
        """Return the number of a flag."""
        return sum(map(mul, self.strides, place))

    def operand(self, role: int, rank: int, number: int) -> Operand:
        return Operand(role, rank, self.base + number * self.line_bytes, semaphore=self.first + number)


class MoeBuilder(ProgramBuilder):
    """Builder of the kernels of all ranks, or only of rank 0 if the others' are the same in relative terms.

    ``written_ranks``: the ranks to write. Code that names ranks by distance (``grid.at``) works in both cases.
    """

    def __init__(self, name: str, options: KernelOptions, top_nodes: int) -> None:
        super().__init__(name, options.num_ranks, line_bytes=options.line_bytes)
        self.options = options
        self.moe = moe_of(options)
        if options.num_nodes == 1 and self.moe.top_nodes is not None:
            raise InputError("cannot matter: all experts are on one node", field="top_nodes")
        self.grid = NodeGrid(options.num_nodes, options.num_ranks // options.num_nodes)
        self.routes = draw_routes(self.moe, self.grid, top_nodes)
        self.written_ranks = range(len(self.routes))
        self.local_experts = self.moe.experts // options.num_ranks

    def routes_of(self, rank: int, distance: int = 0, sign: int = 1) -> Routes:
        """Return the routes of the rank at a distance; see :meth:`NodeGrid.at`."""
        return self.routes[self.grid.at(rank, distance, sign) if len(self.routes) > 1 else 0]

    def crosses(self, distance: int) -> bool:
        """Return whether the path crosses NICs."""
        return distance >= self.grid.locals

    def lines_of(self, size_bytes: int) -> int:
        return -(-size_bytes // self.line_bytes)

    def rows(self, name: str, lines: int, *shape: int) -> Rows:
        """Add a table of rows."""
        base = self.buffer(name, math.prod(shape) * lines * self.line_bytes)
        return Rows(base, lines, self.line_bytes, strides_of(*shape))

    def flags(self, name: str, *shape: int) -> FlagTable:
        """Add a table of flags."""
        count = math.prod(shape)
        first, base = self.semaphores(count), self.buffer(name, count * self.line_bytes)
        return FlagTable(first, base, self.line_bytes, strides_of(*shape))

    # Operations of a workgroup.

    def copy(self, lines: int, source: tuple[int, int], target: tuple[int, int], label: str, unroll: int) -> None:
        """Copy ``lines`` consecutive lines."""
        step = self.line_bytes
        self.add(isa.COPY, lines, (Operand(isa.READ, *source, step), Operand(isa.WRITE, *target, step)), label, unroll)

    def load(self, lines: int, source: tuple[int, int], label: str, unroll: int) -> None:
        self.add(isa.LOAD, lines, (Operand(isa.READ, *source, self.line_bytes),), label, unroll)

    def store(self, lines: int, target: tuple[int, int], label: str) -> None:
        self.add(isa.STORE, lines, (Operand(isa.WRITE, *target, self.line_bytes),), label)

    def reduce(
        self, lines: int, sources: Iterable[tuple[int, int]], target: tuple[int, int], label: str, unroll: int
    ) -> None:
        """Store the sum of rows."""
        step = self.line_bytes
        operands = (*(Operand(isa.READ, *source, step) for source in sources), Operand(isa.WRITE, *target, step))
        self.add(isa.REDUCE, lines, operands, label, unroll)

    def put(self, lines: int, source: tuple[int, int], target: tuple[int, int], label: str) -> None:
        """Put lines to another node through the NIC."""
        self.add(isa.DMA, lines * self.line_bytes, (Operand(isa.READ, *source), Operand(isa.WRITE, *target)), label)

    def settle(self, label: str) -> None:
        """Wait until all requests of all wavefronts so far are complete."""
        self.add(isa.WAITCNT, 0, (), label)
        self.add(isa.BARRIER, 0, (), label)

    def fence(self, label: str) -> None:
        self.add(isa.FENCE, 0, (), label)

    def release(self, flags: FlagTable, targets: Sequence[tuple[int, int]], label: str, amount: int = 1) -> None:
        """Add ``amount`` to flags (rank, number)."""
        self.add(isa.RELEASE, amount, [flags.operand(isa.WRITE, *target) for target in targets], label)

    def notify(self, flags: FlagTable, target: tuple[int, int], distance: int, label: str) -> None:
        """Add 1 to a flag of the rank at ``distance``, after all earlier writes and puts to it."""
        if self.crosses(distance):
            self.add(isa.DMA, 0, (flags.operand(isa.WRITE, *target),), label)
        else:
            self.fence(label)
            self.release(flags, [target], label)

    def acquire(self, flags: FlagTable, rank: int, number: int, amount: int, label: str) -> None:
        """Wait for a flag in wavefront 0 only; ``barrier`` makes the others wait too."""
        self.add(isa.ACQUIRE, amount, (flags.operand(isa.READ, rank, number),), label)

    def barrier(self, label: str) -> None:
        self.add(isa.BARRIER, 0, (), label)

    def acquire_all(self, flags: FlagTable, rank: int, numbers: Sequence[int], label: str) -> None:
        """Wait once for each number in ``numbers``; equal ones are one wait."""
        for number in sorted(set(numbers)):
            self.acquire(flags, rank, number, numbers.count(number), label)

    def meet(self, flags: FlagTable, rank: int, number: int, num_workgroups: int, label: str) -> None:
        """Synchronise ``num_workgroups`` workgroups of a rank: the first counts arrivals and releases the others."""
        if num_workgroups == 1:
            return
        if number:
            self.release(flags, [(rank, 0)], label)
            self.acquire(flags, rank, 1, 1, label)
        else:
            self.acquire(flags, rank, 0, num_workgroups - 1, label)
            self.release(flags, [(rank, 1)], label, num_workgroups - 1)
        self.barrier(label)

    def end_workgroup(self) -> None:
        """End the workgroup like :class:`ProgramBuilder`. Raises InputError if the program is too large."""
        super().end_workgroup()
        if self.num_operands * (self.num_ranks // len(self.written_ranks)) > MAX_OPERANDS:
            raise InputError(
                f"{self.name} on {self.num_ranks} ranks with {self.moe.tokens} tokens has more than {MAX_OPERANDS} "
                "operands: take fewer tokens",
                field="tokens",
            )

    def finished(self, payload_bytes: int, *notes: str) -> GpuProgram:
        """Return the program of all ranks."""
        if self.moe.draws != ROTATED:
            return self.program(payload_bytes=payload_bytes, notes=notes)
        return self.program(ranks=range(self.num_ranks), grid=self.grid, payload_bytes=payload_bytes, notes=notes)


class SeenChunks:
    """Count of the chunks that a workgroup has seen from each source; ``numbers``: the sources' flags."""

    def __init__(self, builder: MoeBuilder, flags: FlagTable, rank: int, numbers: Sequence[int]) -> None:
        self._builder, self._flags, self._rank, self._numbers = builder, flags, rank, numbers
        self._seen = [0] * len(numbers)

    def wait(self, source: int, count: int) -> None:
        """Wait until ``count`` chunks of a source have arrived."""
        num_new = count - self._seen[source]
        if num_new > 0:
            self._builder.acquire(self._flags, self._rank, self._numbers[source], num_new, "wait")
            self._seen[source] = count


def chunks_of(count: int, chunk: int) -> list[range]:
    """Return ``count`` tokens in chunks of ``chunk``."""
    return [range(first, min(first + chunk, count)) for first in range(0, count, chunk)]


def in_turns(chunks: Sequence[Sequence[range]], first: int = 0) -> Iterator[tuple[int, range]]:
    """Yield (source, chunk), sources round-robin, from source ``first`` on."""
    for number in range(max(map(len, chunks))):
        for turn in range(len(chunks)):
            source = (turn + first) % len(chunks)
            if number < len(chunks[source]):
                yield source, chunks[source][number]


def moe_of(options: KernelOptions) -> MoeOptions:
    """Return the MoE options. Raises InputError if they are missing."""
    if options.moe is None:
        raise InputError(f"{options.op} needs to know tokens and experts", field="moe")
    return options.moe
