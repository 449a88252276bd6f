"""Operators that do the same: of one name, on tensors of the same shapes. A model's layers are alike."""

from __future__ import annotations

from trine.graph.workload import Operator, Workload


class Alike:
    """Names, for each operator of a workload, the first one whose work is the same under any split."""

    def __init__(self, workload: Workload) -> None:
        self._tensors = workload.tensors
        self._by_id = {op.id: op for op in workload.operators}
        self._alike: dict[object, int] = {}
        self._first: dict[int, int] = {}
        self._shapes_of: dict[int, tuple[object, ...]] = {}
        self._facts_of: dict[int, int | None] = {}
        self._numbers: dict[object, int] = {}

    def forward_of(self, operator: Operator) -> Operator | None:
        """The operator whose gradient ``operator`` computes."""
        return None if operator.forward_id is None else self._by_id.get(operator.forward_id)

    def first(self, operator: Operator) -> int:
        """The id of the first operator of the same name on tensors of the same shapes."""
        found = self._first.get(operator.id)
        if found is None:
            forward = self.forward_of(operator)
            key = self._shapes(operator), None if forward is None else self._shapes(forward)
            found = self._first[operator.id] = self._alike.setdefault(key, operator.id)
        return found

    def _shapes(self, operator: Operator) -> tuple[object, ...]:
        """All that the work of an operator depends on, which of its tensors are the same one included."""
        found = self._shapes_of.get(operator.id)
        if found is not None:
            return found
        number: dict[int, int] = {}
        sizes: list[object] = []
        for tensor in (*operator.inputs, *operator.outputs):
            facts = self._facts(tensor)
            if facts is not None:
                sizes += number.setdefault(tensor, len(number)), facts
        attributes = tuple(sorted((name, repr(value)) for name, value in operator.attributes.items()))
        shapes = operator.name, operator.phase, len(operator.inputs), tuple(sizes), attributes
        self._shapes_of[operator.id] = shapes
        return shapes

    def _facts(self, tensor: int) -> int | None:
        """A number for the shape, type and role of a tensor, the same for tensors alike; None for an unknown one."""
        if tensor not in self._facts_of:
            t = self._tensors.get(tensor)
            what = None if t is None else (t.shape, t.dtype, t.size_bytes, t.role, t.batch_dims)
            self._facts_of[tensor] = None if what is None else self._numbers.setdefault(what, len(self._numbers))
        return self._facts_of[tensor]
