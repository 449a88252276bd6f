"""What the wavefronts of a run wait for, and the error of a deadlock."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import trine.gpu._state as S
from trine.common._records import Record
from trine.errors import DeadlockError
from trine.gpu import deadlock
from trine.gpu.program import ACQUIRE
from trine.gpu.start import GpuState
from trine.gpu.system import GpuSystem


def stuck_error(state: GpuState, system: GpuSystem) -> DeadlockError:
    """Return the error that names the first waiting wavefronts, and kernels that found no room."""
    doing = state.tables.machine.waves["doing"]
    waiting = np.flatnonzero((doing != S.WAVE_GONE) & (doing != S.WAVE_ENDED))
    stuck = waiting_wavefronts(state, system, waiting[: deadlock.SHOWN].tolist())
    unfinished_tasks = int(system.graph.num_tasks - state.clock.num_done)
    return deadlock.gpu_deadlock(system, stuck, len(waiting), _without_room(state, system), unfinished_tasks)


def waiting_wavefronts(state: GpuState, system: GpuSystem, slots: list[int]) -> list[deadlock.StuckWavefront]:
    """Return the wavefronts in these slots, each with what it waits for."""
    requests = _waiting_requests(state)
    return [_wavefront(state, system, slot, requests.get(slot, [])) for slot in slots]


def has_use(state: GpuState) -> bool:
    """Return whether a polling request has its answer on the way, or will find its semaphore high enough."""
    entities, asks = state.tables.entities, _asking(state)
    requests = entities.requests[asks]
    enough = state.tables.machine.semaphores["amount"][requests["semaphore"]] >= requests["amount"]
    polls = requests["form"] >= S.POLL
    return bool((polls & (enough | (requests["amount"] == 0))).any())


def _asking(state: GpuState) -> npt.NDArray[np.int64]:
    """Return the active requests that need a semaphore, or have acquired it and are returning."""
    entities, first = state.tables.entities, int(state.model.first_request)
    asks = np.isin(entities.requests["kind"], (S.IS_LOAD, S.IS_ACQUIRE))
    asks[:first] = False
    asks[entities.free_requests[: state.clock.num_free_requests]] = False
    return np.flatnonzero(asks & (entities.requests["semaphore"] >= 0))


def _waiting_requests(state: GpuState) -> dict[int, list[int]]:
    """Return for each wavefront the requests that wait for semaphores: parked at the memory, or polling."""
    entities = state.tables.entities
    requests_of: dict[int, list[int]] = {}
    for number in _asking(state).tolist():
        if entities.requests["amount"][number] > 0:
            requests_of.setdefault(int(entities.requests["wave"][number]), []).append(number)
    return requests_of


def _wavefront(state: GpuState, system: GpuSystem, slot: int, requests: list[int]) -> deadlock.StuckWavefront:
    wave = state.tables.machine.waves[slot]
    return deadlock.StuckWavefront(
        int(wave["group"]), int(wave["index"]), int(wave["op"]), _reason(state, system, wave, requests)
    )


def _reason(state: GpuState, system: GpuSystem, wave: Record, requests: list[int]) -> str:
    doing, group, op = int(wave["doing"]), int(wave["group"]), int(wave["op"])
    if doing == S.WAVE_AT_BARRIER:
        return deadlock.for_barrier(int(state.tables.machine.groups["at_barrier"][group]), int(wave["count"]))
    flags = [_semaphore(state, system, request) for request in requests]
    if doing == S.WAVE_ACQUIRING and flags and system.program.op_kind[op] == ACQUIRE:
        return flags[0]
    if doing == S.WAVE_QUEUED:
        return deadlock.for_slot(system.model.max_outstanding, "its CU")
    if doing == S.WAVE_FULL and not flags:
        return deadlock.for_slot(int(system.program.op_unroll[op]) or system.model.unroll, "the wavefront")
    return deadlock.for_lines(int(wave["unfinished"]), flags)


def _semaphore(state: GpuState, system: GpuSystem, request: int) -> str:
    record = state.tables.entities.requests[request]
    gpu, number = divmod(int(record["semaphore"]), system.program.semaphores.shape[1])
    amount = int(state.tables.machine.semaphores["amount"][record["semaphore"]])
    return deadlock.for_semaphore(number, int(system.ranks[gpu]), amount, int(record["amount"]))


def _without_room(state: GpuState, system: GpuSystem) -> list[deadlock.QueuedKernel]:
    unstarted = np.diff(system.program.kernel_ptr) - state.tables.machine.kernels["next_group"]
    queued = np.flatnonzero((unstarted > 0) & _has_started(state, system)).tolist()
    return [deadlock.QueuedKernel(kernel, int(unstarted[kernel])) for kernel in queued]


def _has_started(state: GpuState, system: GpuSystem) -> np.ndarray:
    """Return bool[kernels]: whether the task that carries the kernel has started."""
    task = state.tables.program.kernel_task
    started = state.tables.work.tasks["start_ps"] >= 0
    return np.where(task >= 0, started[task], False)
