"""Programs in which communication and compute take turns: ``overlap="none"``."""

from __future__ import annotations

from dataclasses import replace

from trine.graph.program import COMPUTE_STREAM, Compute, RankProgram, Step


def in_sequence(program: RankProgram) -> RankProgram:
    """Return the program with communication and compute of the rank taking turns, in program order.

    Every collective, message and host copy waits for the operators before it, and the operators after it wait for it.
    Those between two operators may run at the same time. Messages from other ranks arrive independently.
    """
    steps: list[Step] = []
    last_compute: tuple[int, ...] = ()
    pending: list[int] = []
    for number, step in enumerate(program.steps):
        if not isinstance(step, Compute):
            steps.append(_wait_for(step, last_compute))
            pending.append(number)
        elif step.stream == COMPUTE_STREAM:
            steps.append(_wait_for(step, tuple(pending)))
            last_compute = (number,)
            pending.clear()
        else:
            steps.append(step)
    return replace(program, steps=tuple(steps))


def _wait_for(step: Step, dependencies: tuple[int, ...]) -> Step:
    return step._replace(after=tuple(dict.fromkeys((*step.after, *dependencies)))) if dependencies else step
