"""Does a step recorded on a CPU run as the software runs it on a GPU: launches on, optimizer in few kernels?"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import trine
from trine.graph.workload import BACKWARD, OPTIMIZER, Operator, Tensor, Workload
from trine.software.profile import load_software
from trine.workload import load
from trine.workload.on_gpu import on_gpu

PAIR = Path(__file__).parents[2] / "data" / "torch213-cpu" / "cnn_kineto.json.gz"  # AdamW loops over 8 weights
CSV = "vgg13-h100-b128"
EAGER = load_software("pytorch-eager")
LOOPS = ("mul_", "lerp_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")


def optimizer(workload: Workload) -> list[Operator]:
    return [op for op in workload.operators if op.phase == OPTIMIZER]


def kernels(workload: Workload) -> float:
    return sum(float(str(op.attributes.get("kernels", 1))) for op in workload.operators)


def loops(weights: int, shape: tuple[int, ...] = (64,)) -> Workload:
    """SGD with momentum on a CPU: two operators for each weight, and a count of steps for each."""
    tensors: dict[int, Tensor] = {}

    def tensor(role: str, of: tuple[int, ...]) -> int:
        number, size_bytes = len(tensors) + 1, 4 * math.prod(of)
        tensors[number] = Tensor(id=number, shape=of, dtype="float32", size_bytes=size_bytes, storage=number, role=role)
        return number

    operators: list[Operator] = []
    for _ in range(weights):
        weight, gradient = tensor("weight", shape), tensor("gradient", shape)
        state, count = tensor("optimizer_state", shape), tensor("optimizer_state", ())
        calls = (("aten::add_", (count,)), ("aten::mul_", (state,)), ("aten::add_", (weight, state, gradient)))
        for name, inputs in calls:
            operators.append(Operator(id=len(operators) + 1, name=name, phase=OPTIMIZER, inputs=inputs,
                                      outputs=inputs[:1], gpu_time_ps=7))  # fmt: skip
    return Workload(name="loops", source="test", format="pytorch", gpu=None, batch=1, operators=tuple(operators),
                    tensors=tensors, parameters=(), missing=("GPU kernels",))  # fmt: skip


def test_a_loop_over_weights_becomes_foreach_operators() -> None:
    recorded = load(PAIR)
    eager = on_gpu(recorded, EAGER)
    assert {op.name for op in optimizer(eager)} == {f"aten::_foreach_{name}" for name in LOOPS}  # 0.9.0: 79 operators
    assert Counter(op.name for op in optimizer(recorded))["aten::lerp_"] == 8

    def elements(workload: Workload, names: tuple[str, ...]) -> int:
        ops = [op for op in optimizer(workload) if op.name.rpartition("::")[2] in names]
        return sum(workload.tensors[i].size_bytes for op in ops for i in op.inputs if workload.tensors[i].shape)

    assert elements(eager, tuple(f"_foreach_{name}" for name in LOOPS)) == elements(recorded, LOOPS)


def test_software_with_a_fused_optimizer_runs_one_operator() -> None:
    recorded = load(PAIR)
    (fused,) = optimizer(on_gpu(recorded, load_software("megatron-core")))
    assert fused.name == "aten::_fused_adam_"
    roles = Counter(recorded.tensors[i].role for i in fused.inputs)
    assert roles == {"weight": 8, "gradient": 8, "optimizer_state": 16}
    assert optimizer(on_gpu(recorded, None))[0].name == "aten::_fused_adam_"


@pytest.mark.parametrize(
    ("weights", "shape", "launches"),
    [(2, (64,), (1, 1)), (36, (64,), (1, 1)), (48, (64,), (1, 1)), (49, (64,), (1, 2)), (111, (64,), (2, 3)),
     (2, (200, 65536), (2, 2))],
)  # fmt: skip
def test_launches_follow_the_limits_of_foreach_kernels(
    weights: int, shape: tuple[int, ...], launches: tuple[int, int]
) -> None:
    """110 tensors of one list, 48 of three; 320 blocks of 65,536 elements."""
    made = on_gpu(loops(weights, shape), EAGER)
    assert [op.attributes.get("kernels", 1) for op in made.operators] == list(launches)
    assert [op.name for op in made.operators] == ["aten::_foreach_mul_", "aten::_foreach_add_"]
    assert made.assumptions == (
        f"{3 * weights} optimizer operators, one for each tensor as a CPU runs them, became 2 foreach operators "
        f"({sum(launches)} kernel launches), as {EAGER.name} runs them on a GPU",
    )


def test_a_recorded_foreach_operator_launches_for_the_list_that_it_updates() -> None:
    """110 tensors of one list, 48 of three: its other lists cost no further launches."""
    made = on_gpu(loops(111), EAGER)
    multiply, update = made.operators
    lists = replace(update, name="aten::_foreach_addcdiv_", attributes={})
    recorded = replace(made, operators=(replace(multiply, attributes={}), lists))
    assert [op.attributes["kernels"] for op in on_gpu(recorded, EAGER).operators] == [2, 3]


def test_one_weight_needs_no_foreach_operator_and_a_fused_one_needs_weights() -> None:
    alone = on_gpu(loops(1), EAGER)
    assert [op.name for op in alone.operators] == ["aten::mul_", "aten::add_"]  # the count of steps stays on the CPU
    assert alone.assumptions == ()
    assert [op.name for op in on_gpu(loops(1), None).operators] == ["aten::_fused_sgd_"]
    recorded = loops(2)
    tensors = {i: replace(t, role="optimizer_state") for i, t in recorded.tensors.items()}
    assert [op.name for op in on_gpu(replace(recorded, tensors=tensors), None).operators] == [
        "aten::_foreach_mul_", "aten::_foreach_add_",
    ]  # fmt: skip


def test_operators_of_one_name_may_have_different_numbers_of_inputs() -> None:
    """Adam's first step has no second moment yet: three inputs, then two."""
    recorded = loops(3)
    short = recorded.operators[-1]
    assert short.name == "aten::add_"
    shorter = replace(recorded, operators=(*recorded.operators[:-1], replace(short, inputs=short.inputs[:2])))
    (_, added) = on_gpu(shorter, EAGER).operators
    assert len(added.inputs) == 3 * 3 - 1


def test_backward_operators_without_kernels_stay_if_the_trace_has_no_others() -> None:
    recorded = loops(2)
    first = recorded.operators[0]
    backward = [
        replace(first, id=100 + i, name=name, phase=BACKWARD, attributes={"kernels": kernels})
        for i, (name, kernels) in enumerate((("ViewBackward0", 0), ("MulBackward0", 1)))
    ]
    for kept in (1, 2):
        made = on_gpu(replace(recorded, operators=(*backward[:kept], *recorded.operators)), EAGER)
        assert [op.name for op in made.operators if op.phase == BACKWARD] == [backward[kept - 1].name]


def test_what_launches_no_kernel_is_left_out_and_gradients_stay_tied() -> None:
    recorded = load(PAIR)
    made = on_gpu(recorded, EAGER)
    names = {op.name.rpartition(": ")[2] for op in made.operators}
    assert not names & {"torch::autograd::AccumulateGrad", "aten::item", "ViewBackward0", "aten::detach"}
    assert {"aten::conv2d", "ConvolutionBackward0", "AddmmBackward0"} <= names
    ids = {op.id: op for op in made.operators}
    assert len(made.parameters) == 8
    for parameter in made.parameters:
        assert parameter.gradient_operator is not None
        assert ids[parameter.gradient_operator].phase == BACKWARD
    counts = {op.name.rpartition(": ")[2]: op.attributes.get("kernels", 1) for op in made.operators}
    assert counts["AddmmBackward0"] == 3  # two products and a sum
    assert counts["aten::cross_entropy_loss"] == 2  # log-softmax and nll
    assert counts["aten::linear"] == 1


def test_launches_are_on_and_bound_a_small_step() -> None:
    busy = trine.simulate(PAIR, gpu="h100-sxm")
    without = trine.simulate(PAIR, gpu="h100-sxm", cpu=False)
    expected = 15e-6 * kernels(on_gpu(load(PAIR), EAGER))
    assert busy.step_time_s == pytest.approx(expected, rel=0.15)  # 0.9.0: as without launches
    assert without.step_time_s < 0.5 * busy.step_time_s
    texts = [f"{row.what}: {row.detail}" for row in busy.evidence]
    assert any("15 us of CPU time per kernel launch" in text for text in texts)
    assert any("became 7 foreach operators" in text and "pytorch-eager" in text for text in texts)
    slower = trine.simulate(PAIR, gpu="h100-sxm", software="megatron-core")
    assert slower.step_time_s > 2 * busy.step_time_s  # 60 us a kernel


def test_a_step_with_times_of_a_gpu_stays_as_it_is() -> None:
    for workload in (load(CSV), replace(loops(3), missing=(), gpu="h100-sxm")):
        assert on_gpu(workload, EAGER) is workload


@pytest.mark.parametrize(
    ("options", "warned"), [({}, 1), ({"cpu": True}, 0), ({"cpu": False}, 0), ({"launch_cost_ps": 5}, 0)]
)
def test_a_trace_without_a_cpu_side_is_warned_of_once(options: dict[str, object], warned: int) -> None:
    result = trine.simulate(CSV, **options)
    assert sum("no CPU side" in text for text in result.warnings) == warned
    if not options:
        assert result.step_time_ps == trine.simulate(CSV, cpu=False).step_time_ps
