"""Of which run a record is, so that it is not taken for one of another program or machine."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from trine.cluster.cluster import Cluster
from trine.gpu.model import GpuModel
from trine.gpu.model_fields import FIELDS, PATHS, ModelField, shown, values
from trine.gpu.program import GpuProgram
from trine.gpu.rank_kernels import kernels_of_rank
from trine.units import MAX_INT64

Value: TypeAlias = int | str | bool | None
Numbers: TypeAlias = Mapping[str, Value]

#: Characters of an origin, some ten times what one has.
MAX_TEXT = 2**14
PROGRAM, MODEL, CLUSTER = "program", "gpu_model", "cluster"
_COLUMNS = {
    "kernel_wavefronts": "<i4", "kernel_ptr": "<i8", "workgroup_ptr": "<i8", "op_kind": "<i1", "op_amount": "<i8",
    "op_unroll": "<i4", "operand_ptr": "<i8", "operand_role": "<i1", "operand_address": "<i8", "operand_step": "<i4",
    "operand_semaphore": "<i4", "operand_rank": "<i4",
}  # fmt: skip
_DIGITS = 16
_FINGERPRINT = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")
#: Numbers of the GPU model that a message names; of the rest it says how many they are.
_SHOWN = 4


def origin_of(program: GpuProgram, rank: int, model: GpuModel, cluster: Cluster) -> str:
    """What one rank runs and the cluster, as fingerprints, and the numbers of its GPU: JSON. Names do not count."""
    numbers = {field.path: value for field, value in values(model)}
    parts = {PROGRAM: _fingerprint(program, rank), MODEL: numbers, CLUSTER: cluster.fingerprint[:_DIGITS]}
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def is_origin(text: str) -> bool:
    """Whether a text is what :func:`origin_of` makes."""
    try:
        parts = json.loads(text) if len(text) <= MAX_TEXT else None
    except (ValueError, RecursionError):
        return False
    if not isinstance(parts, dict) or set(parts) != {PROGRAM, MODEL, CLUSTER} or not isinstance(parts[MODEL], dict):
        return False
    if not all(isinstance(parts[name], str) and _FINGERPRINT.fullmatch(parts[name]) for name in (PROGRAM, CLUSTER)):
        return False
    return all(_is_number(path, value) for path, value in parts[MODEL].items())


def differing(there: str, here: str) -> tuple[str, ...]:
    """In what two origins differ, in words: ``the program``, ``the GPU model (kernels.poll: ...)``, ``the cluster``."""
    one, other = json.loads(there), json.loads(here)
    found = ["the program"] if one[PROGRAM] != other[PROGRAM] else []
    if numbers := _numbers(one[MODEL], other[MODEL]):
        more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
        found.append(f"the GPU model ({', '.join(numbers[:_SHOWN])}{more})")
    return (*found, "the cluster") if one[CLUSTER] != other[CLUSTER] else tuple(found)


def _is_number(path: object, value: object) -> bool:
    if path not in PATHS or not isinstance(value, int):
        return path in PATHS and isinstance(value, str | None)
    return (1 if path == "clock" else 0) <= value <= MAX_INT64


def _numbers(there: Numbers, here: Numbers) -> list[str]:
    found = []
    for field in FIELDS:
        one, other = there.get(field.path), here.get(field.path)
        if one != other:
            texts = _said(field, one), _said(field, other)
            # what differs by less than is shown, in the unit of the model
            texts = texts if texts[0] != texts[1] else (str(one), str(other))
            found.append(f"{field.path}: {texts[0]} there, {texts[1]} here")
    return found


def _said(field: ModelField, value: Value) -> str:
    return value[:40] if isinstance(value, str) else shown(field, value)


def _fingerprint(program: GpuProgram, rank: int) -> str:
    own = kernels_of_rank(program, rank)
    buffers = [(buffer.base, buffer.size_bytes, buffer.uncached) for buffer in program.buffers]
    described = json.dumps([program.num_ranks, program.line_bytes, buffers]).encode()
    columns = [np.ascontiguousarray(getattr(own, name), kind).tobytes() for name, kind in _COLUMNS.items()]
    columns.append(np.ascontiguousarray(own.semaphores[rank], "<i4").tobytes())
    whole = hashlib.sha256()
    for part in (described, *columns):
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()[:_DIGITS]
