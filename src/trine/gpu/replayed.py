"""Simulation of one GPU of a program with replayed peers (docs/design/replay.md).

The GPU is cut out of a program of all ranks and checked. It then runs from the start, or repeatedly from the point at
which its workgroups wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.cluster import Cluster
from trine.common.arrays import Int32, Int64
from trine.common.collector import without_collector
from trine.common.units import format_time
from trine.engine.validate import validate
from trine.errors import InputError
from trine.gpu.fabric import GpuFabric, rank_grid
from trine.gpu.layout import layout_of
from trine.gpu.model import GpuModel
from trine.gpu.path_table import outside_ranks
from trine.gpu.peers import FABRICS, Arrivals, PeerWrites
from trine.gpu.program import ACQUIRE, DMA, LOAD, READ_FLAGGED, GpuProgram, has_multimem, kernels_of_rank
from trine.gpu.records import GpuOutcome
from trine.gpu.run import (
    AS_USUAL,
    Fold,
    GpuRun,
    GpuRunControl,
    check_arguments,
    check_places,
    check_replayable_model,
    check_tasks,
    simulate_system,
)
from trine.gpu.system import GpuSystem, KernelTasks, kernel_tasks, link_homes
from trine.gpu.target_tasks import TargetTasks, target_tasks
from trine.gpu.validate import place_of

if TYPE_CHECKING:
    from trine.gpu.start import GpuState


def target_system(
    program: GpuProgram,
    cluster: Cluster,
    group: Sequence[int],
    model: GpuModel,
    target: int,
    outside: PeerWrites | Arrivals | None,
    tasks: KernelTasks | None,
) -> tuple[GpuSystem, TargetTasks]:
    """Return the checked system of the target, and the mapping of its tasks to the graph of all ranks."""
    check_arguments(program, cluster, group, model)
    if not 0 <= target < program.num_ranks:
        raise InputError(f"rank {target} is not one of {program.num_ranks}", field="target")
    if program.num_hosts:
        raise InputError(f"{program.name!r} loads from or stores to a host, which is not replayed", field="program")
    kernels = kernels_of_rank(program, target)
    if not kernels.num_kernels and tasks is None:
        raise InputError(f"{program.name!r} has no kernel of rank {target}", field="target")
    fabric = GpuFabric(cluster, group, model)
    graph, task_kernel = kernel_tasks(program) if tasks is None else tasks
    validate(graph)
    if len(task_kernel) != graph.num_tasks or task_kernel.max(initial=-1) >= program.num_kernels:
        raise InputError(f"must have {graph.num_tasks} entries below {program.num_kernels}", field="task_kernel")
    record = outside if isinstance(outside, Arrivals) else None
    target_part = target_tasks(KernelTasks(graph, task_kernel), program.kernel_rank, fabric, target, record)
    gpu_of = np.full(program.num_ranks, -1, np.int32)
    gpu_of[target] = 0
    system = GpuSystem(
        program=_as_gpu_0(kernels, target), model=model, layout=layout_of(model), fabric=fabric,
        num_ranks=program.num_ranks, ranks=np.array([target], np.int32), gpu_of=gpu_of,
        operand_peer=kernels.operand_rank, link_image=np.arange(len(cluster.links), dtype=np.int32),
        link_home=link_homes(cluster, group), grid=rank_grid(cluster, group), graph=target_part.tasks.graph,
        task_kernel=target_part.tasks.task_kernel, outside=outside,
    )  # fmt: skip
    check_tasks(replace(system, program=kernels))
    check_replayable(system, target)
    return system, target_part


def _as_gpu_0(kernels: GpuProgram, rank: int) -> GpuProgram:
    """Return the kernels of one rank as kernels of GPU 0; peers' operands keep their addresses and move to GPU -1."""
    return replace(
        kernels,
        num_ranks=1,
        kernel_rank=np.zeros(kernels.num_kernels, np.int32),
        operand_rank=np.where(kernels.operand_rank == rank, 0, -1).astype(np.int32),
        semaphores=kernels.semaphores[rank : rank + 1],
    )


def check_replayable_program(program: GpuProgram) -> None:
    """Raise InputError for a program that cannot be replayed with any ``outside``."""
    if has_multimem(program):
        raise InputError(
            f"{program.name!r}: multimem operations, which switches copy for all members, are not replayed: a record "
            "does not have all of these copies; run all ranks"
        )


def check_replayable(system: GpuSystem, target: int) -> None:
    """Raise InputError if the program, or the writes from outside, cannot be replayed at ``target``."""
    program, outside = system.program, system.outside
    check_replayable_program(program)
    if isinstance(outside, Arrivals):
        check_replayable_model(system, "outside")
        if (outside.target, outside.num_ranks) != (target, system.num_ranks):
            raise InputError(
                f"the record is of rank {outside.target} of {outside.num_ranks}, not of rank {target} of "
                f"{system.num_ranks}",
                field="outside",
            )
        _check_semaphores(system, outside.semaphore)
        return
    dma = np.flatnonzero(program.op_kind == DMA)
    if len(dma):
        location = place_of(program, int(dma[0]))
        raise InputError(f"{program.name!r}, {location}: dma operations with replayed peers need the record of a run")
    op = program.operand_op
    foreign = (program.operand_role == READ_FLAGGED) & (system.operand_peer != target) & (program.op_kind[op] >= LOAD)
    if foreign.any():
        location = place_of(program, int(op[np.flatnonzero(foreign)[0]]))
        raise InputError(f"{program.name!r}, {location}: flagged loads from replayed peers need the record of a run")
    if outside is not None:
        _check_writes(system, outside, target)


def _check_semaphores(system: GpuSystem, semaphore: Int32) -> None:
    count = system.program.semaphores.shape[1]
    if semaphore.max(initial=-1) >= count:
        problem = f"semaphore {semaphore.max()} of the record is not one of {count}: it is of another program"
        raise InputError(problem, field="outside")


def _check_writes(system: GpuSystem, writes: PeerWrites, target: int) -> None:
    if writes.fabric not in FABRICS:
        raise InputError(f"unknown fabric {writes.fabric!r}, one of: {', '.join(FABRICS)}", field="outside")
    columns = (writes.address, writes.size_bytes, writes.semaphore, writes.value, writes.time_ps)
    if any(len(column) != len(writes.peer) for column in columns):
        raise InputError("columns of writes are of different lengths", field="outside")
    bad_peer = (writes.peer < 0) | (writes.peer >= system.num_ranks) | (writes.peer == target)
    for bad, problem in (
        (bad_peer, f"an invalid peer of rank {target} among {system.num_ranks}"),
        (writes.time_ps < 0, "a time in the past"),
        (writes.address < 0, "a negative address"),
        ((writes.size_bytes <= 0) & (writes.semaphore < 0), "no bytes"),
        ((writes.value < 0) & (writes.semaphore >= 0), "a negative value"),
    ):
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            time_text = format_time(int(writes.time_ps[i]))
            raise InputError(f"write {i} (peer {writes.peer[i]}, {time_text}) has {problem}", field="outside")
    _check_semaphores(system, writes.semaphore)


def run_target(
    program: GpuProgram,
    cluster: Cluster,
    group: Sequence[int],
    model: GpuModel,
    *,
    target: int,
    outside: PeerWrites | Arrivals | None = None,
    tasks: KernelTasks | None = None,
    control: GpuRunControl = AS_USUAL,
) -> GpuRun:
    """Run the kernels of rank ``target``; the other ranks are replayed from ``outside``.

    Parameters
    ----------
    program, cluster, group, model: as :func:`trine.gpu.run.run_gpus`; kernels of other ranks are ignored.
    outside: writes of peers, or the record of a run (``GpuRunOptions(record=target)``); None: no writes arrive.
    tasks: of the kernels of all ranks; if those of ``target`` depend on other ranks, ``outside`` must be a record.

    Raises
    ------
    InputError: as run_gpus; an unknown rank; an unreplayable program; a record of another program or model.
    DeadlockError: wavefronts wait for a write that never arrives.
    """
    system, target_part = target_system(program, cluster, group, model, target, outside, tasks)
    outcome = target_part.outcome(simulate_system(system, control))
    return _run_of(program, replace(system, graph=target_part.own_graph), outcome)


def _run_of(program: GpuProgram, system: GpuSystem, outcome: GpuOutcome) -> GpuRun:
    """Return the target's outcome as a run of ``program``."""
    fold = Fold(classes=1, group_size=1, why_unfolded="peers are replayed")
    return GpuRun.of(program, system, outcome, fold)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Waiting:
    """A target with all workgroups waiting, before any write has arrived.

    since_ps: time at which the last workgroup began to wait. program: the original program. system: the simulated
    system. state: the state to continue from; None with the reference engine, which restarts.
    """

    since_ps: int
    program: GpuProgram
    system: GpuSystem
    state: GpuState | None

    def run(self, outside: PeerWrites) -> GpuRun:
        """Return the result of :func:`trine.gpu.replayed.run_target` with these writes of the announced peers.

        The run restarts if a write arrives at or before ``since_ps``: at equal times, writes come first.

        Raises
        ------
        InputError, DeadlockError: as run_target; writes of other peers, or over another fabric.
        """
        system = replace(self.system, outside=outside)
        check_replayable(system, int(system.ranks[0]))
        announced = self.system.outside
        assert isinstance(announced, PeerWrites)
        if outside_ranks(system) != outside_ranks(self.system) or outside.fabric != announced.fabric:
            raise InputError("writes of other peers, or over another fabric, than were announced", field="outside")
        if self.state is None or outside.time_ps.min(initial=self.since_ps + 1) <= self.since_ps:
            engine = "reference" if self.state is None else "compiled"
            outcome = simulate_system(system, GpuRunControl(engine=engine))
        else:
            from trine.gpu.compiled import simulate_from

            outcome = simulate_from(self.state, system)
        return _run_of(self.program, system, outcome)


def until_waiting(
    program: GpuProgram,
    cluster: Cluster,
    group: Sequence[int],
    model: GpuModel,
    *,
    target: int,
    outside: PeerWrites,
    tasks: KernelTasks | None = None,
    control: GpuRunControl = AS_USUAL,
) -> Waiting:
    """Run rank ``target`` without arriving writes until all its workgroups have started their first acquire.

    Parameters
    ----------
    outside: the later writes; their times have no effect. Others: as :func:`trine.gpu.replayed.run_target`.

    Workgroups without an acquire do not count.

    Raises
    ------
    InputError: as run_target; a workgroup never starts, or never reaches its acquire; no workgroup waits.
    """
    system, _ = target_system(program, cluster, group, model, target, outside, tasks)
    workgroups, first = _first_acquires(system.program)
    if not len(workgroups):
        raise InputError(f"{system.program.name!r}: no workgroup of rank {target} waits for a flag")
    state: GpuState | None = None
    if control.engine == "reference":
        gpu = simulate_system(replace(system, outside=None), control, stop_when_stuck=True).gpu
        since_ps, begun_ps = gpu.op_start_ps[first], gpu.workgroup_start_ps[workgroups]
    else:
        check_places(system)
        with without_collector():
            from trine.gpu.compiled import simulate_until

            state = simulate_until(system, first)
        since_ps, begun_ps = state.tables.counters.op_start[first], state.tables.counters.group_start[workgroups]
    _check_all_wait(system, workgroups, since_ps, begun_ps)
    return Waiting(since_ps=int(since_ps.max()), program=program, system=system, state=state)


def _first_acquires(program: GpuProgram) -> tuple[Int64, Int64]:
    """Return the workgroups that acquire, and the first acquire of each."""
    acquires = np.flatnonzero(program.op_kind == ACQUIRE)
    workgroups, first = np.unique(program.op_workgroup[acquires], return_index=True)
    return workgroups, acquires[first]


def _check_all_wait(system: GpuSystem, workgroups: Int64, since_ps: Int64, begun_ps: Int64) -> None:
    late = np.flatnonzero(since_ps < 0)
    if not len(late):
        return
    name, no_room = system.program.name, f"never begins: others hold the places of {system.model.name!r}"
    reason = no_room if begun_ps[late[0]] < 0 else "waits for something else first"
    raise InputError(
        f"{name!r}: {len(late)} of {len(workgroups)} workgroups never wait for their flags (workgroup "
        f"{workgroups[late[0]]} {reason}); give the kernel fewer workgroups, or set the flags' times from the start"
    )
