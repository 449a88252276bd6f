"""Answer a serving question: resolve its names, time its steps, and follow the requests through the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from trine.cluster import Cluster, load_cluster
from trine.errors import InputError
from trine.inference.answer import Estimate, ServingAnswer, StepPart
from trine.inference.communication import gpu_of
from trine.inference.engines import LARGE_GPU_BYTES, load_engine
from trine.inference.job import ServingJob
from trine.inference.loop import ClosedLoop, Load, LoopTimes
from trine.inference.memory import ServingMemory, kv_bytes, kv_bytes_per_token, serving_memory
from trine.inference.precision import kv_name, precision_name, served_precisions
from trine.inference.shards import check_layout
from trine.inference.steps import Chunk, Deployment, Step, StepTime, StepTimer
from trine.workload.architecture.counts import described
from trine.workload.architecture.model import Architecture
from trine.workload.synthesis.model_files import load_model

_S = 1e-6


def answer(job: ServingJob) -> ServingAnswer:
    """Return the latency and throughput of ``job``.

    Raises InputError (one line) for an unknown engine, version or precision, a layout that does not divide the model,
    and a model or request that does not fit (with the missing bytes).
    """
    check_job(job)
    deployment, precision = deployed(job)
    limits = _limits(job, deployment)
    timer = step_timer(deployment)
    return _Answer(job, deployment, precision, limits, timer).answer()


def check_job(job: ServingJob) -> None:
    """Raise InputError for a question that contradicts itself."""
    if (job.batch is None) == (job.concurrency is None):
        raise InputError("give either a batch or a concurrency", field="concurrency")
    if job.prefix_tokens > job.input_tokens:
        message = f"{job.prefix_tokens:,} tokens are more than the prompt's {job.input_tokens:,}"
        raise InputError(message, field="prefix_tokens")


def deployed(job: ServingJob) -> tuple[Deployment, str]:
    """Return the deployment of a question, and the name of its precision."""
    model = _architecture(job.model)
    cluster = _cluster(job.cluster, job.layout.gpus)
    gpu = gpu_of(cluster)
    engine = load_engine(job.engine, job.engine_version)
    name = precision_name(job.precision, model.stored)
    for layer in set(model.layers):
        for block in (layer.mixer, layer.cross, layer.feed_forward, layer.beside):
            if block is not None:
                check_layout(block, job.layout)
    _check_stages(model, job.layout.pp)
    kv = kv_name(job.kv_precision, engine.kv_precision, name)
    return Deployment(model, cluster, gpu, job.layout, served_precisions()[name], kv, engine), name


def _check_stages(model: Architecture, pp: int) -> None:
    if pp > len(model.layers):
        raise InputError(f"{pp} stages are more than the {len(model.layers)} layers", field="pp")


def _architecture(model: Architecture | str) -> Architecture:
    return model if isinstance(model, Architecture) else _named_model(model)


@lru_cache(maxsize=64)
def _named_model(model: str) -> Architecture:
    found = described(load_model(model.removeprefix("model:")))
    if found is None or not found.head:
        raise InputError(f"{model} generates no tokens", field="model")
    return found


@lru_cache(maxsize=64)
def _preset(name: str, gpus: int) -> Cluster:
    return load_cluster(name, gpus=gpus)


def _cluster(cluster: Cluster | str, gpus: int) -> Cluster:
    if isinstance(cluster, str):
        return _preset(cluster, gpus)
    if len(cluster.gpus) < gpus:
        raise InputError(f"{gpus} GPUs are more than the cluster's {len(cluster.gpus)}", field="cluster")
    return cluster


_timers: dict[tuple[object, ...], StepTimer] = {}


def step_timer(deployment: Deployment) -> StepTimer:
    """Return the timer of a deployment, which further answers share."""
    key = (
        id(deployment.model), id(deployment.cluster), deployment.layout,
        deployment.precision.title, deployment.kv, deployment.engine.name, deployment.engine.version,
    )  # fmt: skip
    if key not in _timers:
        _timers[key] = StepTimer(deployment)
    return _timers[key]


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of one attention replica: tokens and sequences of a step, memory, and requests that fit at a time."""

    budget: int
    sequences: int
    memory: ServingMemory
    capacity_tokens: int
    fitting: int


def _limits(job: ServingJob, deployment: Deployment) -> _Limits:
    engine, gpu = deployment.engine, deployment.gpu
    size = "large" if gpu.memory_bytes >= LARGE_GPU_BYTES and "a100" not in gpu.name else "small"
    budget = job.max_batched_tokens or getattr(engine.max_batched_tokens, size)
    sequences = job.max_sequences or getattr(engine.max_sequences, size)
    memory = serving_memory(deployment, budget, sequences, job.memory_fraction)
    request = kv_bytes(deployment, job.input_tokens + job.output_tokens)
    if memory.kv_bytes < request:
        missing = math.ceil(request - memory.kv_bytes)
        raise InputError(
            f"no room for one request of {job.input_tokens + job.output_tokens:,} tokens: {missing:,} bytes are missing "
            f"on each GPU (weights {memory.weights_bytes:,} of {gpu.memory_bytes:,} bytes)", field="cluster",
        )  # fmt: skip
    per_token = kv_bytes_per_token(deployment)
    capacity = int(memory.kv_bytes / per_token) if per_token else 0
    return _Limits(budget, sequences, memory, capacity, int(memory.kv_bytes / request))


class _Answer:
    """The parts of one answer, computed in order."""

    def __init__(
        self, job: ServingJob, deployment: Deployment, precision: str, limits: _Limits, timer: StepTimer
    ) -> None:
        self._job, self._deployment, self._precision = job, deployment, precision
        self._limits, self._timer = limits, timer
        self._cached = min(job.prefix_tokens, job.input_tokens - 1)
        self._lanes = job.layout.attention_dp * job.layout.pp
        self._requests = job.batch or job.concurrency or 1

    def answer(self) -> ServingAnswer:
        """Return the answer."""
        job, layout = self._job, self._job.layout
        replicas = layout.attention_dp
        fitting = min(self._limits.fitting, self._limits.sequences) * replicas
        running = min(self._requests, fitting)
        times = self._static(running) if job.batch is not None else self._closed(running)
        queues = self._requests > running
        end_to_end = times.end_to_end_us * self._requests / running * _S
        per_s = self._requests * job.output_tokens / end_to_end
        tpot = None
        if job.output_tokens > 1:
            tpot = times.tpot_us * _S
        decode = self._decode_step(running)
        prefill = self._prefill_step()
        return ServingAnswer(
            model=self._deployment.model.name, gpu=self._deployment.gpu.name, gpus=layout.gpus,
            engine=f"{self._deployment.engine.title} {self._deployment.engine.version}", precision=self._precision,
            kv_precision=self._deployment.kv, ttft_s=None if queues else _ranged(times.ttft_us * _S, 0.5),
            ttft_refusal=self._refusal(queues, fitting), tpot_s=None if tpot is None else _ranged(tpot, 0.2),
            end_to_end_s=_ranged(end_to_end, 0.2), output_tokens_per_s=_ranged(per_s, 0.2),
            tokens_per_s_per_gpu=_ranged(per_s / layout.gpus, 0.2),
            tokens_per_s_per_user=_ranged(1 / tpot if tpot else per_s / self._requests, 0.2),
            running=running, queues=queues, limit=self._limit(fitting), decode_step_s=decode.us * _S,
            prefill_s=prefill.us * _S, decode_parts=_parts(decode), prefill_parts=_parts(prefill),
            bound=max(decode.parts, key=lambda name: decode.parts[name]), weights_bytes=self._limits.memory.weights_bytes,
            kv_bytes_per_token=kv_bytes_per_token(self._deployment), kv_capacity_tokens=self._limits.capacity_tokens,
            largest_concurrency=fitting,
        )  # fmt: skip

    def _refusal(self, queues: bool, fitting: int) -> str:
        if not queues:
            return ""
        return f"{self._requests:,} requests queue for {fitting:,} places: the wait depends on their arrival"

    def _limit(self, fitting: int) -> str:
        if self._limits.fitting <= self._limits.sequences:
            return "KV cache"
        return "sequences"

    def _load(self, clients: int) -> Load:
        job = self._job
        speculation = job.speculation
        return Load(
            clients=clients, prompt=job.input_tokens - self._cached, cached=self._cached, output=job.output_tokens,
            budget=self._limits.budget, running=clients,
            tokens_per_step=1.0 if speculation is None else speculation.tokens_per_step,
            drafts=0 if speculation is None else speculation.drafts, spread=job.length_spread,
        )  # fmt: skip

    def _closed(self, running: int) -> LoopTimes:
        clients = max(1, -(-running // self._lanes))
        times = ClosedLoop(self._timer, self._deployment.engine, self._load(clients)).run()
        engine = self._deployment.engine
        steps = 1.5 if engine.host == "overlapped" else 0.5
        waited_us = engine.front_end_us + steps * self._decode_step(running).us
        return LoopTimes(times.ttft_us + waited_us, times.tpot_us, times.end_to_end_us + waited_us)

    def _static(self, running: int) -> LoopTimes:
        """Return the times of a static batch: all prompts in full steps, then all decode steps."""
        job = self._job
        sequences = max(1, -(-running // self._lanes))
        new = job.input_tokens - self._cached
        each = max(1, self._limits.budget // new)
        prefill, left = 0.0, sequences
        while left:
            count = min(each, left)
            prefill += self._timer.time(Step(chunks=(Chunk(new, self._cached),) * count)).us
            left -= count
        steps = job.output_tokens - 1
        decode = self._timer.time(Step(sequences, job.input_tokens + job.output_tokens / 2)).us if steps else 0.0
        return LoopTimes(prefill, decode, prefill + steps * decode)

    def _decode_step(self, running: int) -> StepTime:
        job = self._job
        sequences = max(1, -(-running // self._lanes))
        return self._timer.time(Step(sequences, job.input_tokens + job.output_tokens / 2))

    def _prefill_step(self) -> StepTime:
        return self._timer.time(Step(chunks=(Chunk(self._job.input_tokens - self._cached, self._cached),)))


def _ranged(value: float, share: float) -> Estimate:
    return Estimate(value, value / (1 + share), value * (1 + share))


def _parts(step: StepTime) -> tuple[StepPart, ...]:
    return tuple(StepPart(name=name, seconds=us * _S, share=us / step.us, evidence="") for name, us in step.parts.items())
