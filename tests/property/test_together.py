"""Do collectives marked ``together`` start and end at the same time on all ranks? Folding relies on the mark."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.collectives.expand import expand
from trine.collectives.library_flows import FROM_ROOT, FlowPlan, ListedFlows, RegularFlows, ShiftFlows, StarFlows
from trine.collectives.one_operation import ONE_OPERATION, one_operation
from trine.collectives.schedule import Schedule


def listed(rng: Random, num_ranks: int, *, waits: bool = True) -> ListedFlows:
    """Return random flows between ranks; some ranks are idle."""
    rows = tuple(
        tuple((rng.randrange(num_ranks), 1) for _ in range(rng.choice((0, 1, 3)))) for _ in range(num_ranks)
    )  # fmt: skip
    rows = tuple(tuple(flow for flow in row if flow[0] != rank) for rank, row in enumerate(rows))
    return ListedFlows(rows, tuple(rng.sample(range(num_ranks), num_ranks)), waits)


def schedules(rng: Random) -> list[Schedule]:
    """Return schedules of every shape that makes all ranks wait for each other."""
    groups, size = rng.choice(((1, 2), (3, 1), (2, 4), (3, 5), (8, 8)))
    shapes = [RegularFlows(groups, size, inner, rng.random() < 0.5) for inner in ("ring", "direct")]
    found = [
        FlowPlan("", shape, (0, 100, 100), (0, 7, 7)).schedule("all_reduce", groups * size, 100, 0) for shape in shapes
    ]
    num_ranks = rng.randint(2, 17)
    found.append(FlowPlan("", listed(rng, num_ranks), (0, 100), (0, 7)).schedule("all_reduce", num_ranks, 100, 0))
    found.append(one_operation("broadcast", groups * size, 100, f"{ONE_OPERATION}:{groups}x{size}:ring"))
    return found


def run(schedule: Schedule, entered: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (start of each timed send, end on each rank); ``taken`` is each send's duration, used if it is timed."""
    whole = expand(schedule)
    timed = whole.step == schedule.timed_step
    begins, ends = np.zeros((2, whole.num_transfers), np.int64)
    for send in np.argsort(whole.step, kind="stable"):
        before = whole.predecessor_idx[whole.predecessor_ptr[send] : whole.predecessor_ptr[send + 1]]
        waits = [*ends[before]]
        waits += [entered[whole.src[send]]] * bool(whole.entry_src[send])
        waits += [entered[whole.dst[send]]] * bool(whole.entry_dst[send])
        begins[send] = max(waits)
        ends[send] = begins[send] + taken[send] * timed[send]
    ptr = whole.completion_ptr
    done = [
        max([entered[rank], *ends[whole.completion_idx[ptr[rank] : ptr[rank + 1]]]])
        for rank in range(schedule.num_ranks)
    ]
    return begins[timed], np.array(done)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_all_send_when_the_last_has_entered_and_end_when_the_last_has_sent(seed: int) -> None:
    rng = Random(seed)
    for schedule in schedules(rng):
        assert schedule.together
        whole = expand(schedule)
        entered = np.array([rng.randrange(1000) for _ in range(schedule.num_ranks)])
        taken = np.array([rng.randrange(1000) for _ in range(whole.num_transfers)])
        begins, done = run(schedule, entered, taken)
        timed = whole.step == schedule.timed_step
        assert (begins == entered.max()).all()
        assert (done == entered.max() + taken[timed].max(initial=0)).all()


@pytest.mark.parametrize("rooted", [FROM_ROOT])
def test_what_has_a_root_or_waits_for_two_ends_alone_does_not_say_so(rooted: str) -> None:
    rng = Random(1)
    for shape in (
        RegularFlows(2, 4, "ring", rooted=rooted),
        ShiftFlows(8, 3),
        StarFlows(rooted),
        listed(rng, 8, waits=False),
    ):
        assert not FlowPlan("", shape, (0, 1, 1), (0, 7, 7)).schedule("all_reduce", 8, 100, 0).together
