"""Memory of a job from its rank programs alone: nothing runs, changes of memory follow in the order of the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import MemoryChange, RankProgram
from trine.results.allocator import RESIDENT, CachingAllocator
from trine.software import MemoryStyle, Software

if TYPE_CHECKING:
    from trine.compute.resize import Split
    from trine.compute.roofline import Duration
    from trine.graph.workload import Operator, Workload
    from trine.parallel.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemoryUse:
    """What the ranks of one pipeline stage hold at most, in bytes.

    allocated: of tensors and workspaces, as torch.cuda.max_memory_allocated counts. reserved: by the modelled caching
    allocator, plus the profile's fragmentation. outside: CUDA context and communicators. by_category: of allocated, at
    its peak. step: of the program, at the peak (-1: before the first).
    """

    stage: int
    allocated_bytes: int
    reserved_bytes: int
    outside_bytes: int
    by_category: dict[str, int]
    step: int

    @property
    def total_bytes(self) -> int:
        """All that the GPU must have."""
        return self.reserved_bytes + self.outside_bytes


class _NoTime:
    """Operators that take no time: what memory depends on is their order."""

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
    """Programs of the asked pipeline stages (all if None), with as many micro-batches as memory can tell apart."""
    from trine.compute import make_compute
    from trine.parallel.job import JobContext
    from trine.parallel.stage import StageBuilder

    needs_times = plan.pp > 1 and not plan.cuts and plan.balance == "time"
    model = make_compute("auto", workload) if needs_times else _NoTime()
    context = JobContext(workload, shortened(plan, workload.batch), model, None, software)
    return {stage: StageBuilder(context, stage, False).build() for stage in (stages or range(plan.pp))}


def shortened(plan: Plan, batch: int) -> Plan:
    """The plan with fewer micro-batches, where more of them fill no more memory.

    With 1F1B a stage holds at most as many micro-batches as there are stages (interleaved: one round more); behind
    these every further one takes the place of another. GPipe holds all.
    """
    size, whole = plan.micro_batch, plan.batch or batch
    if size is None or plan.steps > 1 or (plan.pp > 1 and plan.schedule not in ("1f1b", "interleaved")):
        return plan
    most = 2 if plan.pp == 1 else plan.pp + 2 if plan.virtual_stages == 1 else 4 * plan.pp
    return replace(plan, batch=min(whole, most * size))


def program_use(program: RankProgram, style: MemoryStyle, communicators: int = 0, stage: int = 0) -> StageMemoryUse:
    """The peak of a program whose changes of memory follow in program order."""
    changes = in_order(program)
    held = list(program.resident_bytes)
    allocator = CachingAllocator(rounding=style.rounding_bytes)
    for i, size in enumerate(held):
        if size:
            allocator.take(RESIDENT + i, size)
    peak, best, step = allocator.allocated, list(held), -1
    for change in changes:
        if change.block < 0:
            held[change.category] += change.delta_bytes
            continue
        if change.delta_bytes > 0:
            allocator.take(change.block, change.delta_bytes)
        else:
            allocator.give(change.block)
        held[change.category] += change.delta_bytes
        if allocator.allocated > peak:
            peak, best, step = allocator.allocated, list(held), change.step
    return StageMemoryUse(
        stage=stage,
        allocated_bytes=peak,
        reserved_bytes=int(allocator.reserved * (1 + style.fragmentation)),
        outside_bytes=style.context_bytes + communicators * style.communicator_bytes,
        by_category=dict(zip(MEMORY_CATEGORIES, best, strict=True)),
        step=step,
    )


def in_order(program: RankProgram) -> list[MemoryChange]:
    """Changes of memory in the order in which the program makes them: starts of a step before its end."""
    return sorted(program.memory, key=lambda change: (change.step, change.at_end))


def num_communicators(plan: Plan) -> int:
    """Groups that a rank takes part in."""
    return sum(ways > 1 for ways in (plan.dp, plan.tp, plan.pp, plan.cp, plan.ep))


def rank_memory(
    workload: Workload, plan: Plan, software: Software | None = None, *, stages: Sequence[int] | None = None
) -> tuple[StageMemoryUse, ...]:
    """What the ranks of each pipeline stage (or of ``stages``) hold at most, from their programs alone."""
    style = MemoryStyle() if software is None else software.memory
    programs = stage_programs(workload, plan, software, stages)
    count = num_communicators(plan)
    return tuple(program_use(program, style, count, stage) for stage, program in programs.items())
