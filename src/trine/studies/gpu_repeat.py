"""A GPU program several times in a row, as a CUDA graph of the same kernel runs it: how long each round takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trine.arrays import Int64
from trine.cluster import Cluster
from trine.gpu.model import GpuModel
from trine.gpu.program import COLUMNS, GpuProgram
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.system import KernelTasks, kernel_tasks
from trine.graph.assembler import csr


def round_times_ps(
    program: GpuProgram, cluster: Cluster, group: Sequence[int], model: GpuModel, rounds: int = 2
) -> tuple[int, ...]:
    """Time from the end of one round to the end of the next, ps: on each GPU a kernel starts when the one before it has
    ended there. The first round finds an empty L2, later ones what the one before has left in it.

    The program has one kernel a rank, and its semaphores come back to their initial values.
    """
    whole, ranks = repeated(program, rounds), program.num_ranks
    before = [[] if task < ranks else [task - ranks] for task in range(whole.num_kernels)]
    ptr, idx = csr(before)
    graph = replace(
        kernel_tasks(whole), predecessor_ptr=ptr, predecessor_idx=idx, num_required=np.diff(ptr).astype(np.int32)
    )  # fmt: skip
    carried = np.arange(whole.num_kernels, dtype=np.int32)
    run = run_gpus(
        whole, cluster, group, model, tasks=KernelTasks(graph, carried), options=GpuRunOptions(fold="off")
    ).whole()
    ends = run.records.end_ps.reshape(rounds, ranks).max(axis=1)
    return tuple(int(each) for each in np.diff(ends, prepend=0))


def repeated(program: GpuProgram, rounds: int) -> GpuProgram:
    """The kernels of all ranks, ``rounds`` times one after the other; they share buffers and semaphores."""

    def ptr(offsets: Int64) -> Int64:
        total = int(offsets[-1])
        starts = offsets[:-1] + np.arange(rounds, dtype=np.int64)[:, None] * total
        return np.append(starts.ravel(), total * rounds)

    columns: dict[str, Any] = {name: np.tile(getattr(program, name), rounds) for name in COLUMNS}
    return replace(
        program,
        kernel_ptr=ptr(program.kernel_ptr),
        workgroup_ptr=ptr(program.workgroup_ptr),
        operand_ptr=ptr(program.operand_ptr),
        kernel_names=program.kernel_names * rounds,
        **columns,
    )
