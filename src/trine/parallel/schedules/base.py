"""What a pipeline schedule is: for each rank of the pipeline, its passes in order."""

from __future__ import annotations

from typing import NamedTuple

from trine.errors import PlanError

#: Kinds of passes: forward; backward whole; or backward in two parts, the gradients of activations (which other stages
#: wait for) and those of weights (which nobody waits for before the optimizer).
FORWARD_PASS, BACKWARD_PASS, INPUT_PASS, WEIGHT_PASS = range(4)
PASS_NAMES = ("forward", "backward", "input gradient", "weight gradient")


class PipelineAction(NamedTuple):
    """One micro-batch through one of the model's chunks, which count from its first operator: 0, 1, ...

    ``joined``: it runs together with the pass before it, which is of another micro-batch and not joined itself: their
    operators alternate, and what they send leaves when both have ended.
    """

    kind: int
    chunk: int
    microbatch: int
    joined: bool = False

    def __str__(self) -> str:
        return f"{PASS_NAMES[self.kind]} pass of chunk {self.chunk} on micro-batch {self.microbatch}"


class Pipeline(NamedTuple):
    """The shape of a pipeline: ranks, micro-batches of a step, chunks that each rank holds, and whether it trains."""

    num_ranks: int
    num_microbatches: int
    virtual_stages: int = 1
    backward: bool = True

    @property
    def num_chunks(self) -> int:
        """Consecutive parts into which the model is cut."""
        return self.num_ranks * self.virtual_stages


class PipelineSchedule:
    """An order of passes. A schedule overrides :meth:`passes`, and what else is not as it is here.

    splits_backward: backward passes may be INPUT_PASS and, later, WEIGHT_PASS instead of BACKWARD_PASS.
    takes_virtual_stages: whether a rank may hold several chunks.
    """

    name = ""
    splits_backward = False
    takes_virtual_stages = False

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        """The passes of one rank of the pipeline, in order.

        Each chunk that the rank holds runs each micro-batch that comes to it once forward and, when training, once
        backward after it; where backward is split, the input part before the weight part.
        """
        raise NotImplementedError

    def rank_of(self, chunk: int, microbatch: int, pipeline: Pipeline) -> int:
        """The rank that runs a micro-batch through a chunk: chunk c sits on rank c mod ranks."""
        del microbatch
        return chunk % pipeline.num_ranks

    def chunks_of(self, rank: int, pipeline: Pipeline) -> tuple[int, ...]:
        """The chunks that a rank holds."""
        return tuple(range(rank, pipeline.num_chunks, pipeline.num_ranks))

    def check(self, pipeline: Pipeline) -> None:
        """Raise PlanError, with the reason, for a shape that the schedule has no order for."""
        if pipeline.virtual_stages > 1 and not self.takes_virtual_stages:
            raise PlanError(
                f"the {self.name} schedule gives each rank one stage, not {pipeline.virtual_stages} virtual stages: "
                "use the interleaved schedule"
            )
