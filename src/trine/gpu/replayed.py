"""Run one GPU of a program, its peers replayed (docs/design/replay.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trine.arrays import Int32
from trine.cluster.cluster import Cluster
from trine.errors import InputError
from trine.gpu.model import GpuModel
from trine.gpu.outcome import GpuOutcome
from trine.gpu.outside import Arrivals, PeerWrites
from trine.gpu.program import GpuProgram
from trine.gpu.run import Fold, GpuRun, simulate_system
from trine.gpu.system import GpuSystem
from trine.gpu.target import target_system
from trine.graph.taskgraph import Progress, TaskGraph


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
    return run_of(system, outcome, program, cluster, group)


def run_of(
    system: GpuSystem, outcome: GpuOutcome, program: GpuProgram, cluster: Cluster, group: Sequence[int]
) -> GpuRun:
    """What happened to the target, as a run of ``program``."""
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
