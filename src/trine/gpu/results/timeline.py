"""A timeline of the GPUs' CUs and workgroups for https://ui.perfetto.dev.

There is one track per simulated GPU, and below it one per workgroup slot of a CU (``cu3``; a second concurrent
workgroup is on ``cu3 place 2``). A workgroup is a slice; its operations are slices inside. Wavefronts of one workgroup
may run several operations at once; overlapping operations go on further tracks below. Times are rounded down to the
nanosecond, as in :mod:`trine.results.timeline`; ``duration_ps`` is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.errors import InputError
from trine.gpu.program import ACQUIRE, COMPUTE, DATA_OPS, DMA, OP_NAMES, RELEASE
from trine.gpu.results.run import KernelRun, ends, peers
from trine.results import packets as pb
from trine.results.packets import descriptor, integer, interned, lanes, message, packet
from trine.results.report import Timeline

#: Maximum slices of a timeline: beyond a few hundred thousand Perfetto becomes slow, and files large.
MAX_SLICES = 200_000

_ROOT = 1
#: Slots of one CU, and tracks below one slot, that the track order distinguishes.
_PLACES = 4096
_ARGUMENTS = {
    name: iid
    for iid, name in enumerate(
        ("duration_ps", "workgroup", "operation", "peer_rank", "lines", "bytes", "cycles", "count"), 1
    )
}
_AMOUNTS = {COMPUTE: "cycles", DMA: "bytes", ACQUIRE: "count", RELEASE: "count"}


class _Slice(NamedTuple):
    name: int
    start_ps: int
    end_ps: int
    arguments: dict[str, int]


class _Rows(NamedTuple):
    """Workgroups by row: their track, their times, and whether their operations are drawn."""

    track: dict[tuple[int, int, int], list[int]]
    start_ps: Int64
    end_ps: Int64
    has_ops: np.ndarray[tuple[int], np.dtype[np.bool_]]


def timeline(result: KernelRun) -> Timeline:
    """Return the packets, and notes on omissions. Raises InputError for more than MAX_SLICES workgroups."""
    rows, notes = _rows(result)
    return Timeline(_packets(result, rows, notes), notes)


def _rows(result: KernelRun) -> tuple[_Rows, tuple[str, ...]]:
    records, shown = result.records, result.shown
    began = np.flatnonzero(records.workgroup_start_ps >= 0)
    if len(began) > MAX_SLICES:
        raise InputError(
            f"a timeline holds {MAX_SLICES:,} workgroups, these are {len(began):,}: run fewer ranks, or fold them"
        )
    counts = np.bincount(shown.op_row, minlength=len(shown.workgroup))
    fits = np.cumsum(np.where(records.workgroup_start_ps >= 0, counts, 0)) <= MAX_SLICES - len(began)
    end = ends(records.workgroup_start_ps, records.workgroup_end_ps, records.end_ps)
    left_out = len(began) - int(np.count_nonzero(fits[began]))
    notes = []
    if left_out:
        notes.append(f"the timeline omits operations of {left_out:,} of {len(began):,} workgroups")
    if not result.finished:
        notes.append("the run was stopped: unfinished operations are drawn up to then")
    if result.left_out:
        notes.append(f"{result.left_out}: no tracks")
    return _Rows(_places(result, began, end), records.workgroup_start_ps, end, fits), tuple(notes)


def _places(result: KernelRun, began: Int64, end: Int64) -> dict[tuple[int, int, int], list[int]]:
    """Return the workgroups of each track, in order of start: (gpu, cu, place) -> rows."""
    start, cu = result.records.workgroup_start_ps, result.records.workgroup_cu
    gpu = result.shown.workgroup_gpu
    order = began[np.lexsort((began, start[began], cu[began], gpu[began]))]
    owner = gpu[order] * result.model.num_cus + cu[order]
    rows_of_track: dict[tuple[int, int, int], list[int]] = {}
    for rows in np.split(order, np.flatnonzero(np.diff(owner)) + 1):
        for row, place in zip(rows.tolist(), lanes(start[rows].tolist(), end[rows].tolist()).tolist(), strict=True):
            rows_of_track.setdefault((int(gpu[row]), int(cu[row]), place), []).append(row)
    return rows_of_track


def _packets(result: KernelRun, rows: _Rows, notes: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the trace packet by packet."""
    program, shown = result.program, result.shown
    operations = _Operations(result)
    first = operations.num_names + 1
    kernels = np.unique(shown.workgroup_kernel).tolist()
    names = [*operations.names(), *((first + kernel, _kernel_name(result, kernel)) for kernel in kernels)]
    yield interned(names, _ARGUMENTS, {})
    yield descriptor(_ROOT, "; ".join((f"{program.name} (times rounded down to the ns)", *notes)), 0, 0)
    for gpu, use in enumerate(result.gpus):
        suffix = f" (and {use.stands_for - 1} alike)" if use.stands_for > 1 else ""
        yield descriptor(_ROOT + 1 + gpu, f"rank {use.rank}{suffix}", _ROOT, gpu)
    uuid = _ROOT + 1 + len(result.gpus)
    for (gpu, cu, place), members in sorted(rows.track.items()):
        name = f"cu{cu} place {place + 1}" if place else f"cu{cu}"
        yield descriptor(uuid, name, _ROOT + 1 + gpu, cu * _PLACES + place)
        tracks = {0: uuid}
        for row in members:
            kernel = int(shown.workgroup_kernel[row])
            number = int(shown.workgroup[row] - program.kernel_ptr[kernel])
            start, end = int(rows.start_ps[row]), int(rows.end_ps[row])
            yield _begin(uuid, _Slice(first + kernel, start, end, {"workgroup": number}))
            for lane, operation in operations.of_row(row) if rows.has_ops[row] else ():
                if lane not in tracks:
                    tracks[lane] = uuid + len(tracks)
                    yield descriptor(tracks[lane], f"at the same time {lane}", uuid, lane)
                yield _begin(tracks[lane], operation) + _end(tracks[lane], operation.end_ps)
            yield _end(uuid, end)
        uuid += len(tracks)


class _Operations:
    """The operations of workgroups as slices."""

    def __init__(self, result: KernelRun) -> None:
        self._result, self._labels = result, len(result.program.labels) + 1
        self.num_names = len(OP_NAMES) * self._labels
        self._first = np.searchsorted(result.shown.op_row, np.arange(len(result.shown.workgroup) + 1))

    def _name(self, ops: Int64) -> Int64:
        """Return the name number of each operation, made of its kind and label."""
        program = self._result.program
        return program.op_kind[ops].astype(np.int64) * self._labels + program.op_label[ops] + 2

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield number and text of the names of operations."""
        for number in np.unique(self._name(self._result.shown.op)).tolist():
            kind, label = divmod(number - 1, self._labels)
            yield number, f"{OP_NAMES[kind]} {self._result.program.labels[label - 1]}" if label else OP_NAMES[kind]

    def of_row(self, row: int) -> Iterator[tuple[int, _Slice]]:
        """Yield the started operations of one workgroup, in order of start, each with its lane."""
        result = self._result
        records, program, model = result.records, result.program, result.model
        rows = np.arange(self._first[row], self._first[row + 1])
        rows = rows[records.op_start_ps[rows] >= 0]
        rows = rows[np.lexsort((rows, records.op_start_ps[rows]))]
        start = records.op_start_ps[rows].tolist()
        end = ends(records.op_start_ps[rows], records.op_end_ps[rows], records.end_ps).tolist()
        ops = result.shown.op[rows]
        rank = int(program.kernel_rank[result.shown.workgroup_kernel[row]])
        peer = peers(program, ops, np.full(len(ops), rank)).tolist()
        columns = (
            ops.tolist(), self._name(ops).tolist(), program.op_kind[ops].tolist(), program.op_amount[ops].tolist(),
            peer, start, end, lanes(start, end).tolist(),
        )  # fmt: skip
        first = int(program.workgroup_ptr[result.shown.workgroup[row]])
        for op, name, kind, amount, peer_rank, begin, finish, lane in zip(*columns, strict=True):
            arguments = {"operation": op - first}
            if peer_rank != rank:
                arguments["peer_rank"] = peer_rank
            if kind in DATA_OPS:
                arguments |= {"lines": amount, "bytes": amount * model.line_bytes}
            elif kind in _AMOUNTS:
                arguments[_AMOUNTS[kind]] = amount
            yield lane, _Slice(name, begin, finish, arguments)


def _kernel_name(result: KernelRun, kernel: int) -> str:
    names = result.program.kernel_names
    return names[kernel] if kernel < len(names) and names[kernel] else f"kernel {kernel}"


def _begin(track: int, piece: _Slice) -> bytes:
    content = [integer(pb.TYPE, pb.BEGIN), integer(pb.TRACK, track), integer(pb.NAME_IID, piece.name)]
    for name, value in {**piece.arguments, "duration_ps": piece.end_ps - piece.start_ps}.items():
        content.append(message(pb.ANNOTATION, integer(pb.KEY_IID, _ARGUMENTS[name]) + integer(pb.UINT, value)))
    event = message(pb.TRACK_EVENT, b"".join(content))
    return packet(integer(pb.TIMESTAMP, piece.start_ps // pb.PS_PER_NS) + event + pb.SUFFIX)


def _end(track: int, end_ps: int) -> bytes:
    event = message(pb.TRACK_EVENT, integer(pb.TYPE, pb.END) + integer(pb.TRACK, track))
    return packet(integer(pb.TIMESTAMP, end_ps // pb.PS_PER_NS) + event + pb.SUFFIX)
