"""Interleaved 1F1B: each rank holds several chunks of the model, which makes the bubble shorter."""

from __future__ import annotations

from trine.errors import PlanError
from trine.parallel.schedules.base import BACKWARD_PASS, FORWARD_PASS, Pipeline, PipelineAction, PipelineSchedule
from trine.parallel.schedules.flush import alternate


class Interleaved(PipelineSchedule):
    """1F1B over chunks: micro-batches pass through all chunks of a rank in groups, one micro-batch per pipeline rank.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (Megatron-LM), SC 2021,
    section 2.2 and Figure 4 bottom. A rank warms up with 2 (p - 1 - rank) + (v - 1) p forward passes. It needs
    micro-batches that are a multiple of the ranks, as Megatron-LM did then.
    """

    name = "interleaved"
    takes_virtual_stages = True
    alternates = True
    ends_backward = True

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

    def held(self, rank: int, pipeline: Pipeline) -> int:
        """Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022, section 4.2.3."""
        warmup = 2 * (pipeline.num_ranks - 1 - rank) + (pipeline.virtual_stages - 1) * pipeline.num_ranks
        return min(warmup + 1, pipeline.num_microbatches * pipeline.virtual_stages)

    def microbatch_multiple(self, num_ranks: int) -> int:
        return num_ranks

    def check(self, pipeline: Pipeline) -> None:
        if pipeline.virtual_stages < 2:
            raise PlanError("the interleaved schedule needs 2 or more virtual stages a rank; with one it is 1f1b")
        if pipeline.num_microbatches % pipeline.num_ranks:
            raise PlanError(
                f"the interleaved schedule sends micro-batches in groups of as many as there are pipeline ranks, so "
                f"{pipeline.num_microbatches} micro-batches on {pipeline.num_ranks} ranks do not divide evenly: "
                "take a multiple"
            )


INTERLEAVED = Interleaved()
