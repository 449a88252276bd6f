"""Do tensors get the sizes that a split gives them, and are impossible splits refused?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from compute_cases import Made, conv, grad, linear

from trine.compute import Split, resized, work
from trine.errors import InputError, PlanError


def shapes(made: Made, operator, split: Split):  # type: ignore[no-untyped-def]
    found = resized(operator, made.workload(), split)
    return [t.shape for t in found.inputs], [t.shape for t in found.outputs], found.uneven


def test_batch_scales_activations_and_not_weights() -> None:
    made, forward, backward = linear()
    assert shapes(made, forward, Split(16)) == ([(16, 64), (32, 64), (32,)], [(16, 32)], False)
    assert shapes(made, backward, Split(16)) == ([(32, 64)], [(32, 64)], False)


def test_bytes_follow_shapes() -> None:
    made, forward, _ = linear()
    assert [t.size_bytes for t in resized(forward, made.workload(), Split(2)).inputs] == [2 * 64 * 4, 32 * 64 * 4, 128]


def test_uneven_batch_rounds_up_and_says_so() -> None:
    made = Made(batch=8)
    made.tensor("x", (4, 10), "weight")  # half a row a sample: not proportional to whole samples
    made.tensors[1] = replace(made.tensors[1], role="activation", batch_dims=(0,))
    op = made.run("aten::relu", ["x"], ["x"])
    assert shapes(made, op, Split(5)) == ([(3, 10)], [(3, 10)], True)
    assert shapes(made, op, Split(6)) == ([(3, 10)], [(3, 10)], False)


def test_column_and_row_split_of_linear() -> None:
    made, forward, backward = linear()
    column, row = Split(8, ways=4, mode="column"), Split(8, ways=4, mode="row")
    assert shapes(made, forward, column) == ([(8, 64), (8, 64), (8,)], [(8, 8)], False)
    assert shapes(made, forward, row) == ([(8, 16), (32, 16), (32,)], [(8, 32)], False)
    assert shapes(made, backward, row) == ([(32, 16)], [(32, 16)], False)
    assert work(forward, made.workload(), row).flops * 4 == work(forward, made.workload()).flops
    assert work(backward, made.workload(), column).flops * 4 == work(backward, made.workload()).flops


def test_addmm_has_its_weight_the_other_way_round() -> None:
    made = Made()
    for name, shape, role in (
        ("b", (32,), "weight"),
        ("x", (8, 64), "activation"),
        ("w", (64, 32), "weight"),
        ("y", (8, 32), "activation"),
    ):
        made.tensor(name, shape, role)
    op = made.run("aten::addmm", ["b", "x", "w"], ["y"])
    assert shapes(made, op, Split(8, 2, "column")) == ([(16,), (8, 64), (64, 16)], [(8, 16)], False)
    assert shapes(made, op, Split(8, 2, "row")) == ([(32,), (8, 32), (32, 32)], [(8, 32)], False)


def test_convolution_splits_channels() -> None:
    made, forward, backward = conv((8, 6, 10, 10), (12, 6, 3, 3), (8, 12, 8, 8))
    column, row = Split(4, 2, "column"), Split(8, 2, "row")
    assert shapes(made, forward, column) == ([(4, 6, 10, 10), (6, 6, 3, 3)], [(4, 6, 8, 8)], False)
    assert shapes(made, forward, row) == ([(8, 3, 10, 10), (12, 3, 3, 3)], [(8, 12, 8, 8)], False)
    assert shapes(made, backward, column)[1] == [(4, 6, 10, 10), (6, 6, 3, 3)]


def test_transposed_and_grouped_convolutions() -> None:
    made, forward, _ = conv((8, 6, 5, 5), (6, 12, 3, 3), (8, 12, 7, 7), transposed=True)
    assert shapes(made, forward, Split(8, 2, "column"))[0] == [(8, 6, 5, 5), (6, 6, 3, 3)]
    made, forward, _ = conv((8, 6, 5, 5), (6, 1, 3, 3), (8, 6, 5, 5), groups=6)
    assert shapes(made, forward, Split(8, 2, "column")) == ([(8, 3, 5, 5), (3, 1, 3, 3)], [(8, 3, 5, 5)], False)
    with pytest.raises(PlanError, match="groups"):
        resized(forward, made.workload(), Split(8, 2, "row"))


def test_uneven_features_round_up() -> None:
    made, forward, _ = linear(features=(64, 33))
    assert shapes(made, forward, Split(8, 2, "column")) == ([(8, 64), (17, 64), (17,)], [(8, 17)], True)


def test_embedding_splits_its_rows() -> None:
    made = Made()
    made.tensor("table", (1000, 16), "weight")
    made.tensor("tokens", (8, 5), "input", "int64")
    made.tensor("y", (8, 5, 16))
    op = made.run("aten::embedding", ["table", "tokens"], ["y"])
    assert shapes(made, op, Split(8, 4, "embedding")) == ([(250, 16), (8, 5)], [(8, 5, 16)], False)
    assert shapes(made, op, Split(8, 4, "column")) == ([(1000, 4), (8, 5)], [(8, 5, 4)], False)
    with pytest.raises(PlanError, match="not 'row'"):
        resized(op, made.workload(), Split(8, 4, "row"))


def test_operators_without_weights_take_a_share_of_features_or_heads() -> None:
    made = Made()
    made.tensor("x", (8, 5, 16))
    made.tensor("q", (8, 4, 5, 16))
    made.tensor("s", (), "activation")
    gelu = made.run("aten::gelu", ["x"], ["x"])
    attention = made.run("aten::scaled_dot_product_attention", ["q", "q", "q"], ["q"])
    add = made.run("aten::add", ["x", "s"], ["x"])
    assert shapes(made, gelu, Split(8, 2, "column"))[1] == [(8, 5, 8)]
    assert shapes(made, attention, Split(8, 2, "row"))[1] == [(8, 2, 5, 16)]
    assert shapes(made, add, Split(8, 2, "column"))[0] == [(8, 5, 8), ()]


def test_replicated_operators_ignore_ways() -> None:
    made, forward, _ = linear()
    assert shapes(made, forward, Split(8, ways=4)) == shapes(made, forward, Split(8))


def test_optimizer_scales_with_its_share_alone() -> None:
    made = Made()
    made.tensor("p", (128, 10), "weight")
    made.tensor("g", (128, 10), "gradient")
    op = made.run("aten::_foreach_add_", ["p", "g"], [], "optimizer")
    whole, half = (
        work(op, made.workload(), Split(99, 4, "column")),
        work(op, made.workload(), Split(8, share=Fraction(1, 2))),
    )
    assert whole == work(op, made.workload())
    assert (half.flops * 2, half.bytes * 2) == (whole.flops, whole.bytes)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": True}, "batch"),
        ({"batch": 1.5}, "batch"),
        ({"batch": 8, "ways": 0}, "ways"),
        ({"batch": 8, "mode": "colum"}, "did you mean 'column'"),
        ({"batch": 8, "share": Fraction(0)}, "share"),
        ({"batch": 8, "share": Fraction(3, 2)}, "share"),
    ],
)
def test_impossible_splits(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        Split(**arguments)  # type: ignore[arg-type]


def test_refused_with_the_operator_named() -> None:
    made, forward, backward = linear()
    with pytest.raises(PlanError, match=r"operator 1 \(aten::linear\).*64 ways"):
        resized(forward, made.workload(), Split(8, 64, "column"))
    with pytest.raises(PlanError, match="not an embedding"):
        resized(forward, made.workload(), Split(8, 2, "embedding"))
    with pytest.raises(PlanError, match="forward operator is unknown"):
        resized(replace(backward, forward_id=None), made.workload(), Split(8, 2, "column"))
    lost = made.run(grad("ReluBackward0"), ["x"], ["x"], "backward")
    with pytest.raises(InputError, match="unknown tensor, 77"):
        resized(replace(lost, inputs=(77,)), made.workload(), Split(8))
