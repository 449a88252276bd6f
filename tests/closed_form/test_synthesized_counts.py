"""Do synthesised models have the parameters, FLOPs, bytes and times given by formulas?"""

from math import prod

import pytest

import trine
from trine.compute import Shares, kind_of, make_compute, work
from trine.compute.resize import Split
from trine.workload.synthesis.model_files import load_model

#: As published: model cards and papers; torchvision's documentation.
PUBLISHED = {
    "llama-3-405b": 405_853_388_800,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-2-7b": 6_738_415_616,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "gpt-2": 124_439_808,
    "gpt-2-xl": 1_557_611_200,
    "vgg11": 132_863_336,
    "vgg19": 143_667_240,
    "bloom-176b": 176_247_271_424,  # Hugging Face, bigscience/bloom
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
}


def parameters(workload):
    return sum(prod(workload.tensors[p.weight].shape) for p in workload.parameters)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_as_published(name):
    assert parameters(trine.synthesize(name)) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt-3-175b", 175.0), ("gpt-3-13b", 13.0), ("gpt-3-6.7b", 6.7), ("opt-175b", 175.0)]
)
def test_parameters_of_models_with_learned_positions_round_to_the_published_ones(name, billions):
    assert parameters(trine.synthesize(name)) == pytest.approx(billions * 1e9, rel=0.013)


def flops(workload, kind):
    return sum(work(op, workload).flops for op in workload.operators if kind_of(op) == kind)


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-2", "qwen3-8b"])
def test_products_are_two_flops_a_weight_and_token_in_each_of_three_passes(name):
    spec, batch, sequence, layers = load_model(name), 2, 512, 3
    workload = trine.synthesize(name, batch=batch, sequence=sequence, layers=layers)
    up = 2 if spec.activation == "swiglu" else 1
    a_layer = spec.hidden * (spec.qkv + spec.heads * spec.head_size + (up + 1) * spec.ffn)
    weights, tokens = layers * a_layer + spec.vocab * spec.hidden, batch * sequence
    assert flops(workload, "linear") == 2 * weights * tokens
    assert flops(workload, "linear backward") == 4 * weights * tokens
    scores = layers * batch * spec.heads * sequence**2 * spec.head_size
    assert flops(workload, "attention") == 4 * scores
    assert flops(workload, "attention backward") == 10 * scores


def test_a_whole_model_takes_six_flops_a_parameter_and_token():
    workload = trine.synthesize("llama-3-405b")
    total = flops(workload, "linear") + flops(workload, "linear backward")
    assert total == pytest.approx(6 * PUBLISHED["llama-3-405b"] * 8192, rel=0.006)  # the embedding multiplies nothing


def test_experts_work_on_their_tokens_alone():
    spec, workload = load_model("mixtral-8x7b"), trine.synthesize("mixtral-8x7b", layers=2, sequence=256)
    experts = [op for op in workload.operators if op.attributes.get("expert") and "grouped" in op.name]
    total = sum(work(op, workload).flops for op in experts)
    assert total == 3 * 2 * (2 * 256 * 2) * 3 * spec.hidden * spec.experts.ffn
    weights = {workload.tensors[i].shape for op in experts for i in op.inputs if workload.tensors[i].role == "weight"}
    assert weights == {(8, 4096, 28672), (8, 14336, 4096)}
    assert all(op.attributes["num_experts"] == 8 and op.attributes["top_k"] == 2 for op in experts)


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-2"])
def test_a_layer_keeps_for_the_backward_pass_what_autograd_saves(name):
    """Bytes per layer, derived by hand from the operators' derivatives."""
    spec, sequence = load_model(name), load_model(name).sequence  # long enough for the peak to be at the loss
    peaks = []
    for layers in (3, 4):
        workload = trine.synthesize(name, sequence=sequence, layers=layers)
        result = trine.simulate(workload, trine.Plan())
        peaks.append(result.memory_peaks[0].by_category["activations"])
    stream, attended = 2 * sequence * spec.hidden, 2 * sequence * spec.heads * spec.head_size
    norms = 2 * (2 * stream + (4 if spec.norm == "rms" else 8) * sequence)  # inputs, outputs and statistics
    attention = 2 * sequence * spec.qkv + attended + 4 * sequence * spec.heads  # q, k, v, output, sums of scores
    up = 2 if spec.activation == "swiglu" else 1
    assert peaks[1] - peaks[0] == norms + attention + 2 * sequence * (up + 1) * spec.ffn


def test_transitions_of_densenet_halve_channels_and_both_sides():
    """Huang et al., CVPR 2017, table 1: 56, 28, 14 and 7 on a side for pictures of 224."""
    workload = trine.synthesize("densenet121", batch=2)
    pools = [op for op in workload.operators if op.name == "aten::avg_pool2d"]
    shapes = [workload.tensors[op.outputs[0]].shape for op in pools]
    assert shapes == [(2, 128, 28, 28), (2, 256, 14, 14), (2, 512, 7, 7)]


@pytest.mark.parametrize(("dtype", "bytes_a_parameter"), [("float32", 4 + 8), ("bfloat16", 2 + 4 + 8)])
def test_encoder_decoders_keep_a_master_copy_of_weights_in_sixteen_bits_only(dtype, bytes_a_parameter):
    workload = trine.synthesize("t5-small", layers=1, batch=2, sequence=64, dtype=dtype)
    roles = ("weight", "optimizer_state")
    unique = {t.storage: t.size_bytes for t in workload.tensors.values() if t.role in roles}
    assert sum(unique.values()) == pytest.approx(bytes_a_parameter * int(workload.metadata["parameters"]), rel=0.001)


def test_adam_keeps_twelve_bytes_a_parameter_beside_sixteen_bit_weights():
    workload = trine.synthesize("gpt-2")
    state = {t.storage: t.size_bytes for t in workload.tensors.values() if t.role == "optimizer_state"}
    assert sum(state.values()) == 12 * parameters(workload)
    adam, copy = (op for op in workload.operators if op.phase == "optimizer")
    assert work(adam, workload).bytes == (14 + 12) * parameters(workload)  # read: a gradient of 2, three of 4
    assert work(copy, workload).bytes == (6 + 2) * parameters(workload)


def test_the_roofline_is_the_slower_of_arithmetic_and_memory():
    shares = {"matmul": 0.5, "attention": 0.25, "memory": 0.8, "fixed_us": 2}
    workload = trine.synthesize("llama-3-8b", layers=1, sequence=4096, shares=shares, gpu="a100-80gb", software="none")
    by_layer = {op.layer: op for op in workload.operators if op.phase == "forward"}
    product = by_layer["layers.0.mlp.down"]
    seconds = 2 * 4096 * 14336 * 4096 / (312e12 * 0.5)
    assert product.gpu_time_ps == pytest.approx(2e6 + seconds * 1e12, abs=1)
    causal = by_layer["layers.0.attention.core"]
    seconds = 4 * 32 * 4096**2 * 128 / 2 / (312e12 * 0.25)
    assert causal.gpu_time_ps == pytest.approx(2e6 + seconds * 1e12, abs=1)
    norm = by_layer["layers.0.mlp.norm"]
    num_bytes = 2 * 2 * 4096 * 4096 + 2 * 4096 + 4 * 4096
    assert norm.gpu_time_ps == pytest.approx(2e6 + num_bytes / (2039e9 * 0.8) * 1e12, abs=1)


@pytest.mark.parametrize(("batch", "ways", "mode"), [(1, 1, ""), (4, 1, ""), (1, 8, "column"), (2, 4, "column")])
def test_at_other_sizes_the_roofline_is_that_of_the_smaller_or_larger_operator(batch, ways, mode):
    workload = trine.synthesize("llama-3-8b", layers=1, sequence=4096, times="roofline")
    model = make_compute("auto", workload)
    op = next(op for op in workload.operators if op.layer == "layers.0.mlp.gate_up")
    found = model.duration(op, Split(batch, ways, mode))
    seconds = 2 * batch * 4096 * 4096 * (28672 // ways) / (989.4e12 * Shares().matmul)
    assert found.ps == pytest.approx(3e6 + seconds * 1e12, abs=1)
    assert found.evidence == "assumed"
