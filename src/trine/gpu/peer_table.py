"""The write tracking table and the stand-ins for replayed peers, as the arrays that the compiled loop reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import trine.gpu._state as S
from trine.common._records import Record, RecordArray, new_records
from trine.common.arrays import Int8, Int32, Int64, pointers, spans
from trine.common.units import transfer_ps
from trine.errors import InputError
from trine.gpu._state import PeerWriteTable
from trine.gpu.layout import CHANNEL, PORT
from trine.gpu.model import GpuModel
from trine.gpu.path_table import FabricPaths, operand_pairs, outside_ranks
from trine.gpu.peers import LOAD, PUT, RELEASE, STORE, Arrivals, PeerWrites
from trine.gpu.program import ACQUIRE
from trine.gpu.system import GpuSystem
from trine.gpu.tables import service_columns

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
    return PeerWriteTable(
        writes=_writes(system, bool(model.peers_begin == S.AT_MEMORY), flag_line),
        answers_of=answers_of,
        answers=answers,
        fabric_ps=_services(np.array(paths.fabric_ps).reshape(-1, 2) if is_replay else there_ps[:0]),
        there_ps=_services(there_ps if is_replay else there_ps[:0]),
        home_ps=_services(home_ps if is_replay else home_ps[:0]),
        memory_ps=_memory_ps(system.model),
        log=new_records(_FIRST_ROWS if system.record >= 0 else 0, S.LOG_ROW),
    )


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
    here = int(system.ranks[0])
    if outside is None:
        none = np.zeros(0, np.int64)
        return _Entries(none, none, none, none, none, none.astype(np.int8), none, none, none)
    label_of = np.array([1 + system.distance(rank, here) for rank in range(system.num_ranks)], np.int64)
    if isinstance(outside, PeerWrites):
        return _lines_of_writes(outside, label_of, system, flag_line)
    place = outside.place.astype(np.int64)
    if place.max(initial=0) >= 1 << _PLACE_BITS:
        place = np.unique(place, return_inverse=True)[1].astype(np.int64)
    rank = outside.rank.astype(np.int64)
    return _Entries(
        time_ps=outside.time_ps,
        rank=rank,
        label=label_of[rank],
        place=place,
        number=outside.number.astype(np.int64),
        kind=np.where(outside.kind == PUT, S.IS_FLOW, outside.kind).astype(np.int8),
        address=outside.address,
        semaphore=outside.semaphore.astype(np.int64),
        amount=np.where(outside.kind == LOAD, 1, outside.amount),
    )


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
    of = np.repeat(np.arange(len(order)), count)
    number = spans(0, count)
    line_address = np.where(is_flag[of], address[of], (first[of] + number) * line_bytes)
    semaphore = writes.semaphore[order][of].astype(np.int64)
    watched = _watched(system, flag_line)
    if watched:
        lines, owner = np.array(sorted(watched)), np.array([watched[line] for line in sorted(watched)])
        at = np.minimum(np.searchsorted(lines, line_address // line_bytes), len(lines) - 1)
        hit = (lines[at] == line_address // line_bytes) & (semaphore < 0)
        semaphore = np.where(hit, owner[at], semaphore)
    running = np.arange(total)
    return _Entries(
        time_ps=writes.time_ps[order][of],
        rank=rank[order][of],
        label=label_of[rank[order][of]],
        place=running >> _NUMBER_BITS,
        number=running & ((1 << _NUMBER_BITS) - 1),
        kind=np.where(is_flag[of], RELEASE, STORE).astype(np.int8),
        address=line_address,
        semaphore=semaphore,
        amount=np.where(is_flag[of], writes.value[order][of], 0),
    )


def _watched(system: GpuSystem, flag_line: Int32) -> dict[int, int]:
    """Map each line of the target that holds an acquired flag to one such flag."""
    program = system.program
    if system.model.monitor is None:
        return {}
    semaphore = program.operand_semaphore.tolist()
    kind = np.repeat(program.op_kind, np.diff(program.operand_ptr))
    own = np.flatnonzero(kind == ACQUIRE).tolist()
    line = (program.operand_address // system.model.line_bytes).tolist()
    return {line[i]: semaphore[i] for i in own if flag_line[semaphore[i]] >= 0}


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
    each = np.stack([columns[:, 0] + columns[:, 2], columns[:, 1] + columns[:, 2]], axis=1)
    before = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(each[hops], axis=0)])
    times_ps: Int64 = before[ptr[1:]] - before[ptr[:-1]]
    return times_ps


def _memory_ps(model: GpuModel) -> Int64:
    """Return int64[4]: memory times of a line (with an L2: a hit) and of a semaphore; then both past the L2."""
    memory, l2 = model.memory, model.l2
    sizes = (model.line_bytes, model.header_bytes)
    past = [transfer_ps(size, memory.bytes_per_s) + memory.latency_ps for size in sizes]
    near = past if l2 is None else [transfer_ps(size, l2.bytes_per_s) + l2.latency_ps for size in sizes]
    return np.array([*near, *past], np.int64)
