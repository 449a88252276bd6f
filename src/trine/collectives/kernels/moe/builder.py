"""Writes the kernels of a dispatch or combine: rows of tokens, flags, and what a workgroup does with them.

The experts of a token are places seen from its rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.collectives.kernels.moe.options import ROTATED, MoeOptions
from trine.collectives.kernels.options import MAX_OPERANDS, KernelOptions
from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.program import GpuProgram

#: An expert, seen from a rank: (distance of the expert's rank, number among its experts).
Place = tuple[int, int]


class Routes(NamedTuple):
    """Of one rank: the places of each token's experts."""

    tokens: tuple[tuple[Place, ...], ...]

    def by_expert(self) -> dict[Place, list[int]]:
        """Tokens of each place, ascending."""
        found: dict[Place, list[int]] = {}
        for token, places in enumerate(self.tokens):
            for place in places:
                found.setdefault(place, []).append(token)
        return found

    def distances(self, token: int) -> list[int]:
        """Of the ranks that a token goes to, each once."""
        return list(dict.fromkeys(distance for distance, _ in self.tokens[token]))

    def by_rank(self) -> dict[int, list[int]]:
        """Tokens that go to each distance, ascending."""
        found: dict[int, list[int]] = {}
        for token in range(len(self.tokens)):
            for distance in self.distances(token):
                found.setdefault(distance, []).append(token)
        return found


class NodeGrid(NamedTuple):
    """Nodes of equally many ranks, one after the other; distances are places in it, modulo each size."""

    nodes: int
    locals: int

    def at(self, rank: int, distance: int, sign: int = 1) -> int:
        """The rank at a distance; ``sign`` -1: the one from which this rank is at that distance."""
        node = (rank // self.locals + sign * (distance // self.locals)) % self.nodes
        return node * self.locals + (rank + sign * distance) % self.locals

    def distance(self, here: int, there: int) -> int:
        """Of one rank from another."""
        node = (there // self.locals - here // self.locals) % self.nodes
        return node * self.locals + (there - here) % self.locals


def draw_routes(moe: MoeOptions, grid: NodeGrid, top_nodes: int) -> tuple[Routes, ...]:
    """The routes of each rank; of rank 0 alone where all are the same seen from there.

    Experts are drawn without replacement, by their shares (the largest of shares times exponential draws). With
    ``top_nodes`` below the number of nodes a token first takes the nodes whose best expert is best (DeepSeek-V3's
    routing limited to nodes takes the two best; DeepEP's tests the best).

    Raises InputError: experts that do not divide over the ranks; more experts of a token than its nodes have.
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
    drawn = (0,) if moe.draws == ROTATED else range(ranks)
    return tuple(_of_rank(_experts(moe, grid, top_nodes, rank), rank, grid, moe.experts // ranks) for rank in drawn)


def _of_rank(experts: Int64, rank: int, grid: NodeGrid, each: int) -> Routes:
    return Routes(tuple(tuple((grid.distance(rank, e // each), e % each) for e in row) for row in experts.tolist()))


def _experts(moe: MoeOptions, grid: NodeGrid, top_nodes: int, rank: int) -> Int64:
    """int64[tokens, top_k] of one rank."""
    draws = np.random.default_rng((moe.seed, rank)).random((moe.tokens, moe.experts))
    score = np.log(-np.log(draws)) - np.log(np.array(moe.weights()))  # the smallest are chosen
    if top_nodes < grid.nodes:
        by_node = score.reshape(moe.tokens, grid.nodes, -1)
        order = np.argsort(by_node.min(axis=2), axis=1, kind="stable")[:, top_nodes:]
        np.put_along_axis(by_node, order[:, :, None], math.inf, axis=1)
    chosen: Int64 = np.argsort(score, axis=1, kind="stable")[:, : moe.top_k]
    return chosen


#: A warp that accesses 16 bytes a lane has so many lines of 128 bytes in one access.
LINES_PER_ACCESS = 4


class Rows(NamedTuple):
    """Rows of ``lines`` lines behind each other, in the same place on every rank."""

    base: int
    lines: int
    line_bytes: int

    def at(self, rank: int, row: int, line: int = 0) -> tuple[int, int]:
        """(rank, address) of a line of a row."""
        return rank, self.base + (row * self.lines + line) * self.line_bytes


class FlagTable(NamedTuple):
    """Semaphores, each on a line of its own."""

    first: int
    base: int
    line_bytes: int

    def operand(self, role: int, rank: int, which: int) -> Operand:
        return Operand(role, rank, self.base + which * self.line_bytes, semaphore=self.first + which)


class MoeBuilder(ProgramBuilder):
    """The kernels of all ranks, or of rank 0, of which those of the others are the same seen from there.

    ``written``: the ranks to write. What names ranks by distance (``grid.at``) holds for both.
    """

    def __init__(self, name: str, options: KernelOptions, top_nodes: int) -> None:
        super().__init__(name, options.num_ranks, line_bytes=options.line_bytes)
        self.options = options
        self.moe = moe_of(options)
        if options.num_nodes == 1 and self.moe.top_nodes is not None:
            raise InputError("cannot matter: all experts are on one node", field="top_nodes")
        self.grid = NodeGrid(options.num_nodes, options.num_ranks // options.num_nodes)
        self.routes = draw_routes(self.moe, self.grid, top_nodes)
        self.written = range(len(self.routes))
        self.local_experts = self.moe.experts // options.num_ranks

    def routes_of(self, rank: int, distance: int = 0, sign: int = 1) -> Routes:
        """Of the rank at a distance."""
        return self.routes[self.grid.at(rank, distance, sign) if len(self.routes) > 1 else 0]

    def crosses(self, distance: int) -> bool:
        """Whether NICs are on the way."""
        return distance >= self.grid.locals

    def lines_of(self, size_bytes: int) -> int:
        return -(-size_bytes // self.line_bytes)

    def rows(self, name: str, count: int, lines: int) -> Rows:
        return Rows(self.buffer(name, count * lines * self.line_bytes), lines, self.line_bytes)

    def flags(self, name: str, count: int) -> FlagTable:
        return FlagTable(self.semaphores(count), self.buffer(name, count * self.line_bytes), self.line_bytes)

    # What a workgroup does.

    def copy(self, lines: int, source: tuple[int, int], target: tuple[int, int], label: str, unroll: int) -> None:
        """``lines`` lines that lie behind each other."""
        step = self.line_bytes
        self.add(isa.COPY, lines, (Operand(isa.READ, *source, step), Operand(isa.WRITE, *target, step)), label, unroll)

    def load(self, lines: int, source: tuple[int, int], label: str, unroll: int) -> None:
        self.add(isa.LOAD, lines, (Operand(isa.READ, *source, self.line_bytes),), label, unroll)

    def store(self, lines: int, target: tuple[int, int], label: str) -> None:
        self.add(isa.STORE, lines, (Operand(isa.WRITE, *target, self.line_bytes),), label)

    def reduce(
        self, lines: int, sources: Iterable[tuple[int, int]], target: tuple[int, int], label: str, unroll: int
    ) -> None:
        """The sum of rows."""
        step = self.line_bytes
        operands = (*(Operand(isa.READ, *source, step) for source in sources), Operand(isa.WRITE, *target, step))
        self.add(isa.REDUCE, lines, operands, label, unroll)

    def put(self, lines: int, source: tuple[int, int], target: tuple[int, int], label: str) -> None:
        """By the NIC, to behind it."""
        self.add(isa.DMA, lines * self.line_bytes, (Operand(isa.READ, *source), Operand(isa.WRITE, *target)), label)

    def settle(self, label: str) -> None:
        """What all wavefronts have asked for so far is done."""
        self.add(isa.WAITCNT, 0, (), label)
        self.add(isa.BARRIER, 0, (), label)

    def fence(self, label: str) -> None:
        self.add(isa.FENCE, 0, (), label)

    def release(self, flags: FlagTable, targets: Sequence[tuple[int, int]], label: str, amount: int = 1) -> None:
        """Add ``amount`` to flags (rank, which)."""
        self.add(isa.RELEASE, amount, [flags.operand(isa.WRITE, *target) for target in targets], label)

    def notify(self, flags: FlagTable, target: tuple[int, int], distance: int, label: str) -> None:
        """Add 1 to a flag of the rank at ``distance``, behind all that was written or put there."""
        if self.crosses(distance):
            self.add(isa.DMA, 0, (flags.operand(isa.WRITE, *target),), label)
        else:
            self.fence(label)
            self.release(flags, [target], label)

    def acquire(self, flags: FlagTable, rank: int, which: int, amount: int, label: str) -> None:
        """Wavefront 0 alone waits; ``barrier`` lets the others wait for it."""
        self.add(isa.ACQUIRE, amount, (flags.operand(isa.READ, rank, which),), label)

    def barrier(self, label: str) -> None:
        self.add(isa.BARRIER, 0, (), label)

    def meet(self, flags: FlagTable, rank: int, number: int, of: int, label: str) -> None:
        """One of ``of`` workgroups of a rank that go on when all are here: the first counts, and lets them go."""
        if of == 1:
            return
        if number:
            self.release(flags, [(rank, 0)], label)
            self.acquire(flags, rank, 1, 1, label)
        else:
            self.acquire(flags, rank, 0, of - 1, label)
            self.release(flags, [(rank, 1)], label, of - 1)
        self.barrier(label)

    def end_workgroup(self) -> None:
        """As of :class:`ProgramBuilder`. Raises InputError for too large a program."""
        super().end_workgroup()
        if self.num_operands * (self.num_ranks // len(self.written)) > MAX_OPERANDS:
            raise InputError(
                f"{self.name} on {self.num_ranks} ranks with {self.moe.tokens} tokens has more than {MAX_OPERANDS} "
                "operands: take fewer tokens",
                field="tokens",
            )

    def finished(self, payload_bytes: int, *notes: str) -> GpuProgram:
        """The program of all ranks."""
        if self.moe.draws != ROTATED:
            return self.program(payload_bytes=payload_bytes, notes=notes)
        return self.program(ranks=range(self.num_ranks), grid=self.grid, payload_bytes=payload_bytes, notes=notes)


def moe_of(options: KernelOptions) -> MoeOptions:
    """What is exchanged. Raises InputError where nobody said."""
    if options.moe is None:
        raise InputError(f"{options.op} needs to know tokens and experts", field="moe")
    return options.moe
