"""Transfers into one rank, from the records of an operator-level run, and their conversion to writes."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.common.inputs import is_file, open_input
from trine.common.units import MAX_INT64, format_time, whole_number
from trine.errors import InputError, SpecError, nearest
from trine.gpu.kernels.fused.peers import PeerData, PeerFlags
from trine.gpu.replay.tables import pyarrow, read_archive, read_table
from trine.gpu.replay.writes import MAX_RANK, WriteTable
from trine.graph.taskgraph import KIND_NAMES, TRANSFER

#: Largest number of records in a binary file and in a CSV file.
MAX_RECORDS = 2**24
MAX_CSV_RECORDS = 2**22
MAX_FILE_BYTES = 2 * 2**30
MAX_CSV_BYTES = 512 * 2**20
MAX_HEADER = 2**16
_COLUMNS = ("kind", "rank", "peer", "start_ps", "end_ps", "size_bytes")


class TransferColumns(NamedTuple):
    """Transfers from other ranks to one rank, sorted by end, start and sender: int64[n] each. peer: the sender."""

    peer: Int64
    start_ps: Int64
    end_ps: Int64
    size_bytes: Int64


def transfers_from(transfers: TransferColumns, start_ps: int | None = None) -> TransferColumns:
    """Return the transfers from ``start_ps`` (None: the first start) on, with times relative to it.

    Raises InputError if no transfer starts at ``start_ps`` or later.
    """
    if start_ps is None:
        start_ps = int(transfers.start_ps.min())
    is_later = transfers.start_ps >= start_ps
    if not is_later.any():
        last_start = format_time(int(transfers.start_ps.max()))
        raise InputError(f"no transfer starts at {format_time(start_ps)} or later: the last starts at {last_start}")
    peer, start, end, size = (column[is_later] for column in transfers)
    return TransferColumns(peer, start - start_ps, end - start_ps, size)


def read_transfers(path: str | os.PathLike[str], target: int) -> TransferColumns:
    """Return the transfers into rank ``target`` of a records file (``result.to_npz``, ``.to_csv``, ``.to_parquet``).

    path: records.npz, records.csv, records.parquet, or the folder with one of the last two (``--parquet FOLDER``).

    Raises SpecError (naming the column) for an invalid or too large file, InputError if no rank sends to ``target``.
    """
    file = records_file(path)
    columns, is_transfer = _READERS[file.suffix](file)
    return _select_incoming(columns, is_transfer, target, file)


def records_file(path: str | os.PathLike[str]) -> Path:
    """Return the records file: ``path`` itself, or the records file in that folder.

    Raises SpecError if the file is missing or too large, or a CSV file lacks columns, and InputError for a suffix
    other than .npz, .csv and .parquet.
    """
    file = Path(path)
    if file.is_dir():
        files = [file / name for name in ("records.parquet", "records.csv") if is_file(file / name)]
        if not files:
            raise SpecError("has neither records.parquet nor records.csv", file=file)
        file = files[0]
    with open_input(file, MAX_FILE_BYTES) as raw:
        first_line = raw.readline(MAX_HEADER)
    if file.suffix not in _READERS:
        raise InputError(f"records are .npz, .csv or .parquet, not {file.suffix!r}", file=file)
    if file.suffix == ".csv":
        header = _header(first_line.decode("utf-8", "replace"), file)
        _require(header, _COLUMNS, file, "; a profile needs --mapping FILE for the meaning of its columns")
    return file


def _header(line: str, path: Path) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise SpecError(f"is not CSV: {error}", file=f"{path}:1") from None


def _select_incoming(columns: dict[str, Any], is_transfer: Any, target: int, file: Path) -> TransferColumns:
    rank, peer = columns["rank"], columns["peer"]
    is_incoming = is_transfer & (peer == target) & (rank != target)
    if not is_incoming.any():
        targets = np.unique(peer[is_transfer & (peer >= 0)]).tolist()
        hint = f"; ranks that get any: {', '.join(map(str, targets[:20]))}" if targets else "; there are no transfers"
        raise InputError(f"no transfer to rank {target}{hint}", file=file, field="target")
    selected = [columns[name][is_incoming].astype(np.int64) for name in ("rank", "start_ps", "end_ps", "size_bytes")]
    if (selected[0] < 0).any() or (selected[0] > MAX_RANK).any():
        raise SpecError(f"has transfers of ranks that are not from 0 to {MAX_RANK}", file=file, field="rank")
    if (selected[1] < 0).any() or (selected[2] < selected[1]).any():
        raise SpecError("has transfers that never ended: the run was stopped", file=file)
    order = np.lexsort((selected[3], selected[0], selected[1], selected[2]))
    return TransferColumns(*(column[order] for column in selected))


def _read_npz(path: Path) -> tuple[dict[str, Any], Any]:
    columns = read_archive(path, "a table of records", (*_COLUMNS, "kind_names"))
    _require(columns, (*_COLUMNS, "kind_names"), path)
    rows = columns["kind"].shape
    for name in _COLUMNS:
        if columns[name].shape != rows or len(rows) != 1 or columns[name].dtype.kind not in "iu":
            raise SpecError("must be whole numbers, one a record", file=path, field=name)
    kind_names = columns["kind_names"].tolist()
    if not isinstance(kind_names, list) or KIND_NAMES[TRANSFER] not in kind_names:
        raise SpecError(f"has no {KIND_NAMES[TRANSFER]!r}", file=path, field="kind_names")
    return columns, columns["kind"] == kind_names.index(KIND_NAMES[TRANSFER])


def _read_csv(path: Path) -> tuple[dict[str, Any], Any]:
    with open_input(path, MAX_CSV_BYTES) as raw:
        try:
            stream = io.TextIOWrapper(raw, encoding="utf-8", newline="")
            reader = csv.reader(stream, strict=True)
            header = next(reader, [])
            positions = [header.index(name) for name in _COLUMNS]
            rows: list[list[str]] = []
            for cells in reader:
                if len(cells) != len(header) or len(rows) >= MAX_CSV_RECORDS:
                    raise SpecError("has another number of values than the header, or is too long",
                                    file=f"{path}:{reader.line_num}")  # fmt: skip
                rows.append([cells[index] for index in positions])
        except (csv.Error, UnicodeDecodeError) as error:
            raise SpecError(f"is not CSV: {error}", file=path) from None
    columns: dict[str, Any] = {}
    for index, name in enumerate(_COLUMNS[1:], 1):
        columns[name] = _numbers([row[index] for row in rows], name, path)
    return columns, np.array([row[0] == KIND_NAMES[TRANSFER] for row in rows], bool)


def _numbers(texts: Sequence[str], name: str, path: Path) -> Int64:
    numbers = [whole_number(text, -MAX_INT64) for text in texts]
    if None in numbers:
        row = numbers.index(None)
        problem = f"must be a whole number, got {texts[row][:80]!r} (at most {MAX_INT64})"
        raise SpecError(problem, file=f"{path}:{row + 2}", field=name)
    return np.array(numbers, np.int64)


def _read_parquet(path: Path) -> tuple[dict[str, Any], Any]:
    pa, _ = pyarrow("records")
    content = read_table(path, MAX_RECORDS, "records", _COLUMNS)
    _require(content.column_names, _COLUMNS, path)
    kinds = content["kind"]
    if not _is_text(pa, kinds.type):
        raise SpecError(f"must be text, not {kinds.type}", file=path, field="kind")
    for name in _COLUMNS[1:]:
        if not pa.types.is_integer(content[name].type) or content[name].null_count:
            raise SpecError("must be whole numbers", file=path, field=name)
    columns = {name: content[name].to_numpy() for name in _COLUMNS[1:]}
    return columns, np.array([kind == KIND_NAMES[TRANSFER] for kind in kinds.to_pylist()], bool)


def _is_text(pa: Any, kind: Any) -> bool:
    """Return whether an Arrow type holds text, plain or dictionary-encoded."""
    text = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(text) or pa.types.is_large_string(text))


def _require(columns: Any, names: Sequence[str], path: Path, hint: str = "") -> None:
    for name in names:
        if name not in columns:
            raise SpecError(f"is missing: this is no table of records (result.to_npz, .to_csv, .to_parquet){hint}",
                            file=path, field=name)  # fmt: skip


_READERS = {".npz": _read_npz, ".csv": _read_csv, ".parquet": _read_parquet}


#: When a transfer becomes a write: at its end, or at its start if a modelled fabric then carries the write.
END, START = "end", "start"
MOMENTS = (END, START)
#: Size of a flag.
FLAG_BYTES = 8


def writes_from_transfers(
    transfers: TransferColumns, flags: PeerFlags, data: PeerData | None = None, *, at: str = END
) -> WriteTable:
    """Return the writes of a kernel's peers, at the times when the transfers deliver the same share of bytes.

    A peer's flags, in the order of the workgroups that wait for them, stand for equal parts of the bytes that the peer
    sent: flag i of n lands with the transfer that completes part i + 1 of n. Data lands with the flag of its workgroup;
    data without a workgroup lands with the first flag.

    Parameters
    ----------
    flags, data: the writes expected from peers (:mod:`trine.gpu.kernels.fused.peers`).
    at: ``end`` of the transfer for an ideal fabric; ``start`` for a modelled fabric, which adds its transfer time.

    Raises
    ------
    InputError: if a peer writes a flag but sends no bytes.
    """
    _check_moment(at)
    table = WriteTable()
    moments = transfers.end_ps if at == END else transfers.start_ps
    for peer in np.unique(flags.peer).tolist():
        is_peer = transfers.peer == peer
        if not is_peer.any():
            raise InputError(
                f"rank {peer} writes flags, but sends nothing to the target in that run; who does: "
                f"{', '.join(map(str, np.unique(transfers.peer)[:20].tolist()))}",
                field="transfers",
            )
        rows = np.flatnonzero(flags.peer == peer)
        rows = rows[np.lexsort((flags.address[rows], flags.workgroup[rows]))]
        times = _shares(transfers.size_bytes[is_peer], moments[is_peer], len(rows))
        table.register_writes(
            peer=peer, address=flags.address[rows], size_bytes=FLAG_BYTES, value=flags.value[rows], time_ps=times
        )
        if data is not None:
            _add_data(table, data, peer, flags.workgroup[rows], times)
    return table


def listed_writes(
    transfers: TransferColumns,
    *,
    buffer: str,
    buffer_bytes: int | None = None,
    first_flag: int | None = 0,
    at: str = END,
) -> WriteTable:
    """Return one data write and one flag write per transfer, for a user-written program.

    Transfers are in the order of end, start and sender. Transfer i lies in ``buffer`` behind the earlier ones (or at
    the beginning again if ``buffer_bytes`` is too small), and adds 1 to semaphore ``first_flag`` + i. first_flag None:
    data only.

    Raises InputError if a transfer is larger than the buffer or a flag is negative.
    """
    _check_moment(at)
    if first_flag is not None and first_flag < 0:
        raise InputError(f"must not be negative, got {first_flag}", field="first_flag")
    nonempty = transfers.size_bytes > 0
    size = transfers.size_bytes[nonempty]
    offset = _laid_out(size, buffer_bytes)
    moments = transfers.end_ps if at == END else transfers.start_ps
    table = WriteTable()
    table.register_writes(
        peer=transfers.peer[nonempty],
        address=[f"{buffer}+0x{place:x}" for place in offset.tolist()],
        size_bytes=size,
        time_ps=moments[nonempty],
    )
    if first_flag is not None:
        table.register_writes(
            peer=transfers.peer, address=[f"sem {first_flag + number}" for number in range(len(moments))],
            size_bytes=FLAG_BYTES, value=1, time_ps=moments,
        )  # fmt: skip
    return table


def _check_moment(moment: str) -> None:
    if moment not in MOMENTS:
        raise InputError(f"unknown moment {moment!r}{nearest(moment, MOMENTS)}", field="at")


def _shares(size: Int64, moment: Int64, number: int) -> Int64:
    """Return int64[number]: the moment at which part i + 1 of ``number`` equal parts of all bytes is complete."""
    order = np.lexsort((size, moment))
    total = np.cumsum(size[order])
    # part i + 1 of n is complete when total >= all * (i + 1) / n; integers avoid rounding
    thresholds = -(-int(total[-1]) * np.arange(1, number + 1, dtype=object) // number)
    return np.asarray(moment[order][np.searchsorted(total, thresholds.astype(np.int64), "left")])


def _add_data(table: WriteTable, data: PeerData, peer: int, workgroup: npt.NDArray[np.int32], times: Int64) -> None:
    rows = np.flatnonzero(data.peer == peer)
    if not len(rows):
        return
    workgroups, first_rows = np.unique(workgroup, return_index=True)
    place = np.minimum(np.searchsorted(workgroups, data.workgroup[rows]), len(workgroups) - 1)
    is_known = workgroups[place] == data.workgroup[rows]
    moment = np.where(is_known, times[first_rows[place]], times.min())
    table.register_writes(peer=peer, address=data.address[rows], size_bytes=data.size_bytes[rows], time_ps=moment)


def _laid_out(size: Int64, buffer_bytes: int | None) -> Int64:
    """Return the start of each transfer: behind the previous one, or at the beginning if it would not fit."""
    if buffer_bytes is None:
        return np.asarray(np.cumsum(size) - size)
    if len(size) and int(size.max()) > buffer_bytes:
        raise InputError(f"a transfer of {int(size.max())} bytes is larger than the {buffer_bytes} of the buffer")
    starts, offset = [], 0
    for length in size.tolist():
        offset = 0 if offset + length > buffer_bytes else offset
        starts.append(offset)
        offset += length
    return np.array(starts, np.int64)
