"""Records of what came to a GPU, as files (.npz): written after a load-store run, read to replay its peers."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from trine.errors import InputError, SpecError, nearest
from trine.gpu.outside import LOAD, RELEASE, STORE, Arrivals
from trine.outputs import open_output
from trine.replay.archive import has_part, read_archive
from trine.replay.origin import is_origin
from trine.replay.writes import MAX_ADDRESS

FORMAT, VERSION = "trine-arrivals", 2
#: Of the simulation, 11 days; what a release may add.
MAX_PS, MAX_AMOUNT = 10**18, 2**31 - 1

_REQUESTS = {
    "time_ps": np.int64, "rank": np.int32, "place": np.int32, "number": np.int32, "kind": np.int8, "address": np.int64,
    "semaphore": np.int32, "amount": np.int64,
}  # fmt: skip
_ANSWERS = {"answer_place": np.int32, "answer_number": np.int32, "answer_ps": np.int64, "answer_refused": np.int8}
_SINGLE = {"target": np.int64, "num_ranks": np.int64, "version": np.int64}
_KEYS = ("format", "origin", *_SINGLE, *_REQUESTS, *_ANSWERS)


def save_arrivals(path: str | os.PathLike[str], arrivals: Arrivals) -> None:
    """Write a record (.npz, one array a column).

    Raises
    ------
    InputError: the name does not end in .npz, or the file cannot be written.
    """
    _check_name(path)
    columns = {field.name: getattr(arrivals, field.name) for field in fields(arrivals)}
    with open_output(path) as file:
        np.savez_compressed(file, allow_pickle=False, format=np.array(FORMAT), version=np.int64(VERSION), **columns)


def load_arrivals(path: str | os.PathLike[str]) -> Arrivals:
    """Read what :func:`save_arrivals` wrote; nothing in the file is run.

    Raises
    ------
    SpecError: not such a file, too large, or with columns that do not fit; names the column.
    """
    _check_name(path)
    file = os.fspath(path)
    columns = read_archive(file, "a record of arrivals")
    _check_columns(columns, file)
    arrivals = Arrivals(
        origin=str(columns["origin"]),
        target=int(columns["target"]),
        num_ranks=int(columns["num_ranks"]),
        **{key: columns[key] for key in (*_REQUESTS, *_ANSWERS)},
    )
    check_values(arrivals, file)
    return arrivals


def _check_name(path: str | os.PathLike[str]) -> None:
    if Path(path).suffix.lower() != ".npz":
        raise InputError(f"a record of arrivals is .npz, not {Path(path).suffix!r}", file=os.fspath(path))


def is_record(path: str | os.PathLike[str]) -> bool:
    """Whether a file is meant as a record of arrivals; records of tasks are .npz as well."""
    return Path(path).suffix.lower() == ".npz" and has_part(path, next(iter(_ANSWERS)))


def _check_columns(columns: dict[str, Any], file: str) -> None:
    _check_format(columns, file)
    for key in columns:
        if key not in _KEYS:
            raise SpecError(f"unknown column {key[:80]!r}{nearest(key[:80], _KEYS)}", file=file)
    for key in _KEYS:
        if key not in columns:
            raise SpecError("is missing", file=file, field=key)
    for group in (_REQUESTS, _ANSWERS):
        length = columns[next(iter(group))].shape
        for key, kind in group.items():
            if columns[key].dtype != kind or columns[key].shape != length or len(length) != 1:
                got = f"{columns[key].dtype} of shape {columns[key].shape}"
                raise SpecError(
                    f"must be one row of {np.dtype(kind)}, as long as the others; is {got}", file=file, field=key
                )
    for key in _SINGLE:
        _check_single(columns, key, "iu", file)
    _check_single(columns, "origin", "U", file)


def _check_format(columns: dict[str, Any], file: str) -> None:
    """First, since another version has other columns."""
    if "format" not in columns or columns["format"].shape != () or str(columns["format"]) != FORMAT:
        raise SpecError(f"must be {FORMAT!r}", file=file, field="format")
    _check_single(columns, "version", "iu", file)
    version = int(columns["version"])
    if version != VERSION:
        problem = f"is {version}; this trine reads {VERSION}: record the run again (trine eidolon record)"
        raise SpecError(problem, file=file, field="version")


def _check_single(columns: dict[str, Any], key: str, kinds: str, file: str) -> None:
    if key not in columns or columns[key].shape != () or columns[key].dtype.kind not in kinds:
        raise SpecError(f"must be one {'text' if kinds == 'U' else 'whole number'}", file=file, field=key)


def check_values(arrivals: Arrivals, file: str | None = None) -> None:
    """Raise SpecError naming column and row of what no run brings."""
    if arrivals.origin and not is_origin(arrivals.origin):
        raise SpecError(f"is not what 'trine eidolon record' writes: {arrivals.origin[:80]!r}", file=file,
                        field="origin")  # fmt: skip
    ranks = arrivals.num_ranks
    if not 0 <= arrivals.target < ranks:
        raise SpecError(f"must be from 0 to {ranks - 1}, got {arrivals.target}", file=file, field="target")
    time_ps, answer_ps, flagged = arrivals.time_ps, arrivals.answer_ps, arrivals.semaphore >= 0
    wrong = {
        "time_ps": (time_ps < 0) | (np.diff(time_ps, prepend=0) < 0) | (time_ps > MAX_PS),
        "rank": (arrivals.rank < 0) | (arrivals.rank >= ranks) | (arrivals.rank == arrivals.target),
        "place": arrivals.place < 0,
        "number": arrivals.number < 0,
        "kind": ~np.isin(arrivals.kind, (LOAD, STORE, RELEASE)),
        "address": (arrivals.address < 0) | (arrivals.address > MAX_ADDRESS),
        "semaphore": (arrivals.semaphore < -1) | ((arrivals.kind == RELEASE) & ~flagged),
        "amount": (arrivals.amount < 0) | (arrivals.amount > MAX_AMOUNT),
        "answer_place": arrivals.answer_place < 0,
        "answer_number": arrivals.answer_number < 0,
        "answer_ps": (answer_ps < 0) | (answer_ps > MAX_PS),
        "answer_refused": ~np.isin(arrivals.answer_refused, (0, 1)),
    }
    for key, bad in wrong.items():
        if bad.any():
            row = int(bad.argmax())
            raise SpecError(f"cannot be {getattr(arrivals, key)[row]} (row {row})", file=file, field=key)
