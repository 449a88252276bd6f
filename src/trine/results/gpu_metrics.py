"""What GPUs of a load-store run did: CUs, wavefronts, requests, operations. Pure functions over the records.

Utilisation is busy time / time of the run. *Occupied* is a CU while it has a workgroup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trine.arrays import Int64
from trine.gpu.program import DATA_OPS, OP_NAMES
from trine.gpu.records import STATE_NAMES
from trine.results.intervals import lengths, merge, sum_by_group

if TYPE_CHECKING:
    from trine.results.gpu_result import GpuResult

MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """What one simulated GPU did.

    rank: that it was simulated as; stands_for: so many ranks. start_ps, end_ps: of its first and last workgroup, -1:
    none ran. state_ps: wavefront time in each of STATE_NAMES. occupied_cus: that had a workgroup; occupied_ps: summed
    over them. load_latency_ps: sum over the loads, from issue to answer. wakeups: of wavefronts by a monitor;
    spurious_wakeups: of these those that found too little; monitor_full: acquires that found no room in its table. The
    others are counts of requests.
    """

    rank: int
    stands_for: int
    start_ps: int
    end_ps: int
    state_ps: tuple[int, ...]
    workgroups: int
    occupied_cus: int
    occupied_ps: int
    loads: int
    stores: int
    acquires: int
    releases: int
    polls: int
    packets: int
    load_latency_ps: int
    l2_hits: int
    l2_misses: int
    flagged_loads: int
    wakeups: int
    spurious_wakeups: int
    monitor_full: int

    @property
    def flag_reads(self) -> int:
        """Acquires and loads of lines that carry their flag, each repetition one (docs/design/replay.md, counted)."""
        return self.acquires + self.flagged_loads

    @property
    def non_flag_reads(self) -> int:
        """All other loads."""
        return self.loads - self.flagged_loads

    @property
    def mean_load_latency_ps(self) -> float | None:
        return self.load_latency_ps / self.loads if self.loads else None

    @property
    def requests(self) -> int:
        return self.loads + self.stores + self.acquires + self.releases

    @property
    def mean_loads_under_way(self) -> float | None:
        """Little's law, from the first workgroup to the last: rate of loads x mean latency. None where nothing ran."""
        duration = self.end_ps - self.start_ps
        return self.load_latency_ps / duration if duration > 0 else None

    @property
    def l2_hit_rate(self) -> float | None:
        accesses = self.l2_hits + self.l2_misses
        return self.l2_hits / accesses if accesses else None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationUse:
    """Operations of one kind and label. amount: lines, bytes (dma), cycles (compute), counts (semaphores).

    time_ps: sum of their durations, from when the first wavefront takes one up to when the last is through with it.
    """

    kind: str
    label: str
    count: int
    amount: int
    time_ps: int
    longest_ps: int


def ends(start_ps: Int64, end_ps: Int64, now_ps: int) -> Int64:
    """Return when things ended: those that had begun when the run was stopped, then."""
    return np.where((start_ps >= 0) & (end_ps < 0), now_ps, end_ps)


def kernel_window(result: GpuResult) -> tuple[int, int]:
    """Return the start of the first workgroup and the end of the last, (0, 0) where none ran."""
    records = result.records
    began = records.workgroup_start_ps >= 0
    if not began.any():
        return 0, 0
    end = ends(records.workgroup_start_ps, records.workgroup_end_ps, records.end_ps)
    return int(records.workgroup_start_ps[began].min()), int(end[began].max())


def occupied(result: GpuResult) -> Int64:
    """Return how long each CU had a workgroup: int64[gpus, cus], ps."""
    records, cus = result.records, result.model.num_cus
    began = np.flatnonzero(records.workgroup_start_ps >= 0)
    end = ends(records.workgroup_start_ps, records.workgroup_end_ps, records.end_ps)[began]
    cu = result.shown.workgroup_gpu[began] * cus + records.workgroup_cu[began]
    count = len(records.ranks) * cus
    return lengths(merge(cu, records.workgroup_start_ps[began], end), count).reshape(-1, cus)


def workgroups_of_cus(result: GpuResult) -> Int64:
    """Return how many workgroups each CU ran: int64[gpus, cus]."""
    records, cus = result.records, result.model.num_cus
    began = records.workgroup_start_ps >= 0
    cu = result.shown.workgroup_gpu[began] * cus + records.workgroup_cu[began]
    return np.bincount(cu, minlength=len(records.ranks) * cus).reshape(-1, cus)


def gpu_uses(result: GpuResult) -> tuple[GpuUse, ...]:
    """Return what each simulated GPU did."""
    records, gpus = result.records, len(result.records.ranks)
    began = np.flatnonzero(records.workgroup_start_ps >= 0)
    gpu = result.shown.workgroup_gpu[began]
    first, last = np.full(gpus, np.iinfo(np.int64).max), np.full(gpus, -1, np.int64)
    np.minimum.at(first, gpu, records.workgroup_start_ps[began])
    np.maximum.at(last, gpu, ends(records.workgroup_start_ps, records.workgroup_end_ps, records.end_ps)[began])
    stands_for = np.bincount(records.gpu_of[records.gpu_of >= 0], minlength=gpus)  # -1: replayed
    busy, workgroups = occupied(result), np.bincount(gpu, minlength=gpus)
    names = ("loads", "stores", "acquires", "releases", "polls", "packets", "load_latency_ps", "l2_hits", "l2_misses",
             "flagged_loads", "wakeups", "spurious_wakeups", "monitor_full")  # fmt: skip
    return tuple(
        GpuUse(
            rank=int(records.ranks[g]),
            stands_for=int(stands_for[g]),
            start_ps=int(first[g]) if last[g] >= 0 else -1,
            end_ps=int(last[g]),
            state_ps=tuple(records.state_ps[g].sum(axis=0).tolist()),
            workgroups=int(workgroups[g]),
            occupied_cus=int(np.count_nonzero(busy[g])),
            occupied_ps=int(busy[g].sum()),
            **{name: int(getattr(records, name)[g]) for name in names},
        )
        for g in range(gpus)
    )


def state_times(result: GpuResult) -> dict[str, int]:
    """Return the time of all wavefronts of the simulated GPUs by what they did, in ps."""
    return dict(zip(STATE_NAMES, result.records.state_ps.sum(axis=(0, 1)).tolist(), strict=True))


def parts_of(times: list[int], whole: int = MILLION) -> list[int]:
    """Return integers proportional to ``times`` that sum to ``whole`` exactly; all 0 where all times are.

    What rounding down leaves goes to the largest remainders, of equal ones to the first.
    """
    total = sum(times)
    if not total:
        return [0] * len(times)
    parts = [time * whole // total for time in times]
    order = sorted(range(len(times)), key=lambda i: (-(times[i] * whole % total), i))
    for i in order[: whole - sum(parts)]:
        parts[i] += 1
    return parts


def percentages(times: list[int]) -> list[str]:
    """Return shares as text with one decimal that sum to 100.0 exactly."""
    return [f"{part / 10:.1f} %" for part in parts_of(times, 1000)]


def operation_uses(result: GpuResult) -> tuple[OperationUse, ...]:
    """Return the operations that began, by kind and label; those that took most time first."""
    records, program, ops = result.records, result.program, result.shown.op
    began = np.flatnonzero(records.op_start_ps >= 0)
    start = records.op_start_ps[began]
    duration = ends(records.op_start_ps, records.op_end_ps, records.end_ps)[began] - start
    kind = program.op_kind[ops[began]].astype(np.int64)
    key = kind * (len(program.labels) + 1) + program.op_label[ops[began]] + 1
    found, group = np.unique(key, return_inverse=True)
    count, longest = np.bincount(group, minlength=len(found)), np.zeros(len(found), np.int64)
    np.maximum.at(longest, group, duration)
    amount = sum_by_group(group, program.op_amount[ops[began]], len(found))
    time = sum_by_group(group, duration, len(found))
    uses = [
        OperationUse(
            kind=OP_NAMES[int(code) // (len(program.labels) + 1)],
            label=(*program.labels, "")[int(code) % (len(program.labels) + 1) - 1],
            count=int(count[i]),
            amount=int(amount[i]),
            time_ps=int(time[i]),
            longest_ps=int(longest[i]),
        )
        for i, code in enumerate(found)
    ]
    return tuple(sorted(uses, key=lambda use: (-use.time_ps, use.kind, use.label)))


def places(result: GpuResult) -> float:
    """Return how many requests an occupied CU can have in flight: its limit, or that of its wavefronts, if less."""
    occupied_ps = sum(gpu.occupied_ps for gpu in result.gpus)
    wavefronts = sum(sum(gpu.state_ps) for gpu in result.gpus) / occupied_ps if occupied_ps else 0.0
    return min(float(result.model.max_outstanding), wavefronts * unroll(result))


def waiting_places(result: GpuResult) -> float:
    """Return how many requests of an occupied CU the wavefronts that issue or wait for memory can have in flight."""
    occupied_ps = sum(gpu.occupied_ps for gpu in result.gpus)
    times = state_times(result)
    wavefronts = (times["memory"] + times["issue"]) / occupied_ps if occupied_ps else 0.0
    return min(float(result.model.max_outstanding), wavefronts * unroll(result))


def unroll(result: GpuResult) -> int:
    """Return the most requests of one wavefront in flight that any data operation allows."""
    program, ops = result.program, result.shown.op
    data = np.isin(program.op_kind[ops], DATA_OPS)
    said = program.op_unroll[ops[data]]
    return int(np.where(said > 0, said, result.model.unroll).max(initial=0)) or result.model.unroll
