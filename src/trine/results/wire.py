"""The protobuf wire format, as far as writing a timeline needs it: varints, fixed 64-bit numbers, nested messages.

Source: https://protobuf.dev/programming-guides/encoding/. Bytes are made by hand because building message objects for
every slice is several times slower.
"""

from __future__ import annotations

import numpy as np

from trine.arrays import Int64

VARINT, _FIXED64, LENGTH = 0, 1, 2
#: Bytes of a varint of fixed width: 9 x 7 bits hold every non-negative int64. Decoders accept zero groups at the end.
PADDED = 9
_SMALL = tuple(bytes((number,)) for number in range(128))


def varint(number: int) -> bytes:
    """Encode an integer of at most 64 bits; a negative one as its two's complement, as protobuf does."""
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
    """Cut bytes into pieces of one width."""
    return [data[place : place + width] for place in range(0, len(data), width)]
