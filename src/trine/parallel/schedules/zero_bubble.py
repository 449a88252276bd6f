"""Zero-bubble schedules: weight gradients, which no rank waits for, fill the pipeline bubble."""

from __future__ import annotations

from trine.parallel.schedules import base
from trine.parallel.schedules.base import Pipeline, PipelineAction, PipelineSchedule
from trine.parallel.schedules.flush import ONE_F_ONE_B


class ZeroBubbleH1(PipelineSchedule):
    """ZB-H1: 1F1B, except that rank r runs weight gradients r micro-batches late.

    All ranks then have equally many micro-batches in flight (1F1B's number on its first rank), and the last rank's
    input gradients reach the first rank earlier.
    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.2 (handcrafted schedule ZB-H1).
    """

    name = "zb-h1"
    splits_backward = True

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        actions: list[PipelineAction] = []
        late = min(rank, pipeline.num_microbatches)
        for action in ONE_F_ONE_B.passes(rank, pipeline):
            if action.kind != base.BACKWARD_PASS:
                actions.append(action)
                continue
            actions.append(action._replace(kind=base.INPUT_PASS))
            if action.microbatch >= late:
                actions.append(PipelineAction(base.WEIGHT_PASS, rank, action.microbatch - late))
        if not pipeline.backward:
            return actions
        count = pipeline.num_microbatches
        return actions + [PipelineAction(base.WEIGHT_PASS, rank, m) for m in range(count - late, count)]

    def held(self, rank: int, pipeline: Pipeline) -> int:
        """Table 2 of the source."""
        return min(pipeline.num_ranks, pipeline.num_microbatches)


ZB_H1 = ZeroBubbleH1()
