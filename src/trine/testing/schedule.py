"""The check of pipeline schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from trine.errors import InputError, PlanError
from trine.parallel.schedules import (
    BACKWARD_PASS,
    FORWARD_PASS,
    INPUT_PASS,
    PASS_NAMES,
    WEIGHT_PASS,
    Pipeline,
    PipelineAction,
    PipelineSchedule,
)
from trine.testing.plug_ins import require

MAX_RANKS, MAX_MICROBATCHES, MAX_VIRTUAL_STAGES = 6, 12, 3


def check_schedule(schedule: PipelineSchedule, *, in_flight: Callable[[int, Pipeline], int] | None = None) -> None:
    """Check a pipeline schedule on 1 to 6 ranks with 1 to 12 micro-batches and 1 to 3 virtual stages.

    Shapes that ``schedule.check`` rejects are skipped; at least one must remain. On the others, with and without a
    backward pass: each rank runs each micro-batch once forward through each chunk that holds it, and once backward
    after that; a split backward pass runs its input part before its weight part. The order must be reproducible, and
    all ranks together must finish without deadlock. ``in_flight`` returns, for (rank, shape), the most passes whose
    activations the schedule promises to hold at a time; without it there is no bound.
    """
    shapes = [shape for shape in _shapes() if _is_taken(schedule, shape)]
    require(any(shape.backward for shape in shapes), "every shape with a backward pass is refused")
    for shape in shapes:
        where = f"{shape.num_ranks} ranks, {shape.num_microbatches} micro-batches"
        where += f", {shape.virtual_stages} virtual stages" if shape.virtual_stages > 1 else ""
        where += "" if shape.backward else ", no backward"
        passes = [_passes(schedule, rank, shape, f"{where}, rank {rank}") for rank in range(shape.num_ranks)]
        for rank, order in enumerate(passes):
            _require_passes(schedule, order, rank, shape, f"{where}, rank {rank}")
            if in_flight is not None and shape.backward:
                _require_in_flight(order, in_flight(rank, shape), f"{where}, rank {rank}")
        _require_ends(passes, shape, where)


def _shapes() -> Iterator[Pipeline]:
    for num_ranks in range(1, MAX_RANKS + 1):
        for num_microbatches in range(1, MAX_MICROBATCHES + 1):
            for virtual_stages in range(1, MAX_VIRTUAL_STAGES + 1):
                for backward in (True, False):
                    yield Pipeline(num_ranks, num_microbatches, virtual_stages, backward)


def _is_taken(schedule: PipelineSchedule, shape: Pipeline) -> bool:
    try:
        schedule.check(shape)
    except PlanError:
        return False
    return True


def _passes(schedule: PipelineSchedule, rank: int, shape: Pipeline, where: str) -> list[PipelineAction]:
    try:
        order, again = list(schedule.passes(rank, shape)), list(schedule.passes(rank, shape))
    except InputError as error:
        raise AssertionError(f"{where}: {error}") from error
    require(order == again, f"{where}: another order when asked again")
    return order


def _require_passes(
    schedule: PipelineSchedule, order: Sequence[PipelineAction], rank: int, shape: Pipeline, where: str
) -> None:
    """Raise AssertionError unless one rank's passes are complete, each after the passes of this rank that it needs."""
    here = [
        (chunk, m)
        for chunk in schedule.chunks_of(rank, shape)
        for m in range(shape.num_microbatches)
        if schedule.rank_of(chunk, m, shape) == rank
    ]
    positions: dict[tuple[int, int, int], int] = {}
    for i, one in enumerate(order):
        require(one.kind in range(len(PASS_NAMES)), f"{where}: {one.kind!r} is no kind of pass")
        require((one.chunk, one.microbatch) in here, f"{where}: the {one} belongs to another rank, or to none")
        require((one.kind, one.chunk, one.microbatch) not in positions, f"{where}: the {one} is there twice")
        positions[one.kind, one.chunk, one.microbatch] = i
        alone = i == 0 or order[i - 1].joined or order[i - 1].microbatch == one.microbatch
        require(not (one.joined and alone), f"{where}: the {one} has nothing before it to run together with")
    for chunk, m in here:
        _require_once(schedule, positions, (chunk, m), shape, where)


def _require_once(
    schedule: PipelineSchedule,
    positions: dict[tuple[int, int, int], int],
    place: tuple[int, int],
    shape: Pipeline,
    where: str,
) -> None:
    """Check one micro-batch through one chunk: forward, then backward whole or in its two parts, in this order."""
    split = (INPUT_PASS, *place) in positions or (WEIGHT_PASS, *place) in positions
    backward = [INPUT_PASS, WEIGHT_PASS] if split else [BACKWARD_PASS]
    wanted = [FORWARD_PASS, *(backward if shape.backward else [])]
    for kind in range(len(PASS_NAMES)):
        is_there, name = (kind, *place) in positions, PipelineAction(kind, *place)
        require(is_there or kind not in wanted, f"{where}: the {name} is missing")
        require(not is_there or kind in wanted, f"{where}: the {name} is one too many")
    require(schedule.splits_backward or not split, f"{where}: a backward pass is split, and splits_backward is false")
    for before, after in pairwise(wanted):
        in_order = positions[before, *place] < positions[after, *place]
        require(in_order, f"{where}: the {PipelineAction(after, *place)} comes before the {PASS_NAMES[before]} pass")


def _require_in_flight(order: Sequence[PipelineAction], promised: int, where: str) -> None:
    """Check that the number of passes between forward and the end of backward stays within the promise."""
    held = 0
    for one in order:
        held += (one.kind == FORWARD_PASS) - (one.kind in (BACKWARD_PASS, WEIGHT_PASS))
        require(held <= promised, f"{where}: {held} in flight at the {one}, promised were {promised} at most")


def _require_ends(passes: Sequence[Sequence[PipelineAction]], shape: Pipeline, where: str) -> None:
    """Run all ranks, one pass (or two joined ones) of a rank at a time, until all are done or all wait."""
    done: set[tuple[bool, int, int]] = set()
    at = [0] * len(passes)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(passes):
            together = _next(order, at[rank])
            if together and all(need in done for one in together for need in _needs(one, shape)):
                done.update((one.kind == FORWARD_PASS, one.chunk, one.microbatch) for one in together if _gives(one))
                at[rank] += len(together)
                moved = True
    waiting = [f"rank {rank} for the {order[at[rank]]}" for rank, order in enumerate(passes) if at[rank] < len(order)]
    require(not waiting, f"{where}: the pipeline deadlocks; there wait {', '.join(waiting)}")


def _next(order: Sequence[PipelineAction], position: int) -> Sequence[PipelineAction]:
    return (
        order[position : position + 2]
        if any(p.joined for p in order[position + 1 : position + 2])
        else (order[position : position + 1])
    )


def _gives(one: PipelineAction) -> bool:
    """Return whether other ranks wait for the output of this pass."""
    return one.kind != WEIGHT_PASS


def _needs(one: PipelineAction, shape: Pipeline) -> Iterator[tuple[bool, int, int]]:
    """Yield the passes that a pass waits for: its neighbour's forward, or its own forward and the input gradient."""
    if one.kind == FORWARD_PASS and one.chunk > 0:
        yield True, one.chunk - 1, one.microbatch
    if one.kind in (BACKWARD_PASS, INPUT_PASS):
        yield True, one.chunk, one.microbatch
        if one.chunk < shape.num_chunks - 1:
            yield False, one.chunk + 1, one.microbatch
