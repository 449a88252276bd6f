"""Damage to valid files: to their structure if the format has one, else to words, cells and bytes.

A mutation is three numbers, ``(where, how, what)``, modulo the number of choices, so Hypothesis can shrink them.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Mutation = tuple[int, int, int]

#: Values that readers did not expect.
HOSTILE: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 255, 2**24 + 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), 10**5000, 0.5, 1e-300,
    1e308, float("inf"), float("nan"), -0.0, True, False, None, "", " ", "x", "0", "-1", "--5", "+5", "1_0", "4_",
    "1__0", "9999999999999999999", "1e999", "nan", "inf", "１２", "٣", "0x", "0x40", "1/0", "1.5.2", "a\nb", "\x00",
    "\ud83d\ude00", "é" * 200, "A" * 5000, "../x", "/dev/zero", "null", "true", "gpu0", "node0", "0..1", "5 GB/s",
    "5 GB/m", "1 us", "1 parsec", "-1 us", "1e30 s", "8 B", "8 XB", "1e40 GiB", [], {}, [[]], [0], [None], {"a": 1},
    {"": ""}, [1, "a", None], "*", "&a", "%", "{}", "[", "!!python/object:os.system", "ranks", "own", "wg", "(", "//",
    "rank+1", "'", '"', "#", "->", "..", "1..0", "0..99999999999", "sem 1", "lines", "end", "for",
)  # fmt: skip
WORDS = tuple(str(value)[:6000] for value in HOSTILE if not isinstance(value, int) or value.bit_length() < 10_000)
BYTES = (
    b"", b"\x00", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r", b"\t", b" ", b"\xc3\x28", b"[" * 3000,
    b"{" * 300, b'{"a":' * 3000, b"0" * 5000, b"9" * 20, b"-", b",", b'"', b"<", b"&x;", b"<!DOCTYPE a []>",
    b"\x1f\x8b", b"PK\x03\x04", b"*a", b"&a ", b"<<: ", b": ", b"- ", b"\xff\xff\xff\xff\x0f", b"\x80" * 12,
    b"\xe2\x80\xa8",
)  # fmt: skip


def mutated(data: bytes, kind: str, mutations: Sequence[Mutation]) -> bytes:
    """Return ``data`` after all mutations for a file of this kind."""
    for mutation in mutations:
        how = mutation[1] % 10
        change = _KINDS.get(kind, _bytes) if how < 8 else _bytes
        try:
            data = change(data, (mutation[0], mutation[1] // 10, mutation[2]))
        except Exception:  # the file is no longer valid: change bytes
            data = _bytes(data, mutation)
    return data


def _bytes(data: bytes, mutation: Mutation) -> bytes:
    where, how, what = mutation
    at = where % (len(data) + 1)
    piece = BYTES[what % len(BYTES)]
    match how % 6:
        case 0:
            return data[:at] + piece + data[at:]
        case 1:
            return data[:at] + piece + data[at + 1 + what % 9 :]
        case 2:
            return data[:at]
        case 3:
            return data[:at] + bytes([what % 256]) + data[at + 1 :]
        case 4:
            return data[:at] + data[at // 2 :]
        case _:
            return data[:at] + data[at + what % 60 :]


def _tree(tree: Any, mutation: Mutation) -> Any:
    """Return plain data with one node changed, dropped, doubled, renamed, wrapped or exchanged."""
    where, how, what = mutation
    places: list[tuple[Any, Any]] = []
    todo = [tree]
    while todo:
        node = todo.pop()
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            todo.append(node[key])
    value = HOSTILE[what % len(HOSTILE)]
    if not places:
        return value
    node, key = places[where % len(places)]
    match how % 8:
        case 0 | 1 | 2:
            node[key] = value
        case 3:
            del node[key]
        case 4:
            other, there = places[what % len(places)]
            node[key], other[there] = other[there], node[key]
        case 5 if isinstance(node, list):
            node.insert(key, node[key])
        case 5 | 6 if isinstance(node, dict):
            node[str(value)[:50]] = node.pop(key)
        case _:
            for _ in range((1, 3, 40, 600)[what % 4]):
                node[key] = [node[key]] if how % 2 else {"a": node[key]}
    return tree


def _json(data: bytes, mutation: Mutation) -> bytes:
    return json.dumps(_tree(json.loads(data), mutation)).encode()


def _yaml(data: bytes, mutation: Mutation) -> bytes:
    import yaml

    if mutation[1] % 3 == 0:
        return _words(data, mutation)
    made = _tree(yaml.load(data, Loader=yaml.CSafeLoader), mutation)
    return yaml.dump(made, Dumper=yaml.CSafeDumper, allow_unicode=True, sort_keys=False).encode("utf-8", "replace")


def _csv(data: bytes, mutation: Mutation) -> bytes:
    where, how, what = mutation
    rows = [line.split(",") for line in data.decode().splitlines()]
    row = rows[where % len(rows)]
    cell = (where // len(rows)) % len(row)
    match how % 7:
        case 0 | 1 | 2:
            row[cell] = WORDS[what % len(WORDS)]
        case 3:
            del row[cell]
        case 4:
            row.insert(cell, row[cell])
        case 5:
            rows.insert(what % len(rows), list(row))
        case _:
            row[cell], rows[0][0] = rows[0][0], row[cell]
    return "\n".join(",".join(cells) for cells in rows).encode("utf-8", "surrogatepass") + b"\n"


_TOKEN = re.compile(rb"[\w.]+|[^\w\s]")
_VALUE = re.compile(rb'"[^"]*"')


def _tokens(pattern: re.Pattern[bytes], quote: bytes) -> Callable[[bytes, Mutation], bytes]:
    def change(data: bytes, mutation: Mutation) -> bytes:
        where, how, what = mutation
        found = list(pattern.finditer(data))
        if not found:
            return _bytes(data, mutation)
        match, other = found[where % len(found)], found[what % len(found)]
        word = quote + WORDS[what % len(WORDS)].encode("utf-8", "surrogatepass") + quote
        new = (word, word, b"", other[0], match[0] + b" " + match[0], quote + b"0" + quote)[how % 6]
        return data[: match.start()] + new + data[match.end() :]

    return change


_words = _tokens(_TOKEN, b"")
_attributes = _tokens(_VALUE, b'"')


def _xml(data: bytes, mutation: Mutation) -> bytes:
    if mutation[1] % 2:
        return _attributes(data, (mutation[0], mutation[1] // 2, mutation[2]))
    lines = data.splitlines(keepends=True)
    at, other = mutation[0] % len(lines), mutation[2] % len(lines)
    match mutation[1] // 2 % 3:
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case _:
            lines[at], lines[other] = lines[other], lines[at]
    return b"".join(lines)


def _gzip(data: bytes, mutation: Mutation) -> bytes:
    if mutation[1] % 4 == 0:
        return gzip.compress(gzip.compress(data))
    if mutation[1] % 4 == 1:
        return gzip.compress(b" " * (mutation[2] % 2**27))
    return gzip.compress(_json(gzip.decompress(data), (mutation[0], mutation[1] // 4, mutation[2])))


_DTYPES = ("i1", "u8", "f8", "f2", "U3", "S3", "?", "c16", "M8[s]", ">i4")


def _npz(data: bytes, mutation: Mutation) -> bytes:
    where, how, what = mutation
    if how % 5 == 0:
        return _zip(data, (where, how // 5, what))
    with np.load(io.BytesIO(data)) as content:
        arrays = {name: content[name] for name in content.files}
    name = list(arrays)[where % len(arrays)]
    array, value = arrays[name], HOSTILE[what % len(HOSTILE)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match how // 5 % 6:
            case 0:
                arrays[name] = array.astype(_DTYPES[what % len(_DTYPES)])
            case 1:
                arrays[name] = np.resize(array, (what % 4, 1 + what % 3))
            case 2:
                arrays[name] = np.full(array.shape, value)
            case 3:
                del arrays[name]
            case 4 if array.size:
                array.reshape(-1)[what % array.size] = value
            case _:
                arrays[str(value)[:20] or "a"] = arrays.pop(name)
        made = io.BytesIO()
        np.savez(made, **{k: v for k, v in arrays.items() if v.dtype != object})
    return made.getvalue()


def _zip(data: bytes, mutation: Mutation) -> bytes:
    """Damage an archive: flags, methods, sizes, headers of its parts."""
    where, how, what = mutation
    if how % 4 == 0:
        made = io.BytesIO()
        method = (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED)[what % 3]
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", method) as new:
            for entry in old.infolist():
                new.writestr(entry.filename, old.read(entry))
        return _bytes(made.getvalue(), (where, 3 + 2 * (what % 2), what)) if how // 4 % 3 else made.getvalue()
    marks = (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"\x93NUMPY")
    mark = marks[how % 4]
    starts = [m.start() for m in re.finditer(re.escape(mark), data)]
    if not starts:
        return _bytes(data, mutation)
    at = starts[where % len(starts)] + 4 + where // 7 % 28
    return (
        data[:at] + (struct.pack("<H", what % 65536), bytes([what % 256]), b"\xff" * 4)[how // 4 % 3] + data[at + 2 :]
    )


def _parquet(data: bytes, mutation: Mutation) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    where, how, what = mutation
    table = pq.read_table(io.BytesIO(data))
    names = table.column_names
    name, value = names[where % len(names)], HOSTILE[what % len(HOSTILE)]
    columns = {each: table[each].to_pylist() for each in names}
    match how % 6:
        case 0:
            columns[name][what % len(columns[name])] = value
        case 1:
            columns[name] = [value] * len(columns[name])
        case 2:
            del columns[name]
        case 3:
            columns[name] = pa.array(list(map(str, columns[name]))).cast(pa.binary())
        case 4:
            columns[name] = pa.array(list(map(str, columns[name]))).dictionary_encode()
        case _:
            columns[str(value)[:20]] = columns.pop(name)
    made = io.BytesIO()
    pq.write_table(pa.table(columns), made)
    return made.getvalue()


def _chakra(data: bytes, mutation: Mutation) -> bytes:
    from chakra_files import decoded, encoded

    where, how, what = mutation
    head, nodes = decoded(data)
    node, value = nodes[where % len(nodes)], HOSTILE[what % len(HOSTILE)]
    number = value if isinstance(value, int) and -(2**63) <= value < 2**63 else what
    match how % 9:
        case 0:
            node.id = abs(number)
        case 1:
            node.type = what % 9
        case 2:
            node.data_deps.append(abs(number) % 2**63)
        case 3:
            node.duration_micros = abs(number)
        case 4:
            nodes.insert(what % len(nodes), node)
        case 5:
            nodes.remove(node)
        case 6 if node.attr:
            attribute = node.attr[where // 7 % len(node.attr)]
            attribute.int64_val = number
        case 7 if node.attr:
            attribute = node.attr[where // 7 % len(node.attr)]
            attribute.string_val = str(value)[:50]
        case _:
            made = node.attr.add(
                name=("pg_name", "comm_size", "comm_dst", "comm_tag", "involved_dim", "is_cpu_op")[what % 6]
            )
            made.int64_val = number
    return encoded(nodes, head)


_KINDS: dict[str, Callable[[bytes, Mutation], bytes]] = {
    "json": _json, "yaml": _yaml, "csv": _csv, "words": _words, "xml": _xml, "gzip": _gzip, "npz": _npz,
    "parquet": _parquet, "bytes": _bytes, "chakra": _chakra,
}  # fmt: skip
