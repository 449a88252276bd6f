"""Do FP8 and FP4 recipes cast the right products, and does memory follow?

The numbers of the recipes and of the models are written by hand; the tests read none of them from trine.
"""

from functools import cache
from math import prod

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.cluster import load_gpu
from trine.compute import Split, work
from trine.errors import InputError
from trine.graph.workload import BACKWARD, FORWARD
from trine.software.precision import known_precisions
from trine.training.memory import stage_programs
from trine.workload.synthesis.model import Synthesis, written
from trine.workload.synthesis.spec import Transformer

#: Recipe -> GPU, dtype of cast tensors, bytes per element, multiple of the sizes of a product.
RECIPES = {
    "fp8": ("h100-sxm", "float8_e4m3fn", 1.0, 16),
    "fp8-current": ("h100-sxm", "float8_e4m3fn", 1.0, 16),
    "fp8-block": ("h100-sxm", "float8_e4m3fn", 1.0, 128),
    "mxfp8": ("b200", "float8_e4m3fn", 1.0, 32),
    "nvfp4": ("b200", "float4_e2m1fn", 0.5, 32),
}
#: Llama 3 8B: hidden, queries with keys and values, MLP, vocabulary.
HIDDEN, QKV, FFN, VOCAB, LAYERS, SEQUENCE = 4096, 6144, 14336, 128256, 32, 8192
#: Layer -> input and output features of its product.
PRODUCTS = {
    "attention.qkv": (HIDDEN, QKV), "attention.out": (HIDDEN, HIDDEN), "mlp.gate_up": (HIDDEN, 2 * FFN),
    "mlp.down": (FFN, HIDDEN),
}  # fmt: skip
CAST_A_LAYER = sum(inputs * outputs for inputs, outputs in PRODUCTS.values())
PARAMETERS = 8_030_261_248
TINY = "model:llama-3.2-1b,layers=1,sequence=512"


@cache
def llama(recipe=None, layers=2, gpu="h100-sxm"):
    return trine.synthesize("llama-3-8b", layers=layers, gpu=gpu, precision=recipe)


@cache
def cast_llama(recipe):
    return llama(recipe, gpu=RECIPES[recipe][0])


def casts(workload, phase):
    """Return the casts of activations and gradients, but not the loss's copy in float32."""
    tensors, dtypes = workload.tensors, {dtype for _, dtype, _, _ in RECIPES.values()}
    copies = [op for op in workload.operators if op.name == "aten::_to_copy" and op.phase == phase]
    return [op for op in copies if tensors[op.outputs[0]].dtype in dtypes]


def cast_products(workload):
    return [op for op in workload.operators if "precision" in op.attributes]


def products_in_layers(workload):
    names = ("linear", "_grouped_mm")
    return [op for op in workload.operators if "layers." in op.layer and any(name in op.name for name in names)]


def step(model, plan=None, **options):
    return trine.simulate(model, plan or trine.Plan(), **options)


# -- the recipes -------------------------------------------------------------------------------------------------------


def test_recipes_are_these():
    assert sorted(known_precisions()) == sorted(RECIPES)


#: Recipe -> bytes of an element with the share of its scale, and reads of the 16-bit tensor.
FORMATS = {
    "fp8": (1, 1), "fp8-current": (1, 2), "fp8-block": (1 + 4 / 128, 1), "mxfp8": (1 + 1 / 32, 1),
    "nvfp4": (0.5 + 1 / 16, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_casts_move_the_bytes_of_their_format(name):
    """A cast reads 16 bits, once more for the tensor's maximum, and writes the tensor by rows and by columns."""
    recipe, (element, reads) = known_precisions()[name], FORMATS[name]
    assert recipe.cast_passes == pytest.approx((2 * reads + 2 * element) / (2 + RECIPES[name][2]), rel=0.05)
    of_weight = 1 + 4 / 128**2 if name == "fp8-block" else element
    assert recipe.weight_passes == pytest.approx((2 * reads + 2 * of_weight) / 2, rel=0.05)
    assert recipe.weight_copies == pytest.approx(2 * of_weight / 2, rel=0.02)


# -- which operators are cast ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_all_linear_modules_of_layers_are_cast_and_no_others(name):
    workload, (_, dtype, _, _) = cast_llama(name), RECIPES[name]
    layers = {f"layers.{number}.{product}" for number in range(2) for product in PRODUCTS}
    cast = cast_products(workload)
    assert {op.layer for op in cast} == layers
    assert cast == products_in_layers(workload)
    assert len(cast) == 3 * len(layers)
    assert {op.attributes["precision"] for op in cast} == {"float4" if name == "nvfp4" else "float8"}
    readers = {op.id for op in workload.operators if any(workload.tensors[i].dtype == dtype for i in op.inputs)}
    writers = {op.id for op in workload.operators if any(workload.tensors[i].dtype == dtype for i in op.outputs)}
    assert readers == {op.id for op in cast}
    assert writers == {op.id for phase in (FORWARD, BACKWARD) for op in casts(workload, phase)}
    assert all(workload.tensors[op.outputs[0]].dtype == "bfloat16" for op in cast)


@pytest.mark.parametrize("name", RECIPES)
def test_each_product_casts_its_input_and_its_gradient(name):
    workload, (_, _, size, _) = cast_llama(name), RECIPES[name]
    forward = {op.layer: workload.tensors[op.outputs[0]].size_bytes for op in casts(workload, FORWARD)}
    assert forward == {
        f"layers.{number}.{product}.cast": size * SEQUENCE * inputs
        for number in range(2) for product, (inputs, _) in PRODUCTS.items()
    }  # fmt: skip
    backward = {op.layer: workload.tensors[op.outputs[0]].size_bytes for op in casts(workload, BACKWARD)}
    assert backward == {
        f"layers.{number}.{product}": size * SEQUENCE * outputs
        for number in range(2) for product, (_, outputs) in PRODUCTS.items()
    }  # fmt: skip


@pytest.mark.parametrize("name", ["fp8", "fp8-block"])
def test_experts_are_cast_and_the_router_is_not(name):
    workload = trine.synthesize("qwen3-30b-a3b", layers=1, sequence=1024, gpu="h100-sxm", precision=name)
    parts = ("attention.qkv", "attention.out", "moe.experts.up", "moe.experts.down")
    assert {op.layer for op in cast_products(workload)} == {f"layers.0.{part}" for part in parts}
    of_experts = [op for op in casts(workload, FORWARD) + casts(workload, BACKWARD) if "experts" in op.layer]
    assert all(op.attributes["expert"] for op in of_experts)
    elements = [prod(workload.tensors[op.outputs[0]].shape) for op in of_experts]
    assert sorted(elements) == sorted(1024 * 8 * features for features in (2048, 768, 2048, 2 * 768))


def test_products_that_read_the_same_tensor_share_its_cast():
    """The queries and the latent keys and values of DeepSeek read the same normalised input."""
    workload = trine.synthesize("deepseek-v2-lite", layers=1, sequence=1024, gpu="h100-sxm", precision="fp8")
    read = [op.inputs[0] for op in casts(workload, FORWARD)]
    assert len(read) == len(set(read)) == 5
    assert {op.layer for op in cast_products(workload)} == {
        f"layers.0.{part}"
        for part in ("attention.q_up", "attention.kv_down", "attention.kv_up", "attention.out", "mlp.gate_up",
                     "mlp.down")
    }  # fmt: skip


@pytest.mark.parametrize("ffn", [680, 720, 736, 768])
@pytest.mark.parametrize("name", RECIPES)
def test_products_whose_sizes_are_no_multiple_stay_in_sixteen_bits(name, ffn):
    gpu, _, _, multiple = RECIPES[name]
    spec = Transformer(
        name="gpt", layers=1, hidden=256, heads=4, kv_heads=4, head_size=64, ffn=ffn, vocab=1024, sequence=512,
        activation="gelu",
    )  # fmt: skip
    workload = written(spec, Synthesis(gpu=gpu, precision=name), None)
    expected = {"layers.0.attention.qkv", "layers.0.attention.out"}
    if ffn % multiple == 0:
        expected |= {"layers.0.mlp.up", "layers.0.mlp.down"}
    assert {op.layer for op in cast_products(workload)} == expected
    assert {op.layer for op in casts(workload, BACKWARD)} == expected


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_layer_keeps_cast_inputs_of_its_products(name):
    """Outputs of norms and of the activation are kept cast alone; attention's output in 16 bits too, for attention."""
    gpu, _, size, _ = RECIPES[name]
    peaks = [
        trine.simulate(llama(name, layers, gpu), trine.Plan()).memory_peaks[0].by_category["activations"]
        for layers in (3, 4)
    ]
    inputs_of_norms, statistics = 2 * 2 * HIDDEN, 2 * 4
    attention = 2 * QKV + 2 * HIDDEN + 4 * 32
    cast = size * (HIDDEN + HIDDEN + HIDDEN + FFN)
    per_token = inputs_of_norms + statistics + attention + 2 * 2 * FFN + cast
    assert peaks[1] - peaks[0] == SEQUENCE * per_token


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", RECIPES)
def test_weights_take_two_bytes_and_their_copies(name, tp):
    workload = trine.synthesize("llama-3-8b", gpu=RECIPES[name][0], precision=name)
    program = stage_programs(workload, trine.Plan(tp=tp))[0]
    norms = (2 * LAYERS + 1) * HIDDEN
    matrices = LAYERS * CAST_A_LAYER + 2 * VOCAB * HIDDEN
    assert matrices + norms == PARAMETERS
    copies = {"fp8": 1.0, "fp8-current": 1.0, "fp8-block": 1.02, "mxfp8": 1.03, "nvfp4": 0.56}[name]
    expected = 2 * norms + 2 * matrices / tp + copies * 2 * LAYERS * CAST_A_LAYER / tp
    assert program.resident_bytes[0] == pytest.approx(expected, abs=4 * LAYERS)


def test_optimizer_and_gradients_are_those_of_sixteen_bits():
    plain, cast = (stage_programs(llama(name), trine.Plan(dp=2))[0].resident_bytes for name in (None, "fp8"))
    assert cast[1:4] == plain[1:4]


def test_full_recomputation_keeps_no_casts():
    plain, cast = (
        trine.simulate(llama(name, 4), trine.Plan(recompute="full")).memory_peaks[0].by_category["activations"]
        for name in (None, "fp8")
    )
    assert cast == plain


# -- times -------------------------------------------------------------------------------------------------------------


def product_times(workload):
    return {(op.layer, op.name): op.gpu_time_ps for op in products_in_layers(workload)}


@pytest.mark.parametrize(("name", "gpu"), [("fp8", "h100-sxm"), ("mxfp8", "b200")])
def test_large_products_are_up_to_twice_as_fast_in_eight_bits(name, gpu):
    plain, cast = product_times(llama(gpu=gpu)), product_times(llama(name, gpu=gpu))
    ratios = {key: plain[key] / cast[key] for key in plain}
    assert min(ratios.values()) >= 1.5
    assert max(ratios.values()) <= 2.0


def test_casts_to_four_bits_grow_with_the_batch():
    workload = cast_llama("nvfp4")
    for op in casts(workload, FORWARD) + casts(workload, BACKWARD):
        assert work(op, workload, Split(3)).bytes == pytest.approx(3 * work(op, workload).bytes, abs=3)


def test_large_products_are_faster_in_four_bits_than_in_eight():
    eight, four = product_times(llama("mxfp8", gpu="b200")), product_times(llama("nvfp4", gpu="b200"))
    assert all(1.2 * four[key] < eight[key] for key in eight)
    assert sum(eight.values()) <= 2.1 * sum(four.values())


@pytest.mark.parametrize("name", ["fp8", "fp8-current", "fp8-block"])
def test_casts_take_the_time_of_their_bytes(name):
    workload, bandwidth = cast_llama(name), load_gpu("h100-sxm").memory_bytes_per_s
    passes = {"fp8": 1.33, "fp8-current": 2.0, "fp8-block": 1.4}[name]
    elements = 2 * SEQUENCE * sum(inputs + outputs for inputs, outputs in PRODUCTS.values())
    operators = [op for phase in (FORWARD, BACKWARD) for op in casts(workload, phase)]
    gaps_s = 1.9e-6 * len(operators) * known_precisions()[name].kernels  # between two kernels of a stream
    found = sum(op.gpu_time_ps for op in operators) * 1e-12
    assert found == pytest.approx(passes * 3 * elements / bandwidth + gaps_s, rel=0.15)


@pytest.mark.parametrize(
    ("name", "of_cast", "of_product"),
    [("fp8", 1, 1), ("fp8-current", 4, 1), ("fp8-block", 1, 1), ("mxfp8", 1, 3), ("nvfp4", 2, 3)],
)
def test_launches_of_casts_and_products(name, of_cast, of_product):
    """Transformer Engine: a cast by the tensor's own maximum zeroes it, finds it, and computes the scale before; a
    product of blocks of 32 or 16 changes the order of the scales of its two inputs before."""
    workload = cast_llama(name)
    launched = [op.attributes.get("kernels", 1) for phase in (FORWARD, BACKWARD) for op in casts(workload, phase)]
    assert set(launched) == {of_cast}
    assert {op.attributes.get("kernels", 1) for op in cast_products(workload)} == {of_product}


def weight_casts(workload):
    (op,) = [op for op in workload.operators if op.attributes.get("cost") == "weight casts"]
    return op


@pytest.mark.parametrize("name", RECIPES)
def test_weights_are_cast_once_per_step(name):
    workload, op = cast_llama(name), weight_casts(cast_llama(name))
    assert op.phase == "optimizer"
    assert sum(prod(workload.tensors[i].shape) for i in op.inputs) == 2 * CAST_A_LAYER


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_casts_of_weights_move_the_bytes_of_their_recipe(name, layers):
    workload = llama(name, layers, RECIPES[name][0])
    passes = {"fp8": 2.0, "fp8-current": 3.0, "fp8-block": 2.0, "mxfp8": 2.03, "nvfp4": 2.5}[name]
    assert work(weight_casts(workload), workload).bytes == pytest.approx(2 * layers * CAST_A_LAYER * passes, abs=1)


@pytest.mark.parametrize("name", ["fp8", "fp8-current", "fp8-block"])
def test_a_large_model_is_faster_in_eight_bits(name):
    plan, options = trine.Plan(dp=8), {"cluster": "dgx-h100"}
    plain, cast = step("model:llama-3-8b", plan, **options), step("model:llama-3-8b", plan, precision=name, **options)
    assert 1.15 < plain.step_time_ps / cast.step_time_ps < 1.6
    assert cast.work.model_flops == plain.work.model_flops
    assert cast.work.dtype == "float8"
    assert cast.work.peak_flops == pytest.approx(2 * plain.work.peak_flops, rel=0.001)


@pytest.mark.parametrize("name", ["fp8", "fp8-current", "fp8-block"])
def test_a_tiny_model_is_not_faster(name):
    assert step(TINY, gpu="h100-sxm", precision=name).step_time_ps >= step(TINY, gpu="h100-sxm").step_time_ps


def test_steps_in_four_bits_have_an_mfu():
    result = step("model:llama-3-8b,layers=8", gpu="b200", precision="nvfp4")
    assert result.work.dtype == "float4"
    assert result.work.peak_flops == pytest.approx(9e15, rel=0.02)


# -- parallelism -------------------------------------------------------------------------------------------------------


@cache
def tensor_parallel(recipe):
    return step("model:llama-3-8b,layers=2,sequence=2048", trine.Plan(tp=2), cluster="dgx-h100", precision=recipe)


def moved(result):
    return sum(use.count * use.size_bytes for use in result.collectives if use.size_bytes > 2**20)


def test_tensor_parallelism_sends_the_same_bytes():
    assert moved(tensor_parallel("fp8")) == moved(tensor_parallel(None))


def test_sequence_parallelism_gathers_casts_and_scatters_sixteen_bits():
    """Transformer Engine gathers what a GEMM reads after its cast; sums of partial results have 16 bits."""
    job, plan = "model:llama-3-8b,layers=2,sequence=2048", trine.Plan(tp=2, sequence_parallel=True)
    plain, cast = (step(job, plan, cluster="dgx-h100", precision=name) for name in (None, "fp8"))

    def sizes(result, kind):
        uses = [use for use in result.collectives if use.kind == kind and use.size_bytes > 2**20]
        return {use.size_bytes: use.count for use in uses}

    assert sizes(cast, "reduce_scatter") == sizes(plain, "reduce_scatter")
    whole = 2 * 2048 * HIDDEN
    of_ends = 3  # input of the head, forward and for the weight gradient; gradient of the embedding
    assert sizes(cast, "all_gather")[whole] == of_ends
    assert sizes(cast, "all_gather")[whole // 2] == sizes(plain, "all_gather")[whole] - of_ends


def copies_of(recipe, layer, phase):
    """Return the times of casts in a layer on rank 0, in ps."""
    table = tensor_parallel(recipe).to_pandas()
    rows = table[(table["rank"] == 0) & (table.stream == "compute") & (table.name == "aten::_to_copy")]
    rows = rows[(rows.layer == layer) & (rows.phase == phase)]
    return (rows.end_ps - rows.start_ps).to_list()


def test_casts_of_divided_tensors_are_divided():
    """Gradients of gate_up have 28,672 features, half of them on a rank; inputs of gate_up are whole."""
    whole = copies_of("fp8", "layers.0.mlp.gate_up.cast", FORWARD)
    half = copies_of("fp8", "layers.0.attention.out.cast", FORWARD)
    assert half[0] == pytest.approx(whole[0] / 2, rel=0.15)


def test_gradients_of_row_splits_are_cast_whole():
    whole = copies_of("fp8", "layers.0.mlp.gate_up.cast", FORWARD)
    assert copies_of("fp8", "layers.0.mlp.down", BACKWARD) == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_experts_run_in_blocks(model):
    job, plan = f"model:{model},layers=1,sequence=2048", trine.Plan(dp=2, ep=2)
    plain, cast = (step(job, plan, cluster="dgx-h100", precision=name) for name in (None, "fp8-block"))
    hidden, qkv, heads, experts, ffn = {
        "mixtral-8x7b": (4096, 6144, 4096, 8, 14336), "qwen3-30b-a3b": (2048, 5120, 4096, 128, 768),
    }[model]  # fmt: skip
    elements = hidden * (qkv + heads) + experts // 2 * 3 * hidden * ffn
    more = cast.memory_peaks[0].by_category["weights"] - plain.memory_peaks[0].by_category["weights"]
    assert more == pytest.approx(1.02 * 2 * elements, abs=8)
    assert cast.work.model_flops == plain.work.model_flops


def test_pipelines_run_with_casts():
    job, plan = "model:llama-3-8b,layers=4,sequence=2048", trine.Plan(pp=2, batch=4, micro_batch=1)
    plain, cast = (step(job, plan, cluster="dgx-h100", precision=name) for name in (None, "fp8"))
    sent = [sum(u.count * u.size_bytes for u in r.collectives if u.kind == "send_recv") for r in (plain, cast)]
    assert sent[0] == sent[1] > 0
    assert cast.step_time_ps < plain.step_time_ps


# -- the option --------------------------------------------------------------------------------------------------------


def test_the_option_and_the_name_of_the_model_mean_the_same():
    by_option = step(TINY, gpu="h100-sxm", precision="fp8")
    assert step(f"{TINY},precision=fp8", gpu="h100-sxm").step_time_ps == by_option.step_time_ps
    assert step(f"{TINY},precision=fp8", gpu="h100-sxm", precision="fp8").step_time_ps == by_option.step_time_ps
    assert any("FP8 with delayed scaling" in text for text in trine.synthesize("gpt-2", precision="fp8").assumptions)


def command(*words):
    return CliRunner().invoke(app, ["train", TINY, "--gpus", "1", "--cluster", "dgx-h100", *words])


def test_the_command_line_takes_a_recipe():
    assert command("--precision", "fp8").exit_code == 0
    done = command("--precision", "fp9")
    assert done.exit_code == 2
    assert "--precision: unknown precision 'fp9'; did you mean 'fp8'?" in done.stderr


RECIPE_ERRORS = [
    ("llama-3.2-1b", {"precision": "fp8-blocks"}, "unknown precision 'fp8-blocks'; did you mean 'fp8-block'?"),
    ("llama-3.2-1b", {"precision": "bf16"}, "bf16 casts nothing: give model:NAME,dtype=bf16"),
    ("llama-3.2-1b", {"precision": "fp32"}, "fp32 casts nothing: give model:NAME,dtype=fp32"),
    ("llama-3.2-1b", {"dtype": "fp8"}, "unknown dtype 'fp8': weights stay in 16 bits; give precision=fp8"),
    ("llama-3.2-1b", {"precision": "fp8", "dtype": "fp32"}, "float32 products are not cast: give dtype=bf16 or fp16"),
    ("llama-3.2-1b", {"precision": "fp8", "gpu": "a100-80gb"}, "a100-80gb does not run fp8: it runs none"),
    ("llama-3.2-1b", {"precision": "nvfp4", "gpu": "h100-sxm"}, "does not run nvfp4: it runs fp8, fp8-current, fp8-bl"),
    ("llama-3.2-1b", {"precision": "mxfp8", "gpu": "h200"}, "h200 does not run mxfp8: it runs fp8, fp8-current, fp8-b"),
    ("llama-3.2-1b", {"precision": "fp8-block", "gpu": "l40s"}, "l40s does not run fp8-block: it runs fp8, fp8-curre"),
    ("llama-3.2-1b", {"precision": "nvfp4", "gpu": "mi355x"}, "mi355x does not run nvfp4: it runs fp8, fp8-current,"),
    ("vgg13", {"precision": "fp8"}, "vgg13 is a convolutional network"),
    ("bert-base", {"precision": "fp8"}, "bert-base is no decoder-only transformer"),
    ("t5-small", {"precision": "fp8"}, "t5-small is no decoder-only transformer"),
]


@pytest.mark.parametrize(("model", "options", "message"), RECIPE_ERRORS)
def test_recipes_that_do_not_apply_are_refused(model, options, message):
    with pytest.raises(InputError) as error:
        trine.synthesize(model, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recorded_trace_keeps_its_precision():
    with pytest.raises(InputError, match="a trace has the precision it was recorded in"):
        step("vgg13-h100-b128", precision="fp8")


def test_two_recipes_are_refused():
    with pytest.raises(InputError, match="the model's name says fp8: give one precision"):
        step(f"{TINY},precision=fp8", gpu="h100-sxm", precision="fp8-block")


def test_a_gpu_without_the_precision_gets_a_useful_error():
    with pytest.raises(InputError) as error:
        trine.synthesize("llama-3.2-1b", gpu="a100-80gb", precision="fp8")
    assert "float64" not in str(error.value)


def test_blocks_of_32_need_blackwell():
    """Hopper's tensor cores scale no blocks of 32 (Transformer Engine: MXFP8 needs compute capability 10.0)."""
    with pytest.raises(InputError):
        trine.synthesize("llama-3.2-1b", layers=1, sequence=512, gpu="h100-sxm", precision="mxfp8")


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("gpu", ["b200", "gb300"])
def test_blackwell_runs_all_recipes(gpu, name):
    workload = trine.synthesize("llama-3.2-1b", layers=1, sequence=512, gpu=gpu, precision=name)
    assert workload.metadata["recipe"] == name


def test_a_recipe_is_checked_on_the_gpus_of_the_cluster():
    job, plan = "model:llama-3-8b,layers=4,sequence=512", trine.Plan(dp=2)
    assert step(job, plan, cluster="hgx-b200", precision="mxfp8").work.dtype == "float8"
    with pytest.raises(InputError, match="h100-sxm does not run mxfp8"):
        step(job, plan, cluster="dgx-h100", precision="mxfp8")
