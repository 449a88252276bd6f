"""Pipeline schedules: the order in which a rank runs the passes of its chunks and micro-batches. One file per group."""

from __future__ import annotations

from trine.common.plugins import Registry
from trine.parallel.schedules.base import (
    BACKWARD_PASS,
    FORWARD_PASS,
    INPUT_PASS,
    PASS_NAMES,
    WEIGHT_PASS,
    Pipeline,
    PipelineAction,
    PipelineSchedule,
)

SCHEDULES: Registry[PipelineSchedule] = Registry(
    "pipeline schedule",
    "trine.schedules",
    {
        "gpipe": "trine.parallel.schedules.flush:GPIPE",
        "1f1b": "trine.parallel.schedules.flush:ONE_F_ONE_B",
        "interleaved": "trine.parallel.schedules.interleaved:INTERLEAVED",
        "zb-h1": "trine.parallel.schedules.zero_bubble:ZB_H1",
        "dualpipe": "trine.parallel.schedules.dualpipe:DUALPIPE",
    },
)

#: The record without a name: nothing is known of its order.
UNKNOWN_ORDER = PipelineSchedule()


def known_order(name: str | None) -> PipelineSchedule:
    """Return a schedule by its name; without a known one, :data:`UNKNOWN_ORDER`."""
    return SCHEDULES.get(name) if name and name in SCHEDULES else UNKNOWN_ORDER


__all__ = [
    "BACKWARD_PASS", "FORWARD_PASS", "INPUT_PASS", "PASS_NAMES", "SCHEDULES", "UNKNOWN_ORDER", "WEIGHT_PASS",
    "Pipeline", "PipelineAction", "PipelineSchedule", "known_order",
]  # fmt: skip
