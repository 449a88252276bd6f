"""The state of the compiled load-store loop: how it begins, and how it grows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

import trine.gpu._state as S
from trine.arrays import Int32, Int64
from trine.engine._limits import MAX_PS
from trine.engine._state import TaskTables
from trine.engine.compiled import new_work
from trine.errors import SimulationError
from trine.gpu._state import Code, Entities, Machine, Outside, Seen, Ways, Wheel
from trine.gpu.outside_table import make_outside
from trine.gpu.records import STATE_NAMES
from trine.gpu.system import GpuSystem
from trine.gpu.tables import make_code, make_numbers, service_columns
from trine.gpu.way_table import Lanes, WayTable, make_ways

FIRST_REQUESTS = 1 << 14
#: Scalars that say what has something to do.
NONE_YET = [
    S.KICK_CU, S.KICK_GPU, S.WAKE, S.INJECT, S.DELIVER, S.BEGIN, S.SCHEDULED, S.OTHER, S.ONWARD, S.FREED, S.FEWER,
    S.READY_LINE, S.RETRIED, S.OVER_LINE, S.ENDED, S.UNRECORDED,
]  # fmt: skip
MAX_REQUESTS = 1 << 27
Number = TypeVar("Number", bound=np.generic)
Parts = TypeVar("Parts", TaskTables, Entities, Wheel, Machine, Seen)


@dataclass(slots=True)
class State:
    """All that the loop works on; ``entities``, ``wheel`` and ``machine`` are replaced by larger ones when full."""

    work: TaskTables
    code: Code
    ways: Ways
    outside: Outside
    entities: Entities
    wheel: Wheel
    machine: Machine
    seen: Seen
    scalars: Int64
    numbers: Int64
    table: WayTable


def new_state(system: GpuSystem) -> State:
    """The state at 0, before anything has happened; what comes from outside is still to begin."""
    ways, pair, table = make_ways(system)
    code = make_code(system, pair)
    numbers = make_numbers(system)
    outside = make_outside(system, table, numbers, code.flag_line)
    work, num_ready = new_work(system.graph, 0)
    first = int(numbers[S.N_FIRST_REQUEST])
    scalars = np.zeros(S.NUM_SCALARS, np.int64)
    scalars[NONE_YET] = -1
    scalars[S.NUM_READY] = num_ready
    scalars[S.NUM_FREE_REQUESTS] = scalars[S.NUM_FREE_LINES] = FIRST_REQUESTS
    scalars[S.STOP_PS] = MAX_PS
    scalars[S.LOG_ROOM] = _room(outside)
    total = first + FIRST_REQUESTS
    heap_room = total + system.graph.num_tasks + system.program.num_kernels + 2
    word = _in_lines(total * S.ENTITY_WORDS)
    entities = Entities(
        word=word,
        half=word.view(np.int32),
        cold=_in_lines(FIRST_REQUESTS * S.COLD),
        fresh=np.arange(total - 1, first - 1, -1, dtype=np.int32),
    )
    wheel = Wheel(
        head=np.full(S.NUM_BUCKETS, -1, np.int32),
        open_key=np.zeros(total + 1, np.int64),
        open_id=np.zeros(total + 1, np.int32),
        next=np.zeros(total, np.int32),
        heap=np.zeros(2 * heap_room, np.int64),
    )
    program = system.program
    return State(
        work=work,
        code=code,
        ways=ways,
        outside=outside,
        entities=entities,
        wheel=wheel,
        machine=_new_machine(system, numbers, table.lanes, len(ways.pair_gpu), code.flag_line),
        seen=Seen(
            op_start=np.full(program.num_ops, -1, np.int64),
            op_end=np.full(program.num_ops, -1, np.int64),
            group_start=np.full(program.num_workgroups, -1, np.int64),
            group_end=np.full(program.num_workgroups, -1, np.int64),
            group_cu=np.full(program.num_workgroups, -1, np.int32),
            state=np.zeros(system.num_gpus * system.model.num_cus * len(STATE_NAMES), np.int64),
            counts=np.zeros(system.num_gpus * S.NUM_COUNTS, np.int64),
        ),
        scalars=scalars,
        numbers=numbers,
        table=table,
    )


def begin_outside(state: State) -> None:
    """The first entry of the write tracking table gets its event."""
    if not len(state.outside.time_ps):
        return
    num_far, num_tasks = state.scalars[S.NUM_HEAP], state.numbers[S.N_TASKS]
    far = state.wheel.heap[: 2 * num_far + 2].reshape(-1, 2)
    far[num_far] = state.outside.time_ps[0], 2 * num_tasks
    far[:] = far[np.lexsort((far[:, 1], far[:, 0]))]  # what is in order is a heap
    state.scalars[S.NUM_HEAP] = num_far + 1


def goes_on(state: State, system: GpuSystem) -> State:
    """A copy that goes on with what comes from outside ``system``; what the loop only reads is shared.

    system: that of ``state``, but for what and when its replayed peers send.
    """
    scalars = state.scalars.copy()
    scalars[S.STOP_PS] = MAX_PS
    copy = State(
        work=_own(state.work),
        code=state.code,
        ways=state.ways,
        outside=make_outside(system, state.table, state.numbers, state.code.flag_line),
        entities=_own(state.entities),
        wheel=_own(state.wheel),
        machine=_own(state.machine),
        seen=_own(state.seen),
        scalars=scalars,
        numbers=state.numbers,
        table=state.table,
    )
    begin_outside(copy)
    return copy


def _own(arrays: Parts) -> Parts:
    """The arrays of a NamedTuple, copied; ``half`` of the copy is the memory of its ``word``."""
    own = {name: _in_lines((array.nbytes + 7) // 8).view(array.dtype)[: len(array)] for name, array in _named(arrays)}
    for name, array in _named(arrays):
        own[name][:] = array
    if "half" in own:
        own["half"] = own["word"].view(np.int32)
    return arrays._replace(**own)


def _named(arrays: Parts) -> Iterable[tuple[str, npt.NDArray[np.generic]]]:
    return arrays._asdict().items()


def _new_machine(system: GpuSystem, numbers: Int64, lanes: Lanes, pairs: int, flag_line: Int32) -> Machine:
    program, model = system.program, system.model
    num_cus = system.num_gpus * model.num_cus
    places = num_cus * int(numbers[S.N_WAVES])
    resources = system.num_gpus * system.layout.num_resources + len(lanes.number)
    cu = np.zeros((num_cus, S.CU_HALVES), np.int32)
    cu[:, [S.C_HEAD, S.C_TAIL, S.C_LINES, S.C_LAST_LINE]] = -1
    cu_word = np.zeros((num_cus, S.CU_WORDS), np.int64)
    cu_word[:, S.C_FULL_SINCE] = -1
    queue = np.full((resources if numbers[S.N_FAIR] else 0, S.QUEUE_HALVES), -1, np.int32)
    queue[:, :2] = 0
    kernel = np.zeros((program.num_kernels, 3), np.int32)
    kernel[:, 1] = np.diff(program.kernel_ptr)
    kernel[:, 2] = -1
    gpu = np.zeros((system.num_gpus, 4), np.int32)
    gpu[:, :2] = -1
    semaphores = program.semaphores.reshape(-1).astype(np.int64)
    lines_with_flags = int(flag_line.max(initial=-1)) + 1
    cached = int(system.num_gpus * model.memory.num_channels * numbers[S.N_SETS] * numbers[S.N_WAYS])
    return Machine(
        wave=_in_lines(places * S.WAVE_HALVES // 2).view(np.int32),
        wave_since=np.zeros(places, np.int64),
        wave_full=np.zeros(places, np.int64),
        cu=cu.reshape(-1),
        cu_word=cu_word.reshape(-1),
        line=np.zeros(FIRST_REQUESTS * S.LINE_HALVES, np.int32),
        free_lines=np.arange(FIRST_REQUESTS - 1, -1, -1, dtype=np.int32),
        resource=_resources(system, resources),
        queue=queue.reshape(-1),
        semaphore=semaphores,
        waiting=np.full(2 * len(semaphores), -1, np.int32),
        group_left=np.zeros(program.num_workgroups, np.int32),
        group_at=np.zeros(program.num_workgroups, np.int32),
        group_first=np.full(program.num_workgroups, -1, np.int32),
        kernel=kernel.reshape(-1),
        gpu=gpu.reshape(-1),
        gpu_ready=np.zeros(system.num_gpus, np.int64),
        todo=np.zeros(places + 8, np.int32),
        chain=np.full(3 * pairs, -1, np.int32),
        tag=np.zeros(cached, np.int64),
        stamp=np.zeros(cached, np.int64),
        armed=np.full(2 * lines_with_flags, -1, np.int32),
        sleepers=np.zeros(system.num_gpus, np.int32),
    )


def _in_lines(num_words: int) -> Int64:
    """int64[num_words] of 0 that begins at a cache line, so that a record of 64 bytes lies in one."""
    whole = np.zeros(num_words + 7, np.int64)
    first = -whole.ctypes.data % 64 // 8
    return whole[first : first + num_words]


def _resources(system: GpuSystem, num_resources: int) -> Int64:
    """All resources, free; those of the GPUs first."""
    rows = _in_lines(num_resources * S.RESOURCE_WORDS)
    own = service_columns(system)
    inside = rows[: system.num_gpus * len(own) * S.RESOURCE_WORDS].reshape(system.num_gpus, len(own), S.RESOURCE_WORDS)
    inside[:, :, S.R_DATA_PS : S.R_AFTER_PS + 1] = own
    return rows


def more_requests(state: State) -> None:
    """Twice as many; those that exist keep their numbers."""
    first = int(state.numbers[S.N_FIRST_REQUEST])
    before = len(state.entities.cold) // S.COLD
    if before >= MAX_REQUESTS:
        raise SimulationError(
            f"{before} requests are in flight at a time: the program issues more than memory can hold"
        )
    total = first + 2 * before
    old = state.entities
    fresh = np.empty(2 * before, np.int32)
    free = int(state.scalars[S.NUM_FREE_REQUESTS])
    fresh[:before] = np.arange(total - 1, total - 1 - before, -1)
    fresh[before : before + free] = old.fresh[:free]
    state.scalars[S.NUM_FREE_REQUESTS] = before + free
    word, cold = _in_lines(total * S.ENTITY_WORDS), _in_lines(2 * before * S.COLD)
    word[: len(old.word)], cold[: len(old.cold)] = old.word, old.cold
    state.entities = Entities(word=word, half=word.view(np.int32), cold=cold, fresh=fresh)
    state.wheel = Wheel(
        head=state.wheel.head,
        open_key=_longer(state.wheel.open_key, total + 1),
        open_id=_longer(state.wheel.open_id, total + 1),
        next=_longer(state.wheel.next, total),
        heap=_longer(state.wheel.heap, len(state.wheel.heap) + 2 * before),
    )


def more_lines(state: State) -> None:
    machine, scalars = state.machine, state.scalars
    before = len(machine.line) // S.LINE_HALVES
    if before >= MAX_REQUESTS:
        raise SimulationError(f"{before} lines are at work at a time: the program begins more than memory can hold")
    free = int(scalars[S.NUM_FREE_LINES])
    stack = np.empty(2 * before, np.int32)
    stack[:before] = np.arange(2 * before - 1, before - 1, -1)
    stack[before : before + free] = machine.free_lines[:free]
    scalars[S.NUM_FREE_LINES] = before + free
    state.machine = machine._replace(line=_longer(machine.line, 2 * before * S.LINE_HALVES), free_lines=stack)


def more_log(state: State) -> None:
    """Twice as many rows."""
    state.outside = state.outside._replace(log=_longer(state.outside.log, 2 * len(state.outside.log)))
    state.scalars[S.LOG_ROOM] = _room(state.outside)


def _room(outside: Outside) -> int:
    """Rows of the log that may be in use at the end of a turn."""
    return max(0, len(outside.log) // S.LOG_WORDS - S.MARGIN)


def _longer(array: npt.NDArray[Number], length: int) -> npt.NDArray[Number]:
    longer = np.zeros(length, array.dtype)
    longer[: len(array)] = array
    return longer
