"""A workload built layer by layer: forward operators first, then backward operators from rules recorded on the way.

Gradients are kept by storage. An in-place operator reads and writes one storage, so its rule takes the gradient of its
output and puts the gradient of its input in the same place, as autograd does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod

from trine.common.precision import ITEM_BYTES
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Parameter, Tensor
from trine.software.precision import CastRecipe, load_precision
from trine.software.profile import OperatorStyle, Software
from trine.workload.synthesis.adapters import NF4, Adapters
from trine.workload.synthesis.written_style import WrittenStyle

Shape = tuple[int, ...]
Names = Sequence[Tensor]
Attributes = Mapping[str, object]
#: Empty attributes, shared because nothing changes them.
NONE: Attributes = {}
#: Attributes of an operator that is part of another kernel.
FUSED: Attributes = {"passes": 0.0, "kernels": 0.0}


class Graph:
    """Operators, tensors and parameters of one training step under construction.

    dtype: of weights and activations; weight_dtype: of weights, if different (mixed precision). accumulates: whether
    the sum of two gradients of one tensor is an operator. product_attributes: of all convolutions and GEMMs.
    software: the profile that sets each operator's kernels and passes; None: fused, with one launch each.
    precision: the recipe that casts products; None: none are. adapters: the trained weights, beside frozen ones; None:
    all weights are trained.
    """

    def __init__(
        self, dtype: str, *, accumulates: bool, weight_dtype: str = "", product_attributes: Attributes = NONE,
        software: Software | None = None, precision: CastRecipe | None = None, adapters: Adapters | None = None,
    ) -> None:  # fmt: skip
        self.dtype = dtype
        self.weight_dtype = weight_dtype or dtype
        self.product_attributes = product_attributes
        self.software = software
        self.precision = precision
        self.adapters = adapters
        self.cast_weights: list[Tensor] = []  # trained weights of cast products
        self.targets: set[str] = set()  # targets of adapters that products of the model have
        self._cast: dict[int, Tensor] = {}  # tensor's id -> its cast
        self.style = None if software is None else WrittenStyle(software.operators, as_recorded=not accumulates)
        self.writes = OperatorStyle() if software is None else software.operators
        self.tensors: dict[int, Tensor] = {}
        self.operators: list[Operator] = []
        self.weights: dict[int, Tensor] = {}  # by tensor id, in the order of registration
        self.frozen: set[int] = set()  # tensor ids of weights without a gradient
        self.gradients: dict[int, Tensor] = {}  # weight's tensor id -> its gradient
        self._accumulates = accumulates
        self._made_by: dict[int, int] = {}  # weight's tensor id -> the last operator that adds to its gradient
        self._flowing: dict[int, Tensor] = {}  # storage -> partial gradient
        self._tape: list[tuple[int, Callable[[], None]]] = []
        self._trained: set[int] = set()  # storages that depend on an adapter, if there are adapters
        self._differentiated: set[int] = set()  # forward operators with such an output
        self._layers: dict[int, str] = {}
        self._numbers: Counter[str] = Counter()
        self._num_storages = 0

    # -- tensors -------------------------------------------------------------------------------------------------

    def tensor(
        self, shape: Shape, *, role: str = "activation", dtype: str | None = None, storage: int | None = None,
        batch_dims: Shape = (0,),
    ) -> Tensor:  # fmt: skip
        """Return a new tensor, in new memory unless ``storage`` is set."""
        if storage is None:
            self._num_storages += 1
            storage = self._num_storages
        dtype = dtype or self.dtype
        tensor = Tensor(
            id=len(self.tensors) + 1, shape=shape, dtype=dtype, size_bytes=ceil(prod(shape) * ITEM_BYTES[dtype]),
            storage=storage, role=role, batch_dims=batch_dims,
        )  # fmt: skip
        self.tensors[tensor.id] = tensor
        return tensor

    def like(self, tensor: Tensor) -> Tensor:
        """Return a new activation with the shape of ``tensor``."""
        return self.tensor(tensor.shape, dtype=tensor.dtype, batch_dims=tensor.batch_dims)

    def view(self, tensor: Tensor, shape: Shape) -> Tensor:
        """Return a view of the same memory in another shape, or of a part of it; the batch stays dimension 0."""
        return self.tensor(shape, role=tensor.role, dtype=tensor.dtype, storage=tensor.storage)

    def weight(self, *shape: int, is_adapter: bool = False, product: str = "") -> Tensor:
        """Return a new weight: trained, unless the graph trains adapters alone.

        product: the layer whose product reads the matrix; those of the model's layers may be stored in four bits.
        """
        is_frozen = self.adapters is not None and not is_adapter
        is_small = self.adapters is not None and self.adapters.is_four_bits and "layers." in product
        dtype = NF4 if is_small and is_frozen else self.weight_dtype
        weight = self.tensor(shape, role="weight", dtype=dtype, batch_dims=())
        self.weights[weight.id] = weight
        if is_frozen:
            self.frozen.add(weight.id)
        return weight

    def trains(self, weight: Tensor) -> bool:
        """Return whether a weight gets a gradient."""
        return weight.id not in self.frozen

    def reaches(self, tensor: Tensor) -> bool:
        """Return whether the gradient of an activation is needed: always, unless no adapter comes before it."""
        return self.adapters is None or tensor.storage in self._trained

    def trained(self) -> list[Tensor]:
        """Return all weights with a gradient, in the order of registration."""
        return [weight for weight in self.weights.values() if self.trains(weight)]

    def buffer(self, *shape: int, dtype: str = "float32") -> Tensor:
        """Return a new persistent tensor that is not trained."""
        return self.tensor(shape, role="buffer", dtype=dtype, batch_dims=())

    # -- operators -----------------------------------------------------------------------------------------------

    def forward(self, name: str, inputs: Names, outputs: Names, layer: str = "", attributes: Attributes = NONE) -> int:
        """Add a forward operator and return its id. The default ``layer`` is the operator's name and a number."""
        return self._add(name, FORWARD, inputs, outputs, layer or self.next_layer(name), None, attributes)

    def next_layer(self, name: str) -> str:
        """Return a new layer name for an operator: the operator's name and a number."""
        base = name.rsplit("::", 1)[-1].rstrip("_")
        self._numbers[base] += 1
        return f"{base}.{self._numbers[base]}"

    def backward(self, name: str, inputs: Names, outputs: Names, forward: int, attributes: Attributes = NONE) -> int:
        """Add a backward operator of operator ``forward`` and return its id."""
        return self._add(name, BACKWARD, inputs, outputs, self._layers[forward], forward, attributes)

    def optimizer(self, name: str, inputs: Names, outputs: Names = (), attributes: Attributes = NONE) -> None:
        """Add an operator of the optimizer step."""
        self._add(name, OPTIMIZER, inputs, outputs, "optimizer", None, attributes)

    def _add(
        self, name: str, phase: str, inputs: Names, outputs: Names, layer: str, forward: int | None,
        attributes: Attributes,
    ) -> int:  # fmt: skip
        if self.style is not None:
            attributes = {**self.style.attributes(name, "gradient_of" in attributes), **attributes}
        input_ids = [t.id for t in inputs]
        output_ids = [t.id for t in outputs]
        operator = Operator(
            id=len(self.operators) + 1, name=name, phase=phase, inputs=tuple(input_ids), outputs=tuple(output_ids),
            gpu_time_ps=0, forward_id=forward, layer=layer, attributes=attributes,
        )  # fmt: skip
        self.operators.append(operator)
        self._layers[operator.id] = layer
        if self.adapters is not None and phase == FORWARD:
            self._follow(operator, inputs, outputs)
        return operator.id

    def _follow(self, operator: Operator, inputs: Names, outputs: Names) -> None:
        """Note whether the outputs of a forward operator depend on an adapter."""
        trained = any(t.storage in self._trained or (t.id in self.weights and self.trains(t)) for t in inputs)
        if trained:
            self._trained.update(t.storage for t in outputs)
            self._differentiated.add(operator.id)

    # -- the backward pass ---------------------------------------------------------------------------------------

    def on_backward(self, forward: int, rule: Callable[[], None]) -> None:
        """Record the rule that adds the backward operators of operator ``forward``."""
        self._tape.append((forward, rule))

    def gives_back(
        self, forward: int, x: Tensor, out: Tensor, name: str, saved: Names = (), weights: Names = (),
        attributes: Attributes = NONE,
    ) -> Tensor:  # fmt: skip
        """Return ``out`` of operator ``forward``, whose backward operator ``name`` makes the gradient of ``x``.

        It reads the gradient of ``out`` and the tensors ``saved``, and adds to the gradients of ``weights``.
        """

        def backward() -> None:
            dy, dx = self.gradient(out), self.like(x)
            trained = [weight for weight in weights if self.trains(weight)]
            gradients = [self.weight_gradient(weight) for weight in trained]
            self.made(self.backward(name, (dy, *saved), (dx, *gradients), forward, attributes), *trained)
            self.give(x, dx, forward)

        self.on_backward(forward, backward)
        return out

    def gradient(self, tensor: Tensor) -> Tensor:
        """Remove and return the complete gradient of ``tensor``, so that another one can be added later."""
        gradient = self._flowing.pop(tensor.storage)
        return gradient if gradient.shape == tensor.shape else self.view(gradient, tensor.shape)

    def give(self, tensor: Tensor, gradient: Tensor, forward: int) -> None:
        """Add ``gradient``, made by the backward pass of operator ``forward``, to the gradient of ``tensor``."""
        if not self.reaches(tensor):
            return
        partial = self._flowing.get(tensor.storage)
        if partial is not None and self._accumulates:
            gradient = gradient if gradient.shape == partial.shape else self.view(gradient, partial.shape)
            total = self.like(partial)
            self.backward("aten::add", (partial, gradient), (total,), forward, {"accumulates": True})
            gradient = total
        self._flowing[tensor.storage] = gradient

    def weight_gradient(self, weight: Tensor) -> Tensor:
        """Return the tensor for the gradient of ``weight``, shared by all operators that use the weight."""
        gradient = self.gradients.get(weight.id)
        if gradient is None:
            dtype = "float32" if self.writes.gradient_dtype == "float32" else weight.dtype
            gradient = self.tensor(weight.shape, role="gradient", dtype=dtype, batch_dims=())
            self.gradients[weight.id] = gradient
        return gradient

    def made(self, operator: int, *weights: Tensor) -> None:
        """Record that ``operator`` adds to the gradients of ``weights``."""
        self._made_by.update({weight.id: operator for weight in weights})

    def run_backward(self) -> None:
        """Add all backward operators, last forward operator first; none before the first adapter."""
        for forward, rule in reversed(self._tape):
            if self.adapters is None or forward in self._differentiated:
                rule()

    # -- casts ---------------------------------------------------------------------------------------------------

    def casts(self, weight: Tensor, layer: str) -> CastRecipe | None:
        """Return the recipe that casts the product of a weight, whose last two dimensions are its rows and columns.

        Small products stay in 16 bits, and so do those outside layers, except for a head that the profile casts.
        """
        recipe = self.precision
        is_head = layer == "head" and self.is_cast_by(self.writes.head_casts)
        is_cast = (is_head or "layers." in layer) and len(weight.shape) > 1
        return recipe if recipe is not None and is_cast and recipe.takes(*weight.shape[-2:]) else None

    def is_cast_by(self, precisions: Sequence[str]) -> bool:
        """Return whether the graph's recipe is one of ``precisions``."""
        return self.precision is not None and any(self.precision is load_precision(name) for name in precisions)

    @property
    def fuses_experts(self) -> bool:
        """Whether the GEMMs of experts apply the activation and cast its result, and so do their backward GEMMs."""
        return self.is_cast_by(self.writes.grouped_mlp)

    def cast(self, x: Tensor, recipe: CastRecipe, layer: str, attributes: Attributes = NONE) -> Tensor:
        """Return x in the recipe's dtype; products that read the same tensor share the cast, and keep it."""
        if x.id not in self._cast:
            out = self.tensor(x.shape, dtype=recipe.dtype)
            passes = {"passes": recipe.cast_passes, "kernels": float(recipe.kernels), **attributes}
            if self.fuses_experts and layer.endswith(".experts.down"):
                passes |= FUSED
            op = self.forward("aten::_to_copy", (x,), (out,), f"{layer}.cast", passes)
            self._cast[x.id] = out
            self.on_backward(op, lambda: self.give(x, self.gradient(out), op))
        return self._cast[x.id]

    def cast_gradient(self, dy: Tensor, recipe: CastRecipe, op: int, attributes: Attributes = NONE) -> Tensor:
        """Return the gradient of the output of ``op`` in the recipe's dtype (attribute ``of_output``)."""
        out = self.tensor(dy.shape, dtype=recipe.dtype)
        passes = {"passes": recipe.cast_passes, "kernels": float(recipe.kernels), "of_output": True, **attributes}
        if self.fuses_experts and self._layers[op].endswith(".experts.up"):
            passes |= FUSED
        self.backward("aten::_to_copy", (dy,), (out,), op, passes)
        return out

    def parameters(self) -> tuple[Parameter, ...]:
        """Return all weights, in the order of registration."""
        parameters = []
        for weight in self.weights.values():
            gradient = self.gradients[weight.id].id if self.trains(weight) else None
            gradient_operator = self._made_by[weight.id] if self.trains(weight) else None
            parameters.append(
                Parameter(
                    weight=weight.id,
                    size_bytes=weight.size_bytes,
                    gradient=gradient,
                    gradient_operator=gradient_operator,
                )
            )
        return tuple(parameters)
