"""Pipeline schedules: in which order a stage runs the forward and backward passes of its micro-batches."""

from __future__ import annotations

from typing import Protocol

from trine.model.program import PHASE_BACKWARD, PHASE_FORWARD
from trine.plugins import Registry

#: (phase, micro-batch), in order; phase is PHASE_FORWARD or PHASE_BACKWARD of :mod:`trine.model.program`.
Passes = list[tuple[int, int]]


class PipelineSchedule(Protocol):
    """The passes of one stage, in order: each micro-batch once forward and, if ``backward``, once backward after it."""

    def __call__(self, stage: int, num_stages: int, num_microbatches: int, *, backward: bool = True) -> Passes: ...


def gpipe(stage: int, num_stages: int, num_microbatches: int, *, backward: bool = True) -> Passes:
    """All forward passes, then all backward passes in the same order of micro-batches.

    Source: Huang et al., GPipe, 2019, Figure 2c; there backward runs in reverse order, in PyTorch's ScheduleGPipe and
    here it does not. The time of equal micro-batches is the same.
    """
    del stage, num_stages
    passes = [(PHASE_FORWARD, m) for m in range(num_microbatches)]
    return passes + [(PHASE_BACKWARD, m) for m in range(num_microbatches)] if backward else passes


def one_f_one_b(stage: int, num_stages: int, num_microbatches: int, *, backward: bool = True) -> Passes:
    """Warm up with as many forward passes as there are later stages, then alternate one forward with one backward.

    Source: Narayanan et al., PipeDream-Flush as in Megatron-LM (2021), Figure 4 top. It holds at most
    ``num_stages - stage`` micro-batches' activations instead of all of them.
    """
    if not backward:
        return gpipe(stage, num_stages, num_microbatches, backward=False)
    warmup = min(num_stages - 1 - stage, num_microbatches)
    passes = [(PHASE_FORWARD, m) for m in range(warmup)]
    for m in range(num_microbatches - warmup):
        passes += [(PHASE_FORWARD, warmup + m), (PHASE_BACKWARD, m)]
    return passes + [(PHASE_BACKWARD, m) for m in range(num_microbatches - warmup, num_microbatches)]


SCHEDULES: Registry[PipelineSchedule] = Registry(
    "pipeline schedule",
    "trine.schedules",
    {"gpipe": "trine.parallel.schedules:gpipe", "1f1b": "trine.parallel.schedules:one_f_one_b"},
)
