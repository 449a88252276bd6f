"""Reader of one Chakra trace: length-prefixed messages, first the metadata, then the nodes. Attributes are typed.

Process groups come from PyTorch's metadata node in a trace, or from a separate file in ASTRA-sim's format.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from trine.errors import TraceError, nearest
from trine.formats.chakra.read_json import is_json_trace, read_json_trace
from trine.formats.chakra.schema import NODE_TYPES, classes
from trine.workload.files import read_bytes, read_json, short

#: Maximum nodes of one file, and maximum bytes of one message.
MAX_NODES = 20_000_000
MAX_MESSAGE_BYTES = 64 * 2**20
#: Maximum nodes cached by their bytes.
MAX_KNOWN = 1_000_000
_INTEGERS = frozenset(
    f"{sign}{width}_val" for sign in ("int", "uint", "sint", "fixed", "sfixed") for width in (32, 64)
) | {"bool_val"}
_LISTS = frozenset(f"{sign}{width}_list" for sign in ("int", "uint", "sint", "fixed", "sfixed") for width in (32, 64))


class RawNode(NamedTuple):
    """A node as stored in the file; ``deps``: data and control dependencies in order, without duplicates."""

    id: int
    name: str
    type: int
    deps: tuple[int, ...]
    duration_micros: int
    values: str
    attributes: Attributes


class Attributes(Mapping[str, Any]):
    """Attributes of a node or a file by name; each getter raises TraceError for a value of another type."""

    def __init__(self, messages: Any, file: Path, owner: str) -> None:
        self._file, self._owner = file, owner
        self._values: dict[str, tuple[str | None, Any]] = {}
        for message in messages:
            kind = message.WhichOneof("value")
            if message.name in self._values:
                self.fail(message.name, "is there twice")
            self._values[message.name] = (kind, None if kind is None else getattr(message, kind))

    def __getitem__(self, name: str) -> Any:
        return self._values[name][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def fail(self, name: str, why: str) -> None:
        """Raise TraceError about one attribute."""
        raise TraceError(f"{self._owner}: attribute {name[:60]!r} {why}", file=self._file)

    def integer(self, name: str, default: int | None = None, most: int = 2**53) -> int:
        """Return a whole number from 0 to ``most``, of any integer type."""
        if name not in self._values:
            if default is None:
                self.fail(name, "is missing")
            return int(default or 0)
        kind, value = self._values[name]
        if kind not in _INTEGERS:
            self.fail(name, f"must be a whole number, is {kind}")
        if not 0 <= value <= most:
            self.fail(name, f"must be from 0 to {most}, is {value}")
        return int(value)

    def text(self, name: str, default: str = "") -> str:
        """Return a text, or ``default`` if missing."""
        kind, value = self._values.get(name, ("string_val", default))
        if kind != "string_val":
            self.fail(name, f"must be a text, is {kind}")
        return str(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; empty if missing."""
        return self._list(name, ("string_list",), "texts")

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers; empty if missing."""
        return self._list(name, _LISTS, "whole numbers")

    def flags(self, name: str) -> tuple[bool, ...]:
        """Return a list of booleans; empty if missing."""
        return self._list(name, ("bool_list",), "truth values")

    def _list(self, name: str, kinds: Collection[str], words: str) -> tuple[Any, ...]:
        if name not in self._values:
            return ()
        kind, value = self._values[name]
        if kind not in kinds:
            self.fail(name, f"must be a list of {words}, is {kind}")
        return tuple(value.values)


class TraceFile(NamedTuple):
    """Attributes of a file, its nodes in the order of the file, and notes on the conversion of JSON."""

    path: Path
    attributes: Attributes
    nodes: list[RawNode]
    notes: tuple[str, ...] = ()


def read_file(path: Path, content: bytes | None = None, known: dict[bytes, RawNode] | None = None) -> TraceFile:
    """Read one trace, binary or JSON, plain or gzip.

    ``content``: the result of :func:`read_bytes` for it, if already read.

    ``known`` caches nodes by their bytes across files: identical ranks share most nodes.

    Raises TraceError: names the file and the node.
    """
    content = read_bytes(path) if content is None else content
    notes: tuple[str, ...] = ()
    if is_json_trace(path):
        messages, notes = read_json_trace(content, path)
        parts = iter(messages)
    else:
        parts = _messages(content, path)
    head = classes().metadata()
    first = next(parts, None)
    if first is None:
        raise TraceError("is empty: a Chakra trace begins with its metadata", file=path)
    _parse(head, first, path, "the metadata")
    nodes = _nodes(parts, path, {} if known is None else known)
    return TraceFile(path, Attributes(head.attr, path, "the metadata"), nodes, notes)


def _nodes(parts: Iterator[bytes], path: Path, known: dict[bytes, RawNode]) -> list[RawNode]:
    nodes: list[RawNode] = []
    ids: set[int] = set()
    for number, part in enumerate(parts):
        node = known.get(part)
        if node is None:
            node = _raw(part, number, path)
            if len(known) < MAX_KNOWN:
                known[part] = node
        if node.id in ids:
            raise TraceError(f"node {node.id} is there twice", file=path)
        if len(nodes) >= MAX_NODES:
            raise TraceError(f"has more than {MAX_NODES} nodes", file=path)
        ids.add(node.id)
        nodes.append(node)
    return nodes


def _raw(part: bytes, number: int, path: Path) -> RawNode:
    message = classes().node()
    _parse(message, part, path, f"node number {number}")
    if message.type and message.type not in NODE_TYPES:
        raise TraceError(f"node {message.id}: there is no node type {message.type}", file=path)
    return RawNode(
        id=message.id, name=message.name, type=message.type,
        deps=tuple(dict.fromkeys((*message.data_deps, *message.ctrl_deps))), duration_micros=message.duration_micros,
        values=message.inputs.values, attributes=Attributes(message.attr, path, f"node {message.id}"),
    )  # fmt: skip


def _parse(message: Any, part: bytes, path: Path, subject: str) -> None:
    try:
        message.ParseFromString(part)
    except DecodeError as error:
        raise TraceError(f"{subject} is no message of the Chakra schema: {short(str(error))}", file=path) from None


def _messages(data: bytes, path: Path) -> Iterator[bytes]:
    """Cut the file at its length prefixes (base-128 varints)."""
    position, end = 0, len(data)
    while position < end:
        size = shift = 0
        start = position
        while True:
            if position >= end or shift > 28:
                raise TraceError(f"has no valid length at byte {start}", file=path)
            byte = data[position]
            position += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if size > MAX_MESSAGE_BYTES:
            raise TraceError(f"has a message of {size} bytes at byte {start}", file=path)
        if position + size > end:
            raise TraceError(f"ends within a message: {size} bytes at byte {start}, {end - position} left", file=path)
        yield data[position : position + size]
        position += size


#: Name of the metadata node whose input holds the groups.
GROUPS_NODE = "## process_group:init ##"
#: Names that mean all ranks unless a group has this name.
WORLD = ("", "0")

#: name of a group -> its ranks, in group order
Groups = Mapping[str, tuple[int, ...]]


def read_groups(path: Path, num_ranks: int) -> dict[str, tuple[int, ...]]:
    """Read ``{"1": [0, 1], ...}``. Raises TraceError: names the file and the group."""
    data = read_json(path, strict=True)
    if not isinstance(data, dict):
        raise TraceError('must be an object such as {"1": [0, 1]}', file=path)
    return {name: _ranks(ranks, name, num_ranks, path) for name, ranks in data.items()}


def node_groups(node: RawNode, num_ranks: int, path: Path) -> dict[str, tuple[int, ...]]:
    """Return the groups that a metadata node defines; empty for any other node.

    PyTorch's list follows two characters (``['`` or ``[[``) and precedes two. A group without ranks holds all ranks.
    """
    if node.name != GROUPS_NODE or not node.values:
        return {}
    try:
        items = json.loads(node.values[2:-2])
        groups = [(item["pg_name"], item.get("ranks") or list(range(num_ranks))) for item in items]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TraceError(f"node {node.id}: its process groups cannot be read: {short(str(error))}", file=path) from None
    return {str(name): _ranks(ranks, str(name), num_ranks, path) for name, ranks in groups}


def group_text(groups: Groups) -> str:
    """Return the inputs of the metadata node: the inverse of :func:`node_groups`."""
    rows = [
        {"pg_name": name, "pg_desc": name, "ranks": list(ranks), "group_size": len(ranks)}
        for name, ranks in groups.items()
    ]
    return f"['{json.dumps(rows)}']"


def resolve(name: str, groups: Groups, num_ranks: int, node: RawNode, path: Path) -> tuple[int, ...]:
    """Return the ranks of the group ``name``. Raises TraceError if it is unknown."""
    if name in groups:
        return groups[name]
    if name in WORLD:
        return tuple(range(num_ranks))
    hint = nearest(name, groups) if groups else "; the trace defines none: name the file of groups"
    raise TraceError(f"node {node.id}: there is no process group {name[:60]!r}{hint}", file=path)


def merged(first: Groups, second: Groups, path: Path) -> dict[str, tuple[int, ...]]:
    """Return all groups of both. Raises TraceError if one name has different ranks in the two."""
    for name, ranks in second.items():
        if first.get(name, ranks) != ranks:
            here, elsewhere = short(list(ranks)), short(list(first[name]))
            message = f"process group {name[:60]!r} has ranks {here} here, but {elsewhere} elsewhere"
            raise TraceError(message, file=path)
    return {**first, **second}


def _ranks(ranks: Any, name: str, num_ranks: int, path: Path) -> tuple[int, ...]:
    group = f"process group {name[:60]!r}"
    if not isinstance(ranks, Sequence) or isinstance(ranks, str) or not ranks:
        raise TraceError(f"{group} must be a list of ranks, got {short(ranks)}", file=path)
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < num_ranks:
            raise TraceError(f"{group} names rank {short(rank)}, the traces have ranks 0 to {num_ranks - 1}", file=path)
    if len(set(ranks)) != len(ranks):
        raise TraceError(f"{group} names a rank twice", file=path)
    return tuple(ranks)
