"""DualPipe: micro-batches enter the pipeline from both ends, and each rank holds one stage of each direction."""

from __future__ import annotations

from trine.errors import PlanError
from trine.parallel.schedules import base
from trine.parallel.schedules.base import Pipeline, PipelineAction, PipelineSchedule


class DualPipe(PipelineSchedule):
    """The bidirectional schedule of DeepSeek-V3.

    The model is cut into one chunk per rank. The first half of the micro-batches goes through chunk 0 on rank 0, chunk
    1 on rank 1, ...; the second half goes through chunk 0 on the last rank, chunk 1 on the rank before, .... So rank r
    holds chunks r and p - 1 - r, all weights exist twice, and the two copies sum their gradients.
    In the middle of the schedule, a forward and a backward pass of opposite directions run together, so each pass's
    communication overlaps with the other's compute.
    Source: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.2.1, Figure 5 and Table 2; numbers of passes as
    in the DualPipe repository (github.com/deepseek-ai/DualPipe, MIT licence).
    """

    name = "dualpipe"
    splits_backward = True
    joins_passes = True

    def passes(self, rank: int, pipeline: Pipeline) -> list[PipelineAction]:
        ranks = pipeline.num_ranks
        writer = _ActionWriter(rank, pipeline)
        if not pipeline.backward:
            return writer.write("F0 F1", pipeline.num_microbatches // 2)
        depth = min(rank, ranks - 1 - rank)  # distance from the nearer end, where its own direction enters
        inner = ranks // 2 - 1 - depth  # ranks between it and the middle
        writer.write("F0", 2 * inner)
        writer.write("F0 F1", depth + 1)
        writer.write("I1 W F1", inner)
        main = pipeline.num_microbatches // 2 - ranks + depth + 1
        if not inner:  # the two middle ranks have nothing to overlap in their first pair
            writer.write("F0 B1 F1+B0")
            main -= 1
        writer.write("F0+B1 F1+B0", main)
        writer.write("B1 F1+B0", inner)
        tail = ["B1", "B0"] * (depth + 1)
        writer.write(" ".join(tail[: depth + 1]))
        writer.write(" ".join(word.replace("B", "I") for word in tail[depth + 1 :]))
        writer.write("W I0", inner)
        return writer.write("W", depth + 1)

    def held(self, rank: int, pipeline: Pipeline) -> int:
        """Table 2 of the source."""
        return pipeline.num_ranks + 1

    def microbatch_multiple(self, num_ranks: int) -> int:
        return 2

    def rank_of(self, chunk: int, microbatch: int, pipeline: Pipeline) -> int:
        is_second = microbatch >= pipeline.num_microbatches // 2
        return pipeline.num_ranks - 1 - chunk if is_second else chunk

    def chunks_of(self, rank: int, pipeline: Pipeline) -> tuple[int, ...]:
        return tuple(sorted((rank, pipeline.num_ranks - 1 - rank)))

    def check(self, pipeline: Pipeline) -> None:
        super().check(pipeline)
        if pipeline.num_ranks % 2 or pipeline.num_microbatches % 2:
            raise PlanError(
                f"the dualpipe schedule works from both ends, so it needs an even number of pipeline ranks and of "
                f"micro-batches; got {pipeline.num_ranks} and {pipeline.num_microbatches}"
            )
        if pipeline.backward and pipeline.num_microbatches < 2 * pipeline.num_ranks:
            raise PlanError(
                f"the dualpipe schedule needs at least two micro-batches a rank: {2 * pipeline.num_ranks} on "
                f"{pipeline.num_ranks} ranks, got {pipeline.num_microbatches}"
            )


class _ActionWriter:
    """A builder of passes from words. F, B, I (input part) have a direction; 0 enters at this rank's pipeline end.
    W is the oldest pending weight part; passes joined by + run together.
    """

    def __init__(self, rank: int, pipeline: Pipeline) -> None:
        half = pipeline.num_microbatches // 2
        side = int(rank >= pipeline.num_ranks // 2)
        self._chunk = (rank, pipeline.num_ranks - 1 - rank)
        self._first_microbatch = (0, half)
        self._turn = (side, 1 - side)
        self._next_numbers = {(is_forward, direction): 0 for is_forward in (True, False) for direction in (0, 1)}
        self._late: list[PipelineAction] = []
        self._passes: list[PipelineAction] = []

    def write(self, words: str, times: int = 1) -> list[PipelineAction]:
        """Append ``words``, ``times`` times; return all passes up to now."""
        for word in words.split() * times:
            if word == "W":
                self._passes.append(self._late.pop(0))
            else:
                first, *second = (self._next_action(part) for part in word.split("+"))
                self._passes += [first, *(action._replace(joined=True) for action in second)]
        return self._passes

    def _next_action(self, word: str) -> PipelineAction:
        kind = {"F": base.FORWARD_PASS, "B": base.BACKWARD_PASS, "I": base.INPUT_PASS}[word[0]]
        direction = self._turn[int(word[1])]
        key = (kind == base.FORWARD_PASS, direction)
        number, self._next_numbers[key] = self._next_numbers[key], self._next_numbers[key] + 1
        action = PipelineAction(kind, self._chunk[direction], self._first_microbatch[direction] + number)
        if kind == base.INPUT_PASS:
            self._late.append(action._replace(kind=base.WEIGHT_PASS))
        return action


DUALPIPE = DualPipe()
