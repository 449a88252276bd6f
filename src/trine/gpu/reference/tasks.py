"""The plain-Python twin: tasks become ready, start and end; GPUs start the workgroups of their kernels."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from trine.gpu.reference.events import DISPATCHERS, TASKS
from trine.gpu.reference.packets import GraphTransfers
from trine.gpu.reference.shared import SharedState
from trine.gpu.reference.wavefronts import ComputeUnit, WorkgroupRun
from trine.graph.taskgraph import COMPUTE, JOIN, TaskGraph


class LaunchedKernel:
    """A launched kernel: its next workgroup, and the number of unfinished ones."""

    def __init__(self, shared: SharedState, kernel: int, on_end: Callable[[], None]) -> None:
        program = shared.system.program
        self.kernel, self.on_end = kernel, on_end
        self.num_wavefronts = int(program.kernel_wavefronts[kernel])
        self.next_workgroup = int(program.kernel_ptr[kernel])
        self.last_workgroup = int(program.kernel_ptr[kernel + 1])
        self.num_left = self.last_workgroup - self.next_workgroup


class SimulatedGpu:
    """A simulated GPU: its CUs, and the queue of its kernels."""

    def __init__(self, shared: SharedState, number: int, records: WorkgroupColumns) -> None:
        self.shared, self.agenda, self.model, self.number = shared, shared.agenda, shared.model, number
        self.cus = [ComputeUnit(shared, number, cu) for cu in range(shared.model.num_cus)]
        self.queue: deque[LaunchedKernel] = deque()
        self.records = records
        self.next_cu = 0
        self.dispatches_at = 0
        self.will_dispatch = False

    def launch(self, run: LaunchedKernel) -> None:
        if run.num_left == 0:
            run.on_end()
            return
        self.queue.append(run)
        self.poke()

    def poke(self) -> None:
        """Schedule the start of the next workgroup, if a kernel waits and a CU has room."""
        if not self.will_dispatch and self.queue and self._free_cu() is not None:
            self.will_dispatch = True
            time_ps = max(self.agenda.now, self.dispatches_at)
            self.agenda.at(time_ps, (DISPATCHERS, self.shared.ranks[self.number]), self._dispatch)

    def _free_cu(self) -> ComputeUnit | None:
        """Return the next CU with room for a workgroup of the first kernel."""
        for i in range(len(self.cus)):
            cu = self.cus[(self.next_cu + i) % len(self.cus)]
            if cu.has_room(self.queue[0].num_wavefronts):
                return cu
        return None

    def _dispatch(self) -> None:
        self.will_dispatch = False
        run, cu = self.queue[0], self._free_cu()
        assert cu is not None
        self.next_cu = (cu.number + 1) % len(self.cus)
        self.dispatches_at = self.agenda.now + self.model.dispatch_ps
        workgroup = run.next_workgroup
        run.next_workgroup += 1
        if run.next_workgroup == run.last_workgroup:
            self.queue.popleft()
        self.records.start_ps[workgroup], self.records.cu[workgroup] = self.agenda.now, cu.number
        cu.start(workgroup, run.num_wavefronts, partial(self._ended, run))
        self.poke()

    def _ended(self, run: LaunchedKernel, workgroup: WorkgroupRun) -> None:
        self.records.end_ps[workgroup.number] = self.agenda.now
        workgroup.cu.end(workgroup)
        run.num_left -= 1
        if run.num_left == 0:
            run.on_end()
        self.poke()


class WorkgroupColumns:
    """The workgroup columns of GpuRecords."""

    def __init__(self, num_workgroups: int) -> None:
        self.start_ps = [-1] * num_workgroups
        self.end_ps = [-1] * num_workgroups
        self.cu = [-1] * num_workgroups


class TaskRunner:
    """Runner of the task graph; a task that carries a kernel lasts as long as the kernel."""

    def __init__(self, shared: SharedState, gpus: list[SimulatedGpu], transfers: GraphTransfers) -> None:
        self.shared, self.agenda, self.gpus, self.transfers = shared, shared.agenda, gpus, transfers
        graph = self.graph = shared.system.graph
        n = graph.num_tasks
        self.kernel = shared.system.task_kernel.tolist()
        self.num_awaited = graph.num_required.tolist()
        self.ready_ps, self.start_ps, self.end_ps = [-1] * n, [-1] * n, [-1] * n
        self.num_done = 0
        self.successors: list[list[int]] = [[] for _ in range(n)]
        for task in range(n):
            for predecessor in graph.predecessors(task).tolist():
                self.successors[predecessor].append(task)
        self.next_in_stream, self.is_first = _streams(graph)

    @property
    def are_over(self) -> bool:
        return self.num_done == self.graph.num_tasks

    def begin(self) -> None:
        for task, num_required in enumerate(self.graph.num_required.tolist()):
            if num_required == 0:
                self.agenda.at(0, (TASKS, task), partial(self._become_ready, task))

    def _become_ready(self, task: int) -> None:
        self.ready_ps[task] = self.agenda.now
        kind = self.graph.kind[task]
        if kind == JOIN:
            self.start_ps[task] = self.agenda.now
            self._end(task)
        elif kind == COMPUTE:
            if self.is_first[task]:
                self._start(task)
        else:
            self.start_ps[task] = self.agenda.now
            self.transfers.begin(task, partial(self._end, task))

    def _start(self, task: int) -> None:
        """Start a compute task, and its kernel if it has one."""
        self.start_ps[task] = self.agenda.now
        kernel = self.kernel[task]
        if kernel < 0:
            lasts_ps, do = int(self.graph.duration_ps[task]), partial(self._end, task)
        else:
            gpu = self.gpus[int(self.shared.system.program.kernel_rank[kernel])]
            run = LaunchedKernel(self.shared, kernel, partial(self._end, task))
            lasts_ps, do = self.shared.model.launch_ps, partial(gpu.launch, run)
        self.agenda.at(self.agenda.now + lasts_ps, (TASKS, task), do)

    def _end(self, task: int) -> None:
        """End a task; successors without other dependencies become ready at this instant."""
        self.end_ps[task] = self.agenda.now
        self.num_done += 1
        for successor in self.successors[task]:
            self.num_awaited[successor] -= 1
            if self.num_awaited[successor] == 0:
                self._become_ready(successor)
        following = self.next_in_stream[task]
        if following >= 0:
            self.is_first[following] = True
            if self.ready_ps[following] >= 0:
                self._start(following)


def _streams(graph: TaskGraph) -> tuple[list[int], list[bool]]:
    """Return each task's successor in its stream (-1: none), and whether the task is the first of its stream."""
    following, is_first = [-1] * graph.num_tasks, [True] * graph.num_tasks
    last: dict[int, int] = {}
    for task, (kind, stream) in enumerate(zip(graph.kind.tolist(), graph.stream.tolist(), strict=True)):
        if kind == COMPUTE and stream >= 0:
            if stream in last:
                following[last[stream]], is_first[task] = task, False
            last[stream] = task
    return following, is_first
