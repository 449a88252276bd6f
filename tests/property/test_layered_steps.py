"""Is the step of a model described as layers over blocks lawful: all weights trained, FLOPs and memory conserved?

Steps are cut to the first layers that hold one layer of each kind.
"""

from dataclasses import replace
from functools import cache
from math import prod

import pytest

import trine
from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping
from trine.compute import kind_of, work
from trine.errors import PlanError, TrineError
from trine.graph.workload import BACKWARD, FORWARD
from trine.workload.architecture.blocks import Attention, CompressedAttention, LatentAttention
from trine.workload.architecture.files import read_bundled
from trine.workload.architecture.weights import num_elements
from trine.workload.synthesis.model import Synthesis, written
from trine.workload.synthesis.model_files import load_model


@cache
def architectures():
    """Return the bundled configs of models with a head for tokens, by name."""
    found = {}
    for path in sorted((PRESETS / "models").glob("*.yaml")):
        content = load_mapping(path)
        if content.get("family") == "huggingface":
            model = read_bundled(content, path)
            if model.head and model.vocab:
                found[path.stem] = model
    return found


@cache
def num_layers(name):
    """Return the number of first layers that hold each kind of layer of the model."""
    layers = architectures()[name].layers
    return max(layers.index(kind) for kind in set(layers)) + 1


@cache
def cut(name, layers=0):
    model, layers = architectures()[name], layers or num_layers(name)
    return replace(model, layers=model.layers[:layers], towers={}, parameters=None)


@cache
def step(name):
    return trine.synthesize(name, gpu="h100-sxm", layers=num_layers(name))


def parameters(workload):
    return sum(prod(workload.tensors[p.weight].shape) for p in workload.parameters)


def flops(workload, kinds):
    """Return the FLOPs of forward operators of these kinds, without the scores of indexers."""
    return sum(
        work(op, workload).flops
        for op in workload.operators
        if op.phase == FORWARD and kind_of(op) in kinds and not op.layer.endswith("indexer.scores")
    )


def left_out(model):
    """Return the parameters of attention over earlier layers, which has no operators (a step's assumptions say so)."""
    layers = [layer for layer in model.layers if layer.reads_earlier]
    return sum(num_elements(layer.weights(model.hidden)["residual"]) for layer in layers)


NAMES = sorted(architectures())


def test_most_published_models_have_a_step():
    assert len(NAMES) == 49


@pytest.mark.parametrize("name", NAMES)
def test_a_step_trains_the_parameters_of_its_layers(name):
    model = cut(name)
    assert parameters(step(name)) == model.num_parameters - left_out(model)


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_is_used_and_has_a_gradient(name):
    workload = step(name)
    operators = {op.id: op for op in workload.operators}
    assert all(operators[p.gradient_operator].phase == BACKWARD for p in workload.parameters)
    trained = {p.weight for p in workload.parameters}
    storages = {workload.tensors[p.weight].storage for p in workload.parameters}
    assert len(storages) == len(trained) == len(workload.parameters)
    used = {workload.tensors[i].storage for op in workload.operators if op.phase == FORWARD for i in op.inputs}
    assert storages <= used
    assert any(f"{num_layers(name)} of the model's" in text for text in workload.assumptions)


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_of_a_step_takes_time(name):
    assert [op.layer for op in step(name).operators if op.gpu_time_ps <= 0] == []


@pytest.mark.parametrize("name", NAMES)
def test_products_of_a_step_have_the_flops_of_its_weights(name):
    """Convolutions over a few tokens are products in the formula and no GEMMs in the step: 0.02 % at most."""
    model, workload = cut(name), step(name)
    context = sum(mixer.context_flops(model.sequence) for mixer in model.mixers())
    products = model.forward_flops(model.sequence) - context
    assert flops(workload, {"linear", "matmul"}) == pytest.approx(products, rel=0.001)


def has_pairs_alone(mixer):
    """Return whether a mixer is attention to all tokens, or to those in a window."""
    return isinstance(mixer, Attention | LatentAttention) and mixer.indexer is None


@pytest.mark.parametrize("name", [n for n in NAMES if all(map(has_pairs_alone, cut(n).mixers()))])
def test_attention_of_a_step_has_the_pairs_within_windows(name):
    """A causal operator counts S x S pairs of S (S + 1) / 2; windows divide both alike."""
    model, workload = cut(name), step(name)
    context = sum(mixer.context_flops(model.sequence) for mixer in model.mixers())
    counted = flops(workload, {"attention"}) * (model.sequence + 1) / (2 * model.sequence)
    assert counted == pytest.approx(context, rel=1e-6)


@pytest.mark.parametrize("name", ["mistral-7b", "gemma-2-9b", "phi-3-mini"])
def test_samples_longer_than_the_window_see_the_window_alone(name):
    model, length = cut(name), 16_384
    workload = trine.synthesize(name, layers=num_layers(name), sequence=length)
    context = sum(mixer.context_flops(length) for mixer in model.mixers())
    counted = flops(workload, {"attention"}) * (length + 1) / (2 * length)
    assert counted == pytest.approx(context, rel=1e-6)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5.2", "deepseek-v4-flash", "minimax-m3"])
def test_scores_of_an_indexer_have_no_product_with_values(name):
    model, workload = cut(name), step(name)
    scores = [op for op in workload.operators if op.phase == FORWARD and op.layer.endswith("indexer.scores")]
    assert scores
    mixers = [m for m in model.mixers() if getattr(m, "indexer", None) is not None and not m.indexer.is_shared]
    assert len(mixers) == len(scores)
    length = model.sequence
    keys = [length // m.ratio if isinstance(m, CompressedAttention) else length for m in mixers]
    wanted = sum(2 * length * k * m.indexer.heads * m.indexer.size for m, k in zip(mixers, keys, strict=True))
    assert sum(work(op, workload).flops for op in scores) == pytest.approx(wanted, rel=0.01)
    assert all(op.attributes["replicated"] for op in scores)
    backward = {op.forward_id for op in workload.operators if op.phase == BACKWARD}
    choices = [op for op in workload.operators if op.phase == FORWARD and op.layer.endswith("indexer.choice")]
    assert {op.id for op in (*scores, *choices)} <= backward
    assert len(choices) == len(scores)


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4-pro"])
def test_compressed_attention_of_a_step_has_the_pairs_of_its_formula(name):
    model, workload = cut(name), step(name)
    length = model.sequence
    context = sum(4 * mixer.pairs(length) * mixer.heads * mixer.head_size for mixer in model.mixers())
    counted = flops(workload, {"attention"}) * (length + 1) / (2 * length)
    assert counted == pytest.approx(context, rel=0.01)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "deepseek-v4-flash", "minimax-m3"])
@pytest.mark.parametrize("axes", [{"tp": 2, "sequence_parallel": True}, {"cp": 2}], ids=["sp", "cp"])
def test_sparse_attention_can_divide_tokens(name, axes):
    assert simulated(name, **axes).step_time_s > 0


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "deepseek-v3.2", "gpt-oss-20b", "jamba-v0.1", "gemma-4-31b"])
@pytest.mark.parametrize("software", ["megatron-core", "pytorch-eager", "none"])
def test_software_changes_operators_and_neither_weights_nor_products(name, software):
    workload = trine.synthesize(name, layers=num_layers(name), sequence=1024, software=software)
    model = cut(name)
    assert parameters(workload) == model.num_parameters
    context = sum(mixer.context_flops(1024) for mixer in model.mixers())
    products = model.forward_flops(1024) - context
    assert flops(workload, {"linear"}) <= products
    assert flops(workload, {"linear", "matmul"}) == pytest.approx(products, rel=0.001)


# Files of layers over blocks: the step trains the parameters of the formula, or is refused.

HEAD = "family: layers\nhidden: 64\nvocab: 100\nsequence: 32\n"
BLOCKS = """blocks:
  a: {kind: attention, heads: 4, kv_heads: 2, head_size: 16}
  narrow: {kind: attention, heads: 4, kv_heads: 2, head_size: 16, value_size: 8, gate: features}
  latent: {kind: latent_attention, heads: 4, query_rank: 24, kv_rank: 16, plain: 8, rotated: 4, value: 8, gate: true}
  csa: {kind: compressed_attention, heads: 4, head_size: 16, query_rank: 8, out_groups: 2, out_rank: 4, window: 8,
    ratio: 4, is_overlapping: true, indexer: {heads: 2, size: 8, top_k: 4}}
  delta: {kind: linear_attention, key_heads: 2, value_heads: 4, key_size: 8, value_size: 4}
  kimi: {kind: kimi_delta, heads: 2, head_size: 16}
  state: {kind: mamba2, heads: 8, head_size: 16, state: 4, groups: 2, biases: true}
  mamba: {kind: mamba, inner: 128, state: 4, rank: 4, norms: true}
  mlp: {kind: mlp, ffn: 128, biases: true}
  e: {kind: mixture, experts: 8, top_k: 2, ffn: 32, latent: 16, latent_norm: true, shared: 32, shared_gate: true,
    biases: true, router_scales: true, gated: false}
layers:
- {mixer: a, feed_forward: e}
"""
BOTH = "mixer: a, feed_forward: mlp"
LAYERS = {
    "all mixers": (
        "",
        "".join(
            f"- {{mixer: {m}, feed_forward: mlp}}\n" for m in ("a", "latent", "csa", "delta", "kimi", "state", "mamba")
        ),
        "",
    ),
    "parallel": ("", f"- {{{BOTH}, parallel: true, norms: 1, norm: layer}}\n", ""),
    "norms around": ("", f"- {{{BOTH}, norms: 4}}\n", ""),
    "beside": ("", f"- {{{BOTH}, beside: e, norms: 7}}\n", ""),
    "positions": ("positions: 32\nembedding_norm: true\nnorm: layer\ntied_embeddings: true\n", "", ""),
    "narrow values with a gate": ("", "- {mixer: narrow, feed_forward: mlp}\n", ""),
    "plain norm of a layer": ("", f"- {{{BOTH}, norm: plain}}\n", ""),
    "plain last norm": ("norm: plain\n", "", ""),
    "no norms": ("", f"- {{{BOTH}, norms: 0}}\n", ""),
    "one norm": ("", f"- {{{BOTH}, norms: 1}}\n", "norms must be one of 0, 2, 4 for these blocks; got 1"),
    "three norms": ("", f"- {{{BOTH}, norms: 3}}\n", "norms must be one of 0, 2, 4 for these blocks; got 3"),
    "one block between norms": ("", "- {mixer: a}\n", ""),
    "beside, four norms": ("", f"- {{{BOTH}, beside: e, norms: 4}}\n", "norms must be one of 3, 5, 7"),
    "beside, five norms": ("", f"- {{{BOTH}, beside: e, norms: 5}}\n", ""),
    "beside, three norms": ("", f"- {{{BOTH}, beside: e, norms: 3}}\n", ""),
    "beside alone": ("", "- {mixer: a, beside: mlp}\n", "beside needs a network"),
    "parallel, two norms": ("", f"- {{{BOTH}, parallel: true}}\n", ""),
    "parallel, four norms": ("", f"- {{{BOTH}, parallel: true, norms: 4}}\n", "norms must be one of 1, 2"),
    "parallel and beside": ("", f"- {{{BOTH}, beside: e, parallel: true}}\n", "parallel excludes"),
    "parallel without a network": ("", "- {mixer: a, parallel: true}\n", "parallel needs both"),
    "streams of some layers": ("streams: 4\n", f"- {{{BOTH}, streams: 4}}\n", r"streams of layers\[0\] are 1, and 4"),
    "streams of the model alone": ("streams: 4\n", "", r"streams of layers\[0\] are 1, and 4 of the model"),
    "streams of a layer alone": ("", f"- {{{BOTH}, streams: 4}}\n", r"streams of layers\[1\] are 4, and 1"),
    "scales": ("", f"- {{{BOTH}, scales: true}}\n", "no step of a model with scales"),
    "segments": ("token_types: 2\n", "", "no step of a model with token_types"),
    "further tensors": ("further: {x: [3, 4]}\n", "", "no step of a model with further"),
    "an empty layer": ("", "- {count: 2}\n", r"layers\[1\]: a layer needs a block"),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYERS)
def test_a_step_of_a_file_of_layers_trains_its_parameters_or_is_refused(tmp_path, case):
    path = tmp_path / "mine.yaml"
    sizes, further, refusal = LAYERS[case]
    path.write_text(HEAD + sizes + BLOCKS + further, encoding="utf-8")
    if refusal:
        with pytest.raises(TrineError, match=refusal):
            written(load_model(path), Synthesis())
        return
    model = load_model(path)
    workload = written(model, Synthesis())
    assert parameters(workload) == model.num_parameters
    assert None not in [p.gradient_operator for p in workload.parameters]


def test_all_layers_with_residual_streams_train_their_parameters(tmp_path):
    path = tmp_path / "mine.yaml"
    groups = f"- {{mixer: a, feed_forward: e, streams: 4}}\n- {{{BOTH}, streams: 4, norm: plain}}\n"
    text = f"{HEAD}streams: 4\n{BLOCKS}".replace("- {mixer: a, feed_forward: e}\n", groups)
    path.write_text(text, encoding="utf-8")
    model = load_model(path)
    assert parameters(written(model, Synthesis())) == model.num_parameters


def test_a_plain_norm_has_an_operator_without_weights(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"{HEAD}norm: plain\n{BLOCKS}", encoding="utf-8")
    workload = written(load_model(path), Synthesis())
    (last,) = [op for op in workload.operators if op.layer == "final_norm" and op.phase == FORWARD]
    assert kind_of(last) == "layer_norm"
    assert {workload.tensors[t].role for t in last.inputs} == {"activation"}


# Layouts on several GPUs.

CLUSTER = "dgx-h100"


@cache
def simulated(name, software="none", **axes):
    layers = min(num_layers(name), 4)
    workload = trine.synthesize(name, gpu="h100-sxm", layers=layers, sequence=512, software=software)
    cluster = trine.load_cluster(CLUSTER)
    return trine.simulate(workload, trine.Plan(**axes), cluster=cluster, software=software)


def weight_bytes(result, rank=0):
    return result.memory_peaks[rank].by_category["weights"]


SPLIT = [
    "qwen3-next-80b-a3b",
    "deepseek-v3.2",
    "gpt-oss-20b",
    "gemma-2-9b",
    "nemotron-3-nano-30b-a3b",
    "kimi-k3",
    pytest.param("deepseek-v4-flash", marks=pytest.mark.slow),
    pytest.param("jamba-v0.1", marks=pytest.mark.slow),
    pytest.param("mimo-v2-flash", marks=pytest.mark.slow),
    pytest.param("llama-4-scout", marks=pytest.mark.slow),
    pytest.param("minimax-m3", marks=pytest.mark.slow),
    pytest.param("step-3.7-flash", marks=pytest.mark.slow),
    pytest.param("qwen3.5-27b", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name", SPLIT)
def test_two_tensor_parallel_ranks_hold_the_weights_and_a_few_twice(name):
    one, two = simulated(name), simulated(name, tp=2)
    assert 1 <= 2 * weight_bytes(two) / weight_bytes(one) < 1.02
    assert 0 < two.step_time_s < one.step_time_s


@pytest.mark.parametrize("name", SPLIT)
def test_two_pipeline_stages_hold_each_weight_once_but_for_tied_ones(name):
    one, two = simulated(name), simulated(name, pp=2)
    model = architectures()[name]
    tied = 2 * model.vocab * model.hidden if model.tied_embeddings else 0
    assert weight_bytes(two, 0) + weight_bytes(two, 1) == weight_bytes(one) + tied
    assert two.step_time_s > 0


@pytest.mark.parametrize("name", SPLIT)
def test_replicas_hold_all_weights_and_a_step_takes_longer(name):
    one, two = simulated(name), simulated(name, dp=2)
    assert weight_bytes(two) == weight_bytes(one)
    assert two.step_time_s >= one.step_time_s > 0


@pytest.mark.parametrize("name", [n for n in SPLIT if n not in ("gemma-2-9b",)][:5])
def test_expert_parallel_ranks_divide_the_weights_of_experts_alone(name):
    one, two = simulated(name), simulated(name, dp=2, ep=2)
    model = cut(name, min(num_layers(name), 4))
    experts = sum(
        weight.size for weights in model.modules().values() for weight in weights if weight.name.startswith("experts.")
    )
    assert weight_bytes(one) - weight_bytes(two) == 2 * experts // 2
    assert two.step_time_s > 0


def test_a_model_without_experts_has_no_expert_parallel_layout():
    with pytest.raises(PlanError, match="finds no experts"):
        simulated("gemma-2-9b", dp=2, ep=2)


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-next-80b-a3b",
        "gpt-oss-20b",
        pytest.param("deepseek-v3.2", marks=pytest.mark.slow),
        pytest.param("nemotron-3-nano-30b-a3b", marks=pytest.mark.slow),
        "deepseek-v4-flash",
    ],
)
def test_sequence_parallelism_of_megatron_core_divides_activations_too(name):
    one, two = simulated(name, "megatron-core"), simulated(name, "megatron-core", tp=2)
    activations = [result.memory_peaks[0].by_category["activations"] for result in (one, two)]
    assert 0.5 <= activations[1] / activations[0] < 0.6
    assert 1 <= 2 * weight_bytes(two) / weight_bytes(one) < 1.02
    assert 0 < two.step_time_s < one.step_time_s
