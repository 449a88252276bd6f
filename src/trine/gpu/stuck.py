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
    doing = state.tables.machine.waves["doing"]
    waiting = np.flatnonzero((doing != S.WAVE_GONE) & (doing != S.WAVE_ENDED))
    requests = _waiting_requests(state)
    stuck = [_wavefront(state, system, int(place), requests) for place in waiting[:SHOWN]]
    left = int(system.graph.num_tasks - state.clock.num_done)
    return gpu_deadlock(
        stuck, len(waiting), _without_room(state, system), left, int((system.gpu_of >= 0).sum()) // system.num_gpus
    )


def _waiting_requests(state: State) -> dict[int, list[int]]:
    """Of each wavefront the requests that wait for semaphores: parked at the memory, or asked again and again."""
    entities, first = state.tables.entities, int(state.model.first_request)
    asks = np.isin(entities.requests["kind"], (S.IS_LOAD, S.IS_ACQUIRE))
    asks[:first] = False
    asks[entities.free_requests[: state.clock.num_free_requests]] = False
    asks &= (entities.requests["semaphore"] >= 0) & (entities.requests["amount"] > 0)
    found: dict[int, list[int]] = {}
    for number in np.flatnonzero(asks).tolist():
        found.setdefault(int(entities.events["wave"][number]), []).append(number)
    return found


def _wavefront(state: State, system: GpuSystem, place: int, requests: dict[int, list[int]]) -> StuckWavefront:
    program = system.program
    wave = state.tables.machine.waves[place]
    group, op = int(wave["group"]), int(wave["op"])
    kernel = int(state.tables.program.group_kernel[group])
    is_over = op == int(wave["end"])
    label = -1 if is_over else int(program.op_label[op])
    return StuckWavefront(
        rank=int(system.ranks[program.kernel_rank[kernel]]),
        kernel=program.kernel_names[kernel] if program.kernel_names else str(kernel),
        workgroup=group - int(program.kernel_ptr[kernel]),
        wavefront=int(wave["index"]),
        operation=op - int(program.workgroup_ptr[group]),
        operation_name="" if is_over else OP_NAMES[int(program.op_kind[op])],
        label="" if label < 0 else program.labels[label],
        waits_for=_reason(state, system, place, requests.get(place, [])),
    )


def _reason(state: State, system: GpuSystem, place: int, requests: list[int]) -> str:
    wave = state.tables.machine.waves[place]
    doing, group, op = int(wave["doing"]), int(wave["group"]), int(wave["op"])
    if doing == S.WAVE_AT_BARRIER:
        return for_barrier(int(state.tables.machine.groups["at_barrier"][group]), int(wave["count"]))
    flags = [_semaphore(state, system, request) for request in requests]
    if doing == S.WAVE_ACQUIRING and flags and system.program.op_kind[op] == ACQUIRE:
        return flags[0]
    if doing == S.WAVE_QUEUED:
        return for_place(system.model.max_outstanding, "its CU")
    if doing == S.WAVE_FULL and not flags:
        return for_place(int(system.program.op_unroll[op]) or system.model.unroll, "the wavefront")
    return for_lines(int(wave["unfinished"]), flags)


def _semaphore(state: State, system: GpuSystem, request: int) -> str:
    asked = state.tables.entities.requests[request]
    gpu, number = divmod(int(asked["semaphore"]), system.program.semaphores.shape[1])
    amount = int(state.tables.machine.semaphores["amount"][asked["semaphore"]])
    return for_semaphore(number, int(system.ranks[gpu]), amount, int(asked["amount"]))


def _without_room(state: State, system: GpuSystem) -> list[str]:
    program = system.program
    started = state.tables.machine.kernels["next_group"]
    left = np.diff(program.kernel_ptr) - started
    queued = np.flatnonzero((left > 0) & _has_started(state, system)).tolist()
    names = program.kernel_names or tuple(map(str, range(program.num_kernels)))
    return [for_room(int(system.ranks[program.kernel_rank[k]]), names[k], int(left[k])) for k in queued]


def _has_started(state: State, system: GpuSystem) -> np.ndarray:
    """bool[kernels]: whether the task that carries it has."""
    task = state.tables.program.kernel_task
    started = state.tables.work.tasks["start_ps"] >= 0
    return np.where(task >= 0, started[task], False)
