"""Reading trace files that may be truncated, huge or hostile: bounded bytes, strict JSON, numbers of bounded length."""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from trine.common.inputs import open_input, read_at_most
from trine.errors import TraceError

#: Endings of files in trine's own format.
NATIVE_SUFFIXES = (".trine.json", ".trine.json.gz")
#: Most bytes that one trace file may hold after decompression.
MAX_BYTES = 2 * 2**30
#: A compressed trace larger than this many bytes after decompression may not exceed its file by MAX_RATIO. JSON traces
#: compress 10 to 60 times; deflate at its best (one repeated byte) reaches 1032.
RATIO_FROM_BYTES, MAX_RATIO = 64 * 2**20, 400
#: Longest whole number, in characters, that a trace may hold.
MAX_DIGITS = 30
#: Longest fraction, and its largest power of ten. PyTorch writes the least float32, -3.4e38, in 47 characters.
MAX_FRACTION, MAX_POWER = 64, 40
_CHUNK = 4 * 2**20


def read_bytes(path: Path) -> bytes:
    """Return the content of ``path``, decompressed if it is gzip. Raises TraceError beyond the limits above."""
    with open_input(path, MAX_BYTES, TraceError) as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        return _decompress(raw, os.fstat(raw.fileno()).st_size, path) if compressed else read_at_most(raw, MAX_BYTES)


def _decompress(raw: BinaryIO, size: int, path: Path) -> bytes:
    parts: list[bytes] = []
    total = 0
    try:
        with gzip.GzipFile(fileobj=raw) as stream:
            while part := stream.read(_CHUNK):
                total += len(part)
                if total > MAX_BYTES or (total > RATIO_FROM_BYTES and total > MAX_RATIO * size):
                    raise TraceError(f"decompresses to more than {total} bytes from {size}: refused", file=path)
                parts.append(part)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"is not a complete gzip file: {error}", file=path) from None
    return b"".join(parts)


def read_text(path: Path) -> str:
    """Return the content of ``path`` as text. Raises TraceError if it is not UTF-8."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"is not UTF-8 text (byte {error.start})", file=path) from None


class _NumberError(ValueError):
    pass


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _NumberError(f"holds a number of {len(text)} characters: {text[:20]}...")
    return int(text)


def _decimal(text: str) -> Decimal:
    number = Decimal(text) if len(text) <= MAX_FRACTION else Decimal(0)
    if len(text) > MAX_FRACTION or (number and abs(number.adjusted()) > MAX_POWER):
        raise _NumberError(f"holds a number out of range: {text[:40]}")
    return number


def _not_a_number(text: str) -> NoReturn:
    raise _NumberError(f"holds {text}, which is not a number in JSON")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _NumberError(f"names the key {twice[:60]!r} twice in one object")
    return result


def _float(text: str) -> float:
    number = float(text) if len(text) <= MAX_DIGITS else math.inf
    if not math.isfinite(number):
        raise _NumberError(f"holds a number out of range: {text[:40]}")
    return number


def number_hooks(*, strict: bool = False) -> dict[str, Any]:
    """Return the arguments of a JSON decoder that keep numbers within bounds, as :func:`read_json` describes them."""
    return {
        "parse_float": _float if strict else _decimal,
        "parse_int": _integer,
        "parse_constant": _not_a_number if strict else Decimal,
        "object_pairs_hook": _unique if strict else None,
    }


def read_json(path: Path, *, strict: bool = False) -> object:
    """Parse ``path``.

    ``strict``, for trine's own files: fractions are floats, and a repeated key, NaN or Infinity is an error. Otherwise
    fractions are Decimal, exact to the last digit, and NaN and Infinity, which the PyTorch profiler writes into fields
    that trine does not use, become Decimal values that no time or size check accepts. Raises TraceError for anything
    that is not JSON within bounds.
    """
    text = read_text(path)
    try:
        return json.loads(text, **number_hooks(strict=strict))
    except json.JSONDecodeError as error:
        raise TraceError(f"is not complete JSON: {error.msg}", file=f"{path}:{error.lineno}") from None
    except _NumberError as error:
        raise TraceError(str(error), file=path) from None
    except RecursionError:
        raise TraceError("nests JSON too deeply", file=path) from None


def short(value: object) -> str:
    """``value`` for an error message, at most 60 characters long, whatever its size."""
    text = value[:60] if isinstance(value, str) else value
    text_form = repr(text) if not isinstance(value, list | dict) else f"a {type(value).__name__} of {len(value)}"
    return text_form if len(text_form) <= 64 else text_form[:60] + "..."
