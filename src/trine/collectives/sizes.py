"""Sizes as nccl-tests writes them: K, M and G are powers of 1024."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Sequence, Sized
from typing import SupportsIndex

from trine.common.inputs import read_text
from trine.common.ranges import expand_range
from trine.common.units import parse_bytes, whole_number
from trine.errors import InputError, UnitError

_NUMBER = re.compile(r"\s*([0-9]{1,18})\s*([kKmMgGtT]?)\s*")
_POWER = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
MAX_SIZES = 4096
#: Enough for a matrix of 1024 ranks with ten digits per entry.
MAX_MATRIX_BYTES = 16 << 20


def parse_size(text: str, label: str = "--size") -> int:
    """Parse ``"64M"``, ``"64MiB"`` or ``"67108864"`` to bytes. Raises UnitError for invalid text."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return parse_bytes(text, label)
    return int(match[1]) << _POWER[match[2].lower()]


def parse_sizes(text: str, label: str = "--size") -> list[int]:
    """Parse ``64M``, ``1K,1M,1G``, ``1K:1G`` (doubling), ``1K:1G:x4`` or ``16M:128M:16M`` (steps), ascending.

    The ranges of :mod:`trine.common.ranges` have the same meaning: ``1K..1G``, ``1K..1G*4``, ``16M..128M+16M``.

    Raises UnitError for invalid text, an empty or endless range, or more than MAX_SIZES sizes.
    """
    sizes: list[int] = []
    for item in text.split(","):
        if ".." in item:
            parsed = _dotted(item, label)
        else:
            parsed = _range(item, label) if ":" in item else [parse_size(item, label)]
        sizes.extend(parsed)
        if len(sizes) > MAX_SIZES:
            raise UnitError(f"{label} {text!r} has more than {MAX_SIZES} sizes")
    return sorted(set(sizes))


def _dotted(text: str, label: str) -> list[int]:
    """Return the sizes of ``FIRST..LAST``, with ``+STEP``, ``*FACTOR`` or ``/COUNT``. Raises UnitError for others."""
    try:
        values = expand_range(text if re.search(r"[A-Za-z+*/]", text) else f"{text}*2")
    except InputError as error:
        raise UnitError(f"{label}: {error}") from None
    if values is None:
        raise UnitError(f"{label} takes FIRST..LAST, FIRST..LAST*FACTOR or FIRST..LAST+STEP, got {text!r:.80}")
    if len(values) > MAX_SIZES:
        raise UnitError(f"{label} {text!r:.80} has more than {MAX_SIZES} sizes")
    return [parse_size(str(value), label) for value in values]


def _range(text: str, label: str) -> list[int]:
    parts = text.split(":")
    if len(parts) > 3 or not all(part.strip() for part in parts):
        raise UnitError(f"{label} takes FIRST:LAST, FIRST:LAST:xFACTOR or FIRST:LAST:STEP, got {text!r}")
    first, last = parse_size(parts[0], label), parse_size(parts[1], label)
    if first > last:
        raise UnitError(f"{label} {text!r} ends before it begins")
    step = parts[2].strip() if len(parts) == 3 else "x2"
    if step[0] in "xX*":
        return _factors(first, last, step, text, label)
    width = parse_size(step, label)
    if width < 1 or (last - first) // width >= MAX_SIZES:
        raise UnitError(f"{label} {text!r}: the step must be positive and give at most {MAX_SIZES} sizes")
    return list(range(first, last + 1, width))


def _factors(first: int, last: int, step: str, text: str, label: str) -> list[int]:
    factor = whole_number(step[1:], 2)
    if factor is None:
        raise UnitError(f"{label} {text!r}: the factor is a whole number from 2, such as x2")
    if first < 1:
        raise UnitError(f"{label} {text!r}: a range with a factor begins at 1 byte or more")
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= factor
    return sizes


#: Sizes in bytes, or as on the command line: ``"1K:1G"``, ``["64M", 4096]``.
Sizes = Sequence[int | str] | str


def as_sizes(sizes: object) -> list[int]:
    """Return sizes in bytes; checks that ``sizes`` is a list or text before it converts any entry.

    Raises InputError for a single number, an empty list or a negative size (the message names the first one), and
    UnitError for a text that is not a size.
    """
    if isinstance(sizes, str):
        return parse_sizes(sizes, "sizes")
    if isinstance(sizes, bytes) or not isinstance(sizes, Sized) or not isinstance(sizes, Iterable):
        raise InputError(f"must be a list of bytes, such as [{sizes!r:.40}], got {sizes!r:.80}", field="sizes")
    if len(sizes) == 0:
        raise InputError("no sizes were given", field="sizes")
    if len(sizes) > MAX_SIZES:
        raise InputError(f"at most {MAX_SIZES} sizes, got {len(sizes)}", field="sizes")
    values = []
    for number, size in enumerate(sizes):
        if isinstance(size, str):
            values.append(parse_size(size, f"sizes[{number}]"))
        elif isinstance(size, bool) or not isinstance(size, SupportsIndex) or operator.index(size) < 0:
            raise InputError(f"must be a whole number of bytes, got {size!r:.80}", field=f"sizes[{number}]")
        else:
            values.append(operator.index(size))
    return values


def format_size(size_bytes: int) -> str:
    """Format a size as ``64M`` if it is a whole number of G, M or K, else as the number of bytes."""
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if size_bytes and size_bytes % (1 << power) == 0:
            return f"{size_bytes >> power}{unit}"
    return str(size_bytes)


def read_matrix(path: str | os.PathLike[str]) -> tuple[tuple[int, ...], ...]:
    """Read the bytes from each rank (line) to each rank (column), comma separated, in :func:`parse_size` format.

    Raises InputError for a file above 16 MiB, not text, or not square; UnitError for an entry that is not a size.
    """
    lines = read_text(path, MAX_MATRIX_BYTES, InputError).splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            rows.append(tuple(parse_size(entry, f"{path}:{number}") for entry in line.split(",")))
    if not rows or any(len(row) != len(rows) for row in rows):
        widths = sorted({len(row) for row in rows})
        raise InputError(f"must be square, has {len(rows)} lines of {widths} entries", file=path)
    return tuple(rows)


def shared_matrix(size_bytes: int, shares: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    """Return the bytes from each rank to each rank; each sends ``size_bytes`` in total, divided by ``shares``."""
    row = tuple(round(size_bytes * share / sum(shares)) for share in shares)
    return (row,) * len(row)
