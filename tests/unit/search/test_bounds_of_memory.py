"""Does the least memory of a layout follow its pipeline's schedule?"""

from dataclasses import fields
from typing import get_type_hints

import pytest

from trine.search.bounds import by_stage, memory_bounds
from trine.search.probe import LayerCosts
from trine.search.space import Layout

LAYOUT = Layout(
    dp=1, tp=1, pp=2, cp=1, ep=1, etp=None, sharding="none", shard_ways=None, schedule="1f1b", virtual_stages=1,
    micro_batch=1, sequence_parallel=None, recompute="none", offload="none",
)  # fmt: skip
KEPT, WEIGHTS, PEAK = 10, 1000, 7


def costs() -> LayerCosts:
    """Layers that keep 10 bytes between the passes, and hold 1,000 bytes of weights."""
    types = get_type_hints(LayerCosts)
    values = {field.name: 0 if types[field.name] is int else {} for field in fields(LayerCosts)}
    return LayerCosts(**{**values, "kept": KEPT, "peak": KEPT + PEAK, "resident": {"weights": WEIGHTS}})


@pytest.mark.parametrize(("schedule", "in_flight"), [("1f1b", (2, 1)), ("gpipe", (8, 8))])
def test_a_stage_keeps_the_micro_batches_that_its_schedule_has_in_flight(
    schedule: str, in_flight: tuple[int, int]
) -> None:
    layers = 4
    stages = by_stage((2, 2), 2, 1)
    found = memory_bounds(LAYOUT._replace(schedule=schedule), 8, costs(), layers, stages)
    first, last = (2 * WEIGHTS + 2 * KEPT * number for number in in_flight)
    assert found == (first, last + PEAK)
