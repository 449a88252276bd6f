"""A GPU's memory beyond tensors, the hold times of blocks, and the shortest programs, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from synthetic import MS, Chain

from trine.graph.memory import MemoryEvents
from trine.graph.program import LAUNCH_STREAM, Compute, Label, LaunchClock, MemoryChange, RankProgram
from trine.parallel.plan import Plan
from trine.results.memory import MemoryFacts, memory_uses, use_of
from trine.software.profile import MemoryStyle, Software
from trine.training.memory import program_use, shortened
from trine.training.memory_facts import facts_of, num_communicators

GIB, MIB = 2**30, 2**20


def test_parts_of_what_a_gpu_needs() -> None:
    """Reserved memory grows by the fragmentation and by the error; allocated memory is the lower bound."""
    found = use_of(40 * GIB, 50 * GIB, MemoryFacts(fragmentation=0.1, error=0.2, outside_bytes=3 * GIB), 80 * GIB)
    assert (found.reserved_bytes, found.needed_bytes) == (55 * GIB, 58 * GIB)
    assert (found.low_bytes, found.high_bytes) == (35 * GIB, 69 * GIB)
    assert (found.margin_bytes, found.available_bytes) == (22 * GIB, 77 * GIB)
    assert use_of(40 * GIB, 30 * GIB, MemoryFacts()).reserved_bytes == 40 * GIB
    assert use_of(GIB, GIB, MemoryFacts(outside_bytes=3 * GIB), 2 * GIB).available_bytes == 0


@pytest.mark.parametrize(
    ("needed", "error", "verdict"),
    [(64, 0.25, "fits"), (65, 0.25, "tight"), (80, 0.25, "tight"), (80, 0.0, "fits"), (81, 0.0, "does not fit")],
)
def test_a_gpu_that_is_just_full_is_enough(needed: int, error: float, verdict: str) -> None:
    assert use_of(needed * GIB, needed * GIB, MemoryFacts(error=error), 80 * GIB).verdict == verdict


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ({}, 0),
        ({"dp": 2}, 1),
        ({"dp": 2, "tp": 2}, 2),
        ({"dp": 2, "tp": 2, "pp": 2, "cp": 2}, 4),
        ({"dp": 4, "ep": 2}, 2),
    ],
)
def test_each_way_of_parallelism_has_a_communicator(fields: dict[str, int], groups: int) -> None:
    plan = Plan(**fields)
    assert num_communicators(plan) == groups
    style = MemoryStyle(context_bytes=GIB, communicator_bytes=100 * MIB, fragmentation=0.03, error=0.1)
    facts = facts_of(Software(name="s", description="", memory=style), plan, Chain([MS] * 3, [MS] * 3).workload())
    assert facts.outside_bytes == GIB + groups * 100 * MIB
    assert (facts.fragmentation, facts.error, facts.state_blocks) == (0.03, 0.1, 0)


@pytest.mark.parametrize(("dtype", "part"), [("bfloat16", 2 / 3), ("float16", 2 / 3), ("float32", 1.0)])
@pytest.mark.parametrize(("pp", "blocks"), [(1, 14), (2, 7), (4, 3), (16, 1)])
def test_moments_that_come_late_are_two_blocks_a_weight(dtype: str, part: float, pp: int, blocks: int) -> None:
    """Of 12 bytes of state, 8 are moments and 4 are float32 weights; without float32 weights, all are moments."""
    workload = Chain([MS] * 7, [MS] * 7).workload()
    first = workload.parameters[0].weight
    workload.tensors[first] = replace(workload.tensors[first], dtype=dtype)
    software = Software(name="s", description="", memory=MemoryStyle(states="first-step"))
    facts = facts_of(software, Plan(pp=pp), workload)
    assert (facts.state_blocks, facts.late_states) == (blocks, part)
    late = facts.late((1, 2, 600, 4))
    assert late is not None
    assert (late.category, late.size_bytes, late.count) == (2, round(600 * part), blocks)
    assert facts.late((1, 2)) is None


@pytest.mark.parametrize(
    ("fields", "batch"),
    [
        ({"micro_batch": 2}, 4),
        ({"pp": 4, "micro_batch": 2, "schedule": "1f1b"}, 12),
        ({"pp": 4, "micro_batch": 2, "schedule": "interleaved", "virtual_stages": 2}, 32),
        ({"pp": 4, "micro_batch": 2, "schedule": "gpipe"}, 64),
        ({"pp": 4, "micro_batch": 2, "schedule": "zb-h1"}, 64),
        ({"pp": 4, "micro_batch": 16, "schedule": "1f1b"}, 64),
        ({}, 64),
        ({"dp": 2, "micro_batch": 2, "steps": 2}, 64),
        ({"dp": 2, "micro_batch": 2, "replica_batches": (62, 66)}, None),
    ],
)
def test_a_program_has_as_many_micro_batches_as_are_alive_together_and_two_more(fields, batch) -> None:
    plan = Plan(**fields, **({} if "replica_batches" in fields else {"batch": 64}))
    assert shortened(plan, 8).batch == batch
    if "replica_batches" not in fields:
        asked = replace(plan, batch=None)
        assert (shortened(asked, 64).batch or 64) == batch


def test_blocks_are_held_by_the_queue_of_launches_where_no_times_are_known() -> None:
    """At a launch the thread waits for the end of the step that limits its queue; step n has the time n + 1.

    Three blocks of 20 MiB follow each other. When the thread takes the second, it knows the end of step 1, the user of
    the first block, and reuses the bytes. At the third it knows no more, and the second is held for step 3.
    """
    none = Label()
    steps = (
        Compute("compute", MS, (), none),
        Compute("compute", MS, (), none),
        Compute(LAUNCH_STREAM, MS, (1,), none),
        Compute("compute", MS, (2,), none),
        Compute("compute", MS, (3,), none),
    )
    clocks = [LaunchClock(-1, 0, -1), LaunchClock(-1, 0, -1), LaunchClock(2, 0, -1), LaunchClock(2, 0, -1)]

    def reserved(*clocks: LaunchClock, user: int = 1) -> int:
        changes = [(0, 1, 1, -1), (1, -1, 1, user), (3, 1, 2, -1), (3, -1, 2, 3), (4, 1, 3, -1), (4, -1, 3, -1)]
        memory = tuple(
            MemoryChange(step, sign < 0, sign * 20 * MIB, 4, block, user) for step, sign, block, user in changes
        )
        program = RankProgram(name="p", steps=steps, memory=memory, resident_bytes=(0,) * 7, clocks=tuple(clocks))
        return program_use(program, MemoryFacts()).use.reserved_bytes // MIB

    at_launch = LaunchClock(2, 0, -1)
    assert reserved() == 20
    assert reserved(*clocks, at_launch) == 40
    assert reserved(*clocks, LaunchClock(2, 0, 3)) == 20
    assert reserved(*clocks, LaunchClock(4, 0, -1)) == 40  # the thread does not know the operators' dependencies
    assert reserved(*clocks, LaunchClock(2, 0, 2), user=0) == 40
    assert reserved(*clocks, at_launch, user=2) == 60
    early = [*clocks[:3], LaunchClock(-1, 0, 0)]
    assert reserved(*early, LaunchClock(-1, 0, -1)) == 60
    assert reserved(*early, at_launch) == 40


@pytest.mark.parametrize(
    ("more_ps", "behind", "reserved"), [(0, -1, 40), (9, -1, 40), (10, -1, 20), (-5, 1, 40), (0, 2, 20), (10, 0, 20)]
)
def test_a_block_is_free_when_the_thread_comes_behind_the_end_of_its_user(more_ps, behind, reserved) -> None:
    """Tasks end at 10, 15 and 20 ps. The first block is held for task 2. The thread takes the second block at the
    later of 10 + more and the end of the task that its queue waits for."""
    none = (-1, -1, -1, -1)
    events = MemoryEvents(
        task=np.array([0, 0, 1, 1], np.int32), at_end=np.array([0, 1, 0, 1], np.int8), rank=np.zeros(4, np.int32),
        delta_bytes=np.array([20, -20, 20, -20]) * MIB, category=np.full(4, 4, np.int8),
        resident_bytes=np.zeros((1, 7), np.int64), block=np.array([1, 1, 2, 2]),
        held=np.array([none, (-1, -1, -1, 2), (0, more_ps, behind, -1), none]),
    )  # fmt: skip
    records = SimpleNamespace(end_ps=np.array([10, 15, 20]))
    assert memory_uses(events, MemoryFacts(), (), records)[0].reserved_bytes == reserved * MIB
    (free,) = memory_uses(events, MemoryFacts(), (50 * MIB,))
    assert (free.reserved_bytes, free.capacity_bytes) == (20 * MIB, 50 * MIB)
