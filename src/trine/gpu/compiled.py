"""Shell of the compiled load-store loop: runs it, reports progress, raises. Imports numba."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import numpy as np

import trine.gpu._state as S
from trine._jit import is_cold
from trine._records import Record, for_kernel, one_for_kernel
from trine.arrays import Int64
from trine.engine._limits import MAX_PS
from trine.errors import InputError, SimulationError
from trine.gpu._loop import advance
from trine.gpu._scheduler import finish_states
from trine.gpu.path_table import lane_columns
from trine.gpu.record import answer_fault, arrivals_of
from trine.gpu.records import STATE_NAMES, GpuOutcome, GpuRecords
from trine.gpu.start import GpuState, begin_peers, goes_on, more_lines, more_log, more_requests, new_state
from trine.gpu.stuck import has_use
from trine.gpu.system import GpuSystem
from trine.gpu.tables import requests_in_all
from trine.graph.taskgraph import PROGRESS_S, Progress, Records

#: Events between two looks at the clock and at Ctrl-C: some 50 ms.
BUDGET = 1 << 20


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
    begin_peers(state)
    if until_ps is not None:
        state.clock.stop_ps = until_ps
    return _finish(state, system, progress, stop_when_stuck)


def simulate_until(
    system: GpuSystem, first: Int64, progress: Progress | None = None, on_compile: Callable[[], None] | None = None
) -> GpuState:
    """The state when the last of the operations ``first`` has begun, or nothing can happen, and nothing has come.

    first: the first acquire of each workgroup; -2 in ``counters.op_start`` of those that have not begun.
    """
    if on_compile is not None and is_cold_loop():
        on_compile()
    state = new_state(system)
    state.tables.counters.op_start[first] = S.LOOKED_FOR
    state.clock.not_waiting = len(first)
    _drive(state, system, progress)
    return state


def simulate_from(state: GpuState, system: GpuSystem, progress: Progress | None = None) -> GpuOutcome:
    """Go on from a state of :func:`simulate_until`, which stays as it is; ``system``: as of ``goes_on``."""
    return _finish(goes_on(state, system), system, progress)


def _finish(
    state: GpuState, system: GpuSystem, progress: Progress | None, stop_when_stuck: bool = False
) -> GpuOutcome:  # fmt: skip
    try:
        finished = _drive(state, system, progress)
    except KeyboardInterrupt:
        if stop_when_stuck:
            raise  # or it would look as if it were stuck
        finished = False
    if finished and state.clock.num_done < system.graph.num_tasks:
        if not stop_when_stuck:
            raise _deadlock(state, system)
        finished = False
    return _outcome(state, system, finished)


def _drive(state: GpuState, system: GpuSystem, progress: Progress | None) -> bool:
    """Let everything happen that can happen; False: the instant to stop at has come."""
    total = requests_in_all(system)
    clock = state.clock
    reported = monotonic()
    while True:
        status = int(advance(for_kernel(state.tables), _clock(state), one_for_kernel(state.models)[0], BUDGET))
        if status == S.FINISHED or (status == S.STUCK and not has_use(state)):
            return True
        if status == S.STUCK:
            clock.idle = 0
        if status == S.STOPPED:
            clock.now = clock.stop_ps
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
            raise InputError(answer_fault(state.tables, clock, state.model, system), field="outside")
        if progress is not None and monotonic() - reported > PROGRESS_S:
            progress(int(clock.num_issued), total, int(clock.now))
            reported = monotonic()


def _clock(state: GpuState) -> Record:
    return one_for_kernel(state.clocks)[0]


def _deadlock(state: GpuState, system: GpuSystem) -> SimulationError:
    from trine.gpu.stuck import stuck_error

    return stuck_error(state, system)


def _outcome(state: GpuState, system: GpuSystem, finished: bool) -> GpuOutcome:
    tables, clock = state.tables, state.clock
    if not finished:
        finish_states(for_kernel(tables.machine), for_kernel(tables.counters), _clock(state))
    tasks = tables.work.tasks
    records = Records(
        ready_ps=tasks["ready_ps"].copy(),
        start_ps=tasks["start_ps"].copy(),
        end_ps=tasks["end_ps"].copy(),
        num_events=int(clock.num_events),
        engine="compiled",
        network="loadstore",
    )
    arrivals = None
    if finished and system.record >= 0:
        arrivals = arrivals_of(tables.peers.log[: clock.num_log], system, int(state.model.waves))
    return GpuOutcome(records, gpu_records(state, system), finished, arrivals)


def gpu_records(state: GpuState, system: GpuSystem) -> GpuRecords:
    """What has happened so far."""
    counters, gpus = state.tables.counters, system.num_gpus
    resources, counts = state.tables.machine.resources, counters.counts
    inside = gpus * system.layout.num_resources
    own, lanes = resources[:inside].reshape(gpus, -1), resources[inside:]
    links, numbers = lane_columns(state.fabric.lanes)
    loads, stores, acquires, releases = counts["issued"].T
    return GpuRecords(
        ranks=system.ranks,
        gpu_of=system.gpu_of,
        workgroup_start_ps=counters.group_start,
        workgroup_end_ps=counters.group_end,
        workgroup_cu=counters.group_cu,
        op_start_ps=counters.op_start,
        op_end_ps=counters.op_end,
        state_ps=counters.state.reshape(gpus, system.model.num_cus, len(STATE_NAMES)),
        resource_data=own["messages"][:, :, 0].copy(),
        resource_control=own["messages"][:, :, 1].copy(),
        resource_busy_ps=own["busy_ps"].copy(),
        lane_link=np.array(links, np.int32),
        lane_number=np.array(numbers, np.int32),
        lane_data=lanes["messages"][:, 0].copy(),
        lane_control=lanes["messages"][:, 1].copy(),
        lane_busy_ps=lanes["busy_ps"].copy(),
        loads=loads.copy(),
        stores=stores.copy(),
        acquires=acquires.copy(),
        releases=releases.copy(),
        polls=counts["polls"].copy(),
        load_latency_ps=counts["load_ps"].copy(),
        packets=counts["packets"].copy(),
        l2_hits=counts["hits"].copy(),
        l2_misses=counts["misses"].copy(),
        flagged_loads=counts["flagged"].copy(),
        wakeups=counts["wakeups"].copy(),
        spurious_wakeups=counts["spurious"].copy(),
        monitor_full=counts["monitor_full"].copy(),
        resources=system.layout.names,
        end_ps=int(state.clock.now),
        num_events=int(state.clock.num_events),
        engine="compiled",
    )
