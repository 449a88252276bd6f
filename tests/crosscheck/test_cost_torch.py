"""Are FLOPs those that torch counts?"""

from __future__ import annotations

import pytest
from compute_cases import Made, grad

from trine.compute import work

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def counted(function, *inputs):  # type: ignore[no-untyped-def]
    """FLOPs of the forward and of the backward pass as torch.utils.flop_counter has them, and the output."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as forward:
        output = function(*inputs)
    with FlopCounterMode(display=False) as backward:
        output.backward(torch.ones_like(output))
    return forward.get_total_flops(), backward.get_total_flops(), output


def tensors(*shapes, grads=None):  # type: ignore[no-untyped-def]
    wanted = grads or [True] * len(shapes)
    return [torch.randn(shape, requires_grad=g) for shape, g in zip(shapes, wanted, strict=True)]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 6, 9, 9), (8, 6, 3, 3), {}),
        ((2, 6, 9, 9), (8, 6, 3, 3), {"stride": 2, "padding": 1}),
        ((2, 6, 12, 12), (8, 6, 3, 3), {"dilation": 2}),
        ((2, 6, 12), (8, 6, 3), {}),
        ((2, 6, 5, 5, 5), (8, 6, 2, 2, 2), {}),
        ((2, 6, 9, 9), (8, 3, 3, 3), {"groups": 2}),
    ],
)
def test_convolution(x, w, options, first) -> None:  # type: ignore[no-untyped-def]
    function = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[len(x)]
    a, b = tensors(x, w, grads=[not first, True])
    forward_flops, backward_flops, y = counted(lambda p, q: function(p, q, **options), a, b)
    made = _convolution(x, w, tuple(y.shape), first, options)
    forward, backward = made.operators
    assert work(forward, made.workload()).flops == forward_flops
    if "groups" not in options:  # torch 2.13 counts the grouped weight gradient as if it had no groups
        assert work(backward, made.workload()).flops == backward_flops
    else:
        assert work(backward, made.workload()).flops == (1 if first else 2) * forward_flops


def test_transposed_convolution() -> None:
    a, b = tensors((2, 6, 5, 5), (6, 4, 3, 3))
    forward_flops, backward_flops, y = counted(lambda p, q: torch.conv_transpose2d(p, q, stride=2), a, b)
    made = _convolution((2, 6, 5, 5), (6, 4, 3, 3), tuple(y.shape), False, {"transposed": True})
    forward, backward = made.operators
    assert work(forward, made.workload()).flops == forward_flops
    assert work(backward, made.workload()).flops == backward_flops


def _convolution(x, w, y, first, options):  # type: ignore[no-untyped-def]
    made = Made(batch=x[0])
    for name, shape, role in (("x", x, "input" if first else "activation"), ("w", w, "weight"), ("y", y, "activation")):
        made.tensor(name, shape, role)
    forward = made.run("aten::convolution", ["x", "w"], ["y"], **options)
    outputs = ["w"] if first else ["x", "w"]
    made.run(grad("ConvolutionBackward0"), ["y", "x", "w"], outputs, "backward", forward=forward, **options)
    return made


@pytest.mark.parametrize(
    ("name", "shapes", "function", "gradient"),
    [
        ("aten::linear", [(2, 5, 6), (7, 6), (7,)], torch.nn.functional.linear, "AddmmBackward0"),
        ("aten::linear", [(8, 6), (7, 6)], torch.nn.functional.linear, "MmBackward0"),
        ("aten::addmm", [(7,), (8, 6), (6, 7)], torch.addmm, "AddmmBackward0"),
        ("aten::mm", [(8, 6), (6, 7)], torch.mm, "MmBackward0"),
        ("aten::bmm", [(4, 8, 6), (4, 6, 7)], torch.bmm, "BmmBackward0"),
        ("aten::baddbmm", [(4, 8, 7), (4, 8, 6), (4, 6, 7)], torch.baddbmm, "BaddbmmBackward0"),
        ("aten::matmul", [(4, 3, 8, 6), (6, 7)], torch.matmul, "MmBackward0"),
        ("aten::matmul", [(4, 3, 8, 6), (4, 3, 6, 7)], torch.matmul, "BmmBackward0"),
        (
            "aten::scaled_dot_product_attention", [(2, 3, 8, 4), (2, 3, 9, 4), (2, 3, 9, 4)],
            lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[0],
            "ScaledDotProductFlashAttentionBackward0",
        ),
    ],
)  # fmt: skip
def test_product(name, shapes, function, gradient) -> None:  # type: ignore[no-untyped-def]
    inputs = tensors(*shapes)
    if "attention" in name:  # the flash operator has FLOP formulas, and shapes, on the meta device alone
        inputs = [t.detach().to("meta").requires_grad_() for t in inputs]
    forward_flops, backward_flops, y = counted(function, *inputs)
    made = Made(batch=1)
    names = [f"i{k}" for k in range(len(shapes))]
    for key, shape in zip(names, shapes, strict=True):
        made.tensor(key, shape)
    made.tensor("y", tuple(y.shape))
    forward = made.run(name, names, ["y"])
    backward = made.run(grad(gradient), ["y"], names, "backward", forward=forward)
    assert forward_flops > 0
    assert work(forward, made.workload()).flops == forward_flops
    assert work(backward, made.workload()).flops == backward_flops
