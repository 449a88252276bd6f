"""The head's weight gradient in the drain bubble: Megatron-core's ``defer_embedding_wgrad_compute``.

The last stage leaves out the weight gradient of the vocabulary projection in the backward passes of the first N
micro-batches, and keeps their logits' gradients and the head's inputs. After its last backward pass, while earlier
stages still drain, it computes these weight gradients one after the other. With sequence parallelism each input is
gathered again for it.

Source: megatron/core/utils.py ``drain_embedding_wgrad_compute``, megatron/core/tensor_parallel/layers.py
``LinearWithGradAccumulationAndAsyncCommunication`` (``wgrad_deferral_limit``), and
megatron/core/pipeline_parallel/schedules.py ``finish_embedding_wgrad_compute``.
"""

from __future__ import annotations

from dataclasses import replace

from trine.compute import kind_of
from trine.compute.kinds import family_of
from trine.errors import PlanError
from trine.graph.workload import BACKWARD, FORWARD, Workload
from trine.parallel.schedules import BACKWARD_PASS, INPUT_PASS, WEIGHT_PASS, Pipeline, PipelineAction, PipelineSchedule
from trine.parallel.stages import WEIGHT_PART, Stages


class DeferredHead(PipelineSchedule):
    """A schedule whose last chunk computes some weight gradients in passes of their own, after all other passes.

    count: micro-batches that defer them, in the order of their backward passes; 0: all. An INPUT_PASS of the last chunk
    is a backward pass without the deferred operators, a WEIGHT_PASS these operators.
    """

    splits_backward = True

    def __init__(self, schedule: PipelineSchedule, count: int) -> None:
        if schedule.splits_backward:
            raise PlanError(
                f"defer_head_gradient cannot matter: the {schedule.name} schedule delays all weight gradients anyway"
            )
        self._schedule, self._count = schedule, count
        self.name, self.takes_virtual_stages = schedule.name, schedule.takes_virtual_stages
        self.alternates = schedule.alternates

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        last = pipeline.num_chunks - 1
        actions: list[PipelineAction] = []
        deferred: list[PipelineAction] = []
        for action in self._schedule.passes(rank, pipeline):
            if action[:2] == (BACKWARD_PASS, last) and (not self._count or len(deferred) < self._count):
                deferred.append(PipelineAction(WEIGHT_PASS, last, action.microbatch))
                action = action._replace(kind=INPUT_PASS)
            actions.append(action)
        return actions + deferred

    def rank_of(self, chunk: int, microbatch: int, pipeline: Pipeline) -> int:
        return self._schedule.rank_of(chunk, microbatch, pipeline)

    def chunks_of(self, rank: int, pipeline: Pipeline) -> tuple[int, ...]:
        return self._schedule.chunks_of(rank, pipeline)

    def check(self, pipeline: Pipeline) -> None:
        self._schedule.check(pipeline)


def with_deferred_head(workload: Workload, stages: Stages) -> Stages:
    """Return the stages with the weight gradient of the head marked as deferred.

    Raises PlanError if the workload has no head whose weight gradient is an operator of its own.
    """
    last = stages.num_stages - 1
    in_last = [op for op in workload.operators if op.phase == FORWARD and stages.stage_of[op.id] == last]
    products = [op for op in in_last if family_of(kind_of(op)) == "linear"]
    head = products[-1].id if products else -1
    gradients = [
        op.id for op in workload.operators
        if op.phase == BACKWARD and op.forward_id == head and stages.parts[op.id] == WEIGHT_PART
    ]  # fmt: skip
    if not gradients:
        raise PlanError(
            f"defer_head_gradient needs a head whose weight gradient is an operator of its own; {workload.name} has "
            "none in its last stage"
        )
    return replace(stages, deferred=frozenset(gradients))
