"""The check of pipeline schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trine.errors import InputError
from trine.model.program import PHASE_BACKWARD, PHASE_FORWARD
from trine.parallel.schedules import Passes, PipelineSchedule
from trine.testing.require import require

MAX_STAGES, MAX_MICROBATCHES = 6, 9


def check_schedule(schedule: PipelineSchedule, *, in_flight: Callable[[int, int, int], int] | None = None) -> None:
    """Check a pipeline schedule with 1 to 6 stages and 1 to 9 micro-batches, with and without a backward pass.

    Every stage runs each micro-batch once each way, backward after forward, the same each time. All stages together
    end: no stage waits for ever for what another sends. ``in_flight`` gives, for (stage, num_stages, num_microbatches),
    the most micro-batches whose activations the schedule promises to hold at a time; without it that is not bounded.
    """
    for num_stages in range(1, MAX_STAGES + 1):
        for num_microbatches in range(1, MAX_MICROBATCHES + 1):
            for backward in (True, False):
                where = f"{num_stages} stages, {num_microbatches} micro-batches" + ("" if backward else ", no backward")
                passes = []
                for stage in range(num_stages):
                    try:
                        order = schedule(stage, num_stages, num_microbatches, backward=backward)
                        again = schedule(stage, num_stages, num_microbatches, backward=backward)
                    except InputError as error:
                        raise AssertionError(f"{where}, stage {stage}: {error}") from error
                    require(list(order) == list(again), f"{where}, stage {stage}: another order when asked again")
                    _require_passes(list(order), num_microbatches, backward, f"{where}, stage {stage}")
                    if in_flight is not None and backward:
                        promised = in_flight(stage, num_stages, num_microbatches)
                        _require_in_flight(list(order), promised, f"{where}, stage {stage}")
                    passes.append(list(order))
                _require_ends(passes, where)


def _require_passes(order: Passes, num_microbatches: int, backward: bool, where: str) -> None:
    """The passes of one stage are complete, and each comes after what it needs of the same stage."""
    phases = (PHASE_FORWARD, PHASE_BACKWARD) if backward else (PHASE_FORWARD,)
    wanted = {(phase, m) for phase in phases for m in range(num_microbatches)}
    for one in order:
        require(one in wanted, f"{where}: {one!r} is no (phase, micro-batch) of this pipeline")
    position = {one: i for i, one in enumerate(order)}
    for phase, m in sorted(wanted):
        times = order.count((phase, m))
        require(times == 1, f"{where}: the {_pass_name(phase, m)} is there {times} times")
    if not backward:
        return
    for m in range(num_microbatches):
        require(
            position[PHASE_FORWARD, m] < position[PHASE_BACKWARD, m],
            f"{where}: the {_pass_name(PHASE_BACKWARD, m)} comes before the forward pass",
        )


def _require_in_flight(order: Passes, promised: int, where: str) -> None:
    """Count micro-batches between their forward and their backward pass."""
    held = 0
    for phase, m in order:
        held += 1 if phase == PHASE_FORWARD else -1
        require(
            held <= promised,
            f"{where}: {held} micro-batches in flight at the {_pass_name(phase, m)}, promised were {promised} at most",
        )


def _require_ends(passes: Sequence[Passes], where: str) -> None:
    """Run all stages, one pass of a stage at a time, until all are done or all wait."""
    done: set[tuple[int, int, int]] = set()
    at = [0] * len(passes)
    while True:
        startable = [
            stage
            for stage, order in enumerate(passes)
            if at[stage] < len(order) and all(need in done for need in _needs(stage, *order[at[stage]], len(passes)))
        ]
        if not startable:
            break
        for stage in startable:
            done.add((stage, *passes[stage][at[stage]]))
            at[stage] += 1
    waiting = [
        f"stage {stage} for the {_pass_name(*order[at[stage]])}"
        for stage, order in enumerate(passes)
        if at[stage] < len(order)
    ]
    require(not waiting, f"{where}: the pipeline deadlocks; there wait {', '.join(waiting)}")


def _needs(stage: int, phase: int, m: int, num_stages: int) -> Iterator[tuple[int, int, int]]:
    """What a pass waits for on other stages."""
    if phase == PHASE_FORWARD and stage > 0:
        yield stage - 1, PHASE_FORWARD, m
    if phase == PHASE_BACKWARD and stage < num_stages - 1:
        yield stage + 1, PHASE_BACKWARD, m


def _pass_name(phase: int, microbatch: int) -> str:
    return f"{'forward' if phase == PHASE_FORWARD else 'backward'} pass of micro-batch {microbatch}"
