"""The protobuf wire format, as far as writing a timeline needs it: varints, fixed 64-bit numbers, nested messages.

Source: https://protobuf.dev/programming-guides/encoding/. Bytes are made by hand because building message objects for
every slice is several times slower.
"""

from __future__ import annotations

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
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
    return varint(field << 3 | _VARINT) + varint(number)


def fixed64(field: int, number: int) -> bytes:
    """Encode a fixed64 field."""
    return varint(field << 3 | _FIXED64) + number.to_bytes(8, "little")


def message(field: int, content: bytes) -> bytes:
    """Encode a nested message, or bytes."""
    return varint(field << 3 | _LENGTH) + varint(len(content)) + content


def text(field: int, words: str) -> bytes:
    """Encode a string field."""
    return message(field, words.encode("utf-8", "replace"))
