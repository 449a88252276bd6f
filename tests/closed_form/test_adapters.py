"""Do adapters train their own parameters alone, and do time, memory and messages of a step follow?

Formulas stand here with the numbers of the models: the tests read no formula from trine.
"""

from functools import cache
from math import prod

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.compute import kind_of, work
from trine.errors import InputError
from trine.graph.workload import BACKWARD, FORWARD
from trine.training.memory import stage_programs

#: Llama 3 8B: layer -> input and output features of its product.
HIDDEN, FFN, VOCAB, LAYERS, SEQUENCE = 4096, 14336, 128256, 32, 8192
PRODUCTS = {
    "attention.qkv": (HIDDEN, 6144), "attention.out": (HIDDEN, HIDDEN), "mlp.gate_up": (HIDDEN, 2 * FFN),
    "mlp.down": (FFN, HIDDEN),
}  # fmt: skip
TARGETS = {"qkv": "attention.qkv", "out": "attention.out", "up": "mlp.gate_up", "down": "mlp.down"}
PARAMETERS = 8_030_261_248
NORMS = (2 * LAYERS + 1) * HIDDEN
TINY = "model:llama-3.2-1b,layers=1,sequence=512"


def adapter_parameters(rank, targets=tuple(TARGETS), layers=LAYERS):
    return layers * rank * sum(sum(PRODUCTS[TARGETS[target]]) for target in targets)


@cache
def llama(trainable=None, layers=2, precision=None):
    return trine.synthesize("llama-3-8b", layers=layers, gpu="h100-sxm", trainable=trainable, precision=precision)


def trained(workload):
    return [p for p in workload.parameters if p.gradient is not None]


def num_elements(workload, parameters):
    return sum(prod(workload.tensors[p.weight].shape) for p in parameters)


def step(model, plan=None, **options):
    return trine.simulate(model, plan or trine.Plan(), **options)


# -- which weights are trained -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rank", "targets"),
    [
        ("lora:16", 16, ("qkv", "out", "up", "down")),
        ("lora:16:qkv", 16, ("qkv",)),
        ("lora:64:up+down", 64, ("up", "down")),
        ("lora:8:qkv+out/nf4", 8, ("qkv", "out")),
    ],
)
def test_adapters_have_the_parameters_of_their_rank(text, rank, targets):
    workload = llama(text, LAYERS)
    assert num_elements(workload, trained(workload)) == adapter_parameters(rank, targets)
    assert num_elements(workload, workload.parameters) == PARAMETERS + adapter_parameters(rank, targets)
    assert len(trained(workload)) == 2 * LAYERS * len(targets)


@pytest.mark.parametrize(
    ("name", "a_layer"),
    [
        ("mixtral-8x7b", (4096 + 6144) + (4096 + 4096)),
        ("qwen3-30b-a3b", (2048 + 5120) + (4096 + 2048)),
        ("gpt-2", (768 + 2304) + (768 + 768) + 2 * (768 + 3072)),
    ],
)
def test_experts_get_no_adapters(name, a_layer):
    workload = trine.synthesize(name, layers=2, sequence=512, trainable="lora:16")
    assert num_elements(workload, trained(workload)) == 2 * 16 * a_layer


def test_shared_experts_and_latent_projections_get_adapters():
    """DeepSeek V2 Lite: a dense layer, then a layer of experts with shared ones."""
    workload = trine.synthesize("deepseek-v2-lite", layers=2, sequence=512, trainable="lora:16")
    attention = (2048 + 16 * 192) + (2048 + 576) + (512 + 16 * 256) + (16 * 128 + 2048)
    dense, shared = (2048 + 2 * 10944) + (10944 + 2048), (2048 + 2 * 2816) + (2816 + 2048)
    assert num_elements(workload, trained(workload)) == 16 * (2 * attention + dense + shared)


@pytest.mark.parametrize("text", ["lora:16", "lora:16/nf4", "lora:16:qkv"])
def test_frozen_weights_have_no_gradient_and_no_state(text):
    workload = llama(text)
    frozen = [p for p in workload.parameters if p.gradient is None]
    assert all(p.gradient_operator is None for p in frozen)
    assert num_elements(workload, frozen) == num_elements(llama(), llama().parameters)
    assert all(min(workload.tensors[p.weight].shape) == 16 for p in trained(workload))
    states = {t.storage: t.size_bytes for t in workload.tensors.values() if t.role == "optimizer_state"}
    assert sum(states.values()) == 12 * num_elements(workload, trained(workload))
    gradients = [t for t in workload.tensors.values() if t.role == "gradient"]
    assert sum(t.size_bytes for t in gradients) == 2 * num_elements(workload, trained(workload))
    weights = {p.weight for p in frozen}
    assert not [op.name for op in workload.operators if op.phase == "optimizer" and weights & set(op.inputs)]


# -- operators ---------------------------------------------------------------------------------------------------------


def flops(workload, phase, part=""):
    products = [op for op in workload.operators if op.phase == phase and kind_of(op).startswith(("linear", "matmul"))]
    return sum(work(op, workload).flops for op in products if part in op.layer)


def test_the_forward_pass_grows_by_the_products_of_adapters():
    plain, tuned, tokens = llama(), llama("lora:16"), SEQUENCE
    more = 2 * tokens * adapter_parameters(16, layers=2)
    assert flops(tuned, FORWARD) - flops(plain, FORWARD) == more == flops(tuned, FORWARD, "lora")
    assert flops(tuned, BACKWARD, "lora") == 2 * more - 2 * tokens * 16 * HIDDEN  # the embedding needs no gradient
    names = sorted(op.layer for op in tuned.operators if op.phase == FORWARD and "layers.1.mlp.down" in op.layer)
    assert names == ["layers.1.mlp.down"] + [f"layers.1.mlp.down.lora_{part}" for part in ("add", "down", "up")]


@pytest.mark.parametrize("text", ["lora:16", "lora:16/nf4", "lora:16:qkv"])
def test_the_backward_pass_has_no_weight_products_of_frozen_weights(text):
    workload = llama(text)
    by_weight = [op for op in workload.operators if op.attributes.get("gradient_of") == "weight"]
    by_input = [op for op in workload.operators if op.attributes.get("gradient_of") == "input"]
    assert len(by_weight) == len(trained(workload))
    assert all(".lora_" in op.layer for op in by_weight)
    # Products of two layers, and the head; but nothing before the first adapter needs a gradient.
    assert len(by_input) == len(trained(workload)) + 4 * 2 + 1 - 2
    unneeded = {"layers.0.attention.qkv", "layers.0.attention.qkv.lora_down"}
    assert not unneeded & {op.layer for op in by_input}
    names = {op.name for op in workload.operators if op.phase == BACKWARD}
    assert "aten::embedding_dense_backward" not in names
    frozen = flops(workload, BACKWARD) - flops(workload, BACKWARD, "lora")
    assert frozen == flops(llama(), FORWARD) - 2 * SEQUENCE * prod(PRODUCTS["attention.qkv"])


def test_layers_below_the_first_adapter_have_no_backward_pass():
    """As in autograd: adapters of ``down`` alone need no gradients in the rest of the first layer."""
    workload = llama("lora:16:down")
    layers = {op.layer for op in workload.operators if op.phase == BACKWARD and op.layer.startswith("layers.0.")}
    assert layers == {f"layers.0.mlp.down.lora_{part}" for part in ("down", "up")}
    behind = {op.layer for op in workload.operators if op.phase == BACKWARD and op.layer.startswith("layers.1.")}
    assert {f"layers.1.{product}" for product in PRODUCTS} <= behind


def test_a_base_in_four_bits_is_expanded_before_each_product():
    workload = llama("lora:16/nf4")
    for phase, suffix in ((FORWARD, ".expand"), (BACKWARD, "")):
        copies = [
            op for op in workload.operators
            if op.phase == phase and op.name == "aten::_to_copy"
            and workload.tensors[op.inputs[0]].dtype == "nf4"
        ]  # fmt: skip
        products = [(i, product) for i in range(2) for product in PRODUCTS]
        if phase == BACKWARD:
            products.remove((0, "attention.qkv"))
        layers = {f"layers.{i}.{product}{suffix}" for i, product in products}
        assert {op.layer for op in copies} == layers
        assert len(copies) == len(layers)
        written = sum(workload.tensors[op.outputs[0]].size_bytes for op in copies)
        assert written == 2 * sum(prod(PRODUCTS[product]) for _, product in products)


def test_experts_in_four_bits_are_expanded_before_each_product():
    workload = trine.synthesize("mixtral-8x7b", layers=1, sequence=512, trainable="lora:16/nf4")
    four = [p.weight for p in workload.parameters if workload.tensors[p.weight].dtype == "nf4"]
    matrices = 4096 * (6144 + 4096) + 8 * 3 * 4096 * 14336
    assert sum(prod(workload.tensors[weight].shape) for weight in four) == matrices
    copies = [op for op in workload.operators if op.name == "aten::_to_copy" and op.inputs[0] in four]
    assert sum(op.phase == FORWARD for op in copies) == len(four) == 4
    assert sum(op.phase == BACKWARD for op in copies) == 3  # not of the first layer's qkv
    other = [workload.tensors[p.weight].dtype for p in workload.parameters if p.weight not in four]
    assert set(other) == {"bfloat16"}


# -- model FLOPs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b"])
def test_frozen_weights_count_four_flops_a_parameter_and_token(name):
    """Attention has no weights: trine counts four FLOPs a score and feature forward, three times as many in all."""
    hidden, layers, qkv, ffn = {"llama-3-8b": (4096, 32, 6144, 14336), "llama-3-70b": (8192, 80, 10240, 28672)}[name]
    tokens = SEQUENCE
    products = layers * hidden * (qkv + hidden + 3 * ffn) + VOCAB * hidden
    attention = 3 * 4 * tokens**2 * hidden * layers
    adapters = layers * 16 * ((hidden + qkv) + 2 * hidden + (hidden + 2 * ffn) + (ffn + hidden))
    full, tuned = (step(f"model:{name}", gpu="h100-sxm", trainable=text) for text in (None, "lora:16"))
    assert full.work.model_flops == 6 * products * tokens + attention
    assert tuned.work.model_flops == (4 * products + 6 * adapters) * tokens + attention
    of_weights = [result.work.model_flops - attention for result in (tuned, full)]
    assert of_weights[0] / of_weights[1] == pytest.approx(4 / 6, rel=0.01)
    mfu = [r.work.model_flops / (r.step_time_ps * 1e-12) / r.work.peak_flops for r in (full, tuned)]
    assert [full.mfu, tuned.mfu] == pytest.approx(mfu, rel=1e-6)


def test_attention_with_frozen_sinks_has_its_whole_backward_pass():
    job = "model:gpt-oss-20b,sequence=8192,layers=2"
    workload = trine.synthesize("gpt-oss-20b", sequence=8192, layers=2, trainable="lora:16")
    forward = [op for op in workload.operators if op.phase == FORWARD]
    by_kind = {kind: sum(work(op, workload).flops for op in forward if kind_of(op) == kind and "lora" not in op.layer)
               for kind in ("linear", "matmul", "attention")}  # fmt: skip
    adapters = sum(work(op, workload).flops for op in forward if kind_of(op) == "linear" and "lora" in op.layer)
    expected = 2 * (by_kind["linear"] + by_kind["matmul"]) + 3 * (by_kind["attention"] + adapters)
    assert step(job, gpu="h100-sxm", trainable="lora:16").work.model_flops == expected


# -- memory and messages -----------------------------------------------------------------------------------------------


#: Bits of a weight in NF4: four, a constant in 8 bits for 64 weights, one in 32 bits for 256 constants.
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
#: Matrices of the layers; embedding and head are not among them.
MATRICES = PARAMETERS - NORMS - 2 * VOCAB * HIDDEN


@pytest.mark.parametrize(("text", "bytes_per_weight"), [("lora:16", 2), ("lora:16/nf4", NF4_BITS / 8)])
def test_matrices_of_layers_take_the_bytes_of_their_base(text, bytes_per_weight):
    workload = llama(text, LAYERS)
    weights, _, optimizer = stage_programs(workload, trine.Plan())[0].resident_bytes[:3]
    others = NORMS + 2 * VOCAB * HIDDEN + adapter_parameters(16)
    assert weights == pytest.approx(bytes_per_weight * MATRICES + 2 * others, rel=1e-5)
    assert optimizer == 12 * adapter_parameters(16)


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize("text", ["lora:16", "lora:16:qkv", "lora:16/nf4"])
def test_data_parallelism_reduces_the_gradients_of_adapters_alone(text, dtype, size):
    result = step("model:llama-3-8b", trine.Plan(dp=8), cluster="dgx-h100", trainable=text, gradient_dtype=dtype)
    sent = sum(use.count * use.size_bytes for use in result.collectives if use.size_bytes > 4)
    targets = ("qkv",) if "qkv" in text else tuple(TARGETS)
    assert sent == size * adapter_parameters(16, targets)
    assert result.memory_peaks[0].by_category["optimizer_state"] == pytest.approx(
        12 * adapter_parameters(16, targets), rel=0.001
    )


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "fsdp"])
def test_shards_hold_their_part_of_the_adapters_state(sharding):
    result = step("model:llama-3-8b,layers=2,sequence=1024", trine.Plan(dp=4, sharding=sharding), cluster="dgx-h100",
                  trainable="lora:16")  # fmt: skip
    expected = 12 * adapter_parameters(16, layers=2) / 4
    assert result.memory_peaks[0].by_category["optimizer_state"] == pytest.approx(expected, rel=0.01)


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["lora:16", "lora:16:qkv", "lora:16/nf4"])
def test_adapters_save_the_weight_products_of_a_step(text):
    plan, options = trine.Plan(dp=8), {"cluster": "dgx-h100"}
    full, tuned = step("model:llama-3-8b", plan, **options), step("model:llama-3-8b", plan, trainable=text, **options)
    assert 0.5 < tuned.step_time_ps / full.step_time_ps < 0.85


def test_a_base_in_four_bits_takes_longer_and_less_memory():
    sixteen, four = (step("model:llama-3-8b", gpu="h100-sxm", trainable=f"lora:16{base}") for base in ("", "/nf4"))
    assert sixteen.step_time_ps < four.step_time_ps < 1.1 * sixteen.step_time_ps
    saved = sixteen.memory_peak_bytes - four.memory_peak_bytes
    assert saved == pytest.approx((2 - NF4_BITS / 8) * MATRICES, rel=0.05)


@pytest.mark.parametrize("text", ["lora:16", "lora:16/nf4"])
@pytest.mark.parametrize("plan", [trine.Plan(tp=2), trine.Plan(pp=2, batch=4, micro_batch=1),
                                  trine.Plan(tp=2, pp=2, dp=2, batch=4, micro_batch=1)])  # fmt: skip
def test_adapters_run_with_tensor_and_pipeline_parallelism(plan, text):
    job = "model:llama-3-8b,layers=4,sequence=2048"
    full, tuned = (step(job, plan, cluster="dgx-h100", trainable=trainable) for trainable in (None, text))
    assert tuned.compute_s < full.compute_s  # launches on the CPU limit the smallest of these steps
    assert tuned.work.model_flops < full.work.model_flops


@cache
def tensor_parallel(text=None):
    return step("model:llama-3-8b,layers=2,sequence=2048", trine.Plan(tp=2), cluster="dgx-h100", trainable=text)


#: Targets, and the input gradients before the first adapter, which are not reduced: of qkv, or of qkv and gate_up.
BEFORE = {"lora:16:qkv": 1, "lora:16:up": 2, "lora:16:qkv+up": 1, "lora:16:out": 1, "lora:16:down": 2, "lora:16": 1,
          "lora:16/nf4": 1}  # fmt: skip


@pytest.mark.parametrize("text", BEFORE)
def test_tensor_parallelism_sends_no_more_than_ranks_of_adapters(text):
    def large(result):
        return {(use.kind, use.size_bytes): use.count for use in result.collectives if use.size_bytes > 2**20}

    fewer = {("all_reduce", 2 * 2048 * HIDDEN): BEFORE[text]}
    tuned, plain = large(tensor_parallel(text)), large(tensor_parallel())
    assert {key: count + fewer.get(key, 0) for key, count in tuned.items()} == plain


def times_of(result, name):
    """Return the times of the forward operators of layer 1 whose name ends so, on rank 0."""
    table = result.to_pandas()
    rows = table[(table["rank"] == 0) & (table.stream == "compute") & (table.phase == FORWARD)]
    rows = rows[rows.layer == f"layers.1.{name}"]
    return (rows.end_ps - rows.start_ps).to_list()


@pytest.mark.parametrize("name", ["attention.core", "mlp.act", *PRODUCTS])
def test_ranks_divide_the_work_of_a_layer_as_without_adapters(name):
    """Half of them; the steps differ in their clocks by less than a third."""
    (tuned,), (plain,) = (times_of(tensor_parallel(text), name) for text in ("lora:16", None))
    assert 0.95 * plain < tuned < 1.33 * plain


def test_adapters_are_divided_beside_columns_and_rows():
    """Beside qkv and gate_up the second matrix is divided, beside out and down the first."""
    plan = trine.Plan(tp=2)
    with_adapters, without = (stage_programs(llama(text), plan)[0].resident_bytes[0] for text in ("lora:16", None))
    columns = sum(HIDDEN + PRODUCTS[name][1] / 2 for name in ("attention.qkv", "mlp.gate_up"))
    rows = sum(PRODUCTS[name][0] / 2 + HIDDEN for name in ("attention.out", "mlp.down"))
    assert with_adapters - without == 2 * 2 * 16 * (columns + rows)


def test_sequence_parallelism_moves_small_tensors_of_adapters():
    """No gather of a product's input for the weight gradient, which frozen weights lack."""
    job, plan = "model:llama-3-8b,layers=2,sequence=2048", trine.Plan(tp=2, sequence_parallel=True)
    plain, tuned = (step(job, plan, cluster="dgx-h100", trainable=text) for text in (None, "lora:16"))
    sent = [sum(use.count * use.size_bytes for use in result.collectives if use.group_size == 2)
            for result in (plain, tuned)]  # fmt: skip
    assert sent[1] < sent[0]
    small = [use for use in tuned.collectives if use.size_bytes == 2 * 2048 * 16]
    assert {use.kind for use in small} == {"all_gather", "reduce_scatter"}


def test_ranks_expand_their_own_part_of_a_weight():
    def expands(result):
        table = result.to_pandas()
        rows = table[(table["rank"] == 0) & (table.stream == "compute") & table.layer.str.endswith("down.expand")]
        return float((rows.end_ps - rows.start_ps).iloc[0])

    alone = step("model:llama-3-8b,layers=2,sequence=2048", cluster="dgx-h100", trainable="lora:16/nf4")
    assert expands(tensor_parallel("lora:16/nf4")) == pytest.approx(expands(alone) / 2, rel=0.15)


# -- with a recipe -----------------------------------------------------------------------------------------------------


def test_adapters_run_beside_cast_products():
    both, cast = llama("lora:16", precision="fp8"), llama(precision="fp8")
    assert num_elements(both, trained(both)) == adapter_parameters(16, layers=2)
    layers = [{op.layer for op in workload.operators if "precision" in op.attributes} for workload in (both, cast)]
    assert layers[0] == layers[1]


def test_adapters_stay_in_sixteen_bits():
    workload = llama("lora:16", precision="fp8")
    read = {workload.tensors[i].dtype for op in workload.operators if ".lora_" in op.layer for i in op.inputs}
    assert read == {"bfloat16"}


def test_frozen_weights_are_not_cast_again_in_each_step():
    assert not [op for op in llama("lora:16", precision="fp8").operators if op.attributes.get("cost") == "weight casts"]


def test_a_base_in_four_bits_is_not_cast():
    message = "trainable: /nf4 stores frozen weights in four bits, and fp8 casts them from 16 bits: give one"
    with pytest.raises(InputError, match=message):
        llama("lora:16/nf4", precision="fp8")
    with pytest.raises(InputError, match=message):
        step(f"{TINY},trainable=lora:16/nf4", gpu="h100-sxm", precision="fp8")


# -- the option --------------------------------------------------------------------------------------------------------


def test_the_option_and_the_name_of_the_model_mean_the_same():
    by_option = step(TINY, gpu="h100-sxm", trainable="lora:16")
    assert step(f"{TINY},trainable=lora:16", gpu="h100-sxm").step_time_ps == by_option.step_time_ps
    texts = trine.synthesize("gpt-2", trainable="lora:8:qkv").assumptions
    assert "adapters of rank 8 beside qkv are trained; all other weights are frozen, in 16 bits" in texts


def command(*words):
    return CliRunner().invoke(app, ["train", TINY, "--gpus", "1", "--cluster", "dgx-h100", *words])


def test_the_command_line_takes_adapters():
    assert command("--trainable", "lora:8").exit_code == 0
    done = command("--trainable", "lora:8:qvk")
    assert done.exit_code == 2
    assert "--trainable: unknown target 'qvk'; did you mean 'qkv'?" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lora", "a rank is a whole number from 1 to 4096, got ''"),
        ("lora:0", "a rank is a whole number from 1 to 4096, got '0'"),
        ("lora:4097", "a rank is a whole number from 1 to 4096, got '4097'"),
        ("lora:half", "a rank is a whole number from 1 to 4096, got 'half'"),
        ("lora:16:dwn", "unknown target 'dwn'; did you mean 'down'?"),
        ("lora:16:qkv+", "unknown target ''"),
        ("lora:16:", "unknown target ''"),
        ("lora:16:/nf4", "unknown target ''"),
        ("dora:16", "takes lora:RANK, lora:RANK:qkv+out+up+down, or with /nf4 at the end for a base in four bits"),
        ("lora:16/int8", "takes lora:RANK"),
        ("all", "takes lora:RANK"),
    ],
)
def test_what_is_no_adapter_is_refused(text, message):
    with pytest.raises(InputError) as error:
        trine.synthesize("llama-3.2-1b", trainable=text)
    assert str(error.value).startswith("trainable: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("vgg13", "vgg13 is a convolutional network"),
        ("bert-base", "bert-base is no decoder-only transformer: it takes no trainable"),
        ("t5-small", "t5-small is no decoder-only transformer: it takes no trainable"),
    ],
)
def test_models_without_adapters_are_refused(model, message):
    with pytest.raises(InputError, match=message):
        trine.synthesize(model, trainable="lora:16")


def test_a_recorded_trace_trains_its_own_weights():
    with pytest.raises(InputError, match="a trace trains the weights that it trained when recorded"):
        step("vgg13-h100-b128", trainable="lora:16")


def test_two_sets_of_adapters_are_refused():
    with pytest.raises(InputError, match="the model's name says lora:8: give it once"):
        step(f"{TINY},trainable=lora:8", gpu="h100-sxm", trainable="lora:16")


@pytest.mark.parametrize(("text", "names"), [("lora:16:up+down", "up and down"), ("lora:16:qkv+up", "up")])
def test_targets_that_a_model_lacks_are_refused(text, names):
    """The MLPs of Mixtral are experts, which get no adapters."""
    with pytest.raises(InputError) as error:
        trine.synthesize("mixtral-8x7b", layers=1, sequence=512, trainable=text)
    expected = f"no product outside experts matches {names} in this model: give lora:16:qkv+out"
    assert str(error.value) == f"trainable: {expected}"
