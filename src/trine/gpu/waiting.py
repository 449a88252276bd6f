"""Simulate a target up to when its workgroups wait; go on from there, as often as one likes (docs/design/replay.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trine._jit import without_collector
from trine.arrays import Int32, Int64
from trine.cluster.cluster import Cluster
from trine.errors import InputError
from trine.gpu.model import GpuModel
from trine.gpu.outside import PeerWrites
from trine.gpu.program import ACQUIRE, GpuProgram
from trine.gpu.replayed import run_of
from trine.gpu.run import GpuRun, check_places, simulate_system
from trine.gpu.system import GpuSystem
from trine.gpu.target import check_replayable, target_system
from trine.gpu.way_table import outside_ranks
from trine.graph.taskgraph import Progress, TaskGraph

if TYPE_CHECKING:
    from trine.gpu.start import State


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Waiting:
    """A target whose workgroups all wait, and nothing has come to it yet.

    since_ps: when the last of them began to. program, cluster, group: what was asked for; system: what is simulated.
    state: what goes on; None: the reference engine, which begins anew.
    """

    since_ps: int
    program: GpuProgram
    cluster: Cluster
    group: Sequence[int]
    system: GpuSystem
    state: State | None

    def run(
        self,
        outside: PeerWrites,
        *,
        progress: Progress | None = None,
        on_compile: Callable[[], None] | None = None,
    ) -> GpuRun:
        """What :func:`trine.gpu.replayed.run_target` gives with these writes, of the peers that were announced.

        Begins anew where one comes when the last workgroup begins to wait, or before: at an instant writes come first.

        Raises
        ------
        InputError, DeadlockError: as run_target; other peers, or another fabric.
        """
        system = replace(self.system, outside=outside)
        check_replayable(system, int(system.ranks[0]))
        announced = self.system.outside
        assert isinstance(announced, PeerWrites)
        if outside_ranks(system) != outside_ranks(self.system) or outside.fabric != announced.fabric:
            raise InputError("writes of other peers, or over another fabric, than were announced", field="outside")
        if self.state is None or outside.time_ps.min(initial=self.since_ps + 1) <= self.since_ps:
            engine = "reference" if self.state is None else "compiled"
            outcome = simulate_system(system, engine, progress, on_compile)
        else:
            from trine.gpu.compiled import simulate_from

            outcome = simulate_from(self.state, system, progress)
        return run_of(system, outcome, self.program, self.cluster, self.group)


def until_waiting(
    program: GpuProgram,
    cluster: Cluster,
    group: Sequence[int],
    model: GpuModel,
    *,
    target: int,
    outside: PeerWrites,
    graph: TaskGraph | None = None,
    task_kernel: Int32 | None = None,
    engine: str = "compiled",
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
) -> Waiting:
    """Run rank ``target`` until the last of its workgroups has taken up its first acquire, while nothing comes to it.

    Parameters
    ----------
    outside: what is to come, at whatever times. Others: as :func:`trine.gpu.replayed.run_target`.

    Workgroups that wait for nothing do not count.

    Raises
    ------
    InputError: as run_target; a workgroup never begins, or never comes to wait; no workgroup waits.
    """
    system = target_system(program, cluster, group, model, target, outside, graph, task_kernel, engine)
    waiting, first = _first_acquires(system.program)
    if not len(waiting):
        raise InputError(f"{system.program.name!r}: no workgroup of rank {target} waits for a flag")
    state: State | None = None
    if engine == "reference":
        gpu = simulate_system(replace(system, outside=None), engine, progress, stop_when_stuck=True).gpu
        since_ps, begun_ps = gpu.op_start_ps[first], gpu.workgroup_start_ps[waiting]
    else:
        check_places(system)
        with without_collector():
            from trine.gpu.compiled import simulate_until

            state = simulate_until(system, first, progress, on_compile)
        since_ps, begun_ps = state.seen.op_start[first], state.seen.group_start[waiting]
    _check_all_wait(system, waiting, since_ps, begun_ps)
    return Waiting(
        since_ps=int(since_ps.max()), program=program, cluster=cluster, group=group, system=system, state=state
    )


def _first_acquires(program: GpuProgram) -> tuple[Int64, Int64]:
    """Workgroups that acquire, and the first acquire of each."""
    group_of = np.repeat(np.arange(program.num_workgroups), np.diff(program.workgroup_ptr))
    acquires = np.flatnonzero(program.op_kind == ACQUIRE)
    waiting, first = np.unique(group_of[acquires], return_index=True)
    return waiting, acquires[first]


def _check_all_wait(system: GpuSystem, waiting: Int64, since_ps: Int64, begun_ps: Int64) -> None:
    late = np.flatnonzero(since_ps < 0)
    if not len(late):
        return
    name, others = system.program.name, f"never begins: others hold the places of {system.model.name!r}"
    why = others if begun_ps[late[0]] < 0 else "waits for something else first"
    raise InputError(
        f"{name!r}: {len(late)} of {len(waiting)} workgroups never begin to wait for their flags (workgroup "
        f"{waiting[late[0]]} {why}); give the kernel fewer workgroups, or say when flags land from the start"
    )
