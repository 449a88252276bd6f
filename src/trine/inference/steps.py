"""The time of one engine step on one GPU: its kernels, communication, and exposed CPU time.

Everything that depends only on the step's number of tokens (products, experts, small kernels, communication) is a curve
over :data:`trine.inference.products.TOKENS`, computed once per deployment and interpolated. Attention depends on the
contexts and is added for each sequence and chunk.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from trine.cluster import Cluster
from trine.cluster.presets import GpuSpec
from trine.common.arrays import Float64
from trine.common.evidence import ASSUMED, MODELLED
from trine.inference import recurrence_times
from trine.inference.attention_times import AttentionTimes, HeadShapes, LatentTimes
from trine.inference.communication import Communication
from trine.inference.engines import EngineProfile
from trine.inference.expert_times import ExpertLayer, experts_evidence, experts_us
from trine.inference.job import ServingLayout
from trine.inference.precision import ServedPrecision
from trine.inference.products import TOKENS, at_tokens, gpu_times
from trine.inference.shards import LocalProduct, local_products
from trine.workload.architecture.blocks import (
    Attention,
    CompressedAttention,
    FeedForward,
    LatentAttention,
    Mixer,
    Mixture,
    Mlp,
)
from trine.workload.architecture.model import Architecture, Layer

GEMMS, EXPERTS, ATTENTION, SMALL, COMMUNICATION, HEAD, CPU = (
    "GEMMs", "experts", "attention and KV cache", "small kernels", "communication", "head and sampling", "CPU",
)  # fmt: skip
PARTS = (GEMMS, EXPERTS, ATTENTION, SMALL, COMMUNICATION, HEAD, CPU)
#: Bytes of an activation, and of a logit.
ACTIVATION, _LOGIT = 2, 4
#: Kernels of sampling (temperature, top-k and top-p masks, softmax, draw, copy), and passes over float32 logits.
_SAMPLING_KERNELS, _LOGIT_PASSES = 8, 3
#: Kernels besides norms, products and casts: rotation, cache write, attention and all-reduce; routing, sorting, two
#: grouped GEMMs, activation, sum and all-reduce; activation and all-reduce; embedding, metadata and gathers of a step.
_FURTHER_KERNELS = {"mixer": 4, "experts": 8, "mlp": 2, "step": 6}
#: Bytes of an element of an indexer's keys: FP8 (DeepSeek-V3.2, 2025).
_INDEX_BYTES = 1


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Tokens of one prompt in a step: ``new`` ones, after ``cached`` ones."""

    new: int
    cached: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an attention replica.

    decodes: sequences with one new token each (more with ``drafts``), over ``context`` cached tokens on average.
    chunks: of prompts.
    """

    decodes: int = 0
    context: float = 0.0
    chunks: tuple[PromptChunk, ...] = ()
    drafts: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the layers process."""
        return self.decodes * (1 + self.drafts) + sum(chunk.new for chunk in self.chunks)

    @property
    def rows(self) -> int:
        """Tokens that the head processes: each decode, and the last of each chunk."""
        return self.decodes * (1 + self.drafts) + len(self.chunks)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Microseconds of one step by part."""

    parts: dict[str, float]

    @property
    def us(self) -> float:
        """The whole step."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on GPUs with an engine: everything behind the time of a step except the requests."""

    model: Architecture
    cluster: Cluster
    gpu: GpuSpec
    layout: ServingLayout
    precision: ServedPrecision
    precision_name: str
    kv: str
    engine: EngineProfile


class StepTimer:
    """Times of the steps of one deployment."""

    def __init__(self, deployment: Deployment, communication: Communication | None = None) -> None:
        """communication: of the same cluster and engine, shared with other layouts."""
        self.deployment = deployment
        engine, gpu = deployment.engine.kernels, deployment.gpu
        self._times = gpu_times(gpu, engine)
        self._attention = AttentionTimes(gpu, engine, deployment.kv)
        self._latent = LatentTimes(gpu, engine, deployment.kv)
        self.communication = communication or Communication(deployment.cluster, deployment.engine)
        self._layers = Counter(deployment.model.layers)
        self.mixers = Counter(layer.mixer for layer in deployment.model.layers if layer.mixer is not None)
        self._curves = self._token_curves()
        self._head = self._head_curve()
        self._kernels = self._kernel_count()

    @property
    def stages(self) -> int:
        """Pipeline stages, each of which runs one micro-batch at a time."""
        return self.deployment.layout.pp

    @property
    def products_evidence(self) -> str:
        """Evidence of the products."""
        is_modelled = self.deployment.precision.is_weight_only and self._times.evidence != ASSUMED
        return MODELLED if is_modelled else self._times.evidence

    @property
    def attention_evidence(self) -> str:
        """Evidence of attention."""
        return self._attention.evidence()

    @property
    def experts_evidence(self) -> str:
        """Evidence of the experts."""
        deployment = self.deployment
        hidden = deployment.model.hidden
        mixtures = [layer.feed_forward for layer in self._layers if isinstance(layer.feed_forward, Mixture)]
        layers = {(each.latent or hidden, each.ffn, each.top_k, each.experts) for each in mixtures}
        return experts_evidence(deployment.gpu, deployment.engine.kernels, deployment.precision, layers)

    def time(self, step: Step) -> StepTime:
        """Return the time of a step by part."""
        tokens = self.graph_tokens(step)
        parts = {name: at_tokens(tokens, curve) for name, curve in self._curves.items()}
        parts[EXPERTS] = at_tokens(self.expert_tokens(step), self._curves[EXPERTS])
        parts[ATTENTION] = self._attention_us(step)
        parts[HEAD] = at_tokens(step.rows, self._head) if step.rows else 0.0
        if step.drafts and step.decodes:
            self._add_drafts(parts, step)
        parts[CPU] = self.host_us(step.decodes, len(step.chunks), sum(parts.values()))
        return StepTime(parts)

    def graph_tokens(self, step: Step) -> int:
        """Return the tokens that the layers process, those included that pad decodes to the size of a CUDA graph."""
        if step.chunks or not step.decodes:
            return max(1, step.tokens)
        return self.deployment.engine.padded(step.decodes) * (1 + step.drafts)

    def expert_tokens(self, step: Step) -> int:
        """Return the tokens that choose experts: those of padding are alike, and count once."""
        return min(self.graph_tokens(step), max(1, step.tokens) + 1)

    def stages_us(self, step: Step) -> tuple[float, ...]:
        """Return the time of a step on each pipeline stage, messages and CPU shared like layers; the sum is the step.

        The last stage has the head. Layers that the stages do not divide go to the last stages but one (vLLM,
        distributed/utils.py, get_pp_indices).
        """
        layers, stages = len(self.deployment.model.layers), self.stages
        time = self.time(step)
        counts = [layers // stages] * stages
        for place in range(layers % stages):
            counts[-2 - place] += 1
        each_us = (time.us - time.parts[HEAD]) / layers
        found = [count * each_us for count in counts]
        found[-1] += time.parts[HEAD]
        return tuple(found)

    def round_us(self, step: Step) -> float:
        """Return the time from one step of a micro-batch to its next, if all micro-batches of the pipeline are alike.

        A micro-batch passes all stages; the slowest stage serves as many micro-batches as there are stages.
        """
        if self.stages == 1:
            return self.time(step).us
        return max(self.time(step).us, self.stages * max(self.stages_us(step)))

    def _add_drafts(self, parts: dict[str, float], step: Step) -> None:
        """Add the passes that propose drafts: each runs one layer and the head on one token of each sequence."""
        share = step.drafts / len(self.deployment.model.layers)
        for name, curve in self._curves.items():
            parts[name] += share * at_tokens(step.decodes, curve)
        parts[ATTENTION] += share * parts[ATTENTION]
        parts[HEAD] += step.drafts * at_tokens(step.decodes, self._head)

    def host_us(self, decodes: int, chunks: int, gpu_us: float) -> float:
        """Return the CPU time that a step of decodes and prompt chunks adds to ``gpu_us`` of GPU time."""
        engine = self.deployment.engine
        is_graph = not chunks and decodes <= engine.graph_batch
        launches_us = 0.0 if is_graph else self._kernels * engine.launch_us
        sequences = decodes + chunks
        scheduling_us = engine.host_us + engine.sequence_us * sequences
        exposed_us = engine.exposed_us + engine.exposed_sequence_us * sequences
        if engine.host == "exposed":
            return exposed_us + scheduling_us + max(0.0, launches_us - gpu_us)
        return exposed_us + max(0.0, launches_us - gpu_us, scheduling_us - gpu_us)

    def tokens_us(self) -> Float64:
        """Return the time of everything but experts that depends on the step's tokens, at each of :data:`TOKENS`."""
        return np.asarray(np.sum([curve for name, curve in self._curves.items() if name != EXPERTS], axis=0))

    def all_experts_us(self) -> Float64:
        """Return the time of the experts of all layers, at each of :data:`TOKENS`."""
        return self._curves[EXPERTS]

    def head_us(self) -> Float64:
        """Return the time of head and sampling, at each number of rows in :data:`TOKENS`."""
        return self._head

    # Attention ------------------------------------------------------------------------------------------------------

    def _attention_us(self, step: Step) -> float:
        total, chunks = 0.0, Counter(step.chunks)
        for mixer, count in self.mixers.items():
            each = 0.0
            if step.decodes:
                each += self.decode_us(mixer, step.decodes, step.context, 1 + step.drafts)
            each += sum(alike * self.prefill_us(mixer, chunk) for chunk, alike in chunks.items())
            total += count * each
        return total

    def decode_us(self, mixer: Mixer, sequences: int, context: float, queries: int = 1) -> float:
        """Return the attention of one layer; several queries of a sequence read its cache once, like more heads."""
        tp = self.deployment.layout.tp
        if isinstance(mixer, Attention):
            reach = min(context, mixer.window) if mixer.window else context
            if mixer.indexer is not None:
                reach = min(context, mixer.indexer.top_k)
            heads = _heads(mixer, tp, queries)
            if not self.deployment.engine.shares_keys:
                heads = replace(heads, keys=max(1, mixer.heads // tp))
            us = self._attention.decode_us(heads, sequences, max(1.0, reach))
        elif isinstance(mixer, LatentAttention):
            reach = context if mixer.indexer is None else min(context, mixer.indexer.top_k)
            kept = mixer.kv_rank + mixer.rotated
            us = self._latent.decode_us(max(1, mixer.heads // tp) * queries, sequences, max(1.0, reach), kept)
        elif isinstance(mixer, CompressedAttention):
            reach = min(context, mixer.window) + self._compressed(mixer, context)
            us = self._latent.decode_us(
                max(1, mixer.heads // tp) * queries, sequences, max(1.0, reach), mixer.head_size
            )
        else:
            return recurrence_times.decode_us(mixer, self.deployment.gpu, tp, sequences) * queries
        return us + self.indexer_us(mixer, sequences, context)

    @staticmethod
    def _compressed(mixer: CompressedAttention, context: float) -> float:
        """Return the compressed keys that a query reads."""
        if not mixer.ratio:
            return 0.0
        keys = context / mixer.ratio
        return keys if mixer.indexer is None else min(keys, mixer.indexer.top_k)

    def indexer_us(
        self, mixer: Attention | LatentAttention | CompressedAttention, sequences: int, context: float
    ) -> float:
        """Return the time to score all keys of a sequence and to choose among them."""
        index = mixer.indexer
        if index is None or index.is_shared:
            return 0.0
        keys = context / (mixer.ratio if isinstance(mixer, CompressedAttention) else 1)
        scores = self._times.moved_us(sequences * keys * index.size * _INDEX_BYTES)
        return scores + self._times.moved_us(2 * sequences * keys * _LOGIT)

    def prefill_us(self, mixer: Mixer, chunk: PromptChunk) -> float:
        """Return the attention of one layer for one chunk of a prompt."""
        tp, new, cached = self.deployment.layout.tp, chunk.new, chunk.cached
        if isinstance(mixer, Attention):
            window = mixer.window if mixer.indexer is None else mixer.indexer.top_k
            return self._attention.prefill_us(_heads(mixer, tp), new, cached, window)
        if isinstance(mixer, LatentAttention):
            reach = cached if mixer.indexer is None else min(cached, mixer.indexer.top_k)
            return self._latent.prefill_us(max(1, mixer.heads // tp), mixer.head_size, mixer.value, new, reach)
        if isinstance(mixer, CompressedAttention):
            window = mixer.window + int(self._compressed(mixer, new + cached))
            heads = HeadShapes(max(1, mixer.heads // tp), 1, mixer.head_size, mixer.head_size)
            return self._attention.prefill_us(heads, new, cached, window)
        return recurrence_times.prefill_us(mixer, self.deployment.gpu, tp, new)

    # Curves over the tokens -----------------------------------------------------------------------------------------

    def _token_curves(self) -> dict[str, Float64]:
        curves = {name: np.zeros(TOKENS.shape) for name in (GEMMS, EXPERTS, SMALL, COMMUNICATION)}
        for layer, count in self._layers.items():
            for block in (layer.mixer, layer.feed_forward, layer.beside):
                if block is None:
                    continue
                curves[GEMMS] += count * self.gemms_us(block)
                curves[SMALL] += count * self.small_us(block)
                if isinstance(block, Mixture):
                    curves[EXPERTS] += count * self.experts_us(block)
            curves[SMALL] += count * self.norms_us(layer)
            for block in (layer.mixer, layer.feed_forward):
                if block is not None:
                    curves[COMMUNICATION] += count * self.communication_us(block)
        curves[SMALL] += self.embedding_us()
        curves[COMMUNICATION] += self.messages_us()
        return curves

    def gemms_us(self, block: Mixer | FeedForward) -> Float64:
        """Return the products of one block at each number of tokens."""
        total = np.zeros(TOKENS.shape)
        for product in self._products(block):
            total += self._times.product_us(product.outputs, product.inputs, product.dtype, product.weight_bytes)
        return total

    def _products(self, block: Mixer | FeedForward) -> list[LocalProduct]:
        deployment = self.deployment
        return local_products(block, deployment.model.hidden, deployment.layout, deployment.precision)

    def experts_us(self, mixture: Mixture) -> Float64:
        """Return the experts' time; the tokens of all attention replicas meet there."""
        deployment = self.deployment
        layout = deployment.layout
        layer = ExpertLayer(
            experts=mixture.experts, top_k=mixture.top_k, hidden=mixture.latent or deployment.model.hidden,
            ffn=mixture.ffn, gated=mixture.gated, ways_cut=layout.expert_tp, ways_divided=layout.ep,
        )  # fmt: skip
        curve = experts_us(layer, deployment.gpu, deployment.engine.kernels, deployment.precision)
        return np.array([at_tokens(tokens * layout.attention_dp, curve) for tokens in TOKENS])

    def _moved(self, bytes_per_token: float) -> Float64:
        """Return microseconds of a memory-bound kernel at each number of tokens."""
        return np.array([self._times.moved_us(tokens * bytes_per_token) for tokens in TOKENS])

    def norms_us(self, layer: Layer) -> Float64:
        """Return the norms with their residuals: read both, write both."""
        return layer.norms * self._moved(4 * ACTIVATION * self.deployment.model.hidden)

    def small_us(self, block: Mixer | FeedForward) -> Float64:
        """Return rotation and cache writes, activation, and casts of the inputs of products."""
        tp, precision = self.deployment.layout.tp, self.deployment.precision
        total = np.zeros(TOKENS.shape)
        if isinstance(block, Attention):
            heads = _heads(block, tp)
            features = (heads.queries + 2 * heads.keys) * heads.size
            total += self._moved(2 * ACTIVATION * features)
            if block.norms != "none":
                total += self._moved(2 * ACTIVATION * features)
        elif isinstance(block, LatentAttention):
            total += 2 * self._moved(2 * ACTIVATION * (block.query_rank + block.kv_rank + block.rotated))
        elif isinstance(block, Mlp):
            total += self._moved(3 * ACTIVATION * block.ffn / tp)
        elif isinstance(block, Mixture):
            total += self._moved(2 * ACTIVATION * self.deployment.model.hidden)
            if block.shared:
                total += self._moved(3 * ACTIVATION * block.shared / tp)
        else:
            total += 2 * self._moved(4 * ACTIVATION * self.deployment.model.hidden / tp)
        for product in self._products(block):
            if product.dtype != "bfloat16":
                total += precision.casts * self._moved(1.5 * ACTIVATION * product.inputs)
        return total

    def communication_us(self, block: Mixer | FeedForward) -> Float64:
        """Return the communication after a block at each number of tokens of one attention replica."""
        layout, row_bytes = self.deployment.layout, ACTIVATION * self.deployment.model.hidden
        if isinstance(block, Mixture) and layout.attention_dp > 1:
            ways = layout.stage_gpus
            return np.array([self.communication.exchange_us(t / layout.tp, row_bytes, ways) for t in TOKENS])
        if layout.tp > 1:
            return np.array([self.communication.all_reduce_us(t * row_bytes, layout.tp) for t in TOKENS])
        return np.zeros(TOKENS.shape)

    def embedding_us(self) -> Float64:
        """Return the embedding at each number of tokens."""
        return self._moved(ACTIVATION * 2 * self.deployment.model.hidden)

    def messages_us(self) -> Float64:
        """Return the messages between pipeline stages."""
        layout, row_bytes = self.deployment.layout, ACTIVATION * self.deployment.model.hidden
        if layout.pp == 1:
            return np.zeros(TOKENS.shape)
        gpus = self.deployment.cluster.gpus
        ends = gpus.index(gpus[0]), layout.stage_gpus
        each = np.array([self.communication.message_us(t * row_bytes, *ends) for t in TOKENS])
        return (layout.pp - 1) * each

    def _head_curve(self) -> Float64:
        """Return the head, the gather of its logits and sampling, at each number of rows."""
        model, tp = self.deployment.model, self.deployment.layout.tp
        vocab = -(-model.vocab // tp)
        total = self._times.product_us(vocab, model.hidden, "bfloat16", 2.0).copy()
        gathers = [self.communication.gather_us(rows * model.vocab * ACTIVATION, tp) for rows in TOKENS]
        total += np.array(gathers) + _LOGIT_PASSES * self._moved(2 * model.vocab * _LOGIT)
        return total + _SAMPLING_KERNELS * self._times.moved_us(1)

    def _kernel_count(self) -> int:
        """Return the number of kernels of a step without CUDA graphs."""
        total = _SAMPLING_KERNELS + _FURTHER_KERNELS["step"]
        for layer, count in self._layers.items():
            each = layer.norms
            for block in (layer.mixer, layer.feed_forward, layer.beside):
                if block is None:
                    continue
                kind = "experts" if isinstance(block, Mixture) else "mlp" if isinstance(block, Mlp) else "mixer"
                products = self._products(block)
                casts = sum(product.dtype != "bfloat16" for product in products) * self.deployment.precision.casts
                each += _FURTHER_KERNELS[kind] + len(products) + casts
            total += count * each
        return total


def _heads(mixer: Attention, tp: int, queries: int = 1) -> HeadShapes:
    """Return the heads of one GPU; queries: of each sequence."""
    heads, keys = max(1, mixer.heads // tp), max(1, mixer.kv_heads // tp)
    return HeadShapes(heads * queries, keys, mixer.head_size, mixer.values)
