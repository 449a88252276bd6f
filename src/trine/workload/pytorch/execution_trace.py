"""PyTorch's ExecutionTraceObserver JSON: the tree of calls with their tensors, in its old and its Chakra form.

Tensors are ``[tensor id, storage id, offset, elements, bytes per element, device]``. Both ids name addresses, which are
used again after a tensor is freed; :mod:`trine.workload.pytorch.calls` tells the lives apart, and
:mod:`trine.workload.pytorch.reader` finds which node is which call of the profiler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trine.common.precision import TORCH_DTYPES
from trine.errors import TraceError
from trine.workload.files import read_json, short

#: scope of annotations made with record_function and by the profiler itself.
_USER_SCOPE = 7


class TensorRef(NamedTuple):
    """A tensor as one call saw it. ``id`` and ``storage`` are the observer's; all meta tensors have one storage."""

    id: int
    storage: int
    offset: int
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    is_meta: bool = False


#: A tensor that the caller left undefined.
ABSENT = TensorRef(-1, -1, 0, (0,), "none", 0)


@dataclass(slots=True)
class CallNode:
    """One call. ``inputs`` has one entry an argument: a tensor, a list of tensors, or another value.

    ``module`` is the path of the module that calls, such as ``model.layers.3.mlp``; "" if unknown.
    """

    id: int
    name: str
    parent: int
    rf_id: int
    seq_id: int
    tid: int
    fw_tid: int
    annotation: bool
    schema: str
    inputs: list[object]
    outputs: list[object]
    children: list[CallNode] = field(default_factory=list)
    module: str = ""

    def input_tensors(self) -> list[TensorRef]:
        return list(tensors_in(self.inputs))

    def output_tensors(self) -> list[TensorRef]:
        return list(tensors_in(self.outputs))


def tensors_in(values: list[object]) -> Iterator[TensorRef]:
    """Yield every tensor of a list of arguments; lists of tensors are flattened."""
    for value in values:
        if isinstance(value, TensorRef):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, TensorRef))


def read_execution_trace(path: Path) -> list[CallNode]:
    """Read the nodes, children linked, ordered by id (that is by start). Raises TraceError naming the node at fault."""
    document = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise TraceError("has no list of nodes: not an execution trace", file=path)
    by_id: dict[int, CallNode] = {}
    for index, raw in enumerate(document["nodes"]):
        if not isinstance(raw, dict):
            raise TraceError(f"must be an object, got {short(raw)}", file=path, field=f"nodes[{index}]")
        node = _node(raw, path, index)
        if node.id in by_id:
            raise TraceError("has an id that an earlier node has too", file=path, field=f"node {node.id}")
        by_id[node.id] = node
    nodes = [by_id[id_number] for id_number in sorted(by_id)]
    for node in nodes:
        if node.parent == node.id:
            if node is not nodes[0]:
                message = "is its own parent, as only the first node may be: a cycle"
                raise TraceError(message, file=path, field=f"node {node.id}")
            continue
        parent = by_id.get(node.parent)
        if parent is None:
            raise TraceError(f"has the parent {node.parent}, which does not exist", file=path, field=f"node {node.id}")
        if parent.id > node.id:
            raise TraceError(f"is a child of the later node {parent.id}: a cycle", file=path, field=f"node {node.id}")
        parent.children.append(node)
    return nodes


def _node(raw: dict[str, object], path: Path, index: int) -> CallNode:
    id_number = raw.get("id")
    if isinstance(id_number, bool) or not isinstance(id_number, int) or id_number < 0:
        raise TraceError(f"must be a whole number, got {short(id_number)}", file=path, field=f"nodes[{index}].id")
    field = f"node {id_number}"
    fields = dict(raw)
    attributes = raw.get("attrs")
    if isinstance(attributes, list):
        fields.update({str(a.get("name")): a.get("value") for a in attributes if isinstance(a, dict)})
        fields["parent"] = raw.get("ctrl_deps", raw.get("parent"))
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise TraceError(f"must be a name, got {short(name)}", file=path, field=f"{field}.name")
    schema = fields.get("op_schema", "")
    return CallNode(
        id=id_number, name=name, parent=_integer(fields, "parent", path, field),
        rf_id=_integer(fields, "rf_id", path, field), seq_id=_integer(fields, "seq_id", path, field),
        tid=_integer(fields, "tid", path, field), fw_tid=_integer(fields, "fw_tid", path, field),
        annotation=fields.get("scope") == _USER_SCOPE, schema=schema if isinstance(schema, str) else "",
        inputs=_arguments(fields, "inputs", "input", path, field),
        outputs=_arguments(fields, "outputs", "output", path, field),
    )  # fmt: skip


def _integer(fields: dict[str, object], key: str, path: Path, field: str) -> int:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(f"must be a whole number, got {short(value)}", file=path, field=f"{field}.{key}")
    return value


def _arguments(fields: dict[str, object], key: str, stem: str, path: Path, field: str) -> list[object]:
    group = fields.get(key)
    if isinstance(group, dict):
        values, shapes, types = group.get("values"), group.get("shapes"), group.get("types")
    else:
        values, shapes, types = group, fields.get(f"{stem}_shapes"), fields.get(f"{stem}_types")
    if not (isinstance(values, list) and isinstance(shapes, list) and isinstance(types, list)):
        raise TraceError("must be lists of values, shapes and types", file=path, field=f"{field}.{key}")
    if not len(values) == len(shapes) == len(types):
        raise TraceError(f"has {len(values)} values, {len(shapes)} shapes and {len(types)} types", file=path,
                         field=f"{field}.{key}")  # fmt: skip
    items = enumerate(zip(values, shapes, types, strict=True))
    return [_argument(*item, path, f"{field}.{key}[{i}]") for i, item in items]


def _argument(value: object, shape: object, type_: object, path: Path, field: str) -> object:
    if not isinstance(type_, str):
        raise TraceError(f"must have a type, got {short(type_)}", file=path, field=field)
    if type_.startswith("Tensor("):
        return _tensor(value, shape, type_[7:-1], path, field)
    if type_.startswith("GenericList[") and "Tensor(" in type_ and isinstance(value, list) and isinstance(shape, list):
        types = _split(type_[len("GenericList[") : -1])
        if not len(types) == len(value) == len(shape):
            raise TraceError(f"has {len(value)} elements and {len(types)} types", file=path, field=field)
        return [_argument(*item, path, field) for item in zip(value, shape, types, strict=True)]
    return value


@lru_cache(maxsize=4096)
def _split(text: str) -> tuple[str, ...]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return (*parts, last) if last else tuple(parts)


def _tensor(value: object, shape: object, dtype: str, path: Path, field: str) -> TensorRef:
    if dtype.startswith("nullptr"):
        return ABSENT
    numbers = value[:5] if isinstance(value, list) and len(value) >= 5 else None
    if numbers is None or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise TraceError(f"must be [id, storage, offset, elements, bytes, device] of a tensor, got {short(value)}",
                         file=path, field=field)  # fmt: skip
    if not isinstance(shape, list) or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise TraceError(f"must have a shape of whole numbers, got {short(shape)}", file=path, field=field)
    id_number, storage, offset, elements, each = numbers
    if each > 64 or elements != math.prod(shape):
        raise TraceError(f"has {elements} elements of {each} bytes, but the shape {shape}", file=path, field=field)
    name = TORCH_DTYPES.get(dtype) or dtype.rpartition("::")[2].lower()
    is_meta = isinstance(value, list) and len(value) > 5 and str(value[5]).startswith("meta")
    return TensorRef(id_number, storage, offset, tuple(shape), name, elements * each, is_meta)


@lru_cache(maxsize=4096)
def argument_names(schema: str) -> tuple[tuple[str, bool], ...]:
    """Return names of a schema's arguments and whether each is a tensor or a list of tensors; () without a schema."""
    start = schema.find("(")
    depth = 0
    for i in range(start, len(schema)) if start >= 0 else ():
        depth += (schema[i] == "(") - (schema[i] == ")")
        if depth == 0:
            parts = [part.partition("=")[0].rstrip() for part in _split(schema[start + 1 : i]) if part != "*"]
            return tuple((part.rpartition(" ")[2], part.startswith("Tensor")) for part in parts)
    return ()
