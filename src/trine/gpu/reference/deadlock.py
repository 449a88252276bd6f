"""The plain-Python twin: whether anything can still happen, and who waits for what if not."""

from __future__ import annotations

from collections.abc import Sequence

from trine.errors import DeadlockError
from trine.gpu import deadlock
from trine.gpu.program import BARRIER
from trine.gpu.reference.requests import GpuMemory
from trine.gpu.reference.tasks import SimulatedGpu, TaskRunner
from trine.gpu.reference.wavefronts import WavefrontRequest, WavefrontRun
from trine.gpu.system import GpuSystem


def is_futile(gpus: Sequence[SimulatedGpu], memories: Sequence[GpuMemory]) -> bool:
    """All that is still done is asking again, and each has been told no since the last release of its semaphore.

    A replayed peer answers as it was recorded: what is asked of it again will have been of use.
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
    waiting: dict[WavefrontRun, list[WavefrontRequest]] = {}
    for request in _who_waits(gpus, memories):
        waiting.setdefault(request.wavefront, []).append(request)
    stuck = [
        wavefront
        for gpu in gpus
        for cu in gpu.cus
        for workgroup in cu.workgroups
        for wavefront in workgroup.wavefronts
        if not wavefront.has_ended
    ]
    stuck.sort(key=lambda wavefront: (wavefront.cu.rank, wavefront.wave_slot))
    shown = [
        deadlock.StuckWavefront(
            wavefront.workgroup.number,
            wavefront.number,
            wavefront.at,
            _reason(system, memories, wavefront, waiting.get(wavefront, [])),
        )
        for wavefront in stuck[: deadlock.SHOWN]
    ]
    queued = [
        deadlock.QueuedKernel(run.kernel, run.last_workgroup - run.next_workgroup) for gpu in gpus for run in gpu.queue
    ]
    return deadlock.gpu_deadlock(system, shown, len(stuck), queued, tasks.graph.num_tasks - tasks.num_done)


def _who_waits(gpus: Sequence[SimulatedGpu], memories: Sequence[GpuMemory]) -> list[WavefrontRequest]:
    """For semaphores: in the memories, and those that ask again or sleep."""
    queued = [request for memory in memories for queue in memory.waiting.values() for request in queue]
    waiting = [request for request in queued if isinstance(request, WavefrontRequest)]
    return waiting + [request for gpu in gpus for cu in gpu.cus for request in cu.asking]


def _reason(
    system: GpuSystem, memories: Sequence[GpuMemory], wavefront: WavefrontRun, waiting: Sequence[WavefrontRequest]
) -> str:
    operation = wavefront.operation
    semaphores = [
        deadlock.for_semaphore(
            request.semaphore, request.peer, memories[request.target].values[request.semaphore], request.amount
        )
        for request in sorted(waiting, key=lambda request: request.number)
    ]
    if operation is not None and operation.kind == BARRIER:
        return deadlock.for_barrier(len(wavefront.workgroup.at_barrier), len(wavefront.workgroup.wavefronts))
    if any(not request.is_flagged_load for request in waiting):
        return semaphores[0]
    if wavefront in wavefront.cu.waves:
        return deadlock.for_slot(system.model.max_outstanding, "its CU")
    if wavefront.waits_for_slot and operation is not None and not semaphores:
        return deadlock.for_slot(operation.unroll, "the wavefront")
    return deadlock.for_lines(wavefront.unfinished, semaphores)
