"""Does a split leave each tensor of an operator the dimensions that its rank has?"""

from __future__ import annotations

from fractions import Fraction

import pytest
from compute_cases import BATCH, Made

from trine.compute import Split
from trine.compute.resize import is_expert_product, resized
from trine.compute.roofline import Shares
from trine.errors import InputError, PlanError
from trine.parallel.heads import AttentionHeads, Heads
from trine.parallel.stages import BOTH, INPUT_PART, WEIGHT_PART, backward_of, backward_parts

E, IN, OUT = 6, 10, 14

#: operator, attributes, shapes of x, weight and y, mode, ways -> shapes that one rank has.
LINEAR = [(BATCH, IN), (OUT, IN), (BATCH, OUT)]
CONV = [(8, 4, 9, 9), (6, 4, 3, 3), (8, 6, 7, 7)]
EXPERTS = [(E, 8, IN), (E, IN, OUT), (E, 8, OUT)]
CASES = [
    ("aten::linear", {}, LINEAR, "column", 2, [(8, 10), (7, 10), (8, 7)]),
    ("aten::linear", {}, LINEAR, "row", 2, [(8, 5), (14, 5), (8, 14)]),
    ("aten::linear", {}, [(BATCH, 2), (2, 2), (BATCH, 2)], "column", 2, [(8, 2), (1, 2), (8, 1)]),
    ("aten::conv2d", {}, CONV, "column", 2, [(8, 4, 9, 9), (3, 4, 3, 3), (8, 3, 7, 7)]),
    ("aten::conv2d", {}, CONV, "row", 2, [(8, 2, 9, 9), (6, 2, 3, 3), (8, 6, 7, 7)]),
    ("aten::bmm", {"expert": True}, EXPERTS, "column", 2, [(6, 8, 10), (6, 10, 7), (6, 8, 7)]),
    ("aten::bmm", {"expert": True}, EXPERTS, "row", 2, [(6, 8, 5), (6, 5, 14), (6, 8, 14)]),
]


@pytest.mark.parametrize(("name", "attributes", "shapes", "mode", "ways", "expected"), CASES)
def test_shapes_of_a_rank(name, attributes, shapes, mode, ways, expected) -> None:
    made = Made()
    for tensor, shape, role in zip("xwy", shapes, ("activation", "weight", "activation"), strict=True):
        made.tensor(tensor, shape, role)
    op = made.run(name, ["x", "w"], ["y"], **attributes)
    found = resized(op, made.workload(), Split(BATCH, ways, mode))
    assert [tuple(tensor.shape) for tensor in (*found.inputs, *found.outputs)] == expected


def test_what_has_fewer_features_than_ranks_cannot_be_split() -> None:
    made = Made()
    for tensor, shape, role in (("x", (8, 2), "activation"), ("w", (2, 2), "weight"), ("y", (8, 2), "activation")):
        made.tensor(tensor, shape, role)
    op = made.run("aten::linear", ["x", "w"], ["y"])
    with pytest.raises(PlanError, match="cannot be split 3 ways"):
        resized(op, made.workload(), Split(BATCH, 3, "column"))
    with pytest.raises(PlanError, match="no number of tokens per sample"):
        resized(op, made.workload(), Split(BATCH, tokens=Fraction(1, 2)))


def test_products_of_experts_are_those_that_say_so() -> None:
    made = Made()
    for tensor, shape in (("x", (E, 8, IN)), ("w", (E, IN, OUT)), ("y", (E, 8, OUT))):
        made.tensor(tensor, shape)
    of_experts = made.run("aten::bmm", ["x", "w"], ["y"], expert=True)
    others = [made.run("aten::bmm", ["x", "w"], ["y"]), made.run("aten::gelu", ["x"], ["y"], expert=True)]
    assert is_expert_product(of_experts)
    assert not any(is_expert_product(op) for op in others)


@pytest.mark.parametrize("value", [True, "0.5", None])
@pytest.mark.parametrize("field", ["matmul", "memory", "fixed_us"])
def test_a_share_of_the_peak_is_a_number(field: str, value: object) -> None:
    with pytest.raises(InputError, match="must be a number"):
        Shares(**{field: value})


def test_a_backward_operator_is_of_the_weights_if_it_makes_or_completes_a_gradient() -> None:
    """Of a tied weight the first operator makes a gradient and the last completes it; both can be run in halves."""
    made = Made()
    for tensor, shape, role in (("x", (8, 4), "activation"), ("w", (4, 4), "weight"), ("y", (8, 4), "activation")):
        made.tensor(tensor, shape, role)
    made.tensor("dx", (8, 4))
    made.tensor("dw", (4, 4), "gradient")
    forward = made.run("aten::linear", ["x", "w"], ["y"])
    both = made.run("aten::mm", ["y", "w"], ["dx", "dw"], "backward", forward=forward)
    weight = made.run("aten::mm", ["y", "x"], ["dw"], "backward", forward=forward)
    inputs = made.run("aten::mm", ["y", "w"], ["dx"], "backward", forward=forward)
    workload = made.workload()
    parts = backward_parts(workload, backward_of(workload), {forward.id: True})
    assert [parts[op.id] for op in (both, weight, inputs)] == [BOTH, WEIGHT_PART, INPUT_PART]


def test_attention_is_there_whether_or_not_its_heads_are_known() -> None:
    heads = (Heads(8, 8, 64, "layers.0"),)
    found = [AttentionHeads(known, unknown).is_there for known in ((), heads) for unknown in ((), ("layers.1",))]
    assert found == [False, True, True, True]
