"""Points of a serving plan: one copy of the model on its GPUs, in a layout and precision, at a number of requests.

A closed form estimates each point; the engine's scheduler is followed only for the points that may matter
(:mod:`trine.inference.point_search`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trine.inference.answer import ServingAnswer
from trine.inference.job import ServingJob
from trine.inference.limits import Limits
from trine.inference.loop import REQUESTS, LoopTimes
from trine.inference.precision import precision_name
from trine.inference.serve import answer_with, wait_us
from trine.inference.steps import Deployment, PromptChunk, Step, StepTimer
from trine.results.report import Row

#: Numbers of requests of a replica that are tried in each octave.
_PER_OCTAVE = 4


@dataclass(frozen=True, slots=True)
class _PromptStep:
    """A step with chunks of prompts; share: prompts that it completes, below 1 for a chunk."""

    step: Step
    share: float


@dataclass(frozen=True, slots=True)
class ServedCopy:
    """One copy of the model in a layout and precision: its timer, its limits, and how often the cluster holds it.

    total_gpus: of the cluster, which the tokens/s per GPU are divided by. nodes: of one copy.
    """

    job: ServingJob
    deployment: Deployment
    limits: Limits
    timer: StepTimer
    copies: int
    total_gpus: int
    nodes: int

    @property
    def lanes(self) -> int:
        """Groups of requests that step on their own: attention replicas times stages."""
        return self.job.layout.attention_dp * self.job.layout.pp

    def loads(self) -> list[int]:
        """Return the requests of a lane to try: four numbers in each octave, and the most that run at a time."""
        most = max(1, self.limits.running // self.job.layout.pp)
        found = {most}
        step = 0
        while (number := round(2 ** (step / _PER_OCTAVE))) < most:
            found.add(number)
            step += 1
        return sorted(found)

    def rate_per_gpu(self, requests: int, end_to_end_s: float) -> float:
        """Return output tokens/s per GPU of the cluster with ``requests`` in flight in each lane."""
        in_flight = requests * self.lanes * self.copies
        return in_flight * self.job.output_tokens / end_to_end_s / self.total_gpus

    def estimate(self, requests: int) -> LoopTimes:
        """Return the times of a closed loop with ``requests`` in each lane, in closed form.

        A request ends after its decode steps, and after the time that the prompts of all requests add to them. Requests
        of equal length stay together: the prompts of one step get their first token with it. An engine that mixes
        prompts with decodes takes at most one step for a token; others run all prompts before the next decode step.
        """
        job = self.job
        context = job.input_tokens + job.output_tokens / 2
        decode_us = self.timer.round_us(Step(requests, context))
        prompts = self._prompts(requests, context)
        added_us = self.timer.round_us(prompts.step) - (decode_us if prompts.step.decodes else 0.0)
        prompt_us = added_us / prompts.share
        wait = wait_us(self.deployment.engine, job.input_tokens, requests, decode_us)
        end_to_end_us = (job.output_tokens - 1) * decode_us + requests * prompt_us + wait
        together = min(requests, max(1.0, prompts.share))
        first_wave_us = (requests + together) / 2 * prompt_us
        if not prompts.step.decodes:
            ttft_us = wait + first_wave_us
            return LoopTimes(ttft_us, (end_to_end_us - ttft_us) / (job.output_tokens - 1), end_to_end_us)
        ttft_us = wait + (first_wave_us + (REQUESTS - 1) * together * prompt_us) / REQUESTS
        tpot_us = min((end_to_end_us - ttft_us) / (job.output_tokens - 1), decode_us + added_us)
        return LoopTimes(ttft_us, tpot_us, end_to_end_us)

    def _prompts(self, requests: int, context: float) -> _PromptStep:
        """Return a full step of prompts: alone, or beside the decodes of the other requests."""
        new = self.job.input_tokens - min(self.job.prefix_tokens, self.job.input_tokens - 1)
        decodes = requests if self.deployment.engine.batching != "prefill-first" and requests > 1 else 0
        budget = max(1, self.limits.budget - decodes)
        chunk = new if self.deployment.engine.batching == "whole-prompts" else min(new, budget)
        count = max(1, min(budget // chunk, requests))
        cached = self.job.input_tokens - new + (new - chunk) // 2
        return _PromptStep(Step(decodes, context, (PromptChunk(chunk, cached),) * count), count * chunk / new)

    def simulate(self, requests: int) -> ServingPoint:
        """Return the point with ``requests`` in flight in each lane, by the engine's scheduler."""
        job = replace(self.job, concurrency=requests * self.lanes)
        answer = answer_with(job, self.deployment, self.limits, self.timer)
        return ServingPoint(answer=answer, copies=self.copies, total_gpus=self.total_gpus, copy_nodes=self.nodes,
                            stored=precision_name("", self.deployment.model.stored))  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingPoint:
    """All copies of the model under a load. answer: of one copy. copy_nodes: nodes of a copy. stored: precision of the
    stored weights."""

    answer: ServingAnswer
    copies: int
    total_gpus: int
    copy_nodes: int
    stored: str

    @property
    def concurrency(self) -> int:
        """Requests in flight on all GPUs."""
        return (self.answer.job.concurrency or 1) * self.copies

    @property
    def ttft_s(self) -> float:
        """Time to first token in seconds."""
        return self.answer.ttft_s.value if self.answer.ttft_s is not None else 0.0

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first, in seconds."""
        return self.answer.tpot_s.value if self.answer.tpot_s is not None else 0.0

    @property
    def per_user(self) -> float:
        """Output tokens/s of one user: 1 / TPOT."""
        return self.answer.tokens_per_s_per_user.value

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens/s of all copies."""
        return self.answer.output_tokens_per_s.value * self.copies

    @property
    def per_gpu(self) -> float:
        """Output tokens/s of each GPU of the cluster, idle ones included."""
        return self.output_tokens_per_s / self.total_gpus

    @property
    def is_stored_precision(self) -> bool:
        """Whether the weights are served in the stored precision."""
        return self.answer.precision == self.stored

    def row(self) -> Row:
        """Return the point as plain data."""
        answer, layout = self.answer, self.answer.job.layout
        return {
            "tp": layout.tp, "pp": layout.pp, "ep": layout.ep, "attention_dp": layout.attention_dp,
            "copies": self.copies, "precision": answer.precision, "kv_precision": answer.kv_precision,
            "concurrency": self.concurrency, "ttft_s": self.ttft_s, "tpot_s": self.tpot_s,
            "end_to_end_s": answer.end_to_end_s.value, "tokens_per_s_per_user": self.per_user,
            "tokens_per_s_per_gpu": self.per_gpu, "output_tokens_per_s": self.output_tokens_per_s,
            "bound": answer.bound,
        }  # fmt: skip
