"""Chakra traces made by hand with protobuf's own classes from protoc's descriptor, not by trine's writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from trine.common.inputs import PRESETS

DATA = Path(__file__).parent / "data" / "chakra"
_SET = descriptor_pb2.FileDescriptorSet.FromString((PRESETS / "chakra" / "et_def.desc").read_bytes())
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_SET.file[0])
Metadata, Node = (
    message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
    for name in ("GlobalMetadata", "Node")
)
METADATA, LOAD, STORE, COMP, SEND, RECV, COLL = range(1, 8)
ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER, BLOCK, BARRIER = range(10)


def node(
    number: int, kind: int, after: Sequence[int] = (), *, micros: int = 0, name: str = "", **attributes: Any
) -> Any:
    """A node; attributes become int64, bool or text by their Python type."""
    made = Node(id=number, name=name or f"node {number}", type=kind, data_deps=after, duration_micros=micros)
    for key, value in attributes.items():
        attribute = made.attr.add(name=key)
        if isinstance(value, bool):
            attribute.bool_val = value
        elif isinstance(value, int):
            attribute.int64_val = value
        elif isinstance(value, list):
            attribute.bool_list.values.extend(value)
        else:
            attribute.string_val = value
    return made


def collective(number: int, kind: int, size: int, after: Sequence[int] = (), **attributes: Any) -> Any:
    """A collective of ``size`` bytes."""
    return node(number, COLL, after, comm_type=kind, comm_size=size, **attributes)


def send(number: int, target: int, size: int, after: Sequence[int] = (), tag: int = 0) -> Any:
    """A message to a rank."""
    return node(number, SEND, after, comm_dst=target, comm_size=size, comm_tag=tag)


def receive(number: int, source: int, size: int, after: Sequence[int] = (), tag: int = 0) -> Any:
    """A message from a rank."""
    return node(number, RECV, after, comm_src=source, comm_size=size, comm_tag=tag)


def encoded(nodes: Sequence[Any], head: Any = None) -> bytes:
    """A file: each message with its length before it."""
    parts = []
    for message in [Metadata(version="0.0.4") if head is None else head, *nodes]:
        content = message.SerializeToString()
        size, prefix = len(content), bytearray()
        while size >= 128:
            prefix.append(size & 127 | 128)
            size >>= 7
        parts.append(bytes((*prefix, size)) + content)
    return b"".join(parts)


def decoded(data: bytes) -> tuple[Any, list[Any]]:
    """The metadata and the nodes of a file, by protobuf and protoc's reading of the schema."""
    parts = list(_parts(data))
    return Metadata.FromString(parts[0]), [Node.FromString(part) for part in parts[1:]]


def write(folder: Path, ranks: Sequence[Sequence[Any]], name: str = "job") -> Path:
    """One file a rank; returns the prefix."""
    for rank, nodes in enumerate(ranks):
        (folder / f"{name}.{rank}.et").write_bytes(encoded(nodes))
    return folder / name


def _parts(data: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(data):
        size = shift = 0
        while True:
            byte = data[place]
            place += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield data[place : place + size]
        place += size
