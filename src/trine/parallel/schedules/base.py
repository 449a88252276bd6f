"""The interface of a pipeline schedule: the ordered passes of each pipeline rank."""

from __future__ import annotations

from typing import NamedTuple

from trine.errors import PlanError

#: Kinds of passes: forward; full backward; or backward in two parts, activation gradients (other stages wait for them)
#: and weight gradients (only the optimizer waits for them).
FORWARD_PASS, BACKWARD_PASS, INPUT_PASS, WEIGHT_PASS = range(4)
PASS_NAMES = ("forward", "backward", "input gradient", "weight gradient")


class PipelineAction(NamedTuple):
    """One pass of a micro-batch through one of the model's chunks, numbered 0, 1, ... from its first operator.

    ``joined``: it overlaps with the previous pass, which belongs to another micro-batch and is not joined itself. Their
    operators alternate, and their messages are sent after both have ended.
    """

    kind: int
    chunk: int
    microbatch: int
    joined: bool = False

    def __str__(self) -> str:
        return f"{PASS_NAMES[self.kind]} pass of chunk {self.chunk} on micro-batch {self.microbatch}"


class Pipeline(NamedTuple):
    """The shape of a pipeline: ranks, micro-batches per step, chunks per rank, and whether it trains."""

    num_ranks: int
    num_microbatches: int
    virtual_stages: int = 1
    backward: bool = True

    @property
    def num_chunks(self) -> int:
        """Number of consecutive parts of the model."""
        return self.num_ranks * self.virtual_stages


class PipelineSchedule:
    """An order of passes. A schedule overrides :meth:`passes`, and other defaults if they do not apply.

    The record is complete: the search for layouts, memory and tests read its facts instead of names of schedules.

    splits_backward: backward passes may be INPUT_PASS and, later, WEIGHT_PASS instead of BACKWARD_PASS.
    takes_virtual_stages: whether a rank may hold several chunks.
    joins_passes: passes of two micro-batches may share the stream.
    alternates: after a warm-up, a rank runs one forward and one backward pass in turn (1F1B).
    ends_backward: the last operator of each rank is a backward operator that earlier stages wait for.
    """

    name = ""
    splits_backward = False
    takes_virtual_stages = False
    joins_passes = False
    alternates = False
    ends_backward = False

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        """Return the passes of one pipeline rank, in order.

        Each chunk of the rank runs each of its micro-batches once forward and, when training, once backward after that;
        with a split backward pass, the input part comes before the weight part.
        """
        raise NotImplementedError

    def held(self, rank: int, pipeline: Pipeline) -> int | None:
        """Return the most passes whose activations a rank holds at a time, as the source says; None: unknown."""
        del rank, pipeline
        return None

    def microbatch_multiple(self, num_ranks: int) -> int:
        """Return the number of which micro-batches have to be a multiple."""
        del num_ranks
        return 1

    def rank_of(self, chunk: int, microbatch: int, pipeline: Pipeline) -> int:
        """Return the rank that runs a micro-batch through a chunk: chunk c is on rank c mod ranks."""
        del microbatch
        return chunk % pipeline.num_ranks

    def chunks_of(self, rank: int, pipeline: Pipeline) -> tuple[int, ...]:
        """Return the chunks of a rank."""
        return tuple(range(rank, pipeline.num_chunks, pipeline.num_ranks))

    def check(self, pipeline: Pipeline) -> None:
        """Raise PlanError, with the reason, for a shape that the schedule does not support."""
        if pipeline.virtual_stages > 1 and not self.takes_virtual_stages:
            raise PlanError(
                f"the {self.name} schedule gives each rank one stage, not {pipeline.virtual_stages} virtual stages: "
                "use the interleaved schedule"
            )
