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
from trine.workload.synthesis.spec import load_model


def known(reason, raises=AssertionError):
    return pytest.mark.xfail(strict=True, reason=reason, raises=raises)


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
    return sum(work(op, workload).flops for op in workload.operators if op.phase == FORWARD and kind_of(op) in kinds)


def left_out(model):
    """Return the parameters of attention over earlier layers, which has no operators (a step's assumptions say so)."""
    layers = [layer for layer in model.layers if layer.reads_earlier]
    return sum(num_elements(layer.weights(model.hidden)["residual"]) for layer in layers)


NO_SCALES = known("layered.py: _branch() and layered() leave out the scales of hyper-connections")
IS_VIEW = known("layered.py: _first() writes aten::narrow, a view, which takes no time")
NAMES = sorted(architectures())


def test_most_published_models_have_a_step():
    assert len(NAMES) == 49


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[NO_SCALES] if "deepseek-v4" in name else []) for name in NAMES],
)
def test_a_step_trains_the_parameters_of_its_layers(name):
    model = cut(name)
    assert parameters(step(name)) == model.num_parameters - left_out(model)


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4-pro"])
def test_hyper_connections_lack_nothing_but_their_scales(name):
    model = cut(name)
    scales = 3 * 2 * len(model.layers) + 1
    assert parameters(step(name)) == model.num_parameters - scales


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


@pytest.mark.parametrize("name", [pytest.param(n, marks=[IS_VIEW] if "jamba" in n else []) for n in NAMES])
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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mistral-7b", marks=known("known_forms.py: _transformer() drops windows above `sequence`")),
        "gemma-2-9b",
        "phi-3-mini",
    ],
)
def test_samples_longer_than_the_window_see_the_window_alone(name):
    model, length = cut(name), 16_384
    workload = trine.synthesize(name, layers=num_layers(name), sequence=length)
    context = sum(mixer.context_flops(length) for mixer in model.mixers())
    counted = flops(workload, {"attention"}) * (length + 1) / (2 * length)
    assert counted == pytest.approx(context, rel=1e-6)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5.2", "deepseek-v4-flash", "minimax-m3"])
@known("layered.py: _index() writes scores as attention with values, which doubles their FLOPs")
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
    "narrow values with a gate": (
        "", "- {mixer: narrow, feed_forward: mlp}\n",
        "blocks.py: Attention's gate has head_size features for each head, layered.py's has value_size",
    ),
    "plain norm of a layer": ("", f"- {{{BOTH}, norm: plain}}\n", "transformer.py: norm() gives plain norms weights"),
    "plain last norm": ("norm: plain\n", "", "transformer.py: norm() gives plain norms weights"),
    "no norms": ("", f"- {{{BOTH}, norms: 0}}\n", "layered.py: _branch() always writes a norm"),
    "one norm": ("", f"- {{{BOTH}, norms: 1}}\n", "layered.py: _branch() writes a norm for each block"),
    "three norms": ("", f"- {{{BOTH}, norms: 3}}\n", "layered.py: _branch() writes two norms or four"),
    "beside, four norms": ("", f"- {{{BOTH}, beside: e, norms: 4}}\n", "layered.py: _network() writes three norms"),
    "beside alone": ("", "- {mixer: a, beside: mlp}\n", "layered.py: write() skips a network beside none"),
    "parallel, four norms": ("", f"- {{{BOTH}, parallel: true, norms: 4}}\n", "layered.py: _in_parallel() writes two"),
    "parallel and beside": ("", f"- {{{BOTH}, beside: e, parallel: true}}\n", "layered.py: _in_parallel() skips it"),
    "streams of some layers": (
        "streams: 4\n", f"- {{{BOTH}, streams: 4}}\n", "files.py: streams of model and layers may differ"
    ),
    "streams of the model alone": ("streams: 4\n", "", "files.py: streams of model and layers may differ"),
    "streams of a layer alone": ("", f"- {{{BOTH}, streams: 4}}\n", "files.py: streams of model and layers may differ"),
    "scales": ("", f"- {{{BOTH}, scales: true}}\n", "layered.py: scales have no operators"),
    "segments": ("token_types: 2\n", "", "layered.py: token_types has no operators"),
    "further tensors": ("further: {x: [3, 4]}\n", "", "layered.py: further tensors have no operators"),
    "an empty layer": ("", "- {count: 2}\n", "layered.py: norms of a layer without blocks have no operators"),
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[known(fault)] if fault else []) for case, (_, _, fault) in LAYERS.items()],
)
def test_a_step_of_a_file_of_layers_trains_its_parameters_or_is_refused(tmp_path, case):
    path = tmp_path / "mine.yaml"
    sizes, further, _ = LAYERS[case]
    path.write_text(HEAD + sizes + BLOCKS + further, encoding="utf-8")
    try:
        model = load_model(path)
        workload = written(model, Synthesis())
    except TrineError:
        return
    assert parameters(workload) == model.num_parameters
    assert None not in [p.gradient_operator for p in workload.parameters]


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


NO_ROW_SPLIT = known(
    "layered.py: _compressed() under sequence parallelism: the output of q_up has to be whole", raises=PlanError
)
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
        pytest.param("deepseek-v4-flash", marks=NO_ROW_SPLIT),
    ],
)
def test_sequence_parallelism_of_megatron_core_divides_activations_too(name):
    one, two = simulated(name, "megatron-core"), simulated(name, "megatron-core", tp=2)
    activations = [result.memory_peaks[0].by_category["activations"] for result in (one, two)]
    assert 0.5 <= activations[1] / activations[0] < 0.6
    assert 1 <= 2 * weight_bytes(two) / weight_bytes(one) < 1.02
    assert 0 < two.step_time_s < one.step_time_s
