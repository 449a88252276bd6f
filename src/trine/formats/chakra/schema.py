"""The message classes of Chakra traces, made at run time from the vendored schema.

Code that protoc generates is tied to one range of protobuf versions; classes made from a descriptor work with any. The
descriptor comes from the text of the schema itself, so that there is one copy of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from trine.errors import SpecError
from trine.inputs import PRESETS

SCHEMA = PRESETS / "chakra" / "et_def.proto"

#: Numbers of the enum NodeType.
METADATA, MEM_LOAD, MEM_STORE, COMP, COMM_SEND, COMM_RECV, COMM_COLL = range(1, 8)
NODE_TYPES = {
    METADATA: "METADATA",
    MEM_LOAD: "MEM_LOAD",
    MEM_STORE: "MEM_STORE",
    COMP: "COMP",
    COMM_SEND: "COMM_SEND",
    COMM_RECV: "COMM_RECV",
    COMM_COLL: "COMM_COLL",
}
#: Numbers of the enum CollectiveCommType -> our word. A block reduce-scatter differs in its name only.
COLLECTIVES = {
    0: "all_reduce",
    1: "reduce",
    2: "all_gather",
    3: "gather",
    4: "scatter",
    5: "broadcast",
    6: "all_to_all",
    7: "reduce_scatter",
    8: "reduce_scatter",
    9: "barrier",
}

_FIELD = descriptor_pb2.FieldDescriptorProto
_TOKENS = re.compile(r"//[^\n]*|\"[^\"\n]*\"|[A-Za-z_][A-Za-z0-9_.]*|-?[0-9]+|[{}=;]|\s+|.")
_SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in _FIELD.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}


class Classes(NamedTuple):
    """The message classes that a trace file is made of."""

    metadata: Any
    node: Any
    attribute: Any


@cache
def classes() -> Classes:
    """``GlobalMetadata``, ``Node`` and ``AttributeProto`` of the vendored schema."""
    pool = descriptor_pool.DescriptorPool()
    file = parse_schema(SCHEMA.read_text(encoding="utf-8"), SCHEMA.name)
    pool.Add(file)
    names = ("GlobalMetadata", "Node", "AttributeProto")
    return Classes(
        *(message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in names)
    )


def parse_schema(text: str, name: str) -> descriptor_pb2.FileDescriptorProto:
    """Turn a proto3 file of messages, oneofs and enums into its descriptor; raises SpecError for anything else."""
    file = descriptor_pb2.FileDescriptorProto(name=name)
    tokens = _Tokens(text, name)
    while (word := tokens.next()) is not None:
        if word == "syntax":
            tokens.expect("=")
            file.syntax = str(tokens.next()).strip('"')
            tokens.expect(";")
        elif word == "package":
            file.package = str(tokens.next())
            tokens.expect(";")
        elif word == "message":
            _message(tokens, file.message_type.add(name=str(tokens.next())))
        elif word == "enum":
            _enum(tokens, file.enum_type.add(name=str(tokens.next())))
        else:
            tokens.fail(word)
    _resolve(file)
    return file


class _Tokens:
    """The words of a schema, without comments and spaces."""

    def __init__(self, text: str, name: str) -> None:
        self._words: Iterator[str] = (
            match[0] for match in _TOKENS.finditer(text) if not match[0].isspace() and not match[0].startswith("//")
        )
        self._name = name

    def next(self) -> str | None:
        return next(self._words, None)

    def expect(self, wanted: str) -> None:
        if (word := self.next()) != wanted:
            self.fail(word)

    def fail(self, word: str | None) -> None:
        raise SpecError(f"cannot be read as a proto3 schema near {word!r}", file=self._name)


def _message(tokens: _Tokens, message: descriptor_pb2.DescriptorProto) -> None:
    tokens.expect("{")
    while (word := tokens.next()) != "}":
        if word == "oneof":
            message.oneof_decl.add(name=str(tokens.next()))
            tokens.expect("{")
            while (inner := tokens.next()) != "}":
                _field(tokens, message, str(inner), len(message.oneof_decl) - 1)
        elif word is None:
            tokens.fail(word)
        else:
            _field(tokens, message, word, None)


def _field(tokens: _Tokens, message: descriptor_pb2.DescriptorProto, word: str, oneof: int | None) -> None:
    field = message.field.add(label=_FIELD.LABEL_REPEATED if word == "repeated" else _FIELD.LABEL_OPTIONAL)
    kind = str(tokens.next()) if word == "repeated" else word
    field.name = str(tokens.next())
    tokens.expect("=")
    field.number = int(str(tokens.next()))
    tokens.expect(";")
    if oneof is not None:
        field.oneof_index = oneof
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind


def _enum(tokens: _Tokens, enum: descriptor_pb2.EnumDescriptorProto) -> None:
    tokens.expect("{")
    while (word := tokens.next()) != "}":
        if word is None:
            tokens.fail(word)
        value = enum.value.add(name=str(word))
        tokens.expect("=")
        value.number = int(str(tokens.next()))
        tokens.expect(";")


def _resolve(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Say of each field with a type of the schema whether it is a message or an enum, and give its full name."""
    enums = {enum.name for enum in file.enum_type}
    messages = {message.name for message in file.message_type}
    for message in file.message_type:
        for field in message.field:
            if not field.type_name:
                continue
            if field.type_name not in enums | messages:
                raise SpecError(f"field {message.name}.{field.name} has the unknown type {field.type_name!r}")
            field.type = _FIELD.TYPE_ENUM if field.type_name in enums else _FIELD.TYPE_MESSAGE
            field.type_name = f".{file.package}.{field.type_name}"
