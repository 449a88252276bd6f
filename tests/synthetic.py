"""Small workloads with known answers, made by hand: chains of linear layers."""

from __future__ import annotations

from collections.abc import Sequence

from trine.graph.workload import Operator, Parameter, Tensor, Workload

MS = 10**9


class Chain:
    """Builds a chain of linear layers y = x W, optionally with a loss-free backward pass and one optimizer operator.

    Layer i takes ``forward_ps[i]`` forward and ``backward_ps[i]`` backward at ``batch`` samples; its weight has
    ``weight_bytes[i]`` bytes (float32, square matrices are not required: the times are given, not modelled).
    """

    def __init__(
        self,
        forward_ps: Sequence[int],
        backward_ps: Sequence[int] = (),
        weight_bytes: Sequence[int] = (),
        *,
        batch: int = 8,
        width: int = 64,
        optimizer_ps: int = 0,
    ) -> None:
        self.batch, self.width = batch, width
        self.tensors: dict[int, Tensor] = {}
        self.operators: list[Operator] = []
        weights, activations = [], [self._tensor((batch, width), "input", (0,))]
        for i, time in enumerate(forward_ps):
            size = weight_bytes[i] if weight_bytes else 4 * width * width
            weights.append(self._tensor((size // 4,), "weight"))
            activations.append(self._tensor((batch, width), "activation", (0,)))
            self._operator(
                "aten::linear", "forward", [activations[i], weights[i]], [activations[i + 1]], time, f"linear.{i + 1}"
            )
        gradients: dict[int, tuple[int, int]] = {}
        upstream = activations[-1]
        for i in reversed(range(len(backward_ps))):
            down = self._tensor((batch, width), "activation", (0,))
            grad = self._tensor(self.tensors[weights[i]].shape, "gradient")
            op = self._operator(
                "autograd::engine::evaluate_function: AddmmBackward0",
                "backward",
                [upstream, activations[i], weights[i]],
                [down, grad],
                backward_ps[i],
                f"linear.{i + 1}",
                forward_id=i + 1,
            )
            gradients[i] = (grad, op)
            upstream = down
        if optimizer_ps:
            grads = [gradients[i][0] for i in sorted(gradients)]
            self._operator("aten::_foreach_add_", "optimizer", [*weights, *grads], [], optimizer_ps, "optimizer")
        self.parameters = tuple(
            Parameter(
                weight=w,
                size_bytes=self.tensors[w].size_bytes,
                gradient=gradients[i][0] if i in gradients else None,
                gradient_operator=gradients[i][1] if i in gradients else None,
            )
            for i, w in enumerate(weights)
        )

    def _tensor(self, shape: tuple[int, ...], role: str, batch_dims: tuple[int, ...] = ()) -> int:
        number = len(self.tensors) + 1
        size = 4
        for dim in shape:
            size *= dim
        self.tensors[number] = Tensor(
            id=number, shape=shape, dtype="float32", size_bytes=size, storage=number, role=role, batch_dims=batch_dims
        )
        return number

    def _operator(
        self,
        name: str,
        phase: str,
        inputs: list[int],
        outputs: list[int],
        time: int,
        layer: str,
        forward_id: int | None = None,
    ) -> int:
        number = len(self.operators) + 1
        self.operators.append(
            Operator(
                id=number,
                name=name,
                phase=phase,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                gpu_time_ps=time,
                layer=layer,
                forward_id=forward_id,
            )
        )
        return number

    def workload(self) -> Workload:
        return Workload(
            name="chain", source="tests/synthetic.py", format="by hand", gpu=None, batch=self.batch,
            operators=tuple(self.operators), tensors=self.tensors, parameters=self.parameters,
        )  # fmt: skip


class Proportional:
    """A compute model for tests: recorded time x batch / recorded batch, without intercept."""

    name = "proportional"

    def __init__(self, workload: Workload) -> None:
        self.batch = workload.batch

    def duration(self, operator, split):  # type: ignore[no-untyped-def]
        from trine.compute import Duration

        time = operator.gpu_time_ps
        if operator.phase == "optimizer":
            return Duration(-(-time * split.share.numerator // split.share.denominator), "measured")
        ways = split.ways if split.mode else 1
        return Duration(-(-time * split.batch // (self.batch * ways)), "modelled")
