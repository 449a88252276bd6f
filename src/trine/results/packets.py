"""The parts of Perfetto's trace format for timelines: packets, tracks, name tables.

They use the protobuf wire format (https://protobuf.dev/programming-guides/encoding/). Bytes are written by hand,
because message objects for every slice are several times slower.

Field numbers: protos/perfetto/trace/{trace_packet,track_event/*,interned_data/*}.proto of https://perfetto.dev.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from trine.common.arrays import Int64
from trine.common.outputs import open_output

VARINT, _FIXED64, LENGTH = 0, 1, 2
#: Bytes of a fixed-width varint: 9 x 7 bits hold any non-negative int64. Decoders accept zero groups at the end.
PADDED = 9
_SMALL = tuple(bytes((number,)) for number in range(128))


def varint(number: int) -> bytes:
    """Encode an integer of at most 64 bits; a negative number as its two's complement, as in protobuf."""
    if 0 <= number < 128:
        return _SMALL[number]
    number &= 2**64 - 1
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, number: int) -> bytes:
    """Encode an integer, boolean or enum field."""
    return varint(field << 3 | VARINT) + varint(number)


def fixed64(field: int, number: int) -> bytes:
    """Encode a fixed64 field."""
    return varint(field << 3 | _FIXED64) + number.to_bytes(8, "little")


def message(field: int, content: bytes) -> bytes:
    """Encode a nested message, or bytes."""
    return varint(field << 3 | LENGTH) + varint(len(content)) + content


def text(field: int, words: str) -> bytes:
    """Encode a string field."""
    return message(field, words.encode("utf-8", "replace"))


def padded(numbers: Int64) -> list[bytes]:
    """Encode non-negative integers as varints of PADDED bytes each."""
    digits = (numbers[:, None] >> (7 * np.arange(PADDED))) & 127
    digits[:, :-1] |= 128
    return split(digits.astype(np.uint8).tobytes(), PADDED)


def split(data: bytes, width: int) -> list[bytes]:
    """Cut bytes into pieces of equal width."""
    return [data[place : place + width] for place in range(0, len(data), width)]


# TracePacket, TrackEvent, TrackDescriptor, DebugAnnotation, InternedData: the fields used
PACKET = 1
TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, SEQUENCE_FLAGS, DESCRIPTOR = 8, 10, 11, 12, 13, 60
ANNOTATION, TYPE, NAME_IID, TRACK, EVENT_NAME, COUNTER_VALUE, FLOW, FLOW_END = 4, 9, 10, 11, 23, 30, 47, 48
UUID, NAME, PARENT, COUNTER, ORDERING, ORDER_RANK = 1, 2, 5, 8, 11, 12
KEY_IID, UINT, KEY_NAME, STRING_IID = 1, 3, 10, 17
EVENT_NAMES, ANNOTATION_NAMES, ANNOTATION_STRINGS = 2, 3, 29
BEGIN, END, INSTANT, COUNT = 1, 2, 3, 4
EXPLICIT, UNIT, UNIT_BYTES = 3, 3, 3
STATE_CLEARED, NEEDS_STATE = 1, 2

PS_PER_NS = 1000
STAMP = varint(TIMESTAMP << 3 | VARINT)
SUFFIX = integer(SEQUENCE, 1) + integer(SEQUENCE_FLAGS, NEEDS_STATE)


def write_packets(parts: Iterable[bytes], path: Path) -> None:
    """Write packets to ``path``, compressed if it ends in ``.gz``; equal packets give equal bytes."""
    with open_output(path) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                cast(BinaryIO, packed).writelines(parts)
        else:
            file.writelines(parts)


def packet(content: bytes) -> bytes:
    """Encode one packet of a trace."""
    return message(PACKET, content)


def descriptor(uuid: int, name: str, parent: int, order: int, extra: bytes = b"") -> bytes:
    """Return the packet that declares a track; its children are sorted by their ``order``."""
    content = integer(UUID, uuid) + text(NAME, name) + integer(ORDERING, EXPLICIT) + integer(ORDER_RANK, order)
    if parent:
        content += integer(PARENT, parent)
    return packet(message(DESCRIPTOR, content + extra) + integer(SEQUENCE, 1))


def interned(events: Iterable[tuple[int, str]], arguments: Mapping[str, int], strings: Mapping[str, int]) -> bytes:
    """Return the first packet of a trace: the numbered names of events, arguments and values that slices refer to.

    events: number and name of each; two may have the same name.
    """
    entries = [message(EVENT_NAMES, integer(1, iid) + text(2, name)) for iid, name in events]
    for kind, table in ((ANNOTATION_NAMES, arguments), (ANNOTATION_STRINGS, strings)):
        entries += [message(kind, integer(1, iid) + text(2, name)) for name, iid in table.items()]
    content = message(INTERNED, b"".join(entries))
    return packet(content + integer(SEQUENCE, 1) + integer(SEQUENCE_FLAGS, STATE_CLEARED))


def lanes(starts: list[int], ends: list[int]) -> Int64:
    """Return for each interval, sorted by start, the first lane without an overlapping interval."""
    assigned: list[int] = []
    free_from: list[int] = []
    for start, end in zip(starts, ends, strict=True):
        lane = next((number for number, free in enumerate(free_from) if free <= start), len(free_from))
        free_from[lane : lane + 1] = [end]
        assigned.append(lane)
    return np.array(assigned, np.int64)
