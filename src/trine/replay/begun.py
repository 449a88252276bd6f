"""One rank of a kernel in detail, when each rank begins at a time of its own.

All ranks are simulated and recorded, then the rank is replayed from the record, to the picosecond the same: so what
came to it from whom stands beside what it did.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trine.arrays import Int64, members
from trine.cluster.cluster import Cluster
from trine.errors import SimulationError
from trine.gpu.model import GpuModel
from trine.gpu.program import GpuProgram, has_multimem, kernels_of_rank
from trine.gpu.records import OF_GPU, OF_LANE, OF_OPERATION, OF_WORKGROUP
from trine.gpu.replayed import run_target
from trine.gpu.run import Fold, GpuRun, GpuRunControl, GpuRunOptions, run_gpus
from trine.gpu.system import KernelTasks
from trine.graph.assembler import GraphAssembler, GraphLinks, take_alone
from trine.graph.taskgraph import COMPUTE, Progress
from trine.replay.case import ReplayCase
from trine.replay.options import EidolonOptions
from trine.replay.result import EidolonResult
from trine.replay.traffic import PeerTraffic


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BegunKernel:
    """A kernel of all ranks. cluster, group, model: as :func:`trine.gpu.run.run_gpus`. sync: as the model waits.

    starts_ps: int64[ranks], when each rank comes to it; origin: where these times come from, in words.
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
        """The kernels, each behind a task that takes as long as its rank is later than the first; None: all begin at
        once.
        """
        if not (self.starts_ps > 0).any():
            return None
        program, assembler = self.program, GraphAssembler(GraphLinks.none())
        ranks = np.arange(program.num_ranks)
        assembler.tasks(len(ranks), kind=COMPUTE, rank=ranks, duration_ps=self.starts_ps)
        kernels = assembler.tasks(program.num_kernels, kind=COMPUTE, rank=program.kernel_rank)
        assembler.connect(kernels + np.arange(program.num_kernels), program.kernel_rank.astype(np.int64))
        graph = assembler.build(rank_names=[f"rank {rank}" for rank in ranks])
        carried = np.concatenate([np.full(len(ranks), -1, np.int32), np.arange(program.num_kernels, dtype=np.int32)])
        return KernelTasks(graph, carried)

    def replayed(
        self, target: int, *, progress: Progress | None = None, on_compile: Callable[[], None] | None = None
    ) -> EidolonResult:
        """Rank ``target`` in detail; ``work.target`` of the answer is the rank that it does as, where all are alike.

        Raises
        ------
        InputError: what is not recorded (docs/design/replay.md), and what run_gpus refuses. DeadlockError: as there.
        KeyboardInterrupt: Ctrl-C came before the end.
        """
        began, tasks = time.perf_counter(), self.tasks
        how = GpuRunOptions(progress=progress, on_compile=on_compile, record=target)
        run = run_gpus(self.program, self.cluster, self.group, self.model, tasks=tasks, options=how).whole()
        assert run.arrivals is not None
        target = run.arrivals.target
        # of what is not replayed the run of all is what was simulated
        simulated = began if has_multimem(self.program) else time.perf_counter()
        alone = self._alone(run, target, progress)
        if alone.end_ps != _end_ps(run, target):
            raise SimulationError(
                f"rank {target} ends at {_end_ps(run, target)} ps with its peers and at {alone.end_ps} ps replayed: "
                "please report this"
            )
        work = ReplayCase(
            program=self.program, target=target, cluster=self.cluster, model=self.model, sync=self.sync, tasks=tasks,
            record=run.arrivals, devices=self.group,
        )  # fmt: skip
        incoming = PeerTraffic(outside=run.arrivals, origin=self.origin, evidence="modelled")
        options = EidolonOptions(kernel=self.program, arrivals=run.arrivals, cluster=self.cluster.name)
        now = time.perf_counter()
        return EidolonResult.of(options, work, incoming, alone, wall_s=now - began, engine_s=now - simulated)

    def _alone(self, run: GpuRun, target: int, progress: Progress | None) -> GpuRun:
        """The rank from its record; as it was in ``run`` where switches add up and multicast, which is not replayed."""
        if has_multimem(self.program):
            return seen_alone(run, target)
        return run_target(
            self.program, self.cluster, self.group, self.model, target=target, outside=run.arrivals, tasks=self.tasks,
            control=GpuRunControl(progress=progress),
        ).whole()  # fmt: skip


def _end_ps(run: GpuRun, rank: int) -> int:
    """When the last kernel of a rank ended."""
    return int(run.records.end_ps[run.graph.rank == rank].max(initial=0))


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
