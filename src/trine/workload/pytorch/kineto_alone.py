"""Tensors for a profiler trace without its execution trace: shapes are known, identities are not.

The profiler writes the shapes of each call's inputs. :data:`ASSUMED` states the assumptions that replace the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trine.common.precision import ITEM_BYTES, TORCH_DTYPES
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER
from trine.workload.analysis.aten_schema import BUFFER_POSITIONS, LOSSES, WEIGHT_POSITIONS
from trine.workload.pytorch.kineto import CpuOp, Kineto
from trine.workload.raw_trace import AUTOGRAD, RawCall, RawTensor, call_kind

ASSUMED = (
    "there is no execution trace: inputs were matched to earlier outputs by shape, the latest first",
    "each weight that a call reads counts as a separate parameter",
    "output shapes come from autograd's gradients or, without a backward pass, from the inputs",
    "optimizer operators read tensors of the recorded shapes that are not tied to the weights",
)
MISSING = ("execution trace (identities of tensors, output shapes)", "dtypes of tensor lists (float32 assumed)")

Typed = tuple[tuple[int, ...], str]


def input_shapes(op: CpuOp) -> list[Typed]:
    """Return the shape and dtype of each tensor input of ``op``, lists of tensors flattened."""
    dims, types = op.args.get("Input Dims"), op.args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    shapes: list[Typed] = []
    for shape, type_ in zip(dims, types, strict=False):
        if not isinstance(shape, list) or not isinstance(type_, str):
            continue
        if type_ == "TensorList":
            shapes += [(tuple(s), "float32") for s in shape if isinstance(s, list) and _are_sizes(s)]
        elif (type_ in TORCH_DTYPES or type_.startswith("c10::")) and _are_sizes(shape):
            shapes.append((tuple(shape), TORCH_DTYPES.get(type_) or type_.rpartition("::")[2].lower()))
    return shapes


def _are_sizes(shape: list[object]) -> bool:
    return all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape)


class Guesses:
    """Guessed operands of a step's operators, found in one pass in the order of the calls."""

    def __init__(self, kineto: Kineto, rows: list[int], phases: Mapping[int, str], links: Mapping[int, int]) -> None:
        self.tensors: dict[int, RawTensor] = {}
        self.calls: list[RawCall] = []
        self._latest: dict[tuple[str, Typed], int] = {}  # (phase, shape and dtype) -> tensor
        self._inner = _first_operators(kineto, rows)
        received = _received(kineto, links)
        self._operands: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for place, index in enumerate(rows):
            phase = phases[index]
            if phase == FORWARD:
                following = next((self._inner[i] for i in rows[place + 1 :] if phases[i] == FORWARD), None)
                self._forward(kineto.ops[index], index, place, received.get(place), following)
            elif phase == BACKWARD:
                forward = rows[links[index]] if index in links else None
                self._backward(index, place, forward)
            else:
                inputs = [self._new(shape) for shape in input_shapes(self._inner[index])]
                self._operands[index] = (tuple(inputs), ())
                self.calls.append(RawCall("optimizer", tuple(inputs), (), OPTIMIZER, place))

    def operands(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the inputs and outputs of the outermost call ``index``."""
        return self._operands[index]

    def _new(self, typed: Typed, storage: int | None = None) -> int:
        shape, dtype = typed
        number = len(self.tensors) + 1
        size = math.ceil(math.prod(shape) * ITEM_BYTES.get(dtype, 1))
        self.tensors[number] = RawTensor(number, shape, dtype, size, storage or number)
        return number

    def _find(self, shape: Typed, phases: tuple[str, ...]) -> int | None:
        for phase in phases:
            tensor = self._latest.get((phase, shape))
            if tensor is not None:
                return tensor
        return None

    def _record(self, index: int, place: int, kind: str, phase: str, ins: list[int], outs: list[int]) -> None:
        self._operands[index] = (tuple(ins), tuple(outs))
        self.calls.append(RawCall(kind, tuple(ins), tuple(outs), phase, place))
        for tensor in outs:
            self._latest[phase, (self.tensors[tensor].shape, self.tensors[tensor].dtype)] = tensor

    def _forward(self, op: CpuOp, index: int, place: int, output: Typed | None, following: CpuOp | None) -> None:
        kind, shapes = call_kind(op.name), input_shapes(op)
        stored = (*WEIGHT_POSITIONS.get(kind, ()), *BUFFER_POSITIONS.get(kind, ()))
        inputs: list[int] = []
        for position, shape in enumerate(shapes):
            tensor = None if position in stored else (self._find(shape, (FORWARD,)) or self._view(shape))
            inputs.append(tensor if tensor is not None else self._new(shape))
        if op.name.endswith("_") and inputs:
            outputs = [inputs[0]]
        else:
            guess = _output(kind, shapes, output, following)
            outputs = [self._new(guess)] if guess is not None else []
        self._record(index, place, kind, FORWARD, inputs, outputs)

    def _view(self, wanted: Typed) -> int | None:
        """Return a view of the latest output with the same number of elements, or None."""
        for (phase, (shape, dtype)), tensor in reversed(self._latest.items()):
            if phase == FORWARD and dtype == wanted[1] and math.prod(shape) == math.prod(wanted[0]) > 1:
                return self._new(wanted, self.tensors[tensor].storage)
        return None

    def _backward(self, index: int, place: int, forward: int | None) -> None:
        op = self._inner[index]
        saved = self._operands.get(forward, ((), ())) if forward is not None else ((), ())
        inputs: list[int] = []
        for shape in input_shapes(op):
            match = self._find(shape, (BACKWARD,)) if not inputs else None
            match = match or next((i for i in (*saved[0], *saved[1]) if self._typed(i) == shape), None)
            inputs.append(match or self._find(shape, (BACKWARD, FORWARD)) or self._new(shape))
        outputs = [self._new(self._typed(i)) for i in saved[0] if self.tensors[i].dtype.startswith(("float", "bfloat"))]
        if forward is None:
            outputs = [self._new(self._typed(i)) for i in inputs[:1]]
        self._record(index, place, call_kind(op.name), BACKWARD, inputs, outputs)

    def _typed(self, tensor: int) -> Typed:
        return self.tensors[tensor].shape, self.tensors[tensor].dtype


def _output(kind: str, shapes: list[Typed], received: Typed | None, following: CpuOp | None) -> Typed | None:
    """Guess a forward call's output by its kind, else from its backward node's input, else from the next call's."""
    if not shapes:
        return None
    (shape, dtype), weight = shapes[0], shapes[1][0] if len(shapes) > 1 else ()
    if kind in LOSSES:
        return (), dtype
    if kind == "linear" and weight:
        return (*shape[:-1], weight[0]), dtype
    if kind == "embedding" and shape:
        return (*weight, shape[-1]), dtype
    if received is not None:
        return received
    later = input_shapes(following) if following is not None and ("conv" in kind or "pool" in kind) else []
    return later[0] if later else (shape, dtype)


def _received(kineto: Kineto, links: Mapping[int, int]) -> dict[int, Typed]:
    """Return forward operator -> the gradient that its backward node received, with the shape of its output."""
    result: dict[int, Typed] = {}
    for op in kineto.ops:
        node = op.parent
        if node is None or node not in links or kineto.ops[node].name != AUTOGRAD + op.name:
            continue
        shapes = input_shapes(op)
        if shapes:
            result.setdefault(links[node], shapes[0])
    return result


def _first_operators(kineto: Kineto, rows: list[int]) -> dict[int, CpuOp]:
    """Return each outermost call itself; for an autograd node, its inner call with most inputs, the first if equal."""
    result = {index: kineto.ops[index] for index in rows}
    for op in kineto.ops:
        node = op.parent
        parent = kineto.ops[node] if node is not None else None
        outer = parent.parent if parent is not None else None
        for index in (node, outer):
            if index is None or index not in result or not op.name.startswith("aten::"):
                continue
            shapes = input_shapes(result[index])
            if kineto.ops[index].name.startswith(AUTOGRAD) and len(input_shapes(op)) > len(shapes):
                result[index] = op
    return result
