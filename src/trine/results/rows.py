"""Types of a result's tables: rows of plain values, or the columns of all tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from trine.results.record_table import RecordTable

Row = dict[str, object]
Table: TypeAlias = "list[Row] | RecordTable"
