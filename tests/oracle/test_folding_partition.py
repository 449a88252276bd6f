"""Does colour refinement with hashes find the same partition as refinement without hashes?"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.errors import SimulationError
from trine.folding import classes as partitions
from trine.folding import colors
from trine.folding.classes import Partition, is_stable, refine
from trine.folding.neighbourhood import Neighbourhood

seeds = st.integers(0, 2**32)


def random_neighbourhood(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, Neighbourhood]:
    """Return initial colours of ranks and links, and a neighbourhood: often copies of a pattern, to have classes."""
    pattern, copies = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    num_ranks, num_links = pattern * copies, int(rng.integers(1, 4)) * copies
    shape = [int(rng.integers(0, 5)) for _ in range(pattern)]
    sees = [[(int(rng.integers(3)), int(rng.integers(8))) for _ in range(n)] for n in shape]
    shifts = [[int(rng.integers(copies)) for _ in range(n)] for n in shape]
    items, slots, ptr = [], [], [0]
    for rank in range(num_ranks):
        copy, kind = divmod(rank, pattern)
        for (what, which), shift in zip(sees[kind], shifts[kind], strict=True):
            other = (copy + shift) % copies
            number = (other * pattern + which % pattern, num_ranks + other * (num_links // copies), -1)[what]
            number += which % (num_links // copies) if what == 1 else 0
            items.append(number)
            slots.append(1 if what == 1 else 0)
        ptr.append(len(items))
    links = np.arange(num_links, dtype=np.int32)
    neighbourhood = Neighbourhood(
        ptr=np.array(ptr, np.int64), items=np.array(items, np.int32), slots=np.array(slots, np.int32), links=links
    )
    ranks = np.array([rank % pattern for rank in range(num_ranks)], np.int64)
    if rng.random() < 0.4:
        ranks[rng.integers(num_ranks)] = pattern
    link_colors = np.zeros(num_links, np.int64)
    if rng.random() < 0.3:
        link_colors[rng.integers(num_links)] = 1
    return ranks, link_colors, neighbourhood


def naive(ranks: np.ndarray, links: np.ndarray, neighbourhood: Neighbourhood) -> tuple[list[int], list[int]]:
    """Return the coarsest stable partition by comparing the views themselves, round by round."""
    of_ranks, of_links = ranks.tolist(), links.tolist()
    ptr, items, slots = neighbourhood.ptr.tolist(), neighbourhood.items.tolist(), neighbourhood.slots.tolist()
    while True:
        seen: list[Hashable] = []
        crossed: list[list[Any]] = [[] for _ in of_links]
        for rank, own in enumerate(of_ranks):
            view: list[Hashable] = []
            for at in range(ptr[rank], ptr[rank + 1]):
                item = items[at]
                if item >= len(of_ranks):
                    crossed[item - len(of_ranks)].append((own, slots[at]))
                    view.append(("link", of_links[item - len(of_ranks)]))
                else:
                    view.append(("rank", of_ranks[item]) if item >= 0 else "apart")
            seen.append((own, tuple(view)))
        new_ranks = numbered(seen)
        new_links = numbered([(own, tuple(sorted(by))) for own, by in zip(of_links, crossed, strict=True)])
        if (max(new_ranks), max(new_links)) == (max(numbered(of_ranks)), max(numbered(of_links))):
            return new_ranks, new_links
        of_ranks, of_links = new_ranks, new_links


def numbered(values: list[Any]) -> list[int]:
    known: dict[Any, int] = {}
    return [known.setdefault(value, len(known)) for value in values]


def found(ranks: np.ndarray, links: np.ndarray, neighbourhood: Neighbourhood) -> Partition:
    partition = refine(ranks, links, neighbourhood, len(ranks))
    assert partition is not None
    return partition


@given(seed=seeds)
@settings(max_examples=200, deadline=None)
def test_the_same_classes(seed: int) -> None:
    case = random_neighbourhood(np.random.default_rng(seed))
    partition = found(*case)
    ranks, links = naive(*case)
    assert partition.class_of.tolist() == ranks
    assert partition.link_class_of.tolist() == links
    assert partition.sizes.tolist() == np.bincount(ranks).tolist()
    assert partition.representatives.tolist() == [ranks.index(number) for number in range(max(ranks) + 1)]
    assert list(partition.rounds) == sorted(partition.rounds)


@given(seed=seeds)
@settings(max_examples=100, deadline=None)
def test_other_numbers_for_ranks_and_links_change_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, links, neighbourhood = random_neighbourhood(rng)
    n = len(ranks)
    rank_of, link_of = rng.permutation(n), rng.permutation(len(links))
    new = np.concatenate([rank_of, n + link_of, [-1]])
    order = np.argsort(rank_of)
    rows = [np.arange(neighbourhood.ptr[rank], neighbourhood.ptr[rank + 1]) for rank in order]
    at = np.concatenate(rows).astype(np.int64)
    moved = Neighbourhood(
        ptr=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        items=new[neighbourhood.items[at]].astype(np.int32),
        slots=neighbourhood.slots[at],
        links=neighbourhood.links,
    )
    before = found(ranks, links, neighbourhood)
    after = found(ranks[order], links[np.argsort(link_of)], moved)
    assert after.rounds == before.rounds
    assert numbered(after.class_of[rank_of].tolist()) == before.class_of.tolist()
    assert numbered(after.link_class_of[link_of].tolist()) == before.link_class_of.tolist()


@given(seed=seeds)
@settings(max_examples=100, deadline=None)
def test_a_coarser_partition_is_seen_to_be_wrong(seed: int) -> None:
    """Refinement finds the coarsest stable partition, so merging any two classes makes it unstable."""
    rng = np.random.default_rng(seed)
    ranks, links, neighbourhood = random_neighbourhood(rng)
    partition = found(ranks, links, neighbourhood)
    assert is_stable(partition, ranks, links, neighbourhood)
    for wrong in (_merged(rng, partition, "class_of"), _merged(rng, partition, "link_class_of")):
        assert wrong is None or not is_stable(wrong, ranks, links, neighbourhood)


def _merged(rng: np.random.Generator, partition: Partition, field: str) -> Partition | None:
    ranks, links = partition.class_of.copy(), partition.link_class_of.copy()
    column = ranks if field == "class_of" else links
    if column.max() == 0:
        return None
    first, second = rng.choice(column.max() + 1, 2, replace=False)
    column[column == first] = second
    return partitions._partition(ranks, links, ())


@given(seed=seeds)
@settings(max_examples=100, deadline=None)
def test_sums_in_which_changed_colors_were_replaced_are_sums_made_anew(seed: int) -> None:
    ranks, links, neighbourhood = random_neighbourhood(np.random.default_rng(seed))
    rounds = colors.ColorRounds(neighbourhood.ptr, neighbourhood.items, neighbourhood.slots, ranks, links, seed)
    while rounds.round():
        before = rounds._sums.copy()
        touched = rounds._update(rounds._sums)
        assert rounds._sums.tolist() == rounds._all_sums().tolist()
        assert touched.tolist() == np.flatnonzero(rounds._sums != before).tolist()
        rounds._sums = before


def broken(kind: str) -> Any:
    """Return a split by colliding hashes (one bit each), or a blind one (no bits)."""
    right = colors.ColorRounds._split

    def split(self: Any, touched: np.ndarray, sums: np.ndarray) -> None:
        right(self, touched, sums & np.uint64(kind == "colliding"))

    return split


@pytest.mark.parametrize("kind", ["blind", "colliding"])
def test_hashes_that_collide_cannot_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks have one colour, and each sees a rank of a different colour."""
    ranks = np.array([0, 0, 0, 0, 1, 2, 3, 4])
    none = np.zeros(0, np.int64)
    pairs = Neighbourhood(
        ptr=np.array([0, 1, 2, 3, 4, 4, 4, 4, 4]), items=np.arange(4, 8, dtype=np.int32), slots=np.zeros(4, np.int32),
        links=none.astype(np.int32),
    )  # fmt: skip
    assert found(ranks, none, pairs).num_classes == 8
    monkeypatch.setattr(colors.ColorRounds, "_split", broken(kind))
    with pytest.raises(SimulationError, match="not stable"):
        refine(ranks, none, pairs, 8)


def test_one_collision_only_costs_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, links, neighbourhood = random_neighbourhood(np.random.default_rng(5))
    expected = found(ranks, links, neighbourhood)
    right, calls = partitions.is_stable, []

    def once_unstable(*args: Any) -> bool:
        calls.append(args)
        return len(calls) > 1 and right(*args)

    monkeypatch.setattr(partitions, "is_stable", once_unstable)
    assert found(ranks, links, neighbourhood).class_of.tolist() == expected.class_of.tolist()
    assert len(calls) == 2


def test_too_many_classes_are_given_up() -> None:
    none = np.zeros(0, np.int64)
    apart = Neighbourhood(
        ptr=np.zeros(9, np.int64), items=none.astype(np.int32), slots=none.astype(np.int32), links=none.astype(np.int32)
    )
    assert refine(np.arange(8), none, apart, 7) is None
    assert found(np.arange(8), none, apart).num_classes == 8
