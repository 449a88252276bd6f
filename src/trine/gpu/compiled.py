"""Shell of the compiled load-store loop: runs it, reports progress, raises. Imports numba."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import numpy as np

import trine.gpu._state as S
from trine._jit import is_cold
from trine._records import for_kernel
from trine.arrays import Int64
from trine.engine._limits import MAX_PS
from trine.errors import InputError, SimulationError
from trine.gpu._acts import finish_states
from trine.gpu._loop import advance
from trine.gpu.record import answer_fault, arrivals_of
from trine.gpu.records import STATE_NAMES, GpuOutcome, GpuRecords
from trine.gpu.start import State, begin_outside, goes_on, more_lines, more_log, more_requests, new_state
from trine.gpu.system import GpuSystem
from trine.gpu.tables import requests_in_all
from trine.gpu.way_table import lane_columns
from trine.graph.taskgraph import Progress, Records

#: Events between two looks at the clock and at Ctrl-C: some 50 ms.
BUDGET = 1 << 20
PROGRESS_S = 0.25


def is_cold_loop() -> bool:
    """Whether the next run has to compile the loop first."""
    return is_cold(advance)


def simulate(
    system: GpuSystem,
    progress: Progress | None = None,
    until_ps: int | None = None,
    on_compile: Callable[[], None] | None = None,
    stop_when_stuck: bool = False,
) -> GpuOutcome:
    """Run ``system``; stops early at ``until_ps``, on Ctrl-C, or (``stop_when_stuck``) in place of a DeadlockError.

    Raises
    ------
    DeadlockError: nothing can happen any more; names the wavefronts that wait.
    InputError: the record of what comes from outside is of another program or model.
    SimulationError: simulated time passes 106 days.
    """
    if on_compile is not None and is_cold_loop():
        on_compile()
    state = new_state(system)
    begin_outside(state)
    if until_ps is not None:
        state.scalars[S.STOP_PS] = until_ps
    return _finish(state, system, progress, stop_when_stuck)


def simulate_until(
    system: GpuSystem, first: Int64, progress: Progress | None = None, on_compile: Callable[[], None] | None = None
) -> State:
    """The state when the last of the operations ``first`` has begun, or nothing can happen, and nothing has come.

    first: the first acquire of each workgroup; -2 in ``seen.op_start`` of those that have not begun.
    """
    if on_compile is not None and is_cold_loop():
        on_compile()
    state = new_state(system)
    state.seen.op_start[first] = S.LOOKED_FOR
    state.scalars[S.NOT_WAITING] = len(first)
    _drive(state, system, progress)
    return state


def simulate_from(state: State, system: GpuSystem, progress: Progress | None = None) -> GpuOutcome:
    """Go on from a state of :func:`simulate_until`, which stays as it is; ``system``: as of ``goes_on``."""
    return _finish(goes_on(state, system), system, progress)


def _finish(
    state: State, system: GpuSystem, progress: Progress | None, stop_when_stuck: bool = False
) -> GpuOutcome:  # fmt: skip
    try:
        finished = _drive(state, system, progress)
    except KeyboardInterrupt:
        if stop_when_stuck:
            raise  # or it would look as if it were stuck
        finished = False
    if finished and state.scalars[S.NUM_DONE] < system.graph.num_tasks:
        if not stop_when_stuck:
            raise _deadlock(state, system)
        finished = False
    return _outcome(state, system, finished)


def _drive(state: State, system: GpuSystem, progress: Progress | None) -> bool:
    """Let everything happen that can happen; False: the instant to stop at has come."""
    total = requests_in_all(system)
    scalars = state.scalars
    reported = monotonic()
    while True:
        status = int(
            advance(
                for_kernel(state.work), state.code, state.ways, state.outside, state.entities, state.wheel,
                state.machine, state.seen, scalars, state.numbers, BUDGET,
            )
        )  # fmt: skip
        if status in (S.FINISHED, S.STUCK):
            return True
        if status == S.STOPPED:
            scalars[S.NOW] = scalars[S.STOP_PS]
            return False
        if status == S.OVERFLOW:
            raise SimulationError(f"simulated time passes {MAX_PS // 10**12} s")
        if status == S.REQUESTS_FULL:
            more_requests(state)
        elif status == S.LINES_FULL:
            more_lines(state)
        elif status == S.LOG_FULL:
            more_log(state)
        elif status == S.NO_ANSWER:
            raise InputError(
                answer_fault(state.entities, state.outside, scalars, state.numbers, system), field="outside"
            )
        if progress is not None and monotonic() - reported > PROGRESS_S:
            progress(int(scalars[S.NUM_ISSUED]), total, int(scalars[S.NOW]))
            reported = monotonic()


def _deadlock(state: State, system: GpuSystem) -> SimulationError:
    from trine.gpu.stuck import stuck_error

    return stuck_error(state, system)


def _outcome(state: State, system: GpuSystem, finished: bool) -> GpuOutcome:
    tasks, scalars = state.work.tasks, state.scalars
    if not finished:
        finish_states(state.code, state.machine, state.seen, scalars)
    records = Records(
        ready_ps=tasks["ready_ps"].copy(),
        start_ps=tasks["start_ps"].copy(),
        end_ps=tasks["end_ps"].copy(),
        num_events=int(scalars[S.NUM_EVENTS]),
        engine="compiled",
        network="loadstore",
    )
    arrivals = None
    if finished and system.record >= 0:
        log = state.outside.log[: S.LOG_WORDS * scalars[S.NUM_LOG]].reshape(-1, S.LOG_WORDS)
        arrivals = arrivals_of(log, system, int(state.numbers[S.N_WAVES]))
    return GpuOutcome(records, gpu_records(state, system), finished, arrivals)


def gpu_records(state: State, system: GpuSystem) -> GpuRecords:
    """What has happened so far."""
    seen, gpus = state.seen, system.num_gpus
    resource = state.machine.resource.reshape(-1, S.RESOURCE_WORDS)
    inside = gpus * system.layout.num_resources
    own, lane = resource[:inside].reshape(gpus, -1, S.RESOURCE_WORDS), resource[inside:]
    counts = seen.counts.reshape(gpus, S.NUM_COUNTS)
    links, numbers = lane_columns(state.table.lanes)
    return GpuRecords(
        ranks=system.ranks,
        gpu_of=system.gpu_of,
        workgroup_start_ps=seen.group_start,
        workgroup_end_ps=seen.group_end,
        workgroup_cu=seen.group_cu,
        op_start_ps=seen.op_start,
        op_end_ps=seen.op_end,
        state_ps=seen.state.reshape(gpus, system.model.num_cus, len(STATE_NAMES)),
        resource_data=own[:, :, S.R_DATA].copy(),
        resource_control=own[:, :, S.R_CONTROL].copy(),
        resource_busy_ps=own[:, :, S.R_BUSY_PS].copy(),
        lane_link=np.array(links, np.int32),
        lane_number=np.array(numbers, np.int32),
        lane_data=lane[:, S.R_DATA].copy(),
        lane_control=lane[:, S.R_CONTROL].copy(),
        lane_busy_ps=lane[:, S.R_BUSY_PS].copy(),
        loads=counts[:, S.N_LOADS].copy(),
        stores=counts[:, S.N_STORES].copy(),
        acquires=counts[:, S.N_ACQUIRES].copy(),
        releases=counts[:, S.N_RELEASES].copy(),
        polls=counts[:, S.N_POLLS].copy(),
        load_latency_ps=counts[:, S.N_LOAD_PS].copy(),
        packets=counts[:, S.N_PACKETS].copy(),
        l2_hits=counts[:, S.N_HITS].copy(),
        l2_misses=counts[:, S.N_MISSES].copy(),
        flagged_loads=counts[:, S.N_FLAGGED].copy(),
        wakeups=counts[:, S.N_WAKEUPS].copy(),
        spurious_wakeups=counts[:, S.N_SPURIOUS].copy(),
        monitor_full=counts[:, S.N_MONITOR_FULL].copy(),
        resources=system.layout.names,
        end_ps=int(state.scalars[S.NOW]),
        num_events=int(state.scalars[S.NUM_EVENTS]),
        engine="compiled",
    )
