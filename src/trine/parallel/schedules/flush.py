"""Schedules with one stage a rank and whole backward passes: GPipe and 1F1B."""

from __future__ import annotations

from trine.errors import PlanError
from trine.parallel.schedules import base
from trine.parallel.schedules.base import BACKWARD_PASS, FORWARD_PASS, Pipeline, PipelineAction, PipelineSchedule


class GPipe(PipelineSchedule):
    """All forward passes, then all backward passes in the same order of micro-batches.

    Source: Huang et al., GPipe, 2019, Figure 2c; there backward runs in reverse order, in PyTorch's ScheduleGPipe and
    here it does not. The time of equal micro-batches is the same.
    """

    name = "gpipe"

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        kinds = (FORWARD_PASS, BACKWARD_PASS) if pipeline.backward else (FORWARD_PASS,)
        return [PipelineAction(kind, rank, m) for kind in kinds for m in range(pipeline.num_microbatches)]


class OneFOneB(PipelineSchedule):
    """Warm up with one forward pass per later stage, then alternate one forward with one backward.

    Source: Narayanan et al., PipeDream-Flush as in Megatron-LM (2021), Figure 4 top. It holds at most
    ``num_ranks - rank`` micro-batches' activations instead of all of them.
    """

    name = "1f1b"

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        count = pipeline.num_microbatches
        forward = [PipelineAction(FORWARD_PASS, rank, m) for m in range(count)]
        if not pipeline.backward:
            return forward
        backward = [PipelineAction(BACKWARD_PASS, rank, m) for m in range(count)]
        return alternate(forward, backward, min(pipeline.num_ranks - 1 - rank, count))


def alternate(forward: list[PipelineAction], backward: list[PipelineAction], warmup: int) -> list[PipelineAction]:
    """Return ``warmup`` forward passes, then forward and backward in turn, then the remaining backward passes."""
    steady = [action for pair in zip(forward[warmup:], backward, strict=False) for action in pair]
    return [*forward[:warmup], *steady, *backward[len(forward) - warmup :]]


GPIPE, ONE_F_ONE_B = GPipe(), OneFOneB()


# Interleaved 1F1B: each rank holds several chunks of the model, which makes the bubble shorter.


class Interleaved(PipelineSchedule):
    """1F1B over chunks: micro-batches pass through all chunks of a rank in groups, one micro-batch per pipeline rank.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (Megatron-LM), SC 2021,
    section 2.2 and Figure 4 bottom. A rank warms up with 2 (p - 1 - rank) + (v - 1) p forward passes. It needs
    micro-batches that are a multiple of the ranks, as Megatron-LM did then.
    """

    name = "interleaved"
    takes_virtual_stages = True

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        ranks, chunks = pipeline.num_ranks, pipeline.virtual_stages
        places = [
            (first + m, chunk)
            for first in range(0, pipeline.num_microbatches, ranks)
            for chunk in range(chunks)
            for m in range(ranks)
        ]
        forward = [PipelineAction(FORWARD_PASS, chunk * ranks + rank, m) for m, chunk in places]
        if not pipeline.backward:
            return forward
        backward = [PipelineAction(BACKWARD_PASS, (chunks - 1 - chunk) * ranks + rank, m) for m, chunk in places]
        warmup = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks
        return alternate(forward, backward, min(warmup, len(forward)))

    def check(self, pipeline: Pipeline) -> None:
        if pipeline.virtual_stages < 2:
            raise PlanError("the interleaved schedule needs 2 or more virtual stages a rank; with one it is 1f1b")
        if pipeline.num_microbatches % pipeline.num_ranks:
            raise PlanError(
                f"the interleaved schedule sends micro-batches in groups of as many as there are pipeline ranks, so "
                f"{pipeline.num_microbatches} micro-batches on {pipeline.num_ranks} ranks cannot be: take a multiple"
            )


INTERLEAVED = Interleaved()


# Zero-bubble schedules: weight gradients, which no rank waits for, fill the pipeline bubble.


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


ZB_H1 = ZeroBubbleH1()
