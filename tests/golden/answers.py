"""The recorded part of an answer: numbers, names, words of evidence; no prose, simulator times, versions, paths."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: Keys of prose of one or two words; spaces identify longer prose.
PROSE = frozenset({
    "what", "detail", "notes", "warnings", "not_modelled", "assumed", "assumptions", "missing", "sentence",
    "routing_reason", "source", "sources", "label", "program", "description",
})  # fmt: skip
#: Keys of names, sources and shapes, which are not prose even if they have spaces.
NAMES = frozenset({"series", "worst_series", "operator", "scaling", "first", "second", "kind", "tier"})
#: Keys of the simulator's run time and version, and of file locations.
OUTSIDE = frozenset(
    {"wall_s", "events_per_s", "version", "schema", "command", "made_by", "trine_version", "trine", "s"}
)
#: Keys of a step that are not recorded, because other tests compare them with the recorded ones
#: (tests/closed_form/test_step_terms_closed_form.py, tests/unit/decide/test_compare.py).
ELSEWHERE = frozenset({"terms", "inputs"})
#: Values longer than this, as JSON, are recorded as hashes: by column at the second level, as a whole below.
LONG = 300
Json = Any


def sha256(value: Json) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


def is_prose(text: str) -> bool:
    """Return whether a text has three words or more: a sentence, or a label that may be reworded."""
    return len(text.split()) > 2


def recorded(content: Json) -> Json:
    """Return an answer without the keys that other tests compare."""
    if not isinstance(content, dict) or content.get("schema") != "trine/result/1":
        return content
    return {key: value for key, value in content.items() if key not in ELSEWHERE}


def cleaned(value: Json, places: Sequence[tuple[str, str]], key: str = "") -> Json:
    """Return ``value`` without prose and without values that depend on the machine, the time or the version."""
    if isinstance(value, dict):
        found = {}
        for name, inner in value.items():
            is_left_out = name in PROSE or name in OUTSIDE or (isinstance(inner, str) and _is_left_out(inner, name))
            if not is_left_out:
                found[name] = cleaned(inner, places, name)
        return found
    if isinstance(value, list):
        return [
            cleaned(inner, places, key) for inner in value if not isinstance(inner, str) or not _is_left_out(inner, key)
        ]
    if isinstance(value, str):
        for path, name in places:
            value = value.replace(path, name)
    return value


def _is_left_out(text: str, key: str) -> bool:
    return key not in NAMES and is_prose(text)


def short(value: Json, level: int = 0, is_brief: bool = False) -> Json:
    """Return ``value`` with long parts as hashes; rows are hashed by column, so that a difference shows its place."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if not isinstance(value, dict | list) or (level and len(json.dumps(value)) <= LONG // (3 if is_brief else 1)):
        return value
    if isinstance(value, dict) and level < (1 if is_brief else 2) and len(value) <= 60:
        return {key: short(inner, level + 1, is_brief) for key, inner in value.items()}
    if isinstance(value, list) and level < 2 and not is_brief and value and all(isinstance(row, dict) for row in value):
        keys = sorted({key for row in value for key in row})
        return {"rows": len(value)} | {key: sha256([row.get(key) for row in value])[:16] for key in keys}
    return f"{len(value)} {sha256(value)[:24]}"


def of_table(names: Sequence[str], rows: Iterable[Sequence[Json]]) -> Json:
    """Return the hashes of rows and of their columns, independent of the stored order."""
    ordered = sorted(
        ([None if isinstance(each, str) and is_prose(each) else each for each in row] for row in rows),
        key=lambda row: json.dumps(row, default=str),
    )
    columns = {name: sha256([row[at] for row in ordered]) for at, name in enumerate(names)}
    return {"rows": len(ordered), "sha256": sha256(ordered)} | {k: v[:16] for k, v in columns.items()}


def of_rows(rows: Json) -> Json:
    """Return the hash of ``adapter.py``'s rows, independent of the stored order."""
    return rows if isinstance(rows, int) else {"rows": len(rows), "sha256": sha256(sorted(rows, key=json.dumps))}


def of_file(path: Path, places: Sequence[tuple[str, str]]) -> Json:
    """Return the content of a file that a command wrote."""
    if path.is_dir():
        found = {each.name: of_file(each, places) for each in sorted(path.glob("*.parquet"))}
        return {
            name: row if name == "records.parquet" else f"{row['rows']} {row['sha256'][:24]}"
            for name, row in found.items()
        }
    data = path.read_bytes()
    if path.suffix == ".gz":
        data, path = gzip.decompress(data), path.with_suffix("")
    if path.suffix in (".png", ".svg", ".pdf"):
        return {"picture": len(data) > 0}
    if path.suffix == ".json":
        return short(cleaned(recorded(json.loads(data)), places))
    if path.suffix in (".yaml", ".yml"):
        return short(cleaned(yaml.load(data, yaml.CSafeLoader), places))
    if path.suffix == ".npz":
        return of_arrays(data)
    if path.suffix == ".parquet":
        return of_parquet(data)
    if path.suffix == ".pftrace":
        return of_timeline(data)
    if path.suffix == ".et":
        return of_chakra(data)
    text = data.decode()
    for place, name in places:
        text = text.replace(place, name)
    if path.suffix == ".csv":
        names, *rows = csv.reader(io.StringIO(text))
        kept = {
            name: [None if is_prose(row[at]) else row[at] for row in rows]
            for at, name in enumerate(names)
            if name not in OUTSIDE
        }
        return {"rows": len(rows)} | {name: sha256(column)[:16] for name, column in kept.items()}
    return of_text(text)


def of_text(text: str) -> Json:
    """Return the number and hash of a text file's lines, without comments, which are prose."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith(("#", "<!--"))]
    return {"lines": len(lines), "sha256": sha256(lines)}


def of_arrays(data: bytes) -> Json:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {name: of_array(arrays[name]) for name in sorted(arrays.files)}


def of_array(array: np.ndarray) -> Json:
    """Return type, shape and hash of an array; for one that holds JSON (the origin of a record), its content."""
    if array.dtype.kind == "U" and array.ndim == 0 and str(array).startswith("{"):
        return short(cleaned(json.loads(str(array)), ()), is_brief=True)
    return f"{array.dtype.str}{list(array.shape)} {sha256(array.tolist())[:24]}"


def of_parquet(data: bytes) -> Json:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(data))
    names = [name for name in table.column_names if name != "task"]  # a task's number is its place in storage
    columns = [table[name].to_pylist() for name in names]
    return of_table(names, zip(*columns, strict=True))


#: message -> fields (name, number, type) that are read from Perfetto's schema; "*" marks a repeated field.
TIMELINE = {
    "Trace": [("packet", 1, "*TracePacket")],
    "TracePacket": [
        ("timestamp", 8, "uint64"), ("track_event", 11, "TrackEvent"), ("interned_data", 12, "InternedData"),
        ("track_descriptor", 60, "TrackDescriptor"),
    ],
    "TrackEvent": [
        ("debug_annotations", 4, "*DebugAnnotation"), ("type", 9, "int32"), ("name_iid", 10, "uint64"),
        ("track_uuid", 11, "uint64"), ("counter_value", 30, "int64"), ("flow_ids", 47, "*fixed64"),
        ("terminating_flow_ids", 48, "*fixed64"),
    ],
    "DebugAnnotation": [("name_iid", 1, "uint64"), ("uint_value", 3, "uint64"), ("string_value_iid", 17, "uint64")],
    "InternedData": [
        ("event_names", 2, "*Name"), ("debug_annotation_names", 3, "*Name"),
        ("debug_annotation_string_values", 29, "*Name"),
    ],
    "Name": [("iid", 1, "uint64"), ("name", 2, "string")],
    "TrackDescriptor": [("uuid", 1, "uint64"), ("name", 2, "string"), ("parent_uuid", 5, "uint64")],
}  # fmt: skip
BEGIN, END, COUNTER = 1, 2, 4


def _messages(schema: dict[str, list[tuple[str, int, str]]], package: str) -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    scalars = dict(descriptor_pb2.FieldDescriptorProto.Type.items())
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            entry = message.field.add(name=field, number=number, label=3 if kind.startswith("*") else 1)
            inner = kind.lstrip("*")
            entry.type = scalars.get(f"TYPE_{inner.upper()}", scalars["TYPE_MESSAGE"])
            if entry.type == scalars["TYPE_MESSAGE"]:
                entry.type_name = inner
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def of_timeline(data: bytes) -> Json:
    """Return the slices (track, name, start, end, arguments) and counters of a Perfetto trace."""
    pool = _messages(TIMELINE, "golden")
    trace = message_factory.GetMessageClass(pool.FindMessageTypeByName("golden.Trace")).FromString(data)
    interned = trace.packet[0].interned_data
    names = {each.iid: each.name for each in interned.event_names}
    keys = {each.iid: each.name for each in interned.debug_annotation_names}
    strings = {each.iid: each.name for each in interned.debug_annotation_string_values}
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}

    def name_of(text: str) -> str:
        return "" if is_prose(text) else text

    def path(uuid: int) -> str:
        track = tracks.get(uuid)
        return "" if track is None else f"{path(track.parent_uuid)}/{name_of(track.name)}"

    slices, counters, opened, flows = [], [], {}, 0
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        flows += len(event.flow_ids)
        if event.type == COUNTER:
            counters.append((path(event.track_uuid), packet.timestamp, event.counter_value))
        elif event.type == BEGIN:
            opened.setdefault(event.track_uuid, []).append((packet.timestamp, event))
        elif event.type == END:
            start, begin = opened[event.track_uuid].pop()
            arguments = sorted(
                (
                    keys[each.name_iid],
                    name_of(strings[each.string_value_iid]) if each.string_value_iid else each.uint_value,
                )
                for each in begin.debug_annotations
            )
            slices.append(
                (path(event.track_uuid), name_of(names[begin.name_iid]), start, packet.timestamp, str(arguments))
            )
    return {
        "tracks": sha256(sorted(map(path, tracks)))[:20],
        "slices": of_table(("track", "name", "start", "end", "arguments"), slices),
        "counters": of_table(("track", "time", "value"), counters),
        "flows": flows,
    }


def of_chakra(data: bytes) -> Json:
    """Return the nodes of an execution trace, read by protobuf with the schema compiled by protoc."""
    from chakra_files import decoded

    head, nodes = decoded(data)
    return {"nodes": len(nodes), "sha256": sha256([str(node) for node in nodes]), "attributes": len(head.attr)}
