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
        case = f"{shape.num_ranks} ranks, {shape.num_microbatches} micro-batches"
        case += f", {shape.virtual_stages} virtual stages" if shape.virtual_stages > 1 else ""
        case += "" if shape.backward else ", no backward"
        passes = [_passes(schedule, rank, shape, f"{case}, rank {rank}") for rank in range(shape.num_ranks)]
        for rank, order in enumerate(passes):
            _require_passes(schedule, order, rank, shape, f"{case}, rank {rank}")
            if in_flight is not None and shape.backward:
                _require_in_flight(order, in_flight(rank, shape), f"{case}, rank {rank}")
        _require_ends(passes, shape, case)


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


def _passes(schedule: PipelineSchedule, rank: int, shape: Pipeline, case: str) -> list[PipelineAction]:
    try:
        order, second = list(schedule.passes(rank, shape)), list(schedule.passes(rank, shape))
    except InputError as error:
        raise AssertionError(f"{case}: {error}") from error
    require(order == second, f"{case}: another order when asked again")
    return order


def _require_passes(
    schedule: PipelineSchedule, order: Sequence[PipelineAction], rank: int, shape: Pipeline, case: str
) -> None:
    """Raise AssertionError unless one rank's passes are complete, each after the passes of this rank that it needs."""
    local = [
        (chunk, m)
        for chunk in schedule.chunks_of(rank, shape)
        for m in range(shape.num_microbatches)
        if schedule.rank_of(chunk, m, shape) == rank
    ]
    positions: dict[tuple[int, int, int], int] = {}
    for i, action in enumerate(order):
        require(action.kind in range(len(PASS_NAMES)), f"{case}: {action.kind!r} is no kind of pass")
        require((action.chunk, action.microbatch) in local, f"{case}: the {action} belongs to another rank, or to none")
        require((action.kind, action.chunk, action.microbatch) not in positions, f"{case}: the {action} is there twice")
        positions[action.kind, action.chunk, action.microbatch] = i
        is_alone = i == 0 or order[i - 1].joined or order[i - 1].microbatch == action.microbatch
        require(not (action.joined and is_alone), f"{case}: the {action} has nothing before it to run together with")
    for chunk, m in local:
        _require_once(schedule, positions, (chunk, m), shape, case)


def _require_once(
    schedule: PipelineSchedule, positions: dict[tuple[int, int, int], int], place: tuple[int, int], shape: Pipeline,
    case: str,
) -> None:  # fmt: skip
    """Check one micro-batch through one chunk: forward, then backward whole or in its two parts, in this order."""
    split = (INPUT_PASS, *place) in positions or (WEIGHT_PASS, *place) in positions
    backward = [INPUT_PASS, WEIGHT_PASS] if split else [BACKWARD_PASS]
    expected = [FORWARD_PASS, *(backward if shape.backward else [])]
    for kind in range(len(PASS_NAMES)):
        is_there, name = (kind, *place) in positions, PipelineAction(kind, *place)
        require(is_there or kind not in expected, f"{case}: the {name} is missing")
        require(not is_there or kind in expected, f"{case}: the {name} is one too many")
    require(schedule.splits_backward or not split, f"{case}: a backward pass is split, and splits_backward is false")
    for before, after in pairwise(expected):
        in_order = positions[before, *place] < positions[after, *place]
        require(in_order, f"{case}: the {PipelineAction(after, *place)} comes before the {PASS_NAMES[before]} pass")


def _require_in_flight(order: Sequence[PipelineAction], promised: int, case: str) -> None:
    """Check that the number of passes between forward and the end of backward stays within the promise."""
    live = 0
    for action in order:
        live += (action.kind == FORWARD_PASS) - (action.kind in (BACKWARD_PASS, WEIGHT_PASS))
        require(live <= promised, f"{case}: {live} in flight at the {action}, promised were {promised} at most")


def _require_ends(passes: Sequence[Sequence[PipelineAction]], shape: Pipeline, case: str) -> None:
    """Run all ranks, one pass (or two joined ones) of a rank at a time, until all are done or all wait."""
    done: set[tuple[bool, int, int]] = set()
    pos = [0] * len(passes)
    progressed = True
    while progressed:
        progressed = False
        for rank, order in enumerate(passes):
            together = _next(order, pos[rank])
            if together and all(need in done for one in together for need in _needs(one, shape)):
                done.update((one.kind == FORWARD_PASS, one.chunk, one.microbatch) for one in together if _has_user(one))
                pos[rank] += len(together)
                progressed = True
    waiting = [f"rank {rank} for the {order[pos[rank]]}" for rank, order in enumerate(passes) if pos[rank] < len(order)]
    require(not waiting, f"{case}: the pipeline deadlocks; there wait {', '.join(waiting)}")


def _next(order: Sequence[PipelineAction], position: int) -> Sequence[PipelineAction]:
    is_joined = any(p.joined for p in order[position + 1 : position + 2])
    return order[position : position + 2] if is_joined else (order[position : position + 1])


def _has_user(action: PipelineAction) -> bool:
    """Return whether other ranks wait for the output of this pass."""
    return action.kind != WEIGHT_PASS


def _needs(action: PipelineAction, shape: Pipeline) -> Iterator[tuple[bool, int, int]]:
    """Yield the passes that a pass waits for: its neighbour's forward, or its own forward and the input gradient."""
    if action.kind == FORWARD_PASS and action.chunk > 0:
        yield True, action.chunk - 1, action.microbatch
    if action.kind in (BACKWARD_PASS, INPUT_PASS):
        yield True, action.chunk, action.microbatch
        if action.chunk < shape.num_chunks - 1:
            yield False, action.chunk + 1, action.microbatch
