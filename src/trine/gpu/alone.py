"""One rank of a run of all, as a replay of it would show it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trine.gpu.program import kernels_of_rank, members
from trine.gpu.records import OF_GPU, OF_LANE, OF_OPERATION, OF_WORKGROUP
from trine.gpu.run import Fold, GpuRun
from trine.graph.assembler import take_alone


def seen_alone(run: GpuRun, target: int) -> GpuRun:
    """What happened to rank ``target``, which was simulated: its kernels and tasks, lanes out of its GPU."""
    gpu, program, found = int(run.gpu.gpu_of[target]), run.simulated, run.gpu
    kernels = np.flatnonzero(program.kernel_rank == gpu)
    groups, _ = members(program.kernel_ptr, kernels)
    operations, _ = members(program.workgroup_ptr, groups)
    links = run.cluster.link_table.source[found.lane_link]
    rows = dict.fromkeys(OF_GPU, np.array([gpu])) | dict.fromkeys(OF_WORKGROUP, groups)
    rows |= dict.fromkeys(OF_OPERATION, operations) | dict.fromkeys(OF_LANE, np.flatnonzero(links == run.group[target]))
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
