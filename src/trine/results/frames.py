"""Tables as files and frames: npz, CSV, Parquet, pandas. A table is a list of rows, or the columns of all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from trine.common.outputs import OutputFolder, open_output, write_csv
from trine.errors import MissingExtraError
from trine.results.record_table import RecordTable
from trine.results.rows import Row, Table

if TYPE_CHECKING:
    import pandas


def to_npz(table: RecordTable, path: str | Path) -> None:
    """Write one array a column; text columns are codes, their words in ``<column>_names``."""
    words = {f"{name}_names": np.array(values, np.str_) for name, values in table.categories.items()}
    with open_output(path) as file:  # an open file, because numpy would add ".npz" to a bare path
        np.savez_compressed(file, allow_pickle=False, **table.columns, **words)


def to_csv(tables: Mapping[str, Table], path: str | Path) -> None:
    """Write one file a table into the folder ``path``, which is made if need be.

    Where ``path`` ends in ``.csv``, write the first table to it.
    """
    if Path(path).suffix.lower() == ".csv":
        with open_output(path) as file:
            _write_csv(next(iter(tables.values())), file)
        return
    with OutputFolder(path) as folder:
        for name, table in tables.items():
            with folder.open(f"{name}.csv") as file:
                _write_csv(table, file)


def pyarrow() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``. Raises MissingExtraError without them."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("writing Parquet (CSV and npz need nothing)", "parquet", "pyarrow") from None
    return pa, pq


def to_parquet(tables: Mapping[str, Table], directory: str | Path) -> None:
    """Write one file a table into ``directory``, which is made if need be."""
    pa, pq = pyarrow()
    with OutputFolder(directory) as folder:
        for name, table in tables.items():
            with folder.open(f"{name}.parquet") as file:
                if isinstance(table, RecordTable):
                    pq.write_table(pa.table({key: _arrow_column(table, key, pa) for key in table.columns}), file)
                else:
                    pq.write_table(pa.Table.from_pylist([flat(row) for row in table]), file)


def to_frame(table: Table) -> pandas.DataFrame:
    """Return a data frame; text columns of records are categorical, in the order of their codes, NaN for none."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("data frames", "pandas", "pandas") from None
    if not isinstance(table, RecordTable):
        return pd.DataFrame([flat(row) for row in table])
    columns: dict[str, Any] = {}
    for name, values in table.columns.items():
        if name in table.categories:
            codes, words = _distinct(values, table.categories[name])
            columns[name] = pd.Categorical.from_codes(codes, categories=words)
        else:
            columns[name] = values
    return pd.DataFrame(columns)


def flat(row: Row, prefix: str = "") -> Row:
    """Return a row without nesting: ``{"a": {"b": 1}}`` has a column ``a_b``, lists are joined by blanks."""
    columns: Row = {}
    for key, value in row.items():
        if isinstance(value, dict):
            columns |= flat(value, f"{prefix}{key}_")
        else:
            columns[prefix + key] = " ".join(map(str, value)) if isinstance(value, list) else value
    return columns


def _write_csv(table: Table, file: BinaryIO) -> None:
    if isinstance(table, RecordTable):
        names, texts = table.columns, table.categories
        columns = []
        for name in names:
            columns.append(table.text(name) if name in texts else table.columns[name].tolist())
        write_csv(file, names, zip(*columns, strict=True))
    else:
        rows = [flat(row) for row in table]
        header = rows[0] if rows else ()
        write_csv(file, header, (row.values() for row in rows))


def _arrow_column(table: RecordTable, name: str, pa: Any) -> Any:
    values = table.columns[name]
    if name not in table.categories:
        return pa.array(values)
    codes, words = _distinct(values, table.categories[name])
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(words, pa.string()))


def _distinct(codes: Any, words: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Merge words that are equal, as categories must be distinct: int32 codes and the words."""
    number: dict[str, int] = {}
    for word in words:
        number.setdefault(word, len(number))
    renumber = np.array([number[word] for word in words] + [-1], np.int32)
    return renumber[codes], list(number)
