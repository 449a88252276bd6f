"""Does every rank end with the right data, whatever the size of the group and the root?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.collectives import expand, known_algorithms, known_kinds, make_schedule
from trine.collectives.checker import check_schedule
from trine.collectives.registry import ROOTED

CASES = [(kind, name) for kind in known_kinds() for name in known_algorithms(kind)]


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_schedule_is_right(kind: str, algorithm: str, data: st.DataObject) -> None:
    num_ranks = 2 if kind == "send_recv" else data.draw(st.integers(1, 12))
    root = data.draw(st.integers(0, num_ranks - 1)) if kind in ROOTED else -1
    size_bytes = data.draw(st.sampled_from([0, 1, 1000, 4 * 2**20]))
    check_schedule(make_schedule(kind, num_ranks, size_bytes, algorithm, root))


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@pytest.mark.parametrize("num_ranks", [2, 3, 7])
def test_symmetric_schedules_are_shifts_of_one_rank(kind: str, algorithm: str, num_ranks: int) -> None:
    if kind == "send_recv" and num_ranks != 2:
        return
    schedule = make_schedule(kind, num_ranks, 10**6, algorithm, 0 if kind in ROOTED else -1)
    first = schedule.sends_of(0, num_ranks, schedule.num_chunks, schedule.root)
    alike = []
    for position in range(num_ranks):
        sends = schedule.sends_of(position, num_ranks, schedule.num_chunks, schedule.root)
        alike.append(
            len(sends.step) == len(first.step)
            and np.array_equal(sends.peer, (first.peer + position) % num_ranks)
            and np.array_equal(sends.chunk, (first.chunk + position) % num_ranks)
            and np.array_equal(sends.step, first.step)
            and np.array_equal(sends.reduce, first.reduce)
        )
    assert all(alike) == schedule.shift_symmetric


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([case for case in CASES if case[0] != "send_recv"]), st.integers(2, 40), st.integers(0, 2**40))
def test_expansion_is_well_formed(case: tuple[str, str], num_ranks: int, size_bytes: int) -> None:
    kind, algorithm = case
    schedule = make_schedule(kind, num_ranks, size_bytes, algorithm, 1 if kind in ROOTED else -1)
    expanded = expand(schedule)
    m = expanded.num_transfers
    ptr, idx = expanded.predecessor_ptr, expanded.predecessor_idx
    assert len(ptr) == m + 1
    assert ptr[-1] == len(idx)
    users = np.repeat(np.arange(m), np.diff(ptr))
    # A transfer waits only for earlier steps, and only for what its sender sent or received.
    assert (expanded.step[idx] < expanded.step[users]).all()
    assert ((expanded.src[idx] == expanded.src[users]) | (expanded.dst[idx] == expanded.src[users])).all()
    # What waits for nothing starts with its sender's entry; what a rank hears first starts with its own.
    assert expanded.entry_src[np.diff(ptr) == 0].all()
    assert not expanded.entry_src[np.diff(ptr) > 0].any()
    assert set(expanded.dst[expanded.entry_dst].tolist()) == set(expanded.dst.tolist())
    assert (expanded.size_bytes == schedule.chunk_bytes).all()
    assert schedule.chunk_bytes * schedule.num_chunks >= size_bytes
    # Nothing that a rank sends or receives is still under way when the collective has ended there.
    waited = [
        set(expanded.completion_idx[a:b].tolist())
        for a, b in zip(expanded.completion_ptr, expanded.completion_ptr[1:], strict=False)
    ]
    followed = set(idx.tolist())
    for transfer in range(m):
        if transfer not in followed:
            assert transfer in waited[expanded.src[transfer]]
            assert transfer in waited[expanded.dst[transfer]]
