"""Pipeline schedules: in which order a stage runs the forward and backward passes of its micro-batches."""

from __future__ import annotations

from trine.model.program import PHASE_BACKWARD, PHASE_FORWARD

Passes = list[tuple[int, int]]


def gpipe(stage: int, num_stages: int, num_microbatches: int, *, backward: bool = True) -> Passes:
    """All forward passes, then all backward passes (Huang et al., GPipe, 2019, Figure 2)."""
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


SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}
