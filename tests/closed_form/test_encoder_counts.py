"""Do encoders, encoder-decoders and grouped convolutions match published parameter counts and FLOP formulas?"""

from math import prod

import pytest
from folded_cases import assert_folded_is_unfolded

import trine
from trine.compute import Shares, kind_of, make_compute, work
from trine.compute.resize import Split
from trine.parallel.splits import split_operators
from trine.parallel.stages import cut_into_stages, owned_weights
from trine.parallel.tensor_layout import local_parameter_bytes
from trine.software.profile import OperatorStyle, Software
from trine.workload.synthesis.model_files import load_model

#: Parameter counts from safetensors of the Hugging Face checkpoints, torchvision's docs, and osmr/imgclsmob's table.
PUBLISHED = {
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "flan-t5-small": 76_961_152,
    "flan-t5-base": 247_577_856,
    "flan-t5-large": 783_150_080,
    "flan-t5-xl": 2_849_757_184,
    "flan-t5-xxl": 11_135_332_352,
    "resnext50-32x4d": 25_028_904,
    "resnext101-32x4d": 44_177_704,
    "resnext101-32x8d": 88_791_336,
    "resnext101-64x4d": 83_455_272,
    "se-resnext101-32x4d": 48_955_416,
}
#: Forward multiply-adds per image from osmr/imgclsmob's table (MFLOPs there), including batch norm and others.
MULTIPLY_ADDS = {"resnext101-32x4d": 8_003.45e6, "se-resnext101-32x4d": 8_012.73e6, "resnext101-64x4d": 15_500.27e6}


def parameters(workload):
    return sum(prod(workload.tensors[p.weight].shape) for p in workload.parameters)


def flops(workload, kind):
    return sum(work(op, workload).flops for op in workload.operators if kind_of(op) == kind)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_as_published(name):
    workload = trine.synthesize(name, batch=1)
    assert parameters(workload) == PUBLISHED[name]
    assert workload.metadata["parameters"] == str(PUBLISHED[name])


def test_products_of_bert_are_two_flops_a_weight_and_token_in_each_of_three_passes():
    spec, batch, sequence, layers = load_model("bert-base"), 2, 256, 3
    workload = trine.synthesize("bert-base", batch=batch, sequence=sequence, layers=layers)
    h, tokens = spec.hidden, batch * sequence
    a_token = layers * (4 * h * h + 2 * h * spec.ffn) + h * h + spec.vocab * h
    a_sample = h * h + 2 * h
    assert flops(workload, "linear") == 2 * (a_token * tokens + a_sample * batch)
    assert flops(workload, "linear backward") == 4 * (a_token * tokens + a_sample * batch)
    scores = layers * batch * spec.heads * sequence**2 * (h // spec.heads)
    assert flops(workload, "attention") == 4 * scores
    assert flops(workload, "attention backward") == 10 * scores


@pytest.mark.parametrize(("name", "up"), [("t5-base", 1), ("flan-t5-base", 2)])
def test_products_of_t5_follow_the_tokens_of_encoder_and_decoder(name, up):
    spec, batch, sequence, target, layers = load_model(name), 2, 256, 96, 3
    workload = trine.synthesize(name, batch=batch, sequence=sequence, target=target, layers=layers)
    h, mlp = spec.hidden, (up + 1) * spec.hidden * spec.ffn
    attention = 4 * h * spec.attended
    encoder = layers * (attention + mlp + 2 * h * spec.attended)  # with the keys and values of the decoder's layers
    decoder = layers * (attention + mlp + 2 * h * spec.attended) + spec.vocab * h
    products = batch * (encoder * sequence + decoder * target)
    assert flops(workload, "linear") == 2 * products
    assert flops(workload, "linear backward") == 4 * products
    scores = layers * batch * spec.attended * (sequence**2 + target**2 + sequence * target)
    assert flops(workload, "attention") == 4 * scores
    assert flops(workload, "attention backward") == 10 * scores


def test_a_whole_t5_takes_six_flops_a_parameter_and_token_where_both_read_as_many():
    workload = trine.synthesize("t5-11b", sequence=512, target=512)
    spec = load_model("t5-11b")
    total = flops(workload, "linear") + flops(workload, "linear backward")
    assert total == pytest.approx(6 * PUBLISHED["t5-11b"] * 512, rel=0.001)
    assert spec.vocab * spec.hidden < 0.004 * PUBLISHED["t5-11b"]


@pytest.mark.parametrize("name", sorted(MULTIPLY_ADDS))
def test_grouped_convolutions_do_the_work_of_their_groups(name):
    workload = trine.synthesize(name, batch=2)
    counted = (flops(workload, "conv") + flops(workload, "linear")) / 2 / 2
    assert counted == pytest.approx(MULTIPLY_ADDS[name], rel=0.005)
    grouped = [op for op in workload.operators if op.attributes.get("groups", 1) != 1 and op.phase == "forward"]
    assert len(grouped) == 33
    for op in grouped:
        x, weight, y = (workload.tensors[t] for t in (*op.inputs, *op.outputs))
        assert weight.shape[1] * op.attributes["groups"] == x.shape[1]
        assert work(op, workload).flops == 2 * 2 * prod(weight.shape) * y.shape[2] * y.shape[3]


def test_squeeze_and_excitation_adds_two_products_of_the_means_a_block():
    plain, excited = (trine.synthesize(name, batch=1) for name in ("resnext101-32x4d", "se-resnext101-32x4d"))
    channels = [256] * 3 + [512] * 4 + [1024] * 23 + [2048] * 3
    assert flops(excited, "conv") - flops(plain, "conv") == sum(2 * 2 * c * c // 16 for c in channels)


# -- precision ---------------------------------------------------------------------------------------------------------


def by_precision(name="resnext50-32x4d"):
    asked = {"batch": 4, "gpu": "a100-80gb", "software": "none"}
    return {dtype: trine.synthesize(name, dtype=dtype, **asked) for dtype in ("fp32", "tf32", "amp")}


def test_all_precisions_do_the_same_arithmetic_and_reduce_the_same_gradients():
    found = by_precision()
    assert len({flops(w, "conv") + flops(w, "conv backward") for w in found.values()}) == 1
    assert {sum(p.size_bytes for p in w.parameters) for w in found.values()} == {4 * PUBLISHED["resnext50-32x4d"]}
    gradients = [w.tensors[p.gradient].dtype for w in found.values() for p in w.parameters]
    assert set(gradients) == {"float32"}


def test_mixed_precision_copies_each_weight_of_a_product_once_and_its_gradient_back():
    workload = by_precision()["amp"]
    products = [op for op in workload.operators if op.phase == "forward" and kind_of(op) in ("conv", "linear")]
    weights = [t for op in products for t in op.inputs[1:]]
    copies = [
        op for op in workload.operators if "_to_copy" in op.name and workload.tensors[op.inputs[0]].role == "weight"
    ]
    assert sorted(op.inputs[0] for op in copies) == sorted(weights)
    assert {workload.tensors[op.outputs[0]].dtype for op in copies} == {"float16"}
    back = {op.outputs[0] for op in workload.operators if "ToCopyBackward0" in op.name}
    assert {p.gradient for p in workload.parameters if p.weight in weights} <= back
    activations = {workload.tensors[op.outputs[0]].dtype for op in products}
    assert activations == {"float16"}
    norms = [op for op in workload.operators if op.name == "aten::batch_norm"]
    assert {workload.tensors[t].dtype for op in norms for t in op.inputs[1:]} == {"float32"}
    (unscale,) = (op for op in workload.operators if "unscale" in op.name)
    assert len(unscale.inputs) == len(workload.parameters)


def test_the_peak_of_a_convolution_is_that_of_its_precision():
    gpu, times = trine.load_gpu("a100-80gb"), {}
    shares = Shares(conv=0.01, fixed_us=0)  # far below the memory bound
    for dtype in ("fp32", "tf32", "amp"):
        workload = trine.synthesize(
            "resnext50-32x4d", batch=32, dtype=dtype, gpu=gpu.name, shares={"conv": 0.01, "fixed_us": 0}
        )
        op = next(op for op in workload.operators if op.attributes.get("groups") == 32)
        times[dtype] = op.gpu_time_ps, work(op, workload).flops
    for dtype, peak in (("fp32", "float32"), ("tf32", "tfloat32"), ("amp", "float16")):
        ps, count = times[dtype]
        assert ps == pytest.approx(count / (gpu.flop_per_s[peak] * shares.conv) * 1e12, rel=1e-6)


def test_float32_without_tf32_is_slower_and_mixed_precision_faster():
    steps = {dtype: trine.simulate(w, trine.Plan(batch=4)).step_time_s for dtype, w in by_precision().items()}
    assert steps["amp"] < steps["tf32"] < steps["fp32"]


def test_mixed_precision_keeps_about_half_of_the_activations():
    peaks = {}
    for dtype, workload in by_precision("resnet50").items():
        result = trine.simulate(workload, trine.Plan(batch=64))
        peaks[dtype] = result.memory_peaks[0].by_category["activations"]
    assert 0.5 < peaks["amp"] / peaks["tf32"] < 0.56  # and copies of the weights
    assert peaks["tf32"] == peaks["fp32"]


# -- splits ------------------------------------------------------------------------------------------------------------


def small(name, **options):
    return trine.synthesize(name, **{"layers": 2, "sequence": 128} | options)


@pytest.mark.parametrize("name", ["t5-large", "flan-t5-large", "bert-large"])
@pytest.mark.parametrize("ways", [2, 4, 8])
def test_tensor_parallel_ranks_hold_all_weights_together(name, ways):
    workload = small(name)
    splits, _ = split_operators(workload, "megatron", ways)
    local = local_parameter_bytes(workload, splits, ways)
    divided = {op.inputs[1] for op in workload.operators if op.id in splits and splits[op.id].mode in ("column", "row")}
    divided |= {op.inputs[0] for op in workload.operators if op.id in splits and splits[op.id].mode == "embedding"}
    for weight, size in local.items():
        whole, shape = workload.tensors[weight].size_bytes, workload.tensors[weight].shape
        if weight in divided:
            assert whole <= size * ways < whole * 1.04  # the vocabulary is padded
        elif len(shape) > 1:  # positions, segments, relative positions, and weights Megatron-LM keeps whole
            assert size == whole
            assert shape[0] in (2, 32, 512) or shape == (load_model(name).hidden,) * 2
    every = [op for op in workload.operators if op.phase == "forward" and kind_of(op) == "linear"]
    assert all(op.id in splits or op.attributes.get("replicated") for op in every)
    attention = [op for op in workload.operators if op.phase == "forward" and kind_of(op) == "attention"]
    assert all(splits[op.id].mode == "shared" for op in attention)


def test_cross_attention_is_split_as_self_attention_is():
    workload = small("t5-large")
    splits, _ = split_operators(workload, "megatron", 4)
    modes = {op.layer: splits[op.id] for op in workload.operators if op.id in splits and op.phase == "forward"}
    block = "decoder.layers.1.cross"
    for part in ("q", "kv"):
        assert modes[f"{block}.{part}"].mode == "column"
        assert not modes[f"{block}.{part}"].forward
        assert modes[f"{block}.{part}"].backward
    assert modes[f"{block}.out"].forward == "all_reduce"
    assert "encoder.layers.0.attention.bias" not in modes  # looked up whole on each rank


@pytest.mark.parametrize("ways", [2, 4])
def test_a_rank_of_an_attention_with_a_bias_does_its_part(ways):
    workload = small("t5-large")
    op = next(o for o in workload.operators if o.layer == "decoder.layers.1.attention.core" and o.phase == "forward")
    model = make_compute("roofline", workload, target=trine.load_gpu("h100-sxm"))
    whole, part = (model._sizing.work(op, Split(1, ways=n, mode="column")) for n in (1, ways))
    assert part.flops * ways == whole.flops
    assert part.bytes * ways == whole.bytes


@pytest.mark.parametrize("name", ["t5-large", "flan-t5-large", "bert-large", "se-resnext101-32x4d"])
@pytest.mark.parametrize("stages", [2, 4])
def test_pipeline_stages_hold_every_weight_once_but_for_tied_ones(name, stages):
    workload = trine.synthesize(name, batch=2)
    times = {op.id: op.gpu_time_ps for op in workload.operators}
    cut = cut_into_stages(workload, stages, (), times)
    owned = owned_weights(workload, stages, {op: (stage,) for op, stage in cut.stage_of.items()})
    tied = load_model(name).tied_embeddings if name.startswith(("t5", "flan")) else name == "bert-large"
    table = next(p for p in workload.parameters)
    total = sum(weight.size_bytes for stage in owned for weight in stage)
    extra = table.size_bytes if tied else 0
    assert total == sum(p.size_bytes for p in workload.parameters) + extra
    assert all(op.id in cut.stage_of for op in workload.operators if op.phase != "optimizer")


def test_what_a_decoder_stage_needs_of_the_encoder_is_sent_there_once():
    workload = small("t5-large", layers=4, batch=2)
    cuts = ("encoder.layers.2.attention.norm", "decoder.layers.0.attention.norm", "decoder.layers.2.attention.norm")
    stages = cut_into_stages(workload, 4, cuts, {})
    sent = {(c.source, c.target, workload.tensors[c.tensor].shape) for c in stages.crossings}
    hidden = load_model("t5-large").hidden
    stream, answer = (2, 128, hidden), (2, 32, hidden)
    assert sent == {
        (0, 1, stream), (0, 1, (1, 16, 128, 128)),  # the encoder's stream, and its bias
        (0, 2, answer), (1, 2, stream), (1, 3, stream),  # the decoder's tokens; the encoder's output, to both
        (2, 3, answer), (2, 3, (1, 16, 32, 32)),
    }  # fmt: skip
    assert all(c.has_gradient and not c.guessed for c in stages.crossings)


@pytest.mark.parametrize(
    "plan",
    [
        trine.Plan(dp=4),
        trine.Plan(tp=4, dp=2),
        trine.Plan(pp=4, dp=2, batch=4, micro_batch=1, schedule="1f1b"),
        trine.Plan(tp=2, pp=2, dp=2, batch=2, micro_batch=1, sequence_parallel=True),
    ],
    ids=["dp", "tp", "pp", "all"],
)
@pytest.mark.parametrize("name", ["t5-large", "bert-large"])
def test_folded_is_unfolded(name, plan):
    workload = small(name, layers=4, gpu="a100-80gb")
    assert_folded_is_unfolded(workload, plan, cluster="dgx-a100")


# -- software ----------------------------------------------------------------------------------------------------------

UNFUSED = Software(
    name="unfused", description="scores, dropout and logits through memory",
    operators=OperatorStyle(attention="unfused", loss="unfused", dropout=True),
)  # fmt: skip


@pytest.mark.parametrize("name", ["t5-base", "flan-t5-base", "bert-base"])
def test_unfused_attention_does_the_same_products_and_keeps_its_scores(name):
    fused, unfused = small(name, batch=2), small(name, batch=2, software=UNFUSED)
    assert flops(unfused, "matmul") == flops(fused, "attention")
    assert flops(unfused, "matmul backward") == 2 * flops(fused, "attention")  # no recomputation
    assert flops(unfused, "linear") == flops(fused, "linear")
    assert parameters(unfused) == parameters(fused)
    softmax = [op for op in unfused.operators if op.name == "scaled_masked_softmax"]
    stacks = 1 if name == "bert-base" else 3  # encoder, decoder, cross attention
    assert len(softmax) == 2 * stacks
    for op in softmax:
        score = unfused.tensors[op.outputs[0]].shape
        assert score[:2] == (2, 12)
        bias = [unfused.tensors[t].shape for t in op.inputs[1:]]
        assert bias == ([] if "cross" in op.layer or stacks == 1 else [(1, *score[1:])])


@pytest.mark.parametrize("name", ["t5-large", "bert-large"])
def test_unfused_attention_is_split_by_heads(name):
    workload = small(name, software=UNFUSED)
    splits, _ = split_operators(workload, "megatron", 4)
    every = [op for op in workload.operators if op.phase == "forward" and kind_of(op) in ("matmul", "softmax")]
    assert every
    assert all(splits[op.id].mode == "shared" for op in every)
    trine.simulate(workload, trine.Plan(tp=4, dp=2), cluster="dgx-a100", gpu="a100-80gb", fold="verify")
