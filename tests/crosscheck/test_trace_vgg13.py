"""Do two recordings of one model, in two formats and at two batch sizes, agree?"""

from __future__ import annotations

from pathlib import Path

import pytest

from trine.graph.workload import Workload
from trine.workload import compare, load

DATA = Path(__file__).parents[1] / "data"
LINEAR_BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


@pytest.fixture(scope="module")
def small() -> Workload:
    return load("vgg13-h100-b128")


@pytest.fixture(scope="module")
def large() -> Workload:
    return load(DATA / "vgg13-raw-b512")


def test_recorded_sums(small: Workload, large: Workload) -> None:
    assert sum(op.gpu_time_ps for op in small.operators) == 94_038_000_000
    assert sum(op.gpu_time_ps for op in load("resnet50-h100-b128").operators) == 70_723_000_000
    # 346.370 ms of kernels; 4 us of them overlap, as the profiler records whole microseconds
    assert sum(sum(op.kernel_times_ps) for op in large.operators) == 346_370_000_000
    assert sum(op.gpu_time_ps for op in large.operators) == 346_366_000_000


def test_batches(small: Workload, large: Workload) -> None:
    assert (small.batch, large.batch) == (128, 512)
    assert large.gpu == "NVIDIA H100 80GB HBM3"


def test_same_sequence_phases_links_and_parameters(small: Workload, large: Workload) -> None:
    """The only differences are the operands of the linear layers' backward, which the CSV does not list."""
    differences = compare(small, large)
    assert {(d.name, d.what) for d in differences} == {(LINEAR_BACKWARD, "inputs"), (LINEAR_BACKWARD, "outputs")}
    assert len(differences) == 6
    assert [op.name for op in small.operators] == [op.name for op in large.operators]
    assert len(small.operators) == 77


@pytest.mark.parametrize(("name", "total", "count"), [("vgg13", 532_191_392, 26), ("resnet50", 102_228_128, 161)])
def test_parameters_of_the_bundled_traces(name: str, total: int, count: int) -> None:
    workload = load(f"{name}-h100-b128")
    assert sum(p.size_bytes for p in workload.parameters) == total
    assert len(workload.parameters) == count
    operators = {op.id: op for op in workload.operators}
    for parameter in workload.parameters:
        assert parameter.gradient is not None
        assert parameter.gradient_operator is not None
        operator = operators[parameter.gradient_operator]
        weight, gradient = workload.tensors[parameter.weight], workload.tensors[parameter.gradient]
        assert operator.phase == "backward"
        assert (weight.shape, weight.role, gradient.role) == (gradient.shape, "weight", "gradient")
        # the operator differentiates the weight's reader
        assert operator.forward_id is not None
        forward = operators[operator.forward_id]
        assert weight.storage in {workload.tensors[i].storage for i in forward.inputs}


def test_only_data_and_activations_scale(small: Workload, large: Workload) -> None:
    for workload in (small, large, load("resnet50-h100-b128")):
        for tensor in workload.tensors.values():
            if tensor.role in ("weight", "buffer", "gradient", "optimizer_state"):
                assert tensor.batch_dims == ()
            elif len(tensor.shape) > 1 or tensor.role == "input":
                assert tensor.batch_dims == (0,)
            else:  # losses, statistics of normalisation, absent tensors
                assert tensor.batch_dims == ()


def test_every_backward_operator_has_its_forward(small: Workload, large: Workload) -> None:
    for workload in (small, large):
        layers = {op.id: op.layer for op in workload.operators}
        for op in workload.operators:
            if op.phase == "backward":
                assert op.forward_id is not None
                assert op.layer == layers[op.forward_id]
    forward = [op.layer for op in small.operators if op.phase == "forward"]
    assert len(forward) == len(set(forward))


def test_a_view_shares_the_storage_of_what_it_shows(small: Workload) -> None:
    assert small.tensors[199].storage == small.tensors[205].storage  # (B, 512, 7, 7) and (B, 25088)
    assert small.tensors[205].batch_dims == (0,)


def test_memory_that_is_used_again_is_another_storage(small: Workload) -> None:
    # a backward operator writes 487 into storage 183 (the file's name for it), which held activation 182
    assert small.tensors[487].storage != small.tensors[182].storage


def test_profiler_alone_gives_the_same_operators_and_parameters(large: Workload) -> None:
    alone = load(kineto=DATA / "vgg13-raw-b512" / "profiler" / "profiler_vgg13-iter41.json.gz")
    assert [(op.name, op.phase, op.gpu_time_ps, op.forward_id) for op in alone.operators] == [
        (op.name, op.phase, op.gpu_time_ps, op.forward_id) for op in large.operators
    ]
    assert [(p.size_bytes, p.gradient_operator) for p in alone.parameters] == [
        (p.size_bytes, p.gradient_operator) for p in large.parameters
    ]
    assert any("execution trace" in what for what in alone.missing)
    assert any("matched to earlier outputs by shape" in text for text in alone.assumptions)


def test_attributes_and_launches_come_from_the_pair(large: Workload) -> None:
    first = large.operators[0]
    assert first.name == "aten::conv2d"
    assert first.attributes == {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    starts = [op.launch_start_ps for op in large.operators]
    assert all(start is not None and start >= 0 for start in starts)
    assert all(op.launch_duration_ps for op in large.operators)
