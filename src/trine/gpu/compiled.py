"""Driver of the compiled load-store loop: runs it, reports progress, raises errors. Imports numba."""

from __future__ import annotations

from functools import partial
from time import monotonic

import numpy as np

import trine.gpu._state as S
from trine.common._records import Record, RecordArray, for_kernel, one_for_kernel
from trine.common.arrays import Int64
from trine.common.observer import PROGRESS_S, announce_compiling, current_observer
from trine.engine._limits import MAX_PS
from trine.errors import InputError, SimulationError
from trine.gpu._loop import advance
from trine.gpu._scheduler import finish_states
from trine.gpu._state import LoopTables
from trine.gpu.live_view import view_of_gpus
from trine.gpu.path_table import lane_columns
from trine.gpu.peers import PUT, STORE, Arrivals
from trine.gpu.records import STATE_NAMES, GpuOutcome, GpuRecords
from trine.gpu.start import GpuState, begin_peers, goes_on, more_lines, more_log, more_requests, new_state
from trine.gpu.stuck import has_use, stuck_error
from trine.gpu.system import GpuSystem
from trine.gpu.tables import requests_in_all
from trine.graph.taskgraph import Records

#: Events between two checks of the clock and of Ctrl-C: about 50 ms.
BUDGET = 1 << 20


def simulate(system: GpuSystem, until_ps: int | None = None, stop_when_stuck: bool = False) -> GpuOutcome:
    """Run ``system``; stop early at ``until_ps``, on Ctrl-C, or (``stop_when_stuck``) instead of a DeadlockError.

    Raises
    ------
    DeadlockError: no event can happen any more; names the waiting wavefronts.
    InputError: the replayed record belongs to another program or model.
    SimulationError: simulated time passes 106 days.
    """
    announce_compiling(advance)
    state = new_state(system)
    begin_peers(state)
    if until_ps is not None:
        state.clock.stop_ps = until_ps
    return _finish(state, system, stop_when_stuck)


def simulate_until(system: GpuSystem, first: Int64) -> GpuState:
    """Return the state, before any arrivals, once all operations ``first`` have begun or no event can happen.

    first: the first acquire of each workgroup; ``counters.op_start`` is -2 for those that have not begun.
    """
    announce_compiling(advance)
    state = new_state(system)
    state.tables.counters.op_start[first] = S.LOOKED_FOR
    state.clock.not_waiting = len(first)
    _drive(state, system)
    return state


def simulate_from(state: GpuState, system: GpuSystem) -> GpuOutcome:
    """Continue from a state of :func:`simulate_until`, without changing it; ``system``: as in ``goes_on``."""
    return _finish(goes_on(state, system), system)


def _finish(state: GpuState, system: GpuSystem, stop_when_stuck: bool = False) -> GpuOutcome:
    try:
        finished = _drive(state, system)
    except KeyboardInterrupt:
        if stop_when_stuck:
            raise  # otherwise an interrupted run would look stuck
        finished = False
    if finished and state.clock.num_done < system.graph.num_tasks:
        if not stop_when_stuck:
            raise stuck_error(state, system)
        finished = False
    return _outcome(state, system, finished)


def _drive(state: GpuState, system: GpuSystem) -> bool:
    """Process all events. Returns False if the run reached its stop time first."""
    total, progress = requests_in_all(system), current_observer().progress
    control, budget = current_observer().control, BUDGET
    clock = state.clock
    reported = monotonic()
    while True:
        if control is not None:
            budget = control.chunk(BUDGET, partial(view_of_gpus, state, system))
        status = int(advance(for_kernel(state.tables), _clock(state), one_for_kernel(state.models)[0], budget))
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


def _outcome(state: GpuState, system: GpuSystem, finished: bool) -> GpuOutcome:
    tables, clock = state.tables, state.clock
    if not finished:
        finish_states(for_kernel(tables.machine), for_kernel(tables.counters), _clock(state))
    tasks = tables.work.tasks
    records = Records(
        ready_ps=tasks["ready_ps"].copy(), start_ps=tasks["start_ps"].copy(), end_ps=tasks["end_ps"].copy(),
        num_events=int(clock.num_events), engine="compiled", network="loadstore",
    )  # fmt: skip
    arrivals = None
    if finished and system.record >= 0:
        arrivals = arrivals_of(tables.peers.log[: clock.num_log], system, int(state.model.waves))
    return GpuOutcome(records, gpu_records(state, system), finished, arrivals)


#: Counters of :class:`GpuRecords` by the fields of COUNTS; requests are its columns ``issued``.
_REQUESTS = ("loads", "stores", "acquires", "releases")
_COUNTS = {
    "polls": "polls", "load_latency_ps": "load_ps", "packets": "packets", "l2_hits": "hits", "l2_misses": "misses",
    "flagged_loads": "flagged", "wakeups": "wakeups", "spurious_wakeups": "spurious", "monitor_full": "monitor_full",
}  # fmt: skip


def gpu_records(state: GpuState, system: GpuSystem) -> GpuRecords:
    """Return the records of the run up to now."""
    counters, gpus = state.tables.counters, system.num_gpus
    resources, counts = state.tables.machine.resources, counters.counts
    num_inside = gpus * system.layout.num_resources
    in_gpus, lanes = resources[:num_inside].reshape(gpus, -1), resources[num_inside:]
    links, numbers = lane_columns(state.fabric.lanes)
    issued = (column.copy() for column in counts["issued"].T)
    return GpuRecords(
        ranks=system.ranks, gpu_of=system.gpu_of, workgroup_start_ps=counters.group_start,
        workgroup_end_ps=counters.group_end, workgroup_cu=counters.group_cu, op_start_ps=counters.op_start,
        op_end_ps=counters.op_end, state_ps=counters.state.reshape(gpus, system.model.num_cus, len(STATE_NAMES)),
        resource_data=in_gpus["messages"][:, :, 0].copy(), resource_control=in_gpus["messages"][:, :, 1].copy(),
        resource_busy_ps=in_gpus["busy_ps"].copy(), lane_link=np.array(links, np.int32),
        lane_number=np.array(numbers, np.int32), lane_data=lanes["messages"][:, 0].copy(),
        lane_control=lanes["messages"][:, 1].copy(), lane_busy_ps=lanes["busy_ps"].copy(),
        **dict(zip(_REQUESTS, issued, strict=True)), **{name: counts[field].copy() for name, field in _COUNTS.items()},
        resources=system.layout.names, end_ps=int(state.clock.now), num_events=int(state.clock.num_events),
        engine="compiled",
    )  # fmt: skip


def arrivals_of(log: RecordArray, system: GpuSystem, waves: int) -> Arrivals:
    """Return the arrivals at GPU ``system.record``. log: records LOG_ROW; waves: places of a CU, as numbered in keys.

    In a folded run, requests of other ranks are mirror images of the simulated GPUs' requests. Their distance to the
    target identifies the rank.
    """
    target = int(system.ranks[system.record])
    # label 0: the GPU's own requests, returned by a switch
    arrived = log[(log["what"] == S.HAS_COME) & (log["label"] > 0)]
    rank_at = np.full(system.num_ranks, -1, np.int64)
    for rank in range(system.num_ranks):
        rank_at[system.distance(rank, target)] = rank
    rank = rank_at[arrived["label"] - 1]
    place, number = _place(arrived["key"], system, waves), _number(arrived["key"])
    if isinstance(system.outside, Arrivals):  # keys of replayed requests number places as records do
        place = _place(arrived["key"], system, system.model.wavefronts_per_cu)
    order = np.lexsort((rank, number, place, arrived["label"], arrived["kind"] == S.IS_FLOW, arrived["time_ps"]))
    arrived, rank, place, number = arrived[order], rank[order], place[order], number[order]
    semaphore = arrived["semaphore"] - system.record * system.program.semaphores.shape[1]
    has_semaphore = arrived["semaphore"] >= 0
    departed, answered = log[log["what"] == S.SETS_OUT], log[log["what"] == S.IS_BACK]
    # The k-th answer with a key belongs to its k-th request, because a place reuses a key only after 2^14 requests.
    answer_number = _count_before(_place(departed["key"], system, waves))
    by_key = np.argsort(departed["key"], kind="stable")
    departed, answer_number = departed[by_key], answer_number[by_key]
    answered = answered[np.argsort(answered["key"], kind="stable")]
    refused = (answered["semaphore"] >= 0) & (answered["amount"] > 0) & (answered["kind"] == S.IS_LOAD)
    answer_place = _place(answered["key"], system, waves)
    return Arrivals(
        target=target,
        num_ranks=system.num_ranks,
        time_ps=arrived["time_ps"].copy(),
        rank=rank.astype(np.int32),
        place=place.astype(np.int32),
        number=number.astype(np.int32),
        kind=np.select(
            [arrived["kind"] == S.IS_FLOW, arrived["kind"] == S.IS_ADD], [PUT, STORE], arrived["kind"]
        ).astype(np.int8),
        address=arrived["address"].copy(),
        semaphore=np.where(has_semaphore, semaphore, -1).astype(np.int32),
        amount=np.where(has_semaphore, arrived["amount"], 0),
        answer_place=answer_place.astype(np.int32),
        answer_number=answer_number[: len(answered)].astype(np.int32),
        answer_ps=answered["time_ps"].copy(),
        answer_refused=refused.astype(np.int8),
    )


def _place(key: Int64, system: GpuSystem, waves: int) -> Int64:
    """Return CU * wavefronts_per_cu + slot."""
    cu, slot = np.divmod((key >> S.SHIFT_WAVE) & (S.MAX_WAVES - 1), waves)
    return cu * system.model.wavefronts_per_cu + slot


def _number(key: Int64) -> Int64:
    return (key >> S.SHIFT_SEQUENCE) & ((1 << (S.SHIFT_WAVE - S.SHIFT_SEQUENCE)) - 1)


def _count_before(values: Int64) -> Int64:
    """Return for each value the number of equal values before it."""
    order = np.argsort(values, kind="stable")
    first = np.searchsorted(values[order], values[order])
    count = np.empty(len(values), np.int64)
    count[order] = np.arange(len(values)) - first
    return count


def answer_fault(tables: LoopTables, clock: Record, model: Record, system: GpuSystem) -> str:
    """Return why the replayed record has no answer for the request ``clock.unrecorded``."""
    event = tables.entities.requests[clock.unrecorded]
    place = int(event["wave"])
    cu, slot = divmod(place, int(model.waves))
    of_whom = f"for place {cu * system.model.wavefronts_per_cu + slot} of rank {system.ranks[0]}"
    answers = tables.peers.answers_of[place]
    answer = int(tables.entities.answer[clock.unrecorded])
    if answer < 0:
        missing = int(answers["end"] - answers["first"])
        return f"the record has no answer {missing} {of_whom}: it is of another program or model"
    answer_ps = int(tables.peers.answers[answer]["time_ps"])
    return (
        f"answer {answer - int(answers['first'])} {of_whom} comes at {answer_ps} ps, before the request left at "
        f"{int(event['time_ps'])} ps: the record is of another program or model"
    )
