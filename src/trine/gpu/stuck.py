"""Who waits for whom, when nothing can happen any more: reads the state of the compiled loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import trine.gpu._state as S
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
from trine.gpu.program import ACQUIRE, OP_NAMES
from trine.gpu.system import GpuSystem

if TYPE_CHECKING:
    from trine.gpu.start import State


def stuck_error(state: State, system: GpuSystem) -> DeadlockError:
    """The error that names the first wavefronts that wait, and kernels that found no room."""
    machine = state.machine
    wave = machine.wave.reshape(-1, S.WAVE_HALVES)
    waiting = np.flatnonzero((wave[:, S.W_DOING] != S.D_GONE) & (wave[:, S.W_DOING] != S.D_OVER))
    requests = _waiting_requests(state)
    stuck = [_wavefront(state, system, int(place), requests) for place in waiting[:SHOWN]]
    left = int(system.graph.num_tasks - state.scalars[S.NUM_DONE])
    return gpu_deadlock(
        stuck, len(waiting), _without_room(state, system), left, int((system.gpu_of >= 0).sum()) // system.num_gpus
    )


def _waiting_requests(state: State) -> dict[int, list[int]]:
    """Of each wavefront the semaphores that its requests wait for: parked at the memory, or asked again and again."""
    entities, first = state.entities, int(state.numbers[S.N_FIRST_REQUEST])
    half = entities.half.reshape(-1, S.ENTITY_HALVES)
    cold = entities.cold.reshape(-1, S.COLD)
    free = np.zeros(len(cold), np.bool_)
    free[entities.fresh[: state.scalars[S.NUM_FREE_REQUESTS]] - first] = True
    asks = (cold[:, S.KIND] == S.KIND_LOAD) | (cold[:, S.KIND] == S.KIND_ACQUIRE)
    found: dict[int, list[int]] = {}
    for i in np.flatnonzero(~free & asks & (cold[:, S.SEMAPHORE] >= 0) & (cold[:, S.AMOUNT] > 0)).tolist():
        found.setdefault(int(half[first + i, S.WAVE]), []).append(i)
    return found


def _wavefront(state: State, system: GpuSystem, place: int, requests: dict[int, list[int]]) -> StuckWavefront:
    program = system.program
    wave = state.machine.wave.reshape(-1, S.WAVE_HALVES)[place]
    group, op = int(wave[S.W_GROUP]), int(wave[S.W_OP])
    kernel = int(state.code.group_kernel[group])
    is_over = op == int(wave[S.W_END])
    label = -1 if is_over else int(program.op_label[op])
    return StuckWavefront(
        rank=int(system.ranks[program.kernel_rank[kernel]]),
        kernel=program.kernel_names[kernel] if program.kernel_names else str(kernel),
        workgroup=group - int(program.kernel_ptr[kernel]),
        wavefront=int(wave[S.W_INDEX]),
        operation=op - int(program.workgroup_ptr[group]),
        operation_name="" if is_over else OP_NAMES[int(program.op_kind[op])],
        label="" if label < 0 else program.labels[label],
        waits_for=_reason(state, system, place, requests.get(place, [])),
    )


def _reason(state: State, system: GpuSystem, place: int, requests: list[int]) -> str:
    wave = state.machine.wave.reshape(-1, S.WAVE_HALVES)[place]
    doing, group, op = int(wave[S.W_DOING]), int(wave[S.W_GROUP]), int(wave[S.W_OP])
    if doing == S.D_BARRIER:
        return for_barrier(int(state.machine.group_at[group]), int(wave[S.W_COUNT]))
    flags = [_semaphore(state, system, request) for request in requests]
    if doing == S.D_ACQUIRING and flags and system.program.op_kind[op] == ACQUIRE:
        return flags[0]
    if doing == S.D_QUEUED:
        return for_place(system.model.max_outstanding, "its CU")
    if doing == S.D_FULL and not flags:
        return for_place(int(system.program.op_unroll[op]) or system.model.unroll, "the wavefront")
    return for_lines(int(wave[S.W_UNFINISHED]), flags)


def _semaphore(state: State, system: GpuSystem, request: int) -> str:
    cold = state.entities.cold.reshape(-1, S.COLD)[request]
    gpu, number = divmod(int(cold[S.SEMAPHORE]), system.program.semaphores.shape[1])
    value = int(state.machine.semaphore[cold[S.SEMAPHORE]])
    return for_semaphore(number, int(system.ranks[gpu]), value, int(cold[S.AMOUNT]))


def _without_room(state: State, system: GpuSystem) -> list[str]:
    program = system.program
    started = state.machine.kernel.reshape(-1, 3)[:, 0]
    left = np.diff(program.kernel_ptr) - started
    queued = np.flatnonzero((left > 0) & _has_started(state, system)).tolist()
    names = program.kernel_names or tuple(map(str, range(program.num_kernels)))
    return [for_room(int(system.ranks[program.kernel_rank[k]]), names[k], int(left[k])) for k in queued]


def _has_started(state: State, system: GpuSystem) -> np.ndarray:
    """bool[kernels]: whether the task that carries it has."""
    task = state.code.kernel_task
    started = state.work.tasks["start_ps"] >= 0
    return np.where(task >= 0, started[task], False)
