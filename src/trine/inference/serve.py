"""Answer a serving question: resolve its names, time its steps, and follow the requests through the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from trine.compute.tables.machine import peak_of, runs
from trine.errors import InputError
from trine.inference.answer import ServingAnswer
from trine.inference.basis import NOT_MODELLED, evidence_of, notes_of, weights_warning
from trine.inference.deployment import resolve, step_timer
from trine.inference.engines import EngineProfile
from trine.inference.job import ServingJob
from trine.inference.limits import Limits, NoRoomError, limits_of
from trine.inference.load_times import closed_loop
from trine.inference.loadstore import LOADSTORE, decode_bytes, loadstore_timer, sequences_of
from trine.inference.loop import ClientLoad, LoopTimes
from trine.inference.memory import kv_bytes_per_token
from trine.inference.numbers import AllReduceLevels, StepPart
from trine.inference.ranges import range_power, ranged, serving_ranges
from trine.inference.room import any_of, changes_with_room, nearest_ways
from trine.inference.steps import (
    ATTENTION,
    COMMUNICATION,
    CPU,
    SMALL,
    Deployment,
    PromptChunk,
    Step,
    StepTime,
    StepTimer,
)
from trine.results.energy import power_shares
from trine.workload.architecture.weights import num_active_elements

_S = 1e-6
#: Decode steps that pass, on average, before a new request's first step: half of the running one, and one more that
#: the CPU has scheduled already.
_STEPS_AHEAD = {"overlapped": 1.5, "exposed": 0.5}


def answer(job: ServingJob, dollars_per_gpu_hour: float | None = None) -> ServingAnswer:
    """Return the latency and throughput of ``job``.

    dollars_per_gpu_hour: for the price of a million tokens. Raises InputError (one line) for an unknown engine, version
    or precision, a layout that does not divide the model, and a model or request that does not fit (with the missing
    bytes).
    """
    _check_job(job)
    deployment = _resolved(job)
    limits, timer = _limits(job, deployment), step_timer(deployment)
    found = _Service(job, deployment, limits, timer).answer(dollars_per_gpu_hour)
    if job.fidelity == LOADSTORE:
        return _at_loadstore(_Service(job, deployment, limits, timer), found)
    return found


def _at_load(job: ServingJob, requests: int) -> ServingAnswer:
    """Return the answer to a question with another number of requests, at the operator level."""
    if job.batch is not None:
        return answer(replace(job, batch=requests, fidelity="operator"))
    return answer(replace(job, concurrency=requests, fidelity="operator"))


def _at_loadstore(service: _Service, by_table: ServingAnswer) -> ServingAnswer:
    """Return an answer with the decode step's all-reduce at the load-store level, and both of its times."""
    job, deployment = service.job, service.deployment
    sequences = sequences_of(job, by_table.running)
    timer = loadstore_timer(job, deployment, sequences)
    num_bytes, ways = decode_bytes(job, deployment, sequences), job.layout.tp
    simulated = timer.communication.simulated
    assert simulated is not None
    levels = AllReduceLevels(
        num_bytes=num_bytes, ways=ways, program=simulated.program(num_bytes, ways),
        operator_s=service.timer.communication.all_reduce_us(num_bytes, ways) * _S,
        loadstore_s=simulated.time_us(num_bytes, ways) * _S,
        operator_tpot_s=None if by_table.tpot_s is None else by_table.tpot_s.value,
    )  # fmt: skip
    found = _Service(job, deployment, service.limits, timer).answer(by_table.dollars_per_gpu_hour)
    return replace(found, all_reduce=levels)


def answer_with(job: ServingJob, deployment: Deployment, limits: Limits, timer: StepTimer) -> ServingAnswer:
    """Return the answer of a resolved question."""
    return _Service(job, deployment, limits, timer).answer(None)


def wait_us(engine: EngineProfile, input_tokens: int, sequences: int, decode_us: float) -> float:
    """Return the wait before a prompt's first step: front end, and the decode steps of other sequences.

    It has no tokenisation of an engine that tokenises one prompt after the other: the loop has it.
    """
    front_end_us = engine.front_end_us
    if engine.tokenises == "together":
        front_end_us += engine.tokenise_us * input_tokens
    return front_end_us + (_STEPS_AHEAD[engine.host] * decode_us if sequences > 1 else 0.0)


def _resolved(job: ServingJob) -> Deployment:
    """Return the deployment. Raises InputError; if tp does not divide the model, with the nearest ways that do."""
    try:
        return resolve(job)
    except InputError as error:
        ways = nearest_ways(job) if error.field == "tp" else []
        if not ways:
            raise
        raise InputError(f"{error.problem}: use tp {any_of([str(each) for each in ways])}", field="tp") from None


def _limits(job: ServingJob, deployment: Deployment) -> Limits:
    """Return the limits. Raises NoRoomError with the changes that make room."""
    try:
        return limits_of(job, deployment)
    except NoRoomError as error:
        changes = changes_with_room(job, deployment)
        if not changes:
            raise
        raise NoRoomError(f"{error.problem}; {any_of(changes)} makes room", error.missing_bytes) from None


def _check_job(job: ServingJob) -> None:
    """Raise InputError for a question that contradicts itself."""
    if (job.batch is None) == (job.concurrency is None):
        raise InputError("give either a batch or a concurrency", field="concurrency")
    if job.prefix_tokens > job.input_tokens:
        message = f"{job.prefix_tokens:,} tokens are more than the prompt's {job.input_tokens:,}"
        raise InputError(message, field="prefix_tokens")
    if job.phase == "decode" and job.output_tokens == 1:
        raise InputError("a decode worker needs two output tokens: the prefill worker makes the first", field="phase")


@dataclass(frozen=True, slots=True)
class _Service:
    """One question with its deployment; the methods compute the parts of its answer."""

    job: ServingJob
    deployment: Deployment
    limits: Limits
    timer: StepTimer

    @property
    def cached(self) -> int:
        """Tokens of a prompt that the prefix cache holds; the last token is always computed."""
        return min(self.job.prefix_tokens, self.job.input_tokens - 1)

    @property
    def lanes(self) -> int:
        """Groups of requests that step on their own: attention replicas, and micro-batches of a pipeline."""
        return self.job.layout.attention_dp * self.job.layout.pp

    @property
    def requests(self) -> int:
        """Requests of the static batch, or in flight."""
        return self.job.batch or self.job.concurrency or 1

    def answer(self, dollars_per_gpu_hour: float | None) -> ServingAnswer:
        """Return the answer."""
        job, gpus = self.job, self.job.layout.gpus
        fitting = self.limits.running * job.layout.attention_dp
        running = min(self.requests, fitting)
        sequences = max(1, -(-running // self.lanes))
        times = self._times(sequences)
        queues = self.requests > running
        decode, prefill = self._decode_step(sequences), self._prefill_step()
        ranges, power_of_range = serving_ranges(), range_power(self.deployment.gpu, self.deployment.precision)
        end_to_end = ranged(times.end_to_end_us * self.requests / running * _S, ranges.tpot, power_of_range)
        rate = end_to_end.per(self.requests * self._output_tokens)
        has_tpot = job.phase != "prefill" and job.output_tokens > 1
        tpot = ranged(times.tpot_us * _S, ranges.tpot, power_of_range) if has_tpot else None
        has_ttft = not queues and job.phase != "decode"
        power = self.deployment.gpu.power_w
        return ServingAnswer(
            at_load=partial(_at_load, job), job=job, model=self.deployment.model.name, gpu=self.deployment.gpu.name,
            cluster=self.deployment.cluster.name, gpus=gpus,
            engine=f"{self.deployment.engine.title} {self.deployment.engine.version}",
            precision=self.deployment.precision_name, kv_precision=self.deployment.kv,
            ttft_s=ranged(times.ttft_us * _S, ranges.ttft, power_of_range) if has_ttft else None,
            ttft_refusal=self._refusal(queues, fitting), tpot_s=tpot, end_to_end_s=end_to_end,
            output_tokens_per_s=rate, tokens_per_s_per_gpu=rate.times(1 / gpus),
            tokens_per_s_per_user=rate.times(1 / self.requests) if tpot is None else tpot.per(1.0),
            input_tokens_per_s_per_gpu=end_to_end.per(self.requests * job.input_tokens / gpus),
            running=running, queues=queues, limit=self.limits.name, decode_step_s=decode.us * _S,
            prefill_s=prefill.us * _S, decode_parts=_parts(decode), prefill_parts=_parts(prefill),
            bound=self._bound(decode, sequences), weights_bytes=self.limits.memory.weights_bytes,
            activations_bytes=self.limits.memory.activations_bytes, kv_bytes=self.limits.memory.kv_bytes,
            kv_bytes_per_token=kv_bytes_per_token(self.deployment), kv_capacity_tokens=self.limits.capacity_tokens,
            largest_concurrency=fitting, max_context_tokens=self.deployment.model.max_context,
            weights_warning=weights_warning(job, self.deployment),
            power_w=None if power is None else gpus * power * power_shares().computing,
            dollars_per_gpu_hour=dollars_per_gpu_hour, evidence=evidence_of(self.deployment, self.timer),
            notes=notes_of(job, self.deployment, self.limits), not_modelled=NOT_MODELLED,
        )  # fmt: skip

    @property
    def _output_tokens(self) -> int:
        """Tokens that this GPU makes of a request: one in the prefill phase, all others in the decode phase."""
        if self.job.phase == "both":
            return self.job.output_tokens
        return 1 if self.job.phase == "prefill" else self.job.output_tokens - 1

    def _refusal(self, queues: bool, fitting: int) -> str:
        """Return the reason for an answer without a TTFT, or an empty text."""
        if queues:
            places = "1 place" if fitting == 1 else f"{fitting:,} places"
            return f"{self.requests:,} requests queue for {places} ({self.limits.name})"
        return "prefill workers make the first token" if self.job.phase == "decode" else ""

    # Requests through the engine ------------------------------------------------------------------------------------

    def _times(self, sequences: int) -> LoopTimes:
        if self.job.phase == "decode":
            return self._decode_only(sequences)
        if self.job.batch is not None:
            return self._static(sequences)
        times = closed_loop(self.timer, self.deployment.engine, self._load(sequences))
        others = 0 if self.job.phase == "prefill" else sequences
        engine, decode_us = self.deployment.engine, self._decode_step(sequences).us
        waited_us = wait_us(engine, self.job.input_tokens, others, decode_us)
        return LoopTimes(times.ttft_us + waited_us, times.tpot_us, times.end_to_end_us + waited_us)

    def _load(self, clients: int) -> ClientLoad:
        job, speculation, engine = self.job, self.job.speculation, self.deployment.engine
        return ClientLoad(
            clients=clients, prompt=job.input_tokens - self.cached, cached=self.cached,
            output=1 if job.phase == "prefill" else job.output_tokens, budget=self.limits.budget, running=clients,
            tokens_per_step=1.0 if speculation is None else speculation.tokens_per_step,
            drafts=0 if speculation is None else speculation.drafts, spread=job.length_spread,
            tokenise_us=engine.tokenise_us * job.input_tokens if engine.tokenises == "one-by-one" else 0.0,
            poll_steps=job.poll_steps,
        )  # fmt: skip

    def _static(self, sequences: int) -> LoopTimes:
        """Return the times of a static batch: all prompts in full steps, then all decode steps."""
        new = self.job.input_tokens - self.cached
        each = max(1, self.limits.budget // new)
        prefill_us, left = 0.0, sequences
        while left:
            count = min(each, left)
            prefill_us += self.timer.time(Step(chunks=(PromptChunk(new, self.cached),) * count)).us
            left -= count
        if self.job.phase == "prefill":
            return LoopTimes(prefill_us, 0.0, prefill_us)
        tpot_us = self._tpot_us(sequences)
        return LoopTimes(prefill_us, tpot_us, prefill_us + (self.job.output_tokens - 1) * tpot_us)

    def _decode_only(self, sequences: int) -> LoopTimes:
        tpot_us = self._tpot_us(sequences)
        return LoopTimes(0.0, tpot_us, (self.job.output_tokens - 1) * tpot_us)

    def _tpot_us(self, sequences: int) -> float:
        """Return the time per token of a batch whose requests all decode."""
        speculation = self.job.speculation
        round_us = self.timer.round_us(self._middle_step(sequences))
        return round_us / (1.0 if speculation is None else speculation.tokens_per_step)

    # Single steps ---------------------------------------------------------------------------------------------------

    def _decode_step(self, sequences: int) -> StepTime:
        """Return the time of a decode step in the middle of the output."""
        return self.timer.time(self._middle_step(sequences))

    def _middle_step(self, sequences: int) -> Step:
        speculation = self.job.speculation
        context = self.job.input_tokens + self.job.output_tokens / 2
        return Step(sequences, context, drafts=0 if speculation is None else speculation.drafts)

    def _prefill_step(self) -> StepTime:
        """Return the prefill of one prompt."""
        return self.timer.time(Step(chunks=(PromptChunk(self.job.input_tokens - self.cached, self.cached),)))

    def _bound(self, step: StepTime, sequences: int) -> str:
        """Return what limits a decode step."""
        rest = {"KV cache": ATTENTION, "communication": COMMUNICATION, "small kernels": SMALL, "CPU": CPU}
        times = {name: step.parts[part] for name, part in rest.items()}
        products = step.us - sum(times.values())
        times["compute" if self._is_compute_bound(sequences) else "weights"] = products
        return max(times, key=lambda name: times[name])

    def _is_compute_bound(self, sequences: int) -> bool:
        """Return whether the products of a step take longer by their FLOPs than by the bytes of the weights."""
        gpu, precision = self.deployment.gpu, self.deployment.precision
        dtype = precision.products if runs(gpu, precision.products) else "bfloat16"
        layout = self.deployment.layout
        active = sum(num_active_elements(weights) for weights in self.deployment.model.modules().values())
        flops = 2 * active * sequences * layout.attention_dp / layout.stage_gpus
        return flops / peak_of(gpu, dtype) > self.limits.memory.weights_bytes / gpu.memory_bytes_per_s


def _parts(step: StepTime) -> tuple[StepPart, ...]:
    return tuple(StepPart(name=name, seconds=us * _S, share=us / step.us) for name, us in step.parts.items())
