"""The answer of ``trine infer``: latency, throughput, memory for the KV cache, and the parts of a decode step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from trine.common.evidence import Evidence
from trine.inference.job import ServingJob
from trine.inference.ranges import Estimate
from trine.results.report import Report, Row, Table

#: Seconds of an hour, and tokens of the unit of costs.
_HOUR_S, _MILLION = 3600.0, 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """One part of a step, such as ``GEMMs``; time in seconds, share of the step."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, kw_only=True, repr=False)
class ServingAnswer(Report):
    """Predicted latency and throughput of one copy of the model.

    ttft_s: time to first token; None, with ``ttft_refusal``, if requests queue, or in the decode phase. tpot_s: time
    per output token, (end-to-end latency - TTFT) / (output tokens - 1); None for the prefill phase or a single output
    token. end_to_end_s: of one request. running: requests that run at a time; fewer than the concurrency if requests
    queue. output_tokens_per_s, tokens_per_s_per_gpu, tokens_per_s_per_user: output tokens; per GPU over ``gpus``.
    input_tokens_per_s_per_gpu: prompts. limit: of ``largest_concurrency``, ``KV cache`` or ``sequences``.
    decode_step_s: in the middle of the output, without prefill. prefill_s: of one prompt alone. kv_bytes_per_token: on
    one GPU, beyond all windows; kv_capacity_tokens: of one attention replica, 0 if no token adds to the cache.
    largest_concurrency: requests of this length that fit at a time, over all replicas. bound: what limits a decode
    step: ``weights``, ``KV cache``, ``compute``, ``communication``, ``small kernels`` or ``CPU``. power_w: of all GPUs,
    None if unknown. dollars_per_gpu_hour: None without a price.
    """

    SCHEMA: ClassVar[str] = "infer"

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
    power_w: float | None = None
    dollars_per_gpu_hour: float | None = None
    evidence: tuple[Evidence, ...] = ()
    notes: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        """Requests of the static batch, or in flight."""
        return self.job.batch or self.job.concurrency or 1

    @property
    def tokens_per_s(self) -> Estimate:
        """Tokens per second that costs refer to: output tokens, or those of prompts in the prefill phase."""
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

    @property
    def headline(self) -> str:
        """The result in one line."""
        from trine.inference.screen import headline

        return headline(self)

    def summary(self) -> str:
        """Return the answer on one screen."""
        from trine.inference.screen import screen

        return screen(self).text()

    def details(self) -> str:
        """Return the answer with all parts, evidence and effects left out."""
        from trine.inference.screen import details

        return details(self)

    def document(self) -> Row:
        """Return all numbers as plain data."""
        found: dict[str, Any] = {"question": _question(self.job)}
        for name in _PLAIN:
            found[name] = getattr(self, name)
        for name in _ESTIMATES:
            estimate = getattr(self, name)
            found[name] = None if estimate is None else asdict(estimate)
        found["decode_parts"] = [asdict(part) for part in self.decode_parts]
        found["prefill_parts"] = [asdict(part) for part in self.prefill_parts]
        found["evidence"] = [asdict(each) for each in self.evidence]
        found["notes"] = list(self.notes)
        found["not_modelled"] = list(self.not_modelled)
        return found

    def record(self) -> Row:
        """Return one flat row: the plain numbers, and the middle of each estimate."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        for name in _ESTIMATES:
            estimate = getattr(self, name)
            found[name] = None if estimate is None else estimate.value
        return found

    def tables(self) -> Mapping[str, Table]:  # type: ignore[override]
        """Return the parts of a decode step and of a prompt."""
        return {
            "decode": [asdict(part) for part in self.decode_parts],
            "prefill": [asdict(part) for part in self.prefill_parts],
        }


#: Fields and properties of an answer that JSON holds as they are, and as value, low and high.
_PLAIN = (
    "model", "gpu", "cluster", "gpus", "engine", "precision", "kv_precision", "ttft_refusal", "running", "queues",
    "limit", "largest_concurrency", "kv_capacity_tokens", "kv_bytes_per_token", "kv_bytes", "weights_bytes",
    "activations_bytes", "decode_step_s", "prefill_s", "bound", "power_w", "dollars_per_gpu_hour",
)  # fmt: skip
_ESTIMATES = (
    "ttft_s", "tpot_s", "end_to_end_s", "output_tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_user",
    "input_tokens_per_s_per_gpu", "dollars_per_million_tokens", "joules_per_million_tokens",
)  # fmt: skip


def _question(job: ServingJob) -> dict[str, Any]:
    """Return the request: layout, lengths and load."""
    layout = job.layout
    return {
        "tp": layout.tp, "pp": layout.pp, "ep": layout.ep, "attention_dp": layout.attention_dp,
        "input_tokens": job.input_tokens, "output_tokens": job.output_tokens, "prefix_tokens": job.prefix_tokens,
        "batch": job.batch, "concurrency": job.concurrency, "phase": job.phase,
        "length_spread": job.length_spread,
        "drafts": 0 if job.speculation is None else job.speculation.drafts,
        "acceptance": None if job.speculation is None else job.speculation.acceptance,
    }  # fmt: skip
