"""The numbers of a serving answer: latency, throughput, memory for the KV cache, and the parts of a step."""

from __future__ import annotations

from dataclasses import dataclass

from trine.common.evidence import Evidence
from trine.inference.context import context_warning
from trine.inference.job import ServingJob
from trine.inference.ranges import Estimate
from trine.inference.stack import Stack

#: Seconds of an hour, and tokens of the unit of costs.
_HOUR_S, _MILLION = 3600.0, 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """One part of a step, such as ``GEMMs``; time in seconds, share of the step."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduceLevels:
    """The all-reduce of a decode step at two levels of detail, and TPOT with the operator level's time.

    num_bytes: that each of ``ways`` GPUs sums. program: of the load-store level, such as ``twoshot``.
    operator_tpot_s: None without a TPOT.
    """

    num_bytes: int
    ways: int
    program: str
    operator_s: float
    loadstore_s: float
    operator_tpot_s: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class ServingNumbers:
    """Predicted latency and throughput of one copy of the model.

    ttft_s: time to first token; None, with ``ttft_refusal``, if requests queue, or in the decode phase. tpot_s: time
    per output token, (end-to-end latency - TTFT) / (output tokens - 1); None for the prefill phase or a single output
    token. end_to_end_s: of one request. running: requests that run at a time; fewer than the concurrency if requests
    queue. output_tokens_per_s, tokens_per_s_per_gpu, tokens_per_s_per_user: output tokens; per GPU over ``gpus``.
    input_tokens_per_s_per_gpu: prompts. limit: of ``largest_concurrency``, ``KV cache`` or ``sequences``.
    decode_step_s: in the middle of the output, without prefill. prefill_s: of one prompt alone. kv_bytes_per_token: on
    one GPU, beyond all windows; kv_capacity_tokens: of one attention replica, 0 if no token adds to the cache.
    largest_concurrency: requests of this length that fit at a time, over all replicas. max_context_tokens: longest
    context of the model, 0 if unknown. weights_warning: if the weights are stored in a form without a precision in
    trine, else empty. bound: what limits a decode
    step: ``weights``, ``KV cache``, ``compute``, ``communication``, ``small kernels`` or ``CPU``. power_w: of all GPUs,
    None if unknown. dollars_per_gpu_hour: None without a price. stack: the calibration, None for a blind answer.
    all_reduce: at both levels with ``fidelity`` ``loadstore``, otherwise None.
    """

    job: ServingJob
    model: str
    gpu: str
    cluster: str
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
    input_tokens_per_s_per_gpu: Estimate
    running: int
    queues: bool
    limit: str
    decode_step_s: float
    prefill_s: float
    decode_parts: tuple[StepPart, ...]
    prefill_parts: tuple[StepPart, ...]
    bound: str
    weights_bytes: int
    activations_bytes: int
    kv_bytes: int
    kv_bytes_per_token: float
    kv_capacity_tokens: int
    largest_concurrency: int
    max_context_tokens: int = 0
    weights_warning: str = ""
    power_w: float | None = None
    dollars_per_gpu_hour: float | None = None
    stack: Stack | None = None
    all_reduce: AllReduceLevels | None = None
    evidence: tuple[Evidence, ...] = ()
    notes: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        """Requests of the static batch, or in flight."""
        return self.job.batch or self.job.concurrency or 1

    @property
    def context_warning(self) -> str:
        """A warning if a request is beyond the longest context of the model, else an empty text."""
        return context_warning(self.model, self.max_context_tokens, self.job.input_tokens + self.job.output_tokens)

    @property
    def tokens_per_s(self) -> Estimate:
        """Tokens per second for the costs: output tokens, or prompt tokens in the prefill phase."""
        if self.job.phase == "prefill":
            return self.input_tokens_per_s_per_gpu.times(self.gpus)
        return self.output_tokens_per_s

    @property
    def dollars_per_million_tokens(self) -> Estimate | None:
        """Price of a million tokens; None without a price."""
        if self.dollars_per_gpu_hour is None:
            return None
        return self.tokens_per_s.per(self.gpus * self.dollars_per_gpu_hour / _HOUR_S * _MILLION)

    @property
    def joules_per_million_tokens(self) -> Estimate | None:
        """Energy of the GPUs for a million tokens; None if their power is unknown."""
        return None if self.power_w is None else self.tokens_per_s.per(self.power_w * _MILLION)
