"""Hand-made transformer that keeps the activations of Korthikanti et al. 2022, section 4.1, byte by byte."""

from __future__ import annotations

from math import prod

from trine.graph.workload import Operator, Parameter, Tensor, Workload

US = 10**6
S, B, H, A = 16, 2, 32, 4  # sequence, batch, hidden, heads
SBH, AASB = S * B * H, A * S * S * B
#: Forward times; backward operators take double the time. CORE lists the core of attention.
TIMES = {
    "ln1": 1, "q": 5, "k": 5, "v": 5, "scores": 3, "softmax": 2, "drop": 1, "context": 4, "out": 6, "drop2": 1,
    "add": 1, "ln2": 1, "up": 20, "gelu": 2, "down": 21, "drop3": 1, "add2": 1,
}  # fmt: skip
CORE = ("scores", "softmax", "drop", "context")


class Transformer:
    """Embedding followed by ``layers`` layers; every operator has one backward operator."""

    def __init__(self, layers: int, prefix: str = "layers.") -> None:
        self.tensors: dict[int, Tensor] = {}
        self.forward: list[Operator] = []
        self.backward: list[tuple[Operator, list[int]]] = []  # forward operator and its gradient's extra inputs
        self.prefix = prefix
        self.weights: list[tuple[int, int]] = []  # weight and forward operator
        ids = self.tensor((B, S), "input", "int64")
        x = self.activation(B, S, H)
        self.operator("embedding", "aten::embedding", [self.weight(100, H), ids], [x], 1, [])
        for layer in range(layers):
            x = self.layer(f"{prefix}{layer}.", x)
        self.output = x

    def layer(self, name: str, x: int) -> int:
        def op(short: str, aten: str, inputs: list[int], outputs: list[int], kept: list[int] | None = None) -> int:
            return self.operator(name + short, f"aten::{aten}", inputs, outputs, TIMES[short], kept or [])

        def mask(*shape: int) -> int:
            return self.tensor(shape, "activation", "bool")

        n1 = self.activation(B, S, H)
        op("ln1", "native_layer_norm", [x, self.weight(H)], [n1])
        heads = [self.activation(B, A, S, H // A) for _ in "qkv"]
        for short, out in zip("qkv", heads, strict=True):
            op(short, "linear", [n1, self.weight(H, H)], [out])
        q, k, v = heads
        scores, soft, dropped = (self.activation(B, A, S, S) for _ in range(3))
        op("scores", "bmm", [q, k], [scores])
        op("softmax", "softmax", [scores], [soft], [soft])
        op("drop", "dropout", [soft], [dropped], [mask(B, A, S, S)])
        context = self.activation(B, A, S, H // A)
        op("context", "bmm", [dropped, v], [context])
        out, out_dropped, r = (self.activation(B, S, H) for _ in range(3))
        op("out", "linear", [context, self.weight(H, H)], [out])
        op("drop2", "dropout", [out], [out_dropped], [mask(B, S, H)])
        op("add", "add", [x, out_dropped], [r])
        n2 = self.activation(B, S, H)
        op("ln2", "native_layer_norm", [r, self.weight(H)], [n2])
        up, gelu = self.activation(B, S, 4 * H), self.activation(B, S, 4 * H)
        op("up", "linear", [n2, self.weight(4 * H, H)], [up])
        op("gelu", "gelu", [up], [gelu], [up])
        down, down_dropped, y = (self.activation(B, S, H) for _ in range(3))
        op("down", "linear", [gelu, self.weight(H, 4 * H)], [down])
        op("drop3", "dropout", [down], [down_dropped], [mask(B, S, H)])
        op("add2", "add", [r, down_dropped], [y])
        return y

    def tensor(self, shape: tuple[int, ...], role: str, dtype: str = "float16") -> int:
        number = len(self.tensors) + 1
        item = {"float16": 2, "bool": 1, "int64": 8}[dtype]
        dims = (0,) if role in ("activation", "input") else ()
        self.tensors[number] = Tensor(
            id=number, shape=shape, dtype=dtype, size_bytes=item * prod(shape), storage=number, role=role,
            batch_dims=dims,
        )  # fmt: skip
        return number

    def activation(self, *shape: int) -> int:
        return self.tensor(shape, "activation")

    def weight(self, *shape: int) -> int:
        return self.tensor(shape, "weight")

    def operator(
        self, layer: str, name: str, inputs: list[int], outputs: list[int], time_us: int, kept: list[int]
    ) -> int:
        op = Operator(
            id=len(self.forward) + 1, name=name, phase="forward", inputs=tuple(inputs), outputs=tuple(outputs),
            gpu_time_ps=time_us * US, layer=layer,
        )  # fmt: skip
        self.forward.append(op)
        self.backward.append((op, kept))
        return op.id

    def workload(self) -> Workload:
        operators = list(self.forward)
        gradient: dict[int, int] = {}  # activation -> its gradient
        parameters = []
        for op, kept in reversed(self.backward):
            upstream = [gradient[t] for t in op.outputs if t in gradient] or [self.tensor((B,), "input")]
            outputs = []
            for t in op.inputs:
                if self.tensors[t].role == "activation":
                    outputs.append(gradient.setdefault(t, self.activation(*self.tensors[t].shape)))
                elif self.tensors[t].role == "weight":
                    made = self.tensor(self.tensors[t].shape, "gradient")
                    outputs.append(made)
                    parameters.append(Parameter(weight=t, size_bytes=self.tensors[t].size_bytes, gradient=made,
                                                gradient_operator=len(operators) + 1))  # fmt: skip
            operators.append(
                Operator(
                    id=len(operators) + 1,
                    name=f"{op.name}_backward",
                    phase="backward",
                    inputs=(*upstream, *kept),
                    outputs=tuple(outputs),
                    gpu_time_ps=2 * op.gpu_time_ps,
                    layer=op.layer,
                    forward_id=op.id,
                )
            )
        return Workload(
            name="transformer", source="tests/small_transformers.py", format="by hand", gpu=None, batch=B,
            operators=tuple(operators), tensors=self.tensors, parameters=tuple(reversed(parameters)),
        )  # fmt: skip
