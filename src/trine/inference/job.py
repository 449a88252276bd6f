"""The question that ``trine infer`` answers: a model, the GPUs and layout that serve it, and the requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from trine.common.schema import Field

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.workload.architecture.model import Architecture

MAX_WAYS, MAX_TOKENS, MAX_DRAFTS = 4_096, 10_000_000, 64
Ways = Annotated[int, Field(ge=1, le=MAX_WAYS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingLayout:
    """How one copy of the model is spread over GPUs.

    tp: tensor parallelism of attention and dense layers. pp: pipeline stages. attention_dp: replicas of the attention,
    each with its own requests, which share the experts. ep: GPUs among which the experts of a layer are divided; the
    remaining tp x attention_dp / ep ways cut each expert.
    """

    tp: Ways = 1
    pp: Ways = 1
    ep: Ways = 1
    attention_dp: Ways = 1

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage."""
        return self.tp * self.attention_dp

    @property
    def gpus(self) -> int:
        """GPUs of one copy of the model."""
        return self.stage_gpus * self.pp

    @property
    def expert_tp(self) -> int:
        """Ways that cut each expert."""
        return self.stage_gpus // self.ep


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation:
    """Speculative decoding: ``drafts`` tokens a step are proposed, each accepted with probability ``acceptance``.

    The model's own layers for multi-token prediction propose them, one pass each.
    """

    drafts: Annotated[int, Field(ge=1, le=MAX_DRAFTS)]
    acceptance: Annotated[float, Field(gt=0, le=1)]

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens of a request in one step: the accepted prefix of the drafts, and one more."""
        return 1 + sum(self.acceptance**number for number in range(1, self.drafts + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingJob:
    """A served model under a steady load.

    model: an architecture, the name of a bundled model, or the path of a config.json.
    cluster: a cluster, or the name of a preset.
    precision: of the weights and products of the layers: ``bf16``, ``fp8`` (scale per tensor or channel),
    ``fp8-block`` (128 x 128), ``mxfp8``, ``nvfp4``, ``mxfp4`` (16-bit activations); empty: as the model is stored.
    kv_precision: of the KV cache, ``bf16`` or ``fp8``; empty: the engine's default.
    engine: name of a profile; engine_version: its version, empty for the newest known.
    input_tokens, output_tokens: of each request. prefix_tokens: of the prompt that the prefix cache holds.
    concurrency: requests in flight in a closed loop with continuous batching, over all attention replicas; a client
    sends a new request when one ends. batch: a static batch instead: all prompts, then all decode steps. Exactly one
    of the two is given.
    phase: ``both``; ``decode`` or ``prefill`` for a worker of that kind in a disaggregated server.
    fidelity: ``loadstore`` runs the all-reduce of a decode step load by load and store by store; ``operator``: all
    times are from tables and formulas.
    max_batched_tokens, max_sequences: the engine's limits per step, None for its defaults.
    memory_fraction: share of the GPU's memory that the engine uses, None for its default.
    length_spread: largest deviation of a prompt's and an output's length from the mean, as a share of it (0: all are
    equal); lengths are uniform between.
    poll_steps: decode steps between two looks of the scheduler at new requests (SGLang's scheduler-recv-interval).
    """

    model: Architecture | str
    cluster: Cluster | str
    input_tokens: Tokens
    output_tokens: Tokens
    concurrency: Tokens | None = None
    batch: Tokens | None = None
    prefix_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    layout: ServingLayout = ServingLayout()
    precision: str = ""
    kv_precision: str = ""
    engine: str = "vllm"
    engine_version: str = ""
    phase: Literal["both", "prefill", "decode"] = "both"
    fidelity: Literal["operator", "loadstore"] = "operator"
    speculation: Speculation | None = None
    max_batched_tokens: Tokens | None = None
    max_sequences: Tokens | None = None
    memory_fraction: Annotated[float | None, Field(gt=0, le=1)] = None
    length_spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    poll_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1
