"""The GPU model in plain Python: the readable definition of docs/design/gpu-model.md, the oracle of the compiled loop.

Slow (about 10**5 events per second); shares only the description of the machine (paths, resources) with the kernels.
Read in this order: ``events`` (event queue, servers), ``requests`` (the life of a request and its answer),
``packets`` (copy engines, NICs, transfers), ``peers`` (writes of replayed peers: docs/design/replay.md),
``shared`` (operations), ``wavefronts`` (operations and issue of requests), ``tasks`` (task graph, workgroups to CUs).
:func:`explain` lists the waiting wavefronts of a deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import numpy as np

from trine.common.arrays import Int64, pointers
from trine.common.observer import PROGRESS_S, current_observer
from trine.errors import DeadlockError
from trine.gpu import deadlock
from trine.gpu.program import BARRIER, DATA_OPS, DMA
from trine.gpu.records import GpuOutcome, GpuRecords
from trine.gpu.reference.events import Agenda
from trine.gpu.reference.interconnect import Interconnect
from trine.gpu.reference.memory import GpuMemory
from trine.gpu.reference.messages import Messages
from trine.gpu.reference.packets import CopyEngines, GraphTransfers, PacketSender
from trine.gpu.reference.peers import ArrivalRecorder, ReplayedPeers
from trine.gpu.reference.shared import SharedState
from trine.gpu.reference.tasks import SimulatedGpu, TaskRunner, WorkgroupColumns
from trine.gpu.reference.wavefronts import WavefrontRequest, WavefrontRun
from trine.gpu.system import GpuSystem
from trine.graph.taskgraph import Records

PROGRESS_EVENTS = 1000


def simulate(system: GpuSystem, until_ps: int | None = None, stop_when_stuck: bool = False) -> GpuOutcome:
    """Run ``system`` to its end, to ``until_ps``, or until it is interrupted (Ctrl-C).

    A run that stops at ``until_ps`` has this as its ``end_ps``; the last states of wavefronts extend to it.

    stop_when_stuck: return an unfinished run instead of raising DeadlockError.

    Raises
    ------
    DeadlockError: no event other than futile polls remains; names the wavefronts that wait.
    InputError: a record (``system.outside``) of another program or model.
    SimulationError: simulated time passes its limit.
    """
    run = GpuReference(system)
    try:
        finished = run.run(until_ps, stop_when_stuck)
    except KeyboardInterrupt:
        if stop_when_stuck:
            raise  # an unfinished run would mean that it is stuck
        finished = False
    return run.outcome(finished)


class GpuReference:
    """One run of the reference engine."""

    def __init__(self, system: GpuSystem) -> None:
        self.system = system
        self.agenda = Agenda()
        self.interconnect = Interconnect(system, self.agenda)
        self.packets = PacketSender(self.interconnect)
        self.messages = Messages(self.interconnect)
        self.shared = SharedState(system, self.messages, CopyEngines(self.packets))
        self.shared.is_futile = self._is_futile
        self.peers = ReplayedPeers(self.messages)
        self.recorder = ArrivalRecorder(self.interconnect)
        self.memories = [GpuMemory(self.messages, i, count) for i, count in enumerate(self.shared.counters)]
        self.messages.memories = self.memories
        self.messages.crossed = self.peers.crossed
        self.messages.request_came = self.recorder.request_came
        self.messages.answer_came = self.recorder.answer_came
        engines = self.shared.engines
        engines.put_came, engines.put_known = self.recorder.put_came, self.recorder.put_known
        engines.replayed_ps, self.peers.put_came = self.peers.known_ps, self.recorder.put_came
        self.workgroups = WorkgroupColumns(system.program.num_workgroups)
        self.gpus = [SimulatedGpu(self.shared, gpu, self.workgroups) for gpu in range(system.num_gpus)]
        self.tasks = TaskRunner(self.shared, self.gpus, GraphTransfers(self.packets))
        self.num_requests = _count_requests(system)
        self.is_stuck = False

    def run(self, until_ps: int | None, stop_when_stuck: bool = False) -> bool:
        """Process all events; return whether all tasks have ended."""
        progress, reported = current_observer().progress, monotonic()
        self.tasks.begin()
        self.peers.begin()
        while (next_ps := self.agenda.next_ps) is not None and not self.is_stuck:
            if until_ps is not None and next_ps > until_ps:
                self.agenda.now = until_ps
                return False
            self.agenda.step()
            if progress is None or self.agenda.num_events % PROGRESS_EVENTS or monotonic() - reported < PROGRESS_S:
                continue
            progress(self.shared.requests_done, self.num_requests, self.agenda.now)
            reported = monotonic()
        if not self.tasks.are_over and not stop_when_stuck:
            raise explain(self.system, self.gpus, self.memories, self.tasks)
        return self.tasks.are_over

    def wavefronts(self) -> list[WavefrontRun]:
        """Return the wavefronts of unfinished workgroups, by GPU and CU."""
        return [
            wavefront
            for gpu in self.gpus
            for cu in gpu.cus
            for workgroup in cu.workgroups
            for wavefront in workgroup.wavefronts
        ]

    def outcome(self, finished: bool) -> GpuOutcome:
        for wavefront in self.wavefronts():
            wavefront.flush_state()
        records = Records(
            ready_ps=np.array(self.tasks.ready_ps, np.int64), start_ps=np.array(self.tasks.start_ps, np.int64),
            end_ps=np.array(self.tasks.end_ps, np.int64), num_events=self.agenda.num_events, engine="reference",
            network="loadstore",
        )  # fmt: skip
        return GpuOutcome(records, self._gpu_records(), finished, self.recorder.arrivals() if finished else None)

    def _is_futile(self) -> bool:
        """Detect a stuck run: only polls remain, of semaphores that will never be released."""
        self.is_stuck = self.agenda.num_busy == 0 and is_futile(self.gpus, self.memories)
        return self.is_stuck

    def _gpu_records(self) -> GpuRecords:
        servers_of_gpus = []
        for servers in self.interconnect.gpu_servers:
            servers_of_gpus.append([(s.count[1], s.count[0], s.busy_ps) for s in servers])
        counts_of_servers = np.array(servers_of_gpus, np.int64)
        lanes = sorted((lane, server) for lane, server in self.interconnect.lanes.items() if sum(server.count))
        counters = self.shared.counters
        tags = [memory.tags for memory in self.memories]
        states = []
        for gpu in self.gpus:
            states.append([cu.state_ps for cu in gpu.cus])
        lane_links = [link for (link, _), _ in lanes]
        lane_numbers = [number for (_, number), _ in lanes]
        data_counts = [server.count[1] for _, server in lanes]
        control_counts = [server.count[0] for _, server in lanes]
        return GpuRecords(
            ranks=self.system.ranks, gpu_of=self.system.gpu_of, workgroup_start_ps=_column(self.workgroups.start_ps),
            workgroup_end_ps=_column(self.workgroups.end_ps), workgroup_cu=np.array(self.workgroups.cu, np.int32),
            op_start_ps=_column(self.shared.op_start_ps), op_end_ps=_column(self.shared.op_end_ps),
            state_ps=np.array(states, np.int64), resource_data=counts_of_servers[:, :, 0].copy(),
            resource_control=counts_of_servers[:, :, 1].copy(), resource_busy_ps=counts_of_servers[:, :, 2].copy(),
            lane_link=np.array(lane_links, np.int32), lane_number=np.array(lane_numbers, np.int32),
            lane_data=_column(data_counts), lane_control=_column(control_counts),
            lane_busy_ps=_column([server.busy_ps for _, server in lanes]), packets=_column(self.packets.sent),
            l2_hits=_column([tag.hits for tag in tags]), l2_misses=_column([tag.misses for tag in tags]),
            **{name: _column([getattr(each, name) for each in counters]) for name in vars(counters[0])},
            resources=self.system.layout.names, end_ps=self.agenda.now, num_events=self.agenda.num_events,
            engine="reference",
        )  # fmt: skip


def _column(values: list[int]) -> Int64:
    return np.array(values, np.int64)


def _count_requests(system: GpuSystem) -> int:
    """Count the requests of kernels that tasks carry: lines times operands; one per DMA."""
    program = system.program
    per_op = np.diff(program.operand_ptr)
    per_op = np.where(np.isin(program.op_kind, DATA_OPS), per_op * program.op_amount, per_op)
    per_op = np.where(program.op_kind == DMA, 1, per_op)
    first_request = pointers(per_op)
    first = program.workgroup_ptr[program.kernel_ptr[:-1]]
    last = program.workgroup_ptr[program.kernel_ptr[1:]]
    of_kernel = first_request[last] - first_request[first]
    return int(of_kernel[system.task_kernel[system.task_kernel >= 0]].sum())


def is_futile(gpus: Sequence[SimulatedGpu], memories: Sequence[GpuMemory]) -> bool:
    """Return whether only polls remain, and each was refused after the last release at its memory.

    Polls of a replayed peer get their recorded answers, so they may succeed.
    """
    for gpu in gpus:
        for cu in gpu.cus:
            if any(not isinstance(item, WavefrontRequest) for item in cu.lines):
                return False
            if any(_may_succeed(request, memories) for request in cu.asking):
                return False
    return True


def _may_succeed(request: WavefrontRequest, memories: Sequence[GpuMemory]) -> bool:
    if request.target < 0:
        return True
    return not request.is_armed and request.denied_at != memories[request.target].num_releases


def explain(
    system: GpuSystem, gpus: Sequence[SimulatedGpu], memories: Sequence[GpuMemory], tasks: TaskRunner
) -> DeadlockError:
    requests_of: dict[WavefrontRun, list[WavefrontRequest]] = {}
    for request in _who_waits(gpus, memories):
        requests_of.setdefault(request.wavefront, []).append(request)
    stuck = [
        wavefront
        for gpu in gpus
        for cu in gpu.cus
        for workgroup in cu.workgroups
        for wavefront in workgroup.wavefronts
        if not wavefront.has_ended
    ]
    stuck.sort(key=lambda wavefront: (wavefront.cu.rank, wavefront.wave_slot))
    described = [
        deadlock.StuckWavefront(
            wavefront.workgroup.number,
            wavefront.number,
            wavefront.op,
            _reason(system, memories, wavefront, requests_of.get(wavefront, [])),
        )
        for wavefront in stuck[: deadlock.SHOWN]
    ]
    queued = [
        deadlock.QueuedKernel(run.kernel, run.last_workgroup - run.next_workgroup) for gpu in gpus for run in gpu.queue
    ]
    return deadlock.gpu_deadlock(system, described, len(stuck), queued, tasks.graph.num_tasks - tasks.num_done)


def _who_waits(gpus: Sequence[SimulatedGpu], memories: Sequence[GpuMemory]) -> list[WavefrontRequest]:
    """Return the requests that wait for semaphores: in the memories, polling, or asleep."""
    queued = [request for memory in memories for queue in memory.waiters.values() for request in queue]
    requests = [request for request in queued if isinstance(request, WavefrontRequest)]
    return requests + [request for gpu in gpus for cu in gpu.cus for request in cu.asking]


def _reason(
    system: GpuSystem, memories: Sequence[GpuMemory], wavefront: WavefrontRun, requests: Sequence[WavefrontRequest]
) -> str:
    operation = wavefront.operation
    semaphores = [
        deadlock.for_semaphore(
            request.semaphore, request.peer, memories[request.target].values[request.semaphore], request.amount
        )
        for request in sorted(requests, key=lambda request: request.number)
    ]
    if operation is not None and operation.kind == BARRIER:
        return deadlock.for_barrier(len(wavefront.workgroup.at_barrier), len(wavefront.workgroup.wavefronts))
    if any(not request.is_flagged_load for request in requests):
        return semaphores[0]
    if wavefront in wavefront.cu.waves:
        return deadlock.for_slot(system.model.max_outstanding, "its CU")
    if wavefront.waits_for_slot and operation is not None and not semaphores:
        return deadlock.for_slot(operation.unroll, "the wavefront")
    return deadlock.for_lines(wavefront.unfinished, semaphores)
