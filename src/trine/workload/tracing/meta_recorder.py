"""Record the calls of a PyTorch step on the ``meta`` device, where tensors have shapes and no memory.

PyTorch's execution trace observer also records meta tensors, but PyTorch computes most of their shapes in Python, and
the observer lists each call of that code: 64,000 calls for Llama 3 8B instead of 13,000. The recorder asks PyTorch
itself. A function mode reports the calls that the user's code makes (``linear``), a dispatch mode the operators that
they become (``t``, ``mm``), and autograd names the backward node that runs. The result is the tree of calls that
:mod:`trine.workload.pytorch.execution_trace` reads from the observer's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from trine.errors import InputError
from trine.workload.pytorch.execution_trace import CallNode, TensorRef
from trine.workload.raw_trace import AUTOGRAD
from trine.workload.tracing.meta_autocast import Autocast
from trine.workload.tracing.meta_devices import Devices
from trine.workload.tracing.module_paths import ModulePaths
from trine.workload.tracing.user_code import user_line

_ACCUMULATE = "torch::autograd::AccumulateGrad"
#: Functions whose operator in PyTorch's library has another name.
_OPERATOR_OF = {
    "cross_entropy": "cross_entropy_loss",
    **dict.fromkeys(("float", "half", "bfloat16", "double", "long", "int", "bool", "type", "cuda", "cpu"), "to"),
}
#: Operators that make an optimizer's states in its first step.
_STATE_MAKERS = frozenset({"aten::zeros_like", "aten::zeros", "aten::full_like"})
#: An argument that the caller left out, as the observer writes it.
_NONE = "<None>"


@dataclass(slots=True)
class FunctionCall:
    """A function of PyTorch's interface under way; ``node`` is its call, None until an operator runs inside it."""

    name: str | None
    schema: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    node: CallNode | None = None


class Recorder:
    """Records calls while ``is_on``; ``nodes`` are the calls by id, parents before children.

    torch: the imported module. devices: decides where tensors live, and how attention runs. autocast: casts arguments.
    modules: names the module that calls.
    """

    def __init__(self, torch: Any, devices: Devices, autocast: Autocast, modules: ModulePaths) -> None:
        self._torch = torch
        self._devices = devices
        self._autocast = autocast
        self._modules = modules
        self.is_on = False  # until start()
        self.nodes: list[CallNode] = []
        self._annotations: list[CallNode] = []
        self._functions: list[FunctionCall] = []
        self._bodies: dict[Any, Any] = {}
        self._entered: list[Any] = [None]  # Python functions under way
        self._backward: tuple[Any, CallNode] | None = None  # autograd's node and its call
        self._sequence = 0
        self._storages: list[Any] = []  # keeps them alive, so that no two storages have one address
        self._storage_numbers: dict[int, int] = {}
        self._forms: dict[tuple[Any, ...], int] = {}
        self._dtypes: dict[Any, str] = {}
        self._schemas: dict[Any, Signature] = {}
        self._chosen: dict[tuple[str, int, tuple[str, ...]], Any] = {}

    def start(self) -> None:
        """Record from here on, and forget what was recorded before."""
        root = CallNode(1, "step", 1, 0, -1, 1, 0, True, "", [], [])
        self.nodes, self._annotations, self._backward = [root], [root], None
        self._sequence = self._torch._C._autograd._get_sequence_nr()
        self.is_on = True

    # The user's functions.

    def function(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of PyTorch's interface; it becomes one call if PyTorch's library has an operator for it."""
        function, args, kwargs = self._devices.on_meta(function, args, kwargs)
        if self._autocast.is_on:
            with mode:  # the casts are calls too
                args, kwargs = self._autocast.cast(getattr(function, "__name__", ""), args, kwargs)
        if type(function) is FunctionType and self._entered[-1] is not function:
            self._entered.append(function)
            try:
                with mode:
                    return self._body(function)(*args, **kwargs)
            finally:
                self._entered.pop()
        run = self._devices.kernel_for(function, args, kwargs)
        if not self.is_on:
            return run()
        name, schema = self._operator(function, args, kwargs)
        call = FunctionCall(name, schema, args, kwargs)
        self._functions.append(call)
        try:
            result = run()
        except (RuntimeError, TypeError) as error:
            self._check_values(error, str(name or getattr(function, "__name__", "a call")))
            raise
        finally:
            self._functions.pop()
        if call.node is not None and not call.node.outputs:
            call.node.outputs = [self._values(result)] if isinstance(result, list) else self._outputs(result)
        return result

    def _body(self, function: FunctionType) -> Any:
        """Return a Python function of PyTorch that runs under the mode, instead of asking the mode again.

        Its own checks ask whether a mode is active, and would return to this recorder without end.
        """
        body = self._bodies.get(function)
        if body is None:
            space = self._bodies.get(id(function.__globals__))
            if space is None:
                space = dict(function.__globals__)
                space.update({name: _never for name in space if name.startswith("has_torch_function")})
                self._bodies[id(function.__globals__)] = space
            body = FunctionType(
                function.__code__, space, function.__name__, function.__defaults__, function.__closure__
            )
            body.__kwdefaults__ = function.__kwdefaults__
            self._bodies[function] = body
        return body

    def _operator(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str | None, Any]:
        """Return the name and the schema of the operator that a function calls; None for attributes and indexing."""
        name = getattr(function, "__name__", "")
        name = _OPERATOR_OF.get(name, name)
        key = (name, len(args), tuple(kwargs))
        if key not in self._chosen:
            packet = None if name.startswith("__") else getattr(self._torch.ops.aten, name, None)
            self._chosen[key] = None if packet is None else self._overload(packet, args, kwargs)
        schema = self._chosen[key]
        return (None, None) if schema is None else (schema.name, schema)

    def _overload(self, packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the schema of the first overload with these arguments; None without any overload."""
        schemas = [getattr(packet, name)._schema for name in packet.overloads()]
        for schema in schemas:
            names = {argument.name for argument in schema.arguments if not argument.is_out}
            if len(args) <= len(schema.arguments) and names.issuperset(kwargs):
                return schema
        return schemas[0] if schemas else None

    # PyTorch's operators.

    def operator(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and record its call; one without a meta tensor runs on the CPU and is no call."""
        with self._torch._C.DisableTorchFunction():
            name = function._schema.name
            if name.startswith("profiler::"):
                return self._annotate(name, function, args, kwargs)
            if not self.is_on:
                return self._run(function, name, args, kwargs)
            is_new = self._is_differentiated()
            schema = self._schema_of(function._schema)
            inputs = self._arguments(schema, args, kwargs)
            result = self._run(function, name, args, kwargs)
            outputs = self._outputs(result)
            if self._is_no_call(name) or not any(_has_meta(value) for value in (*inputs, *outputs)):
                return result
            node = self._add(name, schema.text, inputs, outputs, self._parent(name, inputs))
            node.seq_id = self._sequence - 1 if is_new else -1
            return result

    def _is_no_call(self, name: str) -> bool:
        """Return whether an operator is no call of the user's: a saved tensor detached, or a state's first value."""
        if name == "aten::detach":
            node = self._torch._C._current_autograd_node()
            is_kept = node is not None and node.name() == _ACCUMULATE
            return not is_kept and not (self._functions and self._functions[-1].name == name)
        return name in _STATE_MAKERS and any(each.name.startswith("Optimizer.step") for each in self._annotations)

    def _run(self, function: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            self._check_values(error, name)
            raise

    def _check_values(self, error: RuntimeError | TypeError, name: str) -> None:
        """Raise InputError, of one line, for an operator that fails on the meta device alone.

        It needs values, which meta tensors lack, or one of its tensors is on the CPU.
        """
        text = str(error).lower()
        if "meta" not in text and not isinstance(error, NotImplementedError):
            return
        name = "aten::item" if name == "aten::_local_scalar_dense" else name
        if "expected device" in text or "same device" in text:
            message = "has a tensor on the CPU and one on meta: move data to the model's device in the step"
        else:
            message = (
                "needs the values of a tensor, which meta tensors lack: take it out of the step (logging, checks for "
                "NaN, a data loader, a loss scaler), or capture with device cpu or cuda"
            )
        raise InputError(f"{user_line()}: {name} {message}") from error

    def _is_differentiated(self) -> bool:
        """Return whether autograd has made a node for the operator that now runs: its counter has risen."""
        before = self._sequence
        self._sequence = self._torch._C._autograd._get_sequence_nr()
        return bool(self._sequence > before)

    def _annotate(self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Open or close the annotation of a ``record_function`` block."""
        if self.is_on and "enter" in name:
            above = self._annotations[-1]
            self._annotations.append(self._add(str(args[0]), "", [], [], above))
            self._annotations[-1].annotation = True
        elif self.is_on and "exit" in name and len(self._annotations) > 1:
            self._annotations.pop()
        return function(*args, **kwargs)

    # The tree of calls.

    def _add(self, name: str, schema: str, inputs: list[object], outputs: list[object], parent: CallNode) -> CallNode:
        number = len(self.nodes) + 1
        node = CallNode(number, name, parent.id, number, -1, 1, 0, False, schema, inputs, outputs)
        node.module = self._modules.path
        self.nodes.append(node)
        parent.children.append(node)
        return node

    def _parent(self, name: str, inputs: list[object]) -> CallNode:
        """Return the call around an operator: a function's, a backward node's, or an annotation."""
        parent = self._backward_node(inputs) or self._annotations[-1]
        call = next((each for each in reversed(self._functions) if each.name is not None), None)
        if call is None or (call.node is None and call.name == name):
            return parent
        if call.node is None:
            schema = self._schema_of(call.schema)
            arguments = self._arguments(schema, call.args, call.kwargs)
            call.node = self._add(schema.name, schema.text, arguments, [], parent)
        return call.node

    def _backward_node(self, inputs: list[object]) -> CallNode | None:
        """Return the call of the backward node that now runs, None outside the backward pass."""
        node = self._torch._C._current_autograd_node()
        if node is None:
            self._backward = None
            return None
        if self._backward is None or self._backward[0] is not node:
            name = node.name()
            outer = self._add(AUTOGRAD + name, "", [], [], self._annotations[-1])
            inner = self._add(name, "", [], [], outer)
            if name == _ACCUMULATE:
                inner.inputs = inputs[-1:] if len(inputs) == 2 else inputs[:1]  # add_(gradient, incoming), or detach
            else:
                outer.seq_id = inner.seq_id = node._sequence_nr()
            self._backward = node, inner
        return self._backward[1]

    # Arguments and tensors.

    def _schema_of(self, schema: Any) -> Signature:
        key = (schema.name, schema.overload_name)
        known = self._schemas.get(key)
        if known is None:
            arguments = tuple(
                Argument(each.name, each.default_value, each.N or 0) for each in schema.arguments if not each.is_out
            )
            known = self._schemas[key] = Signature(schema.name, str(schema), arguments)
        return known

    def _arguments(self, schema: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[object]:
        """Return the arguments by position in the schema, as the observer writes them; defaults are filled in."""
        arguments = schema.arguments
        if len(args) > len(arguments):  # x.reshape(2, 3) for x.reshape((2, 3))
            args = (*args[: len(arguments) - 1], list(args[len(arguments) - 1 :]))
        given = (*args, *(kwargs.get(each.name, each.default) for each in arguments[len(args) :]))
        return [
            [value] * argument.length if argument.length and isinstance(value, int) else self._value(value)
            for argument, value in zip(arguments, given, strict=True)
        ]

    def _outputs(self, result: Any) -> list[object]:
        return [self._value(each) for each in result] if isinstance(result, tuple) else self._values((result,))

    def _values(self, items: Iterable[Any]) -> list[object]:
        return [self._value(item) for item in items if item is not None]

    def _value(self, value: Any) -> object:
        if isinstance(value, self._torch.Tensor):
            return self._tensor(value)
        if value is None:
            return _NONE
        if isinstance(value, list | tuple):
            return [self._value(item) for item in value]
        return value if isinstance(value, bool | int | float | str) else str(value)

    def _tensor(self, tensor: Any) -> TensorRef:
        """Return a tensor with numbers in the order of appearance; views of one memory in one form are one tensor."""
        storage = tensor.untyped_storage()
        number = self._storage_numbers.get(storage._cdata)
        if number is None:
            number = self._storage_numbers[storage._cdata] = len(self._storage_numbers) + 1
            self._storages.append(storage)
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None:
            dtype = self._dtypes[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        offset, shape = tensor.storage_offset(), tuple(tensor.shape)
        form = (number, offset, shape, tensor.stride(), dtype)
        id_number = self._forms.setdefault(form, len(self._forms) + 1)
        return TensorRef(id_number, number, offset, shape, dtype, tensor.nbytes, tensor.is_meta)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an operator; ``length``: numbers in a list that one number may stand for (a stride), else 0."""

    name: str
    default: Any
    length: int


@dataclass(frozen=True, slots=True)
class Signature:
    """Signature of an operator: its text, and its arguments without outputs."""

    name: str
    text: str
    arguments: tuple[Argument, ...]


def _has_meta(value: object) -> bool:
    if isinstance(value, list):
        return any(isinstance(item, TensorRef) and item.is_meta for item in value)
    return isinstance(value, TensorRef) and value.is_meta


def _never(*_: object) -> bool:
    return False


def make_modes(recorder: Recorder) -> tuple[Any, Any]:
    """Return the function mode and the dispatch mode that report to ``recorder``, both not yet entered."""

    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            return recorder.function(self, function, args, dict(kwargs or {}))

    class Operators(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            return recorder.operator(function, args, dict(kwargs or {}))

    return Functions(), Operators()
