"""Schedules with one stage a rank and whole backward passes: GPipe and 1F1B."""

from __future__ import annotations

from trine.parallel.schedules.base import BACKWARD_PASS, FORWARD_PASS, Pipeline, PipelineAction, PipelineSchedule


class GPipe(PipelineSchedule):
    """All forward passes, then all backward passes in the same order of micro-batches.

    Source: Huang et al., GPipe, 2019, Figure 2c; there backward runs in reverse order, in PyTorch's ScheduleGPipe and
    here it does not. The time of equal micro-batches is the same.
    """

    name = "gpipe"
    ends_backward = True

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        kinds = (FORWARD_PASS, BACKWARD_PASS) if pipeline.backward else (FORWARD_PASS,)
        return [PipelineAction(kind, rank, m) for kind in kinds for m in range(pipeline.num_microbatches)]

    def held(self, rank: int, pipeline: Pipeline) -> int:
        return pipeline.num_microbatches


class OneFOneB(PipelineSchedule):
    """Warm up with one forward pass per later stage, then alternate one forward with one backward.

    Source: Narayanan et al., PipeDream-Flush as in Megatron-LM (2021), Figure 4 top. It holds at most
    ``num_ranks - rank`` micro-batches' activations instead of all of them.
    """

    name = "1f1b"
    alternates = True
    ends_backward = True

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        count = pipeline.num_microbatches
        forward = [PipelineAction(FORWARD_PASS, rank, m) for m in range(count)]
        if not pipeline.backward:
            return forward
        backward = [PipelineAction(BACKWARD_PASS, rank, m) for m in range(count)]
        return alternate(forward, backward, min(pipeline.num_ranks - 1 - rank, count))

    def held(self, rank: int, pipeline: Pipeline) -> int:
        return min(pipeline.num_ranks - rank, pipeline.num_microbatches)


def alternate(forward: list[PipelineAction], backward: list[PipelineAction], warmup: int) -> list[PipelineAction]:
    """Return ``warmup`` forward passes, then forward and backward in turn, then the remaining backward passes."""
    steady = [action for pair in zip(forward[warmup:], backward, strict=False) for action in pair]
    return [*forward[:warmup], *steady, *backward[len(forward) - warmup :]]


GPIPE, ONE_F_ONE_B = GPipe(), OneFOneB()
