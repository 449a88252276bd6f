"""Chakra traces in JSON, converted into the messages of the binary form.

Two programs of mlcommons/chakra define such files. Its feeder reads an object with a list ``workload_graph``
(src/feeder/json_node.cpp): ``Id``, ``Name``, ``NodeType``, ``data_deps``, ``runtime`` (microseconds), ``is_cpu_op``,
and numbers such as ``comm_size`` beside them. Its jsonizer writes the messages of a binary trace one after the other as
protobuf's JSON, the metadata first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from json import JSONDecoder
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from google.protobuf.json_format import ParseDict, ParseError

from trine.errors import TraceError, nearest
from trine.formats.chakra.schema import COMM_COLL, COMM_RECV, COMM_SEND, COMP, classes
from trine.workload.files import short

MAX_JSON_BYTES = 256 * 2**20
#: Maximum digits of a number in the text, and maximum nesting of a message.
_MAX_DIGITS, _MAX_DEPTH = 40, 32
#: The feeder's keys -> fields of a node; attributes of a node and the type of their value.
_FIELDS = {
    "Id": "id", "Name": "name", "NodeType": "type", "data_deps": "dataDeps", "ctrlDeps": "ctrlDeps",
    "ctrl_deps": "ctrlDeps", "runtime": "durationMicros",
}  # fmt: skip
_ATTRIBUTES = {
    "is_cpu_op": "boolVal", "pg_name": "stringVal",
    **dict.fromkeys(("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "comm_priority"), "int64Val"),
    **dict.fromkeys(("num_ops", "tensor_size"), "int64Val"),
}  # fmt: skip
_TYPES = {"boolVal": bool, "stringVal": str, "int64Val": int}
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
        objects = list(_objects(content.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise TraceError(f"is not UTF-8 text (byte {error.start})", file=path) from None
    except json.JSONDecodeError as error:
        raise TraceError(f"is not complete JSON: {error.msg}", file=f"{path}:{error.lineno}") from None
    except RecursionError:
        raise TraceError("nests JSON too deeply", file=path) from None
    except ValueError as error:
        raise TraceError(str(error), file=path) from None
    first = objects[0] if objects else None
    if isinstance(first, dict) and "workload_graph" in first:
        return _of_feeder(first, path)
    rows = first if len(objects) == 1 and isinstance(first, list) else objects
    head = rows[0] if rows else None
    if not isinstance(head, dict) or not {"version", "attr"} & set(head) or {"id", "name", "traceEvents"} & set(head):
        form = "the jsonizer's messages, the metadata (version) first, or the feeder's workload_graph"
        raise TraceError(f"is JSON, but no Chakra trace: it must hold {form}", file=path)
    metadata = _message(classes().metadata(), head, "the metadata", path)
    nodes = [_message(classes().node(), row, f"node number {number}", path) for number, row in enumerate(rows[1:])]
    return JsonTrace([metadata, *nodes], ("read from Chakra's JSON (messages of its jsonizer)",))


def _objects(text: str) -> Iterator[object]:
    """Yield the values of a text, which follow each other without separators. Raises ValueError, RecursionError."""
    decoder, place = JSONDecoder(parse_int=_integer, parse_constant=_no_constant), 0
    while place < len(text):
        if text[place] in " \t\r\n":
            place += 1
            continue
        value, place = decoder.raw_decode(text, place)
        yield value


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"holds a number of {len(text)} characters: {text[:20]}...")
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"holds {text}, which is not a number in JSON")


def _message(message: Any, data: object, place: str, path: Path) -> bytes:
    """Return a message of protobuf's JSON in the binary form."""
    try:
        if not isinstance(data, dict):
            raise ParseError(f"must be an object, got {short(data)}")
        ParseDict(data, message, max_recursion_depth=_MAX_DEPTH)
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        why = str(error).replace("\n", " ")[:200]
        raise TraceError(f"is no message of the Chakra schema: {why}", file=path, field=place) from None
    return bytes(message.SerializeToString())


def _of_feeder(data: dict[str, Any], path: Path) -> JsonTrace:
    """Convert the feeder's form.

    The feeder waits for data dependencies only. Here control dependencies count too, if the file has their node. A
    collective of the CPU's side, or without a size, takes its recorded time.
    """
    rows = data["workload_graph"]
    if not isinstance(rows, list):
        raise TraceError(f"workload_graph must be a list, got {short(rows)}", file=path)
    node_numbers = set()
    for each in rows:
        if isinstance(each, dict) and isinstance(number := each.get("Id"), int):
            node_numbers.add(number)
    known = node_numbers
    messages, absent, timed = [bytes(classes().metadata(version="json").SerializeToString())], 0, 0
    for number, row in enumerate(rows):
        place = f"workload_graph[{number}]"
        fields = _fields(row, place, path)
        control = fields.get("ctrlDeps")
        if isinstance(control, list):
            fields["ctrlDeps"] = [dep for dep in control if not isinstance(dep, int) or dep in known]
            absent += len(control) - len(fields["ctrlDeps"])
        if fields.get("type") in _COMMUNICATION and (row.get("is_cpu_op") is True or "comm_size" not in row):
            fields["type"] = COMP
            timed += 1
        messages.append(_message(classes().node(), fields, place, path))
    notes = ["read from Chakra's JSON (workload_graph)"]
    if isinstance(data.get("ngpus"), int) and data["ngpus"] > 1:
        ranks = f"the file says ngpus {str(data['ngpus'])[:20]}"
        notes.append(f"{ranks}; each rank's trace is a file, and trine simulates the ranks that have one")
    if absent:
        notes.append(f"{absent} control dependencies on nodes that the file does not have are left out")
    if timed:
        notes.append(f"{timed} communication nodes of the CPU's side, or without comm_size, take their recorded time")
    return JsonTrace(messages, tuple(notes))


def _fields(row: object, place: str, path: Path) -> dict[str, Any]:
    """Return a node of the feeder's form as protobuf's JSON; the schema checks the values."""
    if not isinstance(row, dict) or "Id" not in row or "NodeType" not in row:
        raise TraceError(f"must be an object with Id and NodeType, got {short(row)}", file=path, field=place)
    fields: dict[str, Any] = {"attr": []}
    for key, value in row.items():
        if key in _FIELDS:
            fields[_FIELDS[key]] = value
        elif key in _ATTRIBUTES:
            kind = _ATTRIBUTES[key]
            if type(value) is not _TYPES[kind]:
                raise TraceError(
                    f"must be a {_TYPES[kind].__name__}, got {short(value)}", file=path, field=f"{place}.{key}"
                )
            fields["attr"].append({"name": key, kind: value})
        else:
            hint = nearest(str(key)[:60], (*_FIELDS, *_ATTRIBUTES))
            raise TraceError(f"unknown key {short(key)}{hint}", file=path, field=place)
    return fields
