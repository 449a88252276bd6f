"""Run one GPU of a program, its peers replayed (docs/design/replay.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.errors import InputError
from trine.gpu.outcome import GpuOutcome
from trine.gpu.run import Fold, GpuRun, Progress, simulate_system
from trine.gpu.system import GpuSystem
from trine.gpu.target import target_system
from trine.model.gpumodel import GpuModel
from trine.model.gpuprogram import ACQUIRE, GpuProgram
from trine.model.outside import Arrivals, PeerWrites
from trine.model.taskgraph import TaskGraph

Int32 = npt.NDArray[np.int32]


def run_target(
    program: GpuProgram,
    cluster: Cluster,
    group: Sequence[int],
    model: GpuModel,
    *,
    target: int,
    outside: PeerWrites | Arrivals | None = None,
    graph: TaskGraph | None = None,
    task_kernel: Int32 | None = None,
    engine: str = "compiled",
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
    until_ps: int | None = None,
) -> GpuRun:
    """Run the kernels of rank ``target``; of all other ranks only what ``outside`` says reaches it.

    Parameters
    ----------
    program, cluster, group, model, engine, progress, on_compile, until_ps: as :func:`trine.gpu.run.run_gpus`; kernels
        of other ranks, if there are any, are left out.
    outside: writes of peers, or the record of a run (``run_gpus(..., record=target)``); None: nothing ever comes.
    graph, task_kernel: tasks of the kernels of all ranks, without transfers or order between ranks.

    Raises
    ------
    InputError: as run_gpus; an unknown rank; what cannot be replayed; a record of another program or model.
    DeadlockError: what the wavefronts wait for never comes.
    """
    system = target_system(program, cluster, group, model, target, outside, graph, task_kernel, engine)
    if until_ps is not None and until_ps < 0:
        raise InputError(f"must not be negative, got {until_ps}", field="until_ps")
    outcome = simulate_system(system, engine, progress, on_compile, until_ps)
    return _run_of(system, outcome, program, cluster, group)


def when_waiting(
    program: GpuProgram,
    cluster: Cluster,
    group: Sequence[int],
    model: GpuModel,
    *,
    target: int,
    outside: PeerWrites | None = None,
    graph: TaskGraph | None = None,
    task_kernel: Int32 | None = None,
    engine: str = "compiled",
    on_compile: Callable[[], None] | None = None,
) -> int:
    """The instant (ps) at which the last workgroup of ``target`` has taken up its first acquire, if no flag ever lands.

    ``outside``: data that lands meanwhile. Workgroups that wait for nothing do not count.

    Raises
    ------
    InputError: a workgroup never begins, or never comes to wait; no workgroup waits.
    """
    system = target_system(program, cluster, group, model, target, outside, graph, task_kernel, engine)
    outcome = simulate_system(system, engine, on_compile=on_compile, stop_when_stuck=True)
    code = system.program
    group_of = np.repeat(np.arange(code.num_workgroups), np.diff(code.workgroup_ptr))
    acquires = np.flatnonzero(code.op_kind == ACQUIRE)
    waiting, first = np.unique(group_of[acquires], return_index=True)
    if not len(waiting):
        raise InputError(f"{code.name!r}: no workgroup of rank {target} waits for a flag")
    since_ps = outcome.gpu.op_start_ps[acquires[first]]
    late = waiting[since_ps < 0]
    if len(late):
        has_begun = outcome.gpu.workgroup_start_ps[late[0]] >= 0
        others = f"never begins: others hold the places of {model.name!r}"
        why = "waits for something else first" if has_begun else others
        raise InputError(
            f"{code.name!r}: {len(late)} of {len(waiting)} workgroups never begin to wait for their flags (workgroup "
            f"{late[0]} {why}); give the kernel fewer workgroups, or say when flags land from the start"
        )
    return int(since_ps.max())


def _run_of(
    system: GpuSystem, outcome: GpuOutcome, program: GpuProgram, cluster: Cluster, group: Sequence[int]
) -> GpuRun:
    return GpuRun(
        program=program,
        simulated=system.program,
        model=system.model,
        cluster=cluster,
        group=tuple(group),
        graph=system.graph,
        records=outcome.records,
        gpu=outcome.gpu,
        fold=Fold(classes=1, group_size=1, why_unfolded="peers are replayed"),
        finished=outcome.finished,
    )
