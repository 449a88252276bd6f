"""Who waits for whom, when nothing can happen any more: reads the state of the compiled loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import trine.gpu._state as S
from trine._records import Record
from trine.errors import DeadlockError
from trine.gpu.deadlock import (
    SHOWN,
    QueuedKernel,
    StuckWavefront,
    for_barrier,
    for_lines,
    for_semaphore,
    for_slot,
    gpu_deadlock,
)
from trine.gpu.program import ACQUIRE
from trine.gpu.system import GpuSystem

if TYPE_CHECKING:
    from trine.gpu.start import GpuState


def stuck_error(state: GpuState, system: GpuSystem) -> DeadlockError:
    """The error that names the first wavefronts that wait, and kernels that found no room."""
    doing = state.tables.machine.waves["doing"]
    waiting = np.flatnonzero((doing != S.WAVE_GONE) & (doing != S.WAVE_ENDED))
    requests = _waiting_requests(state)
    stuck = [_wavefront(state, system, int(slot), requests.get(int(slot), [])) for slot in waiting[:SHOWN]]
    left = int(system.graph.num_tasks - state.clock.num_done)
    return gpu_deadlock(system, stuck, len(waiting), _without_room(state, system), left)


def has_use(state: GpuState) -> bool:
    """Whether one of those that ask again and again has its answer under way, or will find enough."""
    entities, asks = state.tables.entities, _asking(state)
    requests = entities.events[asks]
    enough = state.tables.machine.semaphores["amount"][requests["semaphore"]] >= requests["amount"]
    polls = requests["form"] >= S.POLL
    return bool((polls & (enough | (requests["amount"] == 0))).any())


def _asking(state: GpuState) -> npt.NDArray[np.int64]:
    """The requests at work that want something of a semaphore, or have got it and are on their way back."""
    entities, first = state.tables.entities, int(state.model.first_request)
    asks = np.isin(entities.events["kind"], (S.IS_LOAD, S.IS_ACQUIRE))
    asks[:first] = False
    asks[entities.free_requests[: state.clock.num_free_requests]] = False
    return np.flatnonzero(asks & (entities.events["semaphore"] >= 0))


def _waiting_requests(state: GpuState) -> dict[int, list[int]]:
    """Of each wavefront the requests that wait for semaphores: parked at the memory, or asked again and again."""
    entities = state.tables.entities
    found: dict[int, list[int]] = {}
    for number in _asking(state).tolist():
        if entities.events["amount"][number] > 0:
            found.setdefault(int(entities.events["wave"][number]), []).append(number)
    return found


def _wavefront(state: GpuState, system: GpuSystem, slot: int, requests: list[int]) -> StuckWavefront:
    wave = state.tables.machine.waves[slot]
    return StuckWavefront(
        int(wave["group"]), int(wave["index"]), int(wave["op"]), _reason(state, system, wave, requests)
    )


def _reason(state: GpuState, system: GpuSystem, wave: Record, requests: list[int]) -> str:
    doing, group, op = int(wave["doing"]), int(wave["group"]), int(wave["op"])
    if doing == S.WAVE_AT_BARRIER:
        return for_barrier(int(state.tables.machine.groups["at_barrier"][group]), int(wave["count"]))
    flags = [_semaphore(state, system, request) for request in requests]
    if doing == S.WAVE_ACQUIRING and flags and system.program.op_kind[op] == ACQUIRE:
        return flags[0]
    if doing == S.WAVE_QUEUED:
        return for_slot(system.model.max_outstanding, "its CU")
    if doing == S.WAVE_FULL and not flags:
        return for_slot(int(system.program.op_unroll[op]) or system.model.unroll, "the wavefront")
    return for_lines(int(wave["unfinished"]), flags)


def _semaphore(state: GpuState, system: GpuSystem, request: int) -> str:
    asked = state.tables.entities.events[request]
    gpu, number = divmod(int(asked["semaphore"]), system.program.semaphores.shape[1])
    amount = int(state.tables.machine.semaphores["amount"][asked["semaphore"]])
    return for_semaphore(number, int(system.ranks[gpu]), amount, int(asked["amount"]))


def _without_room(state: GpuState, system: GpuSystem) -> list[QueuedKernel]:
    left = np.diff(system.program.kernel_ptr) - state.tables.machine.kernels["next_group"]
    queued = np.flatnonzero((left > 0) & _has_started(state, system)).tolist()
    return [QueuedKernel(kernel, int(left[kernel])) for kernel in queued]


def _has_started(state: GpuState, system: GpuSystem) -> np.ndarray:
    """bool[kernels]: whether the task that carries it has."""
    task = state.tables.program.kernel_task
    started = state.tables.work.tasks["start_ps"] >= 0
    return np.where(task >= 0, started[task], False)
