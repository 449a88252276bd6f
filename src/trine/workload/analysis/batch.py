"""Batch dimensions of each tensor, found by carrying layouts from the input data through the calls."""

from __future__ import annotations

from collections.abc import Mapping

from trine.graph.workload import BACKWARD, OPTIMIZER
from trine.workload.analysis.aten_schema import MAKERS
from trine.workload.analysis.shape_rules import (
    RULES,
    Layout,
    OperatorCall,
    batch_dims,
    default,
    has_batch,
    plain,
    reshape,
    seeded,
    shape_of,
)
from trine.workload.analysis.tensor_roles import Roles
from trine.workload.raw_trace import RawCall, RawTrace

_FILLED = frozenset({"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full"})
_FIXED = frozenset({"weight", "buffer", "table", "gradient", "optimizer_state"})


class Layouts:
    """Layouts of all tensors of a raw trace, found in one pass over its calls."""

    def __init__(
        self, raw: RawTrace, roles: Roles, seeds: Mapping[int, int], batch: int, links: tuple[int | None, ...]
    ) -> None:
        self._raw = raw
        self._roles = roles
        self._links = links
        self._batch = batch
        self._known: dict[int, Layout] = {}
        self._weak: set[int] = set()
        self._holder: dict[int, int] = {}  # storage -> the tensor that last described it
        for tensor, dim in seeds.items():
            self._set(tensor, seeded(raw.tensors[tensor].shape, dim, batch))
        for call in raw.calls:
            if call.phase != OPTIMIZER:  # no output of the optimizer scales with the batch
                self._visit(call)

    def batch_dims(self, tensor: int) -> tuple[int, ...]:
        """Return the batch dimensions of ``tensor``: () if its role never scales or its layout is unknown."""
        if self._roles.of(self._raw, tensor) in _FIXED or not self._raw.tensors[tensor].size_bytes:
            return ()
        layout = self._known.get(tensor)
        return batch_dims(layout) if layout is not None else ()

    def _set(self, tensor: int, layout: Layout) -> None:
        self._known[tensor] = layout
        self._holder[self._raw.tensors[tensor].storage] = tensor

    def _visit(self, call: RawCall) -> None:
        tensors = self._raw.tensors
        inputs = tuple(None if i is None else self._input(i, call) for i in call.inputs)
        if not call.outputs:
            return
        if call.kind in MAKERS and (call.inner or not call.inputs):
            self._made(call)
            return
        outputs = tuple(None if i is None else tensors[i].shape for i in call.outputs)
        operator = OperatorCall(inputs, outputs, call.values, self._batch)
        rule = RULES.get(call.kind)
        ruled = rule(operator) if rule is not None else [None] * len(outputs)
        fallback = None
        doubtful = any(i in self._weak for i in call.inputs if i is not None)
        for place, tensor in enumerate(call.outputs):
            if tensor is None:
                continue
            layout = ruled[place] if place < len(ruled) else None
            strong = layout is not None and shape_of(layout) == tensors[tensor].shape
            known = self._known.get(tensor)
            if known is not None and tensor not in self._weak:
                continue
            if not strong:
                fallback = fallback or default(operator)
                layout = fallback[place]
                if known is not None and (layout is None or batch_dims(known) or not batch_dims(layout)):
                    continue  # one guess against another: only one that finds the batch is better
                self._weak.add(tensor)
            elif doubtful:
                self._weak.add(tensor)
            else:
                self._weak.discard(tensor)
            if layout is not None:
                self._set(tensor, layout)

    def _made(self, call: RawCall) -> None:
        """Give new memory the layout of an input with its shape, or the batch at the one dimension of that size.

        The second case covers the zeros of a recurrent network's first state.
        """
        like = [self._known[i] for i in call.inputs if i is not None and i in self._known]
        for tensor in call.outputs:
            if tensor is None or (tensor in self._known and tensor not in self._weak):
                continue
            shape = self._raw.tensors[tensor].shape
            layout = next((layout for layout in like if shape_of(layout) == shape), None)
            alone = len(shape) > 1 and self._batch > 1 and shape.count(self._batch) == 1
            if layout is None and alone and call.kind in _FILLED and not call.inner:
                layout = seeded(shape, shape.index(self._batch), self._batch)
            if layout is not None:
                self._set(tensor, layout)
                self._weak.add(tensor)

    def _input(self, tensor: int, call: RawCall) -> Layout:
        layout = self._known.get(tensor)
        if layout is not None:
            if tensor in self._weak and not batch_dims(layout) and (better := self._saved(tensor, call)) is not None:
                self._set(tensor, better)  # the gradient of a sum is an expanded scalar: its consumer knows its shape
                return better
            return layout
        shape = self._raw.tensors[tensor].shape
        if self._roles.of(self._raw, tensor) in _FIXED:
            return plain(shape)
        layout = self._alias(tensor) or self._saved(tensor, call)
        if layout is None:
            layout = plain(shape)
            self._weak.add(tensor)
        self._set(tensor, layout)
        return layout

    def _alias(self, tensor: int) -> Layout | None:
        """Return the layout for a view that the trace does not list: its storage's contents, reshaped or permuted."""
        holder = self._holder.get(self._raw.tensors[tensor].storage)
        if holder is None:
            return None
        layout, shape = self._known[holder], self._raw.tensors[tensor].shape
        if sorted(shape) == sorted(shape_of(layout)) and shape != shape_of(layout):
            rest = list(layout)
            order = [rest.pop(next(i for i, d in enumerate(rest) if shape_of((d,)) == (size,))) for size in shape]
            return tuple(order)
        return reshape(layout, shape)

    def _saved(self, tensor: int, call: RawCall) -> Layout | None:
        """Return the layout of an unlisted backward input: a saved tensor or a gradient of its forward operator."""
        if call.phase != BACKWARD or call.operator is None or (link := self._links[call.operator]) is None:
            return None
        shape = self._raw.tensors[tensor].shape
        forward = self._raw.operators[link]
        for other in (*forward.outputs, *forward.inputs):
            layout = self._known.get(other)
            if layout is not None and shape_of(layout) == shape and any(map(has_batch, layout)):
                return layout
        return None
