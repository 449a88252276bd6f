"""The answer of ``trine infer``: latency, throughput, memory for the KV cache, and the parts of a decode step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted value, and the interval in which 80 % of measured values are expected."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """One part of a step, such as ``GEMMs`` or ``KV cache``; time in seconds, share of the step, and evidence."""

    name: str
    seconds: float
    share: float
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingAnswer:
    """Predicted latency and throughput of one copy of the model.

    ttft_s: time to first token, without queueing before the engine; None, with ``ttft_refusal``, if requests queue, or
    in the decode phase. tpot_s: time per output token, (end-to-end latency - TTFT) / (output tokens - 1); None for the
    prefill phase or a single output token. end_to_end_s: of one request. running: requests that run at a time; fewer
    than the concurrency if requests queue. output_tokens_per_s, tokens_per_s_per_gpu, tokens_per_s_per_user: output
    tokens; per GPU over ``gpus``. decode_step_s: of the middle of the output, without prefill. prefill_s: of one
    prompt alone. kv_bytes_per_token: on one GPU; kv_capacity_tokens: of one attention replica.
    largest_concurrency: requests of this length that fit at a time, over all replicas.
    bound: what limits a decode step: ``weights``, ``KV cache``, ``compute``, ``communication`` or ``CPU``.
    """

    model: str
    gpu: str
    gpus: int
    engine: str
    precision: str
    kv_precision: str
    ttft_s: Estimate | None
    ttft_refusal: str
    tpot_s: Estimate | None
    end_to_end_s: Estimate
    output_tokens_per_s: Estimate
    tokens_per_s_per_gpu: Estimate
    tokens_per_s_per_user: Estimate
    running: float
    queues: bool
    limit: str
    decode_step_s: float
    prefill_s: float
    decode_parts: tuple[StepPart, ...]
    prefill_parts: tuple[StepPart, ...]
    bound: str
    weights_bytes: int
    kv_bytes_per_token: float
    kv_capacity_tokens: int
    largest_concurrency: int
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
