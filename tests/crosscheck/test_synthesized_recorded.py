"""Are synthesised workloads those that were recorded, and are their times near measured ones?"""

import pytest

import trine
from trine.compute import Roofline, Shares, Split, work
from trine.graph.workload import Operator, Tensor, Workload

#: Microseconds of bfloat16 kernels on an H100 SXM and an A100 SXM; NVIDIA aiconfigurator (Apache-2.0), tables
#: h100_sxm/trtllm_1.3.0rc20 and a100_sxm/trtllm_1.0.0, gemm_perf (rows, columns, inner) and context_attention_perf
#: (batch, tokens, heads, heads of keys and values; head size 128).
PRODUCTS = {
    (8192, 16384, 8192): (2831.55, 8413.08),
    (8192, 4096, 4096): (343.59, 1035.54),
    (4096, 12288, 12288): (1603.17, 4782.25),
    (2048, 4096, 16384): (373.53, 1024.24),
    (8192, 10240, 8192): (1733.83, 5151.16),
    (1, 8192, 8192): (49.18, 88.0),
    (1, 16384, 4096): (50.23, 98.47),
}
ATTENTION = {
    (1, 8192, 32, 8): (1084.5, 4001.1),
    (1, 4096, 32, 8): (338.7, 1145.3),
    (2, 8192, 64, 8): (4380.5, 15402.0),
    (1, 16384, 16, 2): (2002.8, 7768.1),
}
GPUS = ("h100-sxm", "a100-80gb")


@pytest.mark.parametrize(("model", "trace"), [("vgg13", "vgg13-h100-b128"), ("resnet50", "resnet50-h100-b128")])
def test_operators_shapes_and_bytes_are_those_of_the_recorded_trace(model, trace):
    made, recorded = trine.synthesize(model), trine.load(trace)
    assert len(made.operators) == len(recorded.operators)
    for one, other in zip(made.operators, recorded.operators, strict=True):
        assert (one.name, one.phase, one.layer) == (other.name, other.phase, other.layer)
        assert work(one, made) == work(other, recorded), one.layer
        if one.phase == "forward":
            for mine, theirs in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
                assert shapes(made, mine) == shapes(recorded, theirs), one.layer
    assert [p.size_bytes for p in made.parameters] == [p.size_bytes for p in recorded.parameters]


def shapes(workload, ids):
    found = (workload.tensors[i] for i in ids)
    return [(t.shape, t.dtype, t.role, t.batch_dims) for t in found if t.size_bytes]


@pytest.mark.parametrize(("model", "trace"), [("vgg13", "vgg13-h100-b128"), ("resnet50", "resnet50-h100-b128")])
def test_fitted_times_of_a_recorded_model_are_the_recorded_ones(model, trace):
    made, recorded = (sum(op.gpu_time_ps for op in w.operators) for w in (trine.synthesize(model), trine.load(trace)))
    assert made == pytest.approx(recorded, rel=0.002)  # operators of one shape were recorded at several times


def test_fitted_on_one_network_alone_they_are_near_those_of_the_other():
    """vgg13 from the operators of resnet50 and the reverse: they share hardly a shape."""
    for model, trace, own in (("vgg13", "resnet50-h100-b128", "vgg13-h100-b128"),
                              ("resnet50", "vgg13-h100-b128", "resnet50-h100-b128")):  # fmt: skip
        made = trine.synthesize(model, calibration=trine.calibrate([trine.load(trace)]))
        recorded = sum(op.gpu_time_ps for op in trine.load(own).operators)
        assert sum(op.gpu_time_ps for op in made.operators) == pytest.approx(recorded, rel=0.12)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("shape", sorted(PRODUCTS))
def test_products_are_near_measured_ones(shape, gpu):
    rows, columns, inner = shape
    found = predicted_us("aten::linear", [(rows, inner), (columns, inner)], (rows, columns), gpu)
    assert found == pytest.approx(PRODUCTS[shape][GPUS.index(gpu)], rel=0.25)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("shape", sorted(ATTENTION))
def test_attention_is_near_measured_ones(shape, gpu):
    batch, tokens, heads, kv_heads = shape
    q, k = (batch, heads, tokens, 128), (batch, kv_heads, tokens, 128)
    found = predicted_us("scaled_dot_product_flash_attention", [q, k, k], q, gpu, causal=True)
    assert found == pytest.approx(ATTENTION[shape][GPUS.index(gpu)], rel=0.35)


def predicted_us(name, inputs, output, gpu, **attributes):
    sizes = {}
    for i, shape in enumerate([*inputs, output]):
        size = 2
        for length in shape:
            size *= length
        sizes[i] = Tensor(id=i, shape=shape, dtype="bfloat16", size_bytes=size, storage=i, role="activation")
    ids = tuple(range(len(inputs)))
    operator = Operator(
        id=1, name=name, phase="forward", inputs=ids, outputs=(len(inputs),), gpu_time_ps=0, attributes=attributes
    )
    workload = Workload(
        name=name, source="", format="", gpu=None, batch=1, operators=(operator,), tensors=sizes, parameters=()
    )
    return Roofline(workload, trine.load_gpu(gpu), Shares()).duration(operator, Split(1)).ps / 1e6
