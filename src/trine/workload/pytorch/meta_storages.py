"""Storages for tensors on PyTorch's ``meta`` device, which has no memory: the observer gives them all one number.

Without addresses, what shares memory follows from the calls: what a call writes in place keeps its storage, what a call
that only looks at memory returns has that of its first input, every other result is new. A tensor that no call made is
what autograd saved: it has the storage of the tensor of that shape which the forward call of its number took or made.
"""

from __future__ import annotations

from collections.abc import Callable

from trine.workload.analysis.aten_schema import VIEWS
from trine.workload.pytorch.execution_trace import CallNode, TensorRef
from trine.workload.raw_trace import call_kind

#: Calls that return their first input, seen in another way.
_ALIASES = VIEWS | {
    "t", "transpose", "permute", "expand", "expand_as", "as_strided", "detach", "alias", "select", "slice", "narrow",
    "split", "split_with_sizes", "chunk", "unbind", "movedim", "swapaxes", "view_as", "numpy_T", "lift_fresh", "unfold",
}  # fmt: skip


def separate(nodes: list[CallNode]) -> None:
    """Give the meta tensors of a trace storages of their own, in place; other tensors stay. ``nodes``: all, by id."""
    refs = [ref for node in nodes for ref in (*node.input_tensors(), *node.output_tensors())]
    if any(ref.is_meta for ref in refs):
        _Storages(1 + max(ref.storage for ref in refs)).walk(nodes[0])


class _Storages:
    """What is known of each tensor id while calls begin and end."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._storage: dict[int, int] = {}
        self._made: dict[int, int] = {}  # tensor id -> when a call last made it
        self._saved: dict[int, list[TensorRef]] = {}  # autograd's sequence number -> tensors of its forward call
        self._clock = 0

    def walk(self, root: CallNode) -> None:
        """Depth first without recursion: inputs are settled when a call begins, outputs when it ends."""
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
        node.inputs = _mapped(node.inputs, lambda ref: self._taken(ref, sequence))
        return self._clock

    def _taken(self, ref: TensorRef, sequence: int) -> TensorRef:
        if ref.id not in self._storage:
            known = (each for each in self._saved.get(sequence, ()) if _alike(each, ref))
            saved = next(known, None)
            self._storage[ref.id] = self._new() if saved is None else saved.storage
        return ref._replace(storage=self._storage[ref.id])

    def _end(self, node: CallNode, begun: int) -> None:
        inputs = [ref for ref in node.input_tensors() if ref.is_meta]
        looks = call_kind(node.name) in _ALIASES and bool(inputs)

        def made(ref: TensorRef) -> TensorRef:
            inside = self._made.get(ref.id, -1) >= begun
            if not inside and all(ref.id != each.id for each in inputs):
                self._storage[ref.id] = inputs[0].storage if looks else self._new()
                self._made[ref.id] = self._clock
            return ref._replace(storage=self._storage.setdefault(ref.id, ref.storage))

        node.outputs = _mapped(node.outputs, made)
        if node.seq_id >= 0 and not node.name.startswith("autograd::"):
            outputs = [ref for ref in node.output_tensors() if ref.is_meta]
            self._saved[node.seq_id] = [*outputs, *inputs]

    def _new(self) -> int:
        self._next += 1
        return self._next


def _alike(first: TensorRef, second: TensorRef) -> bool:
    return (first.shape, first.dtype) == (second.shape, second.dtype)


def _mapped(values: list[object], change: Callable[[TensorRef], TensorRef]) -> list[object]:
    """The values with every meta tensor changed, lists of tensors included."""
    found: list[object] = []
    for value in values:
        if isinstance(value, list):
            found.append([change(each) if isinstance(each, TensorRef) and each.is_meta else each for each in value])
        else:
            found.append(change(value) if isinstance(value, TensorRef) and value.is_meta else value)
    return found
