"""Which experts the tokens of each rank go to, as places seen from the rank."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.collectives.kernels.moe.options import ROTATED, MoeOptions
from trine.errors import InputError

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

    Raises
    ------
    InputError: experts that do not divide over the ranks; more experts of a token than its nodes have.
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
