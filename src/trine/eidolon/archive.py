"""Files of numpy arrays (.npz), read without trust: nothing pickled, nothing larger than memory should hold."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np

from trine.errors import SpecError

MAX_PARTS, MAX_UNPACKED_BYTES = 64, 2 * 2**30


def read_archive(
    path: str | os.PathLike[str], what: str, keys: Collection[str] | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a file by name; of ``keys``, those that it has. what: for messages.

    Raises
    ------
    SpecError: it cannot be read, is no such file, holds objects, has more than MAX_PARTS parts or more than
        MAX_UNPACKED_BYTES bytes when unpacked.
    """
    file = os.fspath(path)
    try:
        with zipfile.ZipFile(file) as parts:
            entries = parts.infolist()
        if len(entries) > MAX_PARTS or sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
            raise SpecError(f"has too many parts, or more than {MAX_UNPACKED_BYTES} bytes when unpacked", file=file)
        with np.load(file, allow_pickle=False) as content:
            return {key: content[key] for key in content.files if keys is None or key in keys}
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror or error}", file=file) from None
    except (ValueError, EOFError, KeyError, zlib.error, zipfile.BadZipFile, NotImplementedError, MemoryError) as error:
        raise SpecError(f"is not {what}: {str(error)[:200]}", file=file) from None


def has_part(path: str | os.PathLike[str], key: str) -> bool:
    """Whether this is a file of arrays, one of them ``key``."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as parts:
        return f"{key}.npy" in parts.namelist()
