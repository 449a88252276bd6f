"""Convert the tree of an execution trace to calls whose tensors have one identity each.

The observer's tensor and storage ids are addresses. Walking the calls in order shows when an address is reused: an
output is a new allocation if its storage is in no input and was not allocated inside the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trine.workload.analysis.aten_schema import VIEWS
from trine.workload.pytorch.execution_trace import ABSENT, CallNode, TensorRef, argument_names, tensors_in
from trine.workload.raw_trace import RawTensor, call_kind

#: Calls that only view memory; inside a backward node they do not count as computation.
LOOKING = VIEWS | {
    "t", "transpose", "permute", "expand", "expand_as", "as_strided", "detach", "alias", "select", "slice", "narrow",
    "result_type", "to", "split", "chunk", "unbind", "movedim", "swapaxes", "conj", "resolve_conj", "is_nonzero",
    "empty", "empty_like", "empty_strided", "view_as", "numpy_T",
}  # fmt: skip
#: Calls that launch no kernel themselves: views, queries, allocations, and calls that delegate to another call.
NO_KERNEL = LOOKING | {
    "contiguous", "item", "local_scalar_dense", "new_empty", "new_empty_strided", "resize", "set", "lift_fresh",
    "is_same_size", "record_stream", "data", "requires_grad", "size", "sym_size", "dropout", "unsafe_chunk",
    "split_with_sizes", "unsafe_split", "diagonal", "broadcast_tensors", "broadcast_to", "swapdims", "resolve_neg",
    "empty_permuted", "broadcast_in_dim",
}  # fmt: skip


@dataclass(slots=True)
class TreeCall:
    """A call of the tree with resolved tensors; ``inputs`` by position, None for an absent optional tensor."""

    node: CallNode
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    values: Mapping[str, object]
    inner: bool


@dataclass(slots=True)
class TopCall:
    """A call outside any other, with all calls inside it in the order of completion, itself last."""

    node: CallNode
    calls: list[TreeCall] = field(default_factory=list)
    born: list[int] = field(default_factory=list)


class TensorTable:
    """Tensors by identity, numbered from 1 in order of appearance; number 0 is the absent tensor."""

    def __init__(self) -> None:
        self.tensors: dict[int, RawTensor] = {0: RawTensor(0, (0,), "none", 0, 0)}
        self._numbers: dict[tuple[int, int, int, tuple[int, ...], str], int] = {}
        self._allocation: dict[int, int] = {}
        self._births: dict[int, int] = {}
        self._bytes: dict[int, int] = {}  # allocation -> bytes of its largest tensor
        self._count = 0
        self.clock = 0

    def resolve(self, ref: TensorRef, *, unlisted: bool = False) -> int:
        """Return the number of the tensor that is now at ``ref``.

        ``unlisted``: a new tensor was made by no call. It is then a view of its storage's contents, as saved tensors
        are, unless it is a scalar (Python numbers become tensors without a call) or larger than the storage's contents.
        """
        if ref is ABSENT or ref == ABSENT:
            return 0
        allocation = self._allocation.get(ref.storage)
        if allocation is None:
            allocation = self.allocate(ref.storage)
        key = (ref.id, allocation, ref.offset, ref.shape, ref.dtype)
        number = self._numbers.get(key)
        if number is None and unlisted and (ref.shape == () or ref.size_bytes > self._bytes.get(allocation, 2**63)):
            allocation = self.allocate(ref.storage)
            key = (ref.id, allocation, ref.offset, ref.shape, ref.dtype)
        if number is None:
            number = self._numbers[key] = len(self._numbers) + 1
            self.tensors[number] = RawTensor(number, ref.shape, ref.dtype, ref.size_bytes, allocation)
            self._bytes[allocation] = max(ref.size_bytes, self._bytes.get(allocation, 0))
        return number

    def allocate(self, storage: int) -> int:
        self._count += 1
        self._allocation[storage] = self._count
        self._births[storage] = self.clock
        return self._count

    def born_since(self, storage: int, clock: int) -> bool:
        return self._births.get(storage, -1) >= clock


def resolve_tree(nodes: list[CallNode], table: TensorTable) -> list[TopCall]:
    """Resolve every call, in order. ``nodes`` are all nodes of the trace, ordered by id."""
    tops: list[TopCall] = []
    outer = {node.id for node in nodes if node.annotation and node.parent == node.id}
    for node in nodes:  # parents come before their children
        if node.annotation and node.parent in outer:
            outer.add(node.id)
    for node in nodes:
        if node.id in outer or node.parent not in outer:
            continue
        top = TopCall(node)
        _walk(node, table, top)
        tops.append(top)
    return tops


def _walk(root: CallNode, table: TensorTable, top: TopCall) -> None:
    """Walk depth first without recursion: resolve inputs when a call begins, outputs when it ends."""
    stack: list[tuple[CallNode, int, tuple[int | None, ...], int]] = []

    def enter(node: CallNode) -> None:
        table.clock += 1
        slots_in_order = []
        for ref in _slots(node):
            slots_in_order.append(None if ref is None else table.resolve(ref, unlisted=True))
        slots = tuple(slots_in_order)
        stack.append((node, 0, slots, table.clock))

    enter(root)
    while stack:
        node, place, slots, clock = stack.pop()
        if place < len(node.children):
            stack.append((node, place + 1, slots, clock))
            enter(node.children[place])
            continue
        input_storages = {ref.storage for ref in node.input_tensors()}
        for ref in node.output_tensors():
            if ref != ABSENT and ref.storage not in input_storages and not table.born_since(ref.storage, clock):
                top.born.append(table.allocate(ref.storage))
        outputs = tuple(table.resolve(ref) for ref in node.output_tensors())
        top.calls.append(TreeCall(node, slots, outputs, _values(node), node is not root))


def _slots(node: CallNode) -> list[TensorRef | None]:
    """Return tensor arguments by position in the schema, lists flattened; without a schema all tensors in order."""
    names = argument_names(node.schema)
    if len(names) < len(node.inputs):
        return list(node.input_tensors())
    slots: list[TensorRef | None] = []
    for value, (_, is_tensor) in zip(node.inputs, names, strict=False):
        tensors = list(tensors_in([value]))
        slots += tensors or ([None] if is_tensor and value == "<None>" else [])
    return slots


def _values(node: CallNode) -> dict[str, object]:
    names = argument_names(node.schema)
    if len(names) < len(node.inputs):
        return {}
    return {
        name: value
        for value, (name, is_tensor) in zip(node.inputs, names, strict=False)
        if not is_tensor and value != "<None>"
    }


class Operands(NamedTuple):
    """Tensors that an operator reads and makes, and its other arguments."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    values: Mapping[str, object]


def operands(top: TopCall, table: TensorTable) -> Operands:
    """Return the inputs and outputs of a top-level call.

    An autograd node lists no tensors itself. If one call inside it computes, its tensors count, by position. If several
    do (two products and a sum for a linear layer), inputs are the tensors from outside, and outputs are the last tensor
    on each allocation made inside.
    """
    outermost = top.calls[-1]
    if any(i is not None for i in (*outermost.inputs, *outermost.outputs)):
        return Operands(_present(outermost.inputs), _present(outermost.outputs), outermost.values)
    nodes = {call.node.id: call.node for call in top.calls}
    depth_one = [call for call in top.calls if _computes(call, nodes)]
    if len(depth_one) == 1:
        single = depth_one[0]
        return Operands(_present(single.inputs), _present(single.outputs), single.values)
    return _outer_operands(top, table, depth_one)


def _outer_operands(top: TopCall, table: TensorTable, computing_calls: list[TreeCall]) -> Operands:
    """Return the outside inputs (behind any views) and the written outputs of a call with several computing calls."""
    base_of: dict[int, int] = {}  # tensor -> the tensor it is a view of
    last_on: dict[int, int] = {}  # storage -> the last tensor on it
    own_storages = set(top.born)
    inputs: dict[int, None] = {}
    computing = {id(call) for call in computing_calls}
    for call in top.calls:
        present = _present(call.inputs)
        for i in call.outputs:
            if i is None:
                continue
            storage = table.tensors[i].storage
            last_on[storage] = i
            aliased = [j for j in present if table.tensors[j].storage == storage and j != i]
            if aliased and i not in base_of:
                base_of[i] = aliased[0]
        if id(call) in computing:
            for i in present:
                visited = {i}
                while i in base_of and base_of[i] not in visited:
                    i = base_of[i]
                    visited.add(i)
                if table.tensors[i].storage not in own_storages:
                    inputs.setdefault(i)
    output_storages = {table.tensors[i].storage for call in computing_calls for i in _present(call.outputs)}
    return Operands(tuple(inputs), tuple(i for storage, i in last_on.items() if storage in output_storages), {})


def _present(slots: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(i for i in slots if i is not None)


def _computes(call: TreeCall, nodes: Mapping[int, CallNode]) -> bool:
    """Return whether ``call`` is an outermost operator inside its top-level call's autograd nodes, and not a view."""
    if not _is_operator(call.node) or call_kind(call.node.name) in LOOKING:
        return False
    node = nodes.get(call.node.parent)
    while node is not None:
        if _is_operator(node):
            return False
        node = nodes.get(node.parent)
    return True


def _is_operator(node: CallNode) -> bool:
    return node.schema != "" or bool(node.output_tensors())
