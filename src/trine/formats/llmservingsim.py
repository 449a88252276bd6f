"""LLMServingSim: write predicted kernel times as a profile bundle, instead of a profiling run on a GPU.

A bundle (casys-kaist/LLMServingSim, docs/docs/profiler/output-bundle.md at 11b96ae) is a folder
``HARDWARE/MODEL/VARIANT`` with ``meta.yaml`` and, for each tensor-parallel degree, ``tpN/dense.csv`` (times by tokens),
``per_sequence.csv`` (by sequences), ``attention.csv`` (by prefill chunk, query-weighted key length, decodes and their
context) and ``moe.csv`` (by tokens and distinct experts). Times are microseconds. That simulator adds collectives
itself; The format cannot express CPU time.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trine.common.arrays import Float64
from trine.common.spec import dump_yaml
from trine.errors import InputError
from trine.inference.deployment import resolve, step_timer
from trine.inference.expert_times import ExpertLayer, experts_us
from trine.inference.products import TOKENS, gpu_times
from trine.inference.shards import local_products
from trine.inference.step_time import StepLayout
from trine.inference.steps import Deployment, PromptChunk
from trine.workload.architecture.blocks import Attention, Mixer, Mixture, Mlp

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.workload.architecture.model import Architecture

#: Bounds of the bundle: tokens and sequences of a step, contexts; expert-parallel degrees.
MAX_TOKENS, MAX_SEQUENCES, MAX_CONTEXT, MAX_EP = 8_192, 1_024, 131_072, 8
_SMALLEST = 16
_ACTIVATION, _LOGIT, _LOGIT_PASSES, _SAMPLING_KERNELS = 2, 4, 3, 8
Times = Iterator[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The one attention, dense network and mixture of a model's layers; None for a kind that it lacks."""

    attention: Attention
    dense: Mlp | None
    mixture: Mixture | None


@dataclass(frozen=True, slots=True)
class _ActivatedExperts(ExpertLayer):
    """Experts of one GPU when exactly ``activated`` ones receive tokens."""

    activated: int = field(default=1, kw_only=True)

    def touched(self, tokens: Float64) -> Float64:
        """Return the number of this GPU's experts that tokens choose."""
        return np.full(tokens.shape, float(self.activated))


def write_bundle(
    folder: str | Path,
    model: Architecture | str,
    cluster: Cluster | str,
    *,
    hardware: str,
    name: str,
    tp: Sequence[int] = (1,),
    precision: str = "",
    kv_precision: str = "",
) -> Path:
    """Write a bundle below ``folder`` (that simulator's ``profiler/perf``) and return its path.

    hardware, name: as its cluster file names GPU and model, such as ``H100`` and ``meta-llama/Llama-3.1-8B``. tp:
    tensor-parallel degrees.

    Raises InputError: names with other characters, a model whose layers have anything but full softmax attention
    with a gated network or experts, and as :func:`trine.step_time` does.
    """
    for label, text in (("hardware", hardware), ("name", name)):
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", text) or ".." in text:
            raise InputError(f"takes letters, digits and . - _, got {text[:40]!r}", field=label)
    deployments = {}
    for ways in tp:
        layout = StepLayout(tp=ways, precision=precision, kv_precision=kv_precision)
        deployments[ways] = resolve(layout.job(model, cluster))
    first = deployments[tp[0]]
    blocks = _blocks(first)
    variant = first.precision_name + ("" if first.kv == "bf16" else f"-kv{first.kv}")
    root = Path(folder) / hardware / name / variant
    for ways, deployment in deployments.items():
        _write_degree(root / f"tp{ways}", deployment, blocks)
    meta = {
        "profiler_version": "trine", "vllm_version": first.engine.version, "gpu": first.gpu.name,
        "hardware": hardware, "model": name, "variant": variant, "tp_degrees": list(tp),
        "engine_effective": {"max_num_batched_tokens": MAX_TOKENS, "max_num_seqs": MAX_SEQUENCES},
        "skew_fit": {"enabled": False},
    }  # fmt: skip
    (root / "meta.yaml").write_text(dump_yaml(meta), encoding="utf-8")
    return root


def _blocks(deployment: Deployment) -> _Blocks:
    """Return the blocks of a model. Raises InputError for one that the format has no layers for."""
    model = deployment.model
    mixers = {layer.mixer for layer in model.layers}
    networks = {layer.feed_forward for layer in model.layers}
    attention = next(iter(mixers))
    plain = len(mixers) == 1 and isinstance(attention, Attention) and not attention.window and not attention.indexer
    dense = [block for block in networks if isinstance(block, Mlp)]
    mixtures = [block for block in networks if isinstance(block, Mixture)]
    known = len(dense) + len(mixtures) == len(networks) and max(len(dense), len(mixtures)) == 1
    is_shared = any(block.shared for block in mixtures) or any(layer.beside is not None for layer in model.layers)
    if not isinstance(attention, Attention) or not plain or not known or is_shared:
        raise InputError(f"a bundle has full attention with one kind of network; {model.name} differs", field="model")
    return _Blocks(attention, dense[0] if dense else None, mixtures[0] if mixtures else None)


def _write_degree(folder: Path, deployment: Deployment, blocks: _Blocks) -> None:
    """Write the tables of one tensor-parallel degree."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "dense.csv", ("layer", "tokens", "time_us"), _dense_rows(deployment, blocks))
    _write(folder / "per_sequence.csv", ("layer", "sequences", "time_us"), _sequence_rows(deployment))
    axes = ("layer", "prefill_chunk", "prefill_key", "n_decode", "kv_decode", "decode_q_len", "time_us")
    _write(folder / "attention.csv", axes, _attention_rows(deployment, blocks.attention))
    if blocks.mixture is not None:
        columns = ("ep", "tokens", "activated_experts", "time_us")
        _write(folder / "moe.csv", columns, _expert_rows(deployment, blocks.mixture))


def _write(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows((*row[:-1], f"{row[-1]:.6g}") for row in rows)


# Times that depend on the tokens ------------------------------------------------------------------------------------


def _dense_rows(deployment: Deployment, blocks: _Blocks) -> Times:
    """Yield layer, tokens and microseconds; the names come from the simulator's model files."""
    hidden, tp, attention = deployment.model.hidden, deployment.layout.tp, blocks.attention
    features = (attention.heads // tp + 2 * max(1, attention.kv_heads // tp)) * attention.head_size
    norm = _moved(deployment, 4 * _ACTIVATION * hidden)
    layers = {
        "embedding": _moved(deployment, 2 * _ACTIVATION * hidden), "layernorm": norm, "final_layernorm": norm,
        "rotary_emb": _moved(deployment, 2 * _ACTIVATION * features),
        **_products(deployment, attention, ("qkv_proj", "o_proj")),
    }  # fmt: skip
    if attention.norms != "none":
        layers["qk_norm"] = layers["rotary_emb"]
    if blocks.dense is not None:
        layers |= _products(deployment, blocks.dense, ("gate_up_proj", "down_proj"))
        layers["act_fn"] = _moved(deployment, 3 * _ACTIVATION * blocks.dense.ffn / tp)
    for layer, times in sorted(layers.items()):
        for tokens, time_us in zip(TOKENS.tolist(), times.tolist(), strict=True):
            if tokens <= MAX_TOKENS:
                yield layer, int(tokens), time_us


def _products(deployment: Deployment, block: Mixer | Mlp, names: tuple[str, str]) -> dict[str, Float64]:
    """Return the times of a block's two products, each with the cast of its input."""
    precision = deployment.precision
    products = local_products(block, deployment.model.hidden, deployment.layout, precision)
    if len(products) != len(names):
        message = f"a bundle has two products in attention and network; {deployment.model.name} has {len(products)}"
        raise InputError(message, field="model")
    found = {}
    for name, each in zip(names, products, strict=True):
        times = gpu_times(deployment.gpu).product_us(each.outputs, each.inputs, each.dtype, each.weight_bytes)
        casts = precision.casts if each.dtype != "bfloat16" else 0
        found[name] = times + casts * _moved(deployment, 1.5 * _ACTIVATION * each.inputs)
    return found


def _sequence_rows(deployment: Deployment) -> Times:
    """Yield head and sampler by sequences."""
    model, times = deployment.model, gpu_times(deployment.gpu)
    head = times.product_us(-(-model.vocab // deployment.layout.tp), model.hidden, "bfloat16", 2.0)
    sampler = _LOGIT_PASSES * _moved(deployment, 2 * model.vocab * _LOGIT) + _SAMPLING_KERNELS * times.moved_us(1)
    for layer, curve in (("lm_head", head), ("sampler", sampler)):
        for sequences, time_us in zip(TOKENS.tolist(), curve.tolist(), strict=True):
            if sequences <= MAX_SEQUENCES:
                yield layer, int(sequences), time_us


def _moved(deployment: Deployment, bytes_per_token: float) -> Float64:
    """Return the time of a memory-bound kernel at each of :data:`TOKENS`."""
    return np.array([gpu_times(deployment.gpu).moved_us(tokens * bytes_per_token) for tokens in TOKENS])


# Attention and experts ----------------------------------------------------------------------------------------------


def _attention_rows(deployment: Deployment, attention: Attention) -> Times:
    """Yield attention of one prefill chunk beside equal decodes: the sum of both kernels.

    The key length of a chunk of c tokens after k ones is k + c / 2 (the simulator's query-weighted mean).
    """
    timer = step_timer(deployment)
    decodes = [(0, 0, 0.0)] + [
        (count, context, timer.decode_us(attention, count, context))
        for count in _doubled(1, MAX_SEQUENCES) for context in _doubled(_SMALLEST, MAX_CONTEXT)
    ]  # fmt: skip
    chunks = [(0, 0.0, 0.0)] + [
        (new, key, timer.prefill_us(attention, PromptChunk(new, int(key - new / 2))))
        for new in _doubled(_SMALLEST, MAX_TOKENS) for key in _key_lengths(new)
    ]  # fmt: skip
    for new, key, prefill_us in chunks:
        for count, context, decode_us in decodes:
            if (new or count) and new + count <= MAX_TOKENS:
                yield "attention", new, key, count, context, 1, prefill_us + decode_us


def _key_lengths(new: int) -> list[float]:
    """Return key lengths of a chunk: without cached tokens, then with doubling numbers of them."""
    return [new / 2] + [new / 2 + cached for cached in _doubled(_SMALLEST, MAX_CONTEXT)]


def _doubled(least: int, most: int) -> list[int]:
    return [least << power for power in range((most // least).bit_length())]


def _expert_rows(deployment: Deployment, mixture: Mixture) -> Times:
    """Yield experts with their router by expert parallelism, tokens and distinct experts of a GPU."""
    tp, hidden = deployment.layout.tp, deployment.model.hidden
    times = gpu_times(deployment.gpu)
    router = times.product_us(mixture.experts, hidden, "bfloat16", 2.0)
    around = router + _moved(deployment, 2 * _ACTIVATION * hidden)
    for ep in _doubled(1, MAX_EP):
        if mixture.experts % ep:
            continue
        shape = (mixture.experts, mixture.top_k, hidden, mixture.ffn, mixture.gated, max(1, tp // ep), ep)
        measured = experts_us(ExpertLayer(*shape), deployment.gpu, deployment.engine.kernels, deployment.precision)
        ratio = measured / ExpertLayer(*shape).closed_form_us(TOKENS, deployment.gpu, deployment.precision)
        for activated in _doubled(max(1, mixture.top_k // ep), mixture.experts // ep):
            experts = _ActivatedExperts(*shape, activated=activated)
            curve = ratio * experts.closed_form_us(TOKENS, deployment.gpu, deployment.precision) + around
            for tokens, time_us in zip(TOKENS.tolist(), curve.tolist(), strict=True):
                if tokens <= MAX_TOKENS and activated <= tokens * mixture.top_k:
                    yield ep, int(tokens), activated, time_us
