"""Answers as plain data, from this process or written with ``--json``; and tables that fit the terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from trine.common.inputs import read_text
from trine.common.spec import parse_json
from trine.common.units import MAX_INT64, PS_PER_S
from trine.errors import InputError, one_line
from trine.results.report import Report
from trine.results.text import columns, width

#: Maximum size of a JSON answer; one of 131,072 GPUs has less than 2 MiB.
MAX_ANSWER_BYTES = 256 * 2**20
#: Forms of answers that can be compared, and the commands that write them.
FORMS = {"result": "trine train", "collective": "trine collective"}
Answer = Mapping[str, Any]


def read_answer(source: Answer | Report | str | os.PathLike[str], name: str) -> tuple[str, Answer]:
    """Return the form and the keys of an answer. ``name``: for errors about an answer that is no file.

    Raises InputError if it cannot be read, or is no answer of a known form.
    """
    if isinstance(source, Report):
        return _checked(source.to_json(), name)
    if isinstance(source, Mapping):
        return _checked(source, name)
    return _checked(parse_json(read_text(source, MAX_ANSWER_BYTES, InputError), os.fspath(source)), source)


def answer_name(source: object, default: str) -> str:
    """Return the file's name without folder and ending, or ``default`` for an answer that is no file."""
    return Path(source).stem if isinstance(source, str | os.PathLike) else default


def _checked(content: object, file: object) -> tuple[str, Answer]:
    schema = content.get("schema") if isinstance(content, Mapping) else None
    parts = schema.split("/") if isinstance(schema, str) else []
    if not isinstance(content, Mapping) or len(parts) != 3 or parts[0] != "trine":
        raise InputError("is no answer of trine: write one with --json FILE", file=file)
    if parts[1] not in FORMS:
        known = " and ".join(f"{command!r}" for command in FORMS.values())
        raise InputError(f"is an answer of form {one_line(parts[1], 40)!r}; answers of {known} compare", file=file)
    return parts[1], content


def picoseconds(answer: Answer, key: str, file: object, unit_ps: int = PS_PER_S) -> int:
    """Return a time of an answer in ps, exact to the picosecond. Raises InputError if it is missing or no time."""
    value = answer.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            ps = round(Decimal(repr(value)) * unit_ps)
        except (InvalidOperation, OverflowError, ValueError):
            ps = -1
        if 0 <= ps <= MAX_INT64:
            return ps
    raise InputError(f"has no time of this name, got {value!r:.40}", file=file, field=key)


def narrowed(rows: Sequence[tuple[str, ...]], spare: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the rows without the columns of ``spare``, in this order, that do not fit beside a screen's margin."""
    kept = list(range(len(rows[0]))) if rows else []
    for column in spare:
        if max(map(len, columns([tuple(row[i] for i in kept) for row in rows])), default=0) <= width() - 2:
            break
        kept.remove(column)
    return [tuple(row[i] for i in kept) for row in rows]


def flat(values: object, prefix: str = "") -> dict[str, object]:
    """Return nested mappings and lists as one mapping with dotted names, in their order."""
    if isinstance(values, Mapping):
        items = [(f"{prefix}.{key}" if prefix else str(key), value) for key, value in values.items()]
    elif isinstance(values, list) and any(isinstance(each, Mapping | list) for each in values):
        items = [(f"{prefix}[{number}]", value) for number, value in enumerate(values)]
    else:
        return {prefix: values}
    return {name: leaf for key, value in items for name, leaf in flat(value, key).items()}
