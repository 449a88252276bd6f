"""What the readers of Chakra traces can and cannot take: errors and notes, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trine.errors import PlanError
from trine.formats.chakra.schema import COLLECTIVES
from trine.graph.program import COMPUTE_STREAM, LAUNCH_STREAM, Collective, Compute, HostCopy, Job, Recv, Send, Step

TARGETS = ("astra-sim", "chakra")
#: Collectives that ASTRA-sim simulates; a broadcast it replays, at others it stops (Workload::issue_coll_comm).
_SIMULATED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_LARGEST_INT32 = 2**31 - 1


def check_target(job: Job, prefix: str, target: str) -> tuple[str, ...]:
    """Sentences about what the target does otherwise than trine.

    Raises
    ------
    PlanError: the first thing that it cannot express, and what to do about it.
    """
    steps = [step for program in job.programs for step in program.steps]
    _check_schema(steps)
    if target == "chakra":
        return ("durations in whole us carry their remainder on; duration_ps has them exactly", *_lost(steps))
    _check_astra_sim(steps, prefix)
    return (*_notes(job, steps), *_lost(steps))


def _check_schema(steps: list[Step]) -> None:
    known = set(COLLECTIVES.values())
    for step in steps:
        if not isinstance(step, Compute | Send | Recv | Collective | HostCopy):
            raise PlanError(f"a {type(step).__name__} step has no node type in Chakra")
        if isinstance(step, Collective) and step.kind not in known:
            raise PlanError(f"{step.kind} is no collective of Chakra: {', '.join(dict.fromkeys(COLLECTIVES.values()))}")


def _check_astra_sim(steps: list[Step], prefix: str) -> None:
    if "empty" in Path(prefix).name:
        raise PlanError(f"ASTRA-sim reads no file of groups whose path contains 'empty': rename {prefix!r}")
    for step in steps:
        if isinstance(step, HostCopy):
            raise PlanError(
                "ASTRA-sim's statistics stop at memory nodes: leave the input copies out (--inputs none, "
                "Plan(input_copy='none')) and offload nothing, or write for target 'chakra'"
            )
        if isinstance(step, Compute) and step.stream == LAUNCH_STREAM:
            raise PlanError(
                "ASTRA-sim's statistics stop at CPU operators: leave the launches out (--no-cpu, no launch costs), or "
                "write for target 'chakra'"
            )
        if isinstance(step, Collective) and step.kind not in _SIMULATED:
            raise PlanError(f"ASTRA-sim has no {step.kind}; it simulates {', '.join(_SIMULATED)}")


def _lost(steps: list[Step]) -> Iterator[str]:
    if any(isinstance(step, Send | Collective) and step.pressure_ppm for step in steps):
        yield "that communication slows compute down (--overlap modelled) has no place in the traces"


def _notes(job: Job, steps: list[Step]) -> Iterator[str]:
    yield "durations are whole us, remainders carried on, so that sums are right to 1 us (duration_ps is exact)"
    yield "no num_ops and tensor_size are known: roofline-enabled must be 0"
    collectives = [step for step in steps if isinstance(step, Collective)]
    if collectives:
        yield "ASTRA-sim chooses algorithms by its system file, and runs one collective or send of an NPU at a time"
    if any(step.kind == "broadcast" for step in collectives):
        yield "ASTRA-sim takes 1 ns for a broadcast"
    sizes = dict(job.axes)
    if any(len(_sized(step.axis, sizes)) < len([s for s in sizes.values() if s > 1]) for step in collectives):
        yield "ASTRA-sim makes a one-dimensional ring of every process group smaller than all ranks"
    streams = {step.stream for step in steps if isinstance(step, Compute)}
    if streams - {COMPUTE_STREAM}:
        yield f"ASTRA-sim runs the {len(streams)} streams of a GPU as one"


def _sized(axis: str, sizes: dict[str, int]) -> list[str]:
    return [name for name in axis.split("+") if sizes[name] > 1]
