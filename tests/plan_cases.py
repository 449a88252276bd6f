"""Bundled plans, and a machine to time them: separate wires for each pair of ranks and between ranks and switches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trine.collectives.schedule import ExpandedSchedule
from trine.engine import run
from trine.gpu.plans import plan_schedule, plan_switches
from trine.gpu.plans.plan import KernelPlan
from trine.graph.builder import TaskGraphBuilder

DATA = Path(__file__).parent / "data" / "mscclpp"
PLANS = sorted(path.name for path in DATA.iterdir() if path.suffix in (".json", ".xml"))
BYTES_PER_S = 100 * 10**9
LATENCY_PS = 500_000


def links_of(plan: KernelPlan) -> list[tuple[int, int]]:
    """Return the ends of every wire."""
    ranks = range(plan.num_ranks)
    mesh = [(a, b) for a in ranks for b in ranks if a != b]
    switches = [(plan.num_ranks + n, members) for n, members in enumerate(plan_switches(plan))]
    up = [(rank, switch) for switch, members in switches for rank in members]
    return mesh + up + [(switch, rank) for rank, switch in up]


def simulate(plan: KernelPlan, size_bytes: int) -> tuple[int, ExpandedSchedule]:
    """Return the end of the last rank on the uncontended machine in ps, and the schedule."""
    schedule, wires = plan_schedule(plan, size_bytes), links_of(plan)
    number = {ends: i for i, ends in enumerate(wires)}
    builder = TaskGraphBuilder([BYTES_PER_S] * len(wires), [LATENCY_PS] * len(wires))
    for transfer in range(schedule.num_transfers):
        ends = int(schedule.src[transfer]), int(schedule.dst[transfer])
        low, high = schedule.predecessor_ptr[transfer : transfer + 2]
        before = schedule.predecessor_idx[low:high].tolist()
        builder.transfer(*ends, [number[ends]], int(schedule.size_bytes[transfer]), after=before)
    ended = [
        builder.join(np.unique(schedule.completion_idx[low:high]).tolist(), rank=rank)
        for rank, (low, high) in enumerate(zip(schedule.completion_ptr[:-1], schedule.completion_ptr[1:], strict=True))
    ]
    records = run(builder.build(), engine="reference")
    return max(int(records.end_ps[task]) for task in ended), schedule


def bytes_of_links(schedule: ExpandedSchedule) -> dict[tuple[int, int], int]:
    """Return the bytes over each wire that carries any."""
    moved: dict[tuple[int, int], int] = {}
    for a, b, size in zip(schedule.src.tolist(), schedule.dst.tolist(), schedule.size_bytes.tolist(), strict=True):
        moved[a, b] = moved.get((a, b), 0) + size
    return {ends: size for ends, size in moved.items() if size}
