"""Gradient memory blocks by sharding: when the whole block exists, when only a shard, and when both are freed."""

from __future__ import annotations

import pytest
from synthetic import MS, Chain, Proportional

from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import RankProgram
from trine.parallel.build import build_job
from trine.parallel.plan import Plan

WEIGHTS = [1000, 1204, 1404, 1604]


def program(**fields: object) -> RankProgram:
    workload = Chain([MS] * 4, [MS] * 4, WEIGHTS).workload()
    job, _ = build_job(
        workload, Plan(dp=3, **fields).filled(), Proportional(workload), has_host=True, host_bytes_per_s=1e9
    )
    return job.programs[0]


def taken(found: RankProgram) -> dict[str, list[int]]:
    """Return the sizes of the gradient and bucket blocks that the step allocates, in ascending order."""
    names = ("gradients", "buckets")
    rows = [(MEMORY_CATEGORIES[c.category], c.delta_bytes) for c in found.memory if c.delta_bytes > 0]
    return {name: sorted(size for category, size in rows if category == name) for name in names}


def stays(found: RankProgram) -> int:
    return found.resident_bytes[MEMORY_CATEGORIES.index("gradients")]


def part(size: int) -> int:
    return -(-size // 3)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_a_gradient_whose_part_has_a_buffer_leaves_no_second_part(sharding: str) -> None:
    """DeepSpeed's flat partition: buckets are whole until reduced, then added to the resident shard."""
    found = program(sharding=sharding)
    assert stays(found) == sum(part(size) for size in WEIGHTS)
    assert taken(found) == {"gradients": [], "buckets": WEIGHTS}


def test_a_gradient_without_a_buffer_leaves_its_part_until_the_step_ends() -> None:
    found = program(sharding="fsdp")
    assert stays(found) == 0
    assert taken(found) == {"gradients": sorted([*WEIGHTS, *map(part, WEIGHTS)]), "buckets": []}


def test_gradients_of_one_buffer_for_all_take_nothing_in_the_step() -> None:
    found = program(sharding="zero1")
    assert stays(found) == sum(WEIGHTS)
    assert taken(found) == {"gradients": [], "buckets": []}


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3", "fsdp"])
@pytest.mark.parametrize("fields", [{}, {"micro_batch": 2}, {"offload": "activations"}, {"offload": "optimizer"}])
def test_no_block_is_given_back_before_it_is_taken(sharding: str, fields: dict[str, object]) -> None:
    """Without an optimizer the last shard outlives the last operator; the step frees everything at its end."""
    found = program(sharding=sharding, batch=8, **fields)
    rows = [c for c in found.memory if c.block >= 0]  # other changes belong to no block
    begins, ends = ({c.block: c for c in rows if (c.delta_bytes > 0) == is_begin} for is_begin in (True, False))
    assert begins.keys() == ends.keys()
    assert len(rows) == 2 * len(begins)
    for block, begin in begins.items():
        end = ends[block]
        assert (begin.step, begin.at_end) <= (end.step, end.at_end)
        assert (begin.delta_bytes, begin.category) == (-end.delta_bytes, end.category)
