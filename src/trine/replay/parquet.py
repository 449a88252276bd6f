"""Tables of Parquet, read without trust: bounded, and checked value by value before anything looks at them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from trine.errors import InputError, MissingExtraError, SpecError
from trine.inputs import open_input

MAX_FILE_BYTES, MAX_UNPACKED_BYTES, MAX_COLUMNS = 2 * 2**30, 2**30, 64


def read_table(path: str | os.PathLike[str], max_rows: int, what: str, columns: Sequence[str] | None = None) -> Any:
    """The table (pyarrow) of a file, or those of ``columns`` that it has. what: of which rows there may be so many.

    Raises
    ------
    SpecError: it cannot be read, is damaged, or larger than the limits above and ``max_rows`` say.
    MissingExtraError: pyarrow is not installed.
    """
    _, pq = pyarrow(what)
    with open_input(path, MAX_FILE_BYTES) as raw:
        try:
            with pq.ParquetFile(raw) as source:
                _check_size(source.metadata, max_rows, what, path)
                names = None if columns is None else [each for each in columns if each in source.schema_arrow.names]
                table = source.read(columns=names)
            if table.num_rows > max_rows:
                raise SpecError(f"has more than {max_rows} {what}", file=path)
            table.validate(full=True)
            return table
        except InputError:
            raise
        except Exception as error:  # whatever pyarrow makes of damaged bytes
            raise SpecError(f"is not Parquet: {str(error) or type(error).__name__}", file=path) from None


def _check_size(metadata: Any, max_rows: int, what: str, path: object) -> None:
    if metadata.num_rows > max_rows:
        raise SpecError(f"has more than {max_rows} {what}", file=path)
    unpacked = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if unpacked > MAX_UNPACKED_BYTES or metadata.num_columns > MAX_COLUMNS:
        problem = f"is too large: more than {MAX_COLUMNS} columns, or than {MAX_UNPACKED_BYTES} bytes when unpacked"
        raise SpecError(problem, file=path)


def pyarrow(what: str) -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``. Raises MissingExtraError without them."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(f"{what} in Parquet", "parquet", "pyarrow") from None
    return pa, pq
