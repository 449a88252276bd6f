"""Memory of a job from its rank programs alone: trine simulates nothing and applies the changes in program order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trine.graph.program import LAUNCH_STREAM, Compute, Job, MemoryChange, RankProgram
from trine.graph.workload import SYNTHESISED
from trine.parallel.program_parts import memory_table
from trine.parallel.schedules import known_order
from trine.results.memory import MemoryFacts, MemoryUse, by_category, use_of
from trine.results.peaks import peak_of_columns
from trine.training.memory_facts import facts_of

if TYPE_CHECKING:
    from trine.compute.launch import LaunchCosts
    from trine.compute.resize import Split
    from trine.compute.roofline import Duration
    from trine.graph.workload import Operator, Workload
    from trine.parallel.plan import Plan
    from trine.software.profile import Software


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemoryUse:
    """Peak memory of the ranks of one pipeline stage. by_category: allocated bytes at the peak; step: the program step
    of the peak, -1 if it precedes the first."""

    stage: int
    use: MemoryUse
    by_category: dict[str, int]
    step: int


class NoTimes:
    """A compute model that gives every operator zero time: memory depends only on their order."""

    name = "no time"
    notes: tuple[str, ...] = ()

    def duration(self, operator: Operator, split: Split) -> Duration:
        from trine.compute.roofline import Duration

        return Duration(0, "assumed")

    def fit_report(self) -> None:
        return None


def stage_programs(
    workload: Workload, plan: Plan, software: Software | None = None, stages: Sequence[int] | None = None
) -> dict[int, RankProgram]:
    """Return the programs of ``stages`` (None: all), with only the micro-batches that can change the peak memory."""
    from trine.compute import make_compute
    from trine.parallel.constraints import LayoutFacts, resolve_layout
    from trine.parallel.job import JobContext
    from trine.parallel.stage import StageBuilder

    plan, _ = resolve_layout(plan, software, LayoutFacts(workload))
    needs_times = plan.pp > 1 and not plan.has_cuts and plan.balance == "time"
    model = make_compute("auto", workload) if needs_times else NoTimes()
    launch = recorded_launches(workload, software)
    context = JobContext(workload, shortened(plan, workload.batch), model, launch, software)
    return {stage: StageBuilder(context, stage, False).build() for stage in (stages or range(plan.pp))}


def recorded_launches(workload: Workload, software: Software | None) -> LaunchCosts | None:
    """Return the kernel launches if the profile holds blocks for collectives (record_stream), else None."""
    if software is None or not software.memory.record_streams or workload.format != SYNTHESISED:
        return None
    from trine.compute.launch import software_launches

    return software_launches(workload, software)


def shortened(plan: Plan, batch: int) -> Plan:
    """Return the plan with fewer micro-batches if further ones cannot raise the peak.

    With 1F1B a stage holds at most one micro-batch per stage (interleaved: one round more); each further micro-batch
    reuses the memory of an earlier one. GPipe holds all. Deferred weight gradients of the head keep the tensors of the
    micro-batches that defer them. A plan with ``replica_batches`` is returned unchanged.
    """
    size, samples, deferred = plan.micro_batch, plan.batch or batch, plan.defer_head_gradient
    if (
        size is None
        or plan.replica_batches
        or plan.steps > 1
        or deferred == 0
        or (plan.pp > 1 and not known_order(plan.schedule).alternates)
    ):
        return plan
    if plan.pp == 1:
        limit = 2
    elif plan.virtual_stages == 1:
        limit = plan.pp + 2
    else:
        limit = 4 * plan.pp
    limit += -(-(deferred or 0) // plan.pp) * plan.pp
    return replace(plan, batch=min(samples, limit * size))


def program_use(program: RankProgram, facts: MemoryFacts, stage: int = 0, capacity_bytes: int = 0) -> StageMemoryUse:
    """Return the peak of a program, applying its memory changes in program order."""
    table = memory_table(program.memory)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    columns = table[:, 2], table[:, 3], table[:, 4]
    resident, times = program.resident_bytes, None
    if program.clocks:
        times = np.array(_order_times(program, in_order(program)), np.int64)
    peak = peak_of_columns(columns, resident, facts.rounding_bytes, facts.late(resident), times)
    return StageMemoryUse(
        stage=stage,
        use=use_of(peak.allocated_bytes, peak.reserved_bytes, facts, capacity_bytes),
        by_category=by_category(peak.held),
        step=int(table[peak.index, 0]) if peak.index >= 0 else -1,
    )


def program_uses(
    job: Job, facts: MemoryFacts, memory_bytes: Callable[[Sequence[int]], Sequence[int]]
) -> list[MemoryUse]:
    """Return the memory use of a rank of each program; memory_bytes: returns the GPU memory of ranks."""
    first_ranks = np.unique(np.asarray(job.program_of), return_index=True)[1]
    pairs = zip(job.programs, memory_bytes(first_ranks.tolist()), strict=True)
    return [program_use(program, facts, capacity_bytes=capacity).use for program, capacity in pairs]


def _order_times(program: RankProgram, changes: Sequence[MemoryChange]) -> list[int]:
    """Return the times of ``changes`` in program order; the program holds blocks for collectives.

    Without durations, trine assumes that the launching thread is ahead of the GPU by its whole launch queue, so blocks
    stay longest. The time of a step is its number, from 1.
    """
    waited, latest = [0], 0
    for step in program.steps:
        if isinstance(step, Compute) and step.stream == LAUNCH_STREAM:
            latest = max((latest, *(index + 1 for index in step.after)))
        waited.append(latest)
    times = []
    for change in changes:
        clock = program.clocks[change.step]
        times.append(max(waited[clock.launch + 1], clock.behind + 1) if change.delta_bytes > 0 else change.user + 1)
    return times


def in_order(program: RankProgram) -> list[MemoryChange]:
    """Return the memory changes in program order: at each step, changes at its start come before changes at its end."""
    return sorted(program.memory, key=lambda change: (change.step, change.at_end))


def rank_memory(
    workload: Workload,
    plan: Plan,
    software: Software | None = None,
    *,
    stages: Sequence[int] | None = None,
    capacity_bytes: int = 0,
) -> tuple[StageMemoryUse, ...]:
    """Return the peak memory of the ranks of each pipeline stage (or of ``stages``), from their programs alone."""
    programs, facts = stage_programs(workload, plan, software, stages), facts_of(software, plan, workload)
    return tuple(program_use(program, facts, stage, capacity_bytes) for stage, program in programs.items())
