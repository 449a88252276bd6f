"""One rank of a kernel in detail, when each rank begins at a time of its own.

All ranks are simulated and recorded, then the rank is replayed from the record, to the picosecond the same: so what
came to it from whom stands beside what it did.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trine.arrays import Int64
from trine.cluster.cluster import Cluster
from trine.errors import SimulationError
from trine.gpu.alone import seen_alone
from trine.gpu.model import GpuModel
from trine.gpu.program import GpuProgram, has_multimem
from trine.gpu.replayed import run_target
from trine.gpu.run import GpuRun, GpuRunControl, GpuRunOptions, run_gpus
from trine.gpu.system import KernelTasks
from trine.graph.assembler import GraphAssembler, GraphLinks
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
