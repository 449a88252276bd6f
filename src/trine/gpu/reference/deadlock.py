"""The plain-Python twin: whether anything can still happen, and who waits for what if not."""

from __future__ import annotations

from collections.abc import Sequence

from trine.errors import DeadlockError
from trine.gpu.deadlock import (
    SHOWN,
    StuckWavefront,
    for_barrier,
    for_lines,
    for_place,
    for_room,
    for_semaphore,
    gpu_deadlock,
)
from trine.gpu.program import BARRIER, OP_NAMES
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
    rooms = [
        for_room(
            gpu.shared.ranks[gpu.number], _kernel_name(system, run.kernel), run.last_workgroup - run.next_workgroup
        )
        for gpu in gpus
        for run in gpu.queue
    ]
    shown = [_describe(system, memories, wavefront, waiting.get(wavefront, [])) for wavefront in stuck[:SHOWN]]
    left = tasks.graph.num_tasks - tasks.num_done
    ranks_each = int((system.gpu_of >= 0).sum()) // system.num_gpus
    return gpu_deadlock(shown, len(stuck), rooms, left, ranks_each)


def _who_waits(gpus: Sequence[SimulatedGpu], memories: Sequence[GpuMemory]) -> list[WavefrontRequest]:
    """For semaphores: in the memories, and those that ask again or sleep."""
    queued = [request for memory in memories for queue in memory.waiting.values() for request in queue]
    waiting = [request for request in queued if isinstance(request, WavefrontRequest)]
    return waiting + [request for gpu in gpus for cu in gpu.cus for request in cu.asking]


def _describe(
    system: GpuSystem, memories: Sequence[GpuMemory], wavefront: WavefrontRun, waiting: Sequence[WavefrontRequest]
) -> StuckWavefront:
    program, operation = system.program, wavefront.operation
    kernel = _kernel_of(system, wavefront.workgroup.number)
    label = int(program.op_label[operation.number]) if operation is not None else -1
    return StuckWavefront(
        rank=wavefront.cu.rank,
        kernel=_kernel_name(system, kernel),
        workgroup=wavefront.workgroup.number - int(program.kernel_ptr[kernel]),
        wavefront=wavefront.number,
        operation=wavefront.at - wavefront.workgroup.first_op,
        operation_name="" if operation is None else OP_NAMES[operation.kind],
        label=program.labels[label] if label >= 0 else "",
        waits_for=_reason(system, memories, wavefront, waiting),
    )


def _reason(
    system: GpuSystem, memories: Sequence[GpuMemory], wavefront: WavefrontRun, waiting: Sequence[WavefrontRequest]
) -> str:
    operation = wavefront.operation
    semaphores = [
        for_semaphore(
            request.semaphore, request.peer, memories[request.target].values[request.semaphore], request.amount
        )
        for request in sorted(waiting, key=lambda request: request.number)
    ]
    if operation is not None and operation.kind == BARRIER:
        return for_barrier(len(wavefront.workgroup.at_barrier), len(wavefront.workgroup.wavefronts))
    if any(not request.is_flagged_load for request in waiting):
        return semaphores[0]
    if wavefront in wavefront.cu.waves:
        return for_place(system.model.max_outstanding, "its CU")
    if wavefront.waits_for_slot and operation is not None and not semaphores:
        return for_place(operation.unroll, "the wavefront")
    return for_lines(wavefront.unfinished, semaphores)


def _kernel_of(system: GpuSystem, workgroup: int) -> int:
    return int(system.program.kernel_ptr.searchsorted(workgroup, side="right")) - 1


def _kernel_name(system: GpuSystem, kernel: int) -> str:
    names = system.program.kernel_names
    return names[kernel] if names else str(kernel)
