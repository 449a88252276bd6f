"""Expert exchanges beside compute: each forward pass runs together with the backward pass of another micro-batch.

Megatron-core calls it ``overlap_moe_expert_parallel_comm`` (combined 1F1B). A rank begins with one forward pass more
than without, so that the forward and the backward pass that follow each other belong to different micro-batches. The
two are written as one: whenever one of them sends tokens to experts or back, the other one computes
(:meth:`trine.parallel.stage.StageBuilder._joined`).

Source: megatron/core/pipeline_parallel/combined_1f1b.py and utils, and schedules.py ``get_pp_rank_microbatches`` of
Megatron-core 0.14 on; the same idea as DeepSeek's DualPipe.
"""

from __future__ import annotations

from trine.errors import PlanError
from trine.parallel.schedules import FORWARD_PASS, Pipeline, PipelineAction, PipelineSchedule


class ExpertOverlap(PipelineSchedule):
    """A 1F1B schedule, plain or interleaved, whose forward and backward passes run in pairs.

    Raises PlanError for another schedule.
    """

    def __init__(self, schedule: PipelineSchedule) -> None:
        if not schedule.alternates:
            raise PlanError(
                f"expert_overlap joins the passes of 1f1b and interleaved schedules, not of {schedule.name}"
            )
        self._schedule = schedule
        self.name, self.takes_virtual_stages = schedule.name, schedule.takes_virtual_stages

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        actions = self._schedule.passes(rank, pipeline)
        forward = [action for action in actions if action.kind == FORWARD_PASS]
        backward = [action for action in actions if action.kind != FORWARD_PASS]
        if not backward:
            return actions
        first = next(place for place, action in enumerate(actions) if action.kind != FORWARD_PASS)
        paired: list[PipelineAction] = forward[:first]
        later = forward[first:]
        for ahead, behind in zip(later, backward, strict=False):
            paired += [ahead, behind._replace(joined=True)]
        return paired + backward[len(later) :]

    def rank_of(self, chunk: int, microbatch: int, pipeline: Pipeline) -> int:
        return self._schedule.rank_of(chunk, microbatch, pipeline)

    def chunks_of(self, rank: int, pipeline: Pipeline) -> tuple[int, ...]:
        return self._schedule.chunks_of(rank, pipeline)

    def check(self, pipeline: Pipeline) -> None:
        self._schedule.check(pipeline)
