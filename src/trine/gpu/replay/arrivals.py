"""Arrival records (.npz): requests that reached a GPU in a load-store run, saved to replay its peers later.

A record carries its provenance, the program and the machine, so that it is not replayed for another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from trine.cluster.cluster import Cluster
from trine.common.outputs import open_output
from trine.common.units import MAX_INT64
from trine.errors import InputError, SpecError, nearest
from trine.gpu.model import FIELDS, PATHS, GpuModel, ModelField, shown, values
from trine.gpu.peers import LOAD, PUT, RELEASE, STORE, Arrivals
from trine.gpu.program import GpuProgram, kernels_of_rank
from trine.gpu.replay.tables import has_part, read_archive
from trine.gpu.replay.writes import MAX_ADDRESS

FORMAT, VERSION = "trine-arrivals", 2
#: Longest simulated time (11 days), and the largest amount that a release may add.
MAX_PS, MAX_AMOUNT = 10**18, 2**31 - 1

_REQUESTS = {
    "time_ps": np.int64, "rank": np.int32, "place": np.int32, "number": np.int32, "kind": np.int8, "address": np.int64,
    "semaphore": np.int32, "amount": np.int64,
}  # fmt: skip
_ANSWERS = {"answer_place": np.int32, "answer_number": np.int32, "answer_ps": np.int64, "answer_refused": np.int8}
#: Columns of a task graph; records written before 0.8.0 lack them.
_TASKS = {"task": np.int32, "task_end_ps": np.int64}
_GROUPS = (_REQUESTS, _ANSWERS, _TASKS)
_SINGLE = {"target": np.int64, "num_ranks": np.int64, "version": np.int64}
_KEYS = ("format", "origin", *_SINGLE, *(key for group in _GROUPS for key in group))


def save_arrivals(path: str | os.PathLike[str], arrivals: Arrivals) -> None:
    """Write a record (.npz, one array per column).

    Raises InputError: the name does not end in .npz, or the file cannot be written.
    """
    _check_name(path)
    columns = {field.name: getattr(arrivals, field.name) for field in fields(arrivals)}
    with open_output(path) as file:
        np.savez_compressed(file, allow_pickle=False, format=np.array(FORMAT), version=np.int64(VERSION), **columns)


def load_arrivals(path: str | os.PathLike[str]) -> Arrivals:
    """Read a record written by :func:`save_arrivals`, without executing anything in the file.

    Raises SpecError, with the column, if the file is not a record, is too large, or has wrong columns.
    """
    _check_name(path)
    file = os.fspath(path)
    columns = {key: np.zeros(0, kind) for key, kind in _TASKS.items()} | read_archive(file, "a record of arrivals")
    _check_columns(columns, file)
    arrivals = Arrivals(
        origin=str(columns["origin"]),
        target=int(columns["target"]),
        num_ranks=int(columns["num_ranks"]),
        **{key: columns[key] for group in _GROUPS for key in group},
    )
    check_values(arrivals, file)
    return arrivals


def _check_name(path: str | os.PathLike[str]) -> None:
    if Path(path).suffix.lower() != ".npz":
        raise InputError(f"a record of arrivals is .npz, not {Path(path).suffix!r}", file=os.fspath(path))


def is_record(path: str | os.PathLike[str]) -> bool:
    """Return whether a file looks like an arrival record; task records are .npz as well."""
    return Path(path).suffix.lower() == ".npz" and has_part(path, next(iter(_ANSWERS)))


def _check_columns(columns: dict[str, Any], file: str) -> None:
    _check_format(columns, file)
    for key in columns:
        if key not in _KEYS:
            raise SpecError(f"unknown column {key[:80]!r}{nearest(key[:80], _KEYS)}", file=file)
    for key in _KEYS:
        if key not in columns:
            raise SpecError("is missing", file=file, field=key)
    for group in _GROUPS:
        length = columns[next(iter(group))].shape
        for key, kind in group.items():
            if columns[key].dtype != kind or columns[key].shape != length or len(length) != 1:
                actual = f"{columns[key].dtype} of shape {columns[key].shape}"
                raise SpecError(
                    f"must be one row of {np.dtype(kind)}, as long as the others; is {actual}", file=file, field=key
                )
    for key in _SINGLE:
        _check_single(columns, key, "iu", file)
    _check_single(columns, "origin", "U", file)


def _check_format(columns: dict[str, Any], file: str) -> None:
    """Check the format and version, before the columns, because other versions have other columns."""
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
    """Raise SpecError, with column and row, for values that no run can produce."""
    if arrivals.origin and not is_provenance(arrivals.origin):
        raise SpecError(f"is not what 'trine eidolon record' writes: {arrivals.origin[:80]!r}", file=file,
                        field="origin")  # fmt: skip
    ranks = arrivals.num_ranks
    if not 0 <= arrivals.target < ranks:
        raise SpecError(f"must be from 0 to {ranks - 1}, got {arrivals.target}", file=file, field="target")
    time_ps, answer_ps, flagged = arrivals.time_ps, arrivals.answer_ps, arrivals.semaphore >= 0
    task, task_end_ps = arrivals.task, arrivals.task_end_ps
    wrong = {
        "time_ps": (time_ps < 0) | (np.diff(time_ps, prepend=0) < 0) | (time_ps > MAX_PS),
        "rank": (arrivals.rank < 0) | (arrivals.rank >= ranks) | (arrivals.rank == arrivals.target),
        "place": arrivals.place < 0,
        "number": arrivals.number < 0,
        "kind": ~np.isin(arrivals.kind, (LOAD, STORE, RELEASE, PUT)),
        "address": (arrivals.address < 0) | (arrivals.address > MAX_ADDRESS),
        "semaphore": (arrivals.semaphore < -1) | (np.isin(arrivals.kind, (RELEASE, PUT)) & ~flagged),
        "amount": (arrivals.amount < 0) | (arrivals.amount > MAX_AMOUNT),
        "answer_place": arrivals.answer_place < 0,
        "answer_number": arrivals.answer_number < 0,
        "answer_ps": (answer_ps < 0) | (answer_ps > MAX_PS),
        "answer_refused": ~np.isin(arrivals.answer_refused, (0, 1)),
        "task": np.diff(task, prepend=-1) <= 0,
        "task_end_ps": (task_end_ps < 0) | (task_end_ps > MAX_PS),
    }
    for key, bad in wrong.items():
        if bad.any():
            row = int(bad.argmax())
            raise SpecError(f"cannot be {getattr(arrivals, key)[row]} (row {row})", file=file, field=key)


Value: TypeAlias = int | str | bool | None
Numbers: TypeAlias = Mapping[str, Value]

#: Longest origin in characters, about ten times the usual length.
MAX_TEXT = 2**14
PROGRAM, MODEL, CLUSTER = "program", "gpu_model", "cluster"
_COLUMNS = {
    "kernel_wavefronts": "<i4", "kernel_ptr": "<i8", "workgroup_ptr": "<i8", "op_kind": "<i1", "op_amount": "<i8",
    "op_unroll": "<i4", "operand_ptr": "<i8", "operand_role": "<i1", "operand_address": "<i8", "operand_step": "<i4",
    "operand_semaphore": "<i4", "operand_rank": "<i4",
}  # fmt: skip
_DIGITS = 16
_FINGERPRINT = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")
#: Differing GPU model parameters that a message lists by name; it only counts the rest.
_SHOWN = 4


def provenance_of(program: GpuProgram, rank: int, model: GpuModel, cluster: Cluster) -> str:
    """Return fingerprints of a rank's program and the cluster, and its GPU's parameters, as JSON. Ignores names."""
    numbers = {field.path: value for field, value in values(model)}
    parts = {PROGRAM: _fingerprint(program, rank), MODEL: numbers, CLUSTER: cluster.fingerprint[:_DIGITS]}
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def is_provenance(text: str) -> bool:
    """Return whether a text has the form of :func:`provenance_of`."""
    try:
        parts = json.loads(text) if len(text) <= MAX_TEXT else None
    except (ValueError, RecursionError):
        return False
    if not isinstance(parts, dict) or set(parts) != {PROGRAM, MODEL, CLUSTER} or not isinstance(parts[MODEL], dict):
        return False
    if not all(isinstance(parts[name], str) and _FINGERPRINT.fullmatch(parts[name]) for name in (PROGRAM, CLUSTER)):
        return False
    return all(_is_number(path, value) for path, value in parts[MODEL].items())


def differing(recorded: str, current: str) -> tuple[str, ...]:
    """Name the differing parts: ``the program``, ``the GPU model (kernels.poll: ...)``, ``the cluster``."""
    old, new = json.loads(recorded), json.loads(current)
    differences = ["the program"] if old[PROGRAM] != new[PROGRAM] else []
    if numbers := _numbers(old[MODEL], new[MODEL]):
        more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
        differences.append(f"the GPU model ({', '.join(numbers[:_SHOWN])}{more})")
    return (*differences, "the cluster") if old[CLUSTER] != new[CLUSTER] else tuple(differences)


def _is_number(path: object, value: object) -> bool:
    if path not in PATHS or not isinstance(value, int):
        return path in PATHS and isinstance(value, str | None)
    return (1 if path == "clock" else 0) <= value <= MAX_INT64


def _numbers(recorded: Numbers, current: Numbers) -> list[str]:
    differences = []
    for field in FIELDS:
        old, new = recorded.get(field.path), current.get(field.path)
        if old != new:
            texts = _value_text(field, old), _value_text(field, new)
            # values that look equal after rounding are shown in the unit of the model
            texts = texts if texts[0] != texts[1] else (str(old), str(new))
            differences.append(f"{field.path}: {texts[0]} there, {texts[1]} here")
    return differences


def _value_text(field: ModelField, value: Value) -> str:
    return value[:40] if isinstance(value, str) else shown(field, value)


def _fingerprint(program: GpuProgram, rank: int) -> str:
    kernels = kernels_of_rank(program, rank)
    buffers = [(buffer.base, buffer.size_bytes, buffer.uncached) for buffer in program.buffers]
    described = json.dumps([program.num_ranks, program.line_bytes, buffers]).encode()
    columns = [np.ascontiguousarray(getattr(kernels, name), kind).tobytes() for name, kind in _COLUMNS.items()]
    columns.append(np.ascontiguousarray(kernels.semaphores[rank], "<i4").tobytes())
    digest = hashlib.sha256()
    for part in (described, *columns):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:_DIGITS]
