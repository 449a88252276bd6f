"""Simulation of one GPU with its peers replayed: from options to a result.

The ranks of a :class:`BegunKernel` start at different times. trine simulates and records all ranks, then replays one
rank from the record, identical to the picosecond. So the result shows arrivals, their senders and the rank's activity.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np

from trine.cluster.cluster import Cluster
from trine.common.arguments import named_arguments
from trine.common.arrays import Int64, members
from trine.common.observer import OnCompile, Progress, observing
from trine.common.units import format_time
from trine.errors import InputError, SimulationError
from trine.gpu.kernels.fused.options import FLAG_SPACING
from trine.gpu.model import GpuModel
from trine.gpu.peers import Arrivals, PeerWrites
from trine.gpu.program import GpuProgram, has_multimem, kernels_of_rank
from trine.gpu.records import OF_GPU, OF_LANE, OF_OPERATION, OF_WORKGROUP
from trine.gpu.replay.case import ReplayCase, make_case
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.result import EidolonResult
from trine.gpu.replay.traffic import PeerTraffic, counts_from_wait, make_traffic
from trine.gpu.replayed import Waiting, run_target, until_waiting
from trine.gpu.run import Fold, GpuRun, GpuRunControl, GpuRunOptions, run_gpus
from trine.gpu.system import KernelTasks
from trine.graph.assembler import GraphAssembler, GraphLinks, take_alone
from trine.graph.taskgraph import COMPUTE

__all__ = ["EidolonOptions", "EidolonResult", "Prepared", "run_eidolon"]


@dataclass(slots=True)
class Prepared:
    """A workload for runs that differ in the arrival times of flags; work independent of them is done once."""

    options: EidolonOptions
    work: ReplayCase = field(init=False)
    _waiting: Waiting | None = None
    _until_s: float = 0.0

    def __post_init__(self) -> None:
        self.work = make_case(self.options)

    @property
    def waiting_ps(self) -> int:
        """Time at which the target's last workgroup begins to wait, if no flag ever arrives."""
        return self.waiting().since_ps

    def waiting(self) -> Waiting:
        """Return the target as its last workgroup begins to wait; runs resume there. Raises as :func:`run_eidolon`."""
        if self._waiting is None:
            began, work = time.perf_counter(), self.work
            announced = make_traffic(self.options, work, 0).outside
            if not isinstance(announced, PeerWrites):
                raise InputError("a record's arrivals do not count from the target's wait")
            self._waiting = until_waiting(
                work.program, work.cluster, work.group, work.model, target=work.target, outside=announced,
                tasks=work.tasks, control=GpuRunControl(engine=self.options.engine),
            )  # fmt: skip
            self._until_s = time.perf_counter() - began
        return self._waiting

    def run(self, *, wakeup: str | int | None = None) -> EidolonResult:
        """Run the workload; ``wakeup`` overrides the options. Raises as :func:`run_eidolon`."""
        options = self.options if wakeup is None else replace(self.options, wakeup=wakeup)
        from_wait = counts_from_wait(options)
        began = time.perf_counter() - (self._until_s if from_wait else 0.0)  # shared time counts for each run
        work = self.work
        waiting = self.waiting() if from_wait else None
        incoming = make_traffic(options, work, 0 if waiting is None else waiting.since_ps)
        if isinstance(incoming.outside, Arrivals):
            work = _with_target(work, incoming.outside.target)
        simulated = time.perf_counter() - (self._until_s if from_wait else 0.0)
        if waiting is not None and isinstance(incoming.outside, PeerWrites):
            run = waiting.run(incoming.outside)
        else:
            run = run_target(
                work.program, work.cluster, work.group, work.model, target=work.target, outside=incoming.outside,
                tasks=work.tasks, control=GpuRunControl(engine=options.engine),
            )  # fmt: skip
        now = time.perf_counter()
        return EidolonResult.of(options, work, incoming, run, wall_s=now - began, engine_s=now - simulated)


@named_arguments
def run_eidolon(
    options: EidolonOptions | str, *, progress: Progress | None = None, on_compile: OnCompile | None = None
) -> EidolonResult:
    """Simulate one GPU in detail, its peers replayed (docs/design/replay.md).

    options: options of the run, or the name of a built-in kernel such as ``gemv-allreduce``.
    progress: called a few times per second with (requests issued, requests in all, now in ps). on_compile: called
        before the kernels are compiled.

    Raises
    ------
    InputError, SpecError, PlanError: options, files and writes that are impossible or contradict each other.
    DeadlockError: wavefronts wait for flags or data that never arrive.
    """
    if isinstance(options, str):
        options = EidolonOptions(kernel=options)
    with observing(progress=progress, on_compile=on_compile):
        result = Prepared(options).run()
        if options.flag_spacing in (None, FLAG_SPACING) or options.arrivals is not None or options.writes is not None:
            return result
        default = Prepared(replace(options, flag_spacing=None)).run()
    change = format_time(abs(result.end_ps - default.end_ps))
    warning = (
        f"flag_spacing {options.flag_spacing}: the time differs by {change} from {FLAG_SPACING} bytes; flags are not "
        "cached, so their spacing only decides which memory channel serves them"
    )
    return replace(result, work=replace(result.work, warnings=(*result.work.warnings, warning)))


def _with_target(work: ReplayCase, target: int) -> ReplayCase:
    """Return the case with ``target``: a folded run records the rank that was simulated for the requested one."""
    if target != work.target and not (work.program.kernel_rank == target).any():
        raise InputError(f"the record is of rank {target}, and the program has no kernel of it", field="arrivals")
    return replace(work, target=target)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BegunKernel:
    """A kernel of all ranks. cluster, group, model: as in :func:`trine.gpu.run.run_gpus`. sync: how the model waits.

    starts_ps: int64[ranks], start time of each rank; origin: the source of these times, in words.
    """

    program: GpuProgram
    cluster: Cluster
    group: tuple[int, ...]
    model: GpuModel
    starts_ps: Int64
    origin: str
    sync: str | None = None

    @property
    def tasks(self) -> KernelTasks | None:
        """Kernels, each behind a task that lasts until its rank starts; None if all ranks start at once."""
        if not (self.starts_ps > 0).any():
            return None
        program, assembler = self.program, GraphAssembler(GraphLinks.none())
        ranks = np.arange(program.num_ranks)
        assembler.tasks(len(ranks), kind=COMPUTE, rank=ranks, duration_ps=self.starts_ps)
        kernels = assembler.tasks(program.num_kernels, kind=COMPUTE, rank=program.kernel_rank)
        assembler.connect(kernels + np.arange(program.num_kernels), program.kernel_rank.astype(np.int64))
        graph = assembler.build(rank_names=[f"rank {rank}" for rank in ranks])
        kernel_of = np.concatenate([np.full(len(ranks), -1, np.int32), np.arange(program.num_kernels, dtype=np.int32)])
        return KernelTasks(graph, kernel_of)

    def end_ps(self, target: int) -> int:
        """Return the end of rank ``target`` in a run of all ranks, without a record. Raises as :meth:`replayed`."""
        run = run_gpus(self.program, self.cluster, self.group, self.model, tasks=self.tasks).whole()
        simulated = int(run.gpu.ranks[run.gpu.gpu_of[target]])
        return _end_ps(run, simulated)

    def replayed(self, target: int) -> EidolonResult:
        """Return rank ``target`` in detail; if all ranks are alike, ``work.target`` is the rank simulated for it.

        Raises
        ------
        InputError: features that are not recorded (docs/design/replay.md), and errors of run_gpus.
        DeadlockError: as run_gpus. KeyboardInterrupt: Ctrl-C came before the end.
        """
        began, tasks = time.perf_counter(), self.tasks
        run_options = GpuRunOptions(record=target)
        run = run_gpus(self.program, self.cluster, self.group, self.model, tasks=tasks, options=run_options).whole()
        assert run.arrivals is not None
        target = run.arrivals.target
        # without a replay (multimem), the engine time is the time of the full run
        simulated = began if has_multimem(self.program) else time.perf_counter()
        replay = self._replay_alone(run, target)
        if replay.end_ps != _end_ps(run, target):
            raise SimulationError(
                f"rank {target} ends at {_end_ps(run, target)} ps with its peers and at {replay.end_ps} ps replayed: "
                "please report this"
            )
        work = ReplayCase(
            program=self.program, target=target, cluster=self.cluster, model=self.model, sync=self.sync, tasks=tasks,
            record=run.arrivals, devices=self.group,
        )  # fmt: skip
        incoming = PeerTraffic(outside=run.arrivals, origin=self.origin, evidence="modelled")
        options = EidolonOptions(kernel=self.program, arrivals=run.arrivals, cluster=self.cluster.name)
        now = time.perf_counter()
        return EidolonResult.of(options, work, incoming, replay, wall_s=now - began, engine_s=now - simulated)

    def _replay_alone(self, run: GpuRun, target: int) -> GpuRun:
        """Return the rank replayed from its record, or its part of ``run`` if it uses multimem, which has no replay."""
        if has_multimem(self.program):
            return seen_alone(run, target)
        return run_target(
            self.program, self.cluster, self.group, self.model, target=target, outside=run.arrivals, tasks=self.tasks,
        ).whole()  # fmt: skip


def _end_ps(run: GpuRun, rank: int) -> int:
    """Return the end time of a rank's last kernel."""
    return int(run.records.end_ps[run.graph.rank == rank].max(initial=0))


def seen_alone(run: GpuRun, target: int) -> GpuRun:
    """Return simulated rank ``target``'s part of ``run``: its kernels and tasks, and the lanes out of its GPU."""
    gpu, program, activity = int(run.gpu.gpu_of[target]), run.simulated, run.gpu
    kernels = np.flatnonzero(program.kernel_rank == gpu)
    groups, _ = members(program.kernel_ptr, kernels)
    operations, _ = members(program.workgroup_ptr, groups)
    links = run.cluster.link_table.source[activity.lane_link]
    rows = dict.fromkeys(OF_GPU, np.array([gpu])) | dict.fromkeys(OF_WORKGROUP, groups)
    rows |= dict.fromkeys(OF_OPERATION, operations) | dict.fromkeys(OF_LANE, np.flatnonzero(links == run.group[target]))
    tasks = np.flatnonzero(run.graph.rank == target)
    records = {name: getattr(run.records, name)[tasks] for name in ("ready_ps", "start_ps", "end_ps")}
    gpu_of = np.full(run.program.num_ranks, -1, np.int32)
    gpu_of[target] = 0
    gpu_part = replace(
        activity, ranks=np.array([target], np.int32), gpu_of=gpu_of, end_ps=int(records["end_ps"].max(initial=0)),
        **{name: getattr(activity, name)[row] for name, row in rows.items()},
    )  # fmt: skip
    fold = Fold(classes=1, group_size=1, why_unfolded="one rank of a run of all is shown")
    return replace(
        run, simulated=kernels_of_rank(program, gpu), gpu=gpu_part, records=replace(run.records, **records), fold=fold,
        graph=take_alone(run.graph, tasks),
    )  # fmt: skip
