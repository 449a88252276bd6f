"""Do the array look-ups of schedules and results match a plain loop?"""

from __future__ import annotations

import random

import numpy as np
import pytest

from trine.collectives.dependencies import received_before
from trine.collectives.expand import expand
from trine.collectives.one_operation import one_operation
from trine.results.intervals import first_at, merge


@pytest.mark.parametrize("seed", range(20))
def test_what_arrived_before_a_use_and_matters_still(seed: int) -> None:
    """Expect the slot's arrivals in earlier steps, from the last waiting use and the last overwriting arrival on."""
    draw = random.Random(seed)
    most = draw.choice([3, 9])
    arrivals = [(draw.randrange(4), draw.randrange(most), draw.random() < 0.6) for _ in range(25)]
    uses = [(draw.randrange(4), draw.randrange(draw.choice([2, 12]))) for _ in range(15)]
    earlier = [
        max(
            (j for j in range(len(uses)) if uses[j][0] == slot and uses[j][1] < step),
            key=lambda j: uses[j][1],
            default=-1,
        )
        for slot, step in uses
    ]
    expected = set()
    for i, (slot, step) in enumerate(uses):
        since = uses[earlier[i]][1] if earlier[i] >= 0 else 0
        overwrote = [at for where, at, adds in arrivals if where == slot and at < step and not adds]
        since = max([since, *overwrote])
        expected |= {(i, a) for a, (where, at, _) in enumerate(arrivals) if where == slot and since <= at < step}
    found = received_before(
        np.array([slot for slot, _ in uses], np.int64),
        np.array([step for _, step in uses], np.int32),
        np.array(earlier, np.int64),
        np.array([slot for slot, _, _ in arrivals], np.int64),
        np.array([step for _, step, _ in arrivals], np.int32),
        np.array([adds for _, _, adds in arrivals]),
    )
    assert set(zip(*(column.tolist() for column in found), strict=True)) == expected


@pytest.mark.parametrize("groups", [(3, 9), (9, 3), (1, 6)])
def test_the_first_item_where_an_interval_ends(groups: tuple[int, int]) -> None:
    draw = random.Random(sum(groups))
    rows = [(draw.randrange(groups[0]), start, start + draw.randrange(1, 9)) for start in range(0, 90, 5)]
    intervals = merge(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
    items = [(draw.randrange(groups[1]), draw.randrange(100)) for _ in range(400)]
    found = first_at(intervals, *(np.array(c, np.int64) for c in zip(*items, strict=True)), np.arange(len(items)))
    wanted = list(zip(intervals.group.tolist(), intervals.end_ps.tolist(), strict=True))
    assert found.tolist() == [items.index(one) if one in items else -1 for one in wanted]
    assert -1 in found or len(wanted) < 5
    assert (found >= 0).any()


@pytest.mark.parametrize(("ranks", "shape"), [(6, "1x6"), (12, "3x4"), (12, "4x3"), (10, "5x2"), (4, "4x1")])
@pytest.mark.parametrize("inner", ["ring", "direct"])
def test_in_one_operation_everybody_waits_for_everybody(ranks: int, shape: str, inner: str) -> None:
    """After the first signals each rank has heard from all; each sends its share to its group and to the next group."""
    transfers = expand(one_operation("broadcast", ranks, 1200, f"one-operation:{shape}:{inner}"))
    groups, size = (int(part) for part in shape.split("x"))
    columns = (transfers.step, transfers.src, transfers.dst, transfers.chunk)
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True))
    heard = {rank: {rank} for rank in range(ranks)}
    timed = max(step for step, _, _, _ in rows) // 2
    for step in range(timed):
        before = {rank: set(known) for rank, known in heard.items()}
        for _, source, target, _ in (row for row in rows if row[0] == step):
            assert source // size == target // size or source % size == target % size
            heard[target] |= before[source]
    assert all(len(known) == ranks for known in heard.values())
    sent = dict.fromkeys(range(ranks), 0)
    for source, carried in zip(transfers.src.tolist(), transfers.size_bytes.tolist(), strict=True):
        sent[source] += carried
    share = -(-1200 * (ranks - 1) // ranks)
    inside = share if groups == 1 else -(-share * (size - 1) // size)
    outside = -(-share // size) if groups > 1 else 0
    for total in sent.values():
        assert total == pytest.approx(inside + outside, abs=size + 1)
