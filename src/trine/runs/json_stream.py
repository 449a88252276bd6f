"""Reading of a large JSON file piece by piece: the events of a profiler's trace never lie in memory together.

The limits are those of :mod:`trine.workload.files`. Only one value of the file, such as an event, is parsed at a time.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from trine.common.inputs import open_input
from trine.errors import TraceError
from trine.workload.files import MAX_BYTES, MAX_RATIO, RATIO_FROM_BYTES, number_hooks

_CHUNK_BYTES = 2**20
#: Longest value outside the list of events, in characters: a dump's entries, or the list of GPUs.
MAX_VALUE_CHARS = 64 * 2**20
_SPACES = " \t\n\r"
#: The key whose list is read event by event.
EVENTS = "traceEvents"


def read_values(path: Path) -> Iterator[tuple[str, object]]:
    """Yield (key, value) of the file's top-level object, and ``(EVENTS, event)`` for each event of a trace.

    Raises TraceError for a file that is no JSON object within the limits, or that cannot be read.
    """
    with open_input(path, MAX_BYTES, TraceError) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        size = os.fstat(raw.fileno()).st_size
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
        try:
            yield from _Scanner(path, stream, size).values()
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TraceError(f"is not a complete gzip file: {error}", file=path) from None
        except UnicodeDecodeError as error:
            raise TraceError(f"is not UTF-8 text (byte {error.start} of a piece)", file=path) from None
        except RecursionError:
            raise TraceError("nests JSON too deeply", file=path) from None
        except json.JSONDecodeError as error:
            raise TraceError(f"is not complete JSON: {error.msg}", file=path) from None
        except ValueError as error:
            raise TraceError(str(error), file=path) from None


class _Scanner:
    """The text of one file, of which only the piece being parsed is kept."""

    def __init__(self, path: Path, stream: BinaryIO, size_bytes: int) -> None:
        self._path, self._stream, self._size_bytes = path, stream, size_bytes
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._parse = json.JSONDecoder(**number_hooks()).raw_decode
        self._text, self._place = "", 0
        self._num_bytes, self._is_complete = 0, False

    def values(self) -> Iterator[tuple[str, object]]:
        """Yield the values as :func:`read_values` does."""
        if self._next() != "{":
            raise TraceError("is no JSON object: not a trace or a dump", file=self._path)
        self._place += 1
        if self._next() == "}":
            return
        while True:
            self._next()
            key = self._value()
            if not isinstance(key, str) or self._next() != ":":
                raise TraceError("is not complete JSON: a key is missing", file=self._path)
            self._place += 1
            if key == EVENTS and self._next() == "[":
                yield from ((EVENTS, event) for event in self._items())
            else:
                self._next()
                yield key, self._value()
            if not self._is_more("}"):
                return

    def _items(self) -> Iterator[object]:
        """Yield the items of the list at the current place."""
        self._place += 1
        if self._next() == "]":
            self._place += 1
            return
        while True:
            self._next()
            yield self._value()
            if not self._is_more("]"):
                return

    def _is_more(self, closing: str) -> bool:
        """Step over a comma or the closing bracket, and return whether it was a comma."""
        separator = self._next()
        if separator not in (",", closing):
            raise TraceError("is not complete JSON: a comma or bracket is missing", file=self._path)
        self._place += 1
        return separator == ","

    def _next(self) -> str:
        """Move to the next character that is no space, and return it, "" at the end of the file."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in _SPACES:
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._fill():
                return ""

    def _value(self) -> object:
        """Parse the value at the current place and step over it."""
        while True:
            try:
                value, end = self._parse(self._text, self._place)
            except json.JSONDecodeError:
                if not self._fill():
                    raise
                continue
            if end == len(self._text) and self._fill():
                continue  # a number may go on
            self._place = end
            return value

    def _fill(self) -> bool:
        """Read more text and drop what was parsed; return whether there was more."""
        if self._is_complete:
            return False
        kept = self._text[self._place :]
        if len(kept) > MAX_VALUE_CHARS:
            raise TraceError(f"has a value of more than {MAX_VALUE_CHARS} characters: refused", file=self._path)
        part = self._stream.read(max(_CHUNK_BYTES, len(kept)))
        self._num_bytes += len(part)
        is_bomb = self._num_bytes > RATIO_FROM_BYTES and self._num_bytes > MAX_RATIO * self._size_bytes
        if self._num_bytes > MAX_BYTES or is_bomb:
            raise TraceError(
                f"decompresses to more than {self._num_bytes} bytes from {self._size_bytes}: refused", file=self._path
            )
        self._is_complete = not part
        self._text, self._place = kept + self._decode(part, final=not part), 0
        return bool(part)
