"""Chakra traces in JSON, converted into the messages of the binary form.

Two programs of mlcommons/chakra define such files. Its feeder reads an object with a list ``workload_graph``
(src/feeder/json_node.cpp): ``Id``, ``Name``, ``NodeType``, ``data_deps``, ``runtime`` (microseconds), ``is_cpu_op``,
and numbers such as ``comm_size`` beside them. Its jsonizer writes the messages of a binary trace one after the other as
protobuf's JSON, the metadata first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from json import JSONDecoder
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from google.protobuf.json_format import ParseDict, ParseError

from trine.errors import TraceError, nearest
from trine.formats.chakra.schema import COMM_COLL, COMM_RECV, COMM_SEND, COMP, NODE_TYPES, classes
from trine.workload.files import short

MAX_JSON_BYTES = 256 * 2**20
#: Largest number of a node or attribute, and maximum digits of any number in the text.
_MAX_NUMBER, _MAX_DIGITS = 2**63 - 1, 40
_MAX_DEPTH = 32
#: Attributes of nodes that are whole numbers.
_NUMBERS = ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "comm_priority", "num_ops", "tensor_size")
_CONTROL = ("ctrlDeps", "ctrl_deps")
_KEYS = ("Id", "Name", "NodeType", "data_deps", *_CONTROL, "runtime", "is_cpu_op", "pg_name", *_NUMBERS)
_COMMUNICATION = (COMM_SEND, COMM_RECV, COMM_COLL)


class JsonTrace(NamedTuple):
    """The messages of a trace, the metadata first, and notes on the conversion."""

    messages: list[bytes]
    notes: tuple[str, ...]


def is_json_trace(path: Path) -> bool:
    """Return whether a file's name is that of JSON."""
    return path.name.removesuffix(".gz").endswith(".json")


def read_json_trace(content: bytes, path: Path) -> JsonTrace:
    """Convert a JSON trace of either form. Raises TraceError that names the file and the node or byte at fault."""
    if len(content) > MAX_JSON_BYTES:
        raise TraceError(f"is JSON of more than {MAX_JSON_BYTES} bytes", file=path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"is not UTF-8 text (byte {error.start})", file=path) from None
    objects = list(_objects(text, path))
    first = objects[0] if objects else None
    if isinstance(first, dict) and "workload_graph" in first:
        return _of_feeder(first, path)
    if len(objects) == 1 and isinstance(first, list):
        objects = first
    if not all(isinstance(each, dict) for each in objects) or not isinstance(
        first := objects[0] if objects else 0, dict
    ):
        raise TraceError("is JSON, but no Chakra trace: give workload_graph, or the jsonizer's messages", file=path)
    if not {"version", "attr"} & set(first) or {"id", "name", "type", "traceEvents"} & set(first):
        raise TraceError("is JSON, but no Chakra trace: it does not begin with the metadata (version)", file=path)
    messages = [_message(each, number, path) for number, each in enumerate(objects)]
    return JsonTrace(messages, ("read from Chakra's JSON (messages of its jsonizer)",))


def _objects(text: str, path: Path) -> Iterator[object]:
    """Yield the values of a text, which follow each other without separators."""
    decoder = JSONDecoder(parse_int=_integer, parse_constant=_no_constant)
    place, end = 0, len(text)
    while place < end:
        if text[place] in " \t\r\n":
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise TraceError(f"is not complete JSON: {error.msg}", file=f"{path}:{error.lineno}") from None
        except RecursionError:
            raise TraceError("nests JSON too deeply", file=path) from None
        except _NumberError as error:
            raise TraceError(str(error), file=path) from None
        yield value


class _NumberError(ValueError):
    """A number outside all ranges."""


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise _NumberError(f"holds a number of {len(text)} characters: {text[:20]}...")
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise _NumberError(f"holds {text}, which is not a number in JSON")


def _message(data: Mapping[str, object], number: int, path: Path) -> bytes:
    """Return a message of the jsonizer in the binary form; the first is the metadata."""
    message = classes().node() if number else classes().metadata()
    subject = f"node number {number - 1}" if number else "the metadata"
    try:
        ParseDict(data, message, max_recursion_depth=_MAX_DEPTH)
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        raise TraceError(f"{subject} is no message of the Chakra schema: {short(str(error))}", file=path) from None
    return bytes(message.SerializeToString())


def _of_feeder(data: Mapping[str, Any], path: Path) -> JsonTrace:
    """Convert the feeder's form.

    The feeder waits for data dependencies only. Here control dependencies count too, if the file has their node. A
    collective of the CPU's side, or without a size, takes its recorded time.
    """
    entries = data["workload_graph"]
    if not isinstance(entries, list):
        raise TraceError(f"workload_graph must be a list, got {short(entries)}", file=path)
    nodes = [_Entry(entry, f"workload_graph[{number}]", path) for number, entry in enumerate(entries)]
    known = {node.number("Id") for node in nodes}
    metadata = classes().metadata()
    metadata.version = "json"
    messages, absent, timed = [bytes(metadata.SerializeToString())], 0, 0
    for node in nodes:
        message = classes().node()
        message.id, message.name = node.number("Id"), node.text("Name")
        message.type = node.node_type()
        message.duration_micros = node.number("runtime", 0)
        message.data_deps.extend(node.numbers("data_deps"))
        control = [dep for key in _CONTROL for dep in node.numbers(key)]
        message.ctrl_deps.extend(dep for dep in control if dep in known)
        absent += sum(dep not in known for dep in control)
        on_cpu = node.flag("is_cpu_op")
        if message.type in _COMMUNICATION and (on_cpu or "comm_size" not in node.values):
            message.type = COMP
            timed += 1
        message.attr.add(name="is_cpu_op", bool_val=on_cpu)
        for key in _NUMBERS:
            if key in node.values:
                message.attr.add(name=key, int64_val=node.number(key))
        if "pg_name" in node.values:
            message.attr.add(name="pg_name", string_val=node.text("pg_name"))
        messages.append(bytes(message.SerializeToString()))
    notes = ["read from Chakra's JSON (workload_graph)"]
    ngpus = data.get("ngpus")
    if isinstance(ngpus, int) and 1 < ngpus <= _MAX_NUMBER:
        notes.append(
            f"the file says ngpus {ngpus}; each rank's trace is a file, and trine simulates the ranks with one"
        )
    notes += [f"{absent} control dependencies on nodes that the file does not have are left out"] if absent else []
    if timed:
        notes.append(f"{timed} communication nodes of the CPU's side, or without comm_size, take their recorded time")
    return JsonTrace(messages, tuple(notes))


class _Entry:
    """A node of the feeder's form; each getter raises TraceError with the node's place and the value."""

    def __init__(self, values: object, place: str, path: Path) -> None:
        self.place, self.path = place, path
        if not isinstance(values, dict):
            self.fail("", f"must be an object, got {short(values)}")
        self.values: dict[str, Any] = values
        for key in values:
            if key not in _KEYS:
                self.fail("", f"unknown key {short(key)}{nearest(str(key)[:60], _KEYS)}")

    def fail(self, key: str, why: str) -> NoReturn:
        raise TraceError(why, file=self.path, field=f"{self.place}.{key}" if key else self.place)

    def number(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 0."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
            self.fail(key, f"must be a whole number from 0 to {_MAX_NUMBER}, got {short(value)}")
        return value

    def numbers(self, key: str) -> list[int]:
        """Return a list of whole numbers; empty if missing."""
        values = self.values.get(key, [])
        if not isinstance(values, list):
            self.fail(key, f"must be a list of nodes, got {short(values)}")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
                self.fail(key, f"must hold whole numbers, got {short(value)}")
        return values

    def text(self, key: str) -> str:
        value = self.values.get(key, "")
        if not isinstance(value, str):
            self.fail(key, f"must be text, got {short(value)}")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, got {short(value)}")
        return value

    def node_type(self) -> int:
        number = self.number("NodeType")
        if number not in NODE_TYPES:
            self.fail("NodeType", f"must be one of {min(NODE_TYPES)} to {max(NODE_TYPES)}, got {number}")
        return number
