"""A timeline for https://ui.perfetto.dev: Perfetto's protobuf trace of TrackEvents.

One track per rank, with child tracks for its streams, its sends and receives, and its memory. Children are ordered
explicitly: by name, rank 10 would come before rank 9. Overlapping sends and receives use further tracks, because
slices of one track must nest. Each transfer is two slices joined by a flow arrow. Times are picoseconds in trine and
nanoseconds in Perfetto: both ends of a slice are rounded down, which keeps their order, and the slice's argument
``duration_ps`` is exact. The same run produces the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.graph.taskgraph import COMPUTE, TRANSFER, TaskGraph
from trine.results import packets as pb
from trine.results.memory import MemoryTimeline
from trine.results.packets import descriptor, fixed64, integer, interned, lanes, message, packet, padded, split, varint
from trine.results.record_table import RecordTable

_ROOT = 1
_TEXT_ARGUMENTS = ("layer", "phase", "wait_reason")
_NUMBER_ARGUMENTS = ("stage", "microbatch", "step")
_OWN_ARGUMENTS = ("bytes", "duration_ps")
_ARGUMENTS = {name: iid for iid, name in enumerate((*_TEXT_ARGUMENTS, *_NUMBER_ARGUMENTS, *_OWN_ARGUMENTS), 1)}


class _Track(NamedTuple):
    """A track of slices: its tasks in order of start, without overlaps. flow: the field of its flow ids, or 0."""

    rank: int
    name: str
    order: int
    tasks: Int64
    flow: int


def packets(graph: TaskGraph, table: RecordTable, memory: MemoryTimeline | None, note: str = "") -> Iterator[bytes]:
    """Yield the trace packet by packet; their concatenation is a valid trace. note: added to the name of all ranks."""
    tracks = [*_stream_tracks(graph, table), *_transfer_tracks(table, "rank"), *_transfer_tracks(table, "peer")]
    strings = _strings(table)
    yield interned(_events(table), _ARGUMENTS, strings)
    yield descriptor(_ROOT, f"ranks (times rounded down to the ns){note}", 0, 0)
    for rank, name in enumerate(graph.rank_names):
        yield descriptor(_rank_track(rank), name, _ROOT, rank)
    first = _rank_track(len(graph.rank_names))
    for uuid, track in enumerate(tracks, first):
        yield descriptor(uuid, track.name, _parent(track.rank), track.order)
    if memory is not None:
        yield from _memory_counters(memory, first + len(tracks))
    arguments = _argument_cache(table, strings)
    for uuid, track in enumerate(tracks, first):
        yield from _slices(table, track, uuid, arguments)


def _rank_track(rank: int) -> int:
    return _ROOT + 1 + rank


def _parent(rank: int) -> int:
    """Return the track above a rank's tracks; the root for tracks without a rank (the host)."""
    return _rank_track(rank) if rank >= 0 else _ROOT


def _stream_tracks(graph: TaskGraph, table: RecordTable) -> Iterator[_Track]:
    """Yield one track per used stream, in the order of the streams."""
    compute = np.flatnonzero(table.columns["kind"] == COMPUTE)
    stream = table.columns["stream"][compute]
    order = np.argsort(stream, kind="stable")
    bounds = np.searchsorted(stream[order], np.arange(len(graph.stream_names) + 1))
    for number, name in enumerate(graph.stream_names):
        tasks = compute[order[bounds[number] : bounds[number + 1]]]
        if len(tasks):
            yield _Track(graph.stream_ranks[number], name, number, tasks, 0)


def _transfer_tracks(table: RecordTable, end: str) -> Iterator[_Track]:
    """Yield the tracks of each rank's sends (``end`` is "rank") or receives ("peer").

    All sends come before all receives in the file: if two slices begin at one instant, Perfetto starts the flow at the
    first of them in the file.
    """
    sends = end == "rank"
    transfers = np.flatnonzero(table.columns["kind"] == TRANSFER)
    ranks = table.columns[end][transfers]
    order = np.lexsort((transfers, table.columns["start_ps"][transfers], ranks))
    transfers, ranks = transfers[order], ranks[order]
    for rank in np.unique(ranks).tolist():
        mine = transfers[ranks == rank]
        lane = lanes(table.columns["start_ps"][mine].tolist(), table.columns["end_ps"][mine].tolist())
        for number in range(int(lane.max()) + 1):
            if rank >= 0:
                label = "send" if sends else "receive"
            elif sends:
                label = "host send"
            else:
                label = "host receive"
            name = f"{label} {number + 1}" if number else label
            order_rank = 10**6 * (1 if sends else 2) + number
            yield _Track(rank, name, order_rank, mine[lane == number], pb.FLOW if sends else pb.FLOW_END)


def _strings(table: RecordTable) -> dict[str, int]:
    """Map the words in slice arguments to numbers from 1."""
    words = dict.fromkeys(word for name in _TEXT_ARGUMENTS for word in table.categories[name])
    return {word: iid for iid, word in enumerate(words, 1)}


def _events(table: RecordTable) -> list[tuple[int, str]]:
    """Return the slice names used, each with its code in the table plus 1."""
    words = table.categories["name"]
    return [(code + 1, words[code]) for code in np.unique(table.columns["name"]).tolist()]


def _argument_cache(table: RecordTable, strings: dict[str, int]) -> list[bytes]:
    """Return each task's encoded name and labels; tasks with the same labels share the bytes."""
    columns = [table.columns[name].tolist() for name in ("name", *_TEXT_ARGUMENTS, *_NUMBER_ARGUMENTS)]
    words = []
    for column in _TEXT_ARGUMENTS:
        words.append([strings[word] for word in table.categories[column]])
    encoded_by_row: dict[tuple[int, ...], bytes] = {}
    encoded = []
    for row in zip(*columns, strict=True):
        if row not in encoded_by_row:
            parts = [integer(pb.NAME_IID, row[0] + 1)]
            for position, name in enumerate((*_TEXT_ARGUMENTS, *_NUMBER_ARGUMENTS)):
                value = row[position + 1]
                if value >= 0:
                    is_text = position < len(_TEXT_ARGUMENTS)
                    content = integer(pb.STRING_IID, words[position][value]) if is_text else integer(pb.UINT, value)
                    parts.append(message(pb.ANNOTATION, integer(pb.KEY_IID, _ARGUMENTS[name]) + content))
            encoded_by_row[row] = b"".join(parts)
        encoded.append(encoded_by_row[row])
    return encoded


def _slices(table: RecordTable, track: _Track, uuid: int, arguments: list[bytes]) -> Iterator[bytes]:
    """Yield the slices of a track: for each, its begin packet and its end packet.

    All numbers that differ between slices have a fixed width. So the length of a packet depends only on the length of
    its arguments, and the bytes around the numbers are built once for each such length.
    """
    size_key, duration_key = (integer(pb.KEY_IID, _ARGUMENTS[name]) for name in _OWN_ARGUMENTS)
    rows = [table.columns[name][track.tasks].astype(np.int64) for name in ("start_ps", "end_ps", "size_bytes")]
    start, end, size = rows
    duration_head = _annotation_head(duration_key)
    parts = [[duration_head] * len(start), padded(end - start)]
    own_size = len(duration_head) + pb.PADDED
    if track.flow:
        size_head, flow_head = _annotation_head(size_key), fixed64(track.flow, 0)[:-8]
        ids = (track.tasks + 1).astype("<u8").tobytes()
        parts += [[size_head] * len(start), padded(size), [flow_head] * len(start), split(ids, 8)]
        own_size += len(size_head) + pb.PADDED + len(flow_head) + 8
    begin = integer(pb.TYPE, pb.BEGIN) + integer(pb.TRACK, uuid)
    finish = message(pb.TRACK_EVENT, integer(pb.TYPE, pb.END) + integer(pb.TRACK, uuid)) + pb.SUFFIX
    finish_head = varint(pb.PACKET << 3 | pb.LENGTH) + varint(len(pb.STAMP) + pb.PADDED + len(finish)) + pb.STAMP
    heads: dict[int, tuple[bytes, bytes]] = {}
    stamps = padded(start // pb.PS_PER_NS), padded(end // pb.PS_PER_NS)
    for task, from_ns, to_ns, *numbers in zip(track.tasks.tolist(), *stamps, *parts, strict=True):
        labels = arguments[task]
        if len(labels) not in heads:
            event = varint(pb.TRACK_EVENT << 3 | pb.LENGTH) + varint(len(begin) + len(labels) + own_size) + begin
            content = len(pb.STAMP) + pb.PADDED + len(pb.SUFFIX) + len(event) + len(labels) + own_size
            heads[len(labels)] = (varint(pb.PACKET << 3 | pb.LENGTH) + varint(content) + pb.STAMP, pb.SUFFIX + event)
        head, event = heads[len(labels)]
        yield b"".join((head, from_ns, event, labels, *numbers, finish_head, to_ns, finish))


def _annotation_head(key: bytes) -> bytes:
    """Return the bytes before the number in an argument of fixed width."""
    value = varint(pb.UINT << 3 | pb.VARINT)
    return varint(pb.ANNOTATION << 3 | pb.LENGTH) + varint(len(key) + len(value) + pb.PADDED) + key + value


def _memory_counters(memory: MemoryTimeline, first: int) -> Iterator[bytes]:
    """Yield a memory counter track for each rank."""
    counter = message(pb.COUNTER, integer(pb.UNIT, pb.UNIT_BYTES))
    for rank in range(memory.num_ranks):
        uuid = first + rank
        yield descriptor(uuid, "memory", _rank_track(rank), 3 * 10**6, counter)
        head = integer(pb.TYPE, pb.COUNT) + integer(pb.TRACK, uuid)
        times, totals = memory.of_rank(rank)
        for time, total in zip(times.tolist(), totals.tolist(), strict=True):
            event = message(pb.TRACK_EVENT, head + integer(pb.COUNTER_VALUE, total))
            yield packet(integer(pb.TIMESTAMP, time // pb.PS_PER_NS) + event + pb.SUFFIX)
