"""Operators of software without fusion: attention and loss through memory, dropout with stored masks.

Attention as in Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022, section 4.1:
scores, masked softmax, dropout, product with the values. It keeps the softmax, the mask (one byte per element) and the
output of dropout. Between the products, scores pass through memory (5 x runs of the forward pass + 6) times, counting a
mask as half: 4.5 forward (softmax 2, dropout 2.5) and 5.5 backward (dropout 2.5, softmax 3).
"""

from __future__ import annotations

from collections.abc import Sequence

from trine.graph.workload import Tensor
from trine.workload.synthesis.graph import Attributes, Graph


def dropped(graph: Graph, x: Tensor, layer: str) -> Tensor:
    """Apply dropout to x and keep its mask of one byte per element."""
    out, mask = graph.like(x), graph.tensor(x.shape, dtype="uint8")
    op = graph.forward("aten::native_dropout", (x,), (out, mask), layer)
    return graph.gives_back(op, x, out, "native_dropout_backward", (mask,))


def add_dropped(graph: Graph, x: Tensor, branch: Tensor, layer: str) -> Tensor:
    """Compute x + dropout(branch) in one operator, as Megatron-LM's ``bias_dropout_add``; x gets the full gradient."""
    out, mask = graph.like(x), graph.tensor(x.shape, dtype="uint8")
    op = graph.forward("bias_dropout_add", (x, branch), (out, mask), layer)

    def backward() -> None:
        dy, dbranch = graph.gradient(out), graph.like(branch)
        graph.backward("bias_dropout_add_backward", (dy, mask), (dbranch,), op)
        graph.give(x, dy, op)
        graph.give(branch, dbranch, op)

    graph.on_backward(op, backward)
    return out


class _Projected:
    """Queries, keys and values (``parts``), and the gradients of their ``sources``, which several operators write: one
    tensor, or one of queries and one of keys and values."""

    def __init__(self, graph: Graph, sources: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
        self.graph, self.sources, self.parts = graph, sources, parts
        self._gradients: dict[int, Tensor] = {}  # by position among the sources

    def gradient(self, part: Tensor) -> Tensor | None:
        """Return the place for the gradient of one of ``parts``; None for another tensor."""
        if part not in self.parts:
            return None
        source = 0 if part == self.parts[0] else len(self.sources) - 1
        if source not in self._gradients:
            self._gradients[source] = self.graph.like(self.sources[source])
        return self.graph.view(self._gradients[source], part.shape)

    def give(self, op: int) -> None:
        """Deliver the gradients once all their parts are written, the last by the backward pass of ``op``."""
        for source, gradient in sorted(self._gradients.items()):
            self.graph.give(self.sources[source], gradient, op)


def unfused_parts(
    graph: Graph, sources: Sequence[Tensor], parts: Sequence[Tensor], layer: str, bias: Tensor | None = None
) -> Tensor:
    """Compute attention of q (B, heads, S, size), k and v (B, kv_heads, T, size), which lie in one or two ``sources``.

    bias: (1, heads, S, T), added to the scores. Fewer heads of keys and values are copied to all heads. Returns (B, S,
    heads size).
    """
    projected, (q, k, v) = _Projected(graph, sources, parts), parts
    batch, heads, length, size = q.shape
    if k.shape[1] != heads:
        k, v = _repeated(graph, projected, heads, layer)
    scores = _product(graph, (q, k), (batch, heads, length, k.shape[2]), f"{layer}.scores", projected)
    chances = _softmax(graph, scores, f"{layer}.softmax", bias)
    if graph.writes.dropout:
        chances = dropped(graph, chances, f"{layer}.dropout")
    out = _product(graph, (chances, v), (batch, heads, length, size), f"{layer}.values", projected)
    return graph.view(out, (batch, length, heads * size))


def _repeated(graph: Graph, projected: _Projected, heads: int, layer: str) -> tuple[Tensor, Tensor]:
    """Copy keys and values to all heads that share them."""
    pair = projected.parts[1:]
    batch, _, length, size = pair[0].shape
    copies = [graph.tensor((batch, heads, length, size)) for _ in pair]
    op = graph.forward("aten::repeat_interleave", pair, copies, f"{layer}.repeat")

    def backward() -> None:
        gradients = [graph.gradient(tensor) for tensor in copies]
        outputs = []
        for part in pair:
            if (gradient := projected.gradient(part)) is not None:
                outputs.append(gradient)
        graph.backward("repeat_interleave_backward", gradients, outputs, op)
        projected.give(op)

    graph.on_backward(op, backward)
    return copies[0], copies[1]


def _product(
    graph: Graph, factors: tuple[Tensor, Tensor], shape: tuple[int, ...], layer: str, projected: _Projected
) -> Tensor:
    """Multiply two activations for each head; the backward operator computes both gradients."""
    out = graph.tensor(shape)
    op = graph.forward("aten::matmul", factors, (out,), layer)

    def backward() -> None:
        parts = [projected.gradient(factor) for factor in factors]
        gradients = [part or graph.like(factor) for part, factor in zip(parts, factors, strict=True)]
        graph.backward("matmul_backward", (graph.gradient(out), *factors), gradients, op)
        for part, factor, gradient in zip(parts, factors, gradients, strict=True):
            if part is None:
                graph.give(factor, gradient, op)
        if None not in parts:  # the product of the scores, the last one except for copies of keys and values
            projected.give(op)

    graph.on_backward(op, backward)
    return out


def _softmax(graph: Graph, scores: Tensor, layer: str, bias: Tensor | None) -> Tensor:
    """Scale, mask (or bias) and softmax in one kernel, as in Megatron-LM; the result is kept."""
    out = graph.like(scores)
    op = graph.forward("scaled_masked_softmax", (scores,) if bias is None else (scores, bias), (out,), layer)

    def backward() -> None:
        dx = graph.like(scores)
        graph.backward("scaled_masked_softmax_backward", (graph.gradient(out), out), (dx,), op)
        if bias is not None:
            dbias = graph.like(bias)
            graph.backward("aten::sum", (dx,), (dbias,), op)
            graph.give(bias, dbias, op)
        graph.give(scores, dx, op)

    graph.on_backward(op, backward)
    return out


def over_vocabulary(graph: Graph) -> Attributes:
    """Return the attributes of a loss whose vocabulary tensor parallelism may divide."""
    sums = graph.writes.loss_all_reduces
    return {"vocab_parallel": True} if sums == 1 else {"vocab_parallel": True, "sums": sums}


def unfused_cross_entropy(graph: Graph, logits: Tensor, targets: Tensor, layer: str) -> None:
    """Compute the loss on a float32 copy of the logits and keep its softmax; the profile's ``passes`` count passes."""
    copy = graph.tensor(logits.shape, dtype="float32")
    cast = graph.forward("aten::_to_copy", (logits,), (copy,), f"{layer}.copy")

    graph.gives_back(cast, logits, copy, "to_copy_backward")
    loss, chances = graph.tensor(targets.shape, dtype="float32"), graph.like(copy)
    op = graph.forward("aten::cross_entropy_loss", (copy, targets), (loss, chances), layer, over_vocabulary(graph))

    def backward() -> None:
        dcopy = graph.like(copy)
        graph.backward("cross_entropy_loss_backward", (chances, targets), (dcopy,), op)
        graph.give(copy, dcopy, op)

    graph.on_backward(op, backward)
