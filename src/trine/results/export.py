"""The tables of a result as files and frames: npz, CSV, Parquet, pandas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trine.errors import MissingExtraError
from trine.outputs import OutputFolder, open_output, write_csv
from trine.results import document
from trine.results.records import RecordTable

if TYPE_CHECKING:
    import pandas

    from trine.results.result import Result


def metric_tables(result: Result) -> dict[str, list[document.Row]]:
    """Return the small tables by name; nested values (categories of memory, axes) become columns or joined text."""
    tables = {
        "ranks": document.rank_rows(result),
        "layers": document.share_rows("layer", result.layers),
        "operators": document.share_rows("operator", result.operators),
        "phases": document.share_rows("phase", result.phases),
        "stages": document.share_rows("stage", result.stages),
        "collectives": document.collective_rows(result),
        "links": document.link_rows(result),
        "memory": document.memory_rows(result),
    }
    return {name: [_flat(row) for row in rows] for name, rows in tables.items() if rows}


def to_npz(result: Result, path: str | Path) -> None:
    """Write the record table: one array a column; text columns are codes, their words in ``<column>_names``."""
    table = result.record_table
    words = {f"{name}_names": np.array(values, np.str_) for name, values in table.categories.items()}
    with open_output(path) as file:  # an open file, because numpy would add ".npz" to a bare path
        np.savez_compressed(file, allow_pickle=False, **table.columns, **words)


def to_csv(result: Result, directory: str | Path) -> None:
    """Write ``records.csv`` and one file a table of metrics into ``directory``, which is made if need be."""
    table = result.record_table
    columns = [table.text(name) if name in table.categories else table.columns[name].tolist() for name in table.columns]
    with OutputFolder(directory) as folder:
        with folder.open("records.csv") as file:
            write_csv(file, table.columns, zip(*columns, strict=True))
        for name, rows in metric_tables(result).items():
            with folder.open(f"{name}.csv") as file:
                write_csv(file, rows[0], (row.values() for row in rows))


def to_parquet(result: Result, directory: str | Path) -> None:
    """Write ``records.parquet`` and one file a table of metrics into ``directory``, which is made if need be."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("writing Parquet (CSV and npz need nothing)", "parquet", "pyarrow") from None
    table = result.record_table
    columns = {name: _arrow_column(table, name, pa) for name in table.columns}
    with OutputFolder(directory) as folder:
        with folder.open("records.parquet") as file:
            pq.write_table(pa.table(columns), file)
        for name, rows in metric_tables(result).items():
            with folder.open(f"{name}.parquet") as file:
                pq.write_table(pa.Table.from_pylist(rows), file)


def to_pandas(result: Result) -> pandas.DataFrame:
    """Return the record table; text columns are categorical, in the order of their codes, NaN for none."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("to_pandas()", "pandas", "pandas") from None
    table = result.record_table
    columns: dict[str, Any] = {}
    for name, values in table.columns.items():
        if name in table.categories:
            codes, words = _distinct(values, table.categories[name])
            columns[name] = pd.Categorical.from_codes(codes, categories=words)
        else:
            columns[name] = values
    return pd.DataFrame(columns)


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


def _flat(row: document.Row) -> document.Row:
    flat: document.Row = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}_bytes": size for name, size in value.items()}
        else:
            flat[key] = " ".join(value) if isinstance(value, list) else value
    return flat
