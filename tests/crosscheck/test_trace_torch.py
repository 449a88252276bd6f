"""Are traces of torch 2.13 read correctly: a transformer with equal heads and samples, a CNN with batch norm?"""

from __future__ import annotations

from pathlib import Path

import pytest

from trine.graph.workload import Operator, Workload
from trine.workload import load

DATA = Path(__file__).parents[1] / "data" / "torch213-cpu"


@pytest.fixture(scope="module")
def transformer() -> Workload:
    return load(DATA / "tf_kineto.json.gz")


def shapes(workload: Workload, op: Operator) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(workload.tensors[i].shape, workload.tensors[i].batch_dims) for i in op.outputs]


def named(workload: Workload, name: str) -> Operator:
    return next(op for op in workload.operators if op.name == name)


def test_either_half_finds_the_other(transformer: Workload) -> None:
    assert load(DATA / "tf_et.json.gz") == transformer
    assert load(kineto=DATA / "tf_kineto.json.gz", execution_trace=DATA / "tf_et.json.gz") == transformer


def test_batch_dimension_through_attention(transformer: Workload) -> None:
    """Batch 4, 4 heads, 32 tokens, 64 features: only the first 4 scales."""
    assert transformer.batch == 4
    assert shapes(transformer, named(transformer, "aten::embedding")) == [((4, 32, 64), (0,))]
    attention = named(transformer, "aten::scaled_dot_product_attention")
    assert shapes(transformer, attention) == [((4, 4, 32, 16), (0,))]
    assert attention.attributes["causal"] is True
    loss = named(transformer, "aten::cross_entropy_loss")
    assert [transformer.tensors[i].shape for i in loss.inputs] == [(128, 100), (128,)]
    assert [transformer.tensors[i].batch_dims for i in loss.inputs] == [(0,), (0,)]
    linear = named(transformer, "autograd::engine::evaluate_function: AddmmBackward0")
    assert shapes(transformer, linear) == [((128, 64), (0,)), ((64, 100), ()), ((100,), ())]


def test_roles(transformer: Workload) -> None:
    inputs = [t for t in transformer.tensors.values() if t.role == "input"]
    assert sorted(t.shape for t in inputs) == [(4, 32), (4, 32), (128,)]
    assert len(transformer.parameters) == 27
    assert all(p.gradient is not None and p.gradient_operator is not None for p in transformer.parameters)
    scaling = {t.role for t in transformer.tensors.values() if t.batch_dims}
    assert scaling == {"input", "activation"}


def test_registration_order_is_the_optimizers(transformer: Workload) -> None:
    first = [transformer.tensors[p.weight].shape for p in transformer.parameters[:4]]
    assert first == [(100, 64), (64,), (64,), (64,)]  # embedding, then both norms of the first block


def test_batch_norm_keeps_buffers_and_statistics_apart() -> None:
    workload = load(DATA / "cnn_kineto.json.gz")
    assert workload.batch == 8
    norm = named(workload, "aten::batch_norm")
    assert [workload.tensors[i].role for i in norm.inputs] == ["activation", "weight", "weight", "buffer", "buffer"]
    backward = named(workload, "autograd::engine::evaluate_function: NativeBatchNormBackward0")
    assert shapes(workload, backward) == [((8, 16, 32, 32), (0,)), ((16,), ()), ((16,), ())]
    assert len(workload.parameters) == 8


def test_no_kernels_means_cpu_times_and_says_so(transformer: Workload) -> None:
    assert "GPU kernels" in transformer.missing
    assert any("CPU time" in text for text in transformer.assumptions)
    assert all(op.launch_start_ps is None for op in transformer.operators)
    assert transformer.gpu is None


def test_a_given_batch_is_checked() -> None:
    from trine.errors import TraceError

    assert load(DATA / "tf_kineto.json.gz", batch=4).batch == 4
    # 32 tokens as the batch, as in a trace in (S, B) order
    other = load(DATA / "tf_kineto.json.gz", batch=32)
    assert shapes(other, named(other, "aten::embedding")) == [((4, 32, 64), (1,))]
    with pytest.raises(TraceError, match="batch 7"):
        load(DATA / "tf_kineto.json.gz", batch=7)


def test_files_of_different_runs_are_refused() -> None:
    from trine.errors import TraceError

    with pytest.raises(TraceError, match="different runs"):
        load(kineto=DATA / "tf_kineto.json.gz", execution_trace=DATA / "cnn_et.json.gz")


def test_a_folder_with_several_traces_is_refused() -> None:
    from trine.errors import TraceError

    with pytest.raises(TraceError, match="name one"):
        load(DATA)
