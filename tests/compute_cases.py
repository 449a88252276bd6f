"""Small workloads made by hand from names and shapes, for the tests of trine.compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from trine.graph.workload import Operator, Tensor, Workload

BATCH = 8
US = 10**6
#: name of a tensor -> its shape, or (shape, role) or (shape, role, dtype).
Shapes = Mapping[str, tuple[object, ...]]
ITEM_BYTES = {"float32": 4, "float16": 2, "int64": 8}


class Made:
    """Collects tensors by name and operators in order; dimensions equal to BATCH at position 0 scale with the batch."""

    def __init__(self, batch: int = BATCH) -> None:
        self.batch = batch
        self.tensors: dict[int, Tensor] = {}
        self.ids: dict[str, int] = {}
        self.operators: list[Operator] = []

    def tensor(self, name: str, shape: Sequence[int], role: str = "activation", dtype: str = "float32") -> int:
        number = self.ids[name] = len(self.ids) + 1
        scales = role in ("activation", "input") and len(shape) > 0 and shape[0] % self.batch == 0 and shape[0] > 0
        self.tensors[number] = Tensor(
            id=number, shape=tuple(shape), dtype=dtype, size_bytes=prod(shape) * ITEM_BYTES[dtype], storage=number,
            role=role, batch_dims=(0,) if scales else (),
        )  # fmt: skip
        return number

    def run(
        self, name: str, inputs: Sequence[str], outputs: Sequence[str], phase: str = "forward", time_ps: int = 100 * US,
        forward: Operator | None = None, **attributes: object,
    ) -> Operator:  # fmt: skip
        op = Operator(
            id=len(self.operators) + 1, name=name, phase=phase, gpu_time_ps=time_ps, attributes=attributes,
            inputs=tuple(self.ids[i] for i in inputs), outputs=tuple(self.ids[i] for i in outputs),
            forward_id=None if forward is None else forward.id, layer=name,
        )  # fmt: skip
        self.operators.append(op)
        return op

    def workload(self, gpu: str | None = None) -> Workload:
        return Workload(
            name="made", source="tests/compute_cases.py", format="by hand", gpu=gpu, batch=self.batch,
            operators=tuple(self.operators), tensors=self.tensors, parameters=(),
        )  # fmt: skip


def grad(name: str) -> str:
    """Name under which the autograd engine runs a gradient."""
    return f"autograd::engine::evaluate_function: {name}"


def linear(
    batch: int = BATCH, features: tuple[int, int] = (64, 32), role: str = "activation"
) -> tuple[Made, Operator, Operator]:
    """A linear layer with bias, forward and backward."""
    made = Made(batch)
    made.tensor("x", (batch, features[0]), role)
    made.tensor("w", features[::-1], "weight")
    made.tensor("b", features[1:], "weight")
    made.tensor("y", (batch, features[1]))
    made.tensor("dw", features[::-1], "gradient")
    forward = made.run("aten::linear", ["x", "w", "b"], ["y"])
    backward = made.run(grad("AddmmBackward0"), ["w"], ["dw"], "backward", forward=forward)
    return made, forward, backward


def conv(
    x: Sequence[int], w: Sequence[int], y: Sequence[int], *, first: bool = False, **attributes: object
) -> tuple[Made, Operator, Operator]:
    """A convolution, forward and backward; ``first``: without the gradient of its input."""
    made = Made(x[0])
    made.tensor("x", x, "input" if first else "activation")
    made.tensor("w", w, "weight")
    made.tensor("y", y)
    made.tensor("dy", y)
    made.tensor("none", (0,))
    made.tensor("dx", x)
    made.tensor("dw", w, "gradient")
    forward = made.run("aten::conv2d", ["x", "w"], ["y"], **attributes)
    outputs = ["none" if first else "dx", "dw", "none"]
    backward = made.run(
        grad("ConvolutionBackward0"), ["dy", "x", "w"], outputs, "backward", forward=forward, **attributes
    )
    return made, forward, backward


def relus(sizes_and_times: Sequence[tuple[int, int]], batch: int = BATCH) -> Made:
    """Elementwise operators on (batch, n): 8 x batch x n bytes each."""
    made = Made(batch)
    for i, (width, time_ps) in enumerate(sizes_and_times):
        made.tensor(f"x{i}", (batch, width))
        made.tensor(f"y{i}", (batch, width))
        made.run("aten::relu", [f"x{i}"], [f"y{i}"], time_ps=time_ps)
    return made
