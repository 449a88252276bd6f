"""Storages for tensors on PyTorch's ``meta`` device, which has no memory: the observer gives them all one number.

Without addresses, trine infers shared memory from the calls. In-place outputs keep their storage. Views return the
storage of their first input. Every other result is new. A tensor that no call made was saved by autograd: it has the
storage of the tensor with its shape among the inputs and outputs of the forward call with its number.
"""

from __future__ import annotations

from collections.abc import Callable

from trine.workload.analysis.aten_schema import VIEWS
from trine.workload.pytorch.execution_trace import CallNode, TensorRef
from trine.workload.raw_trace import call_kind

#: Calls that return a view of their first input.
_ALIASES = VIEWS | {
    "t", "transpose", "permute", "expand", "expand_as", "as_strided", "detach", "alias", "select", "slice", "narrow",
    "split", "split_with_sizes", "chunk", "unbind", "movedim", "swapaxes", "view_as", "numpy_T", "lift_fresh", "unfold",
}  # fmt: skip


def separate(nodes: list[CallNode]) -> None:
    """Give each meta tensor of a trace a separate storage, in place; other tensors stay. ``nodes``: all, by id."""
    refs = [ref for node in nodes for ref in (*node.input_tensors(), *node.output_tensors())]
    if any(ref.is_meta for ref in refs):
        _Storages(1 + max(ref.storage for ref in refs)).walk(nodes[0])


class _Storages:
    """Storage of each tensor id as calls begin and end."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._storage: dict[int, int] = {}
        self._made_at: dict[int, int] = {}  # tensor id -> when a call last made it
        self._saved: dict[int, list[TensorRef]] = {}  # autograd's sequence number -> tensors of its forward call
        self._clock = 0

    def walk(self, root: CallNode) -> None:
        """Walk depth first without recursion; set inputs when a call begins and outputs when it ends."""
        stack = [(root, 0, self._begin(root, -1), -1)]
        while stack:
            node, place, clock, sequence = stack.pop()
            if place == len(node.children):
                self._end(node, clock)
                continue
            child = node.children[place]
            number = child.seq_id if child.seq_id >= 0 else sequence
            stack += [(node, place + 1, clock, sequence), (child, 0, self._begin(child, number), number)]

    def _begin(self, node: CallNode, sequence: int) -> int:
        self._clock += 1
        node.inputs = _mapped(node.inputs, lambda ref: self._as_input(ref, sequence))
        return self._clock

    def _as_input(self, ref: TensorRef, sequence: int) -> TensorRef:
        if ref.id not in self._storage:
            candidates = self._saved.get(sequence, ())
            saved = next((each for each in candidates if (each.shape, each.dtype) == (ref.shape, ref.dtype)), None)
            self._storage[ref.id] = self._new() if saved is None else saved.storage
        return ref._replace(storage=self._storage[ref.id])

    def _end(self, node: CallNode, begun: int) -> None:
        inputs = [ref for ref in node.input_tensors() if ref.is_meta]
        looks = call_kind(node.name) in _ALIASES and bool(inputs)

        def output(ref: TensorRef) -> TensorRef:
            is_inner = self._made_at.get(ref.id, -1) >= begun
            if not is_inner and all(ref.id != each.id for each in inputs):
                self._storage[ref.id] = inputs[0].storage if looks else self._new()
                self._made_at[ref.id] = self._clock
            return ref._replace(storage=self._storage.setdefault(ref.id, ref.storage))

        node.outputs = _mapped(node.outputs, output)
        if node.seq_id >= 0 and not node.name.startswith("autograd::"):
            outputs = [ref for ref in node.output_tensors() if ref.is_meta]
            self._saved[node.seq_id] = [*outputs, *inputs]

    def _new(self) -> int:
        self._next += 1
        return self._next


def _mapped(values: list[object], change: Callable[[TensorRef], TensorRef]) -> list[object]:
    """Return the values with every meta tensor changed, including tensors in lists."""
    mapped: list[object] = []
    for value in values:
        if isinstance(value, list):
            items = []
            for item in value:
                items.append(change(item) if isinstance(item, TensorRef) and item.is_meta else item)
            mapped.append(items)
        else:
            mapped.append(change(value) if isinstance(value, TensorRef) and value.is_meta else value)
    return mapped
