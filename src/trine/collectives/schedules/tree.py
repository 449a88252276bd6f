"""Collectives on trees, with chunks pipelined through them.

``tree``: a binary tree in heap order. ``double-binary-tree``: two trees with half of the data each. Inner ranks of one
tree are leaves of the other, so every rank sends and receives about the same amount (Sanders, Speck and Träff,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 2009; also the all-reduce of
NCCL 2.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from trine.collectives.algorithm import (
    Algorithm,
    MessageTime,
    Rounds,
    all_but_own,
    no_symmetry,
    twice_all_but_own,
    whole_parameter,
)
from trine.collectives.schedule import Schedule, Sends
from trine.collectives.sends import SendList, cut, pipeline_chunks


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """``parent`` of each rank (-1: the root), its ``children`` and its ``depth``; ``height`` is the largest depth."""

    parent: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    depth: tuple[int, ...]
    height: int


def make_tree(parent: list[int]) -> Tree:
    """Build a tree from the parent of each rank (-1: the root)."""
    children: list[list[int]] = [[] for _ in parent]
    for rank, parent_rank in enumerate(parent):
        if parent_rank >= 0:
            children[parent_rank].append(rank)
    depth = [0] * len(parent)
    level = [parent.index(-1)]
    while level:
        next_level = [child for rank in level for child in children[rank]]
        for child in next_level:
            depth[child] = depth[parent[child]] + 1
        level = next_level
    return Tree(parent=tuple(parent), children=tuple(map(tuple, children)), depth=tuple(depth), height=max(depth))


@lru_cache(maxsize=32)
def binary_tree(num_ranks: int, root: int = 0) -> Tree:
    """Return a tree in heap order: the rank at distance v behind the root has children at 2v + 1 and 2v + 2."""
    parent = [-1] * num_ranks
    for v in range(1, num_ranks):
        parent[(root + v) % num_ranks] = (root + (v - 1) // 2) % num_ranks
    return make_tree(parent)


def _in_order_parents(num_ranks: int) -> list[int]:
    """Return the parents of an in-order tree under rank 0: a rank with k trailing zero bits has height k (odd: leaves).

    The parent of rank r is its neighbour at distance 2**k with more trailing zeros: the higher one if it exists.
    """
    parent = [-1]
    for rank in range(1, num_ranks):
        bit = rank & -rank
        higher = (rank - bit) | (2 * bit)
        parent.append(higher if higher < num_ranks else rank - bit)
    return parent


@lru_cache(maxsize=32)
def two_trees(num_ranks: int) -> tuple[Tree, Tree]:
    """Return the in-order tree, and a complement that shares no link with it.

    The second tree is the mirrored first one (shifted by one for an odd number of ranks), as in NCCL. Its leaves are
    then rotated so that no two ranks are neighbours in both trees, and no link between two GPUs is used twice. This is
    impossible up to 6 ranks: then both halves use the first tree.
    """
    first = _in_order_parents(num_ranks)
    relabel = []
    for position in range(num_ranks):
        relabel.append((position + 1) % num_ranks if num_ranks % 2 else num_ranks - 1 - position)
    second = [-1] * num_ranks
    for rank in range(1, num_ranks):
        second[relabel[rank]] = relabel[first[rank]]
    inner = set(second)
    leaves = [rank for rank in range(num_ranks) if rank not in inner]
    links = {frozenset((rank, first[rank])) for rank in range(1, num_ranks)}
    for shift in range(len(leaves)):
        rotated = list(second)
        for i, leaf in enumerate(leaves):
            rotated[leaves[(i + shift) % len(leaves)]] = second[leaf]
        if not any(frozenset((rank, parent)) in links for rank, parent in enumerate(rotated) if parent >= 0):
            return make_tree(first), make_tree(rotated)
    return make_tree(first), make_tree(first)


def _add_tree(sends: SendList, tree: Tree, position: int, chunks: np.ndarray, kind: str, channel: int) -> None:
    """Add the sends: chunk k goes up in step height - depth + k, and down depth + k steps after it reached the root."""
    order = np.arange(len(chunks))
    up = kind != "broadcast"
    if up and tree.parent[position] >= 0:
        steps = tree.height - tree.depth[position] + order
        sends.add_all(steps, tree.parent[position], chunks, reduce=True, channel=channel)
    if kind != "reduce":
        first = tree.depth[position] + (tree.height if up else 0)
        for i, child in enumerate(tree.children[position]):
            sends.add_all(first + order, child, chunks, channel=channel + 1 + i)


@dataclass(frozen=True)
class TreeSends:
    """Sends of broadcast, reduce or all_reduce on the binary tree."""

    kind: str

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        sends = SendList()
        _add_tree(sends, binary_tree(num_ranks, max(root, 0)), position, np.arange(num_chunks), self.kind, 0)
        return sends.build()


def double_tree_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return the sends of an all_reduce: half of the chunks through each tree, or all through one if both are equal."""
    first, second = two_trees(num_ranks)
    sends = SendList()
    if first == second:
        _add_tree(sends, first, position, np.arange(num_chunks), "all_reduce", 0)
        return sends.build()
    half = np.arange(num_chunks // 2)
    _add_tree(sends, first, position, half, "all_reduce", 0)
    _add_tree(sends, second, position, half + len(half), "all_reduce", 3)
    return sends.build()


def _tree(kind: str, num_ranks: int, size_bytes: int, root: int = -1, *, chunks: int | None = None) -> Schedule:
    stages = binary_tree(num_ranks).height * (2 if kind == "all_reduce" else 1)
    number = pipeline_chunks(size_bytes, num_ranks, stages, chunks)
    parameters = (("chunks", number),)
    return cut(kind, "tree", num_ranks, size_bytes, number, TreeSends(kind), root=max(root, 0), parameters=parameters)


def _tree_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of a chain as long as the first chunk's path: up, down, or up and down."""
    height = binary_tree(schedule.num_ranks).height
    stages = 2 * height if schedule.kind == "all_reduce" else height
    return ((stages - 1 + schedule.num_chunks, schedule.chunk_bytes),)


all_reduce, broadcast, reduce = (
    Algorithm(
        kind=kind, name="tree", make=partial(_tree, kind), rounds=_tree_rounds, total_bytes=total_bytes,
        symmetry=no_symmetry, source="Chan, Heimlich, Purkayastha and van de Geijn 2007",
    )
    for kind, total_bytes in (("all_reduce", twice_all_but_own), ("broadcast", all_but_own), ("reduce", all_but_own))
)  # fmt: skip


def _double_all_reduce(num_ranks: int, size_bytes: int, root: int = -1, *, chunks: int | None = None) -> Schedule:
    """Build an all_reduce on two trees. ``size_bytes``: the buffer; ``chunks``: of each half."""
    first, second = two_trees(num_ranks)
    halves = 1 if first == second else 2
    number = pipeline_chunks(-(-size_bytes // halves), num_ranks, 2 * first.height, chunks)
    return cut(
        "all_reduce", "double-binary-tree", num_ranks, size_bytes, halves * number, double_tree_sends,
        parameters=(("chunks", number),),
    )  # fmt: skip


def _double_tree_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of one of the two trees, which have the same height and share no link."""
    height = two_trees(schedule.num_ranks)[0].height
    return ((2 * height - 1 + whole_parameter(schedule, "chunks"), schedule.chunk_bytes),)


double_all_reduce = Algorithm(
    kind="all_reduce", name="double-binary-tree", make=_double_all_reduce, rounds=_double_tree_rounds,
    total_bytes=twice_all_but_own, symmetry=no_symmetry, source="Sanders, Speck and Träff 2009",
)  # fmt: skip
