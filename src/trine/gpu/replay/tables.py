"""Readers of untrusted numpy (.npz) and Parquet tables: no pickles, bounded sizes, checked before use."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy

from trine.common.inputs import open_input
from trine.errors import InputError, MissingExtraError, SpecError

MAX_PARTS, MAX_UNPACKED_BYTES = 64, 2**30
_ENDING = ".npy"


def read_archive(
    path: str | os.PathLike[str], what: str, keys: Collection[str] | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a file by name; with ``keys``, only these. what: the kind of file, for messages.

    Raises SpecError if the file cannot be read, is not an archive, holds objects, has more than MAX_PARTS parts, or
    unpacks to more than MAX_UNPACKED_BYTES bytes.
    """
    with open_input(path, MAX_UNPACKED_BYTES) as raw:
        try:
            with zipfile.ZipFile(raw) as parts:
                entries = parts.infolist()
                if len(entries) > MAX_PARTS or sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
                    problem = f"has more than {MAX_PARTS} parts, or than {MAX_UNPACKED_BYTES} bytes when unpacked"
                    raise SpecError(problem, file=path)
                entry_of = {entry.filename.removesuffix(_ENDING): entry for entry in entries}
                return {key: _array(parts, entry_of[key]) for key in entry_of if keys is None or key in keys}
        except InputError:
            raise
        except Exception as error:  # any error of zip, its decompressors or numpy's header on damaged bytes
            reason = f"{error}" or type(error).__name__
            raise SpecError(f"is not {what}: {reason}", file=path) from None


def _array(parts: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """Read one array. Its header must agree with the archive's size before any memory is allocated for it."""
    if not entry.filename.endswith(_ENDING):
        raise ValueError(f"its part {entry.filename[:80]!r} is no array")
    with parts.open(entry) as stream:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read_header is None:
            raise ValueError(f"{entry.filename[:80]!r} has version {version} of numpy's format")
        shape, by_columns, kind = read_header(stream)
        if kind.hasobject:
            raise ValueError(f"{entry.filename[:80]!r} holds Python objects, which are not loaded")
        size = math.prod(shape) * kind.itemsize
        if min(shape, default=0) < 0 or len(shape) > 8 or size != entry.file_size - stream.tell():
            raise ValueError(f"{entry.filename[:80]!r} does not hold the array of {kind} {shape} that it announces")
        array = np.frombuffer(stream.read(size), kind)
    return array.reshape(shape, order="F" if by_columns else "C")


def has_part(path: str | os.PathLike[str], key: str) -> bool:
    """Return whether the file is an archive with an array ``key``. Raises SpecError if it cannot be read."""
    with open_input(path, MAX_UNPACKED_BYTES) as raw:
        try:
            with zipfile.ZipFile(raw) as parts:
                return f"{key}{_ENDING}" in parts.namelist()
        except InputError:
            raise
        except Exception:  # as in read_archive, which reports the reason
            return False


MAX_FILE_BYTES, MAX_COLUMNS = 2 * 2**30, 64


def read_table(path: str | os.PathLike[str], max_rows: int, what: str, columns: Sequence[str] | None = None) -> Any:
    """Return a file's table (pyarrow); with ``columns``, only these. what: the kind of rows, for messages.

    Raises
    ------
    SpecError: the file cannot be read, is damaged, or exceeds ``max_rows`` or the limits above.
    MissingExtraError: there is no pyarrow.
    """
    _, pq = pyarrow(what)
    with open_input(path, MAX_FILE_BYTES) as raw:
        try:
            with pq.ParquetFile(raw) as source:
                _check_size(source.metadata, max_rows, what, path)
                if columns is None:
                    names = None
                else:
                    names = [each for each in columns if each in source.schema_arrow.names]
                table = source.read(columns=names)
            if table.num_rows > max_rows:
                raise SpecError(f"has more than {max_rows} {what}", file=path)
            table.validate(full=True)
            return table
        except InputError:
            raise
        except Exception as error:  # any error of pyarrow on damaged bytes
            raise SpecError(f"is not Parquet: {str(error) or type(error).__name__}", file=path) from None


def _check_size(metadata: Any, max_rows: int, what: str, path: object) -> None:
    if metadata.num_rows > max_rows:
        raise SpecError(f"has more than {max_rows} {what}", file=path)
    unpacked = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if unpacked > MAX_UNPACKED_BYTES or metadata.num_columns > MAX_COLUMNS:
        problem = f"is too large: more than {MAX_COLUMNS} columns, or than {MAX_UNPACKED_BYTES} bytes when unpacked"
        raise SpecError(problem, file=path)


def pyarrow(what: str) -> tuple[Any, Any]:
    """Return ``pyarrow`` and ``pyarrow.parquet``. Raises MissingExtraError without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(f"{what} in Parquet", "parquet", "pyarrow") from None
    return pa, pq
