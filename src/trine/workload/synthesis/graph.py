"""A workload written layer by layer: forward operators first, their backward operators from rules left on the way.

Gradients are kept by storage. An operator in place reads and writes one storage, so its rule takes the gradient of what
it wrote and leaves that of what it read in its place, as autograd does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod

from trine.compute.kinds import family_of, is_backward, kind_of_name
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Parameter, Tensor
from trine.software.profile import OperatorStyle, Software
from trine.workload.native import ITEM_BYTES

Shape = tuple[int, ...]
Names = Sequence[Tensor]
Attributes = Mapping[str, object]
#: No attributes; shared, as nothing changes it.
NONE: Attributes = {}


class Graph:
    """Operators, tensors and parameters of one training step, as they are made.

    dtype: of weights and activations; weight_dtype: of weights, where it is another (mixed precision). accumulates:
    whether the sum of two gradients of one tensor is an operator. product_attributes: of all convolutions and products.
    software: the profile that says how operators are written; None: fused, with one launch each.
    """

    def __init__(
        self, dtype: str, *, accumulates: bool, weight_dtype: str = "", product_attributes: Attributes = NONE,
        software: Software | None = None,
    ) -> None:  # fmt: skip
        self.dtype = dtype
        self.weight_dtype = weight_dtype or dtype
        self.product_attributes = product_attributes
        self.software = software
        self.style = None if software is None else WrittenStyle(software.operators, as_recorded=not accumulates)
        self.writes = OperatorStyle() if software is None else software.operators
        self.tensors: dict[int, Tensor] = {}
        self.operators: list[Operator] = []
        self.weights: dict[int, Tensor] = {}  # by tensor id, in the order of registration
        self.gradients: dict[int, Tensor] = {}  # weight's tensor id -> its gradient
        self._accumulates = accumulates
        self._made_by: dict[int, int] = {}  # weight's tensor id -> the last operator that adds to its gradient
        self._flowing: dict[int, Tensor] = {}  # storage -> gradient so far
        self._tape: list[tuple[int, Callable[[], None]]] = []
        self._layers: dict[int, str] = {}
        self._numbers: Counter[str] = Counter()
        self._num_storages = 0

    # -- tensors -------------------------------------------------------------------------------------------------

    def tensor(
        self,
        shape: Shape,
        *,
        role: str = "activation",
        dtype: str | None = None,
        storage: int | None = None,
        batch_dims: Shape = (0,),
    ) -> Tensor:
        """A new tensor, in memory of its own unless ``storage`` names some."""
        if storage is None:
            self._num_storages += 1
            storage = self._num_storages
        dtype = dtype or self.dtype
        made = Tensor(
            id=len(self.tensors) + 1,
            shape=shape,
            dtype=dtype,
            size_bytes=prod(shape) * ITEM_BYTES[dtype],
            storage=storage,
            role=role,
            batch_dims=batch_dims,
        )
        self.tensors[made.id] = made
        return made

    def like(self, tensor: Tensor) -> Tensor:
        """A new activation of the shape of ``tensor``."""
        return self.tensor(tensor.shape, dtype=tensor.dtype, batch_dims=tensor.batch_dims)

    def view(self, tensor: Tensor, shape: Shape) -> Tensor:
        """The same memory in another shape, or a part of it; the batch stays dimension 0."""
        return self.tensor(shape, role=tensor.role, dtype=tensor.dtype, storage=tensor.storage)

    def weight(self, *shape: int) -> Tensor:
        """A trained weight."""
        made = self.tensor(shape, role="weight", dtype=self.weight_dtype, batch_dims=())
        self.weights[made.id] = made
        return made

    def buffer(self, *shape: int, dtype: str = "float32") -> Tensor:
        """A tensor that is kept and not trained."""
        return self.tensor(shape, role="buffer", dtype=dtype, batch_dims=())

    # -- operators -----------------------------------------------------------------------------------------------

    def forward(self, name: str, inputs: Names, outputs: Names, layer: str = "", attributes: Attributes = NONE) -> int:
        """Add a forward operator and return its id. Without ``layer`` it is named after itself and its number."""
        return self._add(name, FORWARD, inputs, outputs, layer or self.next_layer(name), None, attributes)

    def next_layer(self, name: str) -> str:
        """A new name for the layer of an operator: its own, and its number."""
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
        self,
        name: str,
        phase: str,
        inputs: Names,
        outputs: Names,
        layer: str,
        forward: int | None,
        attributes: Attributes,
    ) -> int:
        if self.style is not None:
            attributes = {**self.style.attributes(name, "gradient_of" in attributes), **attributes}
        operator = Operator(
            id=len(self.operators) + 1,
            name=name,
            phase=phase,
            inputs=tuple([t.id for t in inputs]),
            outputs=tuple([t.id for t in outputs]),
            gpu_time_ps=0,
            forward_id=forward,
            layer=layer,
            attributes=attributes,
        )
        self.operators.append(operator)
        self._layers[operator.id] = layer
        return operator.id

    # -- the backward pass ---------------------------------------------------------------------------------------

    def on_backward(self, forward: int, rule: Callable[[], None]) -> None:
        """Leave the rule that adds the backward operators of operator ``forward``."""
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
            gradients = [self.weight_gradient(weight) for weight in weights]
            self.made(self.backward(name, (dy, *saved), (dx, *gradients), forward, attributes), *weights)
            self.give(x, dx, forward)

        self.on_backward(forward, backward)
        return out

    def gradient(self, tensor: Tensor) -> Tensor:
        """The gradient of ``tensor``, which is complete; afterwards there is none, so that another can be given."""
        found = self._flowing.pop(tensor.storage)
        return found if found.shape == tensor.shape else self.view(found, tensor.shape)

    def give(self, tensor: Tensor, gradient: Tensor, forward: int) -> None:
        """Add ``gradient``, made by the backward pass of operator ``forward``, to that of ``tensor``."""
        known = self._flowing.get(tensor.storage)
        if known is not None and self._accumulates:
            gradient = gradient if gradient.shape == known.shape else self.view(gradient, known.shape)
            total = self.like(known)
            self.backward("aten::add", (known, gradient), (total,), forward, {"accumulates": True})
            gradient = total
        self._flowing[tensor.storage] = gradient

    def weight_gradient(self, weight: Tensor) -> Tensor:
        """The tensor that holds the gradient of ``weight``; one for all operators that use the weight."""
        found = self.gradients.get(weight.id)
        if found is None:
            dtype = "float32" if self.writes.gradient_dtype == "float32" else weight.dtype
            found = self.tensor(weight.shape, role="gradient", dtype=dtype, batch_dims=())
            self.gradients[weight.id] = found
        return found

    def made(self, operator: int, *weights: Tensor) -> None:
        """Say that ``operator`` adds to the gradients of ``weights``."""
        self._made_by.update({weight.id: operator for weight in weights})

    def run_backward(self) -> None:
        """Add all backward operators, last forward operator first."""
        for _, rule in reversed(self._tape):
            rule()

    def parameters(self) -> tuple[Parameter, ...]:
        """All weights, in the order of registration."""
        return tuple(
            Parameter(
                weight=weight.id,
                size_bytes=weight.size_bytes,
                gradient=self.gradients[weight.id].id,
                gradient_operator=self._made_by[weight.id],
            )
            for weight in self.weights.values()
        )


# How a software profile writes operators: the attributes that it gives each, by the family of the operator's name.
# ``kernels``: launches of the operator. ``passes``: how many times its own bytes it moves. ``attention_kernel``: the
# generation of a fused attention. Nothing is said where a number is 1, so that ``software="none"`` writes what it
# always wrote.

_BY_KIND = {
    "layer_norm": "norm", "group_norm": "norm", "batch_norm": "norm", "linear": "linear", "matmul": "product",
    "attention": "attention", "softmax": "softmax", "loss": "loss", "embedding": "embedding", "optimizer": "optimizer",
    "index": "router", "copy": "copy", "conv": "conv", "adaptive_pool": "pool", "avg_pool": "pool", "max_pool": "pool",
    "reduction": "other",
}  # fmt: skip
#: Begins the names of operators that normalise heads of queries and keys and rotate them.
HEAD_NORMS = "qk_norm"
_BY_WORD = {"rotary": "rotary", "dropout": "dropout", "add": "residual"}


@lru_cache(maxsize=4096)
def family_of_operator(name: str) -> tuple[str, bool]:
    """Family of a profile that an operator of this name is of, and whether it is of the backward pass."""
    kind = kind_of_name(name)
    family = _BY_KIND.get(family_of(kind))
    if family is None:
        words = name.rsplit("::", 1)[-1].lower().split("_")
        family = next((family for word, family in _BY_WORD.items() if word in words), "activation")
        family = "gated" if family == "activation" and any(word.endswith("glu") for word in words) else family
    return family, is_backward(kind) or "backward" in name.lower()


class WrittenStyle:
    """The style of one profile. operators: what its file says. as_recorded: operators are those that eager PyTorch
    records, each of which moves its own bytes."""

    def __init__(self, operators: OperatorStyle, as_recorded: bool = False) -> None:
        self.operators = operators
        self._as_recorded = as_recorded
        self._known: dict[tuple[str, bool, bool, bool], dict[str, object]] = {}

    def attributes(self, name: str, is_half: bool, family: str | None = None) -> dict[str, object]:
        """What an operator is given; ``is_half``: it computes one of the two gradients of its forward operator."""
        found, backward = family_of_operator(name)
        family = family or found
        key = family, backward, is_half, name.startswith(HEAD_NORMS)
        if key not in self._known:
            self._known[key] = self._attributes(family, backward, is_half)
            if key[-1]:
                # Add the launches and passes of norms of heads to those of the rotation that follows them
                for field, of_family in (("kernels", self.operators.kernels), ("passes", self.operators.passes)):
                    rotary = of_family.get("rotary", [1.0, 1.0])[backward]
                    norms = of_family.get("head_norm", [0.0, 0.0])[backward]
                    if norms and not (field == "passes" and self._as_recorded):
                        self._known[key][field] = rotary + norms
        return self._known[key]

    def _attributes(self, family: str, backward: bool, is_half: bool) -> dict[str, object]:
        made: dict[str, object] = {}
        kernels = self.operators.kernels.get(family, [1.0, 2.0 if is_half else 1.0])[backward]
        kernels = kernels / 2 if is_half else kernels
        if kernels != 1:
            made["kernels"] = kernels
        passes = self.operators.passes.get(family, [1.0, 1.0])[backward]
        if passes != 1 and not self._as_recorded:
            made["passes"] = passes
        if family == "attention":
            made["attention_kernel"] = self.operators.attention_kernel
        return made
