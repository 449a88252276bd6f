"""Table of the writes of replayed peers, registered in any order, to addresses, named buffers or flags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int32, Int64
from trine.common.schema import show
from trine.common.units import MAX_INT64, parse_bytes, whole_number
from trine.errors import InputError, UnitError

MAX_WRITES = 2**22
#: Limits that keep the sum of an address and a size within int64, and a semaphore's value within int32.
MAX_ADDRESS, MAX_SIZE, MAX_VALUE, MAX_RANK = 2**61, 2**40, 2**31 - 1, 2**31 - 1

#: Base of an address: byte 0 of the memory, or a semaphore number. Other bases are buffers.
MEMORY, SEMAPHORE = -1, -2

_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+(?:_[0-9a-fA-F]+)*")
_FLAG = re.compile(r"sem\s*(\d{1,40})", re.ASCII)


class WriteColumns(NamedTuple):
    """Writes, one per row.

    peer: int32[n], ranks. base: int32[n], base of ``address``: MEMORY, SEMAPHORE (``address`` is its number), or an
    index into the table's names. address, size_bytes: int64[n]. value: int64[n], increment of a flag. time_ps:
    int64[n]. file: int32[n], index into the table's files, -1: no file; line: int32[n], line in the file, or the
    write's registration number, from 0.
    """

    peer: Int32
    base: Int32
    address: Int64
    size_bytes: Int64
    value: Int64
    time_ps: Int64
    file: Int32
    line: Int32


_TYPES = (np.int32, np.int32, np.int64, np.int64, np.int64, np.int64, np.int32, np.int32)


class WriteTable:
    """Future writes of peers to the target's memory; the order of registration does not matter.

    After Eidola's ``register_write(address, data, time)`` (arXiv 2606.12638, its setup kernel).
    """

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._files: list[str] = []
        self._pending: list[tuple[int, ...]] = []
        self._chunks: list[WriteColumns] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the buffers used as bases of addresses."""
        return tuple(self._names)

    def register_write(
        self,
        *,
        peer: int,
        address: int | str,
        time_ps: int,
        size_bytes: int | None = None,
        value: int | None = None,
        data: bytes | None = None,
    ) -> None:
        """Add one write of rank ``peer`` that lands at ``time_ps`` (starts then with a modelled fabric).

        Parameters
        ----------
        address: byte address in the target's memory, or ``"buffer+0x40"``, or ``"sem 3"``.
        size_bytes, value: bytes written, and the increment of a flag there [0]. data: the bytes themselves, in place
            of both; at most 8 bytes increment a flag, as a little-endian number.

        Raises
        ------
        InputError: names the write, the field and the value.
        """
        where = f"write {self._count}"
        if data is not None:
            if size_bytes is not None or value is not None:
                raise InputError("is given beside size_bytes or value: it stands for both", file=where, field="data")
            size_bytes = len(data)
            value = int.from_bytes(data, "little") if len(data) <= 8 else 0
        elif size_bytes is None:
            raise InputError("is missing: give size_bytes, or data", file=where, field="size_bytes")
        base, place = (MEMORY, address) if type(address) is int else self._address(address, where)
        numbers = (peer, place, size_bytes, 0 if value is None else value, time_ps)
        for (field, low, high), number in zip(_LIMITS, numbers):  # noqa: B905  # strict costs 1 us a write
            if type(number) not in _WHOLE or not low <= number <= high:
                raise _fault(field, number, low, high, where)
        self._grow(1)
        self._pending.append((*numbers, base, self._count - 1))

    def register_writes(
        self,
        *,
        peer: npt.ArrayLike,
        address: npt.ArrayLike | Sequence[str],
        size_bytes: npt.ArrayLike,
        time_ps: npt.ArrayLike,
        value: npt.ArrayLike = 0,
        file: str | None = None,
        lines: npt.ArrayLike | None = None,
    ) -> None:
        """Add many writes: arrays of one length, or single values for all; errors name ``file`` and ``lines``.

        Raises InputError: names the first write at fault, the field and the value.
        """
        base, place = self._addresses(address, file, lines)
        inputs = {"peer": peer, "address": place, "size_bytes": size_bytes, "value": value, "time_ps": time_ps}
        arrays = {name: _to_int64(name, values, file) for name, values in inputs.items()}
        try:
            first, *rest = np.broadcast_arrays(*arrays.values(), np.asarray(base, np.int64))
        except ValueError:
            sizes = ", ".join(f"{name} {array.size}" for name, array in arrays.items())
            raise InputError(f"columns of unequal length: {sizes}", file=file) from None
        if first.ndim != 1:
            first, *rest = (np.atleast_1d(array) for array in (first, *rest))
        number = len(first)
        line = np.arange(self._count, self._count + number) if lines is None else np.asarray(lines)
        for (field, low, high), array in zip(_LIMITS, (first, *rest[:-1]), strict=True):
            self._check_column(field, array, (low, high), file, line)
        self._grow(number)
        columns = (first, rest[-1], *rest[:-1], np.full(number, self._file(file)), line)
        self._chunks.append(WriteColumns(*(c.astype(t) for c, t in zip(columns, _TYPES, strict=True))))

    @property
    def columns(self) -> WriteColumns:
        """All writes, in arbitrary order."""
        if self._pending:
            peer, place, size, value, time_ps, base, line = np.array(self._pending, np.int64).T
            rows = (peer, base, place, size, value, time_ps, np.full(len(peer), -1), line)
            self._chunks.append(WriteColumns(*(row.astype(t) for row, t in zip(rows, _TYPES, strict=True))))
            self._pending = []
        if len(self._chunks) != 1:
            empty = [np.zeros(0, t) for t in _TYPES]
            joined = (np.concatenate([e, *c]) for e, c in zip(empty, _columns(self._chunks), strict=True))
            self._chunks = [WriteColumns(*joined)]
        return self._chunks[0]

    def where(self, row: int) -> str:
        """Return the source of a write for messages: ``writes.csv:7``, or ``write 6``."""
        columns = self.columns
        line, file = int(columns.line[row]), int(columns.file[row])
        return f"write {line}" if file < 0 else f"{self._files[file]}:{line}"

    def address_text(self, row: int) -> str:
        """Return the address of a write in the form that :meth:`register_write` accepts."""
        columns = self.columns
        base, address = int(columns.base[row]), int(columns.address[row])
        if base == SEMAPHORE:
            return f"sem {address}"
        return f"0x{address:x}" if base == MEMORY else f"{self.names[base]}+0x{address:x}"

    def _grow(self, number: int) -> None:
        if self._count + number > MAX_WRITES:
            raise InputError(f"more than {MAX_WRITES} writes", field="writes")
        self._count += number

    def _file(self, file: str | None) -> int:
        if file is None:
            return -1
        if not self._files or self._files[-1] != file:
            self._files.append(file)
        return len(self._files) - 1

    def _address(self, address: object, where: str) -> tuple[int, int]:
        if not isinstance(address, str):
            if not isinstance(address, int | np.integer) or isinstance(address, bool):
                problem = f"must be a number, 'buffer+0x40' or 'sem 3', got {show(address)}"
                raise InputError(problem, file=where, field="address")
            return MEMORY, _bounded(int(address), where)
        base, place = parse_address(address, where)
        return (base if isinstance(base, int) else self._names.setdefault(base, len(self._names))), place

    def _addresses(
        self, address: npt.ArrayLike | Sequence[str], file: str | None, lines: npt.ArrayLike | None
    ) -> tuple[Int64, Int64]:
        """Return the base and the offset of each address."""
        if isinstance(address, str) or (isinstance(address, Sequence) and any(isinstance(one, str) for one in address)):
            texts: Sequence[object] = [address] if isinstance(address, str) else address
            addresses: dict[object, tuple[int, int]] = {}
            line_numbers = range(self._count, self._count + len(texts)) if lines is None else np.asarray(lines)
            for row, text in enumerate(texts):
                if text not in addresses:
                    line = int(line_numbers[row])
                    where = f"write {line}" if file is None else f"{file}:{line}"
                    addresses[text] = self._address(text, where)
            pairs = np.array([addresses[text] for text in texts], np.int64)
            return pairs[:, 0], pairs[:, 1]
        place = _to_int64("address", address, file)
        return np.full(place.shape, MEMORY, np.int64), place

    def _check_column(self, field: str, array: Int64, limits: tuple[int, int], file: str | None, line: Int64) -> None:
        wrong = (array < limits[0]) | (array > limits[1])
        if wrong.any():
            row = int(wrong.argmax())
            where = f"write {line[row]}" if file is None else f"{file}:{line[row]}"
            raise InputError(_range_problem(field, int(array[row]), *limits), file=where, field=field)


_WHOLE = frozenset({int, *(np.dtype(code).type for code in np.typecodes["AllInteger"])})
_LIMITS = (
    ("peer", 0, MAX_RANK),
    ("address", 0, MAX_ADDRESS),
    ("size_bytes", 1, MAX_SIZE),
    ("value", 0, MAX_VALUE),
    ("time_ps", 0, MAX_INT64),
)


def parse_address(text: str, where: str) -> tuple[int | str, int]:
    """Return the base of an address (MEMORY, SEMAPHORE or the name of a buffer), and the offset.

    Raises InputError for text other than a number, ``NAME``, ``NAME+OFFSET`` or ``sem NUMBER``.
    """
    text = text.strip()
    if len(text) > 256 or not text:
        raise InputError(f"must be a number, 'buffer+0x40' or 'sem 3', got {show(text)}", file=where, field="address")
    if (number := _parse_number(text)) is not None:
        return MEMORY, _bounded(number, where)
    if flag := _FLAG.fullmatch(text):
        return SEMAPHORE, _bounded(int(flag[1]), where)
    name, plus, offset = text.rpartition("+")
    if not plus:
        return text, 0
    return name.strip(), _offset(offset.strip(), text, where)


def _parse_number(text: str) -> int | None:
    """Return a decimal or hexadecimal number, or None for other text."""
    if text[:2] not in ("0x", "0X"):
        return whole_number(text, most=10**40)
    return int(text, 16) if _HEXADECIMAL.fullmatch(text) else None


def _offset(offset: str, text: str, where: str) -> int:
    if (number := _parse_number(offset)) is not None:
        return _bounded(number, where)
    try:
        return _bounded(parse_bytes(offset, "the offset in a buffer"), where)
    except UnitError as error:
        raise InputError(f"{error} (in {show(text)})", file=where, field="address") from None


def _bounded(number: int, where: str) -> int:
    if not 0 <= number <= MAX_ADDRESS:
        raise InputError(_range_problem("address", number, 0, MAX_ADDRESS), file=where, field="address")
    return number


def _to_int64(field: str, values: npt.ArrayLike, file: str | None) -> Int64:
    array = np.asarray(values)
    if array.size and array.dtype.kind == "O" and all(type(number) is int for number in array.flat):
        raise InputError(f"{show(max(array.flat, key=abs))} does not fit in 64 bits", file=file, field=field)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"must be whole numbers, got {array.dtype}", file=file, field=field)
    if array.dtype.kind == "u" and array.size and int(array.max()) > MAX_INT64:
        raise InputError(f"{int(array.max())} is too large", file=file, field=field)
    return array.astype(np.int64)


def _fault(field: str, number: object, low: int, high: int, where: str) -> InputError:
    if isinstance(number, int | np.integer) and not isinstance(number, bool):
        return InputError(_range_problem(field, int(number), low, high), file=where, field=field)
    return InputError(f"must be a whole number, got {show(number)}", file=where, field=field)


def _range_problem(field: str, number: int, low: int, high: int) -> str:
    if field == "time_ps" and number < low:
        return f"{number} ps is in the past: the run begins at 0"
    return f"must be from {low} to {high}, got {number}"


def _columns(chunks: Sequence[WriteColumns]) -> list[list[npt.NDArray[np.integer]]]:
    columns: list[list[npt.NDArray[np.integer]]] = []
    for i in range(len(_TYPES)):
        columns.append([chunk[i] for chunk in chunks])
    return columns
