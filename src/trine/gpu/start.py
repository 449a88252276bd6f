"""The state of the compiled load-store loop: its initial values and its growth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

import trine.gpu._state as S
from trine.common._records import Record, RecordArray, new_records, with_parts
from trine.common.arrays import Int8, Int32, Int64, pointers, spans
from trine.common.units import transfer_ps
from trine.engine._limits import MAX_PS
from trine.engine._state import ENTRY
from trine.engine.work import new_work
from trine.errors import InputError, SimulationError
from trine.gpu._state import Entities, LoopTables, MachineTables, PeerWriteTable, RunCounters, Wheel
from trine.gpu.draws import first_draw
from trine.gpu.layout import CHANNEL, PORT
from trine.gpu.model import GpuModel
from trine.gpu.path_table import FabricPaths, make_paths, operand_pairs, outside_ranks
from trine.gpu.peers import LOAD, PUT, RELEASE, STORE, Arrivals, PeerWrites
from trine.gpu.program import ACQUIRE
from trine.gpu.records import STATE_NAMES
from trine.gpu.system import GpuSystem
from trine.gpu.tables import make_model, make_program, service_columns

# The write tracking table and the stand-ins for replayed peers, as the arrays that the compiled loop reads.

_NUMBER_BITS = S.SHIFT_WAVE - S.SHIFT_SEQUENCE
_PLACE_BITS = S.SHIFT_LABEL - S.SHIFT_WAVE
#: Initial rows of the log.
_FIRST_ROWS = 1 << 12


class _Entries(NamedTuple):
    """The write tracking table. label: 1 + distance. place, number: parts of keys."""

    time_ps: Int64
    rank: Int64
    label: Int64
    place: Int64
    number: Int64
    kind: Int8
    address: Int64
    semaphore: Int64
    amount: Int64


def make_peers(system: GpuSystem, paths: FabricPaths, model: Record, flag_line: Int32) -> PeerWriteTable:
    """Return the incoming traffic and the stand-ins of replayed peers; empty if all GPUs are simulated.

    model: the record of :func:`trine.gpu.tables.make_model`.

    Raises InputError: more lines than event keys can order, or a record of another system.
    """
    outside = system.outside
    answers_of, answers = new_records(0, S.ANSWERS), new_records(0, S.ANSWER)
    if isinstance(outside, Arrivals):
        answers_of, answers = _answers(outside, system, int(model.waves))
    there_ps, home_ps = _inside_ps(system, PORT, CHANNEL), _inside_ps(system, CHANNEL, PORT)
    is_replay = bool((system.gpu_of < 0).any())
    fabric_ps = np.array(paths.fabric_ps).reshape(-1, 2) if is_replay else there_ps[:0]
    there_now = there_ps if is_replay else there_ps[:0]
    home_now = home_ps if is_replay else home_ps[:0]
    log_rows = _FIRST_ROWS if system.record >= 0 else 0
    return PeerWriteTable(
        writes=_writes(system, bool(model.peers_begin == S.AT_MEMORY), flag_line), answers_of=answers_of,
        answers=answers, fabric_ps=_services(fabric_ps), there_ps=_services(there_now), home_ps=_services(home_now),
        memory_ps=_memory_ps(system.model), log=new_records(log_rows, S.LOG_ROW),
    )  # fmt: skip


def _services(times_ps: Int64) -> RecordArray:
    """Convert ``times_ps``, int64[rows, 2], to SERVICE records."""
    services = new_records(len(times_ps), S.SERVICE)
    services["message_ps"] = times_ps
    return services


def _writes(system: GpuSystem, at_memory: bool, flag_line: Int32) -> RecordArray:
    """Return the write tracking table in the loop's order."""
    entries = _entries(system, flag_line)
    is_put = entries.kind == S.IS_FLOW
    key = np.where(is_put, S.DMA_CLASS, S.MESSAGE_CLASS) << np.int64(S.SHIFT_CLASS) | entries.place << S.SHIFT_WAVE
    key = key | entries.number << S.SHIFT_SEQUENCE | entries.rank
    key = key | np.where(is_put | at_memory, entries.label << S.SHIFT_LABEL, 0)
    order = np.lexsort((key, entries.label, entries.time_ps))
    pairs = len(operand_pairs(system)[1])
    writes = new_records(len(order), S.PEER_WRITE)
    writes["pair"] = pairs + np.searchsorted(np.array(outside_ranks(system), np.int64), entries.rank[order])
    writes["key"] = key[order]
    for field in ("time_ps", "kind", "address", "semaphore", "amount"):
        writes[field] = getattr(entries, field)[order]
    return writes


def _entries(system: GpuSystem, flag_line: Int32) -> _Entries:
    outside = system.outside
    target = int(system.ranks[0])
    if outside is None:
        empty = np.zeros(0, np.int64)
        return _Entries(empty, empty, empty, empty, empty, empty.astype(np.int8), empty, empty, empty)
    label_of = np.array([1 + system.distance(rank, target) for rank in range(system.num_ranks)], np.int64)
    if isinstance(outside, PeerWrites):
        return _lines_of_writes(outside, label_of, system, flag_line)
    place = outside.place.astype(np.int64)
    if place.max(initial=0) >= 1 << _PLACE_BITS:
        place = np.unique(place, return_inverse=True)[1].astype(np.int64)
    rank = outside.rank.astype(np.int64)
    return _Entries(
        time_ps=outside.time_ps, rank=rank, label=label_of[rank], place=place, number=outside.number.astype(np.int64),
        kind=np.where(outside.kind == PUT, S.IS_FLOW, outside.kind).astype(np.int8), address=outside.address,
        semaphore=outside.semaphore.astype(np.int64), amount=np.where(outside.kind == LOAD, 1, outside.amount),
    )  # fmt: skip


def _lines_of_writes(writes: PeerWrites, label_of: Int64, system: GpuSystem, flag_line: Int32) -> _Entries:
    """Split writes into lines, ordered by time; data in a line with a flag adds 0 to the flag, which wakes sleepers."""
    rank, line_bytes = writes.peer.astype(np.int64), system.model.line_bytes
    order = np.lexsort(
        (writes.size_bytes, writes.value, writes.semaphore, writes.address, label_of[rank], writes.time_ps)
    )
    is_flag = writes.semaphore[order] >= 0
    address, size = writes.address[order], writes.size_bytes[order]
    first, last = address // line_bytes, (address + np.maximum(size, 1) - 1) // line_bytes
    count = np.where(is_flag, 1, last - first + 1)
    total = int(count.sum())
    if total >= 1 << (_NUMBER_BITS + _PLACE_BITS):
        raise InputError(f"peers write {total} lines, the table has room for 2^{_NUMBER_BITS + _PLACE_BITS}")
    write = np.repeat(np.arange(len(order)), count)
    number = spans(0, count)
    line_address = np.where(is_flag[write], address[write], (first[write] + number) * line_bytes)
    semaphore = writes.semaphore[order][write].astype(np.int64)
    watched = _watched(system, flag_line)
    if watched:
        lines, owner = np.array(sorted(watched)), np.array([watched[line] for line in sorted(watched)])
        nearest = np.minimum(np.searchsorted(lines, line_address // line_bytes), len(lines) - 1)
        hit = (lines[nearest] == line_address // line_bytes) & (semaphore < 0)
        semaphore = np.where(hit, owner[nearest], semaphore)
    running = np.arange(total)
    return _Entries(
        time_ps=writes.time_ps[order][write], rank=rank[order][write], label=label_of[rank[order][write]],
        place=running >> _NUMBER_BITS, number=running & ((1 << _NUMBER_BITS) - 1),
        kind=np.where(is_flag[write], RELEASE, STORE).astype(np.int8), address=line_address, semaphore=semaphore,
        amount=np.where(is_flag[write], writes.value[order][write], 0),
    )  # fmt: skip


def _watched(system: GpuSystem, flag_line: Int32) -> dict[int, int]:
    """Map each line of the target that holds an acquired flag to one such flag."""
    program = system.program
    if system.model.monitor is None:
        return {}
    semaphore = program.operand_semaphore.tolist()
    kind = np.repeat(program.op_kind, np.diff(program.operand_ptr))
    acquires = np.flatnonzero(kind == ACQUIRE).tolist()
    line = (program.operand_address // system.model.line_bytes).tolist()
    return {line[i]: semaphore[i] for i in acquires if flag_line[semaphore[i]] >= 0}


def _answers(record: Arrivals, system: GpuSystem, waves: int) -> tuple[RecordArray, RecordArray]:
    """Return the range of answers of each wavefront slot, and the answers: arrival times and refusals."""
    cu, slot = np.divmod(record.answer_place.astype(np.int64), system.model.wavefronts_per_cu)
    places = system.model.num_cus * waves
    if (slot >= waves).any() or (cu >= system.model.num_cus).any():
        raise InputError("the record is of another program or model: it has answers for more wavefronts")
    place = cu * waves + slot
    order = np.lexsort((record.answer_number, place))
    ptr = pointers(np.bincount(place, minlength=places))
    number = np.arange(len(place)) - ptr[place[order]]
    if (number != record.answer_number[order]).any():
        raise InputError("the record is not whole: answers are missing")
    answers_of, answers = new_records(places, S.ANSWERS), new_records(len(order), S.ANSWER)
    answers_of["first"], answers_of["end"] = ptr[:-1], ptr[1:]
    answers["time_ps"], answers["is_refused"] = record.answer_ps[order], record.answer_refused[order]
    return answers_of, answers


def _inside_ps(system: GpuSystem, source: str, target: str) -> Int64:
    """Return int64[paths, 2]: the uncontended time of each path inside a GPU, with data and without."""
    hops, ptr = system.layout.paths(source, target)
    columns = service_columns(system)
    hop_ps = np.stack([columns[:, 0] + columns[:, 2], columns[:, 1] + columns[:, 2]], axis=1)
    sum_ps = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(hop_ps[hops], axis=0)])
    return np.asarray(sum_ps[ptr[1:]] - sum_ps[ptr[:-1]])


def _memory_ps(model: GpuModel) -> Int64:
    """Return int64[4]: memory times of a line (with an L2: a hit) and of a semaphore; then both past the L2."""
    memory, l2 = model.memory, model.l2
    sizes = (model.line_bytes, model.header_bytes)
    past = [transfer_ps(size, memory.bytes_per_s) + memory.latency_ps for size in sizes]
    if l2 is None:
        cached = past
    else:
        cached = [transfer_ps(size, l2.bytes_per_s) + l2.latency_ps for size in sizes]
    return np.array([*cached, *past], np.int64)


FIRST_REQUESTS = 1 << 14
MAX_REQUESTS = 1 << 27
Number = TypeVar("Number", bound=np.generic)
Bundle = TypeVar("Bundle", bound=tuple[object, ...])


@dataclass(slots=True)
class GpuState:
    """The data of the loop; full parts of ``tables`` are replaced by larger ones.

    clocks, models: one record each.
    """

    tables: LoopTables
    clocks: RecordArray
    models: RecordArray
    fabric: FabricPaths

    @property
    def clock(self) -> Record:
        return self.clocks.view(np.recarray)[0]

    @property
    def model(self) -> Record:
        return self.models.view(np.recarray)[0]


def new_state(system: GpuSystem) -> GpuState:
    """Return the state at time 0, before any event; :func:`begin_peers` adds the incoming traffic."""
    paths, pairs, fabric = make_paths(system)
    program = make_program(system, pairs)
    models = make_model(system)
    peers = make_peers(system, fabric, models.view(np.recarray)[0], program.flag_line)
    work, num_ready = new_work(system.graph, 0)
    first = int(models["first_request"][0])
    total = first + FIRST_REQUESTS
    clocks = new_records(1, S.CLOCK)
    for field in S.REGISTERS:
        clocks[field] = -1
    clocks["num_ready"] = num_ready
    clocks["num_free_requests"] = clocks["num_free_lines"] = FIRST_REQUESTS
    clocks["stop_ps"] = MAX_PS
    bucket_bits = max(0, S.MAX_BUCKET_BITS - (system.num_gpus - 1).bit_length())
    clocks["bucket_bits"] = bucket_bits
    tables = LoopTables(
        work=work,
        program=program,
        paths=paths,
        peers=peers,
        entities=entities_in(
            new_records(total, S.REQUEST),
            next=np.zeros(total, np.int32),
            answer=np.zeros(total if models["has_answers"][0] else 0, np.int32),
            free_requests=np.arange(total - 1, first - 1, -1, dtype=np.int32),
        ),
        wheel=Wheel(
            head=np.full(1 << (S.WHEEL_BITS - bucket_bits), -1, np.int32),
            open_key=np.zeros(total + 1, np.int64),
            open_id=np.zeros(total + 1, np.int32),
            heap=new_records(total + system.graph.num_tasks + system.program.num_kernels + 2, ENTRY),
        ),
        machine=_new_machine(system, models, fabric, int(program.flag_line.max(initial=-1)) + 1),
        counters=_new_counters(system),
    )
    state = GpuState(tables=tables, clocks=clocks, models=models, fabric=fabric)
    state.clock.log_room = _log_room(state)
    return state


def begin_peers(state: GpuState) -> None:
    """Schedule the first entry of the write tracking table."""
    writes = state.tables.peers.writes
    if not len(writes):
        return
    num_queued = int(state.clock.num_queued)
    queued = state.tables.wheel.heap[: num_queued + 1]
    queued[num_queued] = writes["time_ps"][0], 2 * state.model.tasks
    queued.sort()  # by time, then payload; a sorted array is a heap
    state.clock.num_queued = num_queued + 1


def goes_on(state: GpuState, system: GpuSystem) -> GpuState:
    """Return a copy that continues with the incoming traffic of ``system``; read-only arrays are shared.

    system: the system of ``state``, possibly with other traffic from replayed peers.
    """
    tables = state.tables
    copy = GpuState(
        tables=tables._replace(
            work=_own(tables.work), peers=make_peers(system, state.fabric, state.model, tables.program.flag_line),
            entities=copy_entities(tables.entities), wheel=_own(tables.wheel), machine=_own(tables.machine),
            counters=_own(tables.counters),
        ),
        clocks=state.clocks.copy(),
        models=state.models,
        fabric=state.fabric,
    )  # fmt: skip
    copy.clock.stop_ps = MAX_PS
    begin_peers(copy)
    return copy


def _own(bundle: Bundle) -> Bundle:
    """Copy the arrays of a NamedTuple; records begin at a cache line."""
    return with_parts(bundle, lambda array: _longer(array, len(array)))


def entities_in(memory: RecordArray, next: Int32, answer: Int32, free_requests: Int32) -> Entities:
    """Return the entities whose records lie in ``memory``, an array of REQUEST, which covers all bytes of a record."""
    return Entities._make([*map(memory.view, S.VIEWS.values()), next, answer, free_requests])


def copy_entities(entities: Entities) -> Entities:
    """Return a copy, whose views share one memory again."""
    return entities_in(*(_longer(part, len(part)) for part in (entities.requests, *entities[len(S.VIEWS) :])))


def _new_machine(system: GpuSystem, models: RecordArray, fabric: FabricPaths, lines_with_flags: int) -> MachineTables:
    program, model, numbers = system.program, system.model, models[0]
    num_cus = system.num_gpus * model.num_cus
    places = num_cus * int(numbers["waves"])
    semaphores = program.semaphores.reshape(-1)
    cached = int(system.num_gpus * model.memory.num_channels * numbers["sets"] * numbers["ways"])
    num_resources = system.num_gpus * system.layout.num_resources + len(fabric.lanes.number)
    machine = MachineTables(
        waves=new_records(places, S.WAVE), wave_times=new_records(places, S.WAVE_TIME), cus=new_records(num_cus, S.CU),
        cu_turns=new_records(num_cus, S.CU_TURN), lines=new_records(FIRST_REQUESTS, S.LINE),
        free_lines=np.arange(FIRST_REQUESTS - 1, -1, -1, dtype=np.int32), resources=_resources(system, num_resources),
        lane_queues=new_records(num_resources if numbers["is_fair"] else 0, S.LANE_QUEUE),
        semaphores=new_records(len(semaphores), S.SEMAPHORE), groups=new_records(program.num_workgroups, S.GROUP),
        kernels=new_records(program.num_kernels, S.KERNEL), gpus=new_records(system.num_gpus, S.GPU),
        to_do=np.zeros(places + 8, np.int32), chains=new_records(len(fabric.pair_gpu), S.CHAIN),
        cache=new_records(cached, S.CACHE_LINE), watchers=new_records(lines_with_flags, S.WATCHERS),
    )  # fmt: skip
    machine.semaphores["amount"] = semaphores
    machine.cu_turns["drawn"] = np.tile(
        [first_draw(model.issue_seed, cu) for cu in range(model.num_cus)], system.num_gpus
    )
    machine.kernels["groups_left"] = np.diff(program.kernel_ptr)
    initiation = np.array(fabric.pair_initiation, np.int64).reshape(-1, 2)
    machine.chains["initiation_ps"], machine.chains["interval_ps"] = initiation.T
    for records, fields in (
        (machine.cus, ("first_wave", "last_wave", "first_item", "last_item", "full_since_ps")),
        (machine.lane_queues, ("first", "last")),
        (machine.semaphores, ("first_waiting", "last_waiting")),
        (machine.groups, ("first_wave",)),
        (machine.kernels, ("next_in_queue",)),
        (machine.gpus, ("first_kernel", "last_kernel")),
        (machine.chains, ("first", "last", "entering")),
        (machine.watchers, ("first", "last")),
    ):
        for field in fields:
            records[field] = -1
    return machine


def _new_counters(system: GpuSystem) -> RunCounters:
    program = system.program
    return RunCounters(
        op_start=np.full(program.num_ops, -1, np.int64),
        op_end=np.full(program.num_ops, -1, np.int64),
        group_start=np.full(program.num_workgroups, -1, np.int64),
        group_end=np.full(program.num_workgroups, -1, np.int64),
        group_cu=np.full(program.num_workgroups, -1, np.int32),
        state=np.zeros(system.num_gpus * system.model.num_cus * len(STATE_NAMES), np.int64),
        counts=new_records(system.num_gpus, S.COUNTS),
    )


def _resources(system: GpuSystem, num_resources: int) -> RecordArray:
    """Return all resources, free, with the GPUs' resources first."""
    resources = new_records(num_resources, S.RESOURCE)
    columns = service_columns(system)
    resources_in_gpus = resources[: system.num_gpus * len(columns)].reshape(system.num_gpus, len(columns))
    resources_in_gpus["service_ps"] = columns[:, :2]
    resources_in_gpus["after_ps"] = columns[:, 2]
    return resources


def more_requests(state: GpuState) -> None:
    """Double the number of requests; existing ones keep their numbers."""
    old, wheel = state.tables.entities, state.tables.wheel
    first = int(state.model.first_request)
    old_count = len(old.events) - first
    if old_count >= MAX_REQUESTS:
        raise SimulationError(
            f"{old_count} requests are in flight at a time: the program issues more than memory can hold"
        )
    total = first + 2 * old_count
    free = int(state.clock.num_free_requests)
    added = np.arange(total - 1, total - 1 - old_count, -1, dtype=np.int32)
    entities = entities_in(
        _longer(old.requests, total),
        next=_longer(old.next, total),
        answer=_longer(old.answer, total if len(old.answer) else 0),
        free_requests=_longer(np.concatenate([added, old.free_requests[:free]]), 2 * old_count),
    )
    state.clock.num_free_requests = old_count + free
    larger = Wheel(
        head=wheel.head,
        open_key=_longer(wheel.open_key, total + 1),
        open_id=_longer(wheel.open_id, total + 1),
        heap=_longer(wheel.heap, len(wheel.heap) + old_count),
    )
    state.tables = state.tables._replace(entities=entities, wheel=larger)


def more_lines(state: GpuState) -> None:
    machine, clock = state.tables.machine, state.clock
    old_count = len(machine.lines)
    if old_count >= MAX_REQUESTS:
        raise SimulationError(f"{old_count} lines are at work at a time: the program begins more than memory can hold")
    free = int(clock.num_free_lines)
    added = np.arange(2 * old_count - 1, old_count - 1, -1, dtype=np.int32)
    stack = _longer(np.concatenate([added, machine.free_lines[:free]]), 2 * old_count)
    clock.num_free_lines = old_count + free
    machine = machine._replace(lines=_longer(machine.lines, 2 * old_count), free_lines=stack)
    state.tables = state.tables._replace(machine=machine)


def more_log(state: GpuState) -> None:
    """Double the number of log rows."""
    peers = state.tables.peers
    state.tables = state.tables._replace(peers=peers._replace(log=_longer(peers.log, 2 * len(peers.log))))
    state.clock.log_room = _log_room(state)


def _log_room(state: GpuState) -> int:
    """Return the number of log rows that may be in use at the end of a turn."""
    return max(0, len(state.tables.peers.log) - S.MARGIN)


def _longer(array: npt.NDArray[Number], length: int) -> npt.NDArray[Number]:
    """Return a copy with room for ``length`` entries."""
    longer: npt.NDArray[Number]
    if array.dtype.names is None:
        longer = np.zeros(length, array.dtype)
    else:
        longer = new_records(length, array.dtype)  # type: ignore[arg-type, assignment]
    longer[: len(array)] = array
    return longer
