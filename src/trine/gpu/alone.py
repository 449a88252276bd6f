"""One rank of a run of all, as a replay of it would show it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trine.gpu.program import kernels_of_rank, members
from trine.gpu.run import Fold, GpuRun
from trine.graph.assembler import take_alone

_OF_GPU = (
    "state_ps", "resource_data", "resource_control", "resource_busy_ps", "loads", "stores", "acquires", "releases",
    "polls", "load_latency_ps", "packets", "l2_hits", "l2_misses", "flagged_loads", "wakeups", "spurious_wakeups",
    "monitor_full",
)  # fmt: skip
_OF_GROUP, _OF_OP = ("workgroup_start_ps", "workgroup_end_ps", "workgroup_cu"), ("op_start_ps", "op_end_ps")
_OF_LANE = ("lane_link", "lane_number", "lane_data", "lane_control", "lane_busy_ps")


def seen_alone(run: GpuRun, target: int) -> GpuRun:
    """What happened to rank ``target``, which was simulated: its kernels and tasks, lanes out of its GPU."""
    gpu, program, found = int(run.gpu.gpu_of[target]), run.simulated, run.gpu
    kernels = np.flatnonzero(program.kernel_rank == gpu)
    groups, _ = members(program.kernel_ptr, kernels)
    operations, _ = members(program.workgroup_ptr, groups)
    links = run.cluster.link_table.source[found.lane_link]
    rows = dict.fromkeys(_OF_GPU, np.array([gpu])) | dict.fromkeys(_OF_GROUP, groups)
    rows |= dict.fromkeys(_OF_OP, operations) | dict.fromkeys(_OF_LANE, np.flatnonzero(links == run.group[target]))
    tasks = np.flatnonzero(run.graph.rank == target)
    records = {name: getattr(run.records, name)[tasks] for name in ("ready_ps", "start_ps", "end_ps")}
    gpu_of = np.full(run.program.num_ranks, -1, np.int32)
    gpu_of[target] = 0
    inside = replace(
        found, ranks=np.array([target], np.int32), gpu_of=gpu_of, end_ps=int(records["end_ps"].max(initial=0)),
        **{name: getattr(found, name)[row] for name, row in rows.items()},
    )  # fmt: skip
    fold = Fold(classes=1, group_size=1, why_unfolded="one rank of a run of all is shown")
    return replace(
        run, simulated=kernels_of_rank(program, gpu), gpu=inside, records=replace(run.records, **records), fold=fold,
        graph=take_alone(run.graph, tasks),
    )  # fmt: skip
