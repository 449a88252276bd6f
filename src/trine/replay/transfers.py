"""Transfers into one rank, from the records of an operator-level run: who sent how much, and when."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.errors import InputError, SpecError
from trine.graph.taskgraph import KIND_NAMES, TRANSFER, Records, TaskGraph
from trine.inputs import is_file, open_input
from trine.replay.archive import read_archive
from trine.replay.parquet import pyarrow, read_table
from trine.results.records import RecordTable
from trine.units import MAX_INT64, format_time, whole_number

#: As arrays, and as rows of CSV.
MAX_RECORDS = 2**24
MAX_CSV_RECORDS = 2**22
MAX_FILE_BYTES = 2 * 2**30
MAX_CSV_BYTES = 512 * 2**20
MAX_HEADER = 2**16
_COLUMNS = ("kind", "rank", "peer", "start_ps", "end_ps", "size_bytes")


class Transfers(NamedTuple):
    """What others sent to one rank, by end, start and sender: int64[n] each. peer: the sender."""

    peer: Int64
    start_ps: Int64
    end_ps: Int64
    size_bytes: Int64


def transfers_into(table: RecordTable, target: int) -> Transfers:
    """The transfers of a result (``result.record_table``) that end at rank ``target``.

    Raises
    ------
    InputError: there are none.
    """
    columns = {name: np.asarray(table.columns[name]) for name in _COLUMNS}
    return _into(columns, np.asarray(table.columns["kind"]) == TRANSFER, target, None)


def transfers_of(graph: TaskGraph, records: Records, target: int) -> Transfers:
    """The transfers of a run of any task graph that end at rank ``target``.

    Raises
    ------
    InputError: there are none.
    """
    columns = {
        "rank": graph.rank,
        "peer": graph.peer,
        "start_ps": records.start_ps,
        "end_ps": records.end_ps,
        "size_bytes": graph.size_bytes,
    }
    return _into(columns, graph.kind == TRANSFER, target, None)


def transfers_from(transfers: Transfers, start_ps: int | None = None) -> Transfers:
    """Those that start at ``start_ps`` or later, their times counted from there; None: from the start of the first.

    Raises
    ------
    InputError: none starts so late.
    """
    if start_ps is None:
        start_ps = int(transfers.start_ps.min())
    later = transfers.start_ps >= start_ps
    if not later.any():
        last = format_time(int(transfers.start_ps.max()))
        raise InputError(f"no transfer starts at {format_time(start_ps)} or later: the last starts at {last}")
    peer, start, end, size = (column[later] for column in transfers)
    return Transfers(peer, start - start_ps, end - start_ps, size)


def read_transfers(path: str | os.PathLike[str], target: int) -> Transfers:
    """The transfers into rank ``target`` of a records file (``result.to_npz``, ``.to_csv``, ``.to_parquet``).

    path: records.npz, records.csv, records.parquet, or the folder with one of the last two (``--parquet FOLDER``).

    Raises
    ------
    SpecError: not such a file, or too large; names the column. InputError: nothing is sent to ``target``.
    """
    given = records_file(path)
    columns, is_transfer = _READERS[given.suffix](given)
    return _into(columns, is_transfer, target, given)


def records_file(path: str | os.PathLike[str]) -> Path:
    """The file with the records, of a folder the one in it.

    Raises
    ------
    SpecError: there is none, it is too large, or CSV with other columns. InputError: none of .npz, .csv and .parquet.
    """
    given = Path(path)
    if given.is_dir():
        inside = [given / name for name in ("records.parquet", "records.csv") if is_file(given / name)]
        if not inside:
            raise SpecError("has neither records.parquet nor records.csv", file=given)
        given = inside[0]
    with open_input(given, MAX_FILE_BYTES) as raw:
        first = raw.readline(MAX_HEADER)
    if given.suffix not in _READERS:
        raise InputError(f"records are .npz, .csv or .parquet, not {given.suffix!r}", file=given)
    if given.suffix == ".csv":
        header = _header(first.decode("utf-8", "replace"), given)
        _require(header, _COLUMNS, given, "; of a profile --mapping FILE says what its columns mean")
    return given


def _header(line: str, path: Path) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise SpecError(f"is not CSV: {error}", file=f"{path}:1") from None


def _into(columns: dict[str, Any], is_transfer: Any, target: int, file: Path | None) -> Transfers:
    rank, peer = columns["rank"], columns["peer"]
    sent = is_transfer & (peer == target) & (rank != target)
    if not sent.any():
        to = np.unique(peer[is_transfer & (peer >= 0)]).tolist()
        known = f"; ranks that get any: {', '.join(map(str, to[:20]))}" if to else "; there are no transfers"
        raise InputError(f"nothing is sent to rank {target}{known}", file=file, field="target")
    found = [columns[name][sent].astype(np.int64) for name in ("rank", "start_ps", "end_ps", "size_bytes")]
    if (found[1] < 0).any() or (found[2] < found[1]).any():
        raise SpecError("has transfers that never ended: the run was stopped", file=file)
    order = np.lexsort((found[3], found[0], found[1], found[2]))
    return Transfers(*(column[order] for column in found))


def _read_npz(path: Path) -> tuple[dict[str, Any], Any]:
    columns = read_archive(path, "a table of records", (*_COLUMNS, "kind_names"))
    _require(columns, (*_COLUMNS, "kind_names"), path)
    rows = columns["kind"].shape
    for name in _COLUMNS:
        if columns[name].shape != rows or len(rows) != 1 or columns[name].dtype.kind not in "iu":
            raise SpecError("must be whole numbers, one a record", file=path, field=name)
    words = columns["kind_names"].tolist()
    if not isinstance(words, list) or KIND_NAMES[TRANSFER] not in words:
        raise SpecError(f"has no {KIND_NAMES[TRANSFER]!r}", file=path, field="kind_names")
    return columns, columns["kind"] == words.index(KIND_NAMES[TRANSFER])


def _read_csv(path: Path) -> tuple[dict[str, Any], Any]:
    with open_input(path, MAX_CSV_BYTES) as raw:
        try:
            stream = io.TextIOWrapper(raw, encoding="utf-8", newline="")
            reader = csv.reader(stream, strict=True)
            header = next(reader, [])
            place = [header.index(name) for name in _COLUMNS]
            rows: list[list[str]] = []
            for cells in reader:
                if len(cells) != len(header) or len(rows) >= MAX_CSV_RECORDS:
                    raise SpecError("has another number of values than the header, or is too long",
                                    file=f"{path}:{reader.line_num}")  # fmt: skip
                rows.append([cells[at] for at in place])
        except (csv.Error, UnicodeDecodeError) as error:
            raise SpecError(f"is not CSV: {error}", file=path) from None
    columns: dict[str, Any] = {}
    for at, name in enumerate(_COLUMNS[1:], 1):
        columns[name] = _numbers([row[at] for row in rows], name, path)
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
    """Texts, as they are or by their number in a list of texts."""
    text = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(text) or pa.types.is_large_string(text))


def _require(found: Any, names: Sequence[str], path: Path, hint: str = "") -> None:
    for name in names:
        if name not in found:
            raise SpecError(f"is missing: this is no table of records (result.to_npz, .to_csv, .to_parquet){hint}",
                            file=path, field=name)  # fmt: skip


_READERS = {".npz": _read_npz, ".csv": _read_csv, ".parquet": _read_parquet}
