"""What a plan and its software say about a job's memory, besides the rank programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common.precision import HALVES
from trine.results.memory import MemoryFacts

if TYPE_CHECKING:
    from trine.graph.workload import Workload
    from trine.parallel.plan import Plan
    from trine.software.profile import Software


def facts_of(software: Software | None, plan: Plan, workload: Workload) -> MemoryFacts:
    """Return a profile's memory facts besides tensors, for a plan's communicators and a workload's weights.

    With half-precision weights, two thirds of the optimizer state are moments; four fifths with 16-bit remainders.
    """
    if software is None:
        return MemoryFacts()
    style, late = software.memory, software.memory.states == "first-step"
    is_half = any(workload.tensors[p.weight].dtype in HALVES for p in workload.parameters[:1])
    state_blocks = max(2 * len(workload.parameters) // plan.pp, 1) if late else 0
    if is_half:
        late_states = 4 / 5 if software.operators.master == "remainder" else 2 / 3
    else:
        late_states = 1.0
    return MemoryFacts(
        rounding_bytes=style.rounding_bytes,
        fragmentation=style.fragmentation,
        outside_bytes=style.context_bytes + num_communicators(plan) * style.communicator_bytes,
        error=style.error,
        software=software.name,
        state_blocks=state_blocks,
        late_states=late_states,
        expandable=style.expandable_segments,
    )


def num_communicators(plan: Plan) -> int:
    """Return the number of communicators of a rank."""
    return sum(ways > 1 for ways in (plan.dp, plan.tp, plan.pp, plan.cp, plan.ep)) + (
        plan.expert_tp not in (1, plan.tp)
    )
