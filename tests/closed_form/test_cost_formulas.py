"""Do FLOPs and bytes match the formulas?"""

from __future__ import annotations

import pytest
from compute_cases import Made, conv, grad, linear

from trine.compute import Split, Work, work


def test_linear() -> None:
    made, forward, backward = linear(batch=8, features=(64, 32))
    x, w, y, b = 8 * 64 * 4, 64 * 32 * 4, 8 * 32 * 4, 32 * 4
    assert work(forward, made.workload()) == Work(2 * 8 * 64 * 32, x + w + b + y)
    assert work(backward, made.workload()) == Work(4 * 8 * 64 * 32, 2 * (x + w + y))


def test_linear_on_data_needs_no_input_gradient() -> None:
    made, _, backward = linear(role="input")
    assert work(backward, made.workload()) == Work(2 * 8 * 64 * 32, 4 * (8 * 64 + 64 * 32 + 8 * 32))


def test_conv() -> None:
    x, w, y = (8, 3, 12, 12), (16, 3, 3, 3), (8, 16, 10, 10)
    made, forward, backward = conv(x, w, y)
    flops = 2 * 8 * 100 * 16 * 3 * 9
    num_bytes = 4 * (8 * 3 * 144 + 16 * 27 + 8 * 1600)
    assert work(forward, made.workload()) == Work(flops, num_bytes)
    assert work(backward, made.workload()) == Work(2 * flops, 2 * num_bytes)
    made, _, backward = conv(x, w, y, first=True)
    assert work(backward, made.workload()) == Work(flops, num_bytes)


def test_conv_backward_without_a_forward_operator_uses_its_own_tensors() -> None:
    from dataclasses import replace

    made, _, backward = conv((8, 3, 12, 12), (16, 3, 3, 3), (8, 16, 10, 10))
    alone = replace(backward, forward_id=None)
    assert work(alone, made.workload()) == work(backward, made.workload())


@pytest.mark.parametrize(
    ("name", "tensors", "inputs", "outputs", "flops", "num_bytes"),
    [
        ("aten::relu_", {"x": (8, 10)}, ["x"], ["x"], 80, 2 * 320),
        ("aten::relu", {"x": (8, 10), "y": (8, 10)}, ["x"], ["y"], 80, 640),
        ("aten::mul", {"x": (8, 10), "y": (8, 10)}, ["x", "x"], ["y"], 80, 640),
        ("aten::add", {"x": (8, 10), "z": (8, 10), "y": (8, 10)}, ["x", "z"], ["y"], 80, 960),
        ("aten::add_", {"x": (8, 10), "z": (8, 10)}, ["x", "z"], [], 80, 960),
        ("aten::max_pool2d", {"x": (8, 3, 4, 4), "y": (8, 3, 2, 2)}, ["x"], ["y"], 384, 4 * (384 + 96)),
        ("aten::softmax", {"x": (8, 10), "y": (8, 10)}, ["x"], ["y"], 400, 640),
        ("aten::layer_norm", {"x": (8, 10), "w": (10,), "b": (10,), "y": (8, 10)}, ["x", "w", "b"], ["y"], 560, 720),
        ("aten::batch_norm", {"x": (8, 5, 2), "w": (5,), "y": (8, 5, 2)}, ["x", "w"], ["y"], 560, 660),
        ("aten::cross_entropy_loss", {"x": (8, 10), "y": (1,)}, ["x"], ["y"], 400, 324),
        ("aten::sum", {"x": (8, 10), "y": (1,)}, ["x"], ["y"], 80, 324),
        ("aten::transpose", {"x": (8, 10), "y": (10, 8)}, ["x"], ["y"], 0, 0),
        ("aten::cat", {"x": (8, 10), "z": (8, 5), "y": (8, 15)}, ["x", "z"], ["y"], 0, 960),
        ("new::thing", {"x": (8, 10), "y": (8, 5)}, ["x"], ["y"], 0, 480),
        (grad("ReluBackward0"), {"dy": (8, 10), "y": (8, 10), "dx": (8, 10)}, ["dy", "y"], ["dx"], 80, 960),
        ("aten::bmm", {"a": (8, 5, 6), "b": (8, 6, 7), "y": (8, 5, 7)}, ["a", "b"], ["y"], 2 * 8 * 5 * 6 * 7, 4 * 856),
    ],
)  # fmt: skip
def test_one_operator(name, tensors, inputs, outputs, flops, num_bytes) -> None:  # type: ignore[no-untyped-def]
    made = Made()
    for key, shape in tensors.items():
        made.tensor(key, shape)
    operator = made.run(name, inputs, outputs)
    assert work(operator, made.workload()) == Work(flops, num_bytes)


def test_embedding_reads_rows_not_the_table() -> None:
    made = Made()
    made.tensor("table", (1000, 16), "weight")
    made.tensor("tokens", (8, 5), "input", "int64")
    made.tensor("y", (8, 5, 16))
    made.tensor("dtable", (1000, 16), "gradient")
    forward = made.run("aten::embedding", ["table", "tokens"], ["y"])
    backward = made.run(grad("EmbeddingBackward0"), ["y", "tokens"], ["dtable"], "backward", forward=forward)
    assert work(forward, made.workload()) == Work(0, 8 * 5 * 8 + 2 * 8 * 5 * 16 * 4)
    assert work(backward, made.workload()) == Work(1000 * 16, 8 * 5 * 8 + 8 * 5 * 16 * 4 + 64000)


def test_attention() -> None:
    made = Made()
    made.tensor("q", (8, 4, 10, 16))
    made.tensor("k", (8, 4, 20, 16))
    made.tensor("v", (8, 4, 20, 24))
    made.tensor("o", (8, 4, 10, 24))
    forward = made.run("aten::scaled_dot_product_attention", ["q", "k", "v"], ["o"])
    backward = made.run(
        grad("ScaledDotProductFlashAttentionBackward0"), ["o", "q", "k", "v"], [], "backward", forward=forward
    )
    scores, num_bytes = 8 * 4 * 10 * 20, 4 * 32 * (10 * 16 + 20 * 16 + 20 * 24 + 10 * 24)
    assert work(forward, made.workload()) == Work(2 * scores * (16 + 24), num_bytes)
    assert work(backward, made.workload()) == Work(2 * scores * (3 * 16 + 2 * 24), 2 * num_bytes)


def test_attention_of_one_batch_dimension_whose_forward_operator_is_unknown() -> None:
    made = Made()
    for name, shape in {"g": (8, 10, 24), "q": (8, 10, 16), "k": (8, 20, 16), "v": (8, 20, 24)}.items():
        made.tensor(name, shape)
    forward = made.run("aten::scaled_dot_product_attention", ["q", "k", "v"], ["g"])
    backward = made.run(grad("ScaledDotProductFlashAttentionBackward0"), ["g", "q", "k", "v"], [], "backward")
    scores, num_bytes = 8 * 10 * 20, 4 * 8 * (10 * 16 + 20 * 16 + 20 * 24 + 10 * 24)
    assert work(forward, made.workload()) == Work(2 * scores * (16 + 24), num_bytes)
    assert work(backward, made.workload()).flops == 2 * scores * (3 * 16 + 2 * 24)


@pytest.mark.parametrize(
    ("name", "lists", "flops", "num_bytes"),
    [  # each list holds three weights, gradients or states, 60 bytes in total
        ("aten::_foreach_mul_", "p", 15, 120),
        ("aten::_foreach_lerp_", "mg", 45, 180),
        ("aten::_foreach_addcmul_", "vgg", 45, 180),
        ("aten::_foreach_addcdiv_", "pmv", 45, 240),
        ("aten::_foreach_add_", "pg", 15, 180),
        ("aten::_fused_adam_", "pgmv", 12 * 45, 60 * 7),
    ],
)
def test_optimizer_lists(name: str, lists: str, flops: int, num_bytes: int) -> None:
    made = Made()
    roles = {"p": "weight", "g": "gradient", "m": "optimizer_state", "v": "optimizer_state"}
    for letter in dict.fromkeys(lists):
        for i, size in enumerate((4, 5, 6)):
            made.tensor(f"{letter}{i}", (size,), roles[letter])
    op = made.run(name, [f"{letter}{i}" for letter in lists for i in range(3)], [], "optimizer")
    assert work(op, made.workload()) == Work(flops, num_bytes)


def test_one_list_whose_halves_are_only_partly_alike_is_one_list() -> None:
    """Four tensors of 3, 5, 3 and 7 elements cannot be two paired lists."""
    made = Made()
    for name, size, role in (("a", 3, "weight"), ("b", 5, "weight"), ("c", 3, "gradient"), ("d", 7, "gradient")):
        made.tensor(name, (size,), role)
    op = made.run("aten::_foreach_mul_", list("abcd"), [], "optimizer")
    assert work(op, made.workload()) == Work(18, 2 * 4 * 18)


def test_optimizer_with_outputs_writes_those() -> None:
    made = Made()
    for name in ("a0", "a1", "b0", "b1"):
        made.tensor(name, (10,), "optimizer_state")
    op = made.run("aten::_foreach_sqrt", ["a0", "a1"], ["b0", "b1"], "optimizer")
    assert work(op, made.workload()) == Work(20, 160)


def test_work_at_another_batch() -> None:
    made, forward, _ = linear(batch=8, features=(64, 32))
    assert work(forward, made.workload(), Split(24)).flops == 3 * work(forward, made.workload()).flops
