"""Arrays of records: their dtypes, and their conversion for kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from trine.common._jit import is_uncompiled

#: An array of records, or one record, inside kernels: ``tasks[U(task)].ready_ps``. mypy does not know the fields.
RecordArray: TypeAlias = Any
Record: TypeAlias = Any

Bundle = TypeVar("Bundle", bound=tuple[Any, ...])

_CTYPES = {"i1": ctypes.c_int8, "i2": ctypes.c_int16, "i4": ctypes.c_int32, "i8": ctypes.c_int64, "f8": ctypes.c_double}


def record_dtype(size_bytes: int, *fields: tuple[str, str] | tuple[str, str, str]) -> np.dtype[np.void]:
    """Return the dtype of a record of ``size_bytes`` with consecutive fields (name, type), each aligned to its size.

    (name, type, other) is a union: the field has the same offset as the field ``other``.
    """
    offsets: dict[str, int] = {}
    end = 0
    for name, kind, *shared in fields:
        dtype = np.dtype(kind)
        if shared:
            offsets[name] = offsets[shared[0]]
        else:
            offsets[name] = -(-end // dtype.base.alignment) * dtype.base.alignment
            end = offsets[name] + dtype.itemsize
    formats = [field[1] for field in fields]
    return np.dtype(
        {"names": list(offsets), "formats": formats, "offsets": [*offsets.values()], "itemsize": size_bytes}
    )


def new_records(count: int, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Return ``count`` zeroed records, aligned to a cache line so that a 64-byte record occupies exactly one."""
    raw = np.zeros(count * dtype.itemsize + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + count * dtype.itemsize].view(dtype)


def for_kernel(bundle: Bundle) -> Bundle:
    """Return the arrays of a NamedTuple for kernels; for uncompiled kernels, records become ctypes structures.

    Access to fields of ``np.record`` is 4 times slower. Both views share the memory.
    """
    if not is_uncompiled():
        return bundle
    return with_parts(bundle, lambda part: for_kernel(part) if isinstance(part, tuple) else one_for_kernel(part))


def with_parts(bundle: Bundle, change: Callable[[Any], Any]) -> Bundle:
    """Return the NamedTuple with ``change`` applied to each part."""
    kind: Any = type(bundle)
    changed: Bundle = kind(*map(change, bundle))
    return changed


def one_for_kernel(array: RecordArray) -> RecordArray:
    """Return an array of records in the form that kernels expect; return any other value unchanged."""
    if not is_uncompiled() or not isinstance(array, np.ndarray) or array.dtype.names is None:
        return array
    return (_structure(array.dtype) * len(array)).from_buffer(array.view(np.uint8).data)


@cache
def _structure(dtype: np.dtype[np.void]) -> type[ctypes.Structure]:
    """Return the ctypes structure of a record. Each field comes from a separate structure, so fields may overlap."""
    record = type("Record", (ctypes.Structure,), {"_fields_": [("_bytes", ctypes.c_byte * dtype.itemsize)]})
    assert dtype.fields is not None
    for name, (kind, offset, *_) in dtype.fields.items():
        ctype: Any = _CTYPES[kind.base.str[1:]]
        member = ("member", ctype * kind.shape[0] if kind.shape else ctype)
        members = [("_before", ctypes.c_byte * offset), member]
        overlay = type("Alone", (ctypes.Structure,), {"_pack_": 1, "_layout_": "ms", "_fields_": members})
        setattr(record, name, overlay.member)  # type: ignore[attr-defined]
    return record
