"""Small transformers and the bytes sent by a plan's programs, for tests of the forms of parallelism."""

from __future__ import annotations

from collections import Counter
from functools import cache

import trine
from trine.compute import make_compute
from trine.graph.grid import RankGrid
from trine.graph.program import Collective, Job, RankProgram, Send
from trine.graph.workload import Workload
from trine.parallel.build import BuildReport, build_job
from trine.parallel.plan import Plan
from trine.software import Software

#: Bytes that a rank sends in a collective of S bytes over n ranks, in units of S/n (docs/reference/collectives.md).
SENT = {
    "all_reduce": lambda n: 2 * (n - 1),
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: n - 1,
    "all_to_all": lambda n: n - 1,
    "shift": lambda n: n,
}


@cache
def model(
    name: str = "llama-3-8b", layers: int = 2, sequence: int = 512, batch: int = 2, times: str = "tables"
) -> Workload:
    return trine.synthesize(
        name, gpu="h100-sxm", layers=layers, sequence=sequence, batch=batch, software="none", times=times
    )


def build(workload: Workload, plan: Plan, software: Software | None = None) -> tuple[Job, BuildReport]:
    return build_job(workload, plan.filled(), make_compute("auto", workload), software=software)


def collectives(program: RankProgram, *kinds: str, axis: str | None = None) -> list[Collective]:
    return [
        step
        for step in program.steps
        if isinstance(step, Collective) and (not kinds or step.kind in kinds) and axis in (None, step.axis)
    ]


def payloads(program: RankProgram) -> Counter[tuple[str, str]]:
    """Return the bytes of collectives by kind and axis."""
    found: Counter[tuple[str, str]] = Counter()
    for step in collectives(program):
        found[step.kind, step.axis] += step.size_bytes
    return found


def sent_bytes(job: Job, program: RankProgram, axis: str | None = None) -> float:
    """Return the bytes that one rank sends in collectives and messages along ``axis`` (None: all axes)."""
    grid, total = RankGrid(job.axes), 0.0
    for step in program.steps:
        if isinstance(step, Collective) and axis in (None, step.axis):
            n = grid.size(step.axis)
            total += SENT[step.kind](n) * step.size_bytes / n
        elif isinstance(step, Send) and axis in (None, step.peer.axis):
            total += step.size_bytes
    return total


def weight_bytes(workload: Workload) -> int:
    return sum(parameter.size_bytes for parameter in workload.parameters)
