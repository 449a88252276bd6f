"""Do classes of ranks and links match plain colour refinement? Small enough for CI lanes without numba."""

from __future__ import annotations

import numpy as np
import pytest

from trine.folding.classes import refine
from trine.folding.colors import SEPARATOR, join_components
from trine.folding.neighbourhood import Neighbourhood


def random_neighbourhood(seed: int, num_ranks: int = 12, num_links: int = 9) -> Neighbourhood:
    """Return ranks that see each other and cross links, mostly like their neighbours, so that some are alike."""
    draw = np.random.default_rng(seed)
    pattern = [(int(draw.integers(1, num_ranks)), int(draw.integers(num_links))) for _ in range(draw.integers(1, 4))]
    ptr, items, slots = [0], [], []
    for rank in range(num_ranks):
        for slot, (step, link) in enumerate(pattern):
            moved = link if draw.random() < 0.1 else (link + rank) % num_links
            row = [(rank + step) % num_ranks, num_ranks + moved, SEPARATOR]
            items += row
            slots += [slot] * len(row)
        ptr.append(len(items))
    columns = (np.array(items, np.int32), np.array(slots, np.int32), np.arange(num_links, dtype=np.int32))
    return Neighbourhood(ptr=np.array(ptr, np.int64), items=columns[0], slots=columns[1], links=columns[2])


def numbered(values: list[object]) -> list[int]:
    """Number values by first use; equal values get equal numbers."""
    known: dict[object, int] = {}
    return [known.setdefault(value, len(known)) for value in values]


def plain(ranks: list[int], links: list[int], neighbourhood: Neighbourhood) -> tuple[list[int], list[int]]:
    """Refine colours with tuples instead of hashes."""
    rows = [
        list(zip(neighbourhood.items[a:b].tolist(), neighbourhood.slots[a:b].tolist(), strict=True))
        for a, b in zip(neighbourhood.ptr, neighbourhood.ptr[1:], strict=False)
    ]
    n = len(ranks)
    while True:
        seen = [
            (ranks[r], tuple(-1 if i < 0 else ("rank", ranks[i]) if i < n else ("link", links[i - n]) for i, _ in row))
            for r, row in enumerate(rows)
        ]
        crossed = [
            (
                links[link],
                tuple(sorted((ranks[r], slot) for r, row in enumerate(rows) for i, slot in row if i == n + link)),
            )
            for link in range(len(links))
        ]
        new = numbered(seen), numbered(crossed)
        if (len(set(new[0])), len(set(new[1]))) == (len(set(ranks)), len(set(links))):
            return new
        ranks, links = new


@pytest.mark.parametrize("seed", range(25))
def test_classes_are_those_of_plain_refinement(seed: int) -> None:
    neighbourhood = random_neighbourhood(seed)
    draw = np.random.default_rng(seed + 100)
    ranks, links = draw.integers(2, size=12) * (draw.random() < 0.5), draw.integers(2, size=9) * (draw.random() < 0.5)
    ranks, links = ranks.astype(np.int64), links.astype(np.int64)
    found = refine(ranks, links, neighbourhood, 12)
    assert found is not None
    of_ranks, of_links = plain(numbered(ranks.tolist()), numbered(links.tolist()), neighbourhood)
    assert numbered(found.class_of.tolist()) == numbered(of_ranks)
    assert numbered(found.link_class_of.tolist()) == numbered(of_links)
    assert found.sizes.sum() == 12
    assert np.array_equal(found.class_of[found.representatives], np.arange(found.num_classes))


def test_a_limit_of_classes_ends_the_refinement() -> None:
    neighbourhood = random_neighbourhood(3)
    apart = np.arange(12)
    assert refine(apart, np.zeros(9, np.int64), neighbourhood, 11) is None
    found = refine(apart, np.zeros(9, np.int64), neighbourhood, 12)
    assert found is not None
    assert found.num_classes == 12


@pytest.mark.parametrize("seed", range(10))
def test_components_are_those_of_a_search(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = [draw.integers(-1, 30, size=draw.integers(3)).tolist() for _ in range(20)]
    ptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    parent = join_components(ptr, np.array([item for row in rows for item in row], np.int32), 10)
    beside: list[set[int]] = [set() for _ in range(30)]
    for rank, row in enumerate(rows):
        for item in row:
            if item >= 0:
                beside[rank].add(item)
                beside[item].add(rank)
    for member in range(30):
        reached, pending = {member}, [member]
        while pending:
            for other in beside[pending.pop()] - reached:
                reached.add(other)
                pending.append(other)
        assert parent[member] == min(reached)
