"""Programs in which nothing overlaps: what ``Plan(overlap="none")`` makes of them."""

from __future__ import annotations

from dataclasses import replace

from trine.graph.program import COMPUTE_STREAM, Compute, RankProgram, Step


def in_sequence(program: RankProgram) -> RankProgram:
    """The same steps; communication and compute of the rank take turns, in the order of the program.

    Every collective, message and host copy waits for the operators before it, and the operators after it wait for it.
    Those between two operators may run at the same time. What other ranks send arrives when it does.
    """
    steps: list[Step] = []
    last_compute: tuple[int, ...] = ()
    since: list[int] = []
    for number, step in enumerate(program.steps):
        if not isinstance(step, Compute):
            steps.append(_after(step, last_compute))
            since.append(number)
        elif step.stream == COMPUTE_STREAM:
            steps.append(_after(step, tuple(since)))
            last_compute = (number,)
            since.clear()
        else:
            steps.append(step)
    return replace(program, steps=tuple(steps))


def _after(step: Step, more: tuple[int, ...]) -> Step:
    return replace(step, after=tuple(dict.fromkeys((*step.after, *more)))) if more else step
