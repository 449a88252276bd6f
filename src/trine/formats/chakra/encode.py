"""Nodes and metadata as bytes of the Chakra schema.

Made by hand because message objects are several times slower; tests decode them with protobuf and the vendored schema.
Field numbers: ``presets/chakra/et_def.proto``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from trine.results.packets import integer, message, text, varint

_NODE_ID, _NODE_NAME, _NODE_TYPE, _DATA_DEPS, _DURATION, _INPUTS, _NODE_ATTRIBUTE = 1, 2, 3, 5, 7, 8, 10
_VERSION, _FILE_ATTRIBUTE = 1, 2
_NAME, _INT32, _INT64, _UINT64, _SINT32_LIST, _BOOL, _STRING, _STRING_LIST = 1, 7, 9, 13, 16, 27, 29, 30


def framed(content: bytes) -> bytes:
    """A message with its length before it, as files have it."""
    return varint(len(content)) + content


def file_head(version: str, attributes: Sequence[bytes]) -> bytes:
    """The message ``GlobalMetadata``."""
    return text(_VERSION, version) + b"".join(message(_FILE_ATTRIBUTE, attribute) for attribute in attributes)


def node(number: int, name: str, kind: int, deps: Sequence[int], attributes: Sequence[bytes], micros: int = 0) -> bytes:
    """The message ``Node``; further attributes may be appended with :func:`node_attribute`."""
    parts = [integer(_NODE_ID, number), text(_NODE_NAME, name), integer(_NODE_TYPE, kind)]
    if deps:
        parts.append(message(_DATA_DEPS, b"".join(map(varint, deps))))
    if micros:
        parts.append(integer(_DURATION, micros))
    return b"".join((*parts, *map(node_attribute, attributes)))


def node_inputs(values: str) -> bytes:
    """The inputs of a node, to append to it."""
    return message(_INPUTS, text(1, values))


def node_attribute(attribute: bytes) -> bytes:
    """An attribute as a field of a node."""
    return message(_NODE_ATTRIBUTE, attribute)


def int32(name: str, value: int) -> bytes:
    """An attribute of type int32."""
    return _name(name) + integer(_INT32, value)


def int64(name: str, value: int) -> bytes:
    """An attribute of type int64."""
    return _name(name) + integer(_INT64, value)


def uint64(name: str, value: int) -> bytes:
    """An attribute of type uint64."""
    return _name(name) + integer(_UINT64, value)


def boolean(name: str, value: bool) -> bytes:
    """An attribute of type bool."""
    return _name(name) + integer(_BOOL, value)


def string(name: str, value: str) -> bytes:
    """An attribute of type string."""
    return _name(name) + text(_STRING, value)


def strings(name: str, values: Sequence[str]) -> bytes:
    """An attribute of type list of strings."""
    return _name(name) + message(_STRING_LIST, b"".join(text(1, value) for value in values))


def small_numbers(name: str, values: Sequence[int]) -> bytes:
    """An attribute of type list of sint32, which keeps -1 short."""
    zigzag = (varint(value << 1 ^ value >> 63) for value in values)
    return _name(name) + message(_SINT32_LIST, message(1, b"".join(zigzag)))


@cache
def _name(name: str) -> bytes:
    return text(_NAME, name)
